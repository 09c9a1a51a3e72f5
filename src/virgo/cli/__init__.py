"""The command line: parse, call, print."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from virgo import __version__
from virgo.cli.progress import errors
from virgo.errors import VirgoError

__all__ = ["main", "parser"]

#: Each command, its module and what it is for. Only the module of the command that is given is
#: imported, as PyTorch and PyG take seconds: `virgo --help` and `virgo graph` need neither.
_COMMANDS = {
    "demo": ("diagnose", "every method on Cora, or on a generated graph where Cora is not at hand"),
    "methods": ("diagnose", "list the initialisation methods"),
    "check": ("diagnose", "do signal and gradient survive this model? exit code 1 if not"),
    "compare": (
        "diagnose",
        "variance over layers, all methods side by side (the paper's Figure 1)",
    ),
    "verify": ("diagnose", "the paper's five assumption tables on real graphs"),
    "graph": (
        "graphs",
        "graphs on disk: build one from an edge list in bounded memory, describe it",
    ),
    "plan": ("planning", "the variances for a graph on disk or in a lake, from its edges alone"),
    "data": ("datasets", "the paper's datasets and others: what is here, prepare one, check them"),
    "train": ("training", "train one network, with a live curve"),
    "sweep": (
        "sweeping",
        "run the paper's grids over methods and seeds; goes on where it was stopped",
    ),
    "table": ("tables", "the paper's tables beside what we measured, with tests"),
}


def parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """For the command that ``words`` begin with; if they name none, a list of all commands."""
    top = argparse.ArgumentParser(
        prog="virgo",
        description="Initialise graph neural networks so that signal and gradient survive.",
        epilog="In Python: virgo.init_(model, data) initialises any PyTorch Geometric model.",
    )
    top.add_argument("--version", action="version", version=f"virgo {__version__}")
    commands = top.add_subparsers(required=True, metavar="command")
    if words and words[0] in _COMMANDS:
        module, _ = _COMMANDS[words[0]]
        import_module(f"virgo.cli.{module}").add_to(commands)
    else:
        for name, (_, what) in _COMMANDS.items():
            commands.add_parser(name, help=what)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a user's mistake is one line on stderr and exit code 2."""
    words = sys.argv[1:] if argv is None else argv
    args = parser(words).parse_args(words)
    try:
        code: int = args.run(args)
        return code
    except VirgoError as error:
        message = " ".join(f"virgo: {error}".split())
        errors.print(message, style="red", markup=False, highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        return 130

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

#: Modules and their commands. Only that of the command given is imported: what one needs may take
#: seconds that another should not wait for.
_COMMANDS = {
    "diagnose": ("demo", "methods", "check", "compare", "verify"),
    "graphs": ("graph",),
    "planning": ("plan",),
    "datasets": ("data",),
    "training": ("train",),
    "sweeping": ("sweep",),
    "tables": ("table",),
}


def parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The command that ``words`` begin with and its options; all commands if they name none."""
    top = argparse.ArgumentParser(
        prog="virgo",
        description="Initialise graph neural networks so that signal and gradient survive.",
        epilog="In Python: virgo.init_(model, data) initialises any PyTorch Geometric model.",
    )
    top.add_argument("--version", action="version", version=f"virgo {__version__}")
    commands = top.add_subparsers(required=True, metavar="command")
    asked = [module for module, names in _COMMANDS.items() if words and words[0] in names]
    for module in asked or _COMMANDS:
        import_module(f"virgo.cli.{module}").add_to(commands)
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

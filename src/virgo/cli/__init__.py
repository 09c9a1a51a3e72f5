"""The command line: parse, call, print."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import virgo
from virgo.cli import datasets, diagnose, graphs, planning, sweeping, tables, training
from virgo.cli.progress import errors
from virgo.errors import VirgoError

__all__ = ["main", "parser"]


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(
        prog="virgo",
        description="Initialise graph neural networks so that signal and gradient survive.",
        epilog="In Python: virgo.init_(model, data) initialises any PyTorch Geometric model.",
    )
    top.add_argument("--version", action="version", version=f"virgo {virgo.__version__}")
    commands = top.add_subparsers(required=True, metavar="command")
    for module in (diagnose, graphs, planning, datasets, training, sweeping, tables):
        module.add_to(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a user's mistake is one line on stderr and exit code 2."""
    args = parser().parse_args(argv)
    try:
        code: int = args.run(args)
        return code
    except VirgoError as error:
        message = " ".join(f"virgo: {error}".split())
        errors.print(message, style="red", markup=False, highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        return 130

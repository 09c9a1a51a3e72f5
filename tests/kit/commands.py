"""Run a command of ``virgo`` in this process."""

from __future__ import annotations

import argparse
from types import ModuleType


def run(module: ModuleType, *argv: object) -> int:
    """Parse and run a command as ``virgo`` would.

    Args:
        module: a module of :mod:`virgo.cli` that has ``add_to``.
        argv: the command and its arguments.

    Returns:
        The exit code.
    """
    top = argparse.ArgumentParser()
    module.add_to(top.add_subparsers(required=True))
    args = top.parse_args(list(map(str, argv)))
    code: int = args.run(args)
    return code

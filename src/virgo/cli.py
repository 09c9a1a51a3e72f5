"""The command line: parse, call, print."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from virgo import __version__
from virgo.errors import VirgoError

console = Console()
errors = Console(stderr=True)


def track(items: Iterable[str], title: str) -> Iterator[str]:
    """Iterate with a progress bar that names what is being worked on."""
    listed = list(items)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[item]}"),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task(title, total=len(listed), item="")
        for item in listed:
            bar.update(task, item=item)
            yield item
            bar.advance(task)


def demo(args: argparse.Namespace) -> int:
    """Initialise a GCN with every method, compare, and draw the difference."""
    from virgo import demo as demonstration

    demonstration.run(args.out, lambda line: print(line, flush=True), track)
    return 0


def methods(args: argparse.Namespace) -> int:
    """List the methods."""
    from virgo.plans import text_table
    from virgo.schemes import methods as known

    print("\n".join(text_table(("method", "what it does"), list(known().items()), left=2)))
    return 0


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(
        prog="virgo",
        description="Initialise graph neural networks so that signal and gradient survive.",
    )
    top.add_argument("--version", action="version", version=f"virgo {__version__}")
    commands = top.add_subparsers(required=True, metavar="command")
    one = commands.add_parser(
        "demo",
        help="every method on Cora, or on a generated graph where Cora is not at hand",
        description="Initialises a GCN with every method, prints its variances layer by layer and "
        "a short accuracy comparison, and draws a picture. Takes under a minute.",
    )
    one.add_argument("--out", type=Path, default=Path("out"), help="folder for the picture")
    one.set_defaults(run=demo)
    two = commands.add_parser("methods", help="list the initialisation methods")
    two.set_defaults(run=methods)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a user's mistake is one line on stderr and exit code 2."""
    args = parser().parse_args(argv)
    try:
        code: int = args.run(args)
        return code
    except VirgoError as error:
        errors.print(f"virgo: {error}", style="red", markup=False, highlight=False)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

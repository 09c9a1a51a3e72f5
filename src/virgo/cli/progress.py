"""Progress bars and errors, on stderr so that stdout has the output alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

errors = Console(stderr=True)


def note(text: str, style: str | None = None) -> None:
    """Print a line to stderr as it is, without markup."""
    errors.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[item]}"),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
    )


def track(items: Iterable[str], title: str) -> Iterator[str]:
    """Iterate with a progress bar that names what is being worked on."""
    listed = list(items)
    with _bar() as bar:
        task = bar.add_task(title, total=len(listed), item="")
        for item in listed:
            bar.update(task, item=item)
            yield item
            bar.advance(task)


@contextmanager
def reporting(title: str) -> Iterator[Callable[..., None]]:
    """A progress bar driven by ``progress(done, total[, what])``."""
    with _bar() as bar:
        task = bar.add_task(title, total=None, item="")

        def progress(done: int, total: int, what: str = "") -> None:
            bar.update(task, completed=done, total=total, item=what)

        yield progress

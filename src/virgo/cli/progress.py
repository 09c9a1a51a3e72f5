"""Progress and errors, on stderr so that stdout has the output alone.

A terminal gets bars and spinners. A file gets lines: the first within a second of work, then one
whenever something else is being done, or every ten seconds if that has come further.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

errors = Console(stderr=True)
#: Seconds of silence before the first line of a log, and between two on the same work.
FIRST, EVERY = 1.0, 10.0


def note(text: str, style: str | None = None) -> None:
    """Print a line to stderr as it is, without markup."""
    errors.print(text, style=style, markup=False, emoji=False, highlight=False, soft_wrap=True)


class LogLines:
    """Lines on what is being done, for a log.

    A thread writes them: what is being done may be one long call.

    Args:
        text: the first line.
    """

    silent_since = time.monotonic()

    def __init__(self, text: str) -> None:
        self._text = text
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def update(self, text: str) -> None:
        """Another line, if it is time for one."""
        self._text = text

    def _write(self) -> None:
        said = ""
        wait = LogLines.silent_since + FIRST - time.monotonic()
        while not self._ended.wait(max(0.0, wait)):
            if self._text != said:
                said = self._text
                note(said)
                LogLines.silent_since = time.monotonic()
            wait = EVERY

    def __enter__(self) -> LogLines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def begin() -> None:
    """A command begins: what is said within a second of now counts as said at once."""
    LogLines.silent_since = time.monotonic()


@contextmanager
def working(title: str) -> Iterator[Callable[[str], None]]:
    """A spinner with a line of text, or log lines; yields what changes the text."""
    if not errors.is_interactive:
        with LogLines(title) as lines:
            yield lines.update
        return
    with errors.status(Text(title)) as status:  # not text: a name may look like markup
        yield lambda text: status.update(Text(text))


@contextmanager
def loading(name: str) -> Iterator[Callable[..., None]]:
    """The same while a dataset is loaded; yields the ``progress`` that loaders call."""
    with working(f"loading {name}") as update:
        yield lambda done, total, what="": update(f"loading {name}: {what}")


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[item]}", markup=False),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
    )


def track(items: Iterable[str], title: str) -> Iterator[str]:
    """Iterate with a progress bar that names what is being worked on."""
    listed = list(items)
    with reporting(title) as progress:
        for done, item in enumerate(listed):
            progress(done, len(listed), item)
            yield item


@contextmanager
def reporting(title: str) -> Iterator[Callable[..., None]]:
    """A progress bar, or log lines, driven by ``progress(done, total[, what])``."""
    if not errors.is_interactive:
        with LogLines(title) as lines:
            yield lambda done, total, what="": lines.update(
                f"{title}, {100 * done / max(total, 1):.0f} %: {what}".removesuffix(": ")
            )
        return
    with _bar() as bar:
        task = bar.add_task(title, total=None, item="")

        def progress(done: int, total: int, what: str = "") -> None:
            bar.update(task, completed=done, total=total, item=what)

        yield progress

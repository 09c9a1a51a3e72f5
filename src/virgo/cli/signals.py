"""Stopping: a command ends within two seconds of a signal, with all its processes.

A signal becomes an :class:`Interruption` in the main thread, so that files are closed and progress
is kept as after Ctrl-C. Code that is compiled may not return to Python for minutes, so a second
thread, which the system tells about the signal, ends the process if the first has not by then.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

#: Ctrl-C; what Slurm, Kubernetes and ``kill`` send; a terminal that was closed.
SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
#: The exit codes of commands that a signal stopped.
STOPPED = [128 + number for number in SIGNALS]
#: Seconds until the process is ended without being asked again.
GRACE = 1.6
_RESUMES = {
    "sweep": "finished seeds are kept, and the same command resumes from here",
    "graph": "what was done is kept, and the same command continues from here",
    "train": "go on with --resume if it was given --save, else run it again",
    "plan": "hops are kept with --checkpoint, and the same command goes on from the last",
    "data": "datasets that are ready are kept; run the same command again",
}


class Interruption(KeyboardInterrupt):
    """A signal asked the command to stop.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @classmethod
    def of(cls, error: KeyboardInterrupt) -> Interruption:
        """The same, if it was Ctrl-C before there was a handler."""
        return error if isinstance(error, cls) else cls(signal.SIGINT)

    @property
    def code(self) -> int:
        """The exit code that a shell expects: 130, 143 or 129."""
        return 128 + self.number

    def words(self, command: str) -> str:
        """One line that says how to go on."""
        again = "nothing was kept; run the same command again"
        return f"stopped by {self}; {_RESUMES.get(command, again)}"


@contextmanager
def stoppable(command: str) -> Iterator[None]:
    """Signals stop what is done in here; the handlers are restored afterwards.

    Args:
        command: the first word of the command, for the line that a forced end prints.

    Yields:
        Nothing.
    """
    if threading.current_thread() is not threading.main_thread() or os.name != "posix":
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before: dict[int, object] = {}
    previous = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    watch = threading.Thread(target=_watch, args=(reading, command), daemon=True)
    watch.start()
    try:
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup wants it ignored
                before[number] = signal.signal(number, _interrupt)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(previous)
        os.write(writing, b"\0")  # the thread's farewell
        watch.join()
        os.close(reading)
        os.close(writing)


class _Pending:
    """A signal that waits until what is being done is whole."""

    deferred = False
    number: int | None = None


def _interrupt(number: int, frame: FrameType | None) -> None:
    for other in SIGNALS:  # a group gets a signal more than once; the first decides
        signal.signal(other, signal.SIG_IGN)
    if _Pending.deferred:
        _Pending.number = number
    else:
        raise Interruption(number)


@contextmanager
def deferred() -> Iterator[None]:
    """A signal that comes in here is raised at the end; if that takes too long, all is ended.

    Yields:
        Nothing.

    Raises:
        Interruption: a signal came.
    """
    _Pending.deferred = True
    try:
        yield
    finally:
        _Pending.deferred = False
    number, _Pending.number = _Pending.number, None
    if number is not None:
        raise Interruption(number)


def _watch(reading: int, command: str) -> None:
    """Wait for a signal, then for the main thread to end; end the process if it does not."""
    import select

    numbers = set(map(int, SIGNALS))
    while True:
        received = os.read(reading, 1)
        if not received or received == b"\0":
            return
        if received[0] in numbers:
            break
    limit = time.monotonic() + GRACE
    while (left := limit - time.monotonic()) > 0:
        if select.select([reading], [], [], left)[0] and os.read(reading, 1) == b"\0":
            return
    interruption = Interruption(received[0])
    show_cursor = "\x1b[?25h\n" if sys.stderr is not None and sys.stderr.isatty() else ""
    with suppress(OSError, ValueError):
        os.write(2, f"{show_cursor}{interruption.words(command)}\n".encode())
    end_children()
    os._exit(interruption.code)


def end_children() -> None:
    """Kill every process that this one has started, and those that they have, as far as is known.

    Only Linux tells; workers of a sweep there also die by themselves with their parent.
    """
    for pid in _descendants(os.getpid()):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError, ValueError):
            found += map(int, file.read_text().split())
    return [*found, *(grandchild for child in found for grandchild in _descendants(child))]

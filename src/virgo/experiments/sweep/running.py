"""A whole sweep: keep the boards tidy, keep the workers alive, and report."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from virgo.errors import OptionError
from virgo.experiments.sweep.bench import failed
from virgo.experiments.sweep.claims import SEED
from virgo.experiments.sweep.exporting import Status, collect, export, status, studies
from virgo.experiments.sweep.storage import Storage, myself, open_storage, started
from virgo.experiments.sweep.worker import Stop, Sweep, one_thread, work
from virgo.experiments.sweep.worker import main as worker_main
from virgo.graph.threads import cores

__all__ = [
    "Keeper",
    "Progress",
    "Status",
    "collect",
    "export",
    "open_storage",
    "run",
    "status",
    "studies",
]

_EVERY = 2.0  # seconds between two looks at the storage
_SHARE = 0.02  # of the time may go into these looks while workers have enough to do
_HURRY = 0.2  # and while they may be waiting for us
_DEATHS = 3  # of workers in one seed, under our eyes, until it is given up


@dataclass(frozen=True)
class Progress:
    """How far a sweep is.

    ``seeds`` were done of ``total`` (``begun`` when it was started, ``failed`` without a number);
    ``best`` is the best mean validation of each (dataset, model, init) so far.
    """

    seeds: int
    total: int
    begun: int
    failed: int
    elapsed: float
    best: Mapping[tuple[str, str, str], float] = field(default_factory=dict)

    @property
    def rate(self) -> float | None:
        """Seeds an hour, of all who work on this sweep."""
        done = self.seeds - self.begun
        return done / self.elapsed * 3600 if done and self.elapsed > 0 else None


class Keeper:
    """Adds trials ahead of the workers, frees those of dead workers, and counts."""

    def __init__(self, sweep: Sweep, storage: Storage, ahead: int) -> None:
        self._storage = storage
        self._ahead = ahead
        self._boards = sweep.boards(storage)
        self._deaths: Counter[tuple[str, str, int]] = Counter()
        for board in self._boards:
            board.look()
        self._start = time.monotonic()
        self._next = -math.inf
        self._begun = sum(board.count().seeds for board in self._boards)

    @property
    def complete(self) -> bool:
        return all(board.complete for board in self._boards)

    def tend(self, *, now: bool = False) -> bool:
        """Tidy the cells that are being worked on, if it is time to. True if it was."""
        start = time.monotonic()
        if start < self._next and not now:
            return False
        waiting = added = 0
        for board in self._boards:
            if not board.complete:
                added += board.tidy()
                waiting += board.waiting
            if waiting >= self._ahead:
                break
        cost = time.monotonic() - start
        enough = waiting >= self._ahead
        rest, share = (_EVERY, _SHARE) if enough else (_EVERY / 4, _HURRY)
        # what was added once says nothing about the cost of looking
        self._next = start + cost + max(rest, 0.0 if added else min(cost / share, 30.0))
        return True

    def progress(self) -> Progress:
        counts = [(board.cell, board.count()) for board in self._boards]
        best: dict[tuple[str, str, str], float] = {}
        for cell, count in counts:
            name = (cell.dataset, cell.model, cell.init)
            if count.best is not None:
                best[name] = max(count.best, best.get(name, 0.0))
        return Progress(
            sum(count.seeds for _, count in counts),
            sum(count.all_seeds for _, count in counts),
            self._begun,
            sum(count.failed for _, count in counts),
            time.monotonic() - self._start,
            best,
        )

    def bury(self, worker: Mapping[str, Any], how: str) -> None:
        """One of our workers was killed. A seed that did this again and again is given up.

        That is how a seed ends that the system kills for its memory; without a limit the sweep
        would never end.
        """
        for board in self._boards:
            if board.complete:
                continue
            for trial, key, seed in board.running_on(worker):
                death = (board.cell.name, key, seed)
                self._deaths[death] += 1
                if seed >= 0 and self._deaths[death] >= _DEATHS:
                    words = f"its worker was killed {_DEATHS} times ({how})"
                    result = failed(seed, "out of memory", words)
                    self._storage.set_trial_user_attr(trial, f"{SEED}{seed}", result)
        self.tend(now=True)


# --- running ------------------------------------------------------------------------------------


def run(
    sweep: Sweep,
    jobs: int | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Run what a sweep lacks; returns when all of it is there.

    May be killed, interrupted and called again at any time, in several processes and on several
    machines at once.

    Args:
        sweep: what to run.
        jobs: worker processes; one a core by default, 0 or 1 for none but this.
        report: called now and then with how far it is.

    Raises:
        VirgoError: as soon as a seed raises one; trials that were under way are put back.
    """
    jobs = cores() if jobs is None else jobs
    if jobs < 0:
        raise OptionError(f"--jobs: expected 0 or more, got {jobs}.")
    storage = open_storage(sweep.storage, grace=sweep.grace)
    try:
        keeper = Keeper(sweep, storage, ahead=4 * max(1, jobs))
        keeper.tend(now=True)
        report(keeper.progress())
        if not keeper.complete:
            (_alone if jobs < 2 else _together)(sweep, storage, jobs, keeper, report)
            keeper.tend(now=True)
        report(keeper.progress())
        return keeper.progress()
    finally:
        storage.close()


def _alone(
    sweep: Sweep, storage: Storage, jobs: int, keeper: Keeper, report: Callable[[Progress], None]
) -> None:
    def between(idle: bool) -> None:
        if keeper.tend(now=idle):
            report(keeper.progress())

    with one_thread():
        work(sweep, storage, Stop(), between)


def _together(
    sweep: Sweep, storage: Storage, jobs: int, keeper: Keeper, report: Callable[[Progress], None]
) -> None:
    crew = [Hand(sweep) for _ in range(jobs)]
    try:
        while any(hand.working for hand in crew):
            time.sleep(0.1)
            for place, hand in enumerate(crew):
                how = hand.killed()
                if how:
                    keeper.bury(hand.worker, how)
                    crew[place] = Hand(sweep)
            if keeper.tend():
                report(keeper.progress())
    finally:
        for hand in crew:
            hand.end()
        for hand in crew:
            hand.join()


class Hand:
    """A worker process, seen from its parent."""

    def __init__(self, sweep: Sweep) -> None:
        # not forked: a copy of a process with threads and connections may hang
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe(duplex=False)
        self._process = context.Process(
            target=worker_main,
            args=(sweep, os.getpid(), theirs),
            daemon=True,
            name="virgo sweep worker",
        )
        with _environment(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", NUMBA_NUM_THREADS="1"):
            self._process.start()
        theirs.close()
        self.worker = myself() | _process_of(self._process.pid)

    @property
    def working(self) -> bool:
        """Whether it still is; an error that ended it is raised here."""
        if self._process.is_alive():
            return True
        if self._process.exitcode != 0:
            self._raise()
        return False

    def killed(self) -> str:
        """The signal that killed it, if one did."""
        code = self._process.exitcode
        return signal.Signals(-code).name if code is not None and code < 0 else ""

    def _raise(self) -> None:
        kind, text = RuntimeError, f"a worker ended with code {self._process.exitcode}"
        try:
            if self._pipe.poll():
                kind, text = self._pipe.recv()
        except (EOFError, OSError):
            pass
        raise kind(text)

    def end(self) -> None:
        """Ask it to end; the seed in flight is given up."""
        if self._process.is_alive():
            self._process.terminate()

    def join(self) -> None:
        self._process.join(timeout=60)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


def _process_of(pid: int | None) -> dict[str, Any]:
    assert pid is not None
    return {"pid": pid, "started": started(pid)}


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """For a process that is started in here."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

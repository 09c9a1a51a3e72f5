"""A whole sweep: a supervisor that keeps trials queued, workers alive, and reports progress."""

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

from virgo.errors import OptionError, shown
from virgo.experiments.sweep.bench import failed
from virgo.experiments.sweep.claims import SEED
from virgo.experiments.sweep.storage import Storage, Worker, open_storage, reading, worker_of
from virgo.experiments.sweep.worker import HELD_BACK, Stop, Sweep, one_thread, work
from virgo.experiments.sweep.worker import main as worker_main
from virgo.graph.threads import cores

_EVERY = 2.0  # seconds between two looks at the storage
_SHARE = 0.02  # of the time may go into these looks while workers have enough to do
_HURRY = 0.2  # and while they may be waiting for new trials
_FAREWELL = 1.0  # seconds that workers have to end by themselves
_JOBS_PER_CORE = 16  # more only get in each other's way
_DEATHS = 3  # of workers in one seed until it is given up


@dataclass(frozen=True)
class Progress:
    """Progress of a sweep.

    Attributes:
        seeds: seeds that are done.
        total: seeds that are wanted.
        begun: seeds that were done when the sweep was started.
        failed: seeds without a number.
        elapsed: seconds since the start.
        best: best mean validation of each (dataset, model, init) so far.
    """

    seeds: int
    total: int
    begun: int
    failed: int
    elapsed: float
    best: Mapping[tuple[str, str, str], float] = field(default_factory=dict)

    @property
    def rate(self) -> float | None:
        """Seeds per hour of all workers of this sweep; None as long as there are none."""
        done = self.seeds - self.begun
        return done / self.elapsed * 3600 if done and self.elapsed > 0 else None


Report = Callable[[Progress], None]


class Supervisor:
    """Adds trials ahead of the workers, frees those of dead workers, and counts.

    Args:
        sweep: what to run.
        storage: the sweep's storage.
        ahead: how many trials should be waiting.
    """

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
        """Whether nothing is left to run."""
        return all(board.complete for board in self._boards)

    def tend(self, *, now: bool = False) -> bool:
        """Tidy the cells that are being worked on, if it is time to or ``now``; True if it was."""
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
        # adding trials happens once and does not count as the cost of looking
        self._next = start + cost + max(rest, 0.0 if added else min(cost / share, 30.0))
        return True

    def progress(self) -> Progress:
        """The progress at the last look."""
        counts = [(board.cell, board.count()) for board in self._boards]
        best: dict[tuple[str, str, str], float] = {}
        for cell, count in counts:
            name = (cell.dataset, cell.model, cell.init)
            if count.best is not None:
                best[name] = max(count.best, best.get(name, 0.0))
        return Progress(
            sum(count.seeds for _, count in counts),
            sum(count.total for _, count in counts),
            self._begun,
            sum(count.failed for _, count in counts),
            time.monotonic() - self._start,
            best,
        )

    def bury(self, worker: Worker, how: str) -> None:
        """Free the trial of a killed worker; give a seed up that has killed several.

        The operating system kills a seed that takes all memory; without a limit the sweep would
        never end.

        Args:
            worker: the process that was killed.
            how: the name of the signal.
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


def run(sweep: Sweep, jobs: int | None = None, report: Report = lambda progress: None) -> Progress:
    """Run everything of a sweep that is missing.

    May be killed, interrupted and called again at any time, in several processes and on several
    machines at once.

    Args:
        sweep: what to run.
        jobs: worker processes; one per core by default, 0 or 1 to work in this process. On GPUs
            for each of them, one by default.
        report: called now and then with the progress.

    Returns:
        The progress at the end.

    Raises:
        VirgoError: as soon as a seed raises one; running trials are put back.
        OptionError: if ``jobs`` is negative, or more than a machine can have.
    """
    _check_jobs(jobs)
    jobs = sweep.workers(jobs)
    storage = open_storage(sweep.storage, grace=sweep.grace)
    try:
        if sweep.retry:
            for board in sweep.boards(storage):
                board.retry()
        supervisor = Supervisor(sweep, storage, ahead=4 * max(1, jobs))
        with reading(sweep.storage):
            supervisor.tend(now=True)
        report(supervisor.progress())
        if not supervisor.complete:
            if jobs < 2:
                _run_here(sweep, storage, supervisor, report)
            else:
                _run_workers(sweep, jobs, supervisor, report)
            supervisor.tend(now=True)
        report(supervisor.progress())
        return supervisor.progress()
    finally:
        storage.close()


def _check_jobs(jobs: object) -> None:
    """A slip of the finger must not fill the machine with processes."""
    if jobs is None:
        return
    if not isinstance(jobs, int) or jobs < 0:
        raise OptionError(f"--jobs: expected 0 or more, got {shown(jobs)}. Leave it out.")
    most = _JOBS_PER_CORE * cores()
    if jobs > most:
        raise OptionError(
            f"--jobs: expected at most {_JOBS_PER_CORE} for each of {cores()} cores, got "
            f"{shown(jobs)}. One per core is the fastest; leave it out for that."
        )


def _run_here(sweep: Sweep, storage: Storage, supervisor: Supervisor, report: Report) -> None:
    def between(idle: bool) -> None:
        if supervisor.tend(now=idle):
            report(supervisor.progress())

    with one_thread():
        work(sweep, storage, Stop(), between)


def _run_workers(sweep: Sweep, jobs: int, supervisor: Supervisor, report: Report) -> None:
    workers = [WorkerProcess(sweep.for_worker(number)) for number in range(jobs)]
    try:
        while any(worker.working for worker in workers):
            time.sleep(0.1)
            for index, worker in enumerate(workers):
                how = worker.killed()
                if how:
                    supervisor.bury(worker.identity, how)
                    workers[index] = WorkerProcess(sweep.for_worker(index))
            if supervisor.tend():
                report(supervisor.progress())
    finally:
        for worker in workers:
            worker.terminate()
        limit = time.monotonic() + _FAREWELL
        for worker in workers:
            worker.join(limit)


class WorkerProcess:
    """A worker process, seen from its supervisor."""

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
        with (
            _environment(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", NUMBA_NUM_THREADS="1"),
            _held_back(),
        ):
            self._process.start()
        theirs.close()
        assert self._process.pid is not None
        self.identity = worker_of(self._process.pid)

    @property
    def working(self) -> bool:
        """Whether it still runs; an error that ended it is raised here."""
        if self._process.is_alive():
            return True
        if self._process.exitcode != 0:
            self._raise()
        return False

    def killed(self) -> str:
        """The signal that killed it, or an empty string."""
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

    def terminate(self) -> None:
        """Ask it to end; the running seed is lost."""
        if self._process.is_alive():
            self._process.terminate()

    def join(self, limit: float) -> None:
        """Wait for its end, and kill it if that takes too long: its trial is free at once then."""
        self._process.join(timeout=max(0.0, limit - time.monotonic()))
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


@contextmanager
def _held_back() -> Iterator[None]:
    """A process that is started in here has Ctrl-C and a hang-up wait until it can handle them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set environment variables for a process that is started in here."""
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

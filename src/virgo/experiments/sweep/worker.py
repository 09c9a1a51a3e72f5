"""A worker: claims trials one by one and runs their seeds until nothing is left to do."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import torch
from optuna.exceptions import UpdateFinishedTrialError

from virgo.errors import OptionError, VirgoError
from virgo.experiments.sweep.bench import Bench
from virgo.experiments.sweep.board import Board
from virgo.experiments.sweep.claims import TrialClaim
from virgo.experiments.sweep.grids import GridCell
from virgo.experiments.sweep.storage import GRACE, Storage, myself, open_storage
from virgo.experiments.tasks.compute import CPU, Compute
from virgo.graph.threads import cores

RUNNER, LOADER = "virgo.experiments.tasks:run", "virgo.data:load"
RELEASED = "virgo.experiments.tasks.graph.released:run"
#: What a terminal sends to all processes: Ctrl-C, and that it was closed.
HELD_BACK = [signal.SIGINT, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
_PAUSE = 0.5  # seconds between two looks for something to do


@dataclass(frozen=True)
class Sweep:
    """What is to be run; every worker gets a copy.

    Attributes:
        cells: the cells of one table with their configurations.
        storage: path or URL.
        seeds: how many a configuration gets: 0, 1, ...
        screen: (K, M): all configurations with K seeds, then the best M of a cell with all.
        grace: seconds without a heartbeat after which a worker elsewhere counts as dead.
        root: data root.
        curves: whether every seed's record keeps its validation curve.
        runner, loader: what runs a seed and what loads a dataset: ``module:function``, or a
            function, which several workers need to be able to import.
        retry: whether seeds that failed or ran out of memory are run again.
        compute: where and how seeds are run.
    """

    cells: tuple[GridCell, ...]
    storage: str
    seeds: int = 10
    screen: tuple[int, int] | None = None
    grace: int = GRACE
    root: str | None = None
    curves: bool = False
    runner: str | Callable[..., Any] = RUNNER
    loader: str | Callable[..., Any] = LOADER
    retry: bool = False
    compute: Compute = CPU

    def __post_init__(self) -> None:
        if not self.cells:
            raise OptionError("sweep: expected at least one cell, got none.")
        if self.seeds < 1:
            raise OptionError(f"--seeds: expected at least 1, got {self.seeds}.")
        if self.screen is None:
            return
        few, top = self.screen
        if not 1 <= few < self.seeds:
            raise OptionError(
                f"--screen: expected fewer seeds than --seeds {self.seeds}, got {few}. "
                f"Leave it out to run every configuration with all seeds."
            )
        if top < 1:
            raise OptionError(f"--top: expected at least 1 configuration, got {top}.")

    def workers(self, jobs: int | None) -> int:
        """The number of worker processes: one per core, or on GPUs ``jobs`` for each of them."""
        if jobs is None:
            return cores() if self.compute.is_cpu else len(self.compute.devices())
        return jobs if self.compute.is_cpu else jobs * len(self.compute.devices())

    def for_worker(self, number: int) -> Sweep:
        """The same on the device of one worker: they take turns."""
        devices = self.compute.devices()
        device = devices[number % len(devices)]
        return replace(self, compute=replace(self.compute, device=device))

    def boards(self, storage: Storage) -> list[Board]:
        """One board per cell."""
        return [Board(storage, cell, self.seeds, self.screen) for cell in self.cells]


# --- stopping -----------------------------------------------------------------------------------


class Stopped(BaseException):
    """The worker was asked to end; not an error, so not an ``Exception``."""


class Stop:
    """Whether to end: after a signal, which may interrupt a seed, or once the parent is gone."""

    def __init__(self, parent: int | None = None) -> None:
        self._parent = parent
        self._asked = False
        self._in_seed = False

    def on_signal(self, *_: object) -> None:
        """Signal handler: interrupts a seed, but never a write to the storage."""
        self._asked = True
        if self._in_seed:
            raise Stopped

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal interrupt the code in here."""
        self._in_seed = True
        try:
            if self._asked:
                raise Stopped
            yield
        finally:
            self._in_seed = False

    def check(self) -> None:
        """Raise ``Stopped`` if it is time to end."""
        if self._asked or (self._parent is not None and os.getppid() != self._parent):
            raise Stopped


@contextmanager
def _heartbeat(storage: Storage, trial_id: int) -> Iterator[None]:
    """Record a heartbeat for a trial every few seconds, from a thread."""
    over, interval = threading.Event(), storage.get_heartbeat_interval()

    def beat() -> None:
        while not over.wait(interval):
            with suppress(Exception):  # a busy storage: the next heartbeat will do
                storage.record_heartbeat(trial_id)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=10)


# --- working ------------------------------------------------------------------------------------


def work(
    sweep: Sweep, storage: Storage, stop: Stop, between: Callable[[bool], None] = lambda idle: None
) -> None:
    """Run trials until every cell is complete.

    Args:
        sweep: what to run.
        storage: the sweep's storage.
        stop: whether to end early.
        between: called after every seed with False, and with True while there is nothing to run.
    """
    boards = sweep.boards(storage)
    bench = Bench(sweep.runner, sweep.loader, sweep.root, sweep.curves, sweep.compute)
    while True:
        stop.check()
        claim = _next(boards)
        if claim is not None:
            with _heartbeat(storage, claim.trial_id):
                _run_trial(claim, bench, stop, between)
        elif all(board.complete for board in boards):
            return
        else:  # other workers run the rest, or will be found dead
            time.sleep(_PAUSE)
            between(True)


def _next(boards: Sequence[Board]) -> TrialClaim | None:
    """A trial of the first cell that has one; cells are read again when nothing is left."""
    for board in boards:
        if board.complete:
            continue
        claim = board.claim()
        if claim is None and time.monotonic() - board.seen > _PAUSE:
            board.look()
            claim = board.claim()
        if claim is not None:
            return claim
    return None


def _run_trial(
    claim: TrialClaim, bench: Bench, stop: Stop, between: Callable[[bool], None]
) -> None:
    """Run the missing seeds of one configuration; if interrupted, put it back with what it has."""
    try:
        with stop.interruptible():
            facts = bench.facts(claim.cell)
        claim.begin(myself(), facts)
        for seed in claim.missing:
            stop.check()
            with stop.interruptible():
                result = bench.run(claim.cell, claim.config, seed)
            claim.record(seed, result)
            if claim.missing:
                between(False)
        claim.finish()
        between(False)  # after it has ended: who stops the sweep here must not lose its record
    except UpdateFinishedTrialError:
        return  # another worker took this one for dead, and has the trial now
    except BaseException:
        claim.release()
        raise


# --- the process --------------------------------------------------------------------------------


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: with one trial per core, more threads only get in each other's way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # tiny weights of a trained network slow a CPU down
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(False)


def die_with(parent: int) -> None:
    """Let the system kill this process as soon as its parent is gone, where it can do that.

    What a killed worker was at is free at once: others see that its process is gone.

    Args:
        parent: the process id of the parent.
    """
    if sys.platform != "linux":
        return
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it was gone before
        os._exit(1)


def main(sweep: Sweep, parent: int, pipe: Connection) -> None:
    """Run a worker process.

    Args:
        sweep: what to run.
        parent: process id of the supervisor; the worker ends when it is gone.
        pipe: takes the type and message of an error that ends the worker.
    """
    stop = Stop(parent)
    signal.signal(signal.SIGTERM, stop.on_signal)
    for number in HELD_BACK:  # they reach all; the supervisor decides
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
    die_with(parent)
    try:
        with one_thread():
            storage = open_storage(sweep.storage, grace=sweep.grace)
            work(sweep, storage, stop)
            storage.close()
    except Stopped:
        return
    except VirgoError as error:
        pipe.send((type(error), str(error)))
        sys.exit(2)
    except Exception as error:
        pipe.send((RuntimeError, f"{type(error).__name__}: {error}"))
        raise

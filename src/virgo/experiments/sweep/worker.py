"""A worker: takes trials one by one and runs their seeds until nothing is left to do."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from optuna.exceptions import UpdateFinishedTrialError

from virgo.errors import OptionError, VirgoError
from virgo.experiments.sweep.bench import Bench
from virgo.experiments.sweep.board import Board
from virgo.experiments.sweep.claims import Claim
from virgo.experiments.sweep.grids import Cell
from virgo.experiments.sweep.storage import GRACE, Storage, myself, open_storage

RUNNER, LOADER = "virgo.experiments.tasks:run", "virgo.data:load"
_PAUSE = 0.5  # seconds between two looks for something to do


@dataclass(frozen=True)
class Sweep:
    """What is to be run; goes to every worker as it is.

    Attributes:
        cells: the cells of one table with their configurations.
        storage: path or URL.
        seeds: how many a configuration gets: 0, 1, ...
        screen: (K, M): all configurations with K seeds, then the best M of a cell with all.
        grace: seconds without a heartbeat after which a worker elsewhere counts as dead.
        root: of the data.
        curves: whether every seed's record keeps its validation curve.
        runner, loader: ``module:function`` that runs a seed and that loads a dataset.
    """

    cells: tuple[Cell, ...]
    storage: str
    seeds: int = 10
    screen: tuple[int, int] | None = None
    grace: int = GRACE
    root: str | None = None
    curves: bool = False
    runner: str = RUNNER
    loader: str = LOADER

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

    def boards(self, storage: Storage) -> list[Board]:
        """A board for each cell."""
        return [Board(storage, cell, self.seeds, self.screen) for cell in self.cells]


# --- stopping -----------------------------------------------------------------------------------


class Stopped(BaseException):
    """The worker was asked to end; not an error, so not an ``Exception``."""


class Stop:
    """Whether to end: by a signal, which may interrupt a seed, or as the parent process is gone."""

    def __init__(self, parent: int | None = None) -> None:
        self._parent = parent
        self._asked = False
        self._in_seed = False

    def on_signal(self, *_: Any) -> None:
        """Interrupts a seed, but never a write to the storage."""
        self._asked = True
        if self._in_seed:
            raise Stopped

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        self._in_seed = True
        try:
            if self._asked:
                raise Stopped
            yield
        finally:
            self._in_seed = False

    def check(self) -> None:
        """Raise if it is time to end."""
        if self._asked or (self._parent is not None and os.getppid() != self._parent):
            raise Stopped


class Heart:
    """A thread that says every few seconds that this process lives."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._trial: int | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Heart:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join(timeout=10)

    @contextmanager
    def beating_for(self, trial: int) -> Iterator[None]:
        self._trial = trial
        try:
            yield
        finally:
            self._trial = None

    def _beat(self) -> None:
        interval = self._storage.get_heartbeat_interval()
        while not self._over.wait(interval):
            if self._trial is not None:
                with suppress(Exception):  # a busy storage: the next beat will do
                    self._storage.record_heartbeat(self._trial)


# --- working ------------------------------------------------------------------------------------


def work(
    sweep: Sweep, storage: Storage, stop: Stop, between: Callable[[bool], None] = lambda idle: None
) -> None:
    """Run trials until every cell is complete.

    ``between`` is called after every seed, and with True while there is nothing to run.
    """
    boards = sweep.boards(storage)
    bench = Bench(sweep.runner, sweep.loader, sweep.root, sweep.curves)
    with Heart(storage) as heart:
        while True:
            stop.check()
            claim = _next(boards)
            if claim is not None:
                run_trial(claim, bench, storage, heart, stop, between)
            elif all(board.complete for board in boards):
                return
            else:  # others are at it, or are about to be found dead
                time.sleep(_PAUSE)
                between(True)


def _next(boards: Sequence[Board]) -> Claim | None:
    """From the first cell that has something; cells are looked at anew when nothing is left."""
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


def run_trial(
    claim: Claim,
    bench: Bench,
    storage: Storage,
    heart: Heart,
    stop: Stop,
    between: Callable[[bool], None],
) -> None:
    """The missing seeds of one configuration; interrupted, it is put back with what it has."""
    with heart.beating_for(claim.trial_id):
        try:
            with stop.interruptible():
                facts = bench.facts(claim.cell)
            claim.begin(myself(), facts)
            for seed in claim.missing:
                stop.check()
                with stop.interruptible():
                    result = bench.run(claim.cell, claim.config, seed)
                claim.record(seed, result)
                between(False)
            claim.finish()
        except UpdateFinishedTrialError:
            return  # another worker took us for dead, and has it now
        except BaseException:
            claim.release()
            raise


# --- the process --------------------------------------------------------------------------------


@contextmanager
def one_thread() -> Iterator[None]:
    """One trial a core: more threads than that only get in each other's way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # tiny weights of a trained network slow a CPU down
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(False)


def main(sweep: Sweep, parent: int, pipe: Any) -> None:
    """A worker process. Tells its parent why it ends, if that is not for want of work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent decides
    stop = Stop(parent)
    signal.signal(signal.SIGTERM, stop.on_signal)
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

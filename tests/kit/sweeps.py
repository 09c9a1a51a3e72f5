"""Helpers of the sweep's tests on SQLite and PostgreSQL: a small sweep, and ways to kill it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from virgo.experiments.sweep.exporting import collect
from virgo.experiments.sweep.grids import cells
from virgo.experiments.sweep.records import Record
from virgo.experiments.sweep.running import run
from virgo.experiments.sweep.storage import open_storage
from virgo.experiments.sweep.worker import Sweep

TESTS = Path(__file__).resolve().parents[1]
STUB = {"runner": "kit.sweep_stub:run", "loader": "kit.sweep_stub:load"}
#: What is killed: the real task on a small generated graph, two methods, a few epochs.
REAL, EPOCHS, LIMIT, SEEDS = "like:cora@0.1", 25, 6, 4
METHODS = ("xavier", "virgo-backward+measured")


def small(
    storage: str | Path,
    *,
    dataset: str = "cora",
    inits: Sequence[str] = ("xavier",),
    limit: int = 3,
    **options: Any,
) -> Sweep:
    """A sweep of the stub over a few configurations."""
    overrides = {"epochs": EPOCHS} if dataset == REAL else {}
    chosen = cells("table1", [dataset], inits=list(inits), limit=limit, overrides=overrides)
    return Sweep(tuple(chosen), str(storage), **{"seeds": 3, **STUB, **options})


def real(storage: str | Path, **options: Any) -> Sweep:
    """The sweep that is killed."""
    ours = {"seeds": SEEDS, "runner": "kit.sweep_stub:real", "loader": "virgo.data:load", **options}
    return small(storage, dataset=REAL, inits=METHODS, limit=LIMIT, **ours)


def records(storage: str | Path, table: str = "table1") -> list[Record]:
    """The records of a storage, in order."""
    opened = open_storage(storage, create=False)
    try:
        return sorted(collect(opened, table), key=lambda record: record.identity)
    finally:
        opened.close()


def lasting(found: list[Record]) -> list[Any]:
    """The records without what differs between any two runs."""
    return [
        (
            record.identity,
            record.generated,
            record.screen,
            [{k: v for k, v in seed.items() if k != "seconds"} for seed in record.seeds],
        )
        for record in found
    ]


def executions(log: Path, what: str = "begin") -> Counter[str]:
    """How often each seed was begun, or ended."""
    lines = log.read_text().splitlines() if log.exists() else []
    return Counter(line.split("\t", 2)[2] for line in lines if line.startswith(what))


class Killed:
    """A sweep in processes of its own, some of which get killed."""

    def __init__(self, storage: str, out: Path, log: Path, *extra: str) -> None:
        self.command = [
            sys.executable,
            "-m",
            "virgo.cli",
            "sweep",
            "table1",
            "--dataset",
            REAL,
            "--init",
            *METHODS,
            "--limit",
            str(LIMIT),
            "--seeds",
            str(SEEDS),
            "--epochs",
            str(EPOCHS),
            "--jobs",
            "2",
            "--storage",
            storage,
            "--out",
            str(out),
            "--runner",
            "kit.sweep_stub:real",
            *extra,
        ]
        path = os.pathsep.join([str(TESTS), *sys.path])
        self.environment = {
            **os.environ,
            "PYTHONPATH": path,
            "STUB_LOG": str(log),
            "OMP_NUM_THREADS": "1",
        }
        self.log = log
        self.said = log.with_name("said")
        self.process: subprocess.Popen[bytes] | None = None
        self.killed_workers = self.killed_parents = 0

    def start(self) -> None:
        # into a file: orphans would keep a pipe open
        with self.said.open("wb") as said:
            self.process = subprocess.Popen(
                self.command, env=self.environment, stdout=said, stderr=said, start_new_session=True
            )

    def wait_for(self, more: int, patience: float = 300) -> bool:
        """Until so many more seeds were begun; False if the sweep ended before."""
        assert self.process is not None
        goal = sum(executions(self.log).values()) + more
        limit = time.monotonic() + patience
        while sum(executions(self.log).values()) < goal:
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < limit, "nothing happens"
            time.sleep(0.01)
        return True

    def workers(self) -> list[int]:
        """Processes that have begun a seed, and live, and are ours."""
        found = {int(line.split("\t")[1]) for line in self.log.read_text().splitlines()}
        return sorted(pid for pid in found if str(self.log).encode() in _environment(pid))

    def kill_worker(self, choose: random.Random) -> None:
        living = self.workers()
        if living:
            os.kill(choose.choice(living), signal.SIGKILL)
            self.killed_workers += 1

    def kill_parent(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.killed_parents += 1

    def press_ctrl_c(self) -> int:
        """As a terminal does: to all of them."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(timeout=60)

    def finish(self, patience: float = 300) -> str:
        assert self.process is not None
        code = self.process.wait(timeout=patience)
        said = self.said.read_text()
        assert code == 0, said
        return said

    def end(self) -> None:
        """Leave nothing behind, also where a test has failed."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def _environment(pid: int) -> bytes:
    """Empty for a dead process, also for one that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def check_kills(
    storage: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, rounds: int, seed: int
) -> int:
    """Kill workers and parents at random moments; the records are those of an undisturbed sweep.

    Each killed worker may cost the one seed it was at; with a parent its two workers die.

    Returns:
        How many were killed.
    """
    choose = random.Random(seed)
    log = folder / "log"
    victim = Killed(storage, folder / "out", log)
    try:
        for _ in range(rounds):
            victim.start()
            if victim.wait_for(choose.randint(2, 4)):
                time.sleep(choose.uniform(0, 0.2))
                victim.kill_worker(choose)
            if victim.wait_for(choose.randint(1, 3)):
                time.sleep(choose.uniform(0, 0.2))
                victim.kill_parent()
        # what is left, here and now, while the orphans may still be at their last seeds
        monkeypatch.setenv("STUB_LOG", str(log))
        run(real(storage), 0)
    finally:
        victim.end()
    begun = executions(log)
    assert len(begun) == len(METHODS) * LIMIT * SEEDS
    repeated = sum(begun.values()) - len(begun)
    assert repeated <= victim.killed_workers + 2 * victim.killed_parents
    assert victim.killed_workers >= 1
    compare_with_undisturbed(storage, folder, monkeypatch)
    return victim.killed_workers + victim.killed_parents


def compare_with_undisturbed(
    storage: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> None:
    monkeypatch.delenv("STUB_LOG", raising=False)
    quiet = folder / "undisturbed.db"
    run(real(quiet, **options), 0)
    found, expected = records(storage), records(quiet)
    assert lasting(found) == lasting(expected)
    assert len(found) == len(METHODS) * LIMIT
    for record in found:
        assert [one["seed"] for one in record.seeds] == sorted({o["seed"] for o in record.seeds})

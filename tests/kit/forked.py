"""A sweep on two workers, killed over and over, by a process that has imported everything.

``python tests/kit/forked.py STORAGE FOLDER KILLS SEED UNDISTURBED`` prints what it found as JSON;
``STUB_LOG`` is ``FOLDER/log``, by which its processes are known.
To import PyTorch, PyG and Optuna takes many times as long as the seeds between two kills. So the
command and its workers are forked here, where a user's are started afresh as in ``Killed``; all
else, the command with its options, its workers and the storage between them, is the same.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, cast

from kit.sweeps import (
    LIMIT,
    METHODS,
    REAL,
    SEEDS,
    Killed,
    executions,
    lasting,
    real,
    records,
)

import virgo
from virgo.cli import main as command_line
from virgo.experiments.sweep.running import run

_STARTING = 2.0  # seconds in which a parent is killed that is not waited for


class _Child:
    """A forked process, with as much of ``subprocess.Popen`` as :class:`Killed` uses."""

    def __init__(self, words: list[str], said: Path) -> None:
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _run(words, said)

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def wait(self, timeout: float = 300) -> int:
        limit = time.monotonic() + timeout
        while (code := self.poll()) is None:
            assert time.monotonic() < limit, "it does not end"
            time.sleep(0.01)
        return code

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _run(words: list[str], said: Path) -> None:
    """The command, in a session of its own; its workers are forked as well."""
    code = 1
    try:
        os.setsid()
        file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        fork = multiprocessing.get_context("fork")
        multiprocessing.get_context = lambda method=None: fork  # type: ignore[assignment]
        code = command_line(words)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Forked(Killed):
    """A sweep whose processes are forked."""

    def start(self) -> None:
        words = self.command[self.command.index("sweep") :]
        self.process = cast("Any", _Child(words, self.said))


def kill(victim: Forked, kills: int, choose: random.Random) -> int:
    """Kill up to two workers, then their parent, over and over; a third dies while it starts.

    Two at most: the supervisor gives a seed up whose worker was killed three times.

    Args:
        victim: what is killed.
        kills: how many.
        choose: draws the moments.

    Returns:
        How many were killed while they started.
    """
    starting = 0
    while victim.killed_workers + victim.killed_parents < kills:
        victim.start()
        assert victim.process is not None
        if choose.random() < 1 / 3:
            time.sleep(choose.uniform(0, _STARTING))
            if victim.process.poll() is not None:
                return starting
            victim.kill_parent()
            starting += 1
            continue
        for _ in range(2):
            if not victim.wait_for(choose.randint(1, 2)):
                return starting
            time.sleep(choose.uniform(0, 0.2))
            victim.kill_worker(choose)
        if not victim.wait_for(1):
            return starting
        time.sleep(choose.uniform(0, 0.2))
        victim.kill_parent()
    return starting


def main(storage: str, folder: str, kills: str, seed: str, undisturbed: str) -> None:
    """Kill, finish, and compare with a sweep that nobody disturbed."""
    virgo.data.load(REAL)
    choose, log, bad = random.Random(int(seed)), Path(folder) / "log", []
    assert os.environ["STUB_LOG"] == str(log)
    if not Path(undisturbed).exists():
        child = os.fork()
        if child == 0:
            del os.environ["STUB_LOG"]
            run(real(undisturbed), 0)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    victim = Forked(storage, Path(folder) / "out", log)
    try:
        starting = kill(victim, int(kills), choose)
        victim.start()
        victim.finish()
    finally:
        victim.end()
    begun = executions(log)
    repeated = sum(begun.values()) - len(begun)
    if repeated > victim.killed_workers + 2 * victim.killed_parents:
        bad.append(f"{repeated} seeds were run again")
    if len(begun) != len(METHODS) * LIMIT * SEEDS:
        bad.append(f"{len(begun)} seeds were run")
    if lasting(records(storage)) != lasting(records(undisturbed)):
        bad.append("other records than those of an undisturbed sweep")
    found = {"workers": victim.killed_workers, "parents": victim.killed_parents - starting}
    print(json.dumps({"killed": {**found, "starting": starting}, "again": repeated, "bad": bad}))


if __name__ == "__main__":
    main(*sys.argv[1:])

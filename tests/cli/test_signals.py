"""Signals: every command ends within two seconds with all its processes, and says how to go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from virgo.cli import signals

TESTS = Path(__file__).resolve().parents[1]
#: Each command with arguments that it accepts.
COMMANDS = {
    "demo": ["demo"],
    "methods": ["methods"],
    "check": ["check", "gcn"],
    "compare": ["compare"],
    "verify": ["verify", "cora"],
    "graph": ["graph", "info", "nowhere"],
    "plan": ["plan", "--graph", "nowhere", "--widths", "4", "4"],
    "data": ["data", "list"],
    "train": ["train", "--dataset", "like:cora@0.05"],
    "sweep": ["sweep", "status"],
    "table": ["table", "table1"],
}
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
#: Seconds; on a machine whose cores are taken by others, processes need longer to be scheduled.
LIMIT = 2.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Running:
    """A command in a session of its own, and the processes that it starts."""

    def __init__(self, how: str, *command: str, cwd: Path, **environment: str) -> None:
        path = os.pathsep.join([str(TESTS), *sys.path])
        script = str(TESTS / "kit" / "stopping.py")
        self.process = subprocess.Popen(
            [sys.executable, script, how, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
        )

    def wait_until(self, ready: Callable[[], bool], patience: float = 300) -> None:
        limit = time.monotonic() + patience
        while not ready():
            if self.process.poll() is not None or time.monotonic() > limit:
                self.end()
                raise AssertionError(f"nothing happens: {self.process.communicate()}")
            time.sleep(0.02)

    def wait_for_ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n", self.process.communicate()

    def session(self) -> list[int]:
        """All processes of its session that live."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = entry.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self.process.pid and fields[0] not in "ZX":
                found.append(int(entry.parent.name))
        return found

    def stop(self, number: int, *, group: bool) -> tuple[int, float, str]:
        """Send a signal; the exit code, the seconds until all processes were gone, what it said."""
        began = time.monotonic()
        (os.killpg if group else os.kill)(self.process.pid, number)
        try:
            _, said = self.process.communicate(timeout=60)
            while self.session() and time.monotonic() - began < 60:
                time.sleep(0.01)
            return self.process.returncode, time.monotonic() - began, said.decode()
        finally:
            self.end()

    def end(self) -> None:
        """Leave nothing behind, also where a test has failed."""
        for pid in self.session():
            os.kill(pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def check(stopped: tuple[int, float, str], number: int, advice: str = "") -> None:
    code, seconds, said = stopped
    assert code == CODES[signal.Signals(number)], said
    assert seconds < LIMIT, said
    progress = "loading "  # where loading takes over a second, a log says so
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith(progress)]
    assert len(lines) == 1, said
    assert f"stopped by {signal.Signals(number).name}" in said
    assert advice in said


@pytest.mark.parametrize("how", ["sleep", "compiled"])
def test_a_signal(tmp_path: Path, how: str) -> None:
    running = Running(how, "graph", "info", "nowhere", cwd=tmp_path)
    running.wait_for_ready()
    check(running.stop(signal.SIGTERM, group=False), signal.SIGTERM, "the same command")


@pytest.mark.slow
@pytest.mark.parametrize("group", [False, True], ids=["parent", "group"])
@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command(tmp_path: Path, command: str, number: int, group: bool) -> None:
    """Stuck in code that does not return to Python: the worst moment there is."""
    running = Running("compiled", *COMMANDS[command], cwd=tmp_path)
    running.wait_for_ready()
    check(running.stop(number, group=group), number)


@pytest.mark.slow
@pytest.mark.parametrize("group", [False, True], ids=["parent", "group"])
@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
@pytest.mark.parametrize("moment", ["starting", "working"])
def test_a_sweep_leaves_no_worker(tmp_path: Path, number: int, group: bool, moment: str) -> None:
    log = tmp_path / "log"
    command = ["sweep", "table1", "--dataset", "cora", "--jobs", "2", "--storage", "s.db"]
    stub = ["--runner", "kit.sweep_stub:run", "--loader", "kit.sweep_stub:load"]
    environment = {"STUB_LOG": str(log), "STUB_WORK": str(10**7)}
    running = Running("none", *command, *stub, cwd=tmp_path, **environment)
    if moment == "working":
        running.wait_until(log.exists)
    else:  # the workers import what they need
        running.wait_until(lambda: len(running.session()) > 2)
    code, seconds, said = running.stop(number, group=group)
    assert code == CODES[signal.Signals(number)], said
    assert seconds < LIMIT, said
    assert said.count("stopped by") == 1
    assert "the same command resumes" in said
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_training_is_kept_and_continues(tmp_path: Path, number: int) -> None:
    from virgo.experiments.tasks import checkpoint

    options = ["--no-early-stopping", "--epochs", "1000000", "--save", "run.safetensors"]
    running = Running("none", "train", "--dataset", "like:cora@0.05", *options, cwd=tmp_path)
    # it trains when its CPU time grows beyond what importing takes
    time.sleep(1)
    running.wait_until(lambda: cpu_seconds(running.process.pid) > 8)
    check(running.stop(number, group=False), number, "virgo train --resume run.safetensors")
    saved = checkpoint.load(tmp_path / "run.safetensors")
    assert saved.header["epoch"] == len(saved.header["curve"]) > 0


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_closed_pipe_is_silent(tmp_path: Path) -> None:
    running = Running("none", "methods", cwd=tmp_path)
    assert running.process.stdout is not None
    running.process.stdout.close()
    assert running.process.stderr is not None
    said = running.process.stderr.read()
    running.process.stderr.close()
    assert running.process.wait(60) == 141
    assert said in (b"", b"loading PyTorch and PyG\n")  # the latter on a slow machine


def test_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in signals.SIGNALS]
    with pytest.raises(signals.Interruption) as caught, signals.stoppable("sweep"):  # noqa: PT012
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    assert caught.value.code == 143
    assert [signal.getsignal(number) for number in signals.SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_an_ignored_hang_up_stays_ignored() -> None:
    """``nohup virgo sweep ...``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.stoppable("sweep"):
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_is_deferred_ends_first() -> None:
    done = []
    with pytest.raises(signals.Interruption), signals.stoppable("train"):  # noqa: PT012
        with signals.deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("epoch")
        done.append("another")
    assert done == ["epoch"]

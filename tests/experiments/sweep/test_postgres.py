"""Sweeps on a real PostgreSQL server, which is started here on loopback and stopped again."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.sweeps import check_kills, executions, records, small

from virgo.errors import DataError
from virgo.experiments.sweep.running import run
from virgo.experiments.sweep.storage import open_storage

pytest.importorskip("psycopg", reason="psycopg is not installed")


def _binaries() -> Path:
    """The newest of Debian's, or what is on the path."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3])
    )
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        pytest.skip("no PostgreSQL server is installed (Debian: postgresql)")
    return found[-1].parent if found else Path(str(on_path)).parent


def _user() -> str | None:
    """The server refuses to run as root; then someone else has to."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    pytest.skip("PostgreSQL does not run as root, and there is no user postgres or nobody")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a new and empty server, below ``/``: add the name of a database."""
    binaries, user = _binaries(), _user()
    # not pytest's own folder: another user could not reach into it
    with tempfile.TemporaryDirectory(prefix="virgo-postgres-") as name:
        folder = Path(name)
        if user:
            shutil.chown(folder, user)
        options = {"cwd": folder, "capture_output": True, "text": True, "user": user}
        made = subprocess.run(
            [
                binaries / "initdb",
                "-D",
                folder / "data",
                "-U",
                "virgo",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--locale",
                "C",
                "--no-sync",
            ],
            **options,
        )
        assert made.returncode == 0, made.stderr
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        started = subprocess.run(
            [
                binaries / "pg_ctl",
                "-D",
                folder / "data",
                "-w",
                "-l",
                folder / "log",
                "-o",
                f"-h 127.0.0.1 -p {port} -k {folder} -F -c timezone=America/New_York",
                "start",
            ],
            **options
            | {"capture_output": False, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL},
        )
        try:
            assert started.returncode == 0, (folder / "log").read_text()
            yield f"postgresql://virgo@127.0.0.1:{port}"
        finally:
            subprocess.run(
                [binaries / "pg_ctl", "-D", folder / "data", "-w", "-m", "immediate", "stop"],
                **options,
            )


@pytest.fixture
def database(server: str, request: pytest.FixtureRequest) -> str:
    """An empty database of this test's own."""
    import psycopg

    name = "".join(c if c.isalnum() else "_" for c in request.node.name)[:60]
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')  # type: ignore[arg-type]
    return f"{server}/{name}"


def test_a_sweep_on_postgres(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("STUB_LOG", str(log))
    sweep = small(database, inits=("xavier", "lecun"), seeds=3, screen=(1, 1))
    done = run(sweep, 0)
    assert done.seeds == done.total == 2 * (3 + 2)
    assert run(sweep, 0).begun == 10
    assert set(executions(log).values()) == {1}
    assert len(records(database)) == 6


def test_many_start_on_a_new_database_at_once(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on many machines: each makes the tables, adds the trials, and takes some."""
    log = tmp_path / "log"
    monkeypatch.setenv("STUB_LOG", str(log))
    failures: list[BaseException] = []

    def machine() -> None:
        try:
            run(small(database, limit=12, seeds=2), 0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=machine) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(executions(log)) == 24
    assert set(executions(log).values()) == {1}
    assert [len(record.seeds) for record in records(database)] == [2] * 12


def test_a_database_that_does_not_exist(server: str) -> None:
    with pytest.raises(DataError, match=r'expected a database .* "absent" does not exist'):
        open_storage(f"{server}/absent")


@pytest.mark.slow
def test_kills_on_postgres(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_kills(database, tmp_path, monkeypatch, rounds=1, seed=1)


@pytest.mark.slow
def test_many_kills_on_postgres(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_kills(database, tmp_path, monkeypatch, rounds=4, seed=4)

"""Sweeps on a real PostgreSQL server, which is started here on loopback and stopped again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.postgres import NoServer, new_database, served
from kit.sweeps import check_kills, executions, records, small

from virgo.errors import DataError
from virgo.experiments.sweep.running import run
from virgo.experiments.sweep.storage import open_storage

pytest.importorskip("psycopg", reason="psycopg is not installed")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a new and empty server, below ``/``: add the name of a database."""
    try:
        with served() as url:
            yield url
    except NoServer as reason:
        pytest.skip(str(reason))


@pytest.fixture
def database(server: str, request: pytest.FixtureRequest) -> str:
    """An empty database of this test's own."""
    name = "".join(c if c.isalnum() else "_" for c in request.node.name)[:60]
    return new_database(server, name)


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

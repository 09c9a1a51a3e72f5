"""Sweeps on SQLite: nothing is lost, nothing is done twice, whatever happens to a process."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from kit.sweeps import (
    REAL,
    STUB,
    TESTS,
    Killed,
    check_kills,
    compare_with_undisturbed,
    executions,
    lasting,
    records,
    small,
)
from optuna.trial import TrialState

from virgo.cli import main, sweeping
from virgo.cli.progress import errors
from virgo.errors import DataError, OptionError
from virgo.experiments.sweep import records as files
from virgo.experiments.sweep.board import Board
from virgo.experiments.sweep.claims import TARGET, TrialClaim
from virgo.experiments.sweep.exporting import collect, export, status
from virgo.experiments.sweep.records import Record
from virgo.experiments.sweep.running import Supervisor, run
from virgo.experiments.sweep.storage import Storage, is_alive, myself, open_storage, url_of
from virgo.experiments.sweep.worker import Stop, Stopped, Sweep

PLAIN = {"generated": None, "versions": {}, "commit": None}


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "deep" / "sweeps.db")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "log"
    monkeypatch.setenv("STUB_LOG", str(path))
    return path


@pytest.fixture
def storage(database: str) -> Iterator[Storage]:
    opened = open_storage(database, grace=1)
    yield opened
    opened.close()


def board_of(storage: Storage, sweep: Sweep) -> Board:
    board = sweep.boards(storage)[0]
    board.tidy()
    return board


def claim_of(board: Board) -> TrialClaim:
    claim = board.claim()
    assert claim is not None
    return claim


def result(seed: int, valid: float | None = 0.5) -> dict[str, Any]:
    status = "diverged" if valid is None else "ok"
    return {
        "seed": seed,
        "valid": valid,
        "test": valid,
        "epoch": 1,
        "epochs": 2,
        "seconds": 0.1,
        "status": status,
    }


def states(board: Board, storage: Storage) -> list[str]:
    study = optuna.load_study(study_name=board.cell.name, storage=storage)
    return [trial.state.name for trial in storage.trials(study)]


def of_a_dead_process() -> dict[str, Any]:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return {**myself(), "pid": child.pid, "started": 1}


# --- records ------------------------------------------------------------------------------------


def test_curves_are_kept_if_asked_for(database: str, tmp_path: Path) -> None:
    loader = "virgo.data:load"
    run(
        small(
            database,
            dataset=REAL,
            limit=1,
            seeds=1,
            runner="virgo.experiments.tasks:run",
            loader=loader,
            curves=True,
        ),
        0,
    )
    (seed,) = records(database)[0].seeds
    epochs, values = zip(*seed["curve"], strict=True)
    assert epochs == tuple(range(1, seed["epochs"] + 1))
    assert max(values) == pytest.approx(seed["valid"], abs=1e-6)
    assert values[seed["epoch"] - 1] == pytest.approx(seed["valid"], abs=1e-6)
    plain = str(tmp_path / "plain.db")
    run(
        small(
            plain,
            dataset=REAL,
            limit=1,
            seeds=1,
            runner="virgo.experiments.tasks:run",
            loader=loader,
        ),
        0,
    )
    (other,) = records(plain)[0].seeds
    assert "curve" not in other
    assert other["test"] == seed["test"]


def record(init: str = "xavier", seeds: int = 1, **config: Any) -> Record:
    found = tuple(result(seed) for seed in range(seeds))
    return Record("table1", "cora", "gcn", init, {"lr": 0.01, **config}, found, time="now")


def test_records_survive_a_file_and_are_sorted(tmp_path: Path) -> None:
    unsorted = [record(lr=0.05), record("lecun"), record(lr=0.005), record(patience=None)]
    path = files.write(tmp_path / "new" / "table1.jsonl", unsorted)
    found = files.read(path)
    assert [one.init for one in found] == ["lecun", "xavier", "xavier", "xavier"]
    assert [one.config["lr"] for one in found[1:]] == [0.005, 0.01, 0.05]
    assert sorted(found, key=lambda r: r.identity) == sorted(unsorted, key=lambda r: r.identity)
    text = path.read_text()
    files.write(path, reversed(found))
    assert path.read_text() == text  # whatever the order of running
    assert os.listdir(path.parent) == ["table1.jsonl"]
    assert ": " not in text
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_number_that_is_none_is_null() -> None:
    seed = {"seed": 0, "test": 0.5, "epoch": 1, "epochs": 2, "seconds": 1.0, "status": "ok"}
    line = Record("t", "d", "m", "i", {}, ({**seed, "valid": float("nan")},)).to_json()
    assert json.loads(line)["seeds"] == [{**seed, "valid": None}]
    assert "screen" not in line
    assert Record.from_json(line.replace('"time"', '"later":1,"time"')).time is None


@pytest.mark.parametrize("bad", ["{", "[1]", '{"table":"table1"}'])
def test_a_damaged_line_is_named(bad: str, tmp_path: Path) -> None:
    path = tmp_path / "table1.jsonl"
    path.write_text(f"{record().to_json()}\n\n{bad}\n")
    with pytest.raises(DataError, match=r"table1.jsonl, line 3: expected a record as JSON"):
        files.read(path)


def test_writing_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = files.write(tmp_path / "table1.jsonl", [record()])
    before = path.read_text()
    with pytest.raises(TypeError):
        files.write(path, [record(lr=object())])
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["table1.jsonl"]


def test_merging_keeps_others_and_never_fewer_seeds() -> None:
    old = [record("lecun"), record(seeds=3), record(seeds=2, dropout=0.5)]
    new = [record(seeds=1), record(seeds=2, dropout=0.5, lr=0.05), record(seeds=5, dropout=0.5)]
    merged = {(one.init, len(one.config), len(one.seeds)) for one in files.merge(old, new)}
    assert merged == {("lecun", 1, 1), ("xavier", 1, 3), ("xavier", 2, 2), ("xavier", 2, 5)}


def test_merging_keeps_a_record_that_has_the_same_seeds() -> None:
    seed = {"seed": 0, "valid": 0.5, "test": 0.5, "epoch": 1, "epochs": 1, "seconds": 1.0}
    run = Record("table1", "cora", "gcn", "xavier", {"lr": 0.01}, (seed,), time="2020-01-01")
    restored = dataclasses.replace(run, time="2026-01-01")
    assert files.merge([run], [restored]) == [run]  # when it was run, not when it was restored
    again = dataclasses.replace(restored, seeds=({**seed, "test": 0.6},))
    assert files.merge([run], [again]) == [again]


# --- storage ------------------------------------------------------------------------------------


def test_where_a_storage_is() -> None:
    assert url_of("/somewhere/sweeps.db") == "sqlite:////somewhere/sweeps.db"
    assert url_of("sqlite:////somewhere/sweeps.db") == "sqlite:////somewhere/sweeps.db"
    assert url_of("postgres://u@h/d") == "postgresql+psycopg://u@h/d"


@pytest.mark.parametrize("bad", ["mysql://me:secret@host/db", "sqlite://", "redis://host"])
def test_a_storage_we_do_not_know(bad: str) -> None:
    with pytest.raises(OptionError, match="--storage: expected the path of an SQLite") as caught:
        url_of(bad)
    assert "secret" not in str(caught.value)


def test_a_storage_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"got no file .*absent.db. Run virgo sweep first"):
        open_storage(tmp_path / "absent.db", create=False)
    (tmp_path / "bad.db").write_text("hello" * 1000)
    with pytest.raises(DataError, match="expected a sweep's database, got another file"):
        open_storage(tmp_path / "bad.db")
    with pytest.raises(DataError, match="expected a database") as caught:
        open_storage("postgresql://me:secret@127.0.0.1:1/none")
    assert "secret" not in str(caught.value)
    with pytest.raises(OptionError, match="--grace: expected at least 1"):
        open_storage(tmp_path / "a.db", grace=0)


def test_many_open_a_new_storage_at_once(database: str) -> None:
    found: list[Any] = []

    def opening() -> None:
        try:
            found.append(open_storage(database))
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=opening) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(isinstance(one, Storage) for one in found), found
    for one in found:
        one.close()


def test_who_is_alive() -> None:
    assert is_alive(myself()) is True
    assert is_alive(of_a_dead_process()) is False
    assert is_alive({**myself(), "started": 1}) is False  # its number is another's now
    assert is_alive({**myself(), "host": "elsewhere"}) is None
    assert is_alive(None) is None


def test_a_killed_child_that_nobody_has_waited_for_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    started = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
    worker = {**myself(), "pid": child.pid, "started": started}
    assert is_alive(worker) is True
    child.kill()
    deadline = time.monotonic() + 10
    while is_alive(worker) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_alive(worker) is False
    child.wait()


# --- boards -------------------------------------------------------------------------------------


def grab(database: str, limit: int, start: Any, found: Any) -> None:
    """Take all one can, as fast as one can."""
    storage = open_storage(database)
    board = small(database, limit=limit).boards(storage)[0]
    board.look()
    start.wait()
    while (claim := board.claim()) is not None:
        found.put(claim.trial_id)
    found.put(None)
    storage.close()


def test_no_trial_is_taken_twice(database: str) -> None:
    """Several at once, each with a list of all trials in the same order: the worst case."""
    storage = open_storage(database)
    board_of(storage, small(database, limit=60))
    many = 4
    start, found = threading.Barrier(many), multiprocessing.Queue()
    threads = [
        threading.Thread(target=grab, args=(database, 60, start, found)) for _ in range(many)
    ]
    for thread in threads:
        thread.start()
    taken = [one for one in (found.get(timeout=60) for _ in range(60 + many)) if one is not None]
    for thread in threads:
        thread.join()
    assert len(taken) == len(set(taken)) == 60
    storage.close()


def test_a_living_workers_trial_is_never_taken(storage: Storage, database: str) -> None:
    sweep = small(database, limit=1)
    board = board_of(storage, sweep)
    claim_of(board).begin(myself(), PLAIN)
    time.sleep(2.5)  # no heartbeat for longer than the grace
    board.tidy()
    assert (states(board, storage), board.claim()) == (["RUNNING"], None)


def test_a_dead_workers_trial_is_free_at_once(database: str) -> None:
    storage = open_storage(database, grace=600)
    board = board_of(storage, small(database, limit=1))
    claim = claim_of(board)
    claim.begin(of_a_dead_process(), PLAIN)
    claim.record(0, result(0))
    board.tidy()
    assert states(board, storage) == ["FAIL", "WAITING"]
    again = claim_of(board)
    assert again.missing == [1, 2]
    # the mark of the dead worker is gone, so that nobody takes the new one's trial
    board.tidy()
    assert states(board, storage) == ["FAIL", "RUNNING"]
    storage.close()


@pytest.mark.parametrize("worker", [{"host": "elsewhere", "pid": 1, "started": 1}, None])
def test_elsewhere_the_heartbeat_decides(
    worker: dict[str, Any] | None, storage: Storage, database: str
) -> None:
    """Also of one that was killed between taking a trial and saying who it is."""
    board = board_of(storage, small(database, limit=1))
    claim = claim_of(board)
    if worker:
        claim.begin(worker, PLAIN)
    board.tidy()
    assert states(board, storage) == ["RUNNING"]
    time.sleep(2.5)
    board.tidy()
    assert states(board, storage) == ["FAIL", "WAITING"]


def test_one_killed_while_it_freed_a_trial_leaves_no_hole(database: str, storage: Storage) -> None:
    """Failed, and not yet in line again: Optuna does this in two steps."""
    board = board_of(storage, small(database, limit=1))
    claim = claim_of(board)
    claim.record(0, result(0))
    storage.set_trial_state_values(claim.trial_id, TrialState.FAIL)
    board.tidy()
    assert states(board, storage) == ["FAIL", "WAITING"]
    assert claim_of(board).missing == [1, 2]


def test_of_two_that_were_added_at_once_the_first_counts(database: str, storage: Storage) -> None:
    board = board_of(storage, small(database, limit=1))
    key = next(iter(board._configs))
    assert board._study is not None
    for _ in range(2):
        board._study.add_trial(board._new(key, 3))
    board.look()
    assert board.waiting == 1  # seen before it is tidied up
    board.tidy()
    assert states(board, storage) == ["WAITING", "PRUNED", "PRUNED"]
    run(small(database, limit=1), 0)
    assert len(records(database)) == 1


def test_a_double_takes_over_with_what_the_first_had(database: str, storage: Storage) -> None:
    board = board_of(storage, small(database, limit=1))
    key = next(iter(board._configs))
    claim = claim_of(board)
    claim.record(0, result(0))
    assert board._study is not None
    board._study.add_trial(board._new(key, 3))  # it does not know of that seed
    storage.set_trial_state_values(claim.trial_id, TrialState.FAIL)
    board.look()
    second = claim_of(board)
    assert second.missing == [1, 2]
    second.begin(myself(), PLAIN)
    for seed in second.missing:
        second.record(seed, result(seed))
    second.finish()
    assert [one["seed"] for one in records(database)[0].seeds] == [0, 1, 2]


def test_a_trial_that_was_taken_away_is_let_go(database: str, storage: Storage) -> None:
    board = board_of(storage, small(database, limit=1))
    claim = claim_of(board)
    storage.set_trial_state_values(claim.trial_id, TrialState.FAIL)
    with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
        claim.record(0, result(0))
    claim.release()
    assert states(board, storage) == ["FAIL"]


def test_the_best_are_those_without_a_failed_seed(database: str, storage: Storage) -> None:
    board = board_of(storage, small(database, limit=4, seeds=3, screen=(1, 2)))
    for valid in (0.5, None, 0.7, 0.5 + 3e-8):  # as float32 rounds
        claim = claim_of(board)
        claim.record(0, result(0, valid))
        claim.finish()
    board.tidy()
    keys = list(board._configs)
    again = [claim_of(board), claim_of(board)]
    assert [json.dumps(claim.config) for claim in again] == [
        json.dumps(board._configs[keys[place]]) for place in (0, 2)
    ]  # a tie goes to the first
    assert board.claim() is None
    assert not board.complete


# --- running ------------------------------------------------------------------------------------


def test_a_sweep_runs_everything_once(database: str, log: Path, tmp_path: Path) -> None:
    sweep = small(database, inits=("xavier", "lecun"))
    done = run(sweep, 0)
    assert (done.seeds, done.total, done.begun, done.failed) == (18, 18, 0, 0)
    assert set(executions(log).values()) == {1}
    found = records(database)
    assert len(found) == 6
    for one in found:
        assert [seed["seed"] for seed in one.seeds] == [0, 1, 2]
        assert one.generated is None
        assert one.versions["torch"]
        assert one.time is not None
        assert one.time.endswith("Z")
        assert {seed["status"] for seed in one.seeds} == {"ok"}
    assert set(done.best) == {("cora", "gcn", "xavier"), ("cora", "gcn", "lecun")}
    again = run(sweep, 0)
    assert (again.begun, again.rate) == (18, None)
    assert sum(executions(log).values()) == 18


def test_more_seeds_and_configurations_later(database: str, log: Path) -> None:
    run(small(database, limit=2, seeds=2), 0)
    run(small(database, limit=3, seeds=4), 0)
    assert set(executions(log).values()) == {1}
    assert [len(one.seeds) for one in records(database)] == [4, 4, 4]
    run(small(database, limit=3, seeds=1), 0)  # it is all there
    assert [len(one.seeds) for one in records(database)] == [4, 4, 4]
    assert sum(executions(log).values()) == 12


def test_screening(database: str, log: Path) -> None:
    done = run(small(database, limit=6, seeds=4, screen=(2, 2)), 0)
    assert done.seeds == done.total == 6 * 2 + 2 * 2
    found = records(database)
    assert all(one.screen == {"seeds": 2, "top": 2} for one in found)
    full = {one.identity for one in found if len(one.seeds) == 4}
    ranked = sorted(found, key=lambda one: -sum(seed["valid"] for seed in one.seeds[:2]))
    assert full == {one.identity for one in ranked[:2]}
    assert {len(one.seeds) for one in found} == {2, 4}
    assert set(executions(log).values()) == {1}
    run(small(database, limit=6, seeds=4), 0)  # the rest of it
    assert set(executions(log).values()) == {1}
    assert all(one.screen is None and len(one.seeds) == 4 for one in records(database))


@pytest.mark.parametrize(
    ("trick", "seed", "status", "message"),
    [
        ("fail", 1, "failed", "ZeroDivisionError: a bug of two lines"),
        ("memory", 0, "out of memory", "RuntimeError: "),
        ("memory", 1, "out of memory", "MemoryError"),
        ("diverge", 1, "diverged", None),
    ],
)
def test_a_seed_that_goes_wrong_is_recorded_and_the_sweep_goes_on(
    trick: str, seed: int, status: str, message: str | None, database: str, tmp_path: Path
) -> None:
    done = run(small(database, dataset=f"like:cora@{trick}", limit=2), 0)
    assert done.failed == (4 if trick == "memory" else 2)
    for one in records(database):
        bad = one.seeds[seed]
        assert (bad["status"], bad["valid"], bad["test"]) == (status, None, None)
        assert one.seeds[2]["status"] == "ok"
        if message:
            assert bad["message"].startswith(message)
            assert "\n" not in bad["message"]
        assert one.generated == f"generated: like:cora@{trick}"
    path, count = export(open_storage(database), "table1", tmp_path)
    assert files.read(path)[0].seeds[seed]["status"] == status
    assert count == 2


@pytest.mark.parametrize("jobs", [0, 2])
def test_a_mistake_stops_the_sweep_with_its_message(
    jobs: int, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(TESTS))
    with pytest.raises(DataError, match=r"cora: expected something else, got this. Mend it."):
        run(small(database, dataset="like:cora@mistake"), jobs)
    storage = open_storage(database)
    board = small(database, dataset="like:cora@mistake").boards(storage)[0]
    board.look()
    assert set(states(board, storage)) == {"WAITING"}  # put back with the seed it had
    assert board.count().seeds >= 1
    storage.close()


def test_data_that_is_not_there_stops_the_sweep(database: str) -> None:
    with pytest.raises(DataError, match="expected files below nowhere"):
        run(small(database, root="nowhere"), 1)


def test_an_interrupt_puts_the_trial_back(database: str, log: Path) -> None:
    sweep = small(database, dataset="like:cora@interrupt", limit=2)
    with pytest.raises(KeyboardInterrupt):
        run(sweep, 1)
    run(sweep, 1)
    counts = executions(log)
    assert sorted(counts.values()) == [1, 1, 1, 1, 1, 2]
    assert set(executions(log, "end").values()) == {1}


def test_stopping_never_interrupts_a_write() -> None:
    stop = Stop()
    stop.check()
    with pytest.raises(Stopped), stop.interruptible():
        stop.on_signal()
    with pytest.raises(Stopped):
        stop.check()
    with pytest.raises(Stopped), stop.interruptible():
        pytest.fail("not begun")
    outside = Stop()
    outside.on_signal()  # does not raise here
    with pytest.raises(Stopped):
        outside.check()
    with pytest.raises(Stopped):
        Stop(parent=1_000_000).check()  # an orphan


def test_a_seed_that_kills_its_workers_is_given_up(database: str, log: Path) -> None:
    """As the system does to one that takes all memory. The parent sees it happen."""
    storage = open_storage(database)
    sweep = small(database, limit=1)
    supervisor = Supervisor(sweep, storage, ahead=1)
    supervisor.tend(now=True)
    dead = of_a_dead_process()
    for death in range(3):
        board = sweep.boards(storage)[0]
        board.look()
        claim = claim_of(board)
        claim.begin(dead, PLAIN)
        if death == 0:
            claim.record(0, result(0))
        supervisor.bury(dead, "SIGKILL")
    board.look()
    assert claim_of(board).missing == [2]
    found = board.results(next(iter(board._configs)))
    assert found[1]["status"] == "out of memory"
    assert found[1]["message"] == "its worker was killed 3 times (SIGKILL)"
    storage.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 0}, "--seeds: expected at least 1"),
        ({"screen": (3, 2)}, "--screen: expected fewer seeds than --seeds 3, got 3"),
        ({"screen": (0, 2)}, "--screen: expected fewer seeds"),
        ({"screen": (1, 0)}, "--top: expected at least 1"),
    ],
)
def test_bad_orders(options: dict[str, Any], message: str, database: str) -> None:
    with pytest.raises(OptionError, match=message):
        small(database, **options)


def test_bad_jobs_and_functions(database: str) -> None:
    with pytest.raises(OptionError, match="--jobs: expected 0 or more, got -1"):
        run(small(database), -1)
    with pytest.raises(OptionError, match=r"'walk' in kit\.sweep_stub, got no such name"):
        run(small(database, runner="kit.sweep_stub:walk"), 0)
    with pytest.raises(OptionError, match="at least one cell"):
        Sweep((), database)


# --- kills --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_kills_on_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker, then the parent; the rest is done at once, here."""
    check_kills(str(tmp_path / "sweeps.db"), tmp_path, monkeypatch, rounds=1, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_many_kills_on_sqlite(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_kills(str(tmp_path / "sweeps.db"), tmp_path, monkeypatch, rounds=4, seed=seed)


@pytest.mark.slow
def test_kills_while_screening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, log, choose = str(tmp_path / "sweeps.db"), tmp_path / "log", random.Random(5)
    victim = Killed(database, tmp_path / "out", log, "--screen", "2", "--top", "2")
    try:
        for _ in range(3):
            victim.start()
            if victim.wait_for(choose.randint(3, 8)):
                victim.kill_worker(choose)
            if victim.wait_for(2):
                victim.kill_parent()
        victim.start()
        output = victim.finish()
    finally:
        victim.end()
    assert "wrote 12 configurations" in output
    compare_with_undisturbed(database, tmp_path, monkeypatch, screen=(2, 2))
    exported = files.read(tmp_path / "out" / "table1.jsonl")
    assert sorted(lasting(exported)) == sorted(lasting(records(database)))


@pytest.mark.slow
def test_ctrl_c_loses_only_what_was_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, log = str(tmp_path / "sweeps.db"), tmp_path / "log"
    victim = Killed(database, tmp_path / "out", log)
    try:
        victim.start()
        assert victim.wait_for(7)
        assert victim.press_ctrl_c() == 130
        assert "the same command resumes from here" in victim.said.read_text()
        storage = open_storage(database)
        assert all(one.running == 0 for one in status(storage))
        storage.close()
        victim.start()
        victim.finish()
    finally:
        victim.end()
    begun = executions(log)
    assert sum(begun.values()) - len(begun) <= 2
    compare_with_undisturbed(database, tmp_path, monkeypatch)


@pytest.mark.slow
def test_workers_that_are_killed_are_replaced(database: str, monkeypatch: Any, log: Path) -> None:
    """A seed that kills whoever runs it costs three workers, and the others go on."""
    monkeypatch.syspath_prepend(str(TESTS))
    done = run(small(database, dataset="like:cora@suicide", limit=8), 2)
    assert done.seeds == done.total == 24
    bad = [one for one in records(database) if one.config["lr"] == 0.05]
    assert done.failed == len(bad) > 0
    assert {one.seeds[1]["status"] for one in bad} == {"out of memory"}
    assert {one.seeds[2]["status"] for one in bad} == {"ok"}


# --- the command line ---------------------------------------------------------------------------


def command(database: str, out: Path, *more: str) -> list[str]:
    return [
        "sweep",
        "table1",
        "--dataset",
        "like:cora@0.1",
        "--init",
        "xavier",
        "--limit",
        "2",
        "--seeds",
        "2",
        "--jobs",
        "0",
        "--storage",
        database,
        "--out",
        str(out),
        "--runner",
        STUB["runner"],
        "--loader",
        STUB["loader"],
        *more,
    ]


def test_the_command_runs_and_says_what_is_generated(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = record("lecun")
    path = files.write(tmp_path / "table1.jsonl", [other])
    assert main(command(database, tmp_path)) == 0
    said = capsys.readouterr().out
    assert "table1: 4 seeds of 1 cells" in said
    assert f"wrote 2 configurations to {path}" in said
    assert "like:cora@0.1: generated: like:cora@0.1" in said
    assert len(files.read(path)) == 3
    assert other in files.read(path)

    assert main(["sweep", "status", "--storage", database]) == 0
    said = capsys.readouterr().out
    assert "table1/like:cora@0.1/gcn/xavier" in said
    assert "2/2" in said
    assert "generated" in said
    assert main(["sweep", "status", "table2", "--storage", database]) == 0
    assert "nothing was run" in capsys.readouterr().out

    assert main(["sweep", "export", "--storage", database, "--out", str(tmp_path / "b")]) == 0
    assert len(files.read(tmp_path / "b" / "table1.jsonl")) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--screen", "1"], "--screen, --top: expected both or neither"),
        (["--dataset", "coda"], "--dataset: expected one of cora, citeseer"),
        (["--init", "javier"], "--init: expected one of lecun"),
        (["--model", "gat"], "--model: expected one of gcn"),
        (["--root", "nowhere"], "expected files below nowhere"),
    ],
)
def test_the_command_with_a_mistake(
    options: list[str],
    message: str,
    database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(command(database, tmp_path, *options)) == 2
    assert message in capsys.readouterr().err


def test_the_command_is_interrupted(
    database: str, tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--dataset", "like:cora@interrupt"]
    assert main(command(database, tmp_path, *more)) == 130
    assert "the same command resumes from here" in capsys.readouterr().err
    assert main(command(database, tmp_path, *more)) == 0
    assert len(files.read(tmp_path / "table1.jsonl")) == 2


def test_the_status_of_no_storage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "status", "--storage", str(tmp_path / "none.db")]) == 2
    assert "Run virgo sweep first" in capsys.readouterr().err


def test_without_optuna_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['optuna'] = None\n"
        "from virgo.cli import main\n"
        "print([main(['sweep', what]) for what in ('table1', 'status', 'export')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[2, 2, 2]", done.stderr
    said = " ".join(done.stderr.split())
    assert said.count("A sweep requires optuna. Run: ") == 3
    assert said.count("pip install 'virgo-gnn[sweep]'") == 3


def test_the_bar_shows_pace_and_best(database: str) -> None:
    done = run(small(database, inits=("xavier", "virgo-backward")), 0)
    assert "per hour, 0:00:00 left" in sweeping._pace(done)
    with errors.capture() as captured:
        errors.print(sweeping._best(done))
    assert "virgo-backward" in captured.get()
    assert "cora gcn" in captured.get()


def test_the_status_while_it_runs(database: str, storage: Storage) -> None:
    board = board_of(storage, small(database))
    claim = claim_of(board)
    claim.begin(myself(), PLAIN)
    claim.record(0, result(0))
    (one,) = status(storage)
    assert (one.done, one.asked, one.seeds, one.running, one.best) == (0, 3, 1, 1, None)
    assert collect(storage, "table1") == []  # only what is whole
    claim.release()
    assert status(storage)[0].running == 0


def test_the_dashboard_opens_on_the_same_storage(database: str) -> None:
    program = Path(sys.executable).with_name("optuna-dashboard")
    if not program.exists() and shutil.which("optuna-dashboard") is None:
        pytest.skip("optuna-dashboard is not installed")
    run(small(database), 0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [
            str(program if program.exists() else "optuna-dashboard"),
            url_of(database),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        found = _fetch(f"http://127.0.0.1:{port}/api/studies", server)
        (study,) = found["study_summaries"]
        assert study["study_name"] == "table1/cora/gcn/xavier"
        trials = _fetch(f"http://127.0.0.1:{port}/api/studies/{study['study_id']}?after=0", server)
        assert [trial["state"] for trial in trials["trials"]] == ["Complete"] * 3
        assert {p["name"] for p in trials["trials"][0]["params"]} >= {"lr", "num_layers"}
    finally:
        server.kill()
        server.wait()


def _fetch(url: str, server: subprocess.Popen[bytes]) -> Any:
    limit = time.monotonic() + 30
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with opener.open(url, timeout=10) as answer:
                return json.load(answer)
        except OSError:
            assert server.poll() is None, "the dashboard has ended"
            assert time.monotonic() < limit, "the dashboard does not answer"
            time.sleep(0.1)


def test_a_trials_attributes_are_what_the_board_reads(database: str, storage: Storage) -> None:
    """The layout in the storage is what other versions will find there."""
    run(small(database, limit=1, seeds=2), 0)
    (study,) = (s for s in storage.get_all_studies())
    (trial,) = storage.get_all_trials(study._study_id)
    assert study.study_name == "table1/cora/gcn/xavier"
    assert set(trial.user_attrs) == {"config", "seeds", "seed:0", "seed:1", "worker", "run"}
    assert trial.user_attrs[TARGET] == 2
    assert trial.value == pytest.approx(
        sum(trial.user_attrs[f"seed:{s}"]["valid"] for s in (0, 1)) / 2
    )

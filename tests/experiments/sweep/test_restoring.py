"""A store that was lost or damaged: one error, and a new one from the exported records."""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.sweeps import lasting, records, small
from torch_geometric.data import Data
from torch_geometric.nn import GCN

import virgo
from virgo.cli import main
from virgo.cli.tables import load
from virgo.errors import DataError, VirgoError
from virgo.experiments import study
from virgo.experiments.sweep import running
from virgo.experiments.sweep.records import write
from virgo.experiments.sweep.running import Progress, run
from virgo.experiments.sweep.storage import open_storage
from virgo.experiments.sweep.studies import StudyResult


def test_records_alone_make_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old.db", str(tmp_path / "new.db")
    run(small(old), 0)
    write(tmp_path / "out" / "table1.jsonl", records(old))
    restore = ["sweep", "restore", "--records", str(tmp_path / "out"), "--storage", new]
    assert main(restore) == 0
    assert "restored 3 configurations" in capsys.readouterr().out
    assert lasting(records(new)) == lasting(records(old))
    assert main(restore) == 0  # nothing twice
    assert "restored 0 configurations" in capsys.readouterr().out
    done = run(small(new), 0)
    assert done.begun == done.seeds == 9  # nothing is run again


def made(folder: str | None = None) -> Data:
    """A user's data, for a study that is started by name."""
    data = virgo.data.citation_like(num_nodes=60, seed=0)
    for number, name in enumerate(("train_mask", "val_mask", "test_mask")):
        data[name] = torch.arange(60) % 3 == number
    return data


def trained(config: Mapping[str, Any], seed: int) -> dict[str, float]:
    with Path(os.environ["STUDY_LOG"]).open("a") as log:
        log.write(f"{config} {seed}\n")
    return {"valid": config["lr"], "test": 0.1 * seed}


def own_study(out: Path, lr: list[float]) -> StudyResult:
    grid = {"hidden_channels": 4, "num_layers": [1, 2], "lr": lr}
    return study(
        made, GCN, ["xavier", "default"], grid, name="mine", seeds=2, out=out, train=trained,
        columns=["num_layers"],
    )  # fmt: skip


def test_records_of_a_study_of_ones_own_make_its_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUDY_LOG", str(tmp_path / "log"))
    before = own_study(tmp_path, [0.1, 0.2])
    assert len((tmp_path / "log").read_text().splitlines()) == 16
    (tmp_path / "mine.db").write_bytes(b"what is no database at all" * 400)
    with pytest.raises(DataError) as caught:
        own_study(tmp_path, [0.1, 0.2])
    advice = str(caught.value).partition("virgo sweep ")[2].removesuffix(".").split()
    (tmp_path / "mine.db").rename(tmp_path / "away")
    assert main(["sweep", *advice]) == 0
    assert "restored 8 configurations" in capsys.readouterr().out
    assert main(["sweep", "restore", "mine", "--records", str(tmp_path)]) == 0  # the same place
    assert "restored 0 configurations" in capsys.readouterr().out
    after = own_study(tmp_path, [0.1, 0.2])
    assert len((tmp_path / "log").read_text().splitlines()) == 16  # nothing was run again
    assert after.records == before.records  # not even their times differ
    assert str(after) == str(before)
    own_study(tmp_path, [0.1, 0.2, 0.3])
    assert len((tmp_path / "log").read_text().splitlines()) == 24


def test_records_that_are_divided_in_two_ways_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUDY_LOG", str(tmp_path / "log"))
    first, *rest = own_study(tmp_path, [0.1]).records
    write(tmp_path / "two" / "mine.jsonl", [replace(first, columns=None), *rest])
    assert main(["sweep", "restore", "mine", "--records", str(tmp_path / "two")]) == 2
    said = capsys.readouterr().err.replace("\n", " ")
    assert "expected records that all have columns" in said
    write(tmp_path / "two" / "mine.jsonl", [first, *rest])  # as it advises
    assert main(["sweep", "restore", "mine", "--records", str(tmp_path / "two")]) == 0


@pytest.mark.parametrize("pause", [0.0, 60.0])  # told of every seed, or of the end
def test_a_study_that_is_stopped_leaves_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    monkeypatch.setenv("STUDY_LOG", str(tmp_path / "log"))
    monkeypatch.setattr(running, "_EVERY", pause)
    monkeypatch.setattr(running, "_SHARE", math.inf)
    monkeypatch.setattr(running, "_HURRY", math.inf)
    seen: list[int] = []

    def report(progress: Progress) -> None:
        seen.append(progress.seeds)
        if progress.seeds >= 3:
            raise KeyboardInterrupt

    grid = {"hidden_channels": 4, "num_layers": 1, "lr": [0.1, 0.2, 0.3]}
    with pytest.raises(KeyboardInterrupt):
        study(
            made, GCN, ["xavier"], grid, name="mine", seeds=1, out=tmp_path, train=trained,
            report=report,
        )  # fmt: skip
    assert (tmp_path / "mine.jsonl").read_text().count("\n") == 3


def test_records_of_other_tables_are_not_silently_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, file = tmp_path / "old.db", tmp_path / "mine.jsonl"
    run(small(old), 0)
    write(file, [replace(record, table="mine") for record in records(old)])
    store = tmp_path / "new.db"
    assert main(["sweep", "restore", "--records", str(tmp_path), "--storage", str(store)]) == 2
    said = capsys.readouterr().err.replace("\n", " ")
    assert "virgo sweep restore mine --records" in said
    assert not store.exists()
    write(file, [*records(old), *(replace(record, table="mine") for record in records(old))])
    assert main(["sweep", "restore", "--records", str(file)]) == 2
    assert "expected one for mine, table1" in capsys.readouterr().err.replace("\n", " ")
    assert main(["sweep", "restore", "--records", str(file), "--storage", str(store)]) == 0
    assert main(["sweep", "export", "--storage", str(store), "--out", str(tmp_path / "again")]) == 0
    assert {path.stem for path in (tmp_path / "again").iterdir()} == {"mine", "table1"}
    assert main(["sweep", "status", "min", "--storage", str(store)]) == 2
    assert "expected one of mine, table1" in capsys.readouterr().err.replace("\n", " ")


def test_a_damaged_store_is_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "s.db"
    run(small(store), 0)
    data = bytearray(store.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    store.write_bytes(data)
    for suffix in ("-wal", "-shm"):
        store.with_name(f"s.db{suffix}").unlink(missing_ok=True)
    for words in (["sweep", "status"], ["sweep", "export"], ["table", "table1"]):
        assert main([*words, "--storage", str(store)]) == 2
        said = capsys.readouterr().err
        assert said.count("virgo: ") == 1
        assert str(store) in said.replace("\n", "")


def test_a_seed_without_its_result_is_one_error(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    run(small(store), 0)
    with contextlib.closing(sqlite3.connect(store)) as connection, connection:
        changed = "UPDATE trial_user_attributes SET value_json = replace(value_json, ?, ?)"
        connection.execute(changed, ('"status"', '"stbtus"'))
    with pytest.raises(DataError, match="a seed without status"):
        load("table1", str(store), tmp_path)


def test_passwords_are_hidden() -> None:
    url = "postgresql://me:hunter2@127.0.0.1:1/none?password=hunter3"
    with pytest.raises(DataError) as caught:
        open_storage(url)
    assert "hunter" not in str(caught.value)
    assert "hunter" not in str(VirgoError(f"got {url}"))


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:hunter/2@host/db",
        "postgresql://me:hunter@2@host/db",
        "host=here password=hunter2 user=me",
        "host=here password='hunter 2' user=me",
        'password = "hunter 2"',
        "md:base?motherduck_token=hunter2",
    ],
)
def test_passwords_of_every_form_are_hidden(text: str) -> None:
    said = str(VirgoError(f"--storage: expected a server, got {text}. Start it."))
    assert "hunter" not in said
    assert "2" not in said


def test_records_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"expected a place to write records to, got .*--out"):
        write(tmp_path / "file" / "table1.jsonl", [])

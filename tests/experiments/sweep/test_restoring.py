"""A store that was lost or damaged: one error, and a new one from the exported records."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from kit.sweeps import lasting, records, small

from virgo.cli import main
from virgo.cli.tables import load
from virgo.errors import DataError, VirgoError
from virgo.experiments.sweep.records import write
from virgo.experiments.sweep.running import run
from virgo.experiments.sweep.storage import open_storage


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


def test_records_of_other_tables_are_not_silently_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, file = tmp_path / "old.db", tmp_path / "mine.jsonl"
    run(small(old), 0)
    write(file, [replace(record, table="mine") for record in records(old)])
    store = tmp_path / "new.db"
    assert main(["sweep", "restore", "--records", str(file), "--storage", str(store)]) == 2
    assert "is resumed from its storage" in capsys.readouterr().err.replace("\n", " ")
    assert not store.exists()


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

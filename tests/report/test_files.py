"""Atomic writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from virgo.report.files import atomic_write, write_text_atomically


def test_a_text_is_written_into_a_folder_that_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "note.txt"
    write_text_atomically(path, "grün")
    write_text_atomically(path, "blau")
    assert path.read_text(encoding="utf-8") == "blau"
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "note.txt"
    write_text_atomically(path, "old")

    def fail() -> None:
        with atomic_write(path) as temporary:
            temporary.write_text("half")
            assert temporary.parent == tmp_path
            assert path.read_text() == "old"
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]

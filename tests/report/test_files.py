"""Atomic writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from virgo.report.files import atomic_write, write_text_atomically


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_as_a_whole(durable: bool, tmp_path: Path) -> None:
    target = tmp_path / "new folder" / "note.json"
    for text in ("old", "new é"):
        write_text_atomically(target, text, durable=durable)
        assert target.read_text(encoding="utf-8") == text
    assert [file.name for file in target.parent.iterdir()] == ["note.json"]


def test_an_error_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "note.npy"
    write_text_atomically(target, "old")

    def half(path: Path) -> None:
        with atomic_write(path) as temporary:
            assert temporary.suffix == ".npy"
            temporary.write_text("half of it")
            assert target.read_text() == "old"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half(target)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_text_atomically(target, "new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]

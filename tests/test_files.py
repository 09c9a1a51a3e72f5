"""Atomic writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from virgo.files import atomic_path, write_atomic


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_as_a_whole(durable: bool, tmp_path: Path) -> None:
    target = tmp_path / "new folder" / "note.json"
    for text in ("old", "new é"):
        write_atomic(target, text, durable=durable)
        assert target.read_text(encoding="utf-8") == text
    assert [file.name for file in target.parent.iterdir()] == ["note.json"]


def test_an_error_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "note.npy"
    write_atomic(target, "old")

    def half(path: Path) -> None:
        with atomic_path(path) as aside:
            assert aside.suffix == ".npy"
            aside.write_text("half of it")
            assert target.read_text() == "old"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half(target)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(target, "new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]

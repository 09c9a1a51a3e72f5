"""Disks without room: one error that names the file, and nothing half written."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from virgo.cli import main
from virgo.cli.arguments import write_text
from virgo.errors import DataError, OptionError
from virgo.experiments.tasks import checkpoint
from virgo.report import files


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_device_without_room() -> None:
    with pytest.raises(OptionError, match=r"--json: expected a place to write to, got /dev/full"):
        write_text("--json", Path("/dev/full"), "text")


def test_what_cannot_be_written_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.json"
    write_text("--json", file, "before")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(OptionError, match="Free some space, or name another"):
        write_text("--json", file, "after")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert file.read_text() == "before"


def test_what_no_command_foresaw_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "somewhere")

    monkeypatch.setattr("virgo.cli.diagnose.methods", full)
    assert main(["methods"]) == 2
    assert capsys.readouterr().err.startswith("virgo: somewhere: expected to read or write it")


def test_a_checkpoint_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library writes in code of its own, with an error of its own."""
    import safetensors.torch

    from virgo.data import load
    from virgo.experiments.tasks import Settings, Training, task_of

    def full(*_: object, **__: object) -> None:
        raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")

    training = Training(task_of(load("like:cora@0.05")), "gcn", "xavier", Settings(), 0)
    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(DataError, match=r"expected a place to write to, got .*No space left"):
        checkpoint.save(training, tmp_path / "run.safetensors", [])
    assert not list(tmp_path.iterdir())

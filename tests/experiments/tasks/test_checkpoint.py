"""Checkpoints whose header was changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import virgo
from virgo.errors import DataError
from virgo.experiments.tasks import Settings, Training, checkpoint, task_of

pytest.importorskip("safetensors", reason="safetensors is not installed")


@pytest.mark.parametrize("changed", [{"num_layers": 2**40}, {"hidden_channels": 2**40}])
def test_a_network_that_is_larger_than_its_weights(changed: dict[str, Any], tmp_path: Path) -> None:
    """It is refused before it is made, which would take all memory."""
    task = task_of(virgo.data.load("like:cora@0.05"))
    training = Training(task, "gcn", "xavier", Settings.of({"epochs": 1}), 0)
    saved = checkpoint.load(checkpoint.save(training, tmp_path / "run.safetensors", []))
    saved.model("last")
    header = {**saved.header, "settings": {**saved.header["settings"], **changed}}
    larger = replace(saved, header=header)
    for use in (lambda: larger.model("last"), lambda: larger.resume(task)):
        with pytest.raises(DataError, match=r"layers of .* in the settings, 4 weights of at most"):
            use()

"""``--device``, ``--precision`` and ``--compile``, wherever a command computes."""

from __future__ import annotations

import json
import re
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import second_device

import virgo
from virgo import cli, devices
from virgo.errors import OptionError, VirgoWarning
from virgo.experiments import tasks
from virgo.experiments.sweep.grids import cells
from virgo.experiments.sweep.running import run
from virgo.experiments.sweep.worker import Sweep
from virgo.experiments.tasks import Compute, Settings, Training, task_of, timing
from virgo.experiments.tasks.sampled import SampledNodeBatches

if not second_device.AVAILABLE:
    pytest.skip("this PyTorch has no devices written in Python", allow_module_level=True)

SMALL = ["--dataset", "like:cora@0.1", "--hidden", "8", "--epochs", "3"]
HERE = second_device.NAME


@pytest.mark.parametrize(
    "command",
    [
        ["train", "--dataset", "like:cora@0.1"],
        ["sweep", "table1", "--dataset", "like:cora@0.1"],
        ["check", "like:cora@0.1"],
        ["compare", "like:cora@0.1"],
        ["demo"],
        ["bench"],
    ],
)
def test_a_device_that_is_not_here_is_one_error_at_once(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(virgo.data, "load", lambda *args: pytest.fail("something was loaded"))
    assert cli.main([*command, "--device", "cuda"]) == 2
    line = " ".join(capsys.readouterr().err.split())
    assert line.startswith("virgo: device: expected a device that is here, got 'cuda'")


def test_auto_says_what_it_took(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", *SMALL, "--device", "auto"]) == 0
    assert f"device: {devices.choose_device('auto')}" in capsys.readouterr().err


def test_train_on_another_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / "here.json", tmp_path / "there.json"]
    for device, path in zip(("cpu", HERE), paths, strict=True):
        assert cli.main(["train", *SMALL, "--device", device, "--json", str(path)]) == 0
    here, there = (json.loads(path.read_text()) for path in paths)
    assert there.pop("device") == HERE
    assert "device" not in here
    for a, b in zip(here["curve"], there["curve"], strict=True):
        assert b["loss"] == pytest.approx(a["loss"], abs=1e-4)


@pytest.mark.parametrize(
    "target",
    [
        "like:cora@0.1",
        pytest.param("like:imdb-b@0.1", marks=pytest.mark.slow),
        pytest.param("like:ogbl-collab@0.001", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("method", ["virgo-forward", "virgo-forward+measured"])
def test_check_prints_the_numbers_of_the_cpu(
    target: str, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []
    for device in ("cpu", HERE):
        cli.main(["check", target, "--method", method, "--device", device, "--width", "8"])
        printed.append(capsys.readouterr().out)
    rows = [re.findall(r"[-+.\de]+|\w+", text) for text in printed]
    assert len(rows[0]) == len(rows[1])
    for a, b in zip(*rows, strict=True):
        try:
            assert float(b) == pytest.approx(float(a), rel=2e-2), (a, b)  # three digits are shown
        except ValueError:
            assert a == b


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."), "20.00 GiB."),
        (MemoryError(), "MemoryError."),  # Python's own has no words
    ],
)
def test_a_batch_that_does_not_fit_names_its_option(
    error: Exception,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def explode(*args: Any) -> float:
        raise error

    monkeypatch.setattr(SampledNodeBatches, "train_epoch", explode)
    words = ["train", *SMALL, "--num-neighbors", "3", "3", "--batch-size", "100"]
    assert cli.main(words) == 2
    line = " ".join(capsys.readouterr().err.split())
    assert "virgo: --batch-size: expected batches that fit in memory, got 100" in line
    assert f"{said} Lower --batch-size" in line


def test_a_run_in_python_takes_a_device() -> None:
    """As the page on GPUs shows it."""
    dataset, config = virgo.data.load("like:cora@0.1"), {"hidden_channels": 8, "epochs": 3}
    here, there = (tasks.run(dataset, "gcn", "xavier", config, 0, device=d) for d in ("cpu", HERE))
    assert there.test == pytest.approx(here.test, abs=0.02)
    with pytest.raises(OptionError, match="expected a device that is here, got 'xpu'"):
        tasks.run(dataset, "gcn", "xavier", config, 0, device="xpu")


def test_timings_wait_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever it is: work on MPS is as asynchronous as on CUDA."""
    waited: list[torch.device] = []
    module = types.SimpleNamespace(synchronize=waited.append)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    timing._turns(lambda: None, lambda: None, 1, torch.device("cuda", 1))
    assert waited == [torch.device("cuda", 1)] * 4
    module.synchronize = lambda: waited.append(torch.device("mps"))
    timing._turns(lambda: None, lambda: None, 1, torch.device("mps"))
    assert waited[4:] == [torch.device("mps")] * 4


def test_bench_prints_ratios(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bench.json"
    words = ["bench", "--dataset", "like:cora@0.1", "--rounds", "1", "--json", str(path)]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert re.search(r"training step +[\d.]+ ms +[\d.]+ ms +x[\d.]+", printed)
    names = [timing["name"] for timing in json.loads(path.read_text())["timings"]]
    assert names == ["plan", "training step", "seed of a sweep"]


# --- sweeps -------------------------------------------------------------------------------------


def test_workers_take_turns_on_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virgo.experiments.tasks.compute.count_devices", lambda kind: 3)
    cell = tuple(cells("table1", ["like:cora@0.1"], ["gcn"], ["xavier"], limit=1))
    sweep = Sweep(cell, "unused", compute=Compute(torch.device("cuda"), "bf16"))
    assert sweep.workers(None) == 3
    assert sweep.workers(2) == 6
    there = [sweep.for_worker(number).compute for number in range(4)]
    assert [str(compute.device) for compute in there] == ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]
    assert {compute.precision for compute in there} == {"bf16"}
    one = Sweep(cell, "unused", compute=Compute(torch.device("cuda", 1)))
    assert one.workers(None) == 1
    assert str(one.for_worker(0).compute.device) == "cuda:1"
    assert Sweep(cell, "unused").workers(5) == 5


def test_a_sweep_on_another_device(tmp_path: Path) -> None:
    wanted = cells(
        "table1", ["like:cora@0.1"], ["gcn"], ["xavier"], limit=1, overrides={"epochs": 2}
    )
    scores = []
    for name in ("cpu", HERE):
        storage = str(tmp_path / f"{name}.db")
        sweep = Sweep(tuple(wanted), storage, seeds=1, compute=Compute.of(name))
        done = run(sweep, jobs=1)
        assert (done.seeds, done.failed) == (1, 0)
        scores.append(done.best)
    assert scores[0] == pytest.approx(scores[1], abs=0.02)


# --- compilation --------------------------------------------------------------------------------


def test_compilation_where_there_is_nothing_to_compile_says_so() -> None:
    task = task_of(virgo.data.load("like:cora@0.1"), Compute(compile=True))
    with pytest.warns(VirgoWarning, match="nothing to compile"):
        Training(task, "gcn", "xavier", Settings.of({}), 0)


def test_compiled_networks_are_those_that_run_their_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[torch.nn.Module] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **how: compiled.append(self))
    task = task_of(virgo.data.load("like:cora@0.1"), Compute(compile=True))
    training = Training(task, "sage", "xavier", Settings.of({"num_neighbors": (3, 3)}), 0)
    assert compiled == [training.model]

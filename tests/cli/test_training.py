"""``virgo train`` and its checkpoints."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.ogb_library import ogb_or_skip
from safetensors import safe_open
from torch_geometric.nn import GCN as PygGCN

import virgo
from virgo import cli
from virgo.cli.curve import curve
from virgo.data import Dataset
from virgo.experiments.tasks import NodeTask, Settings, Training, checkpoint

CONFIG = {"hidden_channels": 8, "num_layers": 2, "epochs": 12, "dropout": 0.5, "patience": None}
SMALL = ["--dataset", "like:cora@0.1", "--hidden", "8", "--epochs", "6"]


@pytest.fixture(scope="module")
def task() -> NodeTask:
    return NodeTask(virgo.data.load("like:cora@0.1"))


def begin(task: NodeTask, model: str = "gcn", **change: Any) -> Training:
    return Training(task, model, "virgo-backward", Settings.of(CONFIG | change), 0)


def advance(training: Training, epochs: int) -> list[Any]:
    return [training.advance() for _ in range(epochs)]


# --- checkpoints --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "change"),
    [
        ("gcn", {}),
        ("ngnn-sage", {"weight_decay": 5e-4}),
        ("sage", {"num_neighbors": [4, 3], "batch_size": 40}),
    ],
)
def test_a_continued_run_is_an_undisturbed_one(
    task: NodeTask, tmp_path: Path, model: str, change: dict[str, Any]
) -> None:
    whole = begin(task, model, **change)
    expected = advance(whole, 12)
    first = begin(task, model, **change)
    curve = advance(first, 5)
    path = checkpoint.save(first, tmp_path / "run.safetensors", curve)
    saved = checkpoint.load(path)
    assert saved.curve == expected[:5]
    second = saved.resume(task)
    assert advance(second, 7) == expected[5:]
    one, other = second.finish(), whole.finish()
    assert (one.valid, one.test, one.epoch) == (other.valid, other.test, other.epoch)


def test_a_run_saved_before_it_began_begins(task: NodeTask, tmp_path: Path) -> None:
    path = checkpoint.save(begin(task), tmp_path / "run.safetensors")
    assert advance(checkpoint.load(path).resume(task), 3) == advance(begin(task), 3)


def test_the_model_loads_elsewhere(task: NodeTask, tmp_path: Path) -> None:
    training = begin(task)
    advance(training, 12)
    path = checkpoint.save(training, tmp_path / "run.safetensors")
    outcome = training.finish()
    data, test = task.dataset.data, task.dataset.split["test"]
    elsewhere = PygGCN(data.num_features, 8, 2, 7)
    with safe_open(path, framework="pt") as file:  # no code of ours, no pickle
        header = json.loads(file.metadata()["virgo"])
        names = [name for name in file.keys() if name.startswith("best.")]  # noqa: SIM118
        best = {name.removeprefix("best."): file.get_tensor(name) for name in names}
    elsewhere.load_state_dict(best)
    for model in (elsewhere.eval(), checkpoint.load(path).model()):
        right = model(data.x, data.edge_index).argmax(1) == data.y
        assert right[test].float().mean().item() == pytest.approx(outcome.test, abs=1e-6)
    assert header["recipe"] == task.recipe
    assert (header["dataset"], header["init"]) == ("like:cora@0.1", "virgo-backward")
    assert "generated" in header["generated"]
    assert header["versions"]["torch"] == torch.__version__


def test_more_epochs_can_be_asked_for(task: NodeTask, tmp_path: Path) -> None:
    training = begin(task, epochs=3)
    advance(training, 3)
    assert training.done
    path = checkpoint.save(training, tmp_path / "run.safetensors")
    assert checkpoint.load(path).resume(task).done
    assert not checkpoint.load(path).resume(task, epochs=5).done


def test_another_dataset_is_an_error(task: NodeTask, tmp_path: Path) -> None:
    path = checkpoint.save(begin(task), tmp_path / "run.safetensors")
    whole = task.dataset
    other = Dataset("other", "node", whole.data, whole.split, whole.metric, whole.num_classes)
    with pytest.raises(virgo.OptionError, match=r"expected the dataset like:cora@0.1, got other"):
        checkpoint.load(path).resume(NodeTask(other))


def test_damaged_and_foreign_files_are_errors(task: NodeTask, tmp_path: Path) -> None:
    path = checkpoint.save(begin(task), tmp_path / "run.safetensors")
    whole = path.read_bytes()
    for name, content in (("cut", whole[: len(whole) // 2]), ("empty", b""), ("text", b"x" * 100)):
        damaged = tmp_path / f"{name}.safetensors"
        damaged.write_bytes(content)
        with pytest.raises(virgo.DataError, match=f"{name}.safetensors: expected a checkpoint"):
            checkpoint.load(damaged)
    with pytest.raises(virgo.DataError, match="got no file"):
        checkpoint.load(tmp_path / "nosuch.safetensors")


def test_a_failed_write_keeps_the_older_file(
    task: NodeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoint.save(begin(task), tmp_path / "run.safetensors")
    before = path.read_bytes()

    def full_disk(*args: Any, **kwargs: Any) -> None:
        Path(args[1]).write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full_disk)
    training = begin(task)
    advance(training, 2)
    with pytest.raises(virgo.DataError, match="No space left"):
        checkpoint.save(training, path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["run.safetensors"]


# --- the command --------------------------------------------------------------------------------


def test_train_says_what_came_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = [str(tmp_path / "run.json"), str(tmp_path / "run.png")]
    argv = ["train", *SMALL, "--layers", "3", "--json", files[0], "--png", files[1]]
    assert cli.main([*argv, "--init", "virgo-forward", "--estimate", "measured"]) == 0
    out = capsys.readouterr().out
    assert "gcn with virgo-forward+measured on like:cora@0.1, seed 0" in out
    assert re.search(r"validation \d+\.\d\d %, test \d+\.\d\d % \(accuracy\)", out)
    assert "generated" in out
    document = json.loads(Path(files[0]).read_text())
    assert document["settings"]["num_layers"] == 3
    assert len(document["curve"]) == document["outcome"]["epochs"] == 6
    assert "generated" in document["generated"]
    assert Path(files[1]).read_bytes().startswith(b"\x89PNG")


def test_train_saves_and_resumes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(tmp_path / "run.safetensors")
    assert cli.main(["train", *SMALL, "--save", path]) == 0
    assert cli.main(["train", "--resume", path, "--epochs", "9"]) == 0
    resumed = capsys.readouterr().out
    assert "9 epochs" in resumed
    assert cli.main(["train", *SMALL[:-1], "9"]) == 0
    whole = capsys.readouterr().out
    line = next(line for line in whole.splitlines() if line.startswith("validation"))
    assert line in resumed


@pytest.mark.parametrize(
    "options",
    [
        ["--model", "sage", "--num-neighbors", "3", "2", "--batch-size", "30"],
        ["--model", "gin", "--variant", "released"],
        ["--model", "ngnn-gcn", "--ngnn-type", "all", "--num-ngnn-layers", "2"],
        ["--distribution", "mirrored", "--signal", "rms", "--bias", "keep"],
        ["--init", "kaiming-backward+normal", "--no-early-stopping"],
    ],
    ids=["sampled", "gin", "ngnn", "mirrored", "normal"],
)
def test_every_option_trains(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", *SMALL, *options]) == 0
    assert "6 epochs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "metric"),
    [
        (["like:ogbl-ddi@0.2", "--lr", "0.005", "--max-grad-norm", "2"], "hits@20"),
        (["like:ogbl-collab@0.005", "--model", "sage", "--num-neighbors", "4", "2"], "hits@50"),
        (["like:ogbl-collab@0.005", "--num-parts", "20", "--batch-size", "5"], "hits@50"),
        (["like:imdb-b@0.1", "--model", "gin", "--batch-size", "32"], "accuracy"),
        (["like:ogbg-molhiv@0.003", "--batch-size", "32"], "rocauc"),
    ],
    ids=["ddi", "sampled", "clusters", "imdb", "molecules"],
)
def test_links_and_graphs_train_save_and_resume(
    options: list[str], metric: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ogb_or_skip()
    path = str(tmp_path / "run.safetensors")
    small = ["--hidden", "8", "--epochs", "1", "--init", "virgo-backward", "--save", path]
    assert cli.main(["train", "--dataset", *options, *small]) == 0
    assert f"({metric})" in capsys.readouterr().out
    assert cli.main(["train", "--resume", path, "--epochs", "2"]) == 0
    assert "2 epochs" in capsys.readouterr().out
    saved = checkpoint.load(path)
    model = saved.model()
    for name, value in saved.part("best").items():
        assert torch.equal(model.state_dict()[name], value)


def test_a_diverged_run_exits_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", *SMALL, "--lr", "1e30"]) == 1
    assert "diverged in epoch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["train"], "--dataset: expected a name, got none"),
        (["train", *SMALL, "--save", "run.pt"], r"--save: expected a path ending in .safetensors"),
        (["train", *SMALL, "--init", "nosuch"], "nosuch"),
        (["train", *SMALL, "--lr", "-1"], "lr: expected a positive number"),
        (["train", "--dataset", "nosuch"], "nosuch"),
        (
            ["train", "--dataset", "like:ogbl-collab@0.01", "--model", "gin"],
            "model: expected one of gcn, sage, ngnn-gcn, ngnn-sage for link prediction, got 'gin'",
        ),
        (
            ["train", "--dataset", "like:imdb-b@0.05", "--model", "sage"],
            "model: expected gcn or gin for graph classification, got 'sage'",
        ),
    ],
    ids=["nothing", "ending", "init", "lr", "dataset", "links", "graphs"],
)
def test_mistakes_are_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize("option", ["--save run.safetensors", "--json run.json", "--png run.png"])
@pytest.mark.parametrize("place", ["a folder in its place", "a file above"])
def test_where_nothing_can_be_written_is_said_before_the_data_are_read(
    option: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, file = option.split()
    path = tmp_path / "here" / file
    if place == "a file above":
        path.parent.write_text("kept")
    else:
        path.mkdir(parents=True)
    assert cli.main(["train", *SMALL, name, str(path)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"{name}: expected a file that can be written" in said
    assert "loading" not in said
    assert place != "a file above" or path.parent.read_text() == "kept"


# --- the curve ----------------------------------------------------------------------------------


def test_a_curve_rises_with_its_values() -> None:
    assert curve([0, 1, 2, 3], width=2, height=1) == ["0 ⡠⠊"]
    rising = curve(list(range(40)), width=20, height=5)
    heights = [next(y for y, line in enumerate(rising) if line[-20:][x] != "⠀") for x in range(20)]
    assert heights == sorted(heights, reverse=True)
    assert rising[0].startswith("39 ")
    assert rising[-1].strip().startswith("0 ")


def test_a_curve_survives_odd_values() -> None:
    assert len(curve([], height=3)) == 3
    assert len(curve([1.0, math.nan, math.inf, 2.0], height=3)) == 3
    assert len(curve([5.0] * 1000, width=10)[0]) <= 10 + len("5 ")

"""A study of a user's own: what it runs, resumes and retries, and what its errors advise."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.commands import run as command
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN, GIN, GCNConv, global_mean_pool

import virgo
from virgo.cli import sweeping
from virgo.errors import DataError, LayerError, OptionError, VirgoWarning
from virgo.experiments import study
from virgo.experiments.sweep.contrasts import BETTER, WORSE
from virgo.experiments.sweep.study_inputs import configurations
from virgo.experiments.tasks.own import OwnData

GRID: dict[str, Any] = {"hidden_channels": 8, "num_layers": 2, "lr": 0.05, "epochs": 3}


@pytest.fixture(scope="module")
def graph() -> Data:
    data = virgo.data.citation_like(num_nodes=120, seed=0)
    order = torch.randperm(120, generator=torch.Generator().manual_seed(0))
    for name, part in zip(("train_mask", "val_mask", "test_mask"), order.split(40), strict=True):
        data[name] = torch.zeros(120, dtype=torch.bool)
        data[name][part] = True
    return data


class Calls:
    """A training that notes what it was called with; ``score`` says how good it is."""

    def __init__(self, score: Any = None, fail: bool = False) -> None:
        self.seen: list[tuple[float, int]] = []
        self.score = score or (lambda model, config, seed: 0.5)
        self.fail = fail

    def __call__(self, model: nn.Module, data: Data, config: Mapping[str, Any], seed: int) -> Any:
        self.seen.append((config.get("lr", 0.0), seed))
        if self.fail and seed == 1:
            raise RuntimeError("a broken disk")
        value = self.score(model, config, seed)
        return {"valid": value, "test": value}


def small(graph: Data, folder: Path, **options: Any) -> Any:
    chosen = {"grid": GRID, "seeds": 2, "out": folder, "inits": ["xavier"], **options}
    return study(graph, chosen.pop("model", GCN), chosen.pop("inits"), chosen.pop("grid"), **chosen)


def test_methods_names_and_functions_are_trained_alike(graph: Data, tmp_path: Path) -> None:
    def zeros(model: nn.Module, data: Data, seed: int) -> None:
        for parameter in model.parameters():
            nn.init.zeros_(parameter)

    state = torch.get_rng_state()
    result = small(graph, tmp_path, inits=["auto", "xavier", "default", zeros], seeds=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert result.table.methods == ("auto", "xavier", "default", "zeros")
    assert {(record.init, len(record.seeds)) for record in result.records} == {
        (name, 3) for name in result.table.methods
    }
    place = next(iter(result.table.places))
    # a network of zeros predicts one class at every node: what it tests at is that class's share
    test = graph.y[graph.test_mask]
    shares = {round(float((test == c).float().mean()), 6) for c in range(int(graph.y.max()) + 1)}
    zeroed = next(record for record in result.records if record.init == "zeros")
    assert {round(seed["test"], 6) for seed in zeroed.seeds} <= shares
    assert result.table.cell(place.dataset, "zeros", place.model).n == 3
    assert "Each method minus xavier" in str(result)
    assert result.path == tmp_path / "study.jsonl"


def test_the_same_seed_is_the_same_run(graph: Data, tmp_path: Path) -> None:
    first, second = small(graph, tmp_path / "a"), small(graph, tmp_path / "b")
    without = [
        [
            {k: v for k, v in seed.items() if k != "seconds"}
            for r in result.records
            for seed in r.seeds
        ]
        for result in (first, second)
    ]
    assert without[0] == without[1]
    assert without[0][0] != without[0][1]


def test_a_study_resumes_and_runs_only_what_is_missing(graph: Data, tmp_path: Path) -> None:
    calls = Calls()
    small(graph, tmp_path, train=calls)
    assert sorted(calls.seen) == [(0.05, 0), (0.05, 1)]
    small(graph, tmp_path, train=calls, seeds=3, grid={**GRID, "lr": [0.05, 0.1]})
    assert sorted(calls.seen[2:]) == [(0.05, 2), (0.1, 0), (0.1, 1), (0.1, 2)]


def test_failed_seeds_are_run_again_only_when_asked(graph: Data, tmp_path: Path) -> None:
    broken, mended = Calls(fail=True), Calls()
    result = small(graph, tmp_path, train=broken)
    assert result.failed == {"RuntimeError: a broken disk": 1}
    small(graph, tmp_path, train=mended)
    assert mended.seen == []
    result = small(graph, tmp_path, train=mended, retry_failed=True)
    assert mended.seen == [(0.05, 1)]
    assert result.failed == {}
    assert [seed["status"] for seed in result.records[0].seeds] == ["ok", "ok"]


def test_columns_are_chosen_on_their_own_and_compared_with_the_baseline(
    graph: Data, tmp_path: Path
) -> None:
    def score(model: Any, config: Mapping[str, Any], seed: int) -> float:
        good = 0.3 if config["num_layers"] == 4 else 0.0
        zero = float(sum(p.abs().sum() for p in model.parameters())) == 0
        return 0.2 + config["lr"] + 0.001 * seed + (good if zero else 0.0)

    def zeros(model: nn.Module) -> None:
        for parameter in model.parameters():
            nn.init.zeros_(parameter)

    def worse(model: nn.Module, config: Mapping[str, Any]) -> None:
        zeros(model) if config["num_layers"] == 4 else None

    grid = [
        {"hidden_channels": 4, "num_layers": 2, "lr": [0.1, 0.2]},
        {"hidden_channels": 4, "num_layers": 4, "lr": 0.05},
    ]
    result = small(
        graph,
        tmp_path,
        inits={"mine": worse, "Xavier": "xavier"},
        grid=grid,
        columns=["num_layers"],
        train=Calls(score),
        baseline="Xavier",
        seeds=4,
    )
    table = result.table
    assert [place.layers for place in table.places] == [2, 4]
    shallow = next(cells for place, cells in table.places.items() if place.layers == 2)
    assert all(cell.chosen.config["lr"] == 0.2 for cell in shallow)
    answers = {row.place.layers: row for row in table.contrasts}
    assert answers[2].paired.difference == 0
    assert answers[4].paired.difference == pytest.approx(30)
    # four equal differences: p = 2^(1-4) = 0.125, which Holm over two tests makes 0.25
    assert answers[4].holm == pytest.approx(0.25)
    assert answers[4].answer not in (BETTER, WORSE)


class PooledModel(nn.Module):
    """A network for whole graphs that names its sizes as PyG does."""

    def __init__(self, in_channels: int, out_channels: int, width: int = 4) -> None:
        super().__init__()
        self.conv = GCNConv(in_channels, width)
        self.head = nn.Linear(width, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.head(global_mean_pool(self.conv(x, edge_index).relu(), batch))


@pytest.mark.parametrize("size", [4, 1])
def test_lists_of_graphs_are_trained_in_batches(tmp_path: Path, size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    ring = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    graphs = [
        Data(torch.randn(4, 3, generator=generator) + 4 * (i % 2), ring, y=torch.tensor([i % 2]))
        for i in range(24)
    ]
    parts = (graphs[:12], graphs[12:18], graphs[18:])
    grid = {"width": 8, "lr": 0.1, "epochs": 20, "batch_size": size}
    inits = ["xavier", "virgo-backward+measured"]
    result = study(parts, PooledModel, inits, grid, seeds=2, out=tmp_path)
    assert all(seed["test"] == 1.0 for record in result.records for seed in record.seeds)


def test_masks_with_columns_are_splits_of_the_seeds(graph: Data) -> None:
    data = graph.clone()
    data.train_mask = torch.stack([graph.train_mask, graph.test_mask], 1)
    own = OwnData.of("mine", data)
    assert torch.equal(own.split(3)["train"], graph.test_mask)
    assert torch.equal(own.split(4)["train"], graph.train_mask)


def test_changed_functions_are_noticed(graph: Data, tmp_path: Path) -> None:
    def first(in_channels: int, out_channels: int) -> nn.Module:
        return GCN(in_channels, 4, 2, out_channels)

    def second(in_channels: int, out_channels: int) -> nn.Module:
        return GCN(in_channels, 8, 2, out_channels)

    small(graph, tmp_path, model={"net": first}, train=Calls(), grid={}, seeds=1)
    for grid in ({}, [{}, {"lr": 1}]):  # with nothing left to run, and with something
        with pytest.warns(VirgoWarning, match="another name"):
            small(graph, tmp_path, model={"net": second}, train=Calls(), grid=grid, seeds=1)


def test_changed_data_and_arguments_are_noticed(graph: Data, tmp_path: Path) -> None:
    def make(in_channels: int, out_channels: int, width: int) -> nn.Module:
        return GCN(in_channels, width, 2, out_channels)

    def run(data: Any, width: int) -> None:
        net = {"net": partial(make, width=width)}
        small(data, tmp_path, model=net, train=Calls(), grid={}, seeds=1)

    run(graph, 4)
    run(graph.clone(), 4)  # the same numbers: no warning, which would be an error here
    other = graph.clone()
    other.y = 6 - other.y
    with pytest.warns(VirgoWarning, match="your functions and data as they are now"):
        run(other, 4)
    with pytest.warns(VirgoWarning, match="your functions and data as they are now"):
        run(graph, 5)


def test_an_initialisation_sees_the_masks_of_its_own_split(graph: Data, tmp_path: Path) -> None:
    data = graph.clone()
    for mask in ("train_mask", "val_mask", "test_mask"):
        data[mask] = torch.stack([graph[mask], graph[mask].flip(0)], 1)
    seen: list[Tensor] = []

    def init(model: nn.Module, data: Data) -> None:
        seen.append(data.train_mask)

    small(data, tmp_path, inits={"mine": init}, train=Calls(), seeds=2)
    assert torch.equal(seen[0], graph.train_mask)
    assert torch.equal(seen[1], graph.train_mask.flip(0))
    assert data.train_mask.dim() == 2


def test_a_result_that_is_no_number_counts_as_diverged(graph: Data, tmp_path: Path) -> None:
    def train(model: nn.Module) -> dict[str, float]:
        return {"valid": 0.5, "test": float("nan")}

    result = small(graph, tmp_path, train=train, seeds=1)
    assert {seed["status"] for record in result.records for seed in record.seeds} == {"diverged"}


def test_a_distribution_that_does_not_fit_a_network_does_not_end_the_study(
    graph: Data, tmp_path: Path
) -> None:
    """Hidden heads that are averaged leave no pairs of units."""
    calls = Calls()
    model = partial(GAT, heads=2, concat=False)
    result = small(graph, tmp_path, model=model, inits=["virgo+mirrored", "xavier"], train=calls)
    status = {record.init: {seed["status"] for seed in record.seeds} for record in result.records}
    assert status == {"virgo+mirrored": {"refused"}, "xavier": {"ok"}}
    assert "side by side" in "".join(result.failed)


def test_a_method_that_refuses_a_network_does_not_end_the_study(
    graph: Data, tmp_path: Path
) -> None:
    calls = Calls()
    result = small(graph, tmp_path, model=GIN, inits=["xavier", "g-init", "lecun"], train=calls)
    status = {record.init: {seed["status"] for seed in record.seeds} for record in result.records}
    assert status == {"xavier": {"ok"}, "g-init": {"refused"}, "lecun": {"ok"}}
    assert len(calls.seen) == 4  # nothing was trained from what was refused
    assert {*result.failed.values()} == {2}
    assert "which sums" in "".join(result.failed)
    assert "2 of 2 seeds refused" in str(result)
    small(graph, tmp_path, model=GIN, inits=["g-init"], train=calls, retry_failed=True)
    assert len(calls.seen) == 4  # it would refuse again


def test_too_few_logits_and_empty_parts_are_found_at_once(graph: Data, tmp_path: Path) -> None:
    with pytest.raises(LayerError, match=r"expected logits of shape \[120, 7\]"):
        small(graph, tmp_path, model=lambda in_channels: GCN(in_channels, 4, 2, 1), grid={})
    empty = graph.clone()
    empty.val_mask = torch.zeros_like(graph.val_mask)
    with pytest.raises(DataError, match="got nothing to valid on"):
        small(empty, tmp_path)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"grid": {"num_layers": 2}}, OptionError, "Add hidden_channels to the grid"),
        ({"model": lambda in_channels, hidden: GCN(in_channels, 4, 2)}, OptionError, "hidden"),
        ({"inits": ["xaver"]}, OptionError, "xaver"),
        ({"inits": [3]}, OptionError, "a method's name or a function"),
        ({"columns": ["depth"]}, OptionError, "keys of the grid"),
        ({"baseline": "lecun"}, OptionError, "baseline"),
        ({"name": "a/b"}, OptionError, "names a file"),
        ({"model": lambda in_channels: 3, "grid": {}}, OptionError, "torch.nn.Module"),
        ({"train": lambda model: 0.5}, OptionError, "'valid'"),
        ({"jobs": 2, "model": {"m": lambda data: None}}, OptionError, "jobs=1"),
        ({"jobs": 10**30, "model": GCN}, OptionError, "for each of"),
        ({"seeds": float("nan")}, OptionError, "seeds: expected 1 to"),
        ({"model": None}, OptionError, "a function that makes the model"),
        ({"grid": {**GRID, "lr": []}}, OptionError, "values for 'lr'"),
    ],
)
def test_mistakes_are_found_before_anything_is_trained(
    graph: Data, tmp_path: Path, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        small(graph, tmp_path, **options)


def test_a_key_that_nobody_takes_suggests_the_nearest(graph: Data, tmp_path: Path) -> None:
    def make(in_channels: int, out_channels: int, hidden: int = 4) -> nn.Module:
        return GCN(in_channels, hidden, 2, out_channels)

    with pytest.raises(OptionError, match=r"Did you mean hidden\?"):
        small(graph, tmp_path, model=make, grid={"hiden": 8})
    with pytest.raises(OptionError, match=r"Did you mean weight_decay\?"):
        small(graph, tmp_path, model=make, grid={"weight_dekay": 0.1})
    passed_on = {"hidden_channels": 4, "num_layers": 2, "hiden_channels": 8}
    with pytest.raises(OptionError, match=r"Did you mean hidden_channels\?"):
        small(graph, tmp_path, model=GCN, grid=passed_on)  # whose **kwargs take anything


def test_data_and_outputs_that_cannot_be_trained_on_say_what_is_missing(
    graph: Data, tmp_path: Path
) -> None:
    bare = Data(graph.x, graph.edge_index, y=graph.y)
    with pytest.raises(DataError, match=r"train_mask.*--train"):
        small(bare, tmp_path)
    with pytest.raises(LayerError, match=r"logits of shape \[120, 7\]"):
        small(graph, tmp_path, model=lambda data: _Sum(), grid={})


class _Sum(nn.Module):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return x.sum()


def test_several_grids_are_joined_and_not_multiplied() -> None:
    grids = [{"a": [1, 2], "b": 3}, {"a": 1, "b": 3}, {"c": 4}]
    assert configurations(grids) == ({"a": 1, "b": 3}, {"a": 2, "b": 3}, {"c": 4})


# --- the command --------------------------------------------------------------------------------

MODULE = """
import torch, virgo
from torch_geometric.nn import GCN

def make_data():
    data = virgo.data.citation_like(num_nodes=90, seed=0)
    for i, name in enumerate(("train_mask", "val_mask", "test_mask")):
        data[name] = torch.arange(90) % 3 == i
    return data

def make_model(data, hidden_channels, num_layers):
    return GCN(data.num_features, hidden_channels, num_layers, int(data.y.max()) + 1)
"""


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_study_code.py").write_text(MODULE)
    (tmp_path / "my.toml").write_text(
        "hidden_channels = 8\nnum_layers = [2, 3]\nlr = 0.05\nepochs = 2\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("my_study_code", None)


def test_the_command_runs_prints_and_writes(
    stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "sweep --dataset my_study_code:make_data --model my_study_code:make_model --init auto "
    words += "xavier --grid my.toml --seeds 2 --columns num_layers --name mine"
    assert command(sweeping, *words.split()) == 0
    said = capsys.readouterr().out
    assert "2 layers" in said
    assert "Each method minus xavier" in said
    lines = (stranger / "out" / "mine.jsonl").read_text().splitlines()
    assert len(lines) == 4
    assert {json.loads(line)["grid"] for line in lines} == {"own"}
    assert (stranger / "out" / "mine.md").is_file()
    assert not (stranger / "results").exists()


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("--model gcn", "virgo sweep table1"),
        ("--dataset my_study_code:make_dta --model gcn", "Did you mean make_data"),
        ("--dataset no_such_code:f --model gcn", "Run where no_such_code.py is"),
        ("--dataset my_study_code:make_data --model gcm", "module:function"),
        ("--dataset my_study_code:make_data --model gcn --grid no.toml", "lr = "),
        ("--dataset my_study_code:make_data --model gcn --grid my.yaml", ".toml"),
    ],
)
def test_the_commands_errors_advise(stranger: Path, words: str, advice: str) -> None:
    with pytest.raises(OptionError, match=advice):
        command(sweeping, "sweep", *words.split())

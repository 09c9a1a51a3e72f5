"""Models whose numbers are elsewhere: on the meta device, or sharded over processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.fsdp
from kit import second_device, two_processes
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.nn import GCN, GIN, GCNConv, GraphSAGE

import virgo
from virgo.errors import LayerError
from virgo.experiments.data.neighbours import NeighborSampler


@pytest.fixture(scope="module")
def data() -> Data:
    return virgo.data.citation_like(num_nodes=120, num_features=24, words_per_node=4, seed=0)


class Tied(nn.Module):
    """The same weight twice, a norm with buffers, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([GCNConv(24, 24), GCNConv(24, 24)])
        self.convs[1].lin.weight = self.convs[0].lin.weight
        self.norm = nn.BatchNorm1d(24)
        self.head = nn.Linear(24, 7)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in self.convs:
            x = self.norm(conv(x, edge_index)).relu()
        return self.head(x)  # type: ignore[no-any-return]


def meta(kind: type[nn.Module], *args: object) -> nn.Module:
    with torch.device("meta"):
        return kind(*args)


@pytest.mark.parametrize("method", ["auto", "virgo-backward", "virgo-forward+measured"])
def test_a_model_on_the_meta_device_gets_memory_and_numbers(data: Data, method: str) -> None:
    before = torch.get_rng_state()
    models = [meta(GIN, 24, 16, 6, 7) for _ in range(2)]
    plans = [virgo.init_(model, data, method, seed=5) for model in models]
    assert torch.equal(torch.get_rng_state(), before)  # numbers came from the seed alone
    assert plans[0] == plans[1]
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert a.device.type == "cpu"
        assert torch.equal(a, b)
        assert torch.isfinite(a).all()
    assert models[0](data.x, data.edge_index).isfinite().all()
    other = meta(GIN, 24, 16, 6, 7)
    virgo.init_(other, data, method, seed=6)
    pairs = zip(models[0].parameters(), other.parameters(), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)


def test_ties_and_buffers_survive(data: Data) -> None:
    model = meta(Tied)
    virgo.init_(model, data)
    assert isinstance(model, Tied)
    assert model.convs[0].lin.weight is model.convs[1].lin.weight
    assert torch.equal(model.norm.running_var, torch.ones(24))
    assert model.norm.weight.requires_grad


def test_a_plan_leaves_the_model_on_the_meta_device(data: Data) -> None:
    model = meta(GCN, 24, 16, 3, 7)
    plan = virgo.plan(model, data, "virgo-backward")
    assert all(p.is_meta for p in model.parameters())
    built = GCN(24, 16, 3, 7)
    assert plan.variances == virgo.plan(built, data, "virgo-backward").variances


class _Stubborn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GCNConv(24, 7)
        self.scale = nn.Parameter(torch.ones(7))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index) * self.scale  # type: ignore[no-any-return]


def test_what_cannot_fill_itself_is_named_and_nothing_is_touched(data: Data) -> None:
    model = meta(_Stubborn)
    with pytest.raises(LayerError, match=r"scale: expected modules on the meta device"):
        virgo.init_(model, data)
    assert all(p.is_meta for p in model.parameters())
    with pytest.raises(LayerError, match=r"meta device\. virgo\.init_\(model, data\) gives it"):
        virgo.check(model, data)  # there is nothing to measure yet
    with pytest.raises(LayerError, match="got lazy ones"):
        virgo.init_(meta(GCN, -1, 16, 2, 7), data)


@pytest.mark.slow
def test_two_processes_have_the_same_bits(tmp_path: Path) -> None:
    """DDP and FSDP2 over gloo: every process has the bits of a process by itself."""
    if not hasattr(torch.distributed.fsdp, "fully_shard"):
        pytest.skip("fully_shard is public from PyTorch 2.6 on")
    script = Path(two_processes.__file__)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    runs = [
        subprocess.Popen([sys.executable, script, str(rank), tmp_path], env=environment)
        for rank in range(2)
    ]
    assert [run.wait(timeout=600) for run in runs] == [0, 0]
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    graph = two_processes.data()
    for method in two_processes.METHODS:
        alone = two_processes.model()
        virgo.init_(alone, graph, method)
        numbers = two_processes.numbers(alone)
        for way in ("ddp", "fsdp"):
            for result in (first, second):
                _same_bits(result[f"{way} {method}"], numbers)
        total = sum(value.numel() for value in numbers.values())
        held = first[f"held {method}"], second[f"held {method}"]
        assert sum(held) == total
        assert max(held) < 0.6 * total  # each holds its part and no more
    alone = two_processes.model("meta")
    virgo.init_(alone, graph)
    for result in (first, second):
        _same_bits(result["fsdp meta"], two_processes.numbers(alone))
    assert first["check"] == second["check"] == str(virgo.check(alone, graph).verdict)


def _same_bits(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize(
    "where", ["cpu", second_device.NAME] if second_device.AVAILABLE else ["cpu"]
)
def test_one_line_before_a_loop_over_sampled_neighbourhoods(data: Data, where: str) -> None:
    """PyG's loader with a sampler that needs no extra; ``NeighborLoader`` gives such batches."""
    sampler = NeighborSampler(data, [4, 4, 4], 0)
    loader = NodeLoader(data, sampler, input_nodes=data.train_mask, batch_size=30)
    torch.manual_seed(0)
    model = GraphSAGE(24, 16, 3, 7).to(where)
    before = torch.get_rng_state()
    plan = virgo.init_(model, loader)
    assert torch.equal(torch.get_rng_state(), before)
    assert plan.choice is not None
    optimiser = torch.optim.Adam(model.parameters())
    for batch in loader:
        there = batch.to(where)
        output = model(there.x, there.edge_index)[: there.batch_size]
        torch.nn.functional.cross_entropy(output, there.y[: there.batch_size]).backward()
        optimiser.step()
    assert all(p.device.type == where for p in model.parameters())

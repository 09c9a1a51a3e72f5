"""``summary``: PyG's shapes and parameters, and the right signal and gradient beside them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, SAGEConv

import virgo
from virgo.errors import OptionError
from virgo.report.text import show


class Two(nn.Module):
    def __init__(self, channels: int = 20) -> None:
        super().__init__()
        self.convs = nn.ModuleList([GCNConv(channels, 8), SAGEConv(8, 8)])
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(8, 7))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return self.head(x)


@pytest.fixture(scope="module")
def data() -> Data:
    return virgo.data.citation_like(num_nodes=100, num_features=20, words_per_node=5, seed=0)


def cells(table: str) -> dict[str, list[str]]:
    lines = [line.lstrip("├└─│ ") for line in table.splitlines()[2:]]
    rows = [[c.strip() for c in line.split("  ") if c.strip()] for line in lines if "  " in line]
    return {row[0]: row[1:] for row in rows}


def test_shapes_parameters_signal_and_gradient(data: Data) -> None:
    torch.manual_seed(0)
    model = Two()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    table = cells(virgo.summary(model, data))

    h = model.convs[0](data.x, data.edge_index)
    h.retain_grad()
    out = model.head(model.convs[1](h.relu(), data.edge_index).relu())
    mask = data.train_mask
    functional.cross_entropy(out[mask], data.y[mask]).backward()
    first = table["(0)GCNConv"]
    edges = list(data.edge_index.shape)
    assert first[:3] == [f"[100, 20], {edges}", "[100, 8]", f"{20 * 8 + 8}"]
    assert first[3] == show(float(h.detach().square().mean()))
    assert first[4] == show(float(h.grad.square().mean()))
    assert table["(convs)ModuleList"] == ["--", "--", "304", "--", "--"]
    assert table["(1)Linear"][:3] == ["[100, 8]", "[100, 7]", "63"]
    assert table["(0)ReLU"][2:] == ["--", "--", "--"]
    assert next(iter(table)) == "Two"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_the_shapes_are_those_of_pyg(data: Data) -> None:
    pytest.importorskip("tabulate", reason="PyG's summary needs tabulate")
    from torch_geometric.nn import summary

    model = Two()
    theirs = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in summary(model, data.x, data.edge_index).splitlines()
        if "(" in line
    ]
    ours = cells(virgo.summary(model, data))
    for name, *shapes_and_parameters in theirs:
        assert ours[name.split("─")[-1]][:3] == shapes_and_parameters


def test_options(data: Data) -> None:
    model = Two()
    assert list(cells(virgo.summary(model, data, max_depth=1))) == [
        "Two",
        "(convs)ModuleList",
        "(head)Sequential",
    ]
    silent = virgo.summary(model, data, backward=False)
    assert cells(silent)["(0)GCNConv"][4] == "-"
    assert "loss: none" in silent
    lazy = Two(-1)
    assert cells(virgo.summary(lazy, data))["(0)GCNConv"][2] == f"{20 * 8 + 8}"
    for wrong in (-1, "deep", True):
        with pytest.raises(OptionError, match="max_depth: expected a number from 0 on, got"):
            virgo.summary(model, data, max_depth=wrong)
    with pytest.raises(OptionError, match="summary: expected an option it has, got 'depth'"):
        virgo.summary(model, data, depth=2)

"""Balanced weights of graph attention."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GAT, GCN, GATConv, GATv2Conv

import virgo

DATA = virgo.data.citation_like(num_nodes=100, seed=0)


def values(model: nn.Module) -> list[Tensor]:
    return [
        (conv.lin if isinstance(conv, GATConv) else conv.lin_l).weight.detach().double()
        for conv in model.convs
    ]


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize(("width", "heads"), [(16, 1), (16, 4), (13, 1), (2, 1)])
def test_every_unit_is_balanced_in_its_layer_and_the_next(v2: bool, width: int, heads: int) -> None:
    """``||W^l_i||^2 - ||a^l_i||^2 = ||W^(l+1)_(:, i)||^2``, unit by unit, attention being zero."""
    model = GAT(DATA.num_features, width, 5, 7, heads=heads, v2=v2)
    virgo.init_(model, DATA, "gat-balanced")
    weights = values(model)
    for above, below in pairwise(weights):
        assert torch.allclose(above.square().sum(1), below.square().sum(0), rtol=1e-5)
    assert torch.allclose(weights[0].square().sum(1), torch.tensor(2.0).double(), rtol=1e-5)
    scores = [p for name, p in model.named_parameters() if "att" in name or "lin_r" in name]
    assert scores
    assert not any(bool(p.any()) for p in scores)


@pytest.mark.parametrize("v2", [False, True])
def test_pairs_make_the_network_linear(v2: bool) -> None:
    model = GAT(DATA.num_features, 16, 6, 7, heads=2, v2=v2).double()
    plan = virgo.init_(model, DATA, "gat-balanced")
    x = torch.randn(100, DATA.num_features, dtype=torch.float64)
    with torch.no_grad():
        there, back = (model.eval()(sign * x, DATA.edge_index) for sign in (1, -1))
    assert torch.allclose(there, -back, rtol=1e-9)
    assert plan.notes == ()
    odd = GAT(DATA.num_features, 13, 2, 7)
    assert "an odd hidden width" in virgo.plan(odd, DATA, "gat-balanced").notes[0]


def test_other_layers_and_residual_weights_are_refused() -> None:
    with pytest.raises(
        virgo.LayerError, match="expects only GATConv and GATv2Conv layers, got GCN"
    ):
        virgo.plan(GCN(DATA.num_features, 16, 2, 7), DATA, "gat-balanced")
    model = GAT(DATA.num_features, 16, 2, 7, residual=True)
    with pytest.raises(virgo.LayerError, match="expects no residual weight"):
        virgo.plan(model, DATA, "gat-balanced")


def test_frozen_weights_and_elu_are_noted() -> None:
    model = GAT(DATA.num_features, 16, 3, 7, act="elu")
    model.convs[1].lin.weight.requires_grad_(False)
    plan = virgo.init_(model, DATA, "gat-balanced")
    assert [row.layer for row in plan.rows] == ["convs.0", "convs.2"]
    assert any("elu is not homogeneous" in note for note in plan.notes)
    assert any("frozen" in note for note in plan.notes)


@pytest.mark.parametrize("kind", [GATConv, GATv2Conv])
def test_heads_that_are_averaged_do_not_cancel(kind: type[nn.Module]) -> None:
    """Pairs of opposite sign in opposite heads would make every hidden unit exactly zero."""

    class Averaged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = kind(DATA.num_features, 8, heads=2, concat=False)
            self.last = kind(8, 7, heads=2, concat=False)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            hidden = self.first(x, edge_index).relu()
            return self.last(hidden, edge_index)  # type: ignore[no-any-return]

    model = Averaged()
    plan = virgo.init_(model, DATA, "gat-balanced")
    assert float(model(DATA.x, DATA.edge_index).detach().std()) > 0.01
    assert "heads that are averaged have no pairs" in plan.notes[0]

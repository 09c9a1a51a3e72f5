"""The related work on models of all kinds: it runs, or says why not, and changes nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from kit.networks import hetero
from torch import Tensor, nn
from torch_geometric.nn import (
    GAT,
    GCN,
    GIN,
    PNA,
    GCNConv,
    GraphSAGE,
    HeteroConv,
    MessagePassing,
    SAGEConv,
)
from torch_geometric.utils import degree

import virgo
from virgo.related import spog

DATA = virgo.data.citation_like(num_nodes=60, seed=0)
ANYWHERE = ("orthogonal", "random-walk", "identity", "relu-slope", "lsuv")
F = DATA.num_features


class Custom(MessagePassing):
    """A layer that nobody described."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(aggr="max")
        self.lin, self.gate = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.lin(x)) * torch.sigmoid(self.gate(x))


class Mixed(nn.Module):
    """An encoder, a custom layer, a layer used twice, a parameter of its own, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.custom = nn.Linear(F, 9), Custom(9, 9)
        self.shared, self.norm = GCNConv(9, 9), nn.BatchNorm1d(9)
        self.mix = nn.Parameter(torch.zeros(9, 9))
        self.head = nn.Linear(9, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = torch.relu(self.custom(torch.relu(self.encoder(x)), edge_index))
        for _ in range(2):
            x = torch.relu(self.norm(self.shared(x, edge_index)))
        return self.head(x @ self.mix + x)


class ByHand(nn.Module):
    """Message passing without any message-passing layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(F, 10), nn.Linear(10, 7)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        operator = torch.sparse_coo_tensor(
            edge_index.flip(0),
            torch.ones(edge_index.size(1)),
            (x.size(0),) * 2,
            check_invariants=False,
        )
        return self.second(torch.relu(operator @ self.first(x)))


class Hetero(nn.Module):
    def __init__(self, data: Any) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            HeteroConv({kind: SAGEConv((-1, -1), 6) for kind in data.edge_types}) for _ in range(2)
        )

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        for conv in self.convs:
            x_dict = {k: torch.relu(x) for k, x in conv(x_dict, edge_index_dict).items()}
        return x_dict


def pna() -> nn.Module:
    degrees = torch.bincount(degree(DATA.edge_index[1], 60).long())
    return PNA(F, 10, 2, 7, aggregators=["mean", "max"], scalers=["identity"], deg=degrees)


def frozen() -> nn.Module:
    model = GCN(F, 11, 3, 7)
    model.convs[1].lin.weight.requires_grad_(False)
    return model


MODELS = {
    "gcn-1": lambda: GCN(F, 11, 1, 7),
    "gcn-32": lambda: GCN(F, 11, 32, 7),
    "gcn-norm": lambda: GCN(F, 12, 3, 7, norm="layer_norm"),
    "sage": lambda: GraphSAGE(F, 11, 4, 7, project=True),
    "gin": lambda: GIN(F, 11, 3, 7),
    "gat": lambda: GAT(F, 12, 3, 7, heads=3),
    "gatv2": lambda: GAT(F, 12, 3, 7, heads=3, v2=True, residual=True),
    "pna": pna,
    "mixed": Mixed,
    "by-hand": ByHand,
    "frozen": frozen,
    "float64": lambda: GCN(F, 11, 3, 7).double(),
    "bfloat16": lambda: GCN(F, 11, 3, 7).bfloat16(),
    "lazy": lambda: GCN(-1, 11, 3, 7),
    "compiled": lambda: torch.compile(GCN(F, 11, 3, 7), backend="eager"),
    "width-1": lambda: GCN(F, 1, 3, 1),
}


@pytest.mark.parametrize("method", ANYWHERE)
@pytest.mark.parametrize("name", MODELS)
def test_any_model_gets_every_weight(name: str, method: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    twin = copy.deepcopy(getattr(model, "_orig_mod", model))
    plan = virgo.init_(model, DATA, method, seed=4)
    bare = getattr(model, "_orig_mod", model)
    accounted = {row.weight for row in plan.rows} | set(plan.biases) | dict(plan.left_alone).keys()
    assert accounted == {n for n, _ in bare.named_parameters()}
    assert all(bool(torch.isfinite(p).all()) for p in bare.parameters())
    for row in plan.rows:
        rms = float(bare.get_parameter(row.weight).detach().double().square().mean().sqrt())
        # a small normal draw scatters; the others have their mean square exactly, bfloat16 apart
        loose = 0.5 if method in ("random-walk", "relu-slope") else 0.01
        if loose < 0.1 or bare.get_parameter(row.weight).numel() > 60:
            assert rms == pytest.approx(row.std, rel=loose)
    virgo.init_(twin, DATA, method, seed=4)
    pairs = zip(bare.parameters(), twin.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("method", ANYWHERE)
def test_a_hetero_model_gets_every_weight(method: str) -> None:
    data = hetero()
    model = Hetero(data)
    plan = virgo.init_(model, data, method)
    assert len(plan.rows) == 2 * 2 * len(data.edge_types)


@pytest.mark.parametrize("method", ["spog", "gat-balanced", "g-init", "isometric"])
def test_a_hetero_model_is_refused_where_the_method_needs_one_graph(method: str) -> None:
    data = hetero()
    model = Hetero(data)
    with pytest.raises(virgo.VirgoError):
        virgo.init_(model, data, method)


@pytest.mark.parametrize("name", ["sage", "gin", "gat", "mixed", "by-hand", "frozen", "compiled"])
def test_spog_searches_any_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spog, "STEPS", 3)
    plan = virgo.init_(MODELS[name](), DATA, "spog")
    assert plan.rows
    assert plan.measured is not None
    assert plan.measured["passes"] <= 12


def test_an_unknown_layer_is_refused_where_its_operator_counts() -> None:
    for method in ("g-init", "isometric"):
        with pytest.raises(virgo.LayerError):
            virgo.plan(Mixed(), DATA, method)


def test_a_model_without_weights_is_refused() -> None:
    model = GCN(F, 8, 2, 7)
    model.requires_grad_(False)
    with pytest.raises(virgo.LayerError, match="expected a trainable weight, got none"):
        virgo.plan(model, DATA, "orthogonal")


def test_biases_are_kept_where_that_is_asked_for() -> None:
    model = GCN(F, 8, 2, 7)
    nn.init.ones_(model.convs[0].bias)
    plan = virgo.init_(model, DATA, "lsuv+keep-bias")
    assert plan.biases == ()
    assert bool((model.convs[0].bias == 1).all())
    virgo.init_(model, DATA, "lsuv")
    assert not bool(model.convs[0].bias.any())


def test_they_stand_beside_the_others_in_a_comparison() -> None:
    names = ["kaiming-forward", "lsuv", "g-init", "orthogonal"]
    result = virgo.compare(lambda depth: GCN(F, 16, depth, 7), DATA, names, [4], 1)
    assert [name for name in names if name in str(result)] == names

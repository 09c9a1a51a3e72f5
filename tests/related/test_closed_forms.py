"""The methods that are a formula, drawn: against dense computations on small graphs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCN, GIN, GCNConv, GraphSAGE, SAGEConv
from torch_geometric.utils import to_dense_adj

import virgo

DATA = virgo.data.citation_like(num_nodes=120, seed=0)


def normalised(data: Data) -> Tensor:
    """``D^-1/2 (A + I) D^-1/2`` as a dense matrix."""
    dense = to_dense_adj(data.edge_index, max_num_nodes=data.num_nodes)[0].double().clamp(max=1)
    dense = dense.T + torch.eye(data.num_nodes)
    root = dense.sum(1).rsqrt()
    return root[:, None] * dense * root


def ring(nodes: int, reach: int) -> Tensor:
    """Every node joined to the ``reach`` nearest on both sides."""
    own = torch.arange(nodes)
    steps = [s for s in range(-reach, reach + 1) if s]
    return torch.cat([torch.stack([own, (own + s) % nodes]) for s in steps], 1)


@pytest.mark.parametrize(("width", "out"), [(16, 16), (24, 5), (3, 40)])
def test_orthogonal_has_singular_values_of_the_gain(width: int, out: int) -> None:
    model = GCNConv(width, out)
    data = Data(x=torch.rand(10, width), edge_index=ring(10, 1))
    virgo.init_(model, data, "orthogonal")
    values = torch.linalg.svdvals(model.lin.weight.double())
    reference = torch.empty(out, width, dtype=torch.float64)
    nn.init.orthogonal_(reference, nn.init.calculate_gain("relu"))
    assert torch.allclose(values, torch.linalg.svdvals(reference), rtol=1e-5)
    virgo.init_(model, data, "orthogonal", nonlinearity="linear")
    assert torch.allclose(
        torch.linalg.svdvals(model.lin.weight.double()), torch.ones(1).double(), rtol=1e-5
    )


def test_random_walk_is_normal_with_the_papers_variance() -> None:
    model = GCN(300, 200, 2, 200)
    data = Data(x=torch.rand(10, 300), edge_index=ring(10, 1))
    virgo.init_(model, data, "random-walk")
    for conv, fan_in in zip(model.convs, (300, 200), strict=True):
        scaled = conv.lin.weight.detach().double() * math.sqrt(fan_in)
        wanted = 2 * math.exp(1.2 / (fan_in - 2.4)) ** 2
        count = scaled.numel()
        # the variance of a sample variance of normal numbers is 2 / count
        assert float(scaled.square().mean()) == pytest.approx(wanted, rel=5 * math.sqrt(2 / count))
        kurtosis = float(scaled.pow(4).mean() / scaled.square().mean() ** 2)
        assert kurtosis == pytest.approx(3, abs=5 * math.sqrt(24 / count))


def test_identity_leaves_only_the_graph() -> None:
    """Of features that are not negative a GCN with identities returns ``P^L X``."""
    generator = torch.Generator().manual_seed(0)
    data = DATA.clone()
    data.x = torch.rand(120, 12, generator=generator)
    model = GCN(12, 12, 4, 12)
    virgo.init_(model, data, "identity")
    power = torch.linalg.matrix_power(normalised(data), 4)
    with torch.no_grad():
        out = model(data.x, data.edge_index)
    assert torch.allclose(out.double(), power @ data.x.double(), atol=1e-6)


@pytest.mark.parametrize(("rows", "columns"), [(7, 3), (3, 7), (4, 4), (1, 5), (5, 1)])
def test_the_identity_is_padded_with_identities(rows: int, columns: int) -> None:
    model = GCNConv(columns, rows)
    data = Data(x=torch.rand(10, columns), edge_index=ring(10, 1))
    virgo.init_(model, data, "identity")
    wanted = torch.zeros(rows, columns)
    for i in range(rows):
        for j in range(columns):
            if (i - j) % min(rows, columns) == 0:
                wanted[i, j] = 1
    assert torch.allclose(model.lin.weight, wanted)


def test_isometric_is_what_the_authors_code_computes() -> None:
    """Its lines in NumPy: row sums of the normalised adjacency plus one, then one bound."""
    adjacency = normalised(DATA).numpy()
    nodes = len(adjacency)
    d_i, d_j = adjacency.sum(1)[:, None] + 1, adjacency.sum(0)[None, :] + 1
    bound = nodes / np.sqrt((d_i * d_j).sum() * 3)
    model = GCN(DATA.num_features, 30, 3, 7)
    virgo.init_(model, DATA, "isometric")
    for conv in model.convs:
        weight = conv.lin.weight.detach()
        largest = float(weight.abs().max())
        assert largest <= bound * (1 + 1e-6)
        # the largest of n uniform numbers misses the bound by bound / n on average
        assert largest > bound * (1 - 12 / weight.numel())


@pytest.mark.parametrize("kind", [GCNConv, SAGEConv])
def test_g_init_keeps_the_signal_of_independent_neighbours(kind: type[nn.Module]) -> None:
    """On a regular graph with independent features a layer and its ReLU keep the mean square.

    Of SAGE two terms are added: a mean over 6 neighbours, which G-Init takes for 7 as it counts
    the node itself, so that it is off by less than the twentieth allowed here.
    """
    nodes, width, reach = 3000, 64, 3
    generator = torch.Generator().manual_seed(0)
    data = Data(x=torch.randn(nodes, width, generator=generator), edge_index=ring(nodes, reach))
    model = kind(width, 2000)
    virgo.init_(model, data, "g-init")
    with torch.no_grad():
        out = torch.relu(model(data.x, data.edge_index))
    assert float(out.square().mean() / data.x.square().mean()) == pytest.approx(1, rel=0.05)
    virgo.init_(model, data, "kaiming-forward")  # negative control
    with torch.no_grad():
        out = torch.relu(model(data.x, data.edge_index))
    ratio = float(out.square().mean() / data.x.square().mean())
    assert ratio == pytest.approx(1 / 7 if kind is GCNConv else 1 + 1 / 6, rel=0.05)


def test_g_init_counts_a_loop_that_is_there_once() -> None:
    looped = Data(
        x=torch.rand(10, 4), edge_index=torch.cat([ring(10, 2), torch.arange(10).repeat(2, 1)], 1)
    )
    plain = Data(x=looped.x, edge_index=ring(10, 2))
    plans = [virgo.plan(GCNConv(4, 4), data, "g-init") for data in (looped, plain)]
    assert [plan.rows[0].variance for plan in plans] == pytest.approx([2 * 5 / 4] * 2)


@pytest.mark.parametrize("method", ["g-init", "isometric"])
def test_methods_for_averages_refuse_a_sum(method: str) -> None:
    with pytest.raises(virgo.LayerError, match=r"convs\.0: expected a layer that averages"):
        virgo.plan(GIN(DATA.num_features, 16, 2, 7), DATA, method)


def test_relu_slope_is_twice_xavier() -> None:
    model = GraphSAGE(DATA.num_features, 16, 2, 7)
    ours, xavier = (virgo.plan(model, DATA, name) for name in ("relu-slope", "xavier"))
    assert ours.variances == pytest.approx({k: 4 * v for k, v in xavier.variances.items()})


def test_a_method_with_its_own_distribution_takes_no_other() -> None:
    model = GCN(DATA.num_features, 16, 2, 7)
    with pytest.raises(virgo.OptionError, match="distribution: expected none beside 'identity'"):
        virgo.plan(model, DATA, "identity+mirrored")
    with pytest.raises(virgo.OptionError, match="estimate: expected none beside 'lsuv'"):
        virgo.plan(model, DATA, "lsuv+measured")
    assert virgo.plan(model, DATA, "orthogonal", distribution="orthogonal").rows


def test_a_method_that_trains_names_its_verb() -> None:
    with pytest.raises(virgo.OptionError, match=r"call virgo.warm_start\(model, data\)"):
        virgo.plan(GCN(DATA.num_features, 16, 2, 7), DATA, "MLPInit")


@pytest.mark.parametrize(
    ("spelt", "name"), [("G-Init", "g-init"), ("IDInit", "identity"), ("SPoGInit", "spog")]
)
def test_names_of_papers_are_spellings(spelt: str, name: str) -> None:
    assert virgo.rules.parse_method(spelt) == (name, {})

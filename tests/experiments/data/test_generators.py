"""The generated citation graph: what it holds, and how hard it is."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCN, MLP
from torch_geometric.utils import degree, homophily

from virgo.data import citation_like
from virgo.errors import DataError

SMALL = {"num_nodes": 400, "num_features": 200, "num_val": 50, "num_test": 100}


@pytest.fixture(scope="module")
def generated() -> Data:
    return citation_like()


def same(one: Data, other: Data) -> bool:
    left, right = one.to_dict(), other.to_dict()
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


# --- the generated graph -------------------------------------------------------------------------


def test_generated_graph_is_a_function_of_its_seed() -> None:
    assert same(citation_like(**SMALL, seed=3), citation_like(**SMALL, seed=3))
    other = citation_like(**SMALL, seed=4)
    for name, value in citation_like(**SMALL, seed=3).to_dict().items():
        assert value.shape != other[name].shape or not torch.equal(value, other[name]), name


def test_generated_graph_neither_reads_nor_changes_global_random_state() -> None:
    np.random.seed(1)  # noqa: NPY002  the legacy state is what is watched
    random.seed(1)
    torch.manual_seed(1)
    before = (np.random.get_state()[1].copy(), random.getstate(), torch.get_rng_state())  # noqa: NPY002
    first = citation_like(**SMALL)
    assert np.array_equal(before[0], np.random.get_state()[1])  # noqa: NPY002
    assert before[1] == random.getstate()
    assert torch.equal(before[2], torch.get_rng_state())
    torch.manual_seed(2)
    np.random.seed(2)  # noqa: NPY002
    assert same(first, citation_like(**SMALL))


def test_more_features_leave_the_graph_as_it_is() -> None:
    narrow, wide = citation_like(**SMALL), citation_like(**{**SMALL, "num_features": 300})
    assert torch.equal(narrow.edge_index, wide.edge_index)
    assert torch.equal(narrow.y, wide.y)
    assert torch.equal(narrow.train_mask, wide.train_mask)


@pytest.mark.parametrize("average_degree", [2.0, 3.9, 20.0])
def test_generated_edges_are_simple_and_as_many_as_asked(average_degree: float) -> None:
    data = citation_like(**SMALL, average_degree=average_degree)
    row, col = data.edge_index
    assert data.edge_index.dtype == torch.int64
    assert data.num_edges == 2 * round(400 * average_degree / 2)
    pairs = set(zip(row.tolist(), col.tolist(), strict=True))
    assert len(pairs) == data.num_edges  # no duplicates
    assert pairs == {(j, i) for i, j in pairs}  # undirected
    assert not (row == col).any()
    assert degree(row, 400).min() >= 1
    assert data.is_coalesced()


def test_generated_degrees_have_a_heavy_tail(generated: Data) -> None:
    degrees = degree(generated.edge_index[0], generated.num_nodes)
    assert degrees.mean().item() == pytest.approx(3.9, abs=1e-3)  # rounding to whole edges
    # Without the degree correction a node has 1 + Poisson(2.9) edges: 20 is ten deviations away.
    assert degrees.max() > 60
    assert (degrees <= 2).float().mean() > 0.3


def test_generated_labels_follow_the_edges(generated: Data) -> None:
    # 5281 edges: the binomial deviation is 0.0054. Duplicates are likelier within a class and
    # count once, which costs up to another 0.015.
    assert homophily(generated.edge_index, generated.y) == pytest.approx(0.81, abs=0.03)
    none = citation_like(homophily=0.0)
    assert homophily(none.edge_index, none.y) < 0.02
    full = citation_like(homophily=1.0)
    assert homophily(full.edge_index, full.y) > 0.98  # self-loops drawn are re-drawn anywhere


def test_generated_words_are_sparse_zeros_and_ones(generated: Data) -> None:
    words = generated.x.sum(1)
    assert generated.x.dtype == torch.float32
    assert generated.x.shape == (2708, 1433)
    assert set(generated.x.unique().tolist()) == {0.0, 1.0}
    assert words.min() >= 1
    # Poisson counts: five standard errors of their mean.
    assert words.mean().item() == pytest.approx(18, abs=5 * math.sqrt(18 / 2708))
    # Zipf: the commonest word is in far more documents than the median one.
    uses = generated.x.sum(0).sort(descending=True).values
    assert uses[0] > 50 * uses[716]


def test_words_of_a_class_are_its_own(generated: Data) -> None:
    # Two halves of one class use the same words more than two classes do: the topics are there.
    first = generated.x[0::2], generated.y[0::2]
    second = generated.x[1::2], generated.y[1::2]
    profile = [torch.stack([x[y == c].mean(0) for c in range(7)]) for x, y in (first, second)]
    left, right = (p - p.mean(0) for p in profile)
    assert (left @ right.T).argmax(1).tolist() == list(range(7))


def test_generated_split_is_planetoids(generated: Data) -> None:
    masks = torch.stack([generated.train_mask, generated.val_mask, generated.test_mask])
    assert masks.dtype == torch.bool
    assert masks.sum(0).max() == 1  # disjoint
    assert masks.sum(1).tolist() == [140, 500, 1000]
    assert generated.y[generated.train_mask].bincount().tolist() == [20] * 7


@pytest.mark.parametrize("num_nodes", [20, 200, 1639])
def test_split_of_a_small_graph_keeps_its_proportions(num_nodes: int) -> None:
    data = citation_like(num_nodes=num_nodes)
    masks = torch.stack([data.train_mask, data.val_mask, data.test_mask])
    share = num_nodes / 1640
    assert masks.sum(0).max() == 1  # disjoint
    assert data.y[data.train_mask].bincount().tolist() == [max(int(20 * share), 1)] * 7
    assert int(data.val_mask.sum()) == int(500 * share)
    assert 0 < int(data.test_mask.sum()) <= int(1000 * share)


@pytest.mark.parametrize(
    ("option", "match"),
    [
        ({"num_classes": 1}, "num_classes must be at least 2, got 1"),
        ({"num_nodes": 14}, "num_nodes must be above twice num_classes, got 14"),
        ({"average_degree": 1.0}, "average_degree must be in .2, N/4., got 1.0"),
        ({"average_degree": 99.0, "homophily": 1.0}, "average_degree is too high for communities"),
        ({"homophily": 1.5}, "homophily must be a share in .0, 1., got 1.5"),
        ({"words_per_node": 101}, "words_per_node must be between 1 and half of num_features"),
        ({"num_features": 3, "words_per_node": 1}, "num_features must be at least num_classes"),
    ],
)
def test_impossible_shapes_are_named(option: dict[str, float], match: str) -> None:
    with pytest.raises(DataError, match=f"citation_like: {match}"):
        citation_like(**{**SMALL, **option})  # type: ignore[arg-type]


def accuracy(model: nn.Module, data: Data, *graph: Tensor) -> float:
    x = data.x / data.x.sum(1, keepdim=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(60):
        optimizer.zero_grad()
        out = model(x, *graph)
        F.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = model(x, *graph).argmax(1) == data.y
    return right[data.test_mask].float().mean().item()


@pytest.mark.slow
def test_generated_graph_is_as_hard_as_cora_and_needs_its_edges(generated: Data) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        gcn = accuracy(GCN(1433, 64, 2, 7, dropout=0.5), generated, generated.edge_index)
        mlp = accuracy(MLP([1433, 64, 7], dropout=0.5, norm=None), generated)
    assert 0.74 < gcn < 0.86  # about 0.80; 1000 test nodes: a standard error of 0.013
    assert mlp < gcn - 0.2
    assert mlp > 0.25  # the commonest class has 0.21

"""Preprocessing of the datasets by the paper's protocol.

Stored with the processed copy where it is slow or saves memory, done at loading where it is quick.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import degree, to_undirected

BLOCK = 2**20
"""Edges that are converted to double precision at a time."""


def row_normalised(x: Tensor) -> Tensor:
    """Normalise rows to sum to one, as DGL does for the citation graphs.

    Args:
        x: features.

    Returns:
        New features; rows of zeros stay zero.
    """
    total = x.sum(1, keepdim=True)
    return x / total.masked_fill(total == 0, 1)


def edge_means(edge_index: Tensor, edge_attr: Tensor, num_nodes: int) -> Tensor:
    """Mean features of the edges that enter each node.

    Summed in double precision block by block: no copy of ``edge_attr``, and no rounding error that
    grows with the degree.

    Args:
        edge_index: the edges.
        edge_attr: features, one row per edge.
        num_nodes: number of nodes.

    Returns:
        Features, one row per node; zero where no edge enters.
    """
    total = torch.zeros(num_nodes, edge_attr.size(1), dtype=torch.float64)
    for start in range(0, edge_attr.size(0), BLOCK):
        target = edge_index[1, start : start + BLOCK]
        total.index_add_(0, target, edge_attr[start : start + BLOCK].double())
    count = torch.bincount(edge_index[1], minlength=num_nodes).clamp(min=1)
    return (total / count.view(-1, 1)).float()


def _arxiv(data: Data) -> Data:
    data.edge_index = to_undirected(data.edge_index, num_nodes=data.num_nodes)
    return _labelled(data)


def _proteins(data: Data) -> Data:
    data.x = edge_means(data.edge_index, data.edge_attr, data.num_nodes)
    del data.edge_attr  # 2.5 GB, no longer needed
    data.y = data.y.float()  # 112 binary labels
    return data


def _labelled(data: Data) -> Data:
    data.x = data.x.float()
    data.y = data.y.view(-1)
    return data


def _citation2(data: Data) -> Data:
    data.edge_index = to_undirected(data.edge_index, num_nodes=data.num_nodes)
    data.x = data.x.float()
    return data


def _collab(data: Data) -> Data:
    data.x = data.x.float()
    data.edge_weight = data.edge_weight.view(-1).float()
    data.edge_year = data.edge_year.view(-1)
    return data


def _ppa(data: Data) -> Data:
    data.x = data.x.float()  # species, one of 58
    return data


def _with_degree(data: Data) -> Data:
    data.degree = degree(data.edge_index[0], data.num_nodes, dtype=torch.long)
    return data


def _sparse(data: Data) -> Data:
    data.x = data.x.to_sparse()  # 60 of CS's 6805 words per node: 24 MB instead of 500
    return data


BEFORE_STORING: dict[str, Callable[[Data], Data]] = {
    "ogbn-arxiv": _arxiv,
    "ogbn-proteins": _proteins,
    "ogbn-products": _labelled,
    "ogbl-collab": _collab,
    "ogbl-citation2": _citation2,
    "ogbl-ppa": _ppa,
    "imdb-b": _with_degree,
    "imdb-m": _with_degree,
    "collab": _with_degree,
    "cs": _sparse,
}
"""The loaders' ``pre_transform`` by dataset. Others have both directions of an edge already."""


class OneHotDegree:
    """Transform that adds one-hot degrees as features when a graph is accessed.

    All of COLLAB's features would take 0.7 GB, of which a batch needs little. ``degree`` is kept
    beside ``x``: a first layer may use the rows ``weight[degree]`` instead.

    Args:
        width: number of columns: the largest degree of the dataset plus one.
    """

    def __init__(self, width: int) -> None:
        self.width = width

    def __call__(self, data: Data) -> Data:
        x = torch.zeros(data.degree.size(0), self.width)
        data.x = x.scatter_(1, data.degree.view(-1, 1), 1.0)
        return data

    def __repr__(self) -> str:
        return f"OneHotDegree({self.width})"

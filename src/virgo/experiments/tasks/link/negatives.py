"""Negative pairs for training, drawn as the leaderboard's example of each dataset draws them."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from virgo.errors import DataError


class Negatives(Protocol):
    """As many negative pairs as there are positive ones."""

    def __call__(self, positive: Tensor, rng: np.random.Generator) -> Tensor:
        """``[2, pairs]`` for a batch of positive ones of the same shape."""


class Pairs:
    """Both ends uniform over all nodes; a pair may be a link by chance (collab, ppa)."""

    def __init__(self, num_nodes: int) -> None:
        self.num_nodes = num_nodes

    def __call__(self, positive: Tensor, rng: np.random.Generator) -> Tensor:
        return torch.from_numpy(rng.integers(self.num_nodes, size=tuple(positive.shape)))


class Targets(Pairs):
    """The positive pair's source with a target uniform over all nodes (citation2)."""

    def __call__(self, positive: Tensor, rng: np.random.Generator) -> Tensor:
        drawn = torch.from_numpy(rng.integers(self.num_nodes, size=positive.size(1)))
        return torch.stack([positive[0], drawn])


class NonEdges(Pairs):
    """Uniform over the ordered pairs of two nodes without a training edge (ddi).

    Stores one byte per pair of nodes: for graphs of thousands of nodes.

    Args:
        edge_index: training edges, both directions.
        num_nodes: of the graph.
    """

    def __init__(self, edge_index: Tensor, num_nodes: int) -> None:
        super().__init__(num_nodes)
        taken = np.eye(num_nodes, dtype=bool)
        taken[edge_index[0].numpy(), edge_index[1].numpy()] = True
        self.taken = taken.reshape(-1)
        if self.taken.all():
            raise DataError(
                f"negatives: expected pairs without an edge, got a complete graph of {num_nodes} "
                f"nodes. Take another graph."
            )

    def __call__(self, positive: Tensor, rng: np.random.Generator) -> Tensor:
        keys = rng.integers(self.taken.size, size=positive.size(1))
        edges = np.flatnonzero(self.taken[keys])
        while edges.size:
            keys[edges] = rng.integers(self.taken.size, size=edges.size)
            edges = edges[self.taken[keys[edges]]]
        return torch.from_numpy(np.stack(np.divmod(keys, self.num_nodes)))


def negatives_for(name: str, edge_index: Tensor, num_nodes: int) -> Negatives:
    """The negatives of an OGB dataset, by its name."""
    if name == "ogbl-ddi":
        return NonEdges(edge_index, num_nodes)
    return Targets(num_nodes) if name == "ogbl-citation2" else Pairs(num_nodes)

"""Connected samples of a graph, where the whole of it cannot be run."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch_geometric.data import Data

from virgo.errors import GraphError, OptionError
from virgo.graph.operators import Graph

Nodes = npt.NDArray[np.int64]
_FAN_OUT = 256  # neighbours of one node that a neighbourhood grows along


def sample(graph: Graph, features: Any, nodes: int, seed: int) -> Data:
    """A connected sample of about ``nodes`` nodes with all edges among them.

    Args:
        graph: in memory or on disk.
        features: the feature matrix; a memory-mapped one is read at the sampled rows only.
        nodes: how many nodes.
        seed: of the random choices.

    Returns:
        The sample, with its own numbering of nodes.

    Raises:
        GraphError: there is no edge among the sampled nodes.
    """
    chosen = grow(graph, nodes, seed)
    edge_index, weights = _among(graph, chosen)
    if not edge_index.size(1):
        raise GraphError(
            f"nodes: expected a sample with edges, got {chosen.size} nodes without any. Raise it."
        )
    x = torch.from_numpy(np.array(features[chosen], dtype=np.float32))
    return Data(x=x, edge_index=edge_index, edge_weight=weights)


def grow(graph: Graph, nodes: int, seed: int) -> Nodes:
    """The nodes of a connected sample: from random ones along random incoming edges, hop by hop.

    Args:
        graph: in memory or on disk.
        nodes: how many nodes.
        seed: of the random choices.

    Returns:
        The nodes in ascending order; all of them if there are no more than ``nodes``.

    Raises:
        OptionError: fewer than two nodes are asked for.
    """
    if nodes < 2:
        raise OptionError(f"nodes: expected at least 2, got {nodes}. Raise it.")
    rng = np.random.default_rng(seed)
    rows, total = graph.by_target, graph.num_nodes
    kept: set[int] = set()
    frontier = np.unique(rng.integers(0, total, size=1 + nodes // 64))
    while len(kept) < min(nodes, total):
        frontier = frontier[: nodes - len(kept)]
        kept.update(frontier.tolist())
        reached: set[int] = set()
        for node in frontier:
            row = rows.row(int(node))
            picks = row if row.size <= _FAN_OUT else row[rng.integers(0, row.size, _FAN_OUT)]
            reached.update(picks.tolist())
        frontier = rng.permutation(sorted(reached - kept))
        if not frontier.size:
            fresh = np.unique(rng.integers(0, total, size=1 + nodes // 64))
            frontier = rng.permutation([node for node in fresh.tolist() if node not in kept])
            if not frontier.size and 2 * len(kept) > total:  # few are left: take them in order
                frontier = np.array([n for n in range(total) if n not in kept])
    return np.array(sorted(kept))


def _among(graph: Graph, chosen: Nodes) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The edges between chosen nodes, relabelled, with their weights if there are any."""
    rows = graph.by_target
    sources, targets, weights = [], [], []
    for number, node in enumerate(chosen):
        span = slice(int(rows.pointer[node]), int(rows.pointer[node + 1]))
        row = rows.row(int(node))
        at = np.minimum(np.searchsorted(chosen, row), chosen.size - 1)
        inside = chosen[at] == row
        sources.append(at[inside])
        targets.append(np.full(int(inside.sum()), number))
        if rows.weights is not None:
            weights.append(np.asarray(rows.weights[span])[inside])
    edges = np.stack([np.concatenate(sources), np.concatenate(targets)])
    weight = torch.from_numpy(np.concatenate(weights)).float() if weights else None
    return torch.from_numpy(edges.astype(np.int64)), weight

"""A measured estimate where the whole graph cannot be run: on sampled neighbourhoods of it.

What a sample tells is off in two ways, and both are stated. Samples differ from each other: the
spread of their variances. And every sample lacks the edges that leave it, the more the smaller it
is: the change from samples of half the size, which is about what is left to come.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from virgo.errors import GraphError, OptionError

_FAN_OUT = 256  # neighbours of one node that a neighbourhood grows along


def sample(graph: Any, features: Any, nodes: int, seed: int) -> Data:
    """A connected sample of about ``nodes`` nodes with all edges among them.

    It grows from random nodes along random incoming edges, hop by hop.

    Args:
        graph: a :class:`virgo.Graph`, stored or not.
        features: the feature matrix; a memory-mapped one is read at the sampled rows only.
    """
    if nodes < 2:
        raise OptionError(f"nodes: expected at least 2, got {nodes}. Raise it.")
    chosen = _grown(graph, nodes, np.random.default_rng(seed))
    edge_index, weights = _among(graph, chosen)
    if not edge_index.size(1):
        raise GraphError(
            f"nodes: expected a sample with edges, got {chosen.size} nodes without any. Raise it."
        )
    x = torch.from_numpy(np.array(features[chosen], dtype=np.float32))
    return Data(x=x, edge_index=edge_index, edge_weight=weights)


def _grown(graph: Any, wanted: int, rng: np.random.Generator) -> Any:
    rows, total = graph.by_target, graph.num_nodes
    kept: set[int] = set()
    frontier = np.unique(rng.integers(0, total, size=1 + wanted // 64))
    while len(kept) < min(wanted, total):
        frontier = frontier[: wanted - len(kept)]
        kept.update(frontier.tolist())
        reached: set[int] = set()
        for node in frontier:
            row = rows.columns[int(rows.pointer[node]) : int(rows.pointer[node + 1])]
            picks = row if row.size <= _FAN_OUT else row[rng.integers(0, row.size, _FAN_OUT)]
            reached.update(picks.tolist())
        frontier = rng.permutation(sorted(reached - kept))
        if not frontier.size:
            fresh = np.unique(rng.integers(0, total, size=1 + wanted // 64))
            frontier = rng.permutation([node for node in fresh.tolist() if node not in kept])
            if not frontier.size and 2 * len(kept) > total:  # few are left: take them in order
                frontier = np.array([n for n in range(total) if n not in kept])
    return np.array(sorted(kept))


def _among(graph: Any, chosen: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The edges between chosen nodes, relabelled, with their weights if there are any."""
    rows = graph.by_target
    sources, targets, weights = [], [], []
    for place, node in enumerate(chosen):
        span = slice(int(rows.pointer[node]), int(rows.pointer[node + 1]))
        row = np.asarray(rows.columns[span])
        at = np.minimum(np.searchsorted(chosen, row), chosen.size - 1)
        inside = chosen[at] == row
        sources.append(at[inside])
        targets.append(np.full(int(inside.sum()), place))
        if rows.weights is not None:
            weights.append(np.asarray(rows.weights[span])[inside])
    edges = np.stack([np.concatenate(sources), np.concatenate(targets)])
    weight = torch.from_numpy(np.concatenate(weights)).float() if weights else None
    return torch.from_numpy(edges.astype(np.int64)), weight

"""One network's output at some nodes, at the cost of what those nodes can see.

The loss of a citation graph is over 140 of 2708 nodes and its features are 1 % full. A
:class:`Pass` holds all that is constant about such a computation: for every layer the operators'
rows and columns that matter, and for the first layer the operator applied to the features, in the
form that is cheapest to multiply with.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from virgo.experiments.models import Network
from virgo.experiments.tasks.fused import DENSE_ADVANTAGE, Constant, relu_dropout

Edges = tuple[Tensor, Tensor, Tensor]
"""Target, source and coefficient of every nonzero of an operator."""

#: Features are treated as sparse below this share of nonzeros.
SPARSE = 0.1


def operator_edges(name: str, edge_index: Tensor, num_nodes: int) -> Edges:
    r"""The nonzeros of an operator of :attr:`virgo.experiments.models.Network.operators`.

    >>> target, source, value = operator_edges("mean", torch.tensor([[0, 1, 2], [2, 2, 0]]), 3)
    >>> torch.stack([target, source]).tolist(), value.tolist()
    ([[2, 2, 0], [0, 1, 2]], [0.5, 0.5, 1.0])
    """
    source, target = edge_index
    own = torch.arange(num_nodes)
    if name == "self":
        return own, own, torch.ones(num_nodes)
    if name == "mean":
        degree = torch.bincount(target, minlength=num_nodes).clamp(min=1)
        return target, source, 1.0 / degree[target]
    if name == "gcn":
        # A node has one loop, be it in the data or not, as in PyG's GCNConv.
        kept = source != target
        source, target = source[kept], target[kept]
    source, target = torch.cat([source, own]), torch.cat([target, own])
    if name == "sum":
        return target, source, torch.ones(target.numel())
    root = torch.bincount(target, minlength=num_nodes).float().rsqrt()
    return target, source, root[target] * root[source]


class Graph:
    """The operators of a network on a graph, and the features, sparse if they are."""

    def __init__(self, data: Any, operators: Iterable[str]) -> None:
        self.num_nodes = int(data.num_nodes)
        self.edges = {
            name: operator_edges(name, data.edge_index, self.num_nodes) for name in operators
        }
        self.x: Tensor = data.x
        self.is_sparse = bool(torch.count_nonzero(self.x) < SPARSE * self.x.numel())

    def rows(self, name: str, targets: Tensor) -> Edges:
        """An operator's nonzeros in the rows ``targets``."""
        target, source, value = self.edges[name]
        if targets.numel() == self.num_nodes:
            return target, source, value
        wanted = torch.zeros(self.num_nodes, dtype=torch.bool)
        wanted[targets] = True
        kept = wanted[target]
        return target[kept], source[kept], value[kept]


class Pass:
    """A network's output at ``nodes``.

    Args:
        graph: what to compute on.
        num_layers: of the network.
        nodes: where the output is wanted, without repetition.
    """

    def __init__(self, graph: Graph, num_layers: int, nodes: Tensor) -> None:
        layers: list[dict[str, Constant]] = []
        targets, was_closed = nodes, False
        for _ in range(num_layers):
            rows = {name: graph.rows(name, targets) for name in graph.edges}
            seen = torch.zeros(graph.num_nodes, dtype=torch.bool)
            seen[targets] = True
            for _, source, _ in rows.values():
                seen[source] = True
            sources = seen.nonzero().view(-1)
            closed = torch.equal(targets, sources)  # all that can be seen is seen
            if closed and was_closed:
                layers.append(layers[-1])
            else:
                layers.append(_blocks(rows, targets, sources, graph.num_nodes))
            targets, was_closed = sources, closed
        layers.reverse()
        self.first = {name: _features(block, graph, targets) for name, block in layers[0].items()}
        self.hops = layers[1:]

    def __call__(self, model: Network, rng: np.random.Generator | None = None) -> Tensor:
        """The output; with dropout if ``rng`` is given."""
        h = model.combine(0, self._on_features)
        for layer, hop in enumerate(self.hops, 1):
            h = relu_dropout(h, model.dropout, rng) if rng and model.dropout else h.relu()
            h = model.combine(layer, partial(on_hidden, hop, h))
        return h

    def _on_features(self, name: str, weight: Tensor) -> Tensor:
        h = weight.t()
        for factor in reversed(self.first[name]):
            h = factor @ h
        return h


def on_hidden(hop: dict[str, Constant], h: Tensor, name: str, weight: Tensor) -> Tensor:
    """``P H W^T`` in the cheaper order."""
    block = hop[name]
    fan_out, fan_in = weight.shape
    rows, columns = block.matrix.shape
    gemm = fan_in * fan_out / DENSE_ADVANTAGE
    if block.work * fan_in + rows * gemm <= block.work * fan_out + columns * gemm:
        return (block @ h) @ weight.t()
    return block @ (h @ weight.t())


def _blocks(
    rows: dict[str, Edges], targets: Tensor, sources: Tensor, num_nodes: int
) -> dict[str, Constant]:
    """Each operator's rows ``targets`` and columns ``sources``, renumbered."""
    at_target = torch.empty(num_nodes, dtype=torch.long)
    at_target[targets] = torch.arange(targets.numel())
    at_source = torch.empty(num_nodes, dtype=torch.long)
    at_source[sources] = torch.arange(sources.numel())
    shape = (targets.numel(), sources.numel())
    blocks = {}
    for name, (target, source, value) in rows.items():
        blocks[name] = Constant.sparse(at_target[target], at_source[source], value, shape)
    return blocks


def _features(block: Constant, graph: Graph, nodes: Tensor) -> tuple[Constant, ...]:
    """``P X`` as the factors that are cheapest to multiply a weight by from the left."""
    x = graph.x if nodes.numel() == graph.num_nodes else graph.x[nodes]
    if graph.is_sparse:
        row, col = x.nonzero().unbind(1)
        if (block.work + row.numel()) * DENSE_ADVANTAGE < block.matrix.size(0) * x.size(1):
            return block, Constant.sparse(row, col, x[row, col], (x.size(0), x.size(1)))
    return (Constant.dense(block.matrix @ x),)

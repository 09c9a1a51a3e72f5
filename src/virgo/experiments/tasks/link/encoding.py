"""Embeddings of all nodes of a graph, or of a sampled one, for a decoder to go on with.

Node classification needs some nodes' outputs from constant features (``tasks/passes.py``).
A link encoder needs every node's, and its input may be learned: then nothing of the first layer is
constant but its operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from virgo.experiments.models import Network
from virgo.experiments.tasks.fused import Constant, csr, relu_dropout
from virgo.experiments.tasks.link.blocks import by_degree, constant
from virgo.experiments.tasks.passes import Edges, on_hidden, operator_edges

Hop = Mapping[str, Constant | int]
"""A layer's operators; the operator "self" is the number of leading rows that it keeps."""


def weighted_edges(
    name: str, edge_index: Tensor, num_nodes: int, edge_weight: Tensor | None = None
) -> Edges:
    r"""The nonzeros of an operator, with edge weights where the operator has a place for them.

    GCN's does: :math:`\hat d_i = \sum_j \hat w_{ij}` with one loop of weight 1 a node, or of the
    weight that it has in the data. A mean over neighbours does not, as in OGB's examples.

    >>> edges, weight = torch.tensor([[0, 1], [1, 0]]), torch.tensor([3.0, 3.0])
    >>> weighted_edges("gcn", edges, 2, weight)[2].tolist()
    [0.75, 0.75, 0.25, 0.25]
    """
    if name != "gcn" or edge_weight is None:
        return operator_edges(name, edge_index, num_nodes)
    source, target = edge_index
    own, loop = torch.arange(num_nodes), torch.ones(num_nodes)
    is_loop = source == target
    loop[source[is_loop]] = edge_weight[is_loop]
    source, target = torch.cat([source[~is_loop], own]), torch.cat([target[~is_loop], own])
    weight = torch.cat([edge_weight[~is_loop], loop])
    degree = torch.zeros(num_nodes).index_add_(0, target, weight)
    root = torch.where(degree > 0, degree.rsqrt(), 0.0)
    return target, source, root[target] * weight * root[source]


class Encoding:
    """What is constant about an encoder's pass over one graph.

    Args:
        first: the first layer's operators applied to constant features, or ``None``.
        hops: operators of the layers; without the first one's if there is ``first``.
        order: which node each row of the output is, ``None`` if they are in order.
    """

    def __init__(
        self, first: Mapping[str, Constant] | None, hops: list[Hop], order: Tensor | None = None
    ) -> None:
        self.first, self.hops, self.order = first, hops, order
        self._rank = None if order is None else torch.argsort(order)

    @classmethod
    def whole(
        cls, data: Any, operators: tuple[str, ...], num_layers: int, form: str = "auto"
    ) -> Encoding:
        """Of all nodes of a graph; with constant features if ``data.x`` has some.

        Args:
            data: a graph.
            operators: of the encoder.
            num_layers: of the encoder.
            form: of the operators; see :func:`virgo.experiments.tasks.link.blocks.constant`.
        """
        number, edge_index = int(data.num_nodes), data.edge_index
        order = by_degree(edge_index, number) if form in ("auto", "blocked") else None
        if order is not None:
            edge_index = torch.argsort(order)[edge_index]
        hop: dict[str, Constant | int] = {"self": number}
        for name in set(operators) - {"self"}:
            edges = weighted_edges(name, edge_index, number, data.get("edge_weight"))
            hop[name] = constant(*edges, (number, number), form=form)
        if data.x is None:
            return cls(None, [hop] * num_layers, order)
        x = data.x if order is None else data.x[order]
        first = {name: Constant.dense(_times(hop[name], x)) for name in operators}
        return cls(first, [hop] * (num_layers - 1), order)

    @classmethod
    def sampled(
        cls, out: Any, operators: tuple[str, ...], num_layers: int, x: Tensor | None
    ) -> Encoding:
        """Of the seeds of a neighbour sample, each layer on the nodes that the next one needs.

        Args:
            out: what :class:`virgo.experiments.data.neighbours.NeighborSampler` returned.
            operators: of the encoder.
            num_layers: of the encoder.
            x: the sampled nodes' features, ``None`` if they are learned.
        """
        edge_index = torch.stack([out.row, out.col])
        nodes = np.cumsum(out.num_sampled_nodes).tolist()
        edges = np.cumsum([0, *out.num_sampled_edges]).tolist()
        hops: list[Hop] = []
        first = None
        for layer in range(num_layers):
            inputs, targets = nodes[num_layers - layer], nodes[num_layers - layer - 1]
            kept = edge_index[:, : edges[num_layers - layer]]
            hop: dict[str, Constant | int] = {"self": targets}
            for name in set(operators) - {"self"}:
                target, source, value = operator_edges(name, kept, inputs)
                row = target < targets
                found = (target[row], source[row], value[row], (targets, inputs))
                if layer == 0 and x is not None:
                    hop[name] = Constant.dense(csr(*found) @ x)
                else:
                    hop[name] = Constant.sparse(*found)
            if layer == 0 and x is not None:
                first = {name: _features(hop[name], x) for name in operators}
            else:
                hops.append(hop)
        return cls(first, hops)

    def __call__(
        self, encoder: Network, learned: Tensor | None, rng: np.random.Generator | None = None
    ) -> Tensor:
        """The embeddings, rows in :attr:`order`; with dropout if ``rng`` is given.

        Args:
            encoder: whose operators these are.
            learned: the input where there are no constant features, in the nodes' own order.
            rng: of the dropout masks.
        """
        hops = self.hops
        if self.first is not None:
            h = encoder.combine(0, self._on_features)
        else:
            assert learned is not None
            h = learned if self.order is None else _permuted(learned, self.order, self._rank)
            h = encoder.combine(0, partial(_on_nodes, hops[0], h))
            hops = hops[1:]
        for layer, hop in enumerate(hops, 1):
            h = relu_dropout(h, encoder.dropout, rng) if rng and encoder.dropout else h.relu()
            h = encoder.combine(layer, partial(_on_nodes, hop, h))
        return h

    def rows(self, nodes: Tensor) -> Tensor:
        """Where the embeddings of ``nodes`` are."""
        return nodes if self._rank is None else self._rank[nodes]

    def _on_features(self, name: str, weight: Tensor) -> Tensor:
        assert self.first is not None
        return self.first[name] @ weight.t()


def _on_nodes(hop: Hop, h: Tensor, name: str, weight: Tensor) -> Tensor:
    """``P H W^T``."""
    operator = hop[name]
    if isinstance(operator, int):
        return (h if operator == h.size(0) else h[:operator]) @ weight.t()
    return on_hidden({name: operator}, h, name, weight)


def _times(operator: Constant | int, x: Tensor) -> Tensor:
    return x[:operator] if isinstance(operator, int) else operator.matrix @ x


def _features(operator: Constant | int, x: Tensor) -> Constant:
    """Features with an operator already applied to them."""
    return Constant.dense(x[:operator]) if isinstance(operator, int) else operator


class _Permute(torch.autograd.Function):
    """Rows in another order; its gradient takes them back, where PyTorch would add them up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, rank: Tensor) -> Tensor:
        ctx.rank = rank
        return x[order]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0][ctx.rank], None, None


def _permuted(x: Tensor, order: Tensor, rank: Tensor | None) -> Tensor:
    result: Tensor = _Permute.apply(x, order, rank)  # type: ignore[no-untyped-call]
    return result

r"""The message-passing layers of the paper's networks, each written once.

A layer is a sum of terms :math:`P H W` and a bias. Its class here says which operators :math:`P` it
has, how PyG's layer is made, and how its output follows from the products of its terms; networks
for nodes (:mod:`.network`) and for whole graphs (:mod:`.pooled`) inherit it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, GINConv, SAGEConv

from virgo.graph.operators import Graph, Operator, Vector

Apply = Callable[[str, Tensor], Tensor]
"""``apply(operator, weight)`` is :math:`P H W^\\top` for one of a layer's operators, computed in
whatever way is cheapest for the caller."""

Entries = tuple[Tensor, Tensor, Tensor]
"""Row (target), column (source) and coefficient of every nonzero of an operator."""


def nonzeros(
    operator: Operator, num_nodes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], Vector]:
    """The nonzeros of an operator, row by row, the diagonal term last.

    Args:
        operator: one hop over a graph, or a diagonal.
        num_nodes: the number of nodes.

    Returns:
        Rows, columns and values. Repeated edges, and a self-loop beside the diagonal term, are
        entries of their own.
    """
    every = np.arange(num_nodes)
    rows, columns, values = every, every, np.broadcast_to(operator.loop, num_nodes)
    if operator.graph is not None:
        edges = operator.graph.by_target
        weights = np.ones(edges.num_edges) if edges.weights is None else edges.weights
        rows = np.concatenate([np.repeat(every, np.diff(edges.pointer)), every])
        columns = np.concatenate([edges.columns.astype(np.int64), every])
        values = np.concatenate([weights, values])
    left, right = (np.broadcast_to(s, num_nodes) for s in (operator.left, operator.right))
    values = left[rows] * values * right[columns]
    kept = values != 0
    return rows[kept], columns[kept], values[kept]


def operator_entries(
    name: str, edge_index: Tensor, num_nodes: int, edge_weight: Tensor | None = None
) -> Entries:
    """The nonzeros of one of a layer's operators, as :class:`virgo.graph.operators.Graph` has it.

    Args:
        name: ``"gcn"``, ``"mean"``, ``"sum"`` (with the node itself) or ``"self"``.
        edge_index: ``[2, E]``, sources first.
        num_nodes: the number of nodes.
        edge_weight: one number per edge; only GCN's operator has a place for them, as in OGB's
            examples.

    Returns:
        Rows, columns and float32 values.

    >>> edges, weight = torch.tensor([[0, 1], [1, 0]]), torch.tensor([3.0, 3.0])
    >>> operator_entries("gcn", edges, 2, weight)[2].tolist()
    [0.75, 0.75, 0.25, 0.25]
    """
    graph = Graph(edge_index, num_nodes, edge_weight if name == "gcn" else None)
    make: dict[str, Callable[[], Operator]] = {
        "gcn": graph.gcn,
        "mean": graph.mean,
        "sum": partial(graph.sum, 1.0),
        "self": graph.identity,
    }
    rows, columns, values = nonzeros(make[name](), num_nodes)
    return torch.from_numpy(rows), torch.from_numpy(columns), torch.from_numpy(values).float()


class GCNLayers:
    r""":math:`H' = \hat D^{-1/2} (A + I) \hat D^{-1/2} H W + b` (Kipf and Welling, 2017)."""

    operators: ClassVar[tuple[str, ...]] = ("gcn",)

    @staticmethod
    def make_conv(in_channels: int, out_channels: int, hidden_channels: int) -> nn.Module:
        """PyG's layer."""
        conv: nn.Module = GCNConv(in_channels, out_channels)
        return conv

    @staticmethod
    def mix(conv: Any, apply: Apply) -> Tensor:
        """The layer's output from the products of its terms."""
        out: Tensor = apply("gcn", conv.lin.weight) + conv.bias
        return out


class SAGELayers:
    r""":math:`H' = D^{-1} A H W_l + H W_r + b` (GraphSAGE with mean, Hamilton et al., 2017)."""

    operators: ClassVar[tuple[str, ...]] = ("mean", "self")

    @staticmethod
    def make_conv(in_channels: int, out_channels: int, hidden_channels: int) -> nn.Module:
        """PyG's layer."""
        conv: nn.Module = SAGEConv(in_channels, out_channels)
        return conv

    @staticmethod
    def mix(conv: Any, apply: Apply) -> Tensor:
        """The layer's output from the products of its terms."""
        neighbours = apply("mean", conv.lin_l.weight) + conv.lin_l.bias
        out: Tensor = neighbours + apply("self", conv.lin_r.weight)
        return out


class GINLayers:
    r""":math:`H' = \mathrm{ReLU}((A + I) H W_1 + b_1) W_2 + b_2` (GIN, Xu et al., 2019; eps = 0).

    Networks with BatchNorm between layers have one before this ReLU, too (``norm``).
    """

    operators: ClassVar[tuple[str, ...]] = ("sum",)
    norm: ClassVar[bool] = False

    @classmethod
    def make_conv(cls, in_channels: int, out_channels: int, hidden_channels: int) -> nn.Module:
        """PyG's layer."""
        first, last = (
            nn.Linear(in_channels, hidden_channels),
            nn.Linear(hidden_channels, out_channels),
        )
        norm = [nn.BatchNorm1d(hidden_channels)] if cls.norm else []
        conv: nn.Module = GINConv(nn.Sequential(first, *norm, nn.ReLU(), last))
        return conv

    @staticmethod
    def mix(conv: Any, apply: Apply) -> Tensor:
        """The layer's output from the product of its one term, whatever follows in its MLP."""
        first, *rest = conv.nn
        x: Tensor = apply("sum", first.weight) + first.bias
        for module in rest:
            x = module(x)
        return x

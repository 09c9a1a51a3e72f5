r"""The message-passing layers of the paper's networks, each written once.

A layer is a sum of terms :math:`P H W` and a bias. Its class here says which operators :math:`P` it
has, how PyG's layer is made, and how its output follows from the products of its terms; networks
for nodes (:mod:`.network`) and for whole graphs (:mod:`.pooled`) inherit it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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
    rows = columns = every = np.arange(num_nodes)
    values: Vector = np.broadcast_to(np.asarray(operator.loop, dtype=np.float64), num_nodes)
    if isinstance(operator.graph, Graph):
        edges = operator.graph.by_target
        weights = np.ones(edges.num_edges) if edges.weights is None else edges.weights
        diagonal = every if np.any(operator.loop) else every[:0]
        rows = np.concatenate([np.repeat(every, np.diff(edges.pointer)), diagonal])
        columns = np.concatenate([edges.columns.astype(np.int64), diagonal])
        values = np.concatenate([weights, values[: diagonal.size]])
    values = _at(operator.left, rows) * values * _at(operator.right, columns)
    if values.all():
        return rows, columns, values
    kept = values != 0
    return rows[kept], columns[kept], values[kept]


def _at(scale: Vector | float, nodes: NDArray[np.int64]) -> Vector | float:
    return scale if isinstance(scale, float) else scale[nodes]


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


class MessageLayers(ABC):
    """What a network knows of its message-passing layers."""

    #: The operators of a layer's terms: "gcn", "mean", "sum" (with the node itself) or "self".
    operators: ClassVar[tuple[str, ...]]

    @classmethod
    @abstractmethod
    def make_conv(cls, in_channels: int, out_channels: int, hidden_channels: int) -> nn.Module:
        """PyG's layer; ``hidden_channels`` is for one with layers inside it."""

    @staticmethod
    @abstractmethod
    def mix(conv: Any, apply: Apply) -> Tensor:
        """One layer's output from the products of its terms."""


class GCNLayers(MessageLayers):
    r""":math:`H' = \hat D^{-1/2} (A + I) \hat D^{-1/2} H W + b` (Kipf and Welling, 2017)."""

    operators = ("gcn",)

    @classmethod
    def make_conv(cls, in_channels: int, out_channels: int, hidden_channels: int) -> nn.Module:
        return GCNConv(in_channels, out_channels)  # type: ignore[no-any-return]

    @staticmethod
    def mix(conv: Any, apply: Apply) -> Tensor:
        out: Tensor = apply("gcn", conv.lin.weight) + conv.bias
        return out


class SAGELayers(MessageLayers):
    r""":math:`H' = D^{-1} A H W_l + H W_r + b` (GraphSAGE with mean, Hamilton et al., 2017)."""

    operators = ("mean", "self")

    @classmethod
    def make_conv(cls, in_channels: int, out_channels: int, hidden_channels: int) -> nn.Module:
        return SAGEConv(in_channels, out_channels)  # type: ignore[no-any-return]

    @staticmethod
    def mix(conv: Any, apply: Apply) -> Tensor:
        neighbours = apply("mean", conv.lin_l.weight) + conv.lin_l.bias
        out: Tensor = neighbours + apply("self", conv.lin_r.weight)
        return out


class GINLayers(MessageLayers):
    r""":math:`H' = \mathrm{ReLU}((A + I) H W_1 + b_1) W_2 + b_2` (GIN, Xu et al., 2019; eps = 0).

    Networks with BatchNorm between layers have one before this ReLU, too (``norm``).
    """

    operators = ("sum",)
    norm: ClassVar[bool] = False

    @classmethod
    def make_conv(cls, in_channels: int, out_channels: int, hidden_channels: int) -> nn.Module:
        first, last = (
            nn.Linear(in_channels, hidden_channels),
            nn.Linear(hidden_channels, out_channels),
        )
        norm = [nn.BatchNorm1d(hidden_channels)] if cls.norm else []
        mlp = nn.Sequential(first, *norm, nn.ReLU(), last)
        return GINConv(mlp)  # type: ignore[no-any-return]

    @staticmethod
    def mix(conv: Any, apply: Apply) -> Tensor:
        first, *rest = conv.nn
        x: Tensor = apply("sum", first.weight) + first.bias
        for module in rest:
            x = module(x)
        return x

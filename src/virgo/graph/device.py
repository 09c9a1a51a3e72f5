"""A graph in a device's memory: the operators of :mod:`virgo.graph.operators` over tensors there.

Vectors are tensors on the device, in float64 where it has that; a hop is the device's own sparse
product. Nothing but single numbers comes back to the host.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from virgo.devices import has_csr, squared_sum, total, widest
from virgo.graph import vectors
from virgo.graph.operators import Graph, GraphOperators, Operator, check_edges
from virgo.graph.vectors import AnyVector, Extent


def graph_of(
    edge_index: Tensor,
    num_nodes: int,
    edge_weight: Tensor | None = None,
    *,
    keep_loops: bool = True,
) -> Graph:
    """The graph of some edges where they are: see :class:`virgo.graph.operators.Graph`."""
    kind = Graph if edge_index.device.type == "cpu" else DeviceGraph
    return kind(edge_index, num_nodes, edge_weight, keep_loops=keep_loops)


def vector_of(values: Tensor) -> AnyVector:
    """Numbers of nodes as operators take them: an array on the CPU, a tensor on a device."""
    values = values.detach().to(widest(values))
    return values.numpy() if values.device.type == "cpu" else values


@dataclass(frozen=True)
class DeviceRows:
    """The edges by row, as a CSR matrix where the device multiplies one."""

    rows: Tensor
    columns: Tensor
    weights: Tensor | None
    num_rows: int

    @cached_property
    def _matrix(self) -> Tensor:
        order = torch.argsort(self.rows, stable=True)
        counts = torch.bincount(self.rows, minlength=self.num_rows)
        pointer = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        wide = widest(self.rows)
        ones = torch.ones(order.numel(), dtype=wide, device=order.device)
        values = ones if self.weights is None else self.weights[order]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
            return torch.sparse_csr_tensor(
                pointer,
                self.columns[order],
                values,
                (self.num_rows, self.num_rows),
                check_invariants=False,
            )

    def hop(self, x: Tensor, left: Tensor | float = 1.0, loop: Tensor | float = 0.0) -> Tensor:
        """``diag(left) (M + diag(loop)) x``."""
        if has_csr(x.device):
            arrived = self._matrix @ x
        else:
            sent = x[self.columns]
            if self.weights is not None:
                sent = scale(self.weights, sent)
            arrived = torch.zeros_like(x).index_add_(0, self.rows, sent)
        if isinstance(loop, Tensor) or loop:
            arrived = arrived + scale(loop, x)
        return scale(left, arrived)


class DeviceGraph(Graph):
    """A graph whose edges are in a device's memory; see :class:`virgo.graph.operators.Graph`.

    Args:
        edge_index: ``[2, E]``, sources first.
        num_nodes: the number of nodes.
        edge_weight: one number per edge, or none.
        keep_loops: what adding self-loops means.
    """

    _sources: Any
    _targets: Any
    _weights: Any

    def __init__(
        self,
        edge_index: Tensor,
        num_nodes: int,
        edge_weight: Tensor | None = None,
        *,
        keep_loops: bool = True,
    ) -> None:
        index = edge_index.detach()
        check_edges(index, num_nodes, edge_weight)
        GraphOperators.__init__(
            self,
            num_nodes,
            index.size(1),
            is_weighted=edge_weight is not None,
            keep_loops=keep_loops,
        )
        self.device, self.dtype = index.device, widest(index)
        self._sources, self._targets = index[0].long(), index[1].long()
        self._weights = None
        if edge_weight is not None:
            self._weights = edge_weight.detach().reshape(-1).to(index.device, self.dtype)

    @cached_property
    def by_target(self) -> Any:
        return DeviceRows(self._targets, self._sources, self._weights, self.num_nodes)

    def _zeros(self) -> Tensor:
        return torch.zeros(self.num_nodes, dtype=self.dtype, device=self.device)

    def _counted(self, at: Tensor) -> Tensor:  # type: ignore[override]
        ones = torch.ones(at.numel(), dtype=self.dtype, device=self.device)
        return self._zeros().index_add_(0, at, ones)

    @property
    def in_count(self) -> Any:
        return self._counted(self._targets)

    @property
    def in_weight(self) -> Any:
        return self.in_count if self._weights is None else self.by_target.hop(self.ones())

    @cached_property
    def _loops(self) -> Any:
        return (self._sources == self._targets).nonzero()[:, 0]

    @property
    def has_loops(self) -> bool:
        return bool(self._loops.numel())

    def loop_weights(self) -> tuple[Any, Any]:
        at = self._targets[self._loops]
        if self._weights is None:
            count = self._counted(at)
            return count, count
        weights = self._weights[self._loops]
        # the last self-loop is that of the highest number: a device writes in any order
        latest = torch.full_like(self._zeros(), -1, dtype=torch.long)
        number = torch.arange(at.numel(), device=self.device)
        latest = latest.scatter_reduce(0, at, number, "amax")
        last = torch.cat([weights, weights.new_zeros(1)])[latest]
        return self._zeros().index_add_(0, at, weights), last

    def missing_loops(self, default: float) -> Any:
        summed, last = self.loop_weights()
        if not self.is_weighted:
            return 1 - summed
        counted: Any = self.loop_count
        return torch.where(counted > 0, last, default) - summed

    def where(self, mask: Any) -> DeviceGraph:
        sources, targets = self._sources[mask], self._targets[mask]
        changes = {"_weights": None, "is_weighted": False, "num_edges": sources.numel()}
        return self._like(_sources=sources, _targets=targets, **changes)

    @staticmethod
    def at_least_one(values: Any) -> Any:
        return values.clamp(min=1.0)

    @staticmethod
    def inverse(values: Any) -> Any:
        return values.clamp(min=1.0).reciprocal()

    @staticmethod
    def inverse_root(values: Any) -> Any:
        root = values.pow(-0.5)
        return root.masked_fill(root.isinf(), 0.0)

    def ones(self) -> Any:
        return self._zeros() + 1.0

    def signal(self, given: Any) -> Any:
        """One number for every node, from an array or the path of a ``.npy`` file."""
        if isinstance(given, Tensor) and given.device == self.device:
            return given.detach().to(self.dtype)
        column = torch.from_numpy(vectors.column(given, self.num_nodes))
        return column.to(self.device, self.dtype)

    @staticmethod
    def multiply(operator: Operator, x: Any, overwrite: bool, out: Any) -> Any:
        """``operator`` on a tensor; ``x`` stays as it is."""
        left, right = operator.sides
        for _ in range(operator.hops):
            inner = scale(right, x)
            if operator.graph is None:
                x = scale(left, scale(operator.loop, inner))
            else:
                graph: Any = operator.graph
                rows = graph.by_source if operator.transposed else graph.by_target
                x = rows.hop(inner, left, operator.loop)
        return x


def scale(factor: Tensor | float, x: Tensor) -> Tensor:
    """``diag(factor) x``."""
    if isinstance(factor, Tensor):
        return x * (factor[:, None] if x.dim() == 2 else factor)
    return x if factor == 1.0 else x * factor


# --- what hops ask of a vector (:mod:`virgo.graph.vectors`) ---------------------------------


@vectors.squared_norm.register
def _(x: Tensor) -> float:
    return squared_sum(x)


@vectors.scaled.register
def _(x: Tensor, factor: float) -> AnyVector:
    return x * factor


@vectors.magnitudes.register
def _(x: Tensor) -> AnyVector:
    return x.abs()


@vectors.extent.register
def _(x: Tensor) -> Extent:
    return Extent(float(x.min()), total(x), total(x.abs()))


@vectors._root_of_squares.register
def _(first: Tensor, parts: Sequence[Tensor]) -> AnyVector:
    return torch.stack([part.square() for part in parts]).sum(0).sqrt()


@vectors._signed_sum.register
def _(first: Tensor, parts: Sequence[Tensor], signs: Sequence[Any]) -> AnyVector:
    factors = [torch.as_tensor(s, dtype=first.dtype).to(first.device) for s in signs]
    return torch.stack([p * s for p, s in zip(parts, factors, strict=True)]).sum(0)

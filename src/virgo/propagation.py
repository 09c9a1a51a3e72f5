r"""Operators on a graph: what message passing does to one number per node.

Virgo never needs the adjacency as a matrix with values. Every operator here has the shape

.. math:: P = \mathrm{diag}(l)\,\bigl(A + \mathrm{diag}(s)\bigr)\,\mathrm{diag}(r)

with the same :math:`A` (rows are targets), so all layers of all kinds share one compressed copy
of the edges and a handful of vectors. Cost of a hop: one pass over the edges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

Vector = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64] | npt.NDArray[np.int32]


@dataclass(frozen=True)
class Counted:
    """Where each row's edges begin, and whether they lie in that order already."""

    pointer: npt.NDArray[np.int64]
    is_sorted: bool

    @classmethod
    def of(cls, rows: Indices, num_rows: int) -> Counted:
        from . import _kernels

        pointer = np.zeros(num_rows + 1, dtype=np.int64)
        is_sorted = _kernels.count(rows, pointer)
        np.cumsum(pointer, out=pointer)
        return cls(pointer, is_sorted)


@dataclass(frozen=True)
class Compressed:
    """Compressed rows: 64-bit pointers, 32-bit columns where they fit, weights only if given."""

    pointer: npt.NDArray[np.int64]
    columns: Indices
    weights: Vector | None
    blocks: npt.NDArray[np.int64]

    @classmethod
    def build(
        cls,
        rows: Indices,
        columns: Indices,
        num_rows: int,
        weights: Vector | None,
        counted: Counted | None = None,
    ) -> Compressed:
        """Counting sort of the edges by row: linear, stable, skipped where already sorted."""
        from . import _kernels

        counted = counted or Counted.of(rows, num_rows)
        pointer = counted.pointer
        narrow: Any = np.int32 if num_rows <= np.iinfo(np.int32).max else np.int64
        if counted.is_sorted:
            placed: Indices = columns.astype(narrow)
        else:
            placed = np.empty(columns.size, dtype=narrow)
            _kernels.place(rows, columns, pointer[:-1].copy(), placed)
            if weights is not None:
                unplaced, weights = weights, np.empty_like(weights)
                _kernels.place(rows, unplaced, pointer[:-1].copy(), weights)
        return cls(pointer, placed, weights, _kernels.balanced_blocks(pointer))

    def __matmul__(self, x: Vector) -> Vector:
        """The product with a vector, or column by column with a matrix."""
        from . import _kernels

        if x.ndim == 2:
            return np.stack([self @ column for column in np.ascontiguousarray(x.T)], axis=1)
        out: Vector = _kernels.product(self.pointer, self.columns, self.weights, x, self.blocks)
        return out


class Graph:
    """The edges of a graph, and the operators that layers apply over them.

    Args:
        edge_index: ``[2, E]``, sources first.
        num_nodes: the number of nodes.
        edge_weight: one number per edge, or none.
        keep_loops: what adding self-loops means. PyG keeps the weight of a self-loop that is
            already there when it is handed an ``edge_index`` (``True``), and adds a second one
            when it is handed a sparse adjacency (``False``).
    """

    def __init__(
        self,
        edge_index: Tensor,
        num_nodes: int,
        edge_weight: Tensor | None = None,
        *,
        keep_loops: bool = True,
    ) -> None:
        index = edge_index.detach().cpu()
        self._sources: Indices = np.ascontiguousarray(index[0].numpy())
        self._targets: Indices = np.ascontiguousarray(index[1].numpy())
        self._weights: Vector | None = None
        if edge_weight is not None:
            self._weights = edge_weight.detach().cpu().double().reshape(-1).numpy()
        self.num_nodes = num_nodes
        self.keep_loops = keep_loops
        self._made: dict[tuple[object, ...], Operator] = {}

    def _like(self, sources: Indices, targets: Indices, weights: Vector | None) -> Graph:
        """Another graph on the same nodes, sharing what it can."""
        other = Graph.__new__(Graph)
        other._sources, other._targets, other._weights = sources, targets, weights
        other.num_nodes, other.keep_loops, other._made = self.num_nodes, self.keep_loops, {}
        return other

    def _once(self, key: tuple[object, ...], make: Callable[[], Operator]) -> Operator:
        """One operator for all layers of one kind: a deep network holds its vectors once."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    @property
    def num_edges(self) -> int:
        return int(self._sources.size)

    @property
    def is_weighted(self) -> bool:
        return self._weights is not None

    @cached_property
    def _counted(self) -> Counted:
        return Counted.of(self._targets, self.num_nodes)

    @cached_property
    def by_target(self) -> Compressed:
        """Rows are targets: the operator of a forward pass."""
        return Compressed.build(
            self._targets, self._sources, self.num_nodes, self._weights, self._counted
        )

    @cached_property
    def by_source(self) -> Compressed:
        """Rows are sources: its transpose, the operator of a backward pass."""
        return Compressed.build(
            self._sources, self._targets, self.num_nodes, self._weights, self.reversed._counted
        )

    @cached_property
    def reversed(self) -> Graph:
        """Every edge turned round, for layers with ``flow="target_to_source"``."""
        return self._like(self._targets, self._sources, self._weights)

    @cached_property
    def in_count(self) -> Vector:
        """How many edges end at each node."""
        return np.diff(self._counted.pointer).astype(np.float64)

    @cached_property
    def in_weight(self) -> Vector:
        """The total weight of the edges that end at each node."""
        if self._weights is None:
            return self.in_count
        return np.bincount(self._targets, self._weights, self.num_nodes).astype(np.float64)

    @cached_property
    def _loops(self) -> npt.NDArray[np.intp]:
        return np.flatnonzero(self._sources == self._targets)

    @cached_property
    def loop_count(self) -> Vector:
        """How many self-loops each node has."""
        return np.bincount(self._targets[self._loops], minlength=self.num_nodes).astype(float)

    @cached_property
    def loop_weight(self) -> Vector:
        """The total weight of each node's self-loops: the diagonal of ``A``."""
        if self._weights is None:
            return self.loop_count
        loops = self._loops
        weights = self._weights[loops]
        return np.bincount(self._targets[loops], weights, self.num_nodes).astype(np.float64)

    def identity(self) -> Operator:
        """``I``: the node itself."""
        return Operator(None, loop=1.0)

    def sum(self, self_weight: float = 0.0) -> Operator:
        r"""``A + self_weight I``; GIN's is ``A + (1 + eps) I``."""
        return Operator(self, loop=self_weight)

    def mean(self) -> Operator:
        """``D^-1 A`` with ``D`` the number of incoming edges; a node without any gets 0."""
        return self._once(
            ("mean",), lambda: Operator(self, left=1.0 / np.maximum(self.in_count, 1.0))
        )

    def mean_with_self(self, self_weight: float) -> Operator:
        """``D^-1 A + self_weight I``: GIN with mean aggregation."""
        count = np.maximum(self.in_count, 1.0)
        return self._once(
            ("mean_with_self", self_weight),
            lambda: Operator(self, left=1.0 / count, loop=self_weight * count),
        )

    def degree(self) -> Operator:
        """``diag(A 1)``: a node weighted by its incoming edges."""
        return Operator(None, loop=self.in_weight)

    def gcn(self, *, improved: bool = False, add_self_loops: bool = True) -> Operator:
        r"""``D^-1/2 (A + I) D^-1/2`` with PyG's treatment of loops and weights.

        ``A`` already holds the self-loops that were there, so the diagonal term carries only the
        difference to the wanted ones; the degree is that of the incoming edges, on both sides.
        """
        return self._once(
            ("gcn", improved, add_self_loops), lambda: self._gcn(improved, add_self_loops)
        )

    def _gcn(self, improved: bool, add_self_loops: bool) -> Operator:
        loop = np.zeros(self.num_nodes)
        if add_self_loops and self.keep_loops:
            # PyG 2.6-2.8 forgets `improved` where it is given no edge weights
            loop += 2.0 if improved and self.is_weighted else 1.0
            if self._weights is not None:  # of several loops on a node, PyG keeps the last
                loop[self._targets[self._loops]] = self._weights[self._loops]
            loop -= self.loop_weight
        elif add_self_loops:
            loop += 2.0 if improved else 1.0
        degree = self.in_weight + loop
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = degree**-0.5
        scale[np.isinf(scale)] = 0.0  # as PyG: a node without edges sends and receives nothing
        return Operator(self, left=scale, right=scale, loop=loop)

    def cluster_gcn(
        self, *, diag_lambda: float = 0.0, add_self_loops: bool = True, by_source: bool = False
    ) -> Operator:
        r"""``D^-1 (A + I) + lambda diag(D^-1)``, counting edges, whatever their weights.

        ``by_source`` puts ``D^-1``, the number of edges that leave a node, on the right.
        """
        return self._once(
            ("cluster_gcn", diag_lambda, add_self_loops, by_source),
            lambda: self._cluster_gcn(diag_lambda, add_self_loops, by_source),
        )

    def _cluster_gcn(self, diag_lambda: float, add_self_loops: bool, by_source: bool) -> Operator:
        plain = self if self._weights is None else self.unweighted
        loops = plain.loop_count
        wanted = np.ones(self.num_nodes) if add_self_loops else loops
        count = plain.reversed.in_count if by_source else plain.in_count
        inverse = 1.0 / np.maximum(count - loops + wanted, 1.0)
        loop = wanted * (1.0 + diag_lambda) - loops
        if by_source:
            return Operator(plain, right=inverse, loop=loop)
        return Operator(plain, left=inverse, loop=loop)

    @cached_property
    def unweighted(self) -> Graph:
        """The same edges, each of weight one."""
        return self._like(self._sources, self._targets, None)


@dataclass(frozen=True)
class Operator:
    r"""``diag(left) (A + diag(loop)) diag(right)``, ``hops`` times; without ``A`` if no graph.

    >>> import torch
    >>> ring = Graph(torch.tensor([[0, 1, 2], [1, 2, 0]]), num_nodes=3)
    >>> ring.mean()(np.array([1.0, 2.0, 3.0]))
    array([3., 1., 2.])
    >>> ring.mean().T(np.array([1.0, 2.0, 3.0]))
    array([2., 3., 1.])
    """

    graph: Graph | None
    left: Vector | float = 1.0
    right: Vector | float = 1.0
    loop: Vector | float = 0.0
    hops: int = 1
    transposed: bool = False

    @property
    def T(self) -> Operator:
        """The transpose: left and right trade places, edges are walked against their direction."""
        return replace(self, transposed=not self.transposed)

    def times(self, hops: int) -> Operator:
        """The operator applied ``hops`` times."""
        return replace(self, hops=self.hops * hops)

    def __call__(self, x: Vector) -> Vector:
        left, right = (self.right, self.left) if self.transposed else (self.left, self.right)
        for _ in range(self.hops):
            inner = _scaled(right, x)
            outer = _scaled(self.loop, inner)
            if self.graph is not None:
                matrix = self.graph.by_source if self.transposed else self.graph.by_target
                outer = outer + matrix @ inner
            x = _scaled(left, outer)
        return x


def _scaled(scale: Vector | float, x: Vector) -> Vector:
    if isinstance(scale, float):
        return x if scale == 1.0 else scale * x
    return scale[:, None] * x if x.ndim == 2 else scale * x


def squared_norm(x: Vector) -> float:
    """Sum of squares."""
    flat = x.ravel()
    return float(flat @ flat)

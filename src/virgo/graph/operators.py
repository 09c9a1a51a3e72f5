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
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from virgo.errors import GraphError
from virgo.graph.csr import Compressed, Counted, Indices, Loops
from virgo.graph.vectors import Vector, column

__all__ = ["Compressed", "Graph", "Operator", "Vector"]


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
        _check(index, num_nodes, edge_weight)
        self._sources: Indices = np.ascontiguousarray(index[0].numpy())
        self._targets: Indices = np.ascontiguousarray(index[1].numpy())
        self._weights: Vector | None = None
        if edge_weight is not None:
            self._weights = edge_weight.detach().cpu().double().reshape(-1).numpy()
        self.num_nodes = num_nodes
        self.keep_loops = keep_loops
        self._made: dict[tuple[object, ...], Operator] = {}

    @staticmethod
    def open(path: str | Path, *, in_memory: bool = False) -> Graph:
        """A graph on disk, as ``virgo graph build`` writes it.

        Its edges are memory-mapped, or read once and kept with ``in_memory``.
        """
        from virgo.graph.disk.stored import StoredGraph

        return StoredGraph(path, in_memory=in_memory)

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

    @property
    def in_count(self) -> Vector:
        """How many edges end at each node; a new vector each time."""
        return np.diff(self._counted.pointer).astype(np.float64)

    @property
    def in_weight(self) -> Vector:
        """The total weight of the edges that end at each node; a new vector each time."""
        if self._weights is None:
            return self.in_count
        return np.bincount(self._targets, self._weights, self.num_nodes).astype(np.float64)

    @cached_property
    def _loops(self) -> npt.NDArray[np.intp]:
        return np.flatnonzero(self._sources == self._targets)

    @property
    def has_loops(self) -> bool:
        """Whether there is any edge from a node to itself."""
        return bool(self._loops.size)

    def loop_weights(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The total weight of each node's self-loops, the diagonal of ``A``, and the last one's.

        Without weights, how many there are, twice, as 32-bit integers.
        """
        at = self._targets[self._loops]
        if self._weights is None:
            count = np.bincount(at, minlength=self.num_nodes).astype(np.int32)
            return count, count
        weights = self._weights[self._loops]
        total = np.bincount(at, weights, self.num_nodes)
        last = np.zeros(self.num_nodes)
        last[at] = weights
        return total, last

    def ones(self) -> Vector:
        """The number one for every node."""
        return np.ones(self.num_nodes)

    def signal(self, given: Any) -> Vector:
        """One number for every node, from an array or the path of a ``.npy`` file.

        A new vector each time: a hop may use its memory.
        """
        return column(given, self.num_nodes)

    def identity(self) -> Operator:
        """``I``: the node itself."""
        return Operator(None, loop=1.0)

    def sum(self, self_weight: float = 0.0) -> Operator:
        r"""``A + self_weight I``; GIN's is ``A + (1 + eps) I``."""
        return Operator(self, loop=self_weight)

    def mean(self) -> Operator:
        """``D^-1 A`` with ``D`` the number of incoming edges; a node without any gets 0."""
        return self._once(("mean",), lambda: Operator(self, left=_inverse(self.in_count)))

    def mean_with_self(self, self_weight: float) -> Operator:
        """``D^-1 A + self_weight I``: GIN with mean aggregation."""
        return self._once(
            ("mean_with_self", self_weight),
            lambda: Operator(
                self,
                left=_inverse(self.in_count),
                loop=self_weight * np.maximum(self.in_count, 1.0),
            ),
        )

    def degree(self) -> Operator:
        """``diag(A 1)``: a node weighted by its incoming edges."""
        return self._once(("degree",), lambda: Operator(None, loop=self.in_weight))

    def gcn(self, *, improved: bool = False, add_self_loops: bool = True) -> Operator:
        r"""``D^-1/2 (A + I) D^-1/2`` with PyG's treatment of loops and weights.

        ``A`` already holds the self-loops that were there, so the diagonal term carries only the
        difference to the wanted ones; the degree is that of the incoming edges, on both sides.
        """
        return self._once(
            ("gcn", improved, add_self_loops), lambda: self._gcn(improved, add_self_loops)
        )

    def _gcn(self, improved: bool, add_self_loops: bool) -> Operator:
        loop = self._missing_loops(improved) if add_self_loops else 0.0
        scale = self.in_weight
        scale += loop
        with np.errstate(divide="ignore", invalid="ignore"):
            np.power(scale, -0.5, out=scale)
        scale[np.isinf(scale)] = 0.0  # as PyG: a node without edges sends and receives nothing
        return Operator(self, left=scale, right=scale, loop=loop)

    def _missing_loops(self, improved: bool) -> Loops:
        """What the diagonal lacks of the self-loops that GCN wants; a number where all lack it."""
        if not self.keep_loops:
            return 2.0 if improved else 1.0
        # PyG 2.6-2.8 forgets `improved` where it is given no edge weights
        wanted = 2.0 if improved and self.is_weighted else 1.0
        if not self.has_loops:
            return wanted
        there, last = self.loop_weights()
        if not self.is_weighted:
            return 1 - there
        # of several loops on a node, PyG keeps the last
        kept: Vector = np.where(self.unweighted.loop_weights()[0] > 0, last, wanted)
        kept -= there
        return kept

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
        plain = self.unweighted
        loops: Loops = plain.loop_weights()[0] if plain.has_loops else 0.0
        wanted = 1.0 if add_self_loops else loops
        count = plain.reversed.in_count if by_source else plain.in_count
        count += wanted - loops
        loop = wanted * (1.0 + diag_lambda) - loops
        if by_source:
            return Operator(plain, right=_inverse(count), loop=loop)
        return Operator(plain, left=_inverse(count), loop=loop)

    @cached_property
    def unweighted(self) -> Graph:
        """The same edges, each of weight one."""
        if self._weights is None:
            return self
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
    loop: Loops = 0.0
    hops: int = 1
    transposed: bool = False

    @property
    def T(self) -> Operator:
        """The transpose: left and right trade places, edges are walked against their direction."""
        return replace(self, transposed=not self.transposed)

    def times(self, hops: int) -> Operator:
        """The operator applied ``hops`` times."""
        return replace(self, hops=self.hops * hops)

    def __call__(self, x: Vector, *, overwrite: bool = False, out: Vector | None = None) -> Vector:
        """The operator on one number per node, or on several columns of them.

        With ``overwrite`` the input's memory may be used, so that a hop holds two vectors of its
        own and not three. ``out`` is memory for a result of one column, which spares the system
        from clearing new memory.
        """
        left, right = (self.right, self.left) if self.transposed else (self.left, self.right)
        for hop in range(self.hops):
            mine = overwrite or hop > 0
            inner = _times(right, x, mine)
            if self.graph is None:
                x = _times(left, _times(self.loop, inner))
            else:
                matrix = self.graph.by_source if self.transposed else self.graph.by_target
                given, x = x, matrix.hop(inner, left, self.loop, out)
                out = inner if mine or inner is not given else None  # for the next hop
        return x


def _check(index: Tensor, num_nodes: int, weight: Tensor | None) -> None:
    """Refuse what the compiled loops would follow out of their arrays."""
    if index.dim() != 2 or index.size(0) != 2 or index.is_floating_point():
        raise GraphError(
            f"edge_index: expected integers of shape [2, E], got {index.dtype} of shape "
            f"{list(index.shape)}. Pass sources and targets as two rows."
        )
    if weight is not None and weight.numel() != index.size(1):
        raise GraphError(
            f"edge_weight: expected {index.size(1):,} numbers, one an edge, got "
            f"{weight.numel():,}. Pass one for every edge."
        )
    if index.numel():
        low, high = (int(end) for end in index.aminmax())
        if low < 0 or high >= num_nodes:
            raise GraphError(
                f"edge_index: expected ids from 0 to {num_nodes - 1:,}, got {low:,} to {high:,}. "
                f"Pass num_nodes, or number the nodes from 0."
            )


def _times(scale: Loops, x: Vector, in_place: bool = False) -> Vector:
    """``diag(scale) x``; the same vector where nothing changes."""
    if isinstance(scale, float):
        return x if scale == 1.0 else np.multiply(x, scale, out=x if in_place else None)
    return np.multiply(x, scale[:, None] if x.ndim == 2 else scale, out=x if in_place else None)


def _inverse(count: Vector) -> Vector:
    """``1 / max(count, 1)``, in place."""
    np.maximum(count, 1.0, out=count)
    return np.divide(1.0, count, out=count)

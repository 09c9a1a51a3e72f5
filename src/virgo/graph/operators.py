r"""Operators on a graph: what message passing does to one number per node.

Virgo never needs the adjacency as a matrix with values. Every operator here has the shape

.. math:: P = \mathrm{diag}(l)\,\bigl(A + \mathrm{diag}(s)\bigr)\,\mathrm{diag}(r)

with the same :math:`A` (rows are targets), so all layers of all kinds share one copy of the edges
and a handful of vectors. Cost of a hop: one pass over the edges.

Every formula is written once, in :class:`GraphOperators`. Where a graph lives (in memory, on disk,
in a database) decides only how degrees are counted and how a vector is multiplied.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from virgo.errors import GraphError, named_options
from virgo.graph.csr import Compressed, Counted, Indices, LoopArray, Loops
from virgo.graph.vectors import AnyVector, Vector, column

__all__ = ["Compressed", "Graph", "GraphOperators", "NodeOperator", "Operator", "Vector"]

#: One number per node, or one for all. An array in memory; a database has its own expressions.
Scale = Any
_G = TypeVar("_G", bound="GraphOperators")


class NodeOperator(Protocol):
    """What hops need of an operator: :class:`Operator` and those made of several."""

    @property
    def graph(self) -> GraphOperators | None: ...

    @property
    def T(self) -> NodeOperator: ...

    def __call__(
        self, x: AnyVector, *, overwrite: bool = False, out: AnyVector | None = None
    ) -> AnyVector: ...


class GraphOperators(ABC):
    """The edges of a graph, wherever they live, and the operators that layers apply over them.

    A back end counts degrees and self-loops, and multiplies. The vectors that it returns for them
    are new ones, which the formulas here may overwrite.

    Args:
        num_nodes: the number of nodes.
        num_edges: the number of edges.
        is_weighted: whether edges have weights.
        keep_loops: what adding self-loops means, see :class:`Graph`.
    """

    def __init__(
        self, num_nodes: int, num_edges: int, *, is_weighted: bool, keep_loops: bool = True
    ) -> None:
        self.num_nodes, self.num_edges = num_nodes, num_edges
        self.is_weighted, self.keep_loops = is_weighted, keep_loops

    @property
    @abstractmethod
    def reversed(self: _G) -> _G:
        """Every edge in the other direction, for layers with ``flow="target_to_source"``."""

    @property
    @abstractmethod
    def unweighted(self: _G) -> _G:
        """The same edges, each of weight one."""

    @property
    @abstractmethod
    def in_count(self) -> Scale:
        """The number of edges that end at each node."""

    @property
    @abstractmethod
    def in_weight(self) -> Scale:
        """The total weight of the edges that end at each node."""

    @property
    @abstractmethod
    def has_loops(self) -> bool:
        """Whether there may be an edge from a node to itself."""

    @property
    @abstractmethod
    def loop_count(self) -> Scale:
        """The number of self-loops of each node."""

    @abstractmethod
    def missing_loops(self, default: float) -> Scale:
        """What the diagonal of ``A`` lacks for one self-loop per node.

        That is the weight of the node's last self-loop, or ``default`` where it has none, less the
        total weight of its self-loops.
        """

    @staticmethod
    @abstractmethod
    def at_least_one(values: Scale) -> Scale:
        """``max(values, 1)``."""

    @staticmethod
    @abstractmethod
    def inverse(values: Scale) -> Scale:
        """``1 / max(values, 1)``."""

    @staticmethod
    @abstractmethod
    def inverse_root(values: Scale) -> Scale:
        """``values ** -0.5``, and 0 for 0: a node without edges sends and receives nothing."""

    @abstractmethod
    def ones(self) -> AnyVector:
        """The number one for every node."""

    @abstractmethod
    def signal(self, given: Any) -> AnyVector:
        """One number for every node, in the form that :meth:`multiply` takes."""

    @abstractmethod
    def multiply(
        self, operator: Operator, x: AnyVector, overwrite: bool, out: AnyVector
    ) -> AnyVector:
        """``operator`` on a vector of this graph; see :meth:`Operator.__call__`."""

    def _like(self: _G, **changes: Any) -> _G:
        """Another view of the same edges: a copy without what was computed for this one."""
        other = object.__new__(type(self))
        cached = {
            k for k in vars(self) if isinstance(getattr(type(self), k, None), cached_property)
        }
        other.__dict__ = {k: v for k, v in vars(self).items() if k not in cached} | changes
        return other

    @cached_property
    def _operators(self) -> dict[str, Operator]:
        return {}

    def _once(self, name: str, make: Callable[[], Operator]) -> Operator:
        """One operator for all layers of one kind: a deep network holds its vectors once."""
        if name not in self._operators:
            self._operators[name] = replace(make(), name=name)
        return self._operators[name]

    def identity(self) -> Operator:
        """``I``: the node itself."""
        return Operator(None, loop=1.0, name="identity", home=self)

    def sum(self, self_weight: float = 0.0) -> Operator:
        r"""``A + self_weight I``; GIN's is ``A + (1 + eps) I``."""
        return Operator(self, loop=float(self_weight), name=f"sum({float(self_weight)!r})")

    def mean(self) -> Operator:
        """``D^-1 A`` with ``D`` the number of incoming edges; a node without any gets 0."""
        return self._once("mean", lambda: Operator(self, left=self.inverse(self.in_count)))

    def mean_with_self(self, self_weight: float) -> Operator:
        """``D^-1 A + self_weight I``: GIN with mean aggregation."""
        return self._once(
            f"mean_with_self({self_weight!r})",
            lambda: Operator(
                self,
                left=self.inverse(self.in_count),
                loop=float(self_weight) * self.at_least_one(self.in_count),
            ),
        )

    def degree(self) -> Operator:
        """``diag(A 1)``: a node weighted by its incoming edges."""
        return self._once("degree", lambda: Operator(None, loop=self.in_weight, home=self))

    def gcn(self, *, improved: bool = False, add_self_loops: bool = True) -> Operator:
        r"""``D^-1/2 (A + I) D^-1/2`` with PyG's treatment of loops and weights.

        ``A`` already holds the self-loops that were there, so the diagonal term carries only the
        difference to the wanted ones; the degree is that of the incoming edges, on both sides.

        Args:
            improved: add self-loops of weight 2.
            add_self_loops: whether to add any.

        Returns:
            The operator.
        """
        return self._once(
            f"gcn(improved={improved}, add_self_loops={add_self_loops})",
            lambda: self._gcn(improved, add_self_loops),
        )

    def _gcn(self, improved: bool, add_self_loops: bool) -> Operator:
        loop: Scale = 0.0
        if add_self_loops:
            # PyG 2.6-2.8 forgets `improved` where it is given an edge_index without weights
            loop = 2.0 if improved and (self.is_weighted or not self.keep_loops) else 1.0
            if self.keep_loops and self.has_loops:
                loop = self.missing_loops(loop)
        degree = self.in_weight
        degree += loop
        scale = self.inverse_root(degree)
        return Operator(self, left=scale, right=scale, loop=loop)

    def cluster_gcn(
        self, *, diag_lambda: float = 0.0, add_self_loops: bool = True, by_source: bool = False
    ) -> Operator:
        r"""``D^-1 (A + I) + lambda diag(D^-1)``, counting edges, whatever their weights.

        Args:
            diag_lambda: the weight of the diagonal that ClusterGCN adds.
            add_self_loops: whether to give every node one self-loop.
            by_source: put ``D^-1``, the number of edges that leave a node, on the right.

        Returns:
            The operator.
        """
        return self._once(
            f"cluster_gcn({diag_lambda!r}, {add_self_loops}, by_source={by_source})",
            lambda: self._cluster_gcn(diag_lambda, add_self_loops, by_source),
        )

    def _cluster_gcn(self, diag_lambda: float, add_self_loops: bool, by_source: bool) -> Operator:
        plain = self.unweighted
        counted = plain.reversed if by_source else plain
        loops: Scale = counted.loop_count if plain.has_loops else 0.0
        wanted: Scale = 1.0 if add_self_loops else loops
        degree = counted.in_count
        degree += wanted - loops
        side = {"right" if by_source else "left": self.inverse(degree)}
        return Operator(plain, **side, loop=wanted * (1.0 + diag_lambda) - loops, home=counted)


class Graph(GraphOperators):
    """A graph in memory, in compressed rows (CSR).

    Args:
        edge_index: ``[2, E]``, sources first.
        num_nodes: the number of nodes.
        edge_weight: one number per edge, or none.
        keep_loops: what adding self-loops means. PyG keeps the weight of a self-loop that is
            already there when it is handed an ``edge_index`` (``True``), and adds a second one
            when it is handed a sparse adjacency (``False``).
    """

    #: Whether some of the edges can be picked.
    has_edges_in_memory = True

    @named_options
    def __init__(
        self,
        edge_index: Tensor,
        num_nodes: int,
        edge_weight: Tensor | None = None,
        *,
        keep_loops: bool = True,
    ) -> None:
        index = edge_index.detach().cpu()
        check_edges(index, num_nodes, edge_weight)
        weighted = edge_weight is not None
        super().__init__(num_nodes, index.size(1), is_weighted=weighted, keep_loops=keep_loops)
        self._sources: Indices = np.ascontiguousarray(index[0].numpy())
        self._targets: Indices = np.ascontiguousarray(index[1].numpy())
        self._weights: Vector | None = None
        if edge_weight is not None:
            self._weights = edge_weight.detach().cpu().double().reshape(-1).numpy()

    def __repr__(self) -> str:
        weights = ", weighted" if self.is_weighted else ""
        return f"{type(self).__name__}({self.num_nodes:,} nodes, {self.num_edges:,} edges{weights})"

    @staticmethod
    @named_options
    def open(path: str | Path, *, in_memory: bool = False) -> Graph:
        """Open a graph on disk, as ``virgo graph build`` writes it.

        Args:
            path: its folder.
            in_memory: read the edges once and keep them; by default they are memory-mapped.

        Returns:
            The graph.
        """
        from virgo.graph.disk.stored import StoredGraph

        return StoredGraph(path, in_memory=in_memory)

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
        return self.reversed.by_target

    @cached_property
    def reversed(self) -> Graph:
        return self._like(_sources=self._targets, _targets=self._sources)

    @cached_property
    def unweighted(self) -> Graph:
        return self._like(_weights=None, is_weighted=False) if self.is_weighted else self

    @property
    def in_count(self) -> Vector:
        return np.diff(self._counted.pointer).astype(np.float64)

    @property
    def in_weight(self) -> Vector:
        if self._weights is None:
            return self.in_count
        return np.bincount(self._targets, self._weights, self.num_nodes).astype(np.float64)

    @cached_property
    def _loops(self) -> Indices:
        return np.flatnonzero(self._sources == self._targets)

    @property
    def has_loops(self) -> bool:
        return bool(self._loops.size)

    @property
    def loop_count(self) -> LoopArray:
        return self.unweighted.loop_weights()[0]

    def loop_weights(self) -> tuple[LoopArray, LoopArray]:
        """The total weight of each node's self-loops, the diagonal of ``A``, and the last one's.

        Without weights, how many there are, twice, as 32-bit integers.

        Returns:
            Both, one per node.
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

    def missing_loops(self, default: float) -> LoopArray:
        total, last = self.loop_weights()
        if not self.is_weighted:
            return 1 - total
        kept: Vector = np.where(self.loop_count > 0, last, default)
        kept -= total
        return kept

    def where(self, mask: Tensor | npt.NDArray[np.bool_]) -> Graph:
        """The graph of some of the edges, each of weight one, on the same nodes.

        Args:
            mask: one truth value per edge.

        Returns:
            The smaller graph.

        Raises:
            GraphError: if the edges are not in memory.
        """
        mask = mask.cpu().numpy() if isinstance(mask, Tensor) else mask
        if not self.has_edges_in_memory:
            raise GraphError(
                "Graph.where: expected a graph in memory, got one on disk. Open it as virgo.Graph."
            )
        sources, targets = self._sources[mask], self._targets[mask]
        changes = {"_weights": None, "is_weighted": False, "num_edges": sources.size}
        return self._like(_sources=sources, _targets=targets, **changes)

    def shares_of(self, whole: Graph) -> Operator:
        """``D^-1 A`` with ``D`` the number of incoming edges in ``whole``, of which these are some.

        Args:
            whole: a graph on the same nodes.

        Returns:
            The operator.
        """
        return Operator(self, left=self.inverse(whole.in_count), name="shares")

    def mean_with_loops(self) -> Operator:
        """``(D + I)^-1 (A + I)``: the mean over neighbours and one self-loop more per node."""
        return self._once(
            "mean_with_loops",
            lambda: Operator(self, left=self.inverse(self.in_count + 1.0), loop=1.0),
        )

    def rescaled_laplacian(self, normalization: str | None, *, by_source: bool) -> Operator:
        r"""``2 L / lambda - I`` as ChebConv computes it without a ``lambda_max``.

        With ``"sym"`` and ``"rw"`` the largest entry of :math:`L` is the 1 on its diagonal, so
        ``lambda`` is 2 and what is left is :math:`-D^{-1/2} A D^{-1/2}` or the random walk's
        :math:`-A D^{-1}`; without a normalisation ``lambda`` is twice the largest degree.
        Self-loops do not count.

        Args:
            normalization: ``"sym"``, ``"rw"`` or ``None``.
            by_source: count the edges that leave a node rather than those that enter it.

        Returns:
            The operator.
        """
        loops = self.loop_weights()[0] * 1.0  # floating: without weights they are counts
        degree = (self.reversed if by_source else self).in_weight - loops
        if normalization is None:
            largest = float(degree.max())
            return Operator(self, left=-1.0 / largest, loop=largest - degree - loops)
        root = self.inverse_root(degree)
        if normalization == "sym":
            return Operator(self, left=-root, right=root, loop=-loops)
        side = {"left": -root * root} if not by_source else {"left": -1.0, "right": root * root}
        return Operator(self, **side, loop=-loops)

    @staticmethod
    def at_least_one(values: Vector) -> Vector:
        return np.maximum(values, 1.0, out=values)

    @staticmethod
    def inverse(values: Vector) -> Vector:
        return np.divide(1.0, Graph.at_least_one(values), out=values)

    @staticmethod
    def inverse_root(values: Vector) -> Vector:
        with np.errstate(divide="ignore", invalid="ignore"):
            np.power(values, -0.5, out=values)
        values[np.isinf(values)] = 0.0
        return values

    def ones(self) -> Vector:
        return np.ones(self.num_nodes)

    def signal(self, given: Any) -> Vector:
        """One number for every node, from an array or the path of a ``.npy`` file.

        A new vector each time: a hop may use its memory.

        Args:
            given: the array or the path.

        Returns:
            The numbers in float64.
        """
        return column(given, self.num_nodes)

    @staticmethod
    def multiply(operator: Operator, x: Vector, overwrite: bool, out: Vector | None) -> Vector:
        """``operator`` on an array; a hop holds two vectors of its own, or one with ``out``.

        Args:
            operator: one of this graph.
            x: one number per node, or columns of them.
            overwrite: whether the memory of ``x`` may be used.
            out: where the result goes, if given.

        Returns:
            The product.
        """
        left, right = operator.sides
        for hop in range(operator.hops):
            mine = overwrite or hop > 0
            inner = _times(right, x, mine)
            if operator.graph is None:
                x = _times(left, _times(operator.loop, inner))
            else:
                graph: Any = operator.graph
                rows = graph.by_source if operator.transposed else graph.by_target
                given, x = x, rows.hop(inner, left, operator.loop, out)
                out = inner if mine or inner is not given else None  # for the next hop
        return x


@dataclass(frozen=True)
class Operator:
    r"""``diag(left) (A + diag(loop)) diag(right)``, ``hops`` times; without ``A`` if no graph.

    Attributes:
        graph: the edges that are walked, or none for an operator that stays on the node.
        left: the scale of what arrives, one number per node or one for all.
        right: the scale of what is sent.
        loop: what is added to the diagonal of ``A``.
        hops: how often it is applied.
        transposed: whether edges are walked against their direction.
        name: the formula and its options; with the graph it says what is computed.
        home: the graph whose degrees ``left``, ``right`` and ``loop`` count, if another than
            ``graph``.

    >>> import torch
    >>> ring = Graph(torch.tensor([[0, 1, 2], [1, 2, 0]]), num_nodes=3)
    >>> ring.mean()(np.array([1.0, 2.0, 3.0]))
    array([3., 1., 2.])
    >>> ring.mean().T(np.array([1.0, 2.0, 3.0]))
    array([2., 3., 1.])
    """

    graph: GraphOperators | None
    left: Scale = 1.0
    right: Scale = 1.0
    loop: Scale = 0.0
    hops: int = 1
    transposed: bool = False
    name: str = "operator"
    home: GraphOperators | None = None

    @property
    def T(self) -> Operator:
        """The transpose: left and right trade places, edges are walked against their direction."""
        return replace(self, transposed=not self.transposed)

    @property
    def sides(self) -> tuple[Scale, Scale]:
        """The scale of what arrives and of what is sent, in the direction that is walked."""
        return (self.right, self.left) if self.transposed else (self.left, self.right)

    def times(self, hops: int) -> Operator:
        """The operator applied several times.

        Args:
            hops: how many times.

        Returns:
            Another operator.
        """
        return replace(self, hops=self.hops * hops)

    def __call__(
        self, x: AnyVector, *, overwrite: bool = False, out: AnyVector | None = None
    ) -> AnyVector:
        """Apply the operator to one number per node, or to several columns of them.

        Args:
            x: an array, or a vector of the database that holds the graph.
            overwrite: whether the memory of ``x`` may be used, which saves a vector.
            out: memory for a result of one column, which saves the system from clearing new memory.

        Returns:
            The product, in new memory unless told otherwise. An operator that changes nothing
            returns ``x`` itself.
        """
        backend = self.graph if self.home is None else self.home
        if backend is None:
            return Graph.multiply(self, x, overwrite, out)
        return backend.multiply(self, x, overwrite, out)


def check_edges(index: Tensor, num_nodes: int, weight: Tensor | None) -> None:
    """Refuse what the compiled loops would follow out of their arrays."""
    whole = not (index.is_floating_point() or index.is_complex() or index.dtype == torch.bool)
    if index.dim() != 2 or index.size(0) != 2 or not whole or index.layout != torch.strided:
        raise GraphError(
            f"edge_index: expected integers of shape [2, E], got {index.dtype} of shape "
            f"{list(index.shape)}. Pass sources and targets as two rows."
        )
    if weight is not None and weight.numel() != index.size(1):
        raise GraphError(
            f"edge_weight: expected {index.size(1):,} numbers, one per edge, got "
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

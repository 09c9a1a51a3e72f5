r"""Operators over tables: :math:`\mathrm{diag}(l)\,(A + \mathrm{diag}(s))\,\mathrm{diag}(r)`.

A hop is one expression. Each edge fetches the number of the node it leaves (a join), each node adds
its own number times ``s`` as if it had an edge to itself (a union), and what arrives at a node is
summed (a group-by). Scales are arithmetic on the node's degrees, which were counted once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from virgo.errors import OptionError
from virgo.graph.sql.checkpoints import Kept, digest
from virgo.graph.sql.connections import Table, beside_edges
from virgo.graph.sql.vectors import Home, LakeVector

if TYPE_CHECKING:
    from virgo.graph.sql.graph import LakeGraph

#: A number for every node, from a table with its degrees; or one number for all of them.
Scale = Callable[[Table], Any] | float


@dataclass(frozen=True, eq=False)
class LakeOperator:
    """What :class:`virgo.graph.operators.Operator` is in memory.

    Attributes:
        home: where the vectors are.
        graph: the edges, or None for an operator that stays on the node.
        note: its name with its options; together with the graph it says what is computed.
        degrees: the graph whose incoming edges the scales count.
    """

    home: Home
    graph: LakeGraph | None
    note: str
    degrees: LakeGraph | None = None
    left: Scale = 1.0
    right: Scale = 1.0
    loop: Scale = 0.0
    hops: int = 1
    transposed: bool = False

    @property
    def T(self) -> LakeOperator:
        """The transpose: left and right trade places, edges are walked against their direction."""
        return replace(self, transposed=not self.transposed)

    def times(self, hops: int) -> LakeOperator:
        """The operator applied ``hops`` times."""
        return replace(self, hops=self.hops * hops)

    def __call__(self, x: LakeVector, *, overwrite: bool = False) -> LakeVector:
        """The operator on one number per node; a table is never overwritten."""
        if not isinstance(x, LakeVector) or x.home is not self.home:
            self._refuse(x)
        for _ in range(self.hops):
            x = self._hop(x)
        return x

    def _refuse(self, x: Any) -> None:
        if getattr(x, "ndim", 1) == 2:
            raise OptionError(
                f"{self.note}: expected one number per node, got {x.shape[1]} columns "
                f"(distribution='mirrored' does this). In a lake use another distribution, such "
                f"as 'orthogonal', or load the graph as virgo.Graph."
            )
        raise OptionError(
            f"{self.note}: expected a vector of this graph, got {type(x).__name__}. "
            f"Make it with graph.ones() or graph.signal(...)."
        )

    def _hop(self, x: LakeVector) -> LakeVector:
        left, right = (self.right, self.left) if self.transposed else (self.left, self.right)
        loop = self.loop
        if self.graph is None and not (callable(left) or callable(right) or callable(loop)):
            return replace(x, factor=x.factor * left * right * loop)
        source = self.degrees or self.graph
        assert source is not None
        key = digest(self.note, self.transposed, source.key, self.graph and self.graph.key, x.key)
        counted = None
        if callable(left) or callable(right) or callable(loop):
            counted = source.degree_table
        table = self._sums(self._sent(x.table, right, counted), x.kept.rows)
        if left != 1.0:
            table = _with_degrees(table, counted) if callable(left) else table
            table = table.select(node=table.node, value=_scaled(table, table.value, left))
        note = f"{self.note}, transposed" if self.transposed else self.note
        return LakeVector(self.home, self.home.keeper.keep(key, table, note))

    def _sent(self, table: Table, right: Scale, counted: Kept | None) -> Table:
        """``node``, the number it sends along its edges, and the one it keeps for itself."""
        if callable(right) or callable(self.loop):
            table = _with_degrees(table, counted)
        sent = _scaled(table, table.value, right)
        return table.select(node=table.node, sent=sent, own=_scaled(table, sent, self.loop))

    def _sums(self, sent: Table, rows: int) -> Table:
        own = sent.select(node=sent.node, value=sent.own)
        if self.graph is None:
            return own
        edges, sent = self.graph.edges, beside_edges(self.home.con, sent, rows)
        start, end = ("target", "source") if self.transposed else ("source", "target")
        walked = edges.join(sent, edges[start] == sent.node)
        value = sent.sent * edges.weight if self.graph.is_weighted else sent.sent
        arriving = walked.select(node=edges[end], value=value)
        if self.loop != 0.0:
            arriving = arriving.union(own)
        return arriving.group_by("node").agg(value=arriving.value.sum())


def _scaled(table: Table, value: Any, scale: Scale) -> Any:
    if callable(scale):
        return value * scale(table)
    return value if scale == 1.0 else value * scale


def _with_degrees(table: Table, counted: Kept | None) -> Table:
    """The table with every node's degrees beside it; a node that no edge enters has zeros."""
    assert counted is not None
    degrees = counted.table
    joined = table.left_join(degrees, table.node == degrees.node)
    counts = [name for name in degrees.columns if name != "node"]
    return joined.select(
        **{name: table[name] for name in table.columns},
        **{name: degrees[name].fill_null(0.0) for name in counts},
    )

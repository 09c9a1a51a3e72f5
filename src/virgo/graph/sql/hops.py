r"""Operators over tables: :math:`\mathrm{diag}(l)\,(A + \mathrm{diag}(s))\,\mathrm{diag}(r)`.

A hop is one expression. Each edge fetches the number of the node it leaves (a join), each node adds
its own number times ``s`` as if it had an edge to itself (a union), and what arrives at a node is
summed (a group-by). Scales are deferred expressions over the node's degrees, counted once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from virgo.errors import OptionError
from virgo.graph.operators import Operator, Scale
from virgo.graph.sql.checkpoints import Kept, digest
from virgo.graph.sql.connections import Column, Table, beside_edges
from virgo.graph.sql.vectors import LakeVector
from virgo.graph.vectors import AnyVector

if TYPE_CHECKING:
    from virgo.graph.sql.graph import LakeGraph


def hop(operator: Operator, x: LakeVector) -> LakeVector:
    """One hop of an operator, computed and kept.

    Args:
        operator: over a graph in the same database.
        x: one number per node.

    Returns:
        One number for every node that anything arrives at.
    """
    (left, right), loop = operator.sides, operator.loop
    edges: Any = operator.graph
    counted: Any = operator.home or edges
    scales = [scale for scale in (left, right, loop) if not isinstance(scale, float)]
    if edges is None and not scales:
        return replace(x, factor=x.factor * left * right * loop)
    key = digest(operator.name, operator.transposed, counted.key, edges and edges.key, x.key)
    degrees = counted.degree_table if scales else None
    sent = x.table
    if not (isinstance(right, float) and isinstance(loop, float)):
        sent = _with_degrees(sent, degrees)
    value = _scaled(sent, sent.value, right)
    sent = sent.select(node=sent.node, sent=value, own=_scaled(sent, value, loop))
    has_own = not (isinstance(loop, float) and loop == 0.0)
    table = _sums(edges, operator.transposed, sent, x.kept.rows, has_own=has_own)
    if not isinstance(left, float):
        table = _with_degrees(table, degrees)
    if not isinstance(left, float) or left != 1.0:
        table = table.select(node=table.node, value=_scaled(table, table.value, left))
    name = f"{operator.name}, transposed" if operator.transposed else operator.name
    return LakeVector(x.home, x.home.results.keep(key, table, name))


def refused(operator: Operator, x: AnyVector) -> OptionError:
    """The error for an ``x`` that is no vector of the operator's graph."""
    if getattr(x, "ndim", 1) == 2:
        return OptionError(
            f"{operator.name}: expected one number per node, got {x.shape[1]} columns "
            f"(distribution='mirrored' does this). In a lake use another distribution, such "
            f"as 'orthogonal', or load the graph as virgo.Graph."
        )
    return OptionError(
        f"{operator.name}: expected a vector of this graph, got {type(x).__name__}. "
        f"Make it with graph.ones() or graph.signal(...)."
    )


def _sums(
    graph: LakeGraph | None, transposed: bool, sent: Table, rows: int, *, has_own: bool
) -> Table:
    """What arrives at each node: along its edges, and from itself."""
    own = sent.select(node=sent.node, value=sent.own)
    if graph is None:
        return own
    edges, sent = graph.edges, beside_edges(graph.home.con, sent, rows)
    start, end = ("target", "source") if transposed else ("source", "target")
    walked = edges.join(sent, edges[start] == sent.node)
    value = sent.sent * edges.weight if graph.is_weighted else sent.sent
    arriving = walked.select(node=edges[end], value=value)
    if has_own:
        arriving = arriving.union(own)
    return arriving.group_by("node").agg(value=arriving.value.sum())


def _scaled(table: Table, value: Column, scale: Scale) -> Column:
    if isinstance(scale, float):
        return value if scale == 1.0 else value * scale
    return value * scale.resolve(table)


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

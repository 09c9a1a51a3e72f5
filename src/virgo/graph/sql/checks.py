"""What is wrong with tables, facts by one aggregate before anything long is started."""

from __future__ import annotations

from virgo.errors import GraphError
from virgo.graph.sql.checkpoints import digest
from virgo.graph.sql.connections import Column, Facts, Table, one_row

#: A prime. Ids are added up modulo it, so that no engine's 64-bit sum overflows.
_PRIME = 65521


def survey_edges(edges: Table, *, dense: bool, num_nodes: int | None) -> Facts:
    """Counts and bounds of ``source``, ``target`` and ``weight`` in one pass; raises if bad."""
    mixed = _mixed(edges.source) * 31 + _mixed(edges.target)
    asked = {
        "count": edges.count(),
        "empty": (edges.source.isnull() | edges.target.isnull()).sum(),
        "mixed": mixed.sum(),
    }
    if dense:
        asked |= {
            "low": _least(edges.source.min(), edges.target.min()),
            "high": _greatest(edges.source.max(), edges.target.max()),
        }
    if "weight" in edges.columns:
        asked |= {
            "unweighted": edges.weight.isnull().sum(),
            "unbounded": _unbounded(edges.weight),
            "weights": (edges.weight * mixed).sum(),
        }
    facts = one_row(edges.aggregate(**asked))
    _refuse_edges(facts, num_nodes)
    # another order of the same rows rounds otherwise
    weights = f"{facts.get('weights') or 0.0:.6e}"
    facts["key"] = digest("edges", facts["count"], int(facts["mixed"]), weights)
    return facts


def _refuse_edges(facts: Facts, num_nodes: int | None) -> None:
    if not facts["count"]:
        raise GraphError("edges: expected edges, got an empty table. Check the path or the name.")
    if facts["empty"]:
        raise GraphError(
            f"edges: expected two ids in every row, got {facts['empty']:,} rows without one "
            f"(null). Remove them."
        )
    if facts.get("unweighted") or facts.get("unbounded"):
        raise GraphError(
            f"edges: expected finite edge weights, got {facts['unweighted']:,} null and "
            f"{facts['unbounded']:,} NaN or infinite. Clean them."
        )
    if "low" in facts and facts["low"] < 0:
        raise GraphError(f"edges: expected ids from 0, got {facts['low']}. Pass ids='any'.")
    if "high" in facts and num_nodes is not None and facts["high"] >= num_nodes:
        raise GraphError(
            f"edges: expected ids below num_nodes = {num_nodes:,}, got {facts['high']:,}. "
            f"Correct num_nodes or the edges."
        )


def survey_signal(table: Table, nodes: Table | None, num_nodes: int) -> str:
    """Check that every node has one finite number; returns what tells these numbers apart."""
    asked = {
        "rows": table.count(),
        "nodes": table.node.nunique(),
        "empty": (table.node.isnull() | table.value.isnull()).sum(),
        "unbounded": _unbounded(table.value),
        "total": table.value.sum(),
        "mixed": (table.value * _mixed(table.node)).sum(),
    }
    if nodes is None:
        asked |= {"low": table.node.min(), "high": table.node.max()}
    facts = one_row(table.aggregate(**asked))
    _refuse_signal(facts, num_nodes)
    if nodes is not None:
        _refuse_strangers(count(table.anti_join(nodes, "node")))
    return digest("signal", facts["rows"], f"{facts['total']:.9e}", f"{facts['mixed']:.9e}")


def _refuse_signal(facts: Facts, num_nodes: int) -> None:
    if facts["empty"] or facts["unbounded"]:
        raise GraphError(
            f"mean_features: expected a node and a finite number in every row, got "
            f"{facts['empty']:,} rows with a null and {facts['unbounded']:,} NaN or infinite. "
            f"Clean the features."
        )
    if facts["rows"] != facts["nodes"]:
        raise GraphError(
            f"mean_features: expected one row per node, got {facts['rows']:,} rows for "
            f"{facts['nodes']:,} nodes. Remove the duplicates."
        )
    if facts["rows"] and "low" in facts:
        _refuse_strangers(int(facts["low"] < 0 or facts["high"] >= num_nodes), "ids out of range")
    if facts["rows"] != num_nodes:
        raise GraphError(
            f"mean_features: expected a row for each of {num_nodes:,} nodes, got "
            f"{facts['rows']:,}. Add the missing ones, with 0 where there are no features."
        )


def _refuse_strangers(count: int, what: str = "") -> None:
    if count:
        raise GraphError(
            f"mean_features: expected nodes of the graph, got {what or f'{count:,} other ids'}. "
            f"Check that both count alike, and num_nodes."
        )


def _mixed(ids: Column) -> Column:
    """A small number from an id, the same in every run on this engine."""
    if ids.type().is_integer():
        return ids.cast("int64") % _PRIME
    return ids.hash() % _PRIME


def _unbounded(values: Column) -> Column:
    return (values.isnan() | values.isinf()).sum()


def _least(first: Column, second: Column) -> Column:
    return (first <= second).ifelse(first, second)


def _greatest(first: Column, second: Column) -> Column:
    return (first >= second).ifelse(first, second)


def count(table: Table) -> int:
    """The number of its rows."""
    return int(one_row(table.aggregate(rows=table.count()))["rows"])

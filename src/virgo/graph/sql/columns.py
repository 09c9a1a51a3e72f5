"""Which columns of the user's tables are what, under the names that the queries use."""

from __future__ import annotations

from virgo.errors import DataError, OptionError
from virgo.graph.sql.connections import Table


def is_dense(ids: str | None, nodes: Table | None, num_nodes: int | None) -> bool:
    if ids not in (None, "dense", "any"):
        raise OptionError(f"ids: expected 'dense' or 'any', got {ids!r}. Choose one.")
    if nodes is not None and (ids == "dense" or num_nodes is not None):
        raise OptionError(
            "nodes: expected no list of nodes for ids that count from 0, got one. "
            "Pass num_nodes, or ids='any'."
        )
    if num_nodes is not None and ids == "any":
        raise OptionError(
            "num_nodes: expected none for ids='any', got one. Pass nodes, the list of them."
        )
    if num_nodes is not None and not (isinstance(num_nodes, int) and num_nodes > 0):
        raise OptionError(f"num_nodes: expected a whole number above 0, got {num_nodes!r}.")
    return ids != "any" and nodes is None


def of_edges(edges: Table, source: str, target: str, weight: str | None, dense: bool) -> Table:
    if not hasattr(edges, "get_backend"):
        raise DataError(
            f"edges: expected a table of Ibis, got {type(edges).__name__}. "
            f"Use virgo.graph.sql.open for paths and names."
        )
    named = [source, target] + ([weight] if weight is not None else [])
    _need_columns(edges, named, "edges")
    ends = edges[source], edges[target]
    if dense:
        _need_whole_numbers(edges, [source, target], "edges")
        ends = ends[0].cast("int64"), ends[1].cast("int64")
    elif ends[0].type().copy(nullable=True) != ends[1].type().copy(nullable=True):
        raise DataError(
            f"edges: expected ids of one kind, got {ends[0].type()} and {ends[1].type()}. "
            f"Convert one of the columns."
        )
    columns = {"source": ends[0], "target": ends[1]}
    if weight is not None:
        _need_numbers(edges, [weight], "edges")
        columns["weight"] = edges[weight].cast("float64")
    return edges.select(**columns)


def of_features(given: Table, node: str, value: str | None, dense: bool) -> Table:
    """``node`` and ``value`` of a table of features."""
    _need_columns(given, [node] + ([value] if value else []), "mean_features")
    if dense:
        _need_whole_numbers(given, [node], "mean_features")
    value = value or ("value" if "value" in given.columns else None)
    names = [value] if value else [name for name in given.columns if name != node]
    if not names:
        raise DataError(
            "mean_features: expected a column of numbers, got only nodes. Add a column 'value'."
        )
    _need_numbers(given, names, "mean_features")
    total = sum(given[name].cast("float64") for name in names)
    ids = given[node].cast("int64") if dense else given[node]
    return given.select(node=ids, value=total / len(names))


def _need_columns(table: Table, names: list[str], where: str) -> None:
    """Every column must be there."""
    for name in names:
        if name not in table.columns:
            raise DataError(
                f"{where}: expected a column {name!r}, got {', '.join(table.columns)}. "
                f"Say which column it is."
            )


def _need_whole_numbers(table: Table, names: list[str], where: str) -> None:
    """Ids from 0 are whole numbers."""
    for name in names:
        if not table[name].type().is_integer():
            raise DataError(
                f"{where}: expected whole numbers in column {name!r}, got {table[name].type()}. "
                f"Pass ids='any' for ids that do not count from 0."
            )


def _need_numbers(table: Table, names: list[str], where: str) -> None:
    for name in names:
        if not table[name].type().is_numeric():
            raise DataError(
                f"{where}: expected numbers in column {name!r}, got {table[name].type()}. "
                f"Convert it."
            )

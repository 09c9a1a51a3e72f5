"""A graph whose edges are a table: the same operators as :class:`virgo.Graph`, as queries."""

from __future__ import annotations

import copy
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from virgo.errors import GraphError, OptionError
from virgo.graph.sql import checks, columns
from virgo.graph.sql.checkpoints import Kept, digest, keeper_for
from virgo.graph.sql.connections import (
    Connection,
    Table,
    connect,
    from_array,
    library,
    numbers,
    one_row,
    read_table,
)
from virgo.graph.sql.operators import LakeOperator
from virgo.graph.sql.vectors import Home, LakeVector
from virgo.graph.vectors import column


def open(
    engine: str | Connection,
    edges: Any,
    *,
    memory: str | None = None,
    threads: int | None = None,
    tmp: str | Path | None = None,
    **options: Any,
) -> LakeGraph:
    """A graph from a path of Parquet files or the name of a table.

    Args:
        engine: as :func:`connect` takes it, or a connection of Ibis.
        edges: a Parquet file, a folder, a pattern such as ``"edges/*.parquet"``, a table's name.
        memory: see :func:`connect`, as for ``threads`` and ``tmp``.
        options: of :class:`LakeGraph`.
    """
    con = engine
    if isinstance(engine, str):
        con = connect(engine, memory=memory, threads=threads, tmp=tmp)
    if options.get("nodes") is not None:
        options["nodes"] = read_table(con, options["nodes"], "nodes")
    return LakeGraph(read_table(con, edges, "edges"), **options)


class LakeGraph:
    """The edges of a graph in a table, and the operators that layers apply over them.

    Args:
        edges: a table of Ibis, one row an edge.
        source: the column of the nodes that edges leave.
        target: the column of the nodes that they enter.
        weight: the column of edge weights, or none.
        ids: ``"dense"`` for nodes numbered from 0, ``"any"`` for ids of any kind, strings too.
        nodes: a table whose first column lists all nodes, for ``ids="any"`` where some nodes have
            no edges; without it, the nodes are those with edges.
        num_nodes: for dense ids, if it is not the highest id plus one.
        checkpoint: where to keep each hop so that a later run resumes: a folder (of this machine
            for DuckDB, of any storage that Spark can write), or ``"table:PREFIX"``.
        keep_loops: as for :class:`virgo.Graph`.
    """

    def __init__(
        self,
        edges: Table,
        *,
        source: str = "src",
        target: str = "dst",
        weight: str | None = None,
        ids: str | None = None,
        nodes: Table | None = None,
        num_nodes: int | None = None,
        checkpoint: str | Path | None = None,
        keep_loops: bool = True,
    ) -> None:
        dense = columns.is_dense(ids, nodes, num_nodes)
        self.edges = columns.of_edges(edges, source, target, weight, dense)
        self.keep_loops = keep_loops
        self.is_weighted = weight is not None
        con = edges.get_backend()
        keeper = keeper_for(con, checkpoint)
        found = checks.survey_edges(self.edges, dense=dense, num_nodes=num_nodes)
        self.num_edges = int(found["count"])
        count = num_nodes if num_nodes is not None else int(found.get("high", -1)) + 1
        self.key = digest(found["key"], weight is not None, count, keep_loops)
        self.home = Home(con, keeper, count, None)
        if not dense:
            self._name_nodes(nodes)

    def _name_nodes(self, given: Table | None) -> None:
        """The list of all nodes, with a one beside each."""
        edges = self.edges
        ends = edges.select(node=edges.source).union(edges.select(node=edges.target)).distinct()
        nodes, key = ends, digest("nodes", self.key)
        if given is not None:
            nodes = given.select(node=given[given.columns[0]])
            empty = nodes.node.isnull().sum()
            facts = one_row(nodes.aggregate(all=nodes.count(), own=nodes.node.nunique(), no=empty))
            strangers = checks.count(ends.anti_join(nodes, "node"))
            if facts["no"] or facts["all"] != facts["own"] or strangers:
                raise GraphError(
                    f"nodes: expected every node once, got {facts['all'] - facts['own']:,} "
                    f"duplicates or nulls, and {strangers:,} ends of edges that are not listed. "
                    f"Correct the list."
                )
            key = digest("nodes", self.key, facts["all"])
        self.home.nodes = self.home.keeper.keep(key, nodes.mutate(value=_one()), "nodes")
        self.home.num_nodes = self.home.nodes.rows

    def __repr__(self) -> str:
        engine = self.home.con.name
        return f"LakeGraph({engine}, {self.num_nodes:,} nodes, {self.num_edges:,} edges)"

    @property
    def num_nodes(self) -> int:
        return self.home.num_nodes

    @cached_property
    def reversed(self) -> LakeGraph:
        """Every edge turned round, for layers with ``flow="target_to_source"``."""
        turned = {"source": self.edges.target, "target": self.edges.source}
        if self.is_weighted:
            turned["weight"] = self.edges.weight
        return self._like("reversed", edges=self.edges.select(**turned))

    @cached_property
    def unweighted(self) -> LakeGraph:
        """The same edges, each of weight one."""
        if not self.is_weighted:
            return self
        bare = self.edges.select("source", "target")
        return self._like("unweighted", edges=bare, is_weighted=False)

    def _like(self, how: str, **changes: Any) -> LakeGraph:
        other = copy.copy(self)
        for name in ("reversed", "unweighted", "degree_table"):
            other.__dict__.pop(name, None)
        other.__dict__.update(changes, key=digest(how, self.key))
        return other

    # --- vectors ---------------------------------------------------------------------------

    def ones(self) -> LakeVector:
        """The number one for every node."""
        if self.home.nodes is not None:
            return LakeVector(self.home, self.home.nodes)
        count = self.num_nodes
        table = numbers(self.home.con, count).mutate(value=_one())
        return LakeVector(self.home, Kept(table, digest("ones", count), count, float(count)))

    def signal(
        self, mean_features: Any, *, node: str = "node", value: str | None = None
    ) -> LakeVector:
        """One number for every node.

        Args:
            mean_features: an array or ``.npy`` file, one number a node; or a table, its name or
                Parquet files.
            node: a table's column of nodes.
            value: its column of numbers. If none is named, ``"value"`` where there is one, else
                all other columns are features and their mean is taken.
        """
        if isinstance(mean_features, LakeVector):
            return mean_features
        home = self.home
        text = str(mean_features) if isinstance(mean_features, (str, Path)) else ""
        if (text and not text.endswith(".npy")) or hasattr(mean_features, "get_backend"):
            given = read_table(home.con, mean_features, "mean_features")
            table = columns.of_features(given, node, value, home.nodes is None)
        else:
            table = from_array(home.con, self._array(mean_features))
        nodes = None if home.nodes is None else home.nodes.table
        key = checks.survey_signal(table, nodes, home.num_nodes)
        return LakeVector(home, home.keeper.keep(key, table, "signal"))

    def _array(self, given: Any) -> Any:
        if not isinstance(given, (str, Path)) and np.ndim(given) == 2 and np.shape(given)[1] != 1:
            raise OptionError(
                f"mean_features: expected one number per node, got {np.shape(given)[1]} columns. "
                f"A lake carries one column (no distribution='mirrored'): pass the mean of them."
            )
        if self.home.nodes is not None:
            raise OptionError(
                "mean_features: expected a table of nodes and numbers for ids of any kind, got "
                "an array, whose order says nothing. Pass a table or Parquet files."
            )
        return column(given, self.num_nodes)

    # --- operators -------------------------------------------------------------------------

    @cached_property
    def degree_table(self) -> Kept:
        """Edges that enter each node, and those of them that are loops: one group-by."""
        edges = self.edges
        is_loop = edges.source == edges.target
        counts = {"count": edges.count(), "loops": is_loop.sum()}
        if self.is_weighted:
            loops = is_loop.ifelse(edges.weight, 0.0).sum()
            counts |= {"weight": edges.weight.sum(), "loop_weight": loops}
            counts |= {"loop_low": edges.weight.min(where=is_loop)}
            counts |= {"loop_high": edges.weight.max(where=is_loop)}
        floats = {name: count.cast("float64") for name, count in counts.items()}
        table = edges.group_by(node=edges.target).agg(**floats)
        return self.home.keeper.keep(digest("degrees", self.key), table, "degrees", "count")

    def _operator(self, note: str, **parts: Any) -> LakeOperator:
        return LakeOperator(self.home, self, note, **parts)

    def identity(self) -> LakeOperator:
        """``I``: the node itself."""
        return LakeOperator(self.home, None, "identity", loop=1.0)

    def sum(self, self_weight: float = 0.0) -> LakeOperator:
        r"""``A + self_weight I``; GIN's is ``A + (1 + eps) I``."""
        return self._operator(f"sum({self_weight!r})", loop=float(self_weight))

    def mean(self) -> LakeOperator:
        """``D^-1 A`` with ``D`` the number of incoming edges; a node without any gets 0."""
        return self._operator("mean", left=lambda t: 1.0 / _at_least_one(t["count"]))

    def mean_with_self(self, self_weight: float) -> LakeOperator:
        """``D^-1 A + self_weight I``: GIN with mean aggregation."""
        return self._operator(
            f"mean_with_self({self_weight!r})",
            left=lambda t: 1.0 / _at_least_one(t["count"]),
            loop=lambda t: _at_least_one(t["count"]) * float(self_weight),
        )

    def degree(self) -> LakeOperator:
        """``diag(A 1)``: a node weighted by its incoming edges."""
        return LakeOperator(self.home, None, "degree", self, loop=self._weight)

    def _weight(self, table: Table) -> Any:
        return table["weight" if self.is_weighted else "count"]

    def gcn(self, *, improved: bool = False, add_self_loops: bool = True) -> LakeOperator:
        r"""``D^-1/2 (A + I) D^-1/2``, as :meth:`virgo.Graph.gcn`."""
        if add_self_loops and self.is_weighted and self.keep_loops:
            self._refuse_unlike_loops()

        def loop(table: Table) -> Any:
            if not add_self_loops:
                return 0.0
            if not self.keep_loops:
                return 2.0 if improved else 1.0
            if not self.is_weighted:  # where PyG forgets `improved`
                return 1.0 - table["loops"]
            wanted = (table["loops"] > 0).ifelse(table["loop_low"], 2.0 if improved else 1.0)
            return wanted - table["loop_weight"]

        def scale(table: Table) -> Any:
            return _inverse_root(self._weight(table) + loop(table))

        note = f"gcn(improved={improved}, add_self_loops={add_self_loops})"
        constant = not add_self_loops or not self.keep_loops
        return self._operator(
            note, left=scale, right=scale, loop=float(loop(None)) if constant else loop
        )

    def _refuse_unlike_loops(self) -> None:
        """Of several loops on a node the last one counts, and a table has no last row."""
        table = self.degree_table.table
        unlike = table.filter(table.loop_low != table.loop_high)
        count = checks.count(unlike)
        if count:
            raise GraphError(
                f"edges: expected at most one self-loop a node, or several of equal weight, got "
                f"{count:,} nodes with unlike ones, of which GCN keeps the last. Sum them first."
            )

    def cluster_gcn(
        self, *, diag_lambda: float = 0.0, add_self_loops: bool = True, by_source: bool = False
    ) -> LakeOperator:
        r"""``D^-1 (A + I) + lambda diag(D^-1)``, as :meth:`virgo.Graph.cluster_gcn`."""
        plain = self.unweighted

        def wanted(table: Table) -> Any:
            return 1.0 if add_self_loops else table["loops"]

        def inverse(table: Table) -> Any:
            return 1.0 / _at_least_one(table["count"] - table["loops"] + wanted(table))

        def loop(table: Table) -> Any:
            return wanted(table) * (1.0 + diag_lambda) - table["loops"]

        note = f"cluster_gcn({diag_lambda!r}, {add_self_loops}, by_source={by_source})"
        degrees = plain.reversed if by_source else plain
        if by_source:
            return LakeOperator(self.home, plain, note, degrees, right=inverse, loop=loop)
        return LakeOperator(self.home, plain, note, degrees, left=inverse, loop=loop)


def _one() -> Any:
    """A column of ones. DuckDB takes a bare 1.0 for a decimal, whose sums overflow."""
    return library("ibis", "lake").literal(1).cast("float64")


def _at_least_one(values: Any) -> Any:
    return (values > 1.0).ifelse(values, 1.0)


def _inverse_root(degree: Any) -> Any:
    """``degree ** -0.5``; zero for zero, as PyG has it, and NaN below."""
    positive = (degree > 0.0).ifelse(degree, 1.0)
    root = 1.0 / positive.sqrt()
    return (degree > 0.0).ifelse(root, (degree == 0.0).ifelse(0.0, float("nan")))

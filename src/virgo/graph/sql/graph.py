"""A graph whose edges are a table: the same operators as :class:`virgo.Graph`, as queries."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from virgo.errors import GraphError, OptionError
from virgo.graph.operators import GraphOperators, Operator, Scale
from virgo.graph.sql import checks, columns
from virgo.graph.sql.checkpoints import Kept, digest, results_for
from virgo.graph.sql.connections import (
    Column,
    Connection,
    Table,
    connect,
    from_array,
    library,
    numbers,
    one_row,
    read_table,
)
from virgo.graph.sql.hops import hop, refused
from virgo.graph.sql.vectors import Home, LakeVector
from virgo.graph.vectors import AnyVector, Vector, column


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
        memory: see :func:`connect`.
        threads: likewise.
        tmp: likewise.
        options: of :class:`LakeGraph`.

    Returns:
        The graph.
    """
    con = engine
    if isinstance(engine, str):
        con = connect(engine, memory=memory, threads=threads, tmp=tmp)
    if options.get("nodes") is not None:
        options["nodes"] = read_table(con, options["nodes"], "nodes")
    return LakeGraph(read_table(con, edges, "edges"), **options)


class LakeGraph(GraphOperators):
    """A graph whose edges are rows of a table; hops are joins and group-bys.

    Args:
        edges: a table of Ibis, one row per edge.
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
        con, weighted = edges.get_backend(), weight is not None
        results = results_for(con, checkpoint)
        facts = checks.survey_edges(self.edges, dense=dense, num_nodes=num_nodes)
        count = num_nodes if num_nodes is not None else int(facts.get("high", -1)) + 1
        self.key = digest(facts["key"], weighted, count, keep_loops)
        self.home = Home(con, results, count, None)
        if not dense:
            self._name_nodes(nodes)
        super().__init__(
            self.home.num_nodes, int(facts["count"]), is_weighted=weighted, keep_loops=keep_loops
        )

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
        self.home.nodes = self.home.results.keep(key, nodes.mutate(value=_one()), "nodes")
        self.home.num_nodes = self.home.nodes.rows

    def __repr__(self) -> str:
        engine = self.home.con.name
        return f"LakeGraph({engine}, {self.num_nodes:,} nodes, {self.num_edges:,} edges)"

    @cached_property
    def reversed(self) -> LakeGraph:
        turned = {"source": self.edges.target, "target": self.edges.source}
        if self.is_weighted:
            turned["weight"] = self.edges.weight
        return self._like(edges=self.edges.select(**turned), key=digest("reversed", self.key))

    @cached_property
    def unweighted(self) -> LakeGraph:
        if not self.is_weighted:
            return self
        bare = self.edges.select("source", "target")
        return self._like(edges=bare, is_weighted=False, key=digest("unweighted", self.key))

    # --- vectors ---------------------------------------------------------------------------

    def ones(self) -> LakeVector:
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
            mean_features: an array or ``.npy`` file, one number per node; or a table, its name
                or Parquet files.
            node: a table's column of nodes.
            value: its column of numbers. If none is named, ``"value"`` where there is one, else
                all other columns are features and their mean is taken.

        Returns:
            A vector of this lake.
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
        return LakeVector(home, home.results.keep(key, table, "signal"))

    def _array(self, given: Any) -> Vector:
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
        return self.home.results.keep(digest("degrees", self.key), table, "degrees", "count")

    @property
    def in_count(self) -> Scale:
        return _degrees("count")

    @property
    def in_weight(self) -> Scale:
        return _degrees("weight" if self.is_weighted else "count")

    @property
    def has_loops(self) -> bool:
        """True, as counting the self-loops costs as much as their degrees do."""
        return True

    @property
    def loop_count(self) -> Scale:
        return _degrees("loops")

    def missing_loops(self, default: float) -> Scale:
        loops = _degrees("loops")
        if not self.is_weighted:
            return 1.0 - loops
        self._refuse_unlike_loops()
        return (loops > 0).ifelse(_degrees("loop_low"), default) - _degrees("loop_weight")

    @staticmethod
    def at_least_one(values: Scale) -> Scale:
        return (values > 1.0).ifelse(values, 1.0)

    @staticmethod
    def inverse(values: Scale) -> Scale:
        return 1.0 / LakeGraph.at_least_one(values)

    @staticmethod
    def inverse_root(values: Scale) -> Scale:
        """``values ** -0.5``, zero for zero as in PyG, and NaN below."""
        root = 1.0 / (values > 0.0).ifelse(values, 1.0).sqrt()
        return (values > 0.0).ifelse(root, (values == 0.0).ifelse(0.0, float("nan")))

    def multiply(
        self, operator: Operator, x: AnyVector, overwrite: bool, out: AnyVector
    ) -> LakeVector:
        """``operator`` on a vector of this lake; a table is never overwritten."""
        if not isinstance(x, LakeVector) or x.home is not self.home:
            raise refused(operator, x)
        result: LakeVector = x
        for _ in range(operator.hops):
            result = hop(operator, result)
        return result

    def _refuse_unlike_loops(self) -> None:
        """Of several loops on a node the last one counts, and a table has no last row."""
        table = self.degree_table.table
        unlike = table.filter(table.loop_low != table.loop_high)
        count = checks.count(unlike)
        if count:
            raise GraphError(
                f"edges: expected at most one self-loop per node, or several of equal weight, got "
                f"{count:,} nodes with unlike ones, of which GCN keeps the last. Sum them first."
            )


def _degrees(name: str) -> Scale:
    """A column of a table of degrees, to be named when a hop joins the table."""
    return library("ibis", "lake")._[name]


def _one() -> Column:
    """A column of ones. DuckDB takes a bare 1.0 for a decimal, whose sums overflow."""
    return library("ibis", "lake").literal(1).cast("float64")

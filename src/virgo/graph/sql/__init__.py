"""Graphs where they live: edges in a lake or a warehouse, hops as joins and group-bys.

>>> import virgo.graph.sql  # doctest: +SKIP
>>> graph = virgo.graph.sql.open("duckdb", "edges/*.parquet")  # doctest: +SKIP
>>> virgo.plan(model, graph, "virgo", mean_features="means.parquet")  # doctest: +SKIP
"""

from __future__ import annotations

from virgo.graph.sql.connections import connect
from virgo.graph.sql.graph import LakeGraph, open
from virgo.graph.sql.vectors import LakeVector

__all__ = ["LakeGraph", "LakeVector", "connect", "open"]

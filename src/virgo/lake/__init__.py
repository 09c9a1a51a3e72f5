"""Graphs where they live: edges in a lake or a warehouse, hops as joins and group-bys.

>>> import virgo.lake  # doctest: +SKIP
>>> graph = virgo.lake.open("duckdb", "edges/*.parquet")  # doctest: +SKIP
>>> virgo.plan(model, graph, "virgo", mean_features="means.parquet")  # doctest: +SKIP
"""

from __future__ import annotations

from .connections import connect
from .graph import LakeGraph, open
from .operators import LakeOperator
from .vectors import LakeVector

__all__ = ["LakeGraph", "LakeOperator", "LakeVector", "connect", "open"]

"""A graph on disk: the operators of :mod:`virgo.graph.operators` over memory-mapped rows.

Only vectors are held in memory. The edges pass through it once a hop, block by block, and each
block is given back when it is done, so a graph of any size takes the memory of its nodes.
"""

from __future__ import annotations

from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy.typing as npt

from virgo.graph.csr import Compressed
from virgo.graph.disk.format import Header, open_array, read_header
from virgo.graph.operators import Graph
from virgo.graph.vectors import Vector


class StoredGraph(Graph):
    """What :meth:`virgo.Graph.open` returns: a folder that ``virgo graph build`` wrote.

    Args:
        path: the folder.
        weighted: whether to use the edge weights, if there are any.
        turned: walk every edge the other way.
        in_memory: read each array once and keep it, for many hops on a machine that has the room.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        weighted: bool = True,
        turned: bool = False,
        in_memory: bool = False,
    ) -> None:
        self.path = Path(path)
        self.header: Header = read_header(self.path)
        self._turned, self._in_memory = turned, in_memory
        self._weighted = weighted and self.header.weighted
        self.num_nodes = self.header.num_nodes
        self.keep_loops = True
        self._made = {}

    def __repr__(self) -> str:
        return (
            f"StoredGraph({str(self.path)!r}, {self.num_nodes:,} nodes, {self.num_edges:,} edges)"
        )

    def __reduce__(self) -> Any:
        """What a copy or another process needs is the folder, not the edges."""
        return self._again(), ()

    def _again(self, **changes: bool) -> partial[StoredGraph]:
        """What opens the folder as it was opened here, but for some changes."""
        how: dict[str, Any] = {
            "weighted": self._weighted,
            "turned": self._turned,
            "in_memory": self._in_memory,
        }
        return partial(StoredGraph, self.path, **{**how, **changes})

    @property
    def num_edges(self) -> int:
        return self.header.num_edges

    @property
    def is_weighted(self) -> bool:
        return self._weighted

    @cached_property
    def by_target(self) -> Compressed:
        return self._rows("out" if self._turned else "in")

    @cached_property
    def by_source(self) -> Compressed:
        return self.by_target if self.header.symmetric else self.reversed.by_target

    def _rows(self, side: str) -> Compressed:
        if self.header.symmetric:
            side = "in"  # one copy serves both

        def array(name: str) -> Any:
            return open_array(self.path, self.header, f"{side}_{name}", mapped=not self._in_memory)

        weights = array("weights") if self._weighted else None
        of = Compressed.of_arrays if self._in_memory else Compressed.of_files
        return of(array("pointer"), array("columns"), weights)

    @cached_property
    def reversed(self) -> StoredGraph:
        if self.header.symmetric:
            return self
        return self._again(turned=not self._turned)()

    @cached_property
    def unweighted(self) -> StoredGraph:
        if not self._weighted:
            return self
        return self._again(weighted=False)()

    @property
    def in_count(self) -> Vector:
        return self.by_target.row_counts()

    @property
    def in_weight(self) -> Vector:
        return self.by_target.row_sums()

    @property
    def has_loops(self) -> bool:
        return self.header.self_loops > 0

    def loop_weights(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return self.by_target.loops()

"""A graph on disk: the operators of :mod:`virgo.graph.operators` over memory-mapped rows.

Only vectors are held in memory. The edges pass through it once per hop, block by block, and each
block is given back when it is done, so a graph of any size takes the memory of its nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path

import torch

from virgo.graph.csr import Bounds, Compressed, LoopArray, Mapped
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

    has_edges_in_memory = False

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
        # no edges in memory: rows come from the folder
        super().__init__(torch.empty(2, 0, dtype=torch.long), self.header.num_nodes)
        self.num_edges = self.header.num_edges
        self.is_weighted = weighted and self.header.weighted
        self._turned, self._in_memory = turned, in_memory

    def __repr__(self) -> str:
        return (
            f"StoredGraph({str(self.path)!r}, {self.num_nodes:,} nodes, {self.num_edges:,} edges)"
        )

    def __reduce__(self) -> tuple[Callable[[], StoredGraph], tuple[()]]:
        """What a copy or another process needs is the folder, not the edges."""
        options = {"turned": self._turned, "in_memory": self._in_memory}
        return partial(StoredGraph, self.path, weighted=self.is_weighted, **options), ()

    @cached_property
    def by_target(self) -> Compressed:
        return self._rows("out" if self._turned else "in")

    @cached_property
    def by_source(self) -> Compressed:
        return self.by_target if self.header.symmetric else self.reversed.by_target

    def _rows(self, side: str) -> Compressed:
        if self.header.symmetric:
            side = "in"  # one copy serves both

        def array(name: str) -> Mapped:
            return open_array(self.path, self.header, f"{side}_{name}", mapped=not self._in_memory)

        weights = array("weights") if self.is_weighted else None
        of = Compressed.of_arrays if self._in_memory else Compressed.of_files
        return of(array("pointer"), array("columns"), weights, Bounds(self.path, self.num_nodes))

    @cached_property
    def reversed(self) -> StoredGraph:
        return self if self.header.symmetric else self._like(_turned=not self._turned)

    @cached_property
    def unweighted(self) -> StoredGraph:
        return self._like(is_weighted=False) if self.is_weighted else self

    @property
    def in_count(self) -> Vector:
        return self.by_target.row_counts()

    @property
    def in_weight(self) -> Vector:
        return self.by_target.row_sums()

    @property
    def has_loops(self) -> bool:
        return self.header.self_loops > 0

    def loop_weights(self) -> tuple[LoopArray, LoopArray]:
        return self.by_target.loops()

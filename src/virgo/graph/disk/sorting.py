"""The second and third pass: from spills to rows, by target and then by source.

The order by source needs no second sort. Edges leave the first in ascending order of their targets
and are partitioned by source as they do; a stable counting sort by source is all that is left.

An external sort of our own: DuckDB's ``ORDER BY`` takes five times as long at 60 million edges, and
does not resume.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from virgo.graph.disk.files import Output
from virgo.graph.disk.format import NARROW_NODES
from virgo.graph.disk.journal import BuildState
from virgo.graph.disk.passes import HALF, Context
from virgo.graph.disk.spills import (
    CELLS,
    RUN,
    Bucket,
    Keys,
    Limits,
    Spill,
    SpillRecord,
    Weights,
    buckets,
    partition,
    shift_for,
)

#: A bucket is not larger than this, or this part of all, even if there is memory for it.
_KEYS = 2**21
_PART = 64
_FILL = 2**20


@dataclass(frozen=True)
class Piece:
    """A sorted bucket: columns, weights, and where each row that ends in it ends."""

    bucket: Bucket
    columns: npt.NDArray[np.signedinteger]
    weights: Weights | None
    ends: npt.NDArray[np.int64]
    loops: int = 0
    records: list[SpillRecord] = field(default_factory=list)


class Sorter:
    """One order of the edges, ``in`` or ``out``, from its spill to its arrays."""

    def __init__(
        self, context: Context, state: BuildState, order: str, onward: Spill | None
    ) -> None:
        self._context, self._order, self._onward = context, order, onward
        self._state, self._num_nodes = state, state.num_nodes
        self._is_weighted = context.source.is_weighted
        top = (state.highest + 1) << HALF
        self._shift = max(HALF, shift_for(top))
        self.spill = Spill(
            context.work.scratch,
            order,
            is_weighted=self._is_weighted,
            span=top,
            columns=state.highest + 1,
        )
        self._column = np.dtype("<i4" if state.num_nodes <= NARROW_NODES else "<i8")
        kinds = {"pointer": "<i8", "columns": self._column.str, "weights": "<f8"}
        sizes = dict.fromkeys(kinds, state.num_edges)
        sizes["pointer"] = (state.sorted_to >> HALF) + 1 if state.sorted_to else 0
        if not self._is_weighted:
            del kinds["weights"]
        self._outputs = {
            name: Output(context.work.folder, f"{order}_{name}", kind, sizes[name])
            for name, kind in kinds.items()
        }
        if not state.sorted_to:
            self._outputs["pointer"].append(np.zeros(1, dtype=np.int64))

    def run(self) -> BuildState:
        """Sort all buckets, several at once, and write them in order."""
        context = self._context
        sort: Callable[[Bucket], Piece] = self._sort if self._order == "in" else self._place
        pending: deque[Future[Piece]] = deque()
        with ThreadPoolExecutor(context.threads) as pool:
            for bucket in self._buckets():
                pending.append(pool.submit(sort, bucket))
                if len(pending) > context.threads:
                    self._write(pending.popleft().result())
            while pending:
                self._write(pending.popleft().result())
        self._fill()
        files = {f"{self._order}_{name}": out.described() for name, out in self._outputs.items()}
        self._state = replace(self._state, files={**self._state.files, **files})
        return self._state

    @property
    def files(self) -> list[int]:
        """What must be on the disk before the journal says so."""
        spilled = self._onward.files if self._onward is not None else []
        return [*(out.file for out in self._outputs.values()), *spilled]

    def _buckets(self) -> Iterator[Bucket]:
        context, total = self._context, int(self.spill.table.totals.sum())
        limits = Limits(
            nbytes=context.memory // (context.threads + 2),
            each_key=64 if self._is_weighted else 24,
            each_row=16,
            keys=max(_KEYS, total // _PART),
        )
        return buckets(self.spill, limits, context.work.scratch, self._state.sorted_to)

    def _rows(self, bucket: Bucket) -> tuple[np.uint64, int]:
        """The first row of a bucket, and how many rows end in it."""
        first = bucket.low >> HALF
        return np.uint64(first), (bucket.high >> HALF) - first

    def _sort(self, bucket: Bucket) -> Piece:
        """Sort by row and column, merge equal edges, and partition them by column."""
        from virgo.graph.disk import kernels

        loaded, unsorted, starts = bucket.spill.load(bucket.first, bucket.last)
        keys = np.empty_like(loaded)
        kernels.regroup(loaded, starts, keys)
        weights = None
        if unsorted is not None:
            weights = np.empty_like(unsorted)
            kernels.regroup(unsorted, starts, weights)
        del loaded, unsorted
        ends = np.cumsum(np.diff(starts, axis=1).sum(axis=0))
        for begin, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
            sort_cell(keys[begin:end], None if weights is None else weights[begin:end])
        if self._context.options.merges:
            kept = kernels.merge_equal(keys, weights)
            keys, weights = keys[:kept], None if weights is None else weights[:kept]
        first, rows = self._rows(bucket)
        columns, ends = np.empty(keys.size, self._column), np.empty(rows, np.int64)
        loops = kernels.settle(keys, first, columns, ends)
        records = self._hand_on(self._onward, bucket, keys, weights) if self._onward else []
        return Piece(bucket, columns, weights, ends, loops, records)

    def _hand_on(
        self, onward: Spill, bucket: Bucket, keys: Keys, weights: Weights | None
    ) -> list[SpillRecord]:
        from virgo.graph.disk import kernels

        records = []
        for begin in range(0, keys.size, RUN):
            part = keys[begin : begin + RUN]
            moved = None if weights is None else weights[begin : begin + RUN]
            counts = np.zeros(CELLS, dtype=np.int64)
            kernels.count_keys(part, np.uint64(0), np.uint64(self._shift), True, counts)
            before = bucket.before + begin
            records.append(partition(onward, part, moved, counts, self._shift, True, before))
        return records

    def _place(self, bucket: Bucket) -> Piece:
        """Sort by row alone, as columns ascend already."""
        from virgo.graph.disk import kernels

        keys, unsorted, starts = bucket.spill.load(bucket.first, bucket.last)
        first, rows = self._rows(bucket)
        partial = 1 if bucket.high & (2**HALF - 1) else 0
        cursor = np.zeros(rows + partial, dtype=np.int64)
        kernels.count_in_rows(keys, first, cursor)
        columns = np.empty(keys.size, self._column)
        weights = None if unsorted is None else np.empty_like(unsorted)
        kernels.place_in_rows(keys, unsorted, starts, first, cursor, columns, weights)
        return Piece(bucket, columns, weights, cursor[:rows])  # each is now where its row ends

    def _write(self, piece: Piece) -> None:
        state, bucket = self._state, piece.bucket
        piece.ends[...] += state.num_edges
        self._outputs["pointer"].append(piece.ends)
        self._outputs["columns"].append(piece.columns)
        if piece.weights is not None:
            self._outputs["weights"].append(piece.weights)
        state = replace(
            state,
            sorted_to=bucket.high,
            num_edges=state.num_edges + piece.columns.size,
            self_loops=state.self_loops + piece.loops,
        )
        if self._onward is not None:
            self._onward.add(piece.records)
            entries = bucket.before + bucket.size
            state = replace(state, entries=entries, runs=state.runs + len(piece.records))
        self._state = state
        self._context.work.note(state, self.files)
        what = "target" if self._order == "in" else "source"
        share = bucket.high * 1000 // (self.spill.base + self.spill.span)
        self._context.progress(share, 1000, f"{state.num_edges:,} edges sorted by {what}")

    def _fill(self) -> None:
        """Nodes after the last that has an edge."""
        pointer = self._outputs["pointer"]
        while pointer.size < self._num_nodes + 1:
            missing = min(_FILL, self._num_nodes + 1 - pointer.size)
            pointer.append(np.full(missing, self._state.num_edges, dtype=np.int64))


def sort_cell(keys: Keys, weights: Weights | None) -> None:
    """Sort some keys in place, stably as far as their weights can tell."""
    from virgo.graph.disk import kernels

    if weights is None:
        keys.sort()
        return
    order = np.argsort(keys)
    keys[...] = keys[order]
    kernels.order_ties(keys, order)
    weights[...] = weights[order]

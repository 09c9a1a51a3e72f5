"""Edges that wait on disk to be sorted: runs of keys, each grouped by cells of equal key ranges.

A run is what one thread partitions in its cache and writes with one call. Where its cells begin is
kept in an index, so all runs' keys of a range are found again with one read per run, and files
neither multiply with the ranges nor need to know how many nodes there will be: cells are powers of
two wide, and a run with wider cells only has fewer of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from virgo.errors import GraphError
from virgo.graph.disk.files import open_file, read_all, write_all

Keys = npt.NDArray[np.uint64]
Weights = npt.NDArray[np.float64]

#: Cells of a run; and edges of a run, so that what is partitioned stays in a core's cache.
CELL_BITS = 10
CELLS = 2**CELL_BITS
RUN = 2**18
_RECORD = np.dtype([("offset", "<i8"), ("shift", "<i8"), ("counts", "<i4", (CELLS,))])
_HALF = 32


@dataclass(frozen=True)
class SpillRecord:
    """Where a run lies, and how many keys each of its cells has."""

    offset: int
    shift: int
    counts: npt.NDArray[np.int64]


def shift_for(span: int) -> int:
    """How wide cells must be, as a power of two, for ``CELLS`` of them to hold ``span`` keys.

    >>> shift_for(1025), shift_for(1024), shift_for(1)
    (1, 0, 0)

    Returns:
        The exponent.
    """
    return max(0, (span - 1).bit_length() - CELL_BITS)


class Spill:
    """Runs of keys (and weights) in one file, with their index.

    Args:
        folder: where the file is.
        name: what it is called.
        base: the least key.
        span: how many numbers from ``base`` on the keys are of; unknown until all are written.
        columns: how many columns there are, at most.
        is_weighted: whether each key has a weight.
        hidden: without a name on disk, so that it is gone when the process is.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        is_weighted: bool,
        base: int = 0,
        span: int = 0,
        columns: int = 2**32,
        hidden: bool = False,
    ) -> None:
        self.is_weighted, self.base, self.span, self.columns = is_weighted, base, span, columns
        self.entry = 16 if is_weighted else 8
        self.paths = folder / f"{name}.spill", folder / f"{name}.index"
        self.files = [open_file(path, self) for path in self.paths]
        if hidden:
            self.forget()

    @property
    def used(self) -> int:
        """How many numbers from ``base`` on can be keys: within a row, columns are the limit."""
        if self.span > 2**_HALF:
            return self.span
        inside: int = self.base & (2**_HALF - 1)
        return max(1, min(self.span, self.columns - inside))

    def forget(self) -> None:
        """Take the files' names away; what is open stays readable."""
        for path in self.paths:
            path.unlink(missing_ok=True)

    def keep(self, runs: int, entries: int) -> None:
        """Cut off what is after the first ``runs`` runs of together ``entries`` keys."""
        os.ftruncate(self.files[0], min(entries * self.entry, os.fstat(self.files[0]).st_size))
        os.ftruncate(self.files[1], runs * _RECORD.itemsize)

    def write(self, before: int, keys: Keys, weights: Weights | None) -> int:
        """Write a run after ``before`` others' keys; returns where. Threads may do so at once."""
        offset = before * self.entry
        write_all(self.files[0], keys, offset)
        if weights is not None:
            write_all(self.files[0], weights, offset + keys.nbytes)
        return offset

    def add(self, records: list[SpillRecord]) -> None:
        """Put runs into the index, in the order of the input."""
        rows = np.zeros(len(records), dtype=_RECORD)
        for row, record in zip(rows, records, strict=True):
            row["offset"], row["shift"], row["counts"] = record.offset, record.shift, record.counts
        write_all(self.files[1], rows, os.fstat(self.files[1]).st_size)

    @cached_property
    def table(self) -> SpillTable:
        """Where each run's cells begin; asked for when all runs are there."""
        size = os.fstat(self.files[1]).st_size
        rows = np.empty(size // _RECORD.itemsize, dtype=_RECORD)
        read_all(self.files[1], rows, 0)
        self._check_index(rows)
        shift = int(rows["shift"].max(initial=0))
        cells = max(1, -(-self.used >> shift))  # rounded up
        starts = np.zeros((rows.size, cells + 1), dtype=np.int32)
        for width in np.unique(rows["shift"]):
            which = np.flatnonzero(rows["shift"] == width)
            sums = np.zeros((which.size, CELLS + 1), dtype=np.int32)
            np.cumsum(rows["counts"][which], axis=1, out=sums[:, 1:])
            edges = np.minimum(np.arange(cells + 1, dtype=np.int64) << (shift - int(width)), CELLS)
            starts[which] = sums[:, edges]
        totals = np.diff(starts, axis=1).sum(axis=0, dtype=np.int64)
        ends = rows["counts"].sum(axis=1, dtype=np.int64)
        return SpillTable(shift, starts, totals, rows["offset"].copy(), ends)

    def _check_index(self, rows: npt.NDArray[np.void]) -> None:
        """Refuse an index that would lead out of the spill: a crash may leave anything in files."""
        counts, room = rows["counts"], os.fstat(self.files[0]).st_size
        sizes = counts.sum(axis=1, dtype=np.int64)
        ends = (rows["offset"] + self.entry * sizes)[
            sizes > 0
        ]  # nothing is written of an empty run
        widest = shift_for(max(self.span, 1))
        good = (
            (counts.min(initial=0) >= 0)
            and (rows["offset"].min(initial=0) >= 0)
            and (ends.max(initial=0) <= room)
            and (0 <= rows["shift"].min(initial=0) <= rows["shift"].max(initial=0))
            # wide enough for all keys in so many cells, and no wider than any run needs
            and (shift_for(self.used) <= rows["shift"].max(initial=0) <= max(_HALF, widest))
        )
        if not good:
            raise self._damaged()

    def _damaged(self) -> GraphError:
        return GraphError(
            f"{self.paths[0]}: expected edges as they were spilled, got others: the files of an "
            f"unfinished build were changed. Run the same command again, it begins afresh."
        )

    def check(self, keys: Keys, low: int, high: int) -> None:
        """Refuse keys that do not belong where they were found, which loops would follow.

        Args:
            keys: as they were read.
            low: the least that may be among them.
            high: the least that is too great.

        Raises:
            GraphError: there are others.
        """
        from virgo.graph.disk import kernels

        if keys.size:
            least, most, column = kernels.key_extent(keys)
            if least < low or most >= high or column >= self.columns:
                raise self._damaged()

    def load(self, first: int, last: int) -> tuple[Keys, Weights | None, npt.NDArray[np.int64]]:
        """All keys of the cells from ``first`` to before ``last``, run after run.

        Returns:
            The keys, their weights, and where each run's cells begin: runs x (cells + 1).
        """
        table = self.table
        starts = table.starts[:, first : last + 1]
        runs = np.flatnonzero(starts[:, -1] > starts[:, 0])
        sizes = (starts[runs, -1] - starts[runs, 0]).astype(np.int64)
        begins = np.concatenate([[0], np.cumsum(sizes)])
        keys = np.empty(int(begins[-1]), dtype=np.uint64)
        weights = np.empty(keys.size) if self.is_weighted else None
        for run, begin, end in zip(runs, begins[:-1], begins[1:], strict=True):
            offset = int(table.offsets[run] + 8 * int(starts[run, 0]))
            read_all(self.files[0], keys[begin:end], offset)
            if weights is not None:
                read_all(self.files[0], weights[begin:end], offset + 8 * int(table.sizes[run]))
        bucket = Bucket(self, first, last, 0)
        self.check(keys, bucket.low, bucket.high)
        inside = starts[runs].astype(np.int64)
        return keys, weights, inside - inside[:, :1] + begins[:-1, None]


@dataclass(frozen=True)
class SpillTable:
    """The index of a spill, with all runs' cells as wide as the widest."""

    shift: int
    starts: npt.NDArray[np.int32]
    totals: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Bucket:
    """A range of keys that is sorted at once.

    ``before`` counts the keys of all earlier buckets.
    """

    spill: Spill
    first: int
    last: int
    before: int

    @property
    def low(self) -> int:
        """The least key it may have."""
        return self.spill.base + (self.first << self.spill.table.shift)

    @property
    def high(self) -> int:
        """The least key that is too great for it."""
        if self.last == self.spill.table.totals.size:
            return self.spill.base + self.spill.span
        return self.spill.base + (self.last << self.spill.table.shift)

    @property
    def size(self) -> int:
        """How many keys it has."""
        return int(self.spill.table.totals[self.first : self.last].sum())


@dataclass(frozen=True)
class Limits:
    """How much a bucket may have: bytes, at so many per key and per row, and keys."""

    nbytes: int
    each_key: int
    each_row: int
    keys: int

    def fits(self, keys: int, rows: int) -> bool:
        """Whether a bucket of that size is small enough."""
        return keys <= self.keys and self.bear(keys, rows)

    def bear(self, keys: int, rows: int) -> bool:
        """Whether a bucket of that size can be held at all."""
        return keys * self.each_key + rows * self.each_row <= self.nbytes


def buckets(
    spill: Spill, limits: Limits, scratch: Path, done: int, before: int = 0
) -> Iterator[Bucket]:
    """Ranges of keys that together are all of a spill, ascending, those up to ``done`` left out.

    A cell that does not fit is partitioned once more, into cells of its own: skewed graphs have
    such cells, and a node with very many edges is divided by its neighbours.

    Yields:
        One range after the other.
    """
    totals, shift = spill.table.totals, spill.table.shift
    rows = max(1, 2**shift >> _HALF)
    first = 0
    while first < totals.size:
        last, keys = first + 1, int(totals[first])
        if not limits.bear(keys, 0) and shift > 0:
            low = spill.base + (first << shift)
            if low + 2**shift > done or last == totals.size:
                finer = split(spill, first, scratch, limits)
                yield from buckets(finer, limits, scratch, done, before)
        else:
            while last < totals.size and limits.fits(
                keys + int(totals[last]), rows * (last + 1 - first)
            ):
                keys += int(totals[last])
                last += 1
            bucket = Bucket(spill, first, last, before)
            if bucket.high > done:
                yield bucket
        first, before = last, before + keys


def split(spill: Spill, cell: int, scratch: Path, limits: Limits) -> Spill:
    """One cell as a spill with finer cells, in the same order."""
    from virgo.graph.disk import kernels

    table = spill.table
    base, span = spill.base + (cell << table.shift), 2**table.shift
    if cell + 1 == table.totals.size:
        span = spill.base + spill.span - base
    finer = Spill(
        scratch,
        "finer",
        is_weighted=spill.is_weighted,
        base=base,
        span=span,
        columns=spill.columns,
        hidden=True,
    )
    shift, before = shift_for(finer.used), 0
    size = max(1, min(RUN, limits.nbytes // (4 * limits.each_key)))
    for run in np.flatnonzero(table.starts[:, cell + 1] > table.starts[:, cell]):
        begin, end = (int(table.starts[run, cell + i]) for i in (0, 1))
        for start in range(begin, end, size):
            stop = min(start + size, end)
            keys, weights = _part(spill, int(run), start, stop)
            spill.check(keys, base, base + span)
            counts = np.zeros(CELLS, dtype=np.int64)
            kernels.count_keys(keys, np.uint64(base), np.uint64(shift), False, counts)
            record = partition(finer, keys, weights, counts, shift, False, before)
            finer.add([record])
            before += keys.size
    return finer


def _part(spill: Spill, run: int, start: int, stop: int) -> tuple[Keys, Weights | None]:
    table = spill.table
    offset = int(table.offsets[run])
    keys = np.empty(stop - start, dtype=np.uint64)
    read_all(spill.files[0], keys, offset + 8 * start)
    if not spill.is_weighted:
        return keys, None
    weights = np.empty(stop - start)
    read_all(spill.files[0], weights, offset + 8 * (int(table.sizes[run]) + start))
    return keys, weights


def partition(
    spill: Spill,
    keys: Keys,
    weights: Weights | None,
    counts: npt.NDArray[np.int64],
    shift: int,
    turn: bool,
    before: int,
) -> SpillRecord:
    """Write keys (turned round, if asked) to a spill as one run."""
    from virgo.graph.disk import kernels

    cursor = np.cumsum(counts) - counts
    out = np.empty_like(keys)
    moved = None if weights is None else np.empty_like(weights)
    kernels.spread_keys(
        keys, weights, np.uint64(spill.base), np.uint64(shift), turn, cursor, out, moved
    )
    return SpillRecord(spill.write(before, out, moved), shift, counts)

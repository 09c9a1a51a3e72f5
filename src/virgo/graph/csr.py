"""Edges as a CSR matrix, and the one loop over them that everything else is made of.

In memory a CSR matrix is built here and nowhere else; on disk, by the external sort of ``disk/``.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from virgo.errors import GraphError
from virgo.graph.threads import balanced_blocks, over_blocks
from virgo.graph.vectors import Vector

Pointer = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int64] | npt.NDArray[np.int32]
#: An ``np.memmap``, or an empty array where a file is empty and cannot be mapped.
Mapped = Any
#: A diagonal: one number per row or one for all. Where self-loops are counted, four bytes will do.
LoopArray = npt.NDArray[Any]
Loops = LoopArray | float
#: Edges a block of mapped rows has: 16 MB of columns.
_MAPPED_BLOCK = 1 << 22
_ROWS = 1 << 22  # of pointers looked at a time


@dataclass(frozen=True)
class Counted:
    """Where each row's edges begin, and whether they lie in that order already."""

    pointer: npt.NDArray[np.int64]
    is_sorted: bool

    @classmethod
    def of(cls, rows: Indices, num_rows: int) -> Counted:
        from virgo.graph import kernels

        pointer = np.zeros(num_rows + 1, dtype=np.int64)
        is_sorted = kernels.count(rows, pointer)
        np.cumsum(pointer, out=pointer)
        return cls(pointer, is_sorted)


class Bounds:
    """Keeps compiled loops within rows that came from files, which anybody may have changed.

    The pointers are checked when the rows are opened. The columns are checked by the first loop
    that follows them, block by block just before it does, so a graph that does not fit into memory
    is not read once more: one comparison per edge in the loop itself would cost up to a third of
    every hop. That they were is remembered together with the files' times of change.

    Args:
        where: the graph, for errors.
        num_nodes: what every column must be below.
    """

    def __init__(self, where: str | Path, num_nodes: int) -> None:
        self.where, self.num_nodes = where, num_nodes
        self.stamp: object = None

    def check_pointer(self, pointer: Pointer, edges: int, mapped: Mapped | None = None) -> None:
        """Refuse pointers that do not lead from the first edge to the last.

        Args:
            pointer: one more than there are rows.
            edges: how many entries there are.
            mapped: the file behind it, whose memory is given back.

        Raises:
            GraphError: they do not.
        """
        from virgo.graph import kernels

        good = pointer.size == self.num_nodes + 1 and pointer[0] == 0 and pointer[-1] == edges
        for begin in range(0, pointer.size, _ROWS) if good else ():
            end = min(begin + _ROWS, pointer.size - 1)
            good = good and kernels.ascends(pointer[begin : end + 1], edges)
            if isinstance(mapped, np.memmap):
                _forget(mapped, begin, end)
        if not good:
            raise self._error("pointers that ascend from 0 to the number of edges")

    def due(self, mapped: Mapping[str, Mapped] | None) -> object:
        """What the files are like, if they are not as they were when their columns were checked.

        Args:
            mapped: the files, or none for arrays in memory.

        Returns:
            To be remembered after the check; none if there is nothing to check.

        Raises:
            GraphError: a file has become shorter: to read beyond its end kills the process.
        """
        stamp: list[object] = [self.num_nodes]
        for array in (mapped or {}).values():
            if isinstance(array, np.memmap) and array.filename is not None:
                file = Path(array.filename)
                try:
                    status = file.stat()
                except OSError:  # moved or removed: what is mapped stays as it is
                    continue
                if status.st_size < array.offset + array.nbytes:
                    raise self._error(f"{array.nbytes:,} bytes in {file.name}")
                stamp.append((status.st_ino, status.st_mtime_ns))
        return None if stamp == self.stamp else stamp

    def check_rows(self, pointer: Pointer, columns: Indices) -> None:
        """Refuse rows that a loop would follow out of its arrays.

        Args:
            pointer: where the rows begin, and where the last ends.
            columns: of all rows.

        Raises:
            GraphError: a pointer or a column is out of range.
        """
        from virgo.graph import kernels

        if not kernels.ascends(pointer, columns.size):
            raise self._error("pointers that ascend from 0 to the number of edges")
        part = columns[int(pointer[0]) : int(pointer[-1])]
        if kernels.greatest(part.view(f"u{part.itemsize}")) >= self.num_nodes:
            raise self._error(f"columns from 0 to {self.num_nodes - 1:,}")

    def _error(self, expected: str) -> GraphError:
        return GraphError(
            f"{self.where}: expected {expected}, got others. Build the graph again; of a graph on "
            f"disk, `virgo graph info --check` names the file that was changed."
        )


@dataclass(frozen=True)
class Compressed:
    """Compressed rows: 64-bit pointers, 32-bit columns where they fit, weights only if given.

    ``mapped`` are the ``np.memmap`` behind the arrays, if they are files. ``bounds`` are kept for
    rows that somebody else wrote: what the compiled loops follow is checked before they do.
    """

    pointer: npt.NDArray[np.int64]
    columns: Indices
    weights: Vector | None
    blocks: npt.NDArray[np.int64]
    mapped: Mapping[str, Mapped] | None = None
    bounds: Bounds | None = None

    @classmethod
    def build(
        cls,
        rows: Indices,
        columns: Indices,
        num_rows: int,
        weights: Vector | None,
        counted: Counted | None = None,
    ) -> Compressed:
        """Counting sort of the edges by row: linear, stable, skipped where already sorted."""
        from virgo.graph import kernels

        counted = counted or Counted.of(rows, num_rows)
        pointer = counted.pointer
        narrow: Any = np.int32 if num_rows <= np.iinfo(np.int32).max else np.int64
        if counted.is_sorted:
            placed: Indices = columns.astype(narrow)
        else:
            placed = np.empty(columns.size, dtype=narrow)
            kernels.scatter(rows, columns, pointer[:-1].copy(), placed)
            if weights is not None:
                unplaced, weights = weights, np.empty_like(weights)
                kernels.scatter(rows, unplaced, pointer[:-1].copy(), weights)
        return cls.of_arrays(pointer, placed, weights)

    @classmethod
    def of_arrays(
        cls,
        pointer: Pointer,
        columns: Indices,
        weights: Vector | None,
        bounds: Bounds | None = None,
    ) -> Compressed:
        """Rows that are compressed already, in memory."""
        if bounds is not None:
            bounds.check_pointer(pointer, columns.size)
        return cls(pointer, columns, weights, balanced_blocks(pointer), None, bounds)

    @classmethod
    def of_files(
        cls, pointer: Mapped, columns: Mapped, weights: Mapped | None, bounds: Bounds
    ) -> Compressed:
        """Rows in mapped files; smaller blocks, since every thread holds one of them."""
        mapped = {"pointer": pointer, "columns": columns}
        if weights is not None:
            mapped["weights"] = weights
        plain = {name: np.asarray(array) for name, array in mapped.items()}
        bounds.check_pointer(plain["pointer"], columns.size, pointer)
        count = max(64, -(-columns.size // _MAPPED_BLOCK))
        blocks = balanced_blocks(plain["pointer"], count)
        return cls(plain["pointer"], plain["columns"], plain.get("weights"), blocks, mapped, bounds)

    @property
    def num_edges(self) -> int:
        return int(self.columns.size)

    def __matmul__(self, x: Vector) -> Vector:
        """The product with a vector or with several columns."""
        return self.hop(x)

    def hop(
        self, x: Vector, left: Vector | float = 1.0, loop: Loops = 0.0, out: Vector | None = None
    ) -> Vector:
        """``diag(left) (M + diag(loop)) x``: one pass over the edges, one new vector or ``out``.

        Every row is summed in the order of its edges by one thread, so the result is the same
        whatever the number of threads.

        Args:
            x: one number per row, or several columns.
            left: the scale of each result.
            loop: what is added to the diagonal.
            out: memory for the result.

        Returns:
            The product.

        Raises:
            GraphError: ``x`` is of another size.
        """
        from virgo.graph import kernels

        if len(x) != self.pointer.size - 1:  # the loop looks up whatever it is told to
            raise GraphError(
                f"x: expected {self.pointer.size - 1:,} numbers, one per node, got {len(x):,}."
            )
        x = np.ascontiguousarray(x, dtype=np.float64)
        out = np.empty(x.shape) if out is None else out
        pointer = self.pointer.view(np.uint64)
        columns = self.columns.view(f"u{self.columns.itemsize}")
        # one number for all rows is a vector of stride zero, for which numba compiles a loop apart
        rest = (x, np.broadcast_to(left, len(x)), np.broadcast_to(loop, len(x)), out)
        several = x.ndim == 2
        weights = self.weights
        if weights is None and several:
            weights = np.broadcast_to(1.0, self.num_edges)
        weighted = kernels.hop_columns if several else kernels.hop_weighted
        stamp = self._due()

        def block(begin: int, end: int) -> None:
            self._check(begin, end, stamp)
            if weights is None:
                kernels.hop(pointer, columns, *rest, begin, end)
            else:
                weighted(pointer, columns, weights, *rest, begin, end)

        work = self.num_edges * (x.shape[1] if several else 1)
        over_blocks(block, self.blocks, work, self._releaser())
        self._checked(stamp)
        return out

    def _due(self) -> object:
        """What the files were like when their columns are to be checked; none if that was done."""
        return None if self.bounds is None else self.bounds.due(self.mapped)

    def _checked(self, stamp: object) -> None:
        if self.bounds is not None and stamp is not None:
            self.bounds.stamp = stamp

    def _check(self, begin: int, end: int, stamp: object) -> None:
        """Rows that a loop is about to follow, once: they are in the cache when it does."""
        if self.bounds is not None and stamp is not None:
            self.bounds.check_rows(self.pointer[begin : end + 1], self.columns)

    def row(self, node: int) -> Indices:
        """The columns of one row."""
        span = self.pointer[node : node + 2]
        if self.bounds is not None:
            self.bounds.check_rows(span, self.columns)
        return self.columns[int(span[0]) : int(span[1])]

    def entries(self) -> tuple[Pointer, Pointer, Vector]:
        """Row, column and weight of every entry, row by row."""
        rows = np.repeat(np.arange(self.pointer.size - 1), np.diff(self.pointer))
        weights = np.ones(rows.size) if self.weights is None else self.weights
        return rows, self.columns.astype(np.int64), weights

    def row_sums(self) -> Vector:
        """``M 1``, without a vector of ones where there are no weights."""
        if self.weights is not None:
            return self.hop(np.ones(self.pointer.size - 1))
        return self.row_counts()

    def row_counts(self) -> Vector:
        """How many entries each row has."""
        out: Vector = np.empty(self.pointer.size - 1)
        for begin in range(0, out.size, _ROWS):
            end = min(begin + _ROWS, out.size)
            np.subtract(self.pointer[begin + 1 : end + 1], self.pointer[begin:end], out[begin:end])
            if self.mapped is not None:
                _forget(self.mapped["pointer"], begin, end)
        return out

    def loops(self) -> tuple[LoopArray, LoopArray]:
        """Of each row's entries in its own column: their total weight, and the weight of the last.

        Rows without weights have the number of such entries twice, as 32-bit integers.

        Returns:
            Both, one per row.
        """
        from virgo.graph import kernels

        kind = np.int32 if self.weights is None else np.float64
        total = np.zeros(self.pointer.size - 1, kind)
        last = total if self.weights is None else np.zeros_like(total)
        stamp = self._due()

        def block(begin: int, end: int) -> None:
            self._check(begin, end, stamp)
            if self.weights is None:
                kernels.find_loops(self.pointer, self.columns, total, begin, end)
            else:
                kernels.find_weighted_loops(
                    self.pointer, self.columns, self.weights, total, last, begin, end
                )

        over_blocks(block, self.blocks, self.num_edges, self._releaser())
        self._checked(stamp)
        return total, last

    def _releaser(self) -> Callable[[int, int], None] | None:
        """What gives a block of rows back to the system, if these arrays are mapped files."""
        if self.mapped is None:
            return None
        mapped, pointer = self.mapped, self.pointer

        def release(begin: int, end: int) -> None:
            first, last = int(pointer[begin]), int(pointer[end])
            for name, array in mapped.items():
                span = (begin, end) if name == "pointer" else (first, last)
                _forget(array, *span)

        return release


def _forget(array: Mapped, begin: int, end: int) -> None:
    """Let go of the pages that lie within these entries of a mapped file.

    They stay in the system's cache, from where they come back at once if needed; without this a
    file that is read once through would count as this process's memory.
    """
    size, page = array.dtype.itemsize, mmap.PAGESIZE
    start = -(-(array.offset + begin * size) // page) * page
    stop = (array.offset + end * size) // page * page
    base: mmap.mmap = array._mmap
    if stop > start and hasattr(base, "madvise"):
        base.madvise(mmap.MADV_DONTNEED, start, stop - start)

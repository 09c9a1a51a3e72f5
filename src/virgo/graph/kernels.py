"""The compiled inner loops, apart because numba takes long to import and longer to compile.

Every row of a compressed matrix is summed by one thread, in order, in float64, so results do not
depend on the number of threads. The loops run without the GIL and are handed to Python threads
in blocks of equal edge count: on a power-law graph, equal row counts would leave one core with
most of the edges. (numba's own threads would change PyTorch's thread count for the whole process.)
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numba
import numpy as np

from virgo.graph.threads import cores

_jit = numba.njit(cache=True, nogil=True)
#: Below this many edges a second thread costs more than it brings.
_WORTH_THREADS = 1 << 20


@_jit
def count(keys: Any, pointer: Any) -> bool:
    """Count ``keys`` into ``pointer[key + 1]``; returns whether they were already sorted."""
    is_sorted = True
    previous = keys[0] if keys.size else 0
    for key in keys:
        if key < previous:
            is_sorted = False
        previous = key
        pointer[key + 1] += 1
    return is_sorted


@_jit
def place(keys: Any, values: Any, cursor: Any, out: Any) -> None:
    """Stable counting sort of ``values`` by ``keys``; ``cursor`` starts as the row pointers."""
    for edge in range(keys.size):
        position = cursor[keys[edge]]
        cursor[keys[edge]] = position + 1
        out[position] = values[edge]


@_jit
def hop(
    pointer: Any, columns: Any, x: Any, left: Any, loop: Any, out: Any, begin: int, end: int
) -> None:
    """``out[i] = left_i (sum of x[j] over row i + loop_i x[i])``; four bytes an edge.

    Indices are unsigned: numba would look whether a signed one counts from the end.
    """
    edge = pointer[begin]
    for row in range(np.uint64(begin), np.uint64(end)):
        total = 0.0
        stop = pointer[row + np.uint64(1)]
        for at in range(edge, stop):
            total += x[columns[at]]
        edge = stop
        out[row] = left[row] * (total + loop[row] * x[row])


@_jit
def hop_weighted(
    pointer: Any,
    columns: Any,
    weights: Any,
    x: Any,
    left: Any,
    loop: Any,
    out: Any,
    begin: int,
    end: int,
) -> None:
    """``out[i] = left_i (sum of weight * x[j] over row i + loop_i x[i])``."""
    edge = pointer[begin]
    for row in range(np.uint64(begin), np.uint64(end)):
        total = 0.0
        stop = pointer[row + np.uint64(1)]
        for at in range(edge, stop):
            total += weights[at] * x[columns[at]]
        edge = stop
        out[row] = left[row] * (total + loop[row] * x[row])


@_jit
def find_loops(pointer: Any, columns: Any, count: Any, begin: int, end: int) -> None:
    """``count[i]`` = how often row ``i`` has itself as a column."""
    for row in range(begin, end):
        for edge in range(pointer[row], pointer[row + 1]):
            if columns[edge] == row:
                count[row] += 1


@_jit
def find_weighted_loops(
    pointer: Any, columns: Any, weights: Any, total: Any, last: Any, begin: int, end: int
) -> None:
    """The total weight of each row's self-loops, and the weight of its last one."""
    for row in range(begin, end):
        for edge in range(pointer[row], pointer[row + 1]):
            if columns[edge] == row:
                total[row] += weights[edge]
                last[row] = weights[edge]


def over_blocks(
    kernel: Callable[[int, int], None],
    blocks: Any,
    edges: int,
    after: Callable[[int, int], None] | None = None,
) -> None:
    """Call ``kernel(begin, end)`` for all rows, block by block on all cores where that pays.

    ``after`` is told of every block that is done, so that memory can be given back.
    """
    if edges < _WORTH_THREADS:
        kernel(int(blocks[0]), int(blocks[-1]))
        if after is not None:
            after(int(blocks[0]), int(blocks[-1]))
        return

    def do(span: tuple[int, int]) -> None:
        kernel(*span)
        if after is not None:
            after(*span)

    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(do, [(int(a), int(b)) for a, b in pairwise(blocks)]))


def balanced_blocks(pointer: Any, count: int | None = None) -> Any:
    """Row boundaries that give each of ``count`` blocks about the same number of edges.

    By default few blocks, as handing one out takes the time of ten thousand edges, but enough for
    every core to have several.
    """
    if count is None:
        count = min(64, max(8, int(pointer[-1]) >> 22))
    # integers, as for others numpy would copy all pointers to look among them
    targets = np.linspace(0, pointer[-1], count + 1).astype(pointer.dtype)
    blocks = np.searchsorted(pointer, targets, side="left").astype(np.int64)
    blocks[0], blocks[-1] = 0, pointer.size - 1
    return np.maximum.accumulate(blocks)

"""The compiled inner loops, apart because numba takes longer to import than all the rest.

Every row of a compressed matrix is summed by one thread, in order, in float64, so results do not
depend on the number of threads. Work is handed out in blocks of equal edge count: on a power-law
graph, equal row counts would leave one core with most of the edges.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

_jit = numba.njit(cache=True, nogil=True)
_parallel_jit = numba.njit(cache=True, nogil=True, parallel=True)


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


@_parallel_jit
def sum_rows(pointer: Any, columns: Any, x: Any, blocks: Any, out: Any) -> None:
    """``out[i] = sum of x[j]`` over row ``i``: no stored values, four bytes an edge."""
    for block in numba.prange(blocks.size - 1):
        for row in range(blocks[block], blocks[block + 1]):
            total = 0.0
            for edge in range(pointer[row], pointer[row + 1]):
                total += x[columns[edge]]
            out[row] = total


@_parallel_jit
def sum_rows_weighted(
    pointer: Any, columns: Any, weights: Any, x: Any, blocks: Any, out: Any
) -> None:
    """``out[i] = sum of weight * x[j]`` over row ``i``."""
    for block in numba.prange(blocks.size - 1):
        for row in range(blocks[block], blocks[block + 1]):
            total = 0.0
            for edge in range(pointer[row], pointer[row + 1]):
                total += weights[edge] * x[columns[edge]]
            out[row] = total


def balanced_blocks(pointer: Any, count: int = 64) -> Any:
    """Row boundaries that give each of ``count`` blocks about the same number of edges."""
    targets = np.linspace(0, pointer[-1], count + 1)
    blocks = np.searchsorted(pointer, targets, side="left").astype(np.int64)
    blocks[0], blocks[-1] = 0, pointer.size - 1
    return np.maximum.accumulate(blocks)

"""The compiled inner loops, apart because numba takes long to import and longer to compile.

Every row of a compressed matrix is summed by one thread, in order, in float64, so results do not
depend on the number of threads. The loops run without the GIL and are handed to Python threads
in blocks of equal edge count: on a power-law graph, equal row counts would leave one core with
most of the edges. (numba's own threads would change PyTorch's thread count for the whole process.)
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numba
import numpy as np

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
def sum_rows(pointer: Any, columns: Any, x: Any, out: Any, begin: int, end: int) -> None:
    """``out[i] = sum of x[j]`` over row ``i``: no stored values, four bytes an edge."""
    for row in range(begin, end):
        total = 0.0
        for edge in range(pointer[row], pointer[row + 1]):
            total += x[columns[edge]]
        out[row] = total


@_jit
def sum_rows_weighted(
    pointer: Any, columns: Any, weights: Any, x: Any, out: Any, begin: int, end: int
) -> None:
    """``out[i] = sum of weight * x[j]`` over row ``i``."""
    for row in range(begin, end):
        total = 0.0
        for edge in range(pointer[row], pointer[row + 1]):
            total += weights[edge] * x[columns[edge]]
        out[row] = total


def product(pointer: Any, columns: Any, weights: Any, x: Any, blocks: Any) -> Any:
    """The product of a compressed matrix with a vector, on all cores where that pays."""
    out = np.empty(pointer.size - 1)
    kernel: Any
    arrays: tuple[Any, ...]
    kernel, arrays = (
        (sum_rows, (pointer, columns, x, out))
        if weights is None
        else (sum_rows_weighted, (pointer, columns, weights, x, out))
    )
    if columns.size < _WORTH_THREADS:
        kernel(*arrays, 0, out.size)
        return out
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        spans = [(int(a), int(b)) for a, b in pairwise(blocks)]
        list(pool.map(lambda span: kernel(*arrays, *span), spans))
    return out


def balanced_blocks(pointer: Any, count: int = 64) -> Any:
    """Row boundaries that give each of ``count`` blocks about the same number of edges."""
    targets = np.linspace(0, pointer[-1], count + 1)
    blocks = np.searchsorted(pointer, targets, side="left").astype(np.int64)
    blocks[0], blocks[-1] = 0, pointer.size - 1
    return np.maximum.accumulate(blocks)

"""The compiled inner loops, apart because numba takes long to import and longer to compile.

Every row of a CSR matrix is summed by one thread, in order, in float64, so results do not depend on
the number of threads. The loops run without the GIL on Python threads (``threads.py``): numba's own
would change PyTorch's thread count for the whole process. ``scipy`` and ``torch.sparse`` need a
value per edge, three times the memory that a hop reads here.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

_jit = numba.njit(cache=True, nogil=True)
#: Arrays of several types: numba compiles a loop for each.
Array = Any


@_jit
def count(keys: Array, pointer: Array) -> bool:
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
def scatter(keys: Array, values: Array, cursor: Array, out: Array) -> None:
    """Stable counting sort of ``values`` by ``keys``; ``cursor`` starts as the row pointers."""
    for edge in range(keys.size):
        position = cursor[keys[edge]]
        cursor[keys[edge]] = position + 1
        out[position] = values[edge]


@_jit
def ascends(pointer: Array, last: int) -> bool:
    """Whether ``pointer`` never falls, begins at 0 or above and stays at or below ``last``."""
    good = True
    for i in range(pointer.size - 1):  # without a way out, so that it is done in vectors
        good &= pointer[i] <= pointer[i + 1]
    return bool(good and pointer[0] >= 0 and pointer[-1] <= last)


@_jit
def greatest(values: Array) -> Any:
    """The greatest of some unsigned numbers; negative ones, seen as unsigned, are the greatest."""
    top = values.dtype.type(0)
    for value in values:
        top = max(top, value)
    return top


@_jit
def hop(
    pointer: Array,
    columns: Array,
    x: Array,
    left: Array,
    loop: Array,
    out: Array,
    begin: int,
    end: int,
) -> None:
    """``out[i] = left_i (sum of x[j] over row i + loop_i x[i])``; four bytes per edge.

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
    pointer: Array,
    columns: Array,
    weights: Array,
    x: Array,
    left: Array,
    loop: Array,
    out: Array,
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
def hop_columns(
    pointer: Array,
    columns: Array,
    weights: Array,
    x: Array,
    left: Array,
    loop: Array,
    out: Array,
    begin: int,
    end: int,
) -> None:
    """:func:`hop_weighted` of several columns: an edge is read once and fetches a whole row.

    Every column is summed in the same order as alone, so it has the same bits. A weight costs
    little beside a row, so edges without weights have ones, and the bits of :func:`hop`.
    """
    edge = pointer[begin]
    for row in range(np.uint64(begin), np.uint64(end)):
        total = out[row]
        total[:] = 0.0
        stop = pointer[row + np.uint64(1)]
        for at in range(edge, stop):
            sent, weight = x[columns[at]], weights[at]
            for i in range(total.size):
                total[i] += weight * sent[i]
        edge = stop
        own, diagonal, scale = x[row], loop[row], left[row]
        for i in range(total.size):
            total[i] = scale * (total[i] + diagonal * own[i])


@_jit
def orthonormalise(rows: Array, tolerance: float) -> None:
    """Gram-Schmidt in place, every row against those before it, twice, which is enough.

    A row of which less than ``tolerance`` is left depends on the others and becomes zero. LAPACK's
    QR wakes all cores for it, which takes longer than these few numbers, and its bits depend on
    their number.
    """
    for i in range(rows.shape[0]):
        row = rows[i]
        before = 0.0
        for at in range(row.size):
            before += row[at] * row[at]
        for _ in range(2):
            for j in range(i):
                other = rows[j]
                product = 0.0
                for at in range(row.size):
                    product += row[at] * other[at]
                for at in range(row.size):
                    row[at] -= product * other[at]
        after = 0.0
        for at in range(row.size):
            after += row[at] * row[at]
        scale = 1.0 / np.sqrt(after) if after > tolerance * tolerance * before else 0.0
        for at in range(row.size):
            row[at] *= scale


@_jit
def find_loops(pointer: Array, columns: Array, count: Array, begin: int, end: int) -> None:
    """``count[i]`` = how often row ``i`` has itself as a column."""
    for row in range(begin, end):
        for edge in range(pointer[row], pointer[row + 1]):
            if columns[edge] == row:
                count[row] += 1


@_jit
def find_weighted_loops(
    pointer: Array, columns: Array, weights: Array, total: Array, last: Array, begin: int, end: int
) -> None:
    """The total weight of each row's self-loops, and the weight of its last one."""
    for row in range(begin, end):
        for edge in range(pointer[row], pointer[row + 1]):
            if columns[edge] == row:
                total[row] += weights[edge]
                last[row] = weights[edge]

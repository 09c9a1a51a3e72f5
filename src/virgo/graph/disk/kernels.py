"""The compiled loops of a build, apart because numba takes long to import and to compile.

An edge is one 64-bit number, its row above its column, so that sorting edges by row and column is
sorting numbers: numpy does that with the processor's vectors. What numba adds are the passes around
it, all linear and stable, all without the GIL so that two Python threads use two cores.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

#: Arrays of several types: numba compiles a loop for each.
Array = Any
_jit = numba.njit(cache=True, nogil=True)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


@_jit
def extent(first: Array, second: Array) -> tuple[int, int]:
    """The least and the greatest number of two arrays."""
    low, high = first[0], first[0]
    for i in range(first.size):
        low = min(low, min(first[i], second[i]))
        high = max(high, max(first[i], second[i]))
    return low, high


@_jit
def key_extent(keys: Array) -> tuple[int, int, int]:
    """The least and the greatest key, and the greatest column among them."""
    low, high, column = keys[0], keys[0], keys[0] & _LOW
    for key in keys:
        low, high = min(low, key), max(high, key)
        column = max(column, key & _LOW)
    return low, high, column


@_jit
def count_rows(
    rows: Array, columns: Array, shift: Array, drop: bool, both: bool, counts: Array
) -> None:
    """Count the edges of each cell, a cell being ``2 ** shift`` rows."""
    for i in range(rows.size):
        row, column = rows[i], columns[i]
        if drop and row == column:
            continue
        counts[row >> shift] += 1
        if both:
            counts[column >> shift] += 1


@_jit
def spread_rows(
    rows: Array,
    columns: Array,
    weights: Array,
    shift: Array,
    drop: bool,
    both: bool,
    cursor: Array,
    keys: Array,
    moved: Array,
) -> None:
    """Put each edge (and, if ``both``, its reverse right after it) where its cell has got to."""
    for i in range(rows.size):
        row, column = rows[i], columns[i]
        if drop and row == column:
            continue
        cell = row >> shift
        slot = cursor[cell]
        cursor[cell] = slot + 1
        keys[slot] = (np.uint64(row) << _HALF) | np.uint64(column)
        if weights is not None:
            moved[slot] = weights[i]
        if both:
            cell = column >> shift
            slot = cursor[cell]
            cursor[cell] = slot + 1
            keys[slot] = (np.uint64(column) << _HALF) | np.uint64(row)
            if weights is not None:
                moved[slot] = weights[i]


@_jit
def count_keys(keys: Array, base: Array, shift: Array, turn: bool, counts: Array) -> None:
    """Count the keys of each cell, a cell being ``2 ** shift`` numbers from ``base`` on."""
    for i in range(keys.size):
        key = keys[i]
        if turn:
            key = (key << _HALF) | (key >> _HALF)
        counts[np.int64((key - base) >> shift)] += 1


@_jit
def spread_keys(
    keys: Array,
    weights: Array,
    base: Array,
    shift: Array,
    turn: bool,
    cursor: Array,
    out: Array,
    moved: Array,
) -> None:
    """Put each key (turned round: its column is the row) where its cell has got to."""
    for i in range(keys.size):
        key = keys[i]
        if turn:
            key = (key << _HALF) | (key >> _HALF)
        cell = np.int64((key - base) >> shift)
        slot = cursor[cell]
        cursor[cell] = slot + 1
        out[slot] = key
        if weights is not None:
            moved[slot] = weights[i]


@_jit
def regroup(values: Array, starts: Array, out: Array) -> None:
    """From run after run of cells to cell after cell of runs; ``starts`` is runs x (cells + 1)."""
    slot = 0
    for cell in range(starts.shape[1] - 1):
        for run in range(starts.shape[0]):
            for i in range(starts[run, cell], starts[run, cell + 1]):
                out[slot] = values[i]
                slot += 1


@_jit
def order_ties(keys: Array, order: Array) -> None:
    """Make a sort stable: where sorted ``keys`` are equal, their ``order`` ascends."""
    begin = 0
    for i in range(1, keys.size + 1):
        if i == keys.size or keys[i] != keys[begin]:
            if i - begin > 1:
                order[begin:i].sort()
            begin = i


@_jit
def merge_equal(keys: Array, weights: Array) -> int:
    """Keep one of equal neighbours, its weight their sum in order; returns how many are left."""
    kept = 0
    for i in range(1, keys.size):
        if keys[i] == keys[kept]:
            if weights is not None:
                weights[kept] += weights[i]
        else:
            kept += 1
            keys[kept] = keys[i]
            if weights is not None:
                weights[kept] = weights[i]
    return kept + 1 if keys.size else 0


@_jit
def settle(keys: Array, first: Array, columns: Array, ends: Array) -> int:
    """From sorted keys their columns and where each row ends; returns the number of loops."""
    loops, i = 0, 0
    for row in range(ends.size + 1):
        here = first + np.uint64(row)
        last = row == ends.size  # a row that goes on after these keys
        while i < keys.size and (last or (keys[i] >> _HALF) == here):
            column = keys[i] & _LOW
            columns[i] = column
            if column == keys[i] >> _HALF:
                loops += 1
            i += 1
        if not last:
            ends[row] = i
    return loops


@_jit
def count_in_rows(keys: Array, first: Array, cursor: Array) -> None:
    """``cursor[row]`` becomes where the row's first edge belongs, counting from ``first``."""
    for i in range(keys.size):
        cursor[np.int64((keys[i] >> _HALF) - first)] += 1
    total = 0
    for row in range(cursor.size):
        count = cursor[row]
        cursor[row] = total
        total += count


@_jit
def place_in_rows(
    keys: Array,
    weights: Array,
    starts: Array,
    first: Array,
    cursor: Array,
    columns: Array,
    moved: Array,
) -> None:
    """Stable counting sort by row, cell after cell so that what is written to stays in cache."""
    for cell in range(starts.shape[1] - 1):
        for run in range(starts.shape[0]):
            for i in range(starts[run, cell], starts[run, cell + 1]):
                row = np.int64((keys[i] >> _HALF) - first)
                slot = cursor[row]
                cursor[row] = slot + 1
                columns[slot] = keys[i] & _LOW
                if weights is not None:
                    moved[slot] = weights[i]


@_jit
def find_texts(
    begins: Array, texts: Array, sorted_begins: Array, sorted_texts: Array, out: Array
) -> None:
    """Where each of some texts is among sorted ones (all UTF-8, one after another); -1 if not."""
    for i in range(begins.size - 1):
        begin, length = begins[i], begins[i + 1] - begins[i]
        low, high = 0, sorted_begins.size - 1
        out[i] = -1
        while low < high:
            middle = (low + high) // 2
            other, size = sorted_begins[middle], sorted_begins[middle + 1] - sorted_begins[middle]
            k = 0
            while k < length and k < size and texts[begin + k] == sorted_texts[other + k]:
                k += 1
            if k == length and k == size:
                out[i] = middle
                break
            if k == size or (k < length and texts[begin + k] > sorted_texts[other + k]):
                low = middle + 1
            else:
                high = middle

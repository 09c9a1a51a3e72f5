"""Compiled loops of neighbour sampling, in their own module because numba is slow to import.

Random numbers are splitmix64: a counter and a mixing function, so the whole state of a batch is one
64-bit word that depends only on the seed, the epoch and the nodes of the batch. Batches share
nothing, hence neither the number of loader workers nor the number of threads changes a sample. The
loops run without the GIL.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numba
import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.int32]
Word: TypeAlias = Any  # np.uint64: numpy's stubs widen its arithmetic, numba does not

_jit = numba.njit(cache=True, nogil=True)

# Every operand of a 64-bit word is unsigned too: numba promotes a mixed pair to float.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_27, _30, _31, _32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


@_jit
def mix(word: Word) -> Word:
    """The output function of splitmix64: a bijection that spreads every bit over all 64."""
    word = (word ^ (word >> _30)) * _FIRST
    word = (word ^ (word >> _27)) * _SECOND
    return word ^ (word >> _31)


@_jit
def fold(word: Word, numbers: Array | npt.NDArray[np.uint64]) -> Word:
    """A word that depends on ``word`` and on ``numbers`` in their order."""
    for number in numbers:
        word = mix((word ^ np.uint64(number)) + _STEP)
    return word


@_jit
def below(bound: Word, state: npt.NDArray[np.uint64]) -> Word:
    """A uniform integer in ``[0, bound)`` for ``bound < 2^32``; exactly uniform, by rejection."""
    state[0] += _STEP
    product = (mix(state[0]) >> _32) * bound
    if product & _LOW < bound:
        # The few words that would favour small results are drawn again.
        least = ((_LOW - bound) + np.uint64(1)) % bound
        while product & _LOW < least:
            state[0] += _STEP
            product = (mix(state[0]) >> _32) * bound
    return product >> _32


@_jit
def count_hop(pointer: Array, frontier: Array, fanout: int) -> int:
    """The number of edges that one hop from ``frontier`` samples."""
    total = 0
    for node in frontier:
        degree = pointer[node + 1] - pointer[node]
        total += degree if fanout < 0 else min(degree, fanout)
    return total


@_jit
def assign_positions(nodes: Array, position: Array) -> None:
    """Set the position of each node in the batch; a repeated node keeps its first position."""
    for index in range(nodes.size):
        if position[nodes[index]] < 0:
            position[nodes[index]] = index


@_jit
def clear_positions(nodes: Array, position: Array) -> None:
    """Reset ``position`` to -1, at the cost of the batch and not of the graph."""
    for node in nodes:
        position[node] = -1


@_jit
def choose(
    pointer: Array,
    frontier: Array,
    first: int,
    fanout: int,
    state: npt.NDArray[np.uint64],
    seen: Array,
    col: Array,
    at: Array,
) -> None:
    """Choose up to ``fanout`` in-edges of every node of ``frontier``, all for ``fanout < 0``.

    A subset of a node's edges is drawn by Floyd's algorithm: as many draws as edges wanted, every
    subset equally likely. ``seen[offset]`` holds the last stamp at which an offset was chosen, so
    it never needs clearing; its last element is the running stamp.

    Args:
        pointer: CSR row pointer of the graph.
        frontier: nodes whose in-edges are sampled.
        first: position of the first frontier node in the batch.
        fanout: in-edges per node.
        state: state of the random stream, updated.
        seen: stamps per edge offset, updated.
        col: position of every edge's target, written.
        at: every edge's index in the CSR columns, written.
    """
    edge = 0
    for index in range(frontier.size):
        begin = pointer[frontier[index]]
        degree = pointer[frontier[index] + 1] - begin
        if fanout < 0 or degree <= fanout:
            for offset in range(degree):
                col[edge], at[edge] = first + index, begin + offset
                edge += 1
            continue
        seen[-1] += 1
        for offset in range(degree - fanout, degree):
            chosen = np.int64(below(np.uint64(offset + 1), state))
            if seen[chosen] == seen[-1]:
                chosen = np.int64(offset)
            seen[chosen] = seen[-1]
            col[edge], at[edge] = first + index, begin + chosen
            edge += 1


@_jit
def discover(
    columns: Array, at: Array, known: int, position: Array, row: Array, fresh: Array
) -> int:
    """Look up the position of every chosen edge's source; a new node gets the next position.

    Args:
        columns: CSR columns of the graph.
        at: indices of the chosen edges in ``columns``.
        known: number of nodes that have a position.
        position: positions per node, updated.
        row: position of every edge's source, written.
        fresh: nodes met for the first time, written.

    Returns:
        The number of nodes written to ``fresh``.
    """
    # A loop of its own: reads that depend on no branch wait for memory together.
    for edge in range(at.size):
        row[edge] = columns[at[edge]]
    count = 0
    for edge in range(at.size):
        source = row[edge]
        if position[source] < 0:
            position[source] = known + count
            fresh[count] = source
            count += 1
        row[edge] = position[source]
    return count

"""The compiled loops of neighbour sampling, apart because numba takes long to import.

Random numbers are splitmix64: a counter and a mixing function, so the whole state of a batch is
one 64-bit word that follows from the seed, the epoch and the nodes of the batch. Nothing is shared
between batches, hence neither the number of loader workers nor that of threads can change a
sample. The loops run without the GIL.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

_jit = numba.njit(cache=True, nogil=True)

# Every number beside a 64-bit word is unsigned too: numba makes a float of a mixed pair.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_27, _30, _31, _32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


@_jit
def mix(word: Any) -> Any:
    """The output function of splitmix64: a bijection that spreads every bit over all 64."""
    word = (word ^ (word >> _30)) * _FIRST
    word = (word ^ (word >> _27)) * _SECOND
    return word ^ (word >> _31)


@_jit
def fold(word: Any, numbers: Any) -> Any:
    """A word that depends on ``word`` and on ``numbers`` in their order."""
    for number in numbers:
        word = mix((word ^ np.uint64(number)) + _STEP)
    return word


@_jit
def below(bound: Any, state: Any) -> Any:
    """A uniform integer in ``[0, bound)`` for ``bound < 2^32``; exactly uniform, by rejection."""
    state[0] += _STEP
    product = (mix(state[0]) >> _32) * bound
    if product & _LOW < bound:
        # The few words that would favour the small results are drawn again.
        least = ((_LOW - bound) + np.uint64(1)) % bound
        while product & _LOW < least:
            state[0] += _STEP
            product = (mix(state[0]) >> _32) * bound
    return product >> _32


@_jit
def count(targets: Any, sources: Any, num_nodes: int, pointer: Any) -> int:
    """Count ``targets`` into ``pointer[target + 1]``.

    Returns:
        0 for edges already in order of target, 1 for others, 2 if an edge leaves ``[0, N)``.
    """
    unsorted = 0
    previous = targets[0] if targets.size else 0
    for edge in range(targets.size):
        target, source = targets[edge], sources[edge]
        if target < 0 or target >= num_nodes or source < 0 or source >= num_nodes:
            return 2
        if target < previous:
            unsorted = 1
        previous = target
        pointer[target + 1] += 1
    return unsorted


@_jit
def place(targets: Any, sources: Any, cursor: Any, columns: Any, ids: Any) -> None:
    """Stable counting sort of the edges by target; ``ids`` may be empty if nobody wants them."""
    wanted = ids.size > 0
    for edge in range(targets.size):
        position = cursor[targets[edge]]
        cursor[targets[edge]] = position + 1
        columns[position] = sources[edge]
        if wanted:
            ids[position] = edge


@_jit
def count_hop(pointer: Any, frontier: Any, fanout: int) -> int:
    """How many edges one hop from ``frontier`` samples."""
    total = 0
    for node in frontier:
        degree = pointer[node + 1] - pointer[node]
        total += degree if fanout < 0 else min(degree, fanout)
    return total


@_jit
def number(nodes: Any, local: Any) -> None:
    """Write the place of each node; a node that comes twice is known by its first place."""
    for place_ in range(nodes.size):
        if local[nodes[place_]] < 0:
            local[nodes[place_]] = place_


@_jit
def forget(nodes: Any, local: Any) -> None:
    """Make ``local`` blank again, at the cost of what was written and not of the graph."""
    for node in nodes:
        local[node] = -1


@_jit
def choose(
    pointer: Any, frontier: Any, first: int, fanout: int, state: Any, seen: Any, col: Any, at: Any
) -> None:
    """Choose up to ``fanout`` in-edges of every node of ``frontier``, all for ``fanout < 0``.

    A subset of a node's edges is drawn by Floyd's algorithm: as many draws as edges wanted, every
    subset equally likely. ``seen[offset]`` holds the last stamp at which an offset was chosen, so
    that it never needs clearing; the running stamp is its last element.

    Args:
        first: place of the first frontier node among all nodes of the batch.
        col: place of every edge's target, written.
        at: every edge's position in the compressed graph, written.
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
            chosen: Any = np.int64(below(np.uint64(offset + 1), state))
            if seen[chosen] == seen[-1]:
                chosen = offset
            seen[chosen] = seen[-1]
            col[edge], at[edge] = first + index, begin + chosen
            edge += 1


@_jit
def discover(columns: Any, at: Any, known: int, local: Any, row: Any, fresh: Any) -> int:
    """Find the place of every chosen edge's source; a node without one gets the next.

    Args:
        known: number of nodes that have a place so far.
        row: place of every edge's source, written.
        fresh: nodes met for the first time, written.

    Returns:
        How many were written to ``fresh``.
    """
    # A loop of its own: reads that depend on no branch wait for memory together.
    for edge in range(at.size):
        row[edge] = columns[at[edge]]
    found = 0
    for edge in range(at.size):
        source = row[edge]
        if local[source] < 0:
            local[source] = known + found
            fresh[found] = source
            found += 1
        row[edge] = local[source]
    return found

"""Work on all cores: how many there are, and rows of a matrix divided among them."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import numpy.typing as npt

#: Below this many edges a second thread costs more than it brings.
_WORTH_THREADS = 1 << 20


def cores() -> int:
    """The cores that this process may use, which a container or ``taskset`` may have narrowed."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def over_blocks(
    kernel: Callable[[int, int], None],
    blocks: npt.NDArray[np.int64],
    edges: int,
    after: Callable[[int, int], None] | None = None,
) -> None:
    """Call ``kernel(begin, end)`` for all rows, block by block on all cores where that pays.

    Args:
        kernel: compiled code that releases the GIL.
        blocks: the rows where blocks begin, and the end of the last.
        edges: how many entries all rows have.
        after: called with every block that is done, so that memory can be given back.
    """

    def do(span: tuple[int, int]) -> None:
        kernel(*span)
        if after is not None:
            after(*span)

    if edges < _WORTH_THREADS:
        do((int(blocks[0]), int(blocks[-1])))
        return
    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(do, [(int(a), int(b)) for a, b in pairwise(blocks)]))


def balanced_blocks(
    pointer: npt.NDArray[np.int64], count: int | None = None
) -> npt.NDArray[np.int64]:
    """Row boundaries that give each of ``count`` blocks about the same number of edges.

    On a power-law graph, equal row counts would leave one core with most of the edges. By default
    few blocks, as handing one out takes the time of ten thousand edges, but several per core.

    Args:
        pointer: where the edges of each row begin.
        count: how many blocks.

    Returns:
        The boundaries, one more than there are blocks.
    """
    if count is None:
        count = min(64, max(8, int(pointer[-1]) >> 22))
    # integers, as for others numpy would copy all pointers to look among them
    targets = np.linspace(0, pointer[-1], count + 1).astype(pointer.dtype)
    blocks = np.searchsorted(pointer, targets, side="left").astype(np.int64)
    blocks[0], blocks[-1] = 0, pointer.size - 1
    return np.maximum.accumulate(blocks)

"""Arrays written to and read from a place in an open file, by several threads at once."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

#: Bytes written by one call. For larger ones Linux looks for large pieces of free memory to cache
#: them in, which on a busy machine takes longer than the writing.
_WRITE = 2**18


def bytes_of(array: npt.NDArray[Any]) -> memoryview:
    """An array's memory."""
    raw: Any = array.view(np.uint8)
    return memoryview(raw)


def write_all(file: int, array: npt.NDArray[Any], offset: int) -> None:
    """Write an array at a place in a file, whatever a single call writes."""
    view = bytes_of(array)
    while view:
        written = os.pwrite(file, view[:_WRITE], offset)
        view, offset = view[written:], offset + written


def read_all(file: int, array: npt.NDArray[Any], offset: int) -> None:
    """Fill an array from a place in a file."""
    view = bytes_of(array)
    while view:
        got = os.preadv(file, [view], offset)
        if not got:
            raise OSError("a spill file that is shorter than it was")
        view, offset = view[got:], offset + got

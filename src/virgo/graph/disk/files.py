"""Arrays in open files: read and written at an offset, by several threads at once."""

from __future__ import annotations

import hashlib
import os
import weakref
from pathlib import Path

import numpy as np
import numpy.typing as npt

from virgo.errors import GraphError
from virgo.graph.disk.format import array_path

#: Bytes written by one call. For larger ones Linux looks for large pieces of free memory to cache
#: them in, which on a busy machine takes longer than the writing.
_WRITE = 2**18
_BLOCK = 2**22


def open_file(path: Path, owner: object) -> int:
    """A file to read and write, made if it is not there, closed when ``owner`` is gone."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    weakref.finalize(owner, os.close, file)
    return file


def _bytes(array: npt.NDArray[np.generic]) -> memoryview:
    return memoryview(array.view(np.uint8))  # type: ignore[arg-type]


def write_all(file: int, array: npt.NDArray[np.generic], offset: int) -> None:
    """Write an array at an offset of a file, whatever a single call writes."""
    view = _bytes(array)
    while view:
        written = os.pwrite(file, view[:_WRITE], offset)
        view, offset = view[written:], offset + written


def read_all(file: int, array: npt.NDArray[np.generic], offset: int) -> None:
    """Fill an array from an offset of a file."""
    view = _bytes(array)
    while view:
        got = os.preadv(file, [view], offset)
        if not got:
            raise OSError("a spill file that is shorter than it was")
        view, offset = view[got:], offset + got


class Output:
    """One array of a graph while it is written: appended to, with a checksum that runs along.

    Args:
        folder: the graph's folder.
        name: the array's name.
        dtype: its type, little-endian.
        size: how many elements of an earlier process are kept.

    Raises:
        GraphError: the file has fewer elements than that.
    """

    def __init__(self, folder: Path, name: str, dtype: str, size: int = 0) -> None:
        self.dtype, self.size = np.dtype(dtype), size
        path = array_path(folder, name)
        self.file = open_file(path, self)
        if (there := os.fstat(self.file).st_size) < self._nbytes:
            raise GraphError(
                f"{path}: expected {self._nbytes:,} bytes, got {there:,}: the files of an "
                f"unfinished build were changed. Remove {folder} and build again."
            )
        os.ftruncate(self.file, self._nbytes)
        self._digest = hashlib.sha256()
        for offset in range(0, self._nbytes, _BLOCK):  # a checksum's state cannot be kept
            length = min(_BLOCK, self._nbytes - offset)
            self._digest.update(os.pread(self.file, length, offset))

    @property
    def _nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def append(self, values: npt.NDArray[np.generic]) -> None:
        """Write more elements."""
        values = np.ascontiguousarray(values, dtype=self.dtype)
        write_all(self.file, values, self._nbytes)
        self._digest.update(_bytes(values))
        self.size += values.size

    def described(self) -> dict[str, str | int]:
        """What the header says about it."""
        return {"dtype": self.dtype.str, "size": self.size, "sha256": self._digest.hexdigest()}

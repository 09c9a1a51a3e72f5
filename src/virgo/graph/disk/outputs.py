"""The arrays of a graph while they are written: appended to, with a checksum that runs along."""

from __future__ import annotations

import hashlib
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from virgo.graph.disk.files import bytes_of, write_all
from virgo.graph.disk.format import array_path

_BLOCK = 2**22


class Output:
    """One array that grows.

    Args:
        folder: the graph's folder.
        name: the array's name.
        dtype: its type, little-endian.
        size: how many elements of an earlier process are kept.
    """

    def __init__(self, folder: Path, name: str, dtype: str, size: int = 0) -> None:
        self.name, self.dtype, self.size = name, np.dtype(dtype), size
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
        self.file = os.open(array_path(folder, name), flags, 0o644)
        weakref.finalize(self, os.close, self.file)
        os.ftruncate(self.file, self._nbytes)
        self._digest = hashlib.sha256()
        for offset in range(0, self._nbytes, _BLOCK):  # a checksum's state cannot be kept
            length = min(_BLOCK, self._nbytes - offset)
            self._digest.update(os.pread(self.file, length, offset))

    @property
    def _nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def append(self, values: npt.NDArray[Any]) -> None:
        """Write more elements."""
        values = np.ascontiguousarray(values, dtype=self.dtype)
        write_all(self.file, values, self._nbytes)
        self._digest.update(bytes_of(values))
        self.size += values.size

    def described(self) -> dict[str, Any]:
        """What the header says about it."""
        return {"dtype": self.dtype.str, "size": self.size, "sha256": self._digest.hexdigest()}

"""Edges from a compressed ``.npz``, as ``np.savez_compressed`` and OGB's largest graphs have them.

It cannot be mapped. One stream a column is unpacked side by side, so that neither the file nor an
array is ever in memory as a whole.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from virgo.errors import DataError
from virgo.graph.disk.chunks import BROKEN, Chunk, Position, damaged, numbered

_BLOCK = 2**22


def array_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, Any]:
    """Shape, whether columns come first, and type of the array that follows in the file."""
    version = np.lib.format.read_magic(file)
    old = version == (1, 0)
    read: Any = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("Python objects in place of numbers")
    return shape, is_fortran, dtype


@dataclass(frozen=True)
class _Stream:
    """A part of an array: ``width`` numbers an edge, after ``skip`` others."""

    member: str
    dtype: Any
    width: int
    skip: int
    size: int

    def open(self, packed: zipfile.ZipFile, stack: ExitStack, edge: int) -> IO[bytes]:
        """The bytes from an edge on."""
        file = stack.enter_context(packed.open(f"{self.member}.npy"))
        array_header(file)
        left = (self.skip + edge * self.width) * self.dtype.itemsize
        while left:
            got = len(file.read(min(left, _BLOCK)))
            if not got:
                raise EOFError("an array that ends early")
            left -= got
        return file

    def read(self, file: IO[bytes], edges: int) -> Any:
        """That many edges, ``[edges, width]``."""
        wanted = edges * self.width * self.dtype.itemsize
        data = file.read(wanted)
        if len(data) < wanted:
            raise EOFError("an array that ends early")
        return np.frombuffer(data, self.dtype).reshape(edges, self.width)


class PackedFile:
    """The arrays ``names`` of a compressed archive: edges, or sources and targets; weights."""

    has_strings = False

    def __init__(self, path: Path, names: list[str]) -> None:
        self.path = path
        self.is_weighted = names[-1] == "edge_weight"
        try:
            with zipfile.ZipFile(path) as packed:
                self._streams = [one for name in names for one in self._layout(packed, name)]
        except DataError:
            raise
        except BROKEN as error:
            raise damaged(path, ".npz file", error) from error
        sizes = {one.size for one in self._streams}
        if len(sizes) > 1:
            raise DataError(
                f"{path}: expected as many sources as targets and weights, got "
                f"{' and '.join(map(str, sorted(sizes)))}."
            )
        self.num_edges: int = sizes.pop()

    def _layout(self, packed: zipfile.ZipFile, name: str) -> list[_Stream]:
        with packed.open(f"{name}.npy") as file:
            shape, is_fortran, dtype = array_header(file)
        kinds, what = ("iuf", "numbers") if name == "edge_weight" else ("iu", "integer ids")
        if dtype.kind not in kinds:
            raise DataError(f"{self.path}: expected {what}, got {dtype} in {name}.")
        count = int(np.prod(shape))
        if name != "edge_index":
            return [_Stream(name, dtype, 1, 0, count)]
        if len(shape) != 2 or 2 not in shape:
            raise DataError(
                f"{self.path}: expected an array of shape [2, E] or [E, 2], got {list(shape)}."
            )
        size = count // 2
        if (shape[0] == 2) != is_fortran:  # all sources, then all targets
            return [_Stream(name, dtype, 1, first, size) for first in (0, size)]
        return [_Stream(name, dtype, 2, 0, size)]

    def chunks(self, start: Position | None, limit: int) -> Iterator[Chunk]:
        total = self.path.stat().st_size
        try:
            with zipfile.ZipFile(self.path) as packed, ExitStack() as stack:
                begin = start[0] if start else 0
                files = [one.open(packed, stack, begin) for one in self._streams]
                while begin < self.num_edges:
                    end = min(begin + limit, self.num_edges)
                    parts = [
                        one.read(file, end - begin)
                        for one, file in zip(self._streams, files, strict=True)
                    ]
                    columns = [column for part in parts for column in part.T]
                    weights = columns[2].astype(np.float64) if self.is_weighted else None
                    yield Chunk(
                        columns[0],
                        columns[1],
                        weights,
                        [end],
                        total * end // self.num_edges,
                        numbered(self.path, begin),
                    )
                    begin = end
        except BROKEN as error:
            if isinstance(error, DataError):
                raise
            raise damaged(self.path, ".npz file", error) from error

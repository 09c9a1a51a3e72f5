"""Edges from numpy's and PyTorch's files, mapped into memory a piece at a time.

A map is made anew for every piece and dropped with it: pages of a mapped file count as the
process's memory for as long as the map lives.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from virgo.errors import DataError
from virgo.graph.disk.chunks import BROKEN, Chunk, Position, Reader, damaged, numbered
from virgo.graph.disk.packed import PackedFile, array_header

PAIRS = (("src", "dst"), ("source", "target"), ("row", "col"), ("from", "to"))


@dataclass(frozen=True)
class Columns:
    """Arrays of sources, targets and weights, however they lie in the file."""

    sources: Any
    targets: Any
    weights: Any

    @classmethod
    def of(cls, edges: Any, weights: Any, where: Path) -> Columns:
        """Of one array ``[2, E]`` or ``[E, 2]`` (the former, if it is 2 by 2)."""
        if edges.ndim != 2 or 2 not in edges.shape:
            raise DataError(
                f"{where}: expected an array of shape [2, E] or [E, 2], got {list(edges.shape)}."
            )
        rows = edges if edges.shape[0] == 2 else edges.T
        return cls(rows[0], rows[1], weights)

    def check(self, where: Path) -> Columns:
        """Itself, if it is a list of edges."""
        for one in (self.sources, self.targets):
            if one.dtype.kind not in "iu":
                raise DataError(
                    f"{where}: expected integer ids, got {one.dtype}. Store them as int64."
                )
        sizes = {len(one) for one in (self.sources, self.targets)}
        if self.weights is not None:
            if self.weights.dtype.kind not in "iuf":
                raise DataError(f"{where}: expected numbers as weights, got {self.weights.dtype}.")
            sizes.add(self.weights.size)
        if len(sizes) > 1:
            raise DataError(
                f"{where}: expected as many sources as targets and weights, got "
                f"{' and '.join(map(str, sorted(sizes)))}."
            )
        return self


@dataclass(frozen=True)
class Stretch:
    """Numbers that lie one after another in a file; a slice of it is read when it is taken.

    Threads that read what they work on next find it in their cache, which a map's pages are not.
    """

    path: Path
    dtype: np.dtype[Any]
    offset: int
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> Any:
        begin, end, _ = part.indices(self.size)
        return replace(self, offset=self.offset + begin * self.dtype.itemsize, size=end - begin)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        values = np.fromfile(self.path, self.dtype, self.size, offset=self.offset)
        if values.size < self.size:
            raise damaged(self.path, "file", "one that has become shorter")
        return values if dtype is None else values.astype(dtype, copy=False)

    @classmethod
    def of(cls, array: Any) -> Any:
        """What reads like a mapped array does, if it lies in one piece."""
        if not isinstance(array, np.memmap) or not array.flags.c_contiguous or array.ndim != 1:
            return array
        base, path = array, Path(str(array.filename))
        while isinstance(base.base, np.memmap):
            base = base.base
        inside = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        return cls(path, array.dtype, array.offset + inside, array.size)


class ArrayFile:
    """Edges that can be mapped: ``.npy``, ``.npz`` as ``np.savez`` writes it, ``.pt``."""

    has_strings = False

    def __init__(self, path: Path, kind: str, load: Callable[[], Columns]) -> None:
        self.path, self._kind, self._load = path, kind, load
        columns = self._columns()
        self.num_edges: int = len(columns.sources)
        self.is_weighted = columns.weights is not None

    def _columns(self) -> Columns:
        try:
            return self._load().check(self.path)
        except DataError:
            raise
        except BROKEN as error:
            raise damaged(
                self.path, self._kind, str(error).split("\n")[0] or repr(error)
            ) from error

    def chunks(self, start: Position | None, limit: int) -> Iterator[Chunk]:
        size = self.path.stat().st_size
        for begin in range(start[0] if start else 0, self.num_edges, limit):
            end = min(begin + limit, self.num_edges)
            whole = self._columns()
            weights = whole.weights
            yield Chunk(
                Stretch.of(whole.sources[begin:end]),
                Stretch.of(whole.targets[begin:end]),
                None if weights is None else weights.reshape(-1)[begin:end].astype(np.float64),
                [end],
                size * end // self.num_edges,
                numbered(self.path, begin),
            )


def npy_file(path: Path) -> ArrayFile:
    """A ``.npy`` file of one array ``[2, E]`` or ``[E, 2]``."""

    def load() -> Columns:
        # copy-on-write, as numba compiles anew for arrays that cannot be written to
        return Columns.of(np.load(path, mmap_mode="c", allow_pickle=False), None, path)

    return ArrayFile(path, ".npy file", load)


def pt_file(path: Path) -> ArrayFile:
    """A file of ``torch.save``: an ``edge_index``, or a dictionary or ``Data`` with one."""

    def load() -> Columns:
        import torch

        from virgo.graph.torch_files import load_saved

        found = load_saved(path, map_location="cpu", mmap=True)
        while isinstance(found, tuple | list) and found:
            found = found[0]
        weights = None
        if not isinstance(found, torch.Tensor):
            store = getattr(found, "_store", {})
            fields: Any = found if isinstance(found, dict) else store
            found, weights = fields.get("edge_index"), fields.get("edge_weight")
        dense = isinstance(found, torch.Tensor) and found.layout == torch.strided
        if not dense:
            raise DataError(
                f"{path}: expected a tensor edge_index or a dictionary with one, got neither. "
                f"Save data.edge_index."
            )
        if weights is not None and weights.dtype == torch.bfloat16:
            weights = weights.float()  # of which numpy knows nothing
        return Columns.of(found.numpy(), None if weights is None else weights.numpy(), path)

    return ArrayFile(path, "file of torch.save with an edge_index", load)


# --- npz ------------------------------------------------------------------------------------------


def npz_file(path: Path) -> Reader:
    """A ``.npz`` with ``edge_index``, or with sources and targets; and ``edge_weight``, if any."""
    try:
        with zipfile.ZipFile(path) as packed:
            members = {one.filename.removesuffix(".npy"): one for one in packed.infolist()}
    except BROKEN as error:
        raise damaged(path, ".npz file", error) from error
    names = _wanted(path, set(members))
    if any(members[name].compress_type != zipfile.ZIP_STORED for name in names):
        return PackedFile(path, names)

    def load() -> Columns:
        arrays = [_mapped(path, members[name]) for name in names]
        weights = arrays.pop() if names[-1] == "edge_weight" else None
        if len(arrays) == 1:
            return Columns.of(arrays[0], weights, path)
        return Columns(arrays[0], arrays[1], weights)

    return ArrayFile(path, ".npz file", load)


def _wanted(path: Path, names: set[str]) -> list[str]:
    weight = ["edge_weight"] if "edge_weight" in names else []
    for wanted in (("edge_index",), *PAIRS):
        if names.issuperset(wanted):
            return [*wanted, *weight]
    raise DataError(
        f"{path}: expected an array edge_index, or src and dst, got {', '.join(sorted(names))}."
    )


def _mapped(path: Path, member: zipfile.ZipInfo) -> Any:
    """An array that lies in the archive as it is."""
    with open(path, "rb") as file:
        file.seek(member.header_offset + 26)  # the lengths of the name and of the extra field
        lengths = np.frombuffer(file.read(4), dtype="<u2")
        file.seek(member.header_offset + 30 + int(lengths.sum()))
        shape, is_fortran, dtype = array_header(file)
        offset = file.tell()
    order: Any = "F" if is_fortran else "C"
    return np.memmap(path, dtype, "c", offset, shape, order)

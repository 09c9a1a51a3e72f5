"""Edges from numpy's and PyTorch's files, a piece at a time.

Neither a file nor an array is ever in memory as a whole: a ``.npy`` file is read where its numbers
lie, and of a ``.npz``, compressed or not, one stream per column is read side by side.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from virgo.errors import DataError
from virgo.graph.disk.chunks import BROKEN, Chunk, Ids, Position, damaged, numbered

Numbers = npt.NDArray[np.generic]
PAIRS = (("src", "dst"), ("source", "target"), ("row", "col"), ("from", "to"))


@contextmanager
def _intact(path: Path, kind: str) -> Iterator[None]:
    """What a reader raises for a broken file, as an error that names it."""
    try:
        yield
    except DataError:
        raise
    except BROKEN as error:
        raise damaged(path, kind, str(error).split("\n")[0] or repr(error)) from error


def _check_type(where: Path, dtype: np.dtype[np.generic], *, is_weight: bool) -> None:
    if is_weight and dtype.kind not in "iuf":
        raise DataError(f"{where}: expected numbers as weights, got {dtype}.")
    if not is_weight and dtype.kind not in "iu":
        raise DataError(f"{where}: expected integer ids, got {dtype}. Store them as int64.")


def _check_shape(where: Path, shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or 2 not in shape:
        raise DataError(f"{where}: expected an array of shape [2, E] or [E, 2], got {list(shape)}.")


def _check_sizes(where: Path, sizes: set[int]) -> int:
    if len(sizes) > 1:
        raise DataError(
            f"{where}: expected as many sources as targets and weights, got "
            f"{' and '.join(map(str, sorted(sizes)))}."
        )
    return sizes.pop()


# --- numpy ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stretch:
    """Numbers that lie one after another in a file, read when they are asked for.

    So threads read what they work on next, and find it in their cache.
    """

    path: Path
    dtype: np.dtype[np.generic]
    offset: int
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> Stretch:
        begin, end, _ = part.indices(self.size)
        return replace(self, offset=self.offset + begin * self.dtype.itemsize, size=end - begin)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Numbers:
        values = np.fromfile(self.path, self.dtype, self.size, offset=self.offset)
        if values.size < self.size:
            raise damaged(self.path, "file", "one that has become shorter")
        return values if dtype is None else values.astype(dtype, copy=False)


@dataclass(frozen=True)
class _Columns:
    """One or two columns of an edge list, as an array has them.

    Attributes:
        name: the array's name in the archive.
        dtype: its type.
        width: how many numbers of each edge lie side by side.
        begin: the byte of the first.
        size: how many edges there are.
    """

    name: str
    dtype: np.dtype[np.generic]
    width: int
    begin: int
    size: int

    def byte(self, edge: int) -> int:
        """Where an edge's numbers begin."""
        return self.begin + edge * self.width * self.dtype.itemsize

    def read(self, file: IO[bytes], edges: int) -> list[Numbers]:
        """So many edges, column by column."""
        data = file.read(self.byte(edges) - self.begin)
        if len(data) < self.byte(edges) - self.begin:
            raise EOFError("an array that ends early")
        return list(np.frombuffer(data, self.dtype).reshape(edges, self.width).T)


class EdgeArrayFile:
    """A ``.npy`` or ``.npz`` file; a position is the number of an edge.

    Args:
        path: the file.
        names: the arrays of a ``.npz``: edges, or sources and targets; then weights, if any.
    """

    has_strings = False

    def __init__(self, path: Path, names: list[str] | None = None) -> None:
        self.path, self._is_archive = path, names is not None
        self._kind = ".npz file" if names is not None else ".npy file"
        names = names or ["edge_index"]
        self.is_weighted = names[-1] == "edge_weight"
        with _intact(path, self._kind):
            self._columns = [part for name in names for part in self._layout(name)]
        self.num_edges: int = _check_sizes(path, {part.size for part in self._columns})
        if not self._is_archive and path.stat().st_size < self._columns[-1].byte(self.num_edges):
            raise damaged(path, self._kind, "an array that ends early")

    @contextmanager
    def _open(self, name: str) -> Iterator[IO[bytes]]:
        with ExitStack() as stack:
            if not self._is_archive:
                yield stack.enter_context(open(self.path, "rb"))
            else:
                archive = stack.enter_context(zipfile.ZipFile(self.path))
                yield stack.enter_context(archive.open(f"{name}.npy"))

    def _layout(self, name: str) -> list[_Columns]:
        with self._open(name) as file:
            shape, is_fortran, dtype = _array_header(file)
            begin = file.tell()
        is_weight = name == "edge_weight"
        _check_type(self.path, dtype, is_weight=is_weight)
        count = math.prod(shape)
        if name != "edge_index":
            return [_Columns(name, dtype, 1, begin, count)]
        _check_shape(self.path, shape)
        if (shape[0] == 2) == is_fortran:  # each edge's two ids side by side
            return [_Columns(name, dtype, 2, begin, count // 2)]
        half = count // 2 * dtype.itemsize
        return [_Columns(name, dtype, 1, start, count // 2) for start in (begin, begin + half)]

    def chunks(self, start: Position | None, limit: int) -> Iterator[Chunk]:
        """The edges from ``start`` on, at most ``limit`` at a time."""
        total, begin = self.path.stat().st_size, start[0] if start else 0
        with _intact(self.path, self._kind), ExitStack() as stack:
            files = [stack.enter_context(self._open(part.name)) for part in self._columns]
            for part, file in zip(self._columns, files, strict=True):
                file.seek(part.byte(begin))
            while begin < self.num_edges:
                end = min(begin + limit, self.num_edges)
                columns = self._read(files, begin, end)
                weights = np.asarray(columns[2], dtype=np.float64) if self.is_weighted else None
                consumed = total * end // self.num_edges
                name_edge = numbered(self.path, begin)
                yield Chunk(columns[0], columns[1], weights, [end], consumed, name_edge)
                begin = end

    def _read(self, files: list[IO[bytes]], begin: int, end: int) -> list[Ids]:
        parts = zip(self._columns, files, strict=True)
        if self._is_archive or self._columns[0].width == 2:
            return [column for part, file in parts for column in part.read(file, end - begin)]
        return [Stretch(self.path, part.dtype, part.byte(begin), end - begin) for part, _ in parts]


def _array_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Shape, whether columns come first, and type of the array that follows in the file."""
    version = np.lib.format.read_magic(file)
    old = version == (1, 0)
    read = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("Python objects in place of numbers")
    return shape, is_fortran, dtype


def npz_file(path: Path) -> EdgeArrayFile:
    """A ``.npz`` with ``edge_index``, or with sources and targets; and ``edge_weight``, if any."""
    with _intact(path, ".npz file"), zipfile.ZipFile(path) as archive:
        names = {name.removesuffix(".npy") for name in archive.namelist()}
    weight = ["edge_weight"] if "edge_weight" in names else []
    for wanted in (("edge_index",), *PAIRS):
        if names.issuperset(wanted):
            return EdgeArrayFile(path, [*wanted, *weight])
    raise DataError(
        f"{path}: expected an array edge_index, or src and dst, got {', '.join(sorted(names))}."
    )


# --- PyTorch --------------------------------------------------------------------------------------


def _is_plain(value: object) -> bool:
    """Whether a value is a dense tensor whose numbers are there: not meta, quantised or sparse."""
    import torch

    return (
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not value.is_quantized
    )


class TorchFile:
    """A file of ``torch.save``: an ``edge_index``, or a dictionary or ``Data`` with one.

    It is mapped anew for every piece: pages of a mapped file count as the process's memory for as
    long as the map lives.
    """

    has_strings = False

    def __init__(self, path: Path) -> None:
        self.path = path
        rows, weights = self._load()
        self.num_edges: int = rows.shape[1]
        self.is_weighted = weights is not None

    def _load(self) -> tuple[Numbers, Numbers | None]:
        import torch

        from virgo.graph.torch_files import load_saved

        with _intact(self.path, "file of torch.save with an edge_index"):
            saved = load_saved(self.path, map_location="cpu", mmap=True)
            while isinstance(saved, tuple | list) and saved:
                saved = saved[0]
            weights = None
            if not isinstance(saved, torch.Tensor):
                fields = saved if isinstance(saved, dict) else getattr(saved, "_store", {})
                saved, weights = fields.get("edge_index"), fields.get("edge_weight")
            if not _is_plain(saved):
                raise DataError(
                    f"{self.path}: expected a tensor edge_index or a dictionary with one, got "
                    f"neither. Save data.edge_index."
                )
            if weights is not None and not _is_plain(weights):
                raise DataError(
                    f"{self.path}: expected a tensor edge_weight, got a {type(weights).__name__}. "
                    f"Save data.edge_weight."
                )
            if weights is not None and weights.dtype == torch.bfloat16:
                weights = weights.float()  # of which numpy knows nothing
            edges = saved.detach().numpy()
            _check_shape(self.path, edges.shape)
            _check_type(self.path, edges.dtype, is_weight=False)
            rows = edges if edges.shape[0] == 2 else edges.T
            if weights is None:
                return rows, None
            flat = weights.detach().numpy().reshape(-1)
            _check_type(self.path, flat.dtype, is_weight=True)
            _check_sizes(self.path, {rows.shape[1], flat.size})
            return rows, flat

    def chunks(self, start: Position | None, limit: int) -> Iterator[Chunk]:
        """The edges from ``start`` on, at most ``limit`` at a time."""
        total = self.path.stat().st_size
        for begin in range(start[0] if start else 0, self.num_edges, limit):
            end = min(begin + limit, self.num_edges)
            rows, weights = self._load()
            yield Chunk(
                rows[0, begin:end],
                rows[1, begin:end],
                None if weights is None else weights[begin:end].astype(np.float64),
                [end],
                total * end // self.num_edges,
                numbered(self.path, begin),
            )

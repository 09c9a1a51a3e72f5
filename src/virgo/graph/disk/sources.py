"""Where edges come from: which files are meant, of what kind, in what order."""

from __future__ import annotations

import glob
import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from virgo.errors import DataError, OptionError
from virgo.graph.disk.arrays import EdgeArrayFile, TorchFile, npz_file
from virgo.graph.disk.chunks import BROKEN, Chunk, Position, Reader, damaged, finite
from virgo.graph.disk.options import BuildOptions
from virgo.graph.disk.parquet import ParquetFile
from virgo.graph.disk.text import TextFile

_TEXT = (".csv", ".tsv", ".txt", ".edges", ".edgelist", ".el")
KINDS = (".parquet", ".pq", ".npy", ".npz", ".pt", ".pth", *_TEXT)
_KNOWN = ".parquet, .csv, .tsv, .txt (or .gz of these), .npy, .npz, .pt, or an OGB raw folder"


def suffix_of(path: Path) -> str:
    """The ending that says what a file is, without ``.gz``."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


@dataclass(frozen=True)
class EdgeSource:
    """All files of an edge list, one after another.

    Attributes:
        name: as the user gave it.
        readers: one per file.
        num_nodes: if the source says so itself, as OGB's folders do.
        num_edges: how many edges there must be, if that is known.
    """

    name: str
    readers: tuple[Reader, ...]
    num_nodes: int | None = None
    num_edges: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(reader.path.stat().st_size for reader in self.readers)

    @property
    def has_strings(self) -> bool:
        """Whether ids are strings."""
        return self.readers[0].has_strings

    @property
    def is_weighted(self) -> bool:
        """Whether edges have weights."""
        return self.readers[0].is_weighted

    def stamp(self) -> list[list[str | int]]:
        """What changes when a file does."""
        states = [(reader.path, reader.path.stat()) for reader in self.readers]
        return [[str(path.absolute()), s.st_size, s.st_mtime_ns] for path, s in states]

    def chunks(self, start: Position | None, limit: int) -> Iterator[Chunk]:
        """The edges from ``start`` on; a position is a file's number and the place in it."""
        number, inside = (start[0], start[1:]) if start else (0, None)
        before = sum(reader.path.stat().st_size for reader in self.readers[:number])
        for current, reader in enumerate(self.readers[number:], number):
            for chunk in reader.chunks(inside or None, limit):
                position, consumed = [current, *chunk.position], before + chunk.consumed
                yield finite(replace(chunk, position=position, consumed=consumed))
            before, inside = before + reader.path.stat().st_size, None


def open_source(where: str | Path, options: BuildOptions) -> EdgeSource:
    """Find the files of an edge list and look into each.

    Args:
        where: a file, a folder of files, a pattern such as ``edges/*.parquet``, or a dataset's
            folder in OGB's raw layout.
        options: what the build was asked for.

    Returns:
        The files, ready to be read.

    Raises:
        DataError: there are no such files, or they are of no known kind, or damaged.
        OptionError: a column is not there.
    """
    path = Path(where)
    for raw in (path / "raw", path):
        if (raw / "edge.csv.gz").is_file() or (raw / "data.npz").is_file():
            return _ogb(str(where), raw, options)
    files = _files(str(where))
    readers = tuple(_reader(file, options) for file in files)
    for what in ("has_strings", "is_weighted"):
        odd = next(
            (reader for reader in readers if getattr(reader, what) != getattr(readers[0], what)),
            None,
        )
        if odd is not None:
            raise DataError(
                f"{odd.path}: expected the same {'ids' if what == 'has_strings' else 'weights'} "
                f"as in {readers[0].path}, got others. Give files of one kind."
            )
    return EdgeSource(
        str(where), readers, num_edges=_known([reader.num_edges for reader in readers])
    )


def _known(counts: list[int | None]) -> int | None:
    given = [count for count in counts if count is not None]
    return sum(given) if len(given) == len(counts) else None


def _files(where: str) -> list[Path]:
    path = Path(where)
    if path.is_file():
        return [path]
    if path.is_dir():
        inside = (file for file in path.rglob("*") if file.is_file())
        files = [file for file in inside if suffix_of(file) in KINDS and file.name[0] not in "._"]
    else:
        files = [Path(file) for file in glob.glob(where, recursive=True) if Path(file).is_file()]
    if not files:
        what = "a folder without any" if path.is_dir() else "nothing of that name"
        raise DataError(f"{where}: expected edges as {_KNOWN}, got {what}.")
    kinds = {suffix_of(file) for file in files}
    if len(kinds) > 1:
        raise DataError(
            f"{where}: expected files of one kind, got {', '.join(sorted(kinds))}. Name them with "
            f"a pattern such as {path}/*{min(kinds)}."
        )
    return sorted(files)


def _reader(path: Path, options: BuildOptions) -> Reader:
    kind = suffix_of(path)
    try:
        if kind in (".parquet", ".pq"):
            return ParquetFile(path, options)
        if kind in _TEXT:
            return TextFile(path, options)
        makers: dict[str, Callable[[Path], Reader]] = {
            ".npy": EdgeArrayFile,
            ".npz": npz_file,
            ".pt": TorchFile,
            ".pth": TorchFile,
        }
        if kind in makers and not path.name.endswith(".gz"):
            _refuse_columns(path, options)
            return makers[kind](path)
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, got {error}.") from error
    raise DataError(f"{path}: expected edges as {_KNOWN}, got a file of another kind.")


def _refuse_columns(path: Path, options: BuildOptions) -> None:
    """Raise for options of tables, which do nothing where edges are arrays."""
    for name in ("source_column", "target_column", "weight_column"):
        if (column := getattr(options, name)) is not None:
            raise OptionError(
                f"{name}: expected a file with columns (Parquet, CSV), got {column!r} for the "
                f"arrays in {path}. Leave it out: weights of arrays are read as edge_weight."
            )


def _ogb(name: str, raw: Path, options: BuildOptions) -> EdgeSource:
    """A dataset's raw folder: one graph, as text or as OGB's binary form has it."""
    packed = raw / "data.npz"
    if packed.is_file():
        _refuse_columns(packed, options)
        reader: Reader = npz_file(packed)
        nodes, edges = _packed_counts(packed, "num_nodes_list"), None
    else:
        reader = TextFile(raw / "edge.csv.gz", replace(options, header="no"))
        nodes, edges = _counts(raw / "num-node-list.csv.gz"), _counts(raw / "num-edge-list.csv.gz")
    if nodes is not None and len(nodes) != 1:
        raise DataError(
            f"{raw}: expected one graph, got {len(nodes):,}. A collection of small graphs is "
            f"loaded with virgo.data.load."
        )
    return EdgeSource(
        name,
        (reader,),
        num_nodes=nodes[0] if nodes else None,
        num_edges=edges[0] if edges and len(edges) == 1 else reader.num_edges,
    )


def _counts(path: Path) -> list[int] | None:
    if not path.is_file():
        return None
    try:
        return [int(line) for line in gzip.decompress(path.read_bytes()).split()]
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise damaged(path, "list of counts", error) from error


def _packed_counts(path: Path, name: str) -> list[int] | None:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return [int(count) for count in arrays[name].reshape(-1)] if name in arrays else None
    except BROKEN as error:
        raise damaged(path, ".npz file", error) from error

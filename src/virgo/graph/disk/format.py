"""What an on-disk graph is: a folder of plain arrays and a header that is written last.

``graph.json`` is the :class:`Header`; each array is a raw little-endian file ``<name>.bin``:

=============================  =====================================================================
``in_pointer``                 where each target's edges begin, ``N + 1`` numbers
``in_columns``                 their sources, ascending in each row
``in_weights``                 their weights, in a weighted graph
``out_pointer`` ...            the same with sources as rows; absent if the graph is symmetric
``ids`` (``ids_pointer``)      of a relabelled graph, what each node was called, ascending; strings
                               are UTF-8, one after another, and begin where the pointer says
=============================  =====================================================================

A build happens in a hidden folder beside the final one and is renamed, so a folder with a header
is complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from virgo.errors import GraphError
from virgo.graph.disk.header_checks import (
    NARROW_NODES,
    check_fields,
    parse,
    read_regular,
    regular_size,
)

__all__ = [
    "FORMAT",
    "HEADER",
    "NARROW_NODES",
    "Header",
    "StoredArray",
    "array_path",
    "open_array",
    "read_header",
    "verify",
    "working_folder",
]

FORMAT = 1
HEADER = "graph.json"
_BLOCK = 2**22


@dataclass(frozen=True)
class StoredArray:
    """One array: its type (as numpy writes it), its number of elements, its checksum."""

    dtype: str
    size: int
    sha256: str

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return self.size * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Header:
    """What ``graph.json`` says.

    Attributes:
        num_nodes: the number of nodes, with and without edges.
        num_edges: the number of stored directed edges.
        symmetric: every edge is stored in both directions, so ``in_*`` serves both.
        weighted: there are ``*_weights``.
        index: the type of the columns, ``"int32"`` or ``"int64"``.
        self_loops: how many of the edges are self-loops.
        ids: ``None``, or the type of the nodes' original names: ``"int64"`` or ``"string"``.
        options: what the build was asked for.
        source: the name and the bytes of what was read.
        files: the arrays by name.
        virgo: the version that wrote the graph.
    """

    num_nodes: int
    num_edges: int
    symmetric: bool
    weighted: bool
    index: str
    self_loops: int
    ids: str | None
    files: Mapping[str, StoredArray]
    options: Mapping[str, object] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    virgo: str = ""
    format: int = FORMAT

    def to_json(self) -> str:
        """The text of ``graph.json``."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: object = HEADER) -> Header:
        """The header of a text; ``where`` is named in errors.

        Returns:
            The header.

        Raises:
            GraphError: the text is no header, or one of a newer format.
        """
        values = parse(text, where)
        version = values.get("format")
        if type(version) is int and version > FORMAT:
            raise GraphError(
                f"{where}: expected format {FORMAT} or older, got {version}. Install a newer "
                f"version of virgo-gnn."
            )
        check_fields(values, where)
        files = {name: StoredArray(**array) for name, array in values.pop("files").items()}
        return cls(files=files, **values)


def working_folder(path: str | Path) -> Path:
    """Where the graph that will be ``path`` is being built."""
    path = Path(path)
    return path.absolute().parent / f".{path.absolute().name}.building"


def array_path(path: str | Path, name: str) -> Path:
    """The file of one array."""
    return Path(path) / f"{name}.bin"


def read_header(path: str | Path) -> Header:
    """The header of a finished graph whose files all have the size they should have.

    Returns:
        The header.

    Raises:
        GraphError: there is no such folder, it is no graph, its build is unfinished, its format is
            newer, a field is not what it must be, or a file is missing, a link or of another
            size.
    """
    path = Path(path)
    where = path / HEADER
    try:
        text = read_regular(where)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise GraphError(_why_absent(path)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise GraphError(f"{where}: expected a readable header, got {error}.") from error
    header = Header.from_json(text, where)
    for name, array in header.files.items():
        _check_size(array_path(path, name), array)
    return header


def _why_absent(path: Path) -> str:
    if working_folder(path).is_dir():
        return (
            f"{path}: expected a finished graph, got an unfinished build. Run the same "
            f"`virgo graph build` again, it continues where it was."
        )
    if not path.exists():
        return (
            f"{path}: expected a graph's folder, got nothing of that name. Make one with "
            f"`virgo graph build EDGES {path}`."
        )
    actual = "one without" if path.is_dir() else "a file"
    return (
        f"{path}: expected a folder with {HEADER}, got {actual}. Make one with "
        f"`virgo graph build EDGES OUT`."
    )


def _absence(error: OSError) -> str:
    return "no such file" if isinstance(error, FileNotFoundError) else str(error.strerror)


def _check_size(file: Path, array: StoredArray) -> None:
    try:
        size = regular_size(file)
    except OSError as error:
        raise GraphError(
            f"{file}: expected {array.nbytes:,} bytes, got {_absence(error)}. Build the graph "
            f"again."
        ) from error
    if size != array.nbytes:
        raise GraphError(
            f"{file}: expected {array.nbytes:,} bytes, got {size:,}. Build the graph again."
        )


def open_array(
    path: str | Path, header: Header, name: str, *, mapped: bool = True
) -> npt.NDArray[Any]:
    """One array of the graph, memory-mapped and read-only, or read into memory.

    Args:
        path: the graph's folder.
        header: what :func:`read_header` gave.
        name: the array; ``out_*`` of a symmetric graph are its ``in_*``.
        mapped: whether to leave it in its file.

    Returns:
        The array.

    Raises:
        GraphError: there is no such array, or its file is damaged.
    """
    if header.symmetric and name.startswith("out_"):
        name = "in_" + name.removeprefix("out_")
    if name not in header.files:
        raise GraphError(
            f"{path}: expected one of {', '.join(header.files)}, got {name!r}. Name one of them."
        )
    array, file = header.files[name], array_path(path, name)
    _check_size(file, array)
    if array.size == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype=array.dtype)
    try:
        if mapped:
            return np.memmap(file, dtype=array.dtype, mode="r", shape=(array.size,))
        values = np.fromfile(file, dtype=array.dtype, count=array.size)
    except OSError as error:
        raise GraphError(f"{file}: expected a readable file, got {error}.") from error
    if values.size < array.size:
        raise GraphError(f"{file}: expected {array.nbytes:,} bytes, got fewer. Build it again.")
    return values


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    try:
        with open(file, "rb") as opened:
            yield opened
    except OSError as error:
        raise GraphError(f"{file}: expected a readable file, got {error}.") from error


def verify(path: str | Path, progress: Callable[[int, int, str], None] | None = None) -> Header:
    """Read every array and compare its checksum with the header's.

    Args:
        path: the graph's folder.
        progress: told ``(bytes read, bytes in all, file)``.

    Returns:
        The header.

    Raises:
        GraphError: a file is not what was written; its name is in the message.
    """
    header = read_header(path)
    total, done = sum(array.nbytes for array in header.files.values()), 0
    for name, array in header.files.items():
        digest, file = hashlib.sha256(), array_path(path, name)
        with _opened(file) as opened:
            while block := opened.read(_BLOCK):
                digest.update(block)
                done += len(block)
                if progress is not None:
                    progress(done, total, file.name)
        if digest.hexdigest() != array.sha256:
            raise GraphError(
                f"{file}: expected the checksum {array.sha256[:16]}..., got "
                f"{digest.hexdigest()[:16]}... It was damaged after the build: build it again."
            )
    return header

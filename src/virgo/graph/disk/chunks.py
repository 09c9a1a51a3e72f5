"""What every reader of edges gives: pieces of an edge list, and where to go on after each."""

from __future__ import annotations

import pickle
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from virgo.errors import DataError

#: What readers raise for files that are cut off or no such files at all.
BROKEN = (
    ValueError,
    OSError,
    EOFError,
    RuntimeError,
    LookupError,
    zipfile.BadZipFile,
    zlib.error,
    pickle.UnpicklingError,
    tokenize.TokenError,  # of numpy, for the header of an array
)

#: Node ids: an array of integers, or Arrow's array of strings.
Ids = Any
Position = list[int]
"""Where a reader goes on; what the numbers mean is its own affair."""


@dataclass(frozen=True)
class Chunk:
    """Some consecutive edges.

    Attributes:
        sources: their source ids: an array of integers, or Arrow's array of strings.
        targets: their target ids, likewise.
        weights: their weights, or none.
        position: where reading goes on after them.
        consumed: bytes of the file read so far, for a progress bar.
        name_edge: says where in the file an edge of these is, by its number in the chunk.
    """

    sources: Ids
    targets: Ids
    weights: npt.NDArray[np.float64] | None
    position: Position
    consumed: int
    name_edge: Callable[[int], str]

    def __len__(self) -> int:
        return len(self.sources)


class Reader(Protocol):
    """One file of edges, looked at but not read."""

    @property
    def path(self) -> Path: ...

    @property
    def num_edges(self) -> int | None: ...

    @property
    def has_strings(self) -> bool: ...

    @property
    def is_weighted(self) -> bool: ...

    def chunks(self, start: Position | None, limit: int) -> Iterator[Chunk]:
        """The edges from ``start`` on, at most about ``limit`` at a time."""
        ...


def damaged(path: Path, kind: str, error: object) -> DataError:
    """The error for a file that cannot be read to its end."""
    return DataError(
        f"{path}: expected an intact {kind}, got {error}. Make or fetch the file again."
    )


def finite(chunk: Chunk) -> Chunk:
    """The chunk, if all its weights are numbers.

    Returns:
        The same chunk.

    Raises:
        DataError: a weight is infinite or no number.
    """
    if chunk.weights is not None:
        wrong = np.flatnonzero(~np.isfinite(chunk.weights))
        if wrong.size:
            first = int(wrong[0])
            raise DataError(
                f"{chunk.name_edge(first)}: expected a finite weight, got "
                f"{chunk.weights[first]}. Correct or remove that edge."
            )
    return chunk


def numbered(path: Path, first: int, what: str = "edge") -> Callable[[int], str]:
    """Names edges by their number in the file, counting from 0."""
    return lambda index: f"{path}: {what} {first + index:,}"

"""Arbitrary node ids, integers or strings, and their numbers 0, 1, 2... in ascending order."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from virgo.errors import DataError, GraphError
from virgo.graph.disk.chunks import Chunk, Ids
from virgo.graph.disk.format import array_path
from virgo.graph.disk.parquet import arrow


class Integers:
    """Sorted 64-bit ids."""

    def __init__(self, ids: npt.NDArray[np.int64]) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return int(self.ids.size)

    @classmethod
    def of(cls, chunk: Chunk) -> Integers:
        """The ids of a chunk."""
        given = np.unique(np.concatenate([chunk.sources, chunk.targets]))
        if given.size and given[-1] > np.iinfo(np.int64).max:
            raise DataError(
                f"{chunk.name_edge(0)}: expected ids of 64 bits with a sign, got {given[-1]} in "
                f"what follows. Write them as strings."
            )
        return cls(given.astype(np.int64))

    def union(self, other: Integers) -> Integers:
        """The ids of both."""
        return Integers(np.union1d(self.ids, other.ids))

    def numbers(self, chunk: Chunk) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The numbers of a chunk's sources and targets."""
        joined = np.concatenate([chunk.sources, chunk.targets]).astype(np.int64)
        # few look-ups, in ascending order: kinder to the cache than one per edge
        unique, inverse = np.unique(joined, return_inverse=True)
        numbers = np.searchsorted(self.ids, unique)[inverse]
        return numbers[: len(chunk)], numbers[len(chunk) :]

    def arrays(self) -> dict[str, npt.NDArray[np.int64] | npt.NDArray[np.uint8]]:
        """What is kept with the graph."""
        return {"ids": self.ids}


class Strings:
    """Sorted strings: UTF-8, one after another, and where each begins."""

    def __init__(self, begins: npt.NDArray[np.int64], texts: npt.NDArray[np.uint8]) -> None:
        self.begins, self.texts = begins, texts

    def __len__(self) -> int:
        return int(self.begins.size - 1)

    @classmethod
    def _sorted(cls, strings: Ids) -> Strings:
        compute = arrow("pyarrow.compute")
        unique = compute.unique(strings)
        return cls(*_parts(unique.take(compute.sort_indices(unique))))

    @classmethod
    def of(cls, chunk: Chunk) -> Strings:
        """The ids of a chunk."""
        return cls._sorted(arrow("pyarrow").concat_arrays([chunk.sources, chunk.targets]))

    def union(self, other: Strings) -> Strings:
        """The ids of both."""
        pa = arrow("pyarrow")
        arrays = [
            pa.LargeStringArray.from_buffers(
                len(labels),
                pa.py_buffer(np.ascontiguousarray(labels.begins)),
                pa.py_buffer(np.ascontiguousarray(labels.texts)),
            )
            for labels in (self, other)
        ]
        return self._sorted(pa.concat_arrays(arrays))

    def numbers(self, chunk: Chunk) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The numbers of a chunk's sources and targets."""
        from virgo.graph.disk import kernels

        joined = arrow("pyarrow").concat_arrays([chunk.sources, chunk.targets])
        coded = joined.dictionary_encode()
        begins, texts = _parts(coded.dictionary)
        positions = np.empty(begins.size - 1, dtype=np.int64)
        kernels.find_texts(begins, texts, self.begins, self.texts, positions)
        numbers = positions[coded.indices.to_numpy()]
        return numbers[: len(chunk)], numbers[len(chunk) :]

    def arrays(self) -> dict[str, npt.NDArray[np.int64] | npt.NDArray[np.uint8]]:
        """What is kept with the graph."""
        return {"ids": self.texts, "ids_pointer": self.begins}


def _parts(strings: Ids) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Where each of Arrow's strings begins, and all their bytes, as arrays of our own."""
    _, offsets, data = strings.buffers()
    begins = np.frombuffer(offsets, dtype=np.int64)[strings.offset :][: len(strings) + 1]
    texts = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, np.uint8)
    return begins - begins[0], texts[begins[0] : begins[-1]].copy()


Labels = Integers | Strings
_L = TypeVar("_L", Integers, Strings)


def collect(chunks: Iterable[Chunk], kind: type[_L]) -> _L | None:
    """All ids of some chunks: sets are joined when they are of like size, as few copies as can be.

    Holds the ids of all nodes in memory, up to three times while they are joined.

    Returns:
        The ids in ascending order, or none if there are no chunks.
    """
    sets: list[_L] = []
    for chunk in chunks:
        sets.append(kind.of(chunk))
        while len(sets) > 1 and len(sets[-2]) < 2 * len(sets[-1]):
            sets.append(sets.pop().union(sets.pop()))
    while len(sets) > 1:
        sets.append(sets.pop().union(sets.pop()))
    return sets[0] if sets else None


def load(folder: Path, has_strings: bool) -> Labels:
    """The ids that a build has written, mapped into memory.

    Args:
        folder: the working folder.
        has_strings: whether they are strings.

    Returns:
        The ids.

    Raises:
        GraphError: they are not as they were written.
    """
    ids = array_path(folder, "ids")
    if not has_strings:
        return Integers(np.asarray(np.memmap(ids, np.int64, "r")))
    pointer = np.asarray(np.memmap(array_path(folder, "ids_pointer"), np.int64, "r"))
    texts = np.asarray(np.memmap(ids, np.uint8, "r"))
    if pointer[0] != 0 or pointer[-1] != texts.size or np.diff(pointer).min(initial=0) < 0:
        raise GraphError(
            f"{folder}: expected ids as they were written, got others: the files of an unfinished "
            f"build were changed. Run the same command again, it begins afresh."
        )
    return Strings(pointer, texts)

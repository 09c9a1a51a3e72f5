"""What is known of a graph on disk: counts, degrees, sizes; and how far an unfinished one is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from virgo.errors import GraphError
from virgo.graph.disk.format import Header, open_array, read_header, working_folder
from virgo.graph.disk.journal import BuildState, read_journal

_BLOCK = 2**20
_DOING = {
    "ids": "collecting the ids",
    "reading": "{edges_read:,} edges read",
    "in": "{num_edges:,} of {edges_read:,} edges sorted by target",
    "out": "{num_edges:,} of {total_edges:,} edges sorted by source",
    "done": "all edges sorted",
}


@dataclass(frozen=True)
class Degrees:
    """The degrees of all nodes in one direction."""

    least: int
    median: float
    most: int


@dataclass(frozen=True)
class Description:
    """A graph's header, and what a pass over its pointers adds."""

    path: str
    header: Header
    in_degrees: Degrees
    out_degrees: Degrees
    isolated: int

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.header.files.values())

    def to_dict(self) -> dict[str, object]:
        """Everything, for JSON."""
        return {
            **asdict(self.header),
            "path": self.path,
            "bytes": self.nbytes,
            "in_degrees": asdict(self.in_degrees),
            "out_degrees": asdict(self.out_degrees),
            "isolated": self.isolated,
        }


def describe(path: str | Path) -> Description:
    """Counts and degrees, from a pass over the pointers a block at a time.

    Args:
        path: the graph's folder.

    Returns:
        What the header and the pointers tell.

    Raises:
        GraphError: there is no finished graph; of an unfinished one it says how far it is.
    """
    path = Path(path)
    try:
        header = read_header(path)
    except GraphError as error:
        raise _unfinished(path) or error from error
    counts = {"in": _Counts(), "out": _Counts()}
    isolated = 0
    for begin in range(0, header.num_nodes, _BLOCK):
        here = {order: degrees(path, header, order, begin) for order in counts}
        for order, block in here.items():
            counts[order].add(block)
        isolated += int(np.count_nonzero((here["in"] == 0) & (here["out"] == 0)))
    return Description(str(path), header, counts["in"].degrees(), counts["out"].degrees(), isolated)


def degrees(path: Path, header: Header, order: str, begin: int) -> npt.NDArray[np.int64]:
    """The degrees of a block of nodes, ``order`` being ``in`` or ``out``."""
    pointer = open_array(path, header, f"{order}_pointer")
    block: npt.NDArray[np.int64] = np.diff(pointer[begin : begin + _BLOCK + 1])
    if pointer[0] != 0 or pointer[-1] != header.num_edges or block.min(initial=0) < 0:
        raise GraphError(
            f"{path}: expected pointers that ascend from 0 to {header.num_edges:,}, got others in "
            f"{order}_pointer.bin. It was damaged after the build: build it again."
        )
    return block


class _Counts:
    """How many nodes have each degree; there are never many different ones."""

    def __init__(self) -> None:
        self._values = np.empty(0, dtype=np.int64)
        self._counts = np.empty(0, dtype=np.int64)

    def add(self, block: npt.NDArray[np.int64]) -> None:
        values, counts = np.unique(block, return_counts=True)
        joined = np.concatenate([self._values, values])
        self._values, inverse = np.unique(joined, return_inverse=True)
        summed = np.bincount(inverse, np.concatenate([self._counts, counts]))
        self._counts = summed.astype(np.int64)

    def degrees(self) -> Degrees:
        sums = np.cumsum(self._counts)
        total = int(sums[-1])
        middle = [np.searchsorted(sums, rank, "right") for rank in ((total - 1) // 2, total // 2)]
        median = float(self._values[middle].mean())
        return Degrees(int(self._values[0]), median, int(self._values[-1]))


def _unfinished(path: Path) -> GraphError | None:
    journal = read_journal(working_folder(path))
    if journal is None or path.exists():
        return None
    state = BuildState(**journal["state"])
    doing = _DOING[state.stage].format(**vars(state))
    return GraphError(
        f"{path}: expected a finished graph, got an unfinished build: {doing}. Run the same "
        f"`virgo graph build` again, it continues where it was."
    )


def names(path: str | Path, header: Header) -> Iterator[int | str]:
    """What each node of a relabelled graph was called, in the order of their numbers."""
    if header.ids is None:
        yield from range(header.num_nodes)
    elif header.ids == "int64":
        for name in open_array(path, header, "ids"):
            yield int(name)
    else:
        texts, begins = (open_array(path, header, name) for name in ("ids", "ids_pointer"))
        for begin, end in pairwise(begins):
            yield bytes(texts[begin:end]).decode("utf-8", "replace")

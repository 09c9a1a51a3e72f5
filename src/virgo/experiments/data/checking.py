"""What there is of each dataset, and whether it holds what its publishers say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from virgo.errors import DataError
from virgo.experiments.data.cache import Progress, final_folder, silent
from virgo.experiments.data.catalogue import ENTRIES, Entry
from virgo.experiments.data.datasets import Dataset, part_size, sizes
from virgo.experiments.data.loading import load
from virgo.experiments.data.roots import Root, locate


@dataclass(frozen=True)
class State:
    """What there is of a dataset here.

    Attributes:
        entry: which dataset.
        state: ``"ready"`` (processed copy in the cache), ``"raw files"``, ``"incomplete"`` or
            ``"absent"``.
        folder: where its raw files are, or go.
        missing: files that are not there.
    """

    entry: Entry
    state: str
    folder: str
    missing: tuple[str, ...]

    def __str__(self) -> str:
        if self.state != "incomplete":
            return self.state
        shown = ", ".join(self.missing[:2])
        return f"incomplete: no {shown}" + (" ..." if len(self.missing) > 2 else "")


def state(row: Entry, root: Root = None) -> State:
    """Look for a dataset, reading no large file."""
    source = locate(row, root)
    if source.complete:
        copy = final_folder(source, hashing=False)
        kind = "ready" if copy is not None and copy.is_dir() else "raw files"
    else:
        kind = "absent" if source.absent else "incomplete"
    return State(row, kind, str(source.folder), source.missing)


def states(root: Root = None) -> list[State]:
    """Of all fifteen."""
    return [state(row, root) for row in ENTRIES]


@dataclass(frozen=True)
class Checked:
    """A dataset held against the catalogue.

    Attributes:
        name: which dataset.
        error: why it could not be loaded.
        differences: what was counted, what it should be, and what was found.
        counted: how many counts were compared.
    """

    name: str
    error: str | None = None
    differences: tuple[tuple[str, int, int], ...] = ()
    counted: int = 0

    @property
    def ok(self) -> bool:
        """Whether it is as published."""
        return self.error is None and not self.differences

    def __str__(self) -> str:
        if self.error is not None:
            return self.error  # begins with the name
        if not self.differences:
            return f"{self.name}: ok, {self.counted} counts are as published"
        wrong = "; ".join(
            f"{what}: expected {want}, got {have}" for what, want, have in self.differences
        )
        return f"{self.name}: {wrong}"


def check(row: Entry, root: Root = None, progress: Progress = silent) -> Checked:
    """Load a dataset and compare its counts with what PyG and OGB publish."""
    try:
        counts = counted(load(row.name, root, progress))
    except DataError as error:
        return Checked(row.name, error=str(error))
    wanted = expected(row)
    differences = [
        (what, want, counts[what]) for what, want in wanted.items() if counts[what] != want
    ]
    return Checked(row.name, None, tuple(differences), len(wanted))


def expected(row: Entry) -> dict[str, int]:
    """The counts that are published."""
    found = {"nodes": row.num_nodes, "features": row.num_features, "graphs": row.num_graphs}
    if row.num_entries is not None:
        found["edge entries"] = row.num_entries
    if row.num_classes:
        found["outputs"] = row.num_classes
    return found | _parts(row.split)


def counted(dataset: Dataset) -> dict[str, int]:
    """The same counts of a loaded dataset."""
    data: Any = dataset.data
    found = {"graphs": 1}
    if dataset.task == "graph":
        found["graphs"] = len(data)
        found["nodes"], found["edge entries"] = sizes(data)
        found["features"] = int(data[0].num_features)
        labels = data._data.y
    else:
        found["nodes"], found["edge entries"] = int(data.num_nodes), int(data.num_edges)
        found["features"] = int(data.num_features)
        labels = data.y if dataset.task == "node" else None
    if labels is not None:
        several = labels.dim() == 2  # answers to several questions, or one, and not a class
        found["outputs"] = labels.size(1) if several else int(labels.max()) + 1
    sizes_of = tuple(part_size(part) for part in dataset.split.values())
    return found | _parts(sizes_of)


def _parts(split: tuple[int, ...]) -> dict[str, int]:
    return {
        f"{part} split": size for part, size in zip(("train", "valid", "test"), split, strict=False)
    }

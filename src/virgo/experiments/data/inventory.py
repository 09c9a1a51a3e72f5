"""Which datasets are on this machine, and whether their counts are as published."""

from __future__ import annotations

from dataclasses import dataclass

from virgo.errors import DataError
from virgo.experiments.data.cache import Progress, final_folder, silent
from virgo.experiments.data.catalogue import CATALOGUE, Entry
from virgo.experiments.data.datasets import PARTS, Dataset, part_size, sizes
from virgo.experiments.data.loading import load
from virgo.experiments.data.roots import Root, locate


@dataclass(frozen=True)
class DatasetState:
    """The files of a dataset on this machine.

    Attributes:
        entry: the dataset.
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


def state(entry: Entry, root: Root = None) -> DatasetState:
    """Look for a dataset, reading no large file.

    Args:
        entry: the dataset.
        root: the data root; see :func:`virgo.data.find_root`.

    Returns:
        What there is of it.
    """
    source = locate(entry, root)
    if source.complete:
        copy = final_folder(source, hashing=False)
        kind = "ready" if copy is not None and copy.is_dir() else "raw files"
    else:
        kind = "absent" if source.absent else "incomplete"
    return DatasetState(entry, kind, str(source.folder), source.missing)


def states(root: Root = None) -> list[DatasetState]:
    """The states of all datasets."""
    return [state(entry, root) for entry in CATALOGUE.values()]


@dataclass(frozen=True)
class Checked:
    """A dataset compared with the catalogue.

    Attributes:
        name: name of the dataset.
        error: why it could not be loaded.
        differences: what was counted, the published number, and the actual one.
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


def check(entry: Entry, root: Root = None, progress: Progress = silent) -> Checked:
    """Load a dataset and compare its counts with those that PyG and OGB publish.

    Args:
        entry: the dataset.
        root: the data root; see :func:`virgo.data.find_root`.
        progress: see :func:`virgo.data.load`.

    Returns:
        The differences, or the error where it could not be loaded.
    """
    try:
        counts = counted(load(entry.name, root, progress))
    except DataError as error:
        return Checked(entry.name, error=str(error))
    published = expected(entry)
    differences = [
        (what, want, counts[what]) for what, want in published.items() if counts[what] != want
    ]
    return Checked(entry.name, None, tuple(differences), len(published))


def expected(entry: Entry) -> dict[str, int]:
    """The published counts of a dataset."""
    counts = {"nodes": entry.num_nodes, "features": entry.num_features, "graphs": entry.num_graphs}
    if entry.num_entries is not None:
        counts["edge entries"] = entry.num_entries
    if entry.num_classes:
        counts["outputs"] = entry.num_classes
    return counts | _split_counts(entry.split)


def counted(dataset: Dataset) -> dict[str, int]:
    """The same counts of a loaded dataset."""
    data = dataset.data
    if dataset.task == "graph":
        nodes, edges = sizes(data)
        counts = {"graphs": len(data), "features": int(data[0].num_features)}
        labels = data._data.y
    else:
        nodes, edges = int(data.num_nodes), int(data.num_edges)
        counts = {"graphs": 1, "features": int(data.num_features)}
        labels = data.y if dataset.task == "node" else None
    counts |= {"nodes": nodes, "edge entries": edges}
    if labels is not None:
        several = labels.dim() == 2  # binary labels, one column per task
        counts["outputs"] = labels.size(1) if several else int(labels.max()) + 1
    return counts | _split_counts(tuple(part_size(part) for part in dataset.split.values()))


def _split_counts(split: tuple[int, ...]) -> dict[str, int]:
    return {f"{part} split": size for part, size in zip(PARTS, split, strict=False)}

"""What :func:`virgo.data.load` returns: a dataset with its split, metric and task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from virgo.errors import DataError
from virgo.experiments.data.catalogue import TRAIN_PER_CLASS, VALID_PER_CLASS

PARTS = ("train", "valid", "test")
"""The parts of a split, in order."""

MASKS = ("train_mask", "val_mask", "test_mask")
"""Their masks in PyG's ``Data``."""

FOLDS = 10
"""Folds of the graph datasets without a split of their own."""


@dataclass(frozen=True)
class Dataset:
    """A dataset ready for a task.

    Attributes:
        name: ``"cora"``, ``"ogbl-ddi"``, ``"like:cora@0.5"``.
        task: ``"node"``, ``"link"`` or ``"graph"``.
        data: for node and link tasks one ``Data``, for graph tasks a sequence of them. Node tasks
            have ``x``, ``edge_index``, ``y``, ``train_mask``, ``val_mask``, ``test_mask``.
        split: ids of nodes or graphs, or OGB's dictionaries of edges, under ``"train"``,
            ``"valid"`` and ``"test"``. Empty where there are :meth:`folds`.
        metric: ``"accuracy"``, ``"rocauc"``, ``"ap"``, ``"mrr"`` or ``"hits@20"`` and the like.
        num_classes: outputs of a model: classes, or tasks where there are several; 0 for links.
        generated: the remark to show with every number made from generated data.
    """

    name: str
    task: str
    data: Any
    split: Mapping[str, Any]
    metric: str
    num_classes: int
    generated: str | None = None

    def folds(self, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
        """Ten stratified folds.

        Every class is shuffled and dealt out in turn, so a class's counts in two folds differ by
        one at most, and so do the folds' sizes.

        Args:
            seed: seed of the shuffles; nothing else is random.

        Returns:
            Ids of training and of test graphs, per fold.

        Raises:
            DataError: the dataset has a split, or is not one of graphs.
        """
        if self.task != "graph" or self.split:
            raise DataError(
                f"{self.name}: expected a graph dataset without a split for folds, got one for "
                f"{self.task} tasks{' with a split' if self.split else ''}. Use its split."
            )
        return [
            (torch.from_numpy(train), torch.from_numpy(test))
            for train, test in stratified(self._labels(), seed)
        ]

    def _labels(self) -> NDArray[np.int64]:
        collated = getattr(self.data, "_data", None)
        if collated is not None and len(self.data) == len(collated.y):
            return np.asarray(collated.y, dtype=np.int64).reshape(-1)
        return np.array([int(graph.y) for graph in self.data], dtype=np.int64)

    def __str__(self) -> str:
        if self.task == "graph":
            nodes, edges = sizes(self.data)
            parts = [f"{len(self.data)} graphs", f"{nodes} nodes", f"{edges} edge entries"]
            features = len(self.data) and self.data[0].num_features
        else:
            parts = [f"{self.data.num_nodes} nodes", f"{self.data.num_edges} edge entries"]
            features = self.data.num_features
        parts.append(f"{features} features" if features else "no features")
        if self.num_classes:
            parts.append(f"{self.num_classes} output{'s' if self.num_classes > 1 else ''}")
        if self.split:
            parts.append("/".join(str(part_size(part)) for part in self.split.values()) + " split")
        else:
            parts.append(f"{FOLDS} folds")
        note = f" [{self.generated}]" if self.generated else ""
        return f"{self.name} ({self.task}, {self.metric}): {', '.join(parts)}{note}"


def stratified(
    labels: NDArray[np.int64], seed: int, folds: int = FOLDS
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Split ids into stratified folds.

    Args:
        labels: one class per id.
        seed: seed of the shuffle.
        folds: number of folds.

    Returns:
        Training and test ids per fold, each sorted.

    Raises:
        DataError: there are fewer ids than folds.

    >>> folds = stratified(np.array([0, 1] * 10), seed=0)
    >>> len(folds), [len(test) for _, test in folds] == [2] * 10
    (10, True)
    """
    if len(labels) < folds:
        raise DataError(
            f"folds: expected at least {folds} graphs, got {len(labels)}. Take a larger dataset."
        )
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(labels))
    dealt = shuffled[np.argsort(labels[shuffled], kind="stable")]
    fold = np.empty(len(labels), dtype=np.int64)
    # Dealing continues where the last class ended, which keeps the folds' sizes even.
    fold[dealt] = np.arange(len(labels)) % folds
    return [(np.flatnonzero(fold != part), np.flatnonzero(fold == part)) for part in range(folds)]


def split_per_class(
    labels: NDArray[np.int64],
    seed: int,
    train: int = TRAIN_PER_CLASS,
    valid: int = VALID_PER_CLASS,
) -> dict[str, Tensor]:
    """A random split with the same number of training and validation nodes of every class.

    Args:
        labels: one class per node.
        seed: seed of the draw.
        train: training nodes per class.
        valid: validation nodes per class; all other nodes are test nodes.

    Returns:
        Sorted ids per part.

    Raises:
        DataError: a class is too small to leave a test node.

    >>> split = split_per_class(np.arange(8) % 2, seed=0, train=1, valid=2)
    >>> {part: len(ids) for part, ids in split.items()}
    {'train': 2, 'valid': 4, 'test': 2}
    """
    smallest = int(np.bincount(labels).min())
    if smallest <= train + valid:
        raise DataError(
            f"split: expected more than {train + valid} nodes of every class, got {smallest} of "
            f"the smallest. Take a larger dataset."
        )
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    first = np.searchsorted(labels[by_class], labels[by_class])
    part = np.searchsorted([train, train + valid], np.arange(len(labels)) - first, side="right")
    return {
        name: torch.from_numpy(np.sort(by_class[part == index])) for index, name in enumerate(PARTS)
    }


def sizes(graphs: Any) -> tuple[int, int]:
    """Total number of nodes and of columns of ``edge_index`` of all graphs."""
    collated = getattr(graphs, "_data", None)
    if collated is not None and len(graphs) == len(graphs.slices["edge_index"]) - 1:
        nodes = collated.num_nodes
        return int(sum(nodes) if isinstance(nodes, list) else nodes), collated.edge_index.size(1)
    return sum(g.num_nodes for g in graphs), sum(g.num_edges for g in graphs)


def part_size(part: Any) -> int:
    """Number of nodes, graphs or edges in a part of a split."""
    if isinstance(part, Mapping):  # OGB's edges: pairs, or sources beside targets
        return len(part["edge"] if "edge" in part else part["source_node"])
    return len(part)


def masks_of(split: Mapping[str, Tensor], num_nodes: int) -> dict[str, Tensor]:
    """A node split as PyG's masks: ``train_mask``, ``val_mask`` and ``test_mask``."""
    masks = {}
    for part, name in zip(PARTS, MASKS, strict=True):
        masks[name] = torch.zeros(num_nodes, dtype=torch.bool)
        masks[name][split[part]] = True
    return masks


def split_of(data: Data) -> dict[str, Tensor]:
    """PyG's masks as a node split: ids per part."""
    return {part: data[name].nonzero().view(-1) for part, name in zip(PARTS, MASKS, strict=True)}

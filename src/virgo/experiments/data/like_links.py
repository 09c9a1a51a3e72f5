"""Splits of generated graphs for link prediction, in the form of OGB's ``get_edge_split()``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from virgo.experiments.data.catalogue import Entry
from virgo.experiments.data.configuration import contains, key_of

Ints = NDArray[np.int64]

NEGATIVES = {
    "ogbl-ddi": (101882, 95599),
    "ogbl-collab": (100000, 100000),
    "ogbl-ppa": (3000000, 3000000),
}
"""Validation and test negatives of the datasets ranked by hits."""

CANDIDATES = 1000
"""Negative targets of each source in ogbl-citation2, at every scale."""


def held_out(
    row: Entry, keys: Ints, number: int, sizes: list[int], scale: float, rng: np.random.Generator
) -> tuple[Ints, dict[str, Any]]:
    """Training edges as sorted keys, and the split.

    Args:
        row: which dataset.
        keys: of all edges; see :mod:`virgo.experiments.data.configuration`.
        number: of nodes.
        sizes: of training, validation and test part.
        scale: of the numbers of negatives.
        rng: of every draw.
    """
    order = rng.permutation(keys.size)
    bounds = np.cumsum(sizes)[:2]
    parts = [keys[np.sort(part)] for part in np.split(order, bounds)]
    negatives = [0, *(max(round(n * scale), 1) for n in NEGATIVES.get(row.name, (0, 0)))]
    split: dict[str, Any] = {}
    for part, chosen, missing in zip(("train", "valid", "test"), parts, negatives, strict=True):
        ends = _directed(chosen, number, rng)
        if row.name == "ogbl-citation2":
            split[part] = {"source_node": ends[0], "target_node": ends[1]}
            if part != "train":
                split[part]["target_node_neg"] = _candidates(keys, ends[0], number, rng)
        else:
            split[part] = {"edge": ends.T.copy()}
            if row.name == "ogbl-collab":
                split[part] |= _collaborations(part, chosen.size, rng)
            if part != "train":
                split[part]["edge_neg"] = _negatives(keys, number, missing, rng)
    tensors = {
        part: {key: torch.from_numpy(np.ascontiguousarray(v)) for key, v in found.items()}
        for part, found in split.items()
    }
    return parts[0], tensors


def _directed(keys: Ints, number: int, rng: np.random.Generator) -> Ints:
    """Each edge once, from a random one of its ends."""
    low, high = np.divmod(keys, number)
    swap = rng.random(keys.size) < 0.5
    return np.stack([np.where(swap, high, low), np.where(swap, low, high)])


def _collaborations(part: str, number: int, rng: np.random.Generator) -> dict[str, Ints]:
    """How often two authors wrote together, and when: the years are what splits the real one."""
    recent = {"valid": 2018, "test": 2019}.get(part)
    year = 2017 - np.minimum(rng.geometric(0.12, number) - 1, 54)
    return {
        "weight": rng.geometric(0.75, number),
        "year": year if recent is None else np.full(number, recent),
    }


def _negatives(keys: Ints, number: int, wanted: int, rng: np.random.Generator) -> Ints:
    """``[wanted, 2]``: uniform pairs without an edge, drawn again until they have none."""
    pairs = rng.integers(0, number, (2, wanted))
    bad = np.arange(wanted)
    while bad.size:
        made = pairs[:, bad]
        bad = bad[(made[0] == made[1]) | contains(keys, key_of(made, number))]
        pairs[:, bad] = rng.integers(0, number, (2, bad.size))
    return pairs.T.copy()


def _candidates(keys: Ints, source: Ints, number: int, rng: np.random.Generator) -> Ints:
    """``[sources, CANDIDATES]``: uniform nodes that the source has no edge to."""
    targets = rng.integers(0, number, (source.size, CANDIDATES))
    bad = np.indices(targets.shape).reshape(2, -1)
    while bad.size:
        one, other = source[bad[0]], targets[bad[0], bad[1]]
        again = (one == other) | contains(keys, key_of(np.stack([one, other]), number))
        bad = bad[:, again]
        targets[bad[0], bad[1]] = rng.integers(0, number, bad.shape[1])
    return targets

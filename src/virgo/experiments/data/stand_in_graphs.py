"""Stand-ins for datasets of graphs: ego networks like IMDB and COLLAB, molecules like OGB's."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from virgo.experiments.data.catalogue import Entry
from virgo.experiments.data.datasets import PARTS
from virgo.experiments.data.preprocessing import OneHotDegree
from virgo.experiments.data.random_graphs import (
    DENSITIES,
    SIZE_AND_DENSITY,
    SIZES,
    Floats,
    Ints,
    triangle,
    whole_numbers,
)

CLASS_SHARES = {"imdb-b": (1, 1), "imdb-m": (1, 1, 1), "collab": (2600, 775, 1625)}
"""Relative sizes of the classes."""

# Frequencies in ogbg-molhiv: element, chirality, (degree: from the graph), charge, hydrogens,
# radicals, hybridisation, aromatic, in a ring; then kind, stereo and conjugation of bonds.
ATOMS: tuple[dict[int, float], ...] = (
    {5: 0.726, 7: 0.138, 6: 0.096, 15: 0.018, 16: 0.010, 8: 0.006, 34: 0.004, 14: 0.002},
    {0: 1.0},
    {},
    {5: 0.986, 6: 0.008, 4: 0.006},
    {0: 0.465, 1: 0.348, 2: 0.118, 3: 0.069},
    {0: 1.0},
    {1: 0.683, 2: 0.306, 0: 0.009, 5: 0.001, 3: 0.001},
    {0: 0.565, 1: 0.435},
    {1: 0.606, 0: 0.394},
)
BONDS: tuple[dict[int, float], ...] = (
    {0: 0.491, 3: 0.417, 1: 0.088, 2: 0.004},
    {0: 1.0},
    {1: 0.631, 0: 0.369},
)
DEGREE_COLUMN, LARGEST_DEGREE = 2, 10
RING = 5
"""A bond from an atom to the one this many positions later closes a ring of six."""

POSITIVES = {"ogbg-molhiv": (0.035, 0.035), "ogbg-molpcba": (1e-4, 0.03)}
"""Range of the share of positive labels of a task."""

MISSING = {"ogbg-molhiv": 0.0, "ogbg-molpcba": 0.39}
"""Share of labels that are missing."""


# --- ego networks --------------------------------------------------------------------------------


def ego_networks(
    row: Entry, graphs: int, nodes: int, edges: int, rng: np.random.Generator
) -> list[Data]:
    """Graphs in which one node is connected to all others, and the others at random.

    Sizes and densities are distributed and correlated as in the dataset. The degree is in
    ``degree`` and, one-hot, in ``x``.

    Args:
        row: the dataset.
        graphs: number of graphs.
        nodes: nodes of all graphs together.
        edges: edges of all graphs together.
        rng: generator of every draw.

    Returns:
        The graphs.
    """
    normal = rng.standard_normal((2, graphs))
    correlation = SIZE_AND_DENSITY[row.name]
    normal[1] = correlation * normal[0] + np.sqrt(1 - correlation**2) * normal[1]
    size_rank, density_rank = np.argsort(np.argsort(normal, axis=1), axis=1)
    size = whole_numbers(SIZES[row.name].spread(graphs), nodes, 3, row.num_features, rng)[size_rank]
    density = DENSITIES[row.name].spread(graphs)[density_rank]
    number = _edge_numbers(size, density, edges)
    share = np.cumsum(CLASS_SHARES[row.name]) / sum(CLASS_SHARES[row.name])
    labels = rng.permutation(np.searchsorted(share, (np.arange(graphs) + 0.5) / graphs))
    one_hot = OneHotDegree(row.num_features)
    networks = []
    for n, m, label in zip(size, number, labels, strict=True):
        others = (n - 1) * (n - 2) // 2
        drawn = triangle(rng.choice(others, m - (n - 1), replace=False, shuffle=False))
        ends = np.stack(
            [
                np.concatenate([np.zeros(n - 1, dtype=np.int64), drawn[1] + 1]),
                np.concatenate([np.arange(1, n), drawn[0] + 1]),
            ]
        )
        both = np.concatenate([ends, ends[::-1]], axis=1)
        both = both[:, np.lexsort((both[1], both[0]))]
        data = Data(
            edge_index=torch.from_numpy(both), y=torch.tensor([int(label)]), num_nodes=int(n)
        )
        data.degree = torch.from_numpy(np.bincount(both[0], minlength=n))
        networks.append(one_hot(data))
    return networks


def _edge_numbers(size: Ints, density: Floats, total: int) -> Ints:
    """Edges per graph: at least a star, at most all pairs, ``total`` together if possible."""
    least, most = size - 1, size * (size - 1) // 2
    low, high = 0.0, 50.0
    for _ in range(60):  # bisection: the sum grows with the factor
        middle = (low + high) / 2
        number = np.clip(np.rint(middle * density * most), least, most)
        low, high = (middle, high) if number.sum() < total else (low, middle)
    return np.clip(np.rint(high * density * most), least, most).astype(np.int64)


# --- molecules -----------------------------------------------------------------------------------


def molecules(
    row: Entry, nodes: int, edges: int, sizes: tuple[int, ...], rng: np.random.Generator
) -> tuple[list[Data], dict[str, Tensor]]:
    """Branching trees closed to rings; atoms and bonds within OGB's vocabularies.

    Each column of features has the frequencies of ogbg-molhiv; the column for the degree is the
    graph's own, the others are independent. Every part has a positive and a negative label of
    every task, as OGB's evaluators need.

    Args:
        row: the dataset.
        nodes: nodes of all graphs together.
        edges: bonds of all graphs together.
        sizes: number of graphs for training, validation and test.
        rng: generator of every draw.

    Returns:
        The graphs, and their split.
    """
    graphs = sum(sizes)
    size = whole_numbers(SIZES[row.name].spread(graphs), nodes, 2, nodes, rng)
    size = rng.permutation(size)
    bonds, per_graph = _bonds(size, edges, rng)
    both = np.stack([bonds, bonds[::-1]], axis=2).reshape(2, -1)  # OGB's order: there and back
    start = np.cumsum(size) - size
    attributes = np.repeat(_columns(BONDS, bonds.shape[1], rng), 2, axis=0)
    atoms = _columns(ATOMS, nodes, rng)
    of = np.repeat(np.arange(graphs), 2 * per_graph)
    degree = np.bincount(both[0] + start[of], minlength=nodes)
    atoms[:, DEGREE_COLUMN] = np.minimum(degree, LARGEST_DEGREE)
    parts = np.split(rng.permutation(graphs), np.cumsum(sizes)[:-1])
    y = _labels(row, parts, graphs, rng)
    rows = (2 * per_graph).tolist()
    pieces = zip(
        torch.from_numpy(atoms).split(size.tolist()),
        torch.from_numpy(both).split(rows, dim=1),
        torch.from_numpy(attributes).split(rows),
        y.split(1),
        strict=True,
    )
    data = [
        Data(x=x, edge_index=index.contiguous(), edge_attr=attr, y=label, num_nodes=x.size(0))
        for x, index, attr, label in pieces
    ]
    return data, {p: torch.from_numpy(np.sort(ids)) for p, ids in zip(PARTS, parts, strict=True)}


def _bonds(size: Ints, total: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Bonds as pairs of atoms numbered within their molecule, and the number per molecule."""
    graphs, nodes = size.size, int(size.sum())
    start = np.cumsum(size) - size
    of = np.repeat(np.arange(graphs), size)
    atom = np.arange(nodes) - start[of]
    # Three of four atoms follow the previous one; others branch off two or three earlier.
    back = np.where(rng.random(nodes) < 0.75, 1, rng.integers(2, 4, nodes))
    child = atom > 0
    tree = np.stack([np.maximum(atom - back, 0), atom])[:, child]
    # Rings in proportion to size, spread over the molecule without overlap.
    room = np.maximum(size - RING, 0)
    rings = np.zeros(graphs, dtype=np.int64)
    wanted = min(max(total - (nodes - graphs), 0), int(room.sum()))
    if wanted:
        each = np.cumsum(np.minimum(size * (wanted / size.sum()), room))
        rings = np.diff(np.rint(each * (wanted / each[-1])), prepend=0).astype(np.int64)
        rings = np.minimum(rings, room)
    ring_of = np.repeat(np.arange(graphs), rings)
    nth = np.arange(ring_of.size) - (np.cumsum(rings) - rings)[ring_of]
    low, high = (k * room[ring_of] // np.maximum(rings[ring_of], 1) for k in (nth, nth + 1))
    first = rng.integers(low, np.maximum(high, low + 1))
    both = np.concatenate([tree, np.stack([first, first + RING])], axis=1)
    order = np.argsort(np.concatenate([of[child], ring_of]), kind="stable")
    return both[:, order], size - 1 + rings


def _columns(
    frequencies: tuple[dict[int, float], ...], number: int, rng: np.random.Generator
) -> Ints:
    out = np.zeros((number, len(frequencies)), dtype=np.int64)
    for column, table in enumerate(frequencies):
        if len(table) > 1:
            share = np.array(list(table.values()))
            values = np.array(list(table))
            out[:, column] = rng.choice(values, number, p=share / share.sum())
        elif table:
            out[:, column] = next(iter(table))
    return out


def _labels(row: Entry, parts: list[Ints], graphs: int, rng: np.random.Generator) -> Tensor:
    shape = (graphs, row.num_tasks)
    low, high = POSITIVES[row.name]
    share = np.exp(rng.uniform(np.log(low), np.log(high), row.num_tasks))
    y = (rng.random(shape) < share).astype(np.float32)
    y[rng.random(shape) < MISSING[row.name]] = np.nan
    for part in parts:
        y[part[0]], y[part[1]] = 1, 0
    labels = torch.from_numpy(y)
    return labels.long() if row.num_tasks == 1 else labels

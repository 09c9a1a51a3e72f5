"""``like:NAME[@scale]``: generated stand-ins with the shape of a dataset, for speed and variance.

A stand-in has the dataset's numbers of nodes and edges times the scale, its degree distribution,
its numbers of features and classes, its split's shares and the same fields as what
:func:`virgo.data.load` returns. A model's accuracy on it means nothing, and every output made from
it must show :attr:`virgo.data.Dataset.generated`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from virgo.errors import DataError
from virgo.experiments.data.catalogue import Entry, entry
from virgo.experiments.data.datasets import PARTS, Dataset, masks_of, split_of
from virgo.experiments.data.generators import citation_like
from virgo.experiments.data.preprocessing import row_normalised
from virgo.experiments.data.random_graphs import (
    DEGREES,
    Ints,
    both_directions,
    contains,
    key_of,
    random_edges,
    whole_numbers,
)
from virgo.experiments.data.stand_in_graphs import ego_networks, molecules

#: More is a slip of the finger: the graph would fit into no memory.
LARGEST = 1e6
WORDS = {
    "cora": 18.3,
    "citeseer": 31.6,
    "pubmed": 50.1,
    "photo": 258.8,
    "computers": 267.2,
    "cs": 59.6,
}
"""Mean number of distinct words per document."""

NEGATIVES = {
    "ogbl-ddi": (101882, 95599),
    "ogbl-collab": (100000, 100000),
    "ogbl-ppa": (3000000, 3000000),
}
"""Validation and test negatives of the datasets ranked by hits."""

CANDIDATES = 1000
"""Negative targets per source in ogbl-citation2, at every scale."""


def like(name: str, seed: int = 0) -> Dataset:
    """Generate a stand-in for a dataset.

    The numbers of features and classes are the same at every scale, and so are degrees, as far as
    a smaller graph can have them. All draws come from ``seed``; the same name and seed give the
    same graph. Features are normal about a mean per class (arxiv, products, collab, citation2),
    words (citation graphs, photo, computers, cs), one of 58 kinds (ppa), or shares (proteins), and
    the homophily is that of the real graph. Splits are random. ogbl-collab's stand-in has no
    repeated edges. Held-out links are edges of the same graph, negatives are pairs without one.

    Args:
        name: ``like:`` and one of :func:`virgo.data.names`, then ``@`` and the scale if it is
            not 1.
        seed: seed of every draw.

    Returns:
        The stand-in.

    Example:
        >>> print(like("like:cora@0.5"))
        like:cora@0.5 (node, accuracy): 1354 nodes, 5278 edge entries, 1433 features, 7 outputs,
        70/250/500 split [generated: like cora, scale 0.5]

    Raises:
        DataError: the name is unknown, or the scale is too small.
    """
    row, scale = _parse(name)
    streams = [np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(4)]
    if row.task == "graph":
        data, split = _graphs(row, scale, name, streams[0])
    elif row.task == "link":
        data, split = _link(row, scale, name, streams)
    else:
        data, split = _node(row, scale, name, streams, seed)
    return Dataset(
        name=f"like:{row.name}" + ("" if scale == 1 else f"@{scale:g}"),
        task=row.task,
        data=data,
        split=split,
        metric=row.metric,
        num_classes=row.num_classes,
        generated=f"generated: like {row.name}, scale {scale:g}",
    )


def _parse(name: str) -> tuple[Entry, float]:
    prefix, _, rest = name.partition(":")
    plain, at, number = rest.partition("@")
    if prefix.lower() != "like" or not plain:
        raise DataError(
            f"like: expected like:NAME or like:NAME@scale, got {name!r}. Write like:cora@0.5."
        )
    try:
        scale = float(number) if at else 1.0
    except ValueError:
        scale = math.nan
    if not 0 < scale <= LARGEST:
        raise DataError(
            f"{name}: expected a scale above 0 and up to {LARGEST:g} after @, got {number!r}. "
            f"Write like:{plain}@0.5."
        )
    return entry(plain), scale


def _scaled(number: int, scale: float) -> int:
    return round(number * scale)


def _enough(name: str, what: str, number: int, least: int) -> None:
    if number < least:
        raise DataError(
            f"{name}: expected at least {least} {what}, got {number}. Take a larger scale."
        )


def _parts(row: Entry, number: int, of: int, name: str, least: int) -> tuple[int, ...]:
    """Sizes of a split with the shares of the real one."""
    bounds = np.rint(np.cumsum(row.split) * (number / of)).astype(int)  # covers all if it does
    sizes = tuple(np.diff(bounds, prepend=0).tolist())
    for part, size in zip(PARTS, sizes, strict=True):
        _enough(name, f"items in the {part} part", size, least)
    return sizes


# --- node classification -------------------------------------------------------------------------


def _node(
    row: Entry, scale: float, name: str, streams: list[np.random.Generator], seed: int
) -> tuple[Data, dict[str, Tensor]]:
    number = _scaled(row.num_nodes, scale)
    _enough(name, "nodes", number, 2 * row.num_classes + 8)
    if row.name in WORDS:
        data = _documents(row, number, scale, seed, streams[2])
        labels = data.y.numpy()
    else:
        several = row.num_tasks > 1
        sizes = _parts(row, number, row.num_nodes, name, 2)
        _enough(name, "training nodes", sizes[0], 2 if several else row.num_classes)
        order = streams[3].permutation(number)
        parts = np.split(order, np.cumsum(sizes))[:3]
        labels = None if several else _classes(row.num_classes, order, streams[1])
        data = Data(x=_features(row, labels, number, streams[2]))
        data.y = (
            _binary_labels(row, parts, number, streams[1]) if several else torch.from_numpy(labels)
        )
        split = {p: torch.from_numpy(np.sort(ids)) for p, ids in zip(PARTS, parts, strict=True)}
        data.update(masks_of(split, number))
    edges = _scaled((row.num_entries or 0) // 2, scale)
    keys = _edges(row, number, edges, 0, labels, name, streams[0])
    data.edge_index = torch.from_numpy(both_directions(keys, number))
    return data, split_of(data)


def _edges(
    row: Entry,
    number: int,
    edges: int,
    apart: int,
    labels: Ints | None,
    name: str,
    rng: np.random.Generator,
) -> Ints:
    """Keys of edges with the dataset's degrees; ``apart`` pairs must stay unconnected."""
    pairs, shape = number * (number - 1) // 2, DEGREES[row.name]
    if edges + apart > 0.98 * pairs:
        raise DataError(
            f"{name}: expected at most {int(0.98 * pairs)} pairs among {number} nodes, got {edges} "
            f"edges and {apart} negatives. Take a larger scale: degrees stay as they are."
        )
    degrees = whole_numbers(shape.spread(number), 2 * edges, 1, number - 1, rng)
    return random_edges(rng, rng.permutation(degrees), labels, shape.homophily)


def _documents(row: Entry, number: int, scale: float, seed: int, rng: np.random.Generator) -> Data:
    """Labels, words and split of a citation graph; its edges are replaced."""
    train, valid, test = row.split
    data = citation_like(
        number,
        row.num_classes,
        row.num_features,
        average_degree=2,
        words_per_node=WORDS[row.name],
        train_per_class=max(round(scale * train / row.num_classes), 1),
        num_val=max(_scaled(valid, scale), 1),
        num_test=max(_scaled(test, scale), 1),
        seed=seed,
    )
    if row.name == "pubmed":  # whose words have weights; the standard deviation of their logarithm
        weight = rng.lognormal(0, 0.76, data.x.shape).astype(np.float32)
        data.x *= torch.from_numpy(weight)
    data.x = row_normalised(data.x)
    return data


def _classes(number: int, order: Ints, rng: np.random.Generator) -> Ints:
    """Labels with frequencies as 1/rank; every class has a node early in ``order``."""
    share = 1 / np.arange(1, number + 1)
    labels = rng.choice(number, order.size, p=share / share.sum())
    labels[order[:number]] = np.arange(number)
    return labels.astype(np.int64)


def _binary_labels(row: Entry, parts: list[Ints], number: int, rng: np.random.Generator) -> Tensor:
    """Binary labels of several tasks, rare and common ones; every part has both values."""
    share = rng.uniform(0.01, 0.25, row.num_tasks)
    y = (rng.random((number, row.num_tasks)) < share).astype(np.float32)
    for part in parts:
        y[part[0]], y[part[1]] = 1, 0
    return torch.from_numpy(y)


def _features(row: Entry, labels: Ints | None, number: int, rng: np.random.Generator) -> Tensor:
    width = row.num_features
    if row.name == "ogbl-ppa":
        return torch.eye(width)[torch.from_numpy(rng.integers(0, width, number))]
    if row.name == "ogbn-proteins":
        return torch.from_numpy(rng.beta(0.5, 4.0, (number, width)).astype(np.float32))
    x = rng.standard_normal((number, width), dtype=np.float32)
    if labels is not None:
        centre = rng.standard_normal((row.num_classes, width), dtype=np.float32)
        x += 0.5 * centre[labels]
    return torch.from_numpy(0.1 * x)


# --- graph classification ------------------------------------------------------------------------


def _graphs(row: Entry, scale: float, name: str, rng: np.random.Generator) -> Any:
    graphs, nodes = _scaled(row.num_graphs, scale), _scaled(row.num_nodes, scale)
    edges = _scaled((row.num_entries or 0) // 2, scale)
    if row.kind == "tu":
        _enough(name, "graphs", graphs, 10 * row.num_classes)
        return ego_networks(row, graphs, nodes, edges, rng), {}
    return molecules(row, nodes, edges, _parts(row, graphs, row.num_graphs, name, 2), rng)


# --- link prediction -----------------------------------------------------------------------------


def _link(
    row: Entry, scale: float, name: str, streams: list[np.random.Generator]
) -> tuple[Data, dict[str, Any]]:
    number = _scaled(row.num_nodes, scale)
    sizes = [_scaled(part, scale) for part in row.split]
    _enough(name, "nodes", number, CANDIDATES if row.name == "ogbl-citation2" else 20)
    _enough(name, "held-out edges", min(sizes[1:]), 1)
    keys = _edges(row, number, sum(sizes), sizes[1] + sizes[2], None, name, streams[0])
    train, split = _held_out(row, keys, number, sizes, scale, streams[1])
    data = Data(edge_index=torch.from_numpy(both_directions(train, number)), num_nodes=number)
    if row.num_features:
        data.x = _features(row, None, number, streams[2])
    if row.name == "ogbl-collab":
        # Both directions of an edge have the same weight and year.
        pair = np.searchsorted(train, key_of(data.edge_index.numpy(), number))
        data.edge_weight = split["train"]["weight"][pair].float()
        data.edge_year = split["train"]["year"][pair]
    return data, split


def _held_out(
    row: Entry, keys: Ints, number: int, sizes: list[int], scale: float, rng: np.random.Generator
) -> tuple[Ints, dict[str, Any]]:
    """Training edges as sorted keys, and a split in the form of OGB's ``get_edge_split()``."""
    order = rng.permutation(keys.size)
    bounds = np.cumsum(sizes)[:2]
    parts = [keys[np.sort(part)] for part in np.split(order, bounds)]
    negatives = [0, *(max(round(n * scale), 1) for n in NEGATIVES.get(row.name, (0, 0)))]
    split: dict[str, Any] = {}
    for part, chosen, missing in zip(PARTS, parts, negatives, strict=True):
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
        part: {key: torch.from_numpy(np.ascontiguousarray(v)) for key, v in fields.items()}
        for part, fields in split.items()
    }
    return parts[0], tensors


def _directed(keys: Ints, number: int, rng: np.random.Generator) -> Ints:
    """Each edge once, in a random direction."""
    low, high = np.divmod(keys, number)
    swap = rng.random(keys.size) < 0.5
    return np.stack([np.where(swap, high, low), np.where(swap, low, high)])


def _collaborations(part: str, number: int, rng: np.random.Generator) -> dict[str, Ints]:
    """Number and year of collaborations; the real dataset is split by year."""
    recent = {"valid": 2018, "test": 2019}.get(part)
    year = 2017 - np.minimum(rng.geometric(0.12, number) - 1, 54)
    return {
        "weight": rng.geometric(0.75, number),
        "year": year if recent is None else np.full(number, recent),
    }


def _negatives(keys: Ints, number: int, wanted: int, rng: np.random.Generator) -> Ints:
    """Uniform pairs without an edge, ``[wanted, 2]``, by rejection."""
    pairs = rng.integers(0, number, (2, wanted))
    bad = np.arange(wanted)
    while bad.size:
        drawn = pairs[:, bad]
        bad = bad[(drawn[0] == drawn[1]) | contains(keys, key_of(drawn, number))]
        pairs[:, bad] = rng.integers(0, number, (2, bad.size))
    return pairs.T.copy()


def _candidates(keys: Ints, source: Ints, number: int, rng: np.random.Generator) -> Ints:
    """Uniform nodes that the source has no edge to, ``[sources, CANDIDATES]``."""
    targets = rng.integers(0, number, (source.size, CANDIDATES))
    bad = np.indices(targets.shape).reshape(2, -1)
    while bad.size:
        ends = np.stack([source[bad[0]], targets[bad[0], bad[1]]])
        bad = bad[:, (ends[0] == ends[1]) | contains(keys, key_of(ends, number))]
        targets[bad[0], bad[1]] = rng.integers(0, number, bad.shape[1])
    return targets

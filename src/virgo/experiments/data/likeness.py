"""``like:NAME[@scale]``: generated stand-ins with the shape of a dataset, for speed and variance.

A stand-in has the dataset's numbers of nodes and edges times the scale, its distribution of
degrees, its feature and class shape, its split's shares and the same fields under the same names
as what :func:`virgo.data.load` returns. What it says of a model's accuracy means nothing, and
every output made from it must show :attr:`virgo.data.Dataset.generated`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from virgo.errors import DataError
from virgo.experiments.data.catalogue import Entry, entry
from virgo.experiments.data.configuration import both_directions, key_of, random_edges
from virgo.experiments.data.datasets import Dataset
from virgo.experiments.data.degree_shapes import DEGREES, whole
from virgo.experiments.data.generators import citation_like
from virgo.experiments.data.like_graphs import ego_networks, molecules
from virgo.experiments.data.like_links import CANDIDATES, held_out
from virgo.experiments.data.preparation import masks, row_normalised

Ints = NDArray[np.int64]

WORDS = {"cora": 18.3, "citeseer": 31.6, "pubmed": 50.1}
"""Mean number of distinct words of a document."""

PARTS = ("train", "valid", "test")


def like(name: str, seed: int = 0) -> Dataset:
    """A generated stand-in for a dataset.

    Features and classes keep their number at every scale, and so do degrees, as far as a smaller
    graph can have them. All draws come from ``seed``; the same name and seed give the same graph.
    Features are normal about a mean of their class (arxiv, products, collab, citation2), words
    (cora, citeseer, pubmed), one of 58 kinds (ppa), or shares (proteins), and classes are tied
    more often to themselves as in the real graph. Splits are random. ogbl-collab's has no
    repeated edges. Links held out are edges of the same graph, negatives are pairs without an edge.

    Args:
        name: ``like:`` and one of :func:`virgo.data.names`, then ``@`` and the scale if it is
            not 1.
        seed: of every draw.

    Example:
        >>> print(like("like:cora@0.5"))
        like:cora@0.5 (node, accuracy): 1354 nodes, 5278 edge entries, 1433 features, 7 outputs,
        70/250/500 split [generated: like cora, scale 0.5]

    Raises:
        DataError: the name is unknown, or the scale leaves too little.
    """
    row, scale = _parse(name)
    streams = [np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(4)]
    split: Any
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
    start, _, rest = name.partition(":")
    plain, at, number = rest.partition("@")
    if start.lower() != "like" or not plain:
        raise DataError(
            f"like: expected like:NAME or like:NAME@scale, got {name!r}. Write like:cora@0.5."
        )
    try:
        scale = float(number) if at else 1.0
    except ValueError:
        scale = math.nan
    if not (math.isfinite(scale) and scale > 0):
        raise DataError(
            f"{name}: expected a scale above 0 after @, got {number!r}. Write like:{plain}@0.5."
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
    bounds = np.rint(np.cumsum(row.split) * (number / of)).astype(int)  # all there is, if all
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
    if row.kind == "planetoid":
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
        data.y = _answers(row, parts, number, streams[1]) if several else torch.from_numpy(labels)
        split = {p: torch.from_numpy(np.sort(ids)) for p, ids in zip(PARTS, parts, strict=True)}
        data.update(masks(split, number))
    edges = _scaled((row.num_entries or 0) // 2, scale)
    keys = _edges(row, number, edges, 0, labels, name, streams[0])
    data.edge_index = torch.from_numpy(both_directions(keys, number))
    found = (data.train_mask, data.val_mask, data.test_mask)
    return data, {p: mask.nonzero().view(-1) for p, mask in zip(PARTS, found, strict=True)}


def _edges(
    row: Entry,
    number: int,
    edges: int,
    apart: int,
    labels: Ints | None,
    name: str,
    rng: np.random.Generator,
) -> Ints:
    """Keys of edges with the dataset's degrees; ``apart`` pairs must be left without one."""
    pairs, shape = number * (number - 1) // 2, DEGREES[row.name]
    if edges + apart > 0.98 * pairs:
        raise DataError(
            f"{name}: expected at most {int(0.98 * pairs)} pairs among {number} nodes, got {edges} "
            f"edges and {apart} negatives. Take a larger scale: degrees stay as they are."
        )
    degrees = whole(shape.spread(number), 2 * edges, 1, number - 1, rng)
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
    if row.name == "pubmed":  # weights of words there, of which the logarithm varies by 0.76
        weight = rng.lognormal(0, 0.76, data.x.shape).astype(np.float32)
        data.x *= torch.from_numpy(weight)
    data.x = row_normalised(data.x)
    return data


def _classes(number: int, order: Ints, rng: np.random.Generator) -> Ints:
    """Labels whose frequencies fall as 1/rank; every class has a node early in ``order``."""
    share = 1 / np.arange(1, number + 1)
    labels = rng.choice(number, order.size, p=share / share.sum())
    labels[order[:number]] = np.arange(number)
    return labels.astype(np.int64)


def _answers(row: Entry, parts: list[Ints], number: int, rng: np.random.Generator) -> Tensor:
    """Many yes-or-no answers, rare ones and common ones; every part has both of each."""
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
    train, split = held_out(row, keys, number, sizes, scale, streams[1])
    data = Data(edge_index=torch.from_numpy(both_directions(train, number)), num_nodes=number)
    if row.num_features:
        data.x = _features(row, None, number, streams[2])
    if row.name == "ogbl-collab":
        # Both entries of a pair share what is said of the collaboration.
        pair = np.searchsorted(train, key_of(data.edge_index.numpy(), number))
        data.edge_weight = split["train"]["weight"][pair].float()
        data.edge_year = split["train"]["year"][pair]
    return data, split

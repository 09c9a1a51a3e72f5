"""Distributions of degrees and sizes, and random simple graphs that have them.

Graphs are drawn in time and memory linear in their edges, which are held as sorted keys
``low * num_nodes + high``, one per pair of nodes. (networkx's configuration model holds Python
objects and keeps loops and repeated edges.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PROBABILITIES = (0.0, 0.10, 0.25, 0.50, 0.75, 0.90, 0.99, 0.999, 1.0)
"""Probabilities of :attr:`Shape.quantiles`; 1 is the largest value."""


@dataclass(frozen=True)
class Shape:
    """A distribution of degrees or sizes, by its quantiles at :data:`PROBABILITIES`.

    Between two quantiles the logarithm of the value is linear in that of the share above it, which
    is a power law from knot to knot: body and tail need no common family.

    Attributes:
        quantiles: the values, at least a half where degree zero is meant to round up to one.
        count: number of items of which the last quantile is the largest.
        isolated: share of items with value zero.
        homophily: share of edges within a class.
    """

    quantiles: tuple[float, ...]
    count: int
    isolated: float = 0.0
    homophily: float = 0.0

    def at(self, probability: Floats) -> Floats:
        """The quantile function."""
        # The largest of n items stands for the last half item: the share above it is 1 / 2n.
        above = np.array([max(1 - p, 0.5 / self.count) for p in PROBABILITIES])
        position = -np.log(np.maximum(1 - probability, 0.5 / self.count))
        return np.exp(np.interp(position, -np.log(above), np.log(self.quantiles)))

    def spread(self, number: int) -> Floats:
        """``number`` ascending values of this shape."""
        values = self.at((np.arange(number) + 0.5) / number)
        values[: round(self.isolated * number)] = 0
        return values


def _log_normal(sigma: float, count: int, homophily: float = 0.0) -> Shape:
    # Standard normal quantiles; the largest of n is near sqrt(2 log n) less its known correction.
    root = math.sqrt(2 * math.log(count))
    last = root - (math.log(math.log(count)) + math.log(4 * math.pi)) / (2 * root)
    normal = (-3.0, -1.2816, -0.6745, 0.0, 0.6745, 1.2816, 2.3263, 3.0902, last)
    quantiles = tuple(math.exp(sigma * z) for z in normal)
    return Shape(quantiles, count, homophily=homophily)


DEGREES: dict[str, Shape] = {
    "cora": Shape((0.5, 1, 2, 3, 5, 7, 19, 68, 168), 2708, homophily=0.81),
    "citeseer": Shape((0.5, 1, 1, 2, 3, 6, 15, 33, 99), 3327, isolated=0.0144, homophily=0.74),
    "pubmed": Shape((0.5, 1, 1, 2, 4, 12, 35, 70, 171), 19717, homophily=0.80),
    "ogbn-arxiv": Shape((0.5, 1, 3, 6, 14, 27, 106, 492, 13161), 169343, homophily=0.65),
    "ogbl-ddi": Shape((0.5, 10, 110, 446, 770, 1107, 1634, 2081, 2234), 4267),
    "photo": Shape((0.5, 4, 9, 22, 38, 60, 199, 660, 1434), 7650, 0.0150, homophily=0.83),
    "computers": Shape((0.5, 4, 9, 22, 41, 73, 244, 779, 2992), 13752, 0.0204, homophily=0.78),
    "cs": Shape((1, 2, 3, 6, 11, 19, 47, 80, 136), 18333, homophily=0.81),
    "ogbn-proteins": _log_normal(1.2, 132534),
    "ogbn-products": _log_normal(1.1, 2449029, homophily=0.8),
    "ogbl-collab": _log_normal(1.1, 235868),
    "ogbl-citation2": _log_normal(1.15, 2927963),
    "ogbl-ppa": _log_normal(1.2, 576289),
}
"""Degrees by dataset; for link prediction those of the training edges.

Measured on the real files; of those by ``_log_normal`` only the mean degree is known, and their
shape is *assumed* as wide as measured ones are (standard deviations of the logarithm: 0.7 for Cora,
1.15 for arxiv, 1.27 for COLLAB).
"""

SIZES: dict[str, Shape] = {
    "imdb-b": Shape((12, 12, 13, 17, 22, 31, 60, 84, 136), 1000),
    "imdb-m": Shape((7, 7, 8, 10, 15, 22, 48, 71, 89), 1500),
    "collab": Shape((32, 34, 40, 52, 82, 130, 343, 441, 492), 5000),
    "ogbg-molhiv": Shape((6, 15, 18, 23, 29, 38, 70, 123, 222), 41127),
    "ogbg-molpcba": Shape((8, 18, 22, 26, 30, 33, 42, 72, 332), 437929),
}
"""Nodes per graph, by dataset."""

DENSITIES: dict[str, Shape] = {
    "imdb-b": Shape((0.10, 0.25, 0.35, 0.46, 0.61, 1, 1, 1, 1), 1000),
    "imdb-m": Shape((0.15, 0.39, 0.56, 1, 1, 1, 1, 1, 1), 1500),
    "collab": Shape((0.07, 0.16, 0.24, 0.42, 0.79, 1, 1, 1, 1), 5000),
}
"""Share of pairs of nodes of a graph that are edges, by dataset."""

SIZE_AND_DENSITY: dict[str, float] = {"imdb-b": -0.54, "imdb-m": -0.65, "collab": -0.05}
"""Correlation of the logarithms of a graph's size and density, by dataset."""


def whole_numbers(
    values: Floats, total: int, least: int, most: int, rng: np.random.Generator
) -> Ints:
    """Whole numbers in proportion to ``values`` that add up to ``total`` exactly.

    Args:
        values: not negative; zeros stay zero unless ``total`` cannot be met without them.
        total: their sum, between ``least`` and ``most`` times their number.
        least: smallest number where the value is not zero.
        most: largest number.
        rng: decides which numbers get one more or one less.

    Returns:
        The numbers, in the order of ``values``.
    """
    positive = values > 0
    assert least * positive.sum() <= total <= most * values.size

    def rounded(factor: float) -> Ints:
        scaled = np.clip(np.rint(values * factor), least, most).astype(np.int64)
        return np.where(positive, scaled, 0)

    low, high = 0.0, 2.0 * max(total, 1) * max(1.0, 1 / values[positive].min())
    for _ in range(200):  # bisection: the sum grows with the factor
        middle = (low + high) / 2
        low, high = (middle, high) if rounded(middle).sum() < total else (low, middle)
    numbers = rounded(low)
    missing = total - int(numbers.sum())
    while missing:
        step = 1 if missing > 0 else -1
        room = np.flatnonzero(positive & (numbers < most if step > 0 else numbers > least))
        if room.size == 0:
            room = np.flatnonzero(numbers < most)
        chosen = rng.permutation(room)[: abs(missing)]
        numbers[chosen] += step
        missing -= step * chosen.size
    return numbers


# --- random graphs -------------------------------------------------------------------------------

DENSE = 0.02
"""Above this share of all pairs a graph is drawn cell by cell instead of by matching stubs."""

GROUPS = 64
"""Groups of nodes of similar degree in a dense graph."""

ROUNDS = 60
"""Attempts to match stubs again that formed no new edge, before random edges fill the gap."""


def random_edges(
    rng: np.random.Generator,
    degrees: Ints,
    labels: Ints | None = None,
    homophily: float = 0.0,
) -> Ints:
    """Keys of ``degrees.sum() / 2`` distinct edges without self-loops.

    A sparse graph is a configuration model: every node has as many stubs as its degree, stubs are
    matched at random, and those that form a loop or a repeated edge are matched again together with
    as many others. Degrees are as given, but for the few edges that :data:`ROUNDS` attempts did
    not place. A dense graph is a block model of its degrees: expected degrees are as given
    (:func:`_dense`); labels are ignored.

    Args:
        rng: generator of every draw.
        degrees: one number per node, an even sum.
        labels: one class per node.
        homophily: share of edges within a class.

    Returns:
        The keys, sorted.
    """
    num_nodes, num_edges = degrees.size, int(degrees.sum()) // 2
    if num_edges > DENSE * num_nodes * (num_nodes - 1) / 2:
        return _dense(rng, degrees, num_edges)
    inside = 0.0
    if labels is not None:
        volume = np.bincount(labels, weights=degrees) / degrees.sum()
        chance = float((volume**2).sum())  # share of random pairs of stubs within a class
        inside = max(0.0, (homophily - chance) / (1 - chance))
    loose = np.repeat(np.arange(num_nodes), degrees)
    keys = np.empty(0, dtype=np.int64)
    for attempt in range(ROUNDS):
        # Late attempts ignore classes: the stubs of one may be used up.
        pairs = _match(rng, loose, labels if attempt < ROUNDS // 4 else None, inside)
        keys, failed = add_edges(keys, pairs, num_nodes)
        if failed.size == 0:
            return keys
        if attempt < ROUNDS - 1:
            again = np.unique(rng.integers(0, max(keys.size, 1), failed.shape[1] + 8))
            again = again[again < keys.size]
            ends = np.divmod(keys[again], num_nodes)
            loose = np.concatenate([failed.reshape(-1), *ends])
            keys = np.delete(keys, again)
    return fill(rng, keys, num_nodes, num_edges)


def fill(rng: np.random.Generator, keys: Ints, num_nodes: int, num_edges: int) -> Ints:
    """Add uniform new edges until there are ``num_edges``."""
    while keys.size < num_edges:
        pairs = rng.integers(0, num_nodes, (2, 2 * (num_edges - keys.size) + 8))
        grown, _ = add_edges(keys, pairs, num_nodes)
        drop = rng.permutation(np.flatnonzero(~contains(keys, grown)))[num_edges - keys.size :]
        keys = np.delete(grown, drop)
    return keys


def key_of(pairs: Ints, num_nodes: int) -> Ints:
    """The keys of pairs of nodes."""
    low, high = np.minimum(pairs[0], pairs[1]), np.maximum(pairs[0], pairs[1])
    return np.asarray(low * num_nodes + high)


def contains(keys: Ints, wanted: Ints) -> NDArray[np.bool_]:
    """Which of ``wanted`` are among the sorted ``keys``."""
    if keys.size == 0:
        return np.zeros(wanted.shape, dtype=np.bool_)
    at = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
    return np.asarray(keys[at] == wanted)


def both_directions(keys: Ints, num_nodes: int) -> Ints:
    """``edge_index`` of an undirected graph, sorted by source, then target."""
    low, high = np.divmod(keys, num_nodes)
    both = np.concatenate([keys, high * num_nodes + low])
    both.sort()
    return np.stack(np.divmod(both, num_nodes))


def add_edges(keys: Ints, pairs: Ints, num_nodes: int) -> tuple[Ints, Ints]:
    """Add new edges to sorted keys.

    Args:
        keys: the edges so far.
        pairs: edges to add, ``[2, number]``.
        num_nodes: number of nodes.

    Returns:
        The sorted keys of all edges, and the pairs that are loops or repeated.
    """
    new = key_of(pairs, num_nodes)
    fresh, first = np.unique(new, return_index=True)
    low, high = np.divmod(fresh, num_nodes)
    good = (low != high) & ~contains(keys, fresh)
    failed = np.ones(new.size, dtype=np.bool_)
    failed[first[good]] = False
    grown = np.sort(np.concatenate([keys, fresh[good]]), kind="stable")  # merges two sorted runs
    return grown, pairs[:, failed]


def _match(rng: np.random.Generator, stubs: Ints, labels: Ints | None, inside: float) -> Ints:
    """Pair all stubs, a share ``inside`` of them within their own class."""
    stubs = rng.permutation(stubs)
    if labels is None or inside <= 0:
        return stubs.reshape(-1, 2).T
    stay = rng.random(stubs.size) < inside
    own = stubs[stay]
    own = own[np.argsort(labels[own], kind="stable")]
    label = labels[own]
    first = np.searchsorted(label, label, "left")
    size = np.searchsorted(label, label, "right") - first
    odd = (np.arange(own.size) - first == size - 1) & (size % 2 == 1)
    rest = rng.permutation(np.concatenate([stubs[~stay], own[odd]]))
    return np.concatenate([own[~odd].reshape(-1, 2).T, rest.reshape(-1, 2).T], axis=1)


def _dense(rng: np.random.Generator, degrees: Ints, num_edges: int) -> Ints:
    r"""Edges of a graph in which hubs are connected to most nodes.

    Nodes are grouped by degree; two nodes of groups :math:`a, b` are connected with probability
    :math:`x_a x_b / (1 + x_a x_b)`, the graph of largest entropy with these expected degrees. The
    number of edges of each pair of groups is fixed to its expectation, rounded.

    Returns:
        The keys, sorted.
    """
    num_nodes = degrees.size
    order = np.argsort(degrees, kind="stable")
    groups = min(GROUPS, num_nodes)
    first = np.linspace(0, num_nodes, groups + 1).astype(np.int64)
    size = np.diff(first)
    mean = np.add.reduceat(degrees[order], first[:-1]) / size
    others = size[None, :] - np.eye(groups)
    x = mean / np.sqrt(mean @ size)
    for _ in range(500):
        x = np.sqrt(x * mean / (others * x / (1 + x[:, None] * x)).sum(1))
    chance = x[:, None] * x / (1 + x[:, None] * x)
    a, b = np.triu_indices(groups)
    cells = np.where(a == b, size[a] * (size[a] - 1) // 2, size[a] * size[b])
    expected = np.cumsum(cells * chance[a, b])
    number = np.diff(np.rint(expected * num_edges / expected[-1]), prepend=0).astype(np.int64)
    number = np.minimum(number, cells)
    keys = []
    for g, h, cell, wanted in zip(a, b, cells, number, strict=True):
        chosen = rng.choice(cell, wanted, replace=False, shuffle=False)
        row, column = triangle(chosen) if g == h else np.divmod(chosen, size[h])
        ends = np.stack([order[first[g] + row], order[first[h] + column]])
        keys.append(key_of(ends, num_nodes))
    return fill(rng, np.sort(np.concatenate(keys)), num_nodes, num_edges)


def triangle(index: Ints) -> tuple[Ints, Ints]:
    """The ``index``-th pair ``(row, column)`` with ``row > column``, counted row by row.

    Args:
        index: numbers of pairs.

    Returns:
        Their rows and columns.

    >>> triangle(np.arange(6))
    (array([1, 2, 2, 3, 3, 3]), array([0, 0, 1, 0, 1, 2]))
    """
    row = ((1 + np.sqrt(1 + 8 * index.astype(np.float64))) / 2).astype(np.int64)
    # The root of a large number may be off by one.
    row -= row * (row - 1) // 2 > index
    row += row * (row + 1) // 2 <= index
    return row, index - row * (row - 1) // 2

"""How degrees and sizes are distributed in the fifteen datasets, as data, and draws from that.

A distribution is a few quantiles. Between two of them the logarithm of the value is linear in that
of the share above it, which is a power law from knot to knot: body and tail need no common family.
Quantiles of cora, citeseer, pubmed, arxiv, ddi, and of all graph datasets were measured on the real
files. Of the other five only mean degrees are at hand; their shape is *assumed* log-normal,
as wide as measured ones are (standard deviations of the logarithm: 0.7 for Cora, 1.15 for arxiv,
1.27 for COLLAB).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PROBABILITIES = (0.0, 0.10, 0.25, 0.50, 0.75, 0.90, 0.99, 0.999, 1.0)
"""Where :attr:`Shape.quantiles` are taken; 1 is the largest value."""


@dataclass(frozen=True)
class Shape:
    """Quantiles of a distribution over ``count`` items, at :data:`PROBABILITIES`.

    Attributes:
        quantiles: the values, at least a half where degree zero is meant to round up to one.
        count: of how many items the largest is the last of :attr:`quantiles`.
        isolated: share of items with value zero.
        homophily: share of edges within a class.
        assumed: whether the shape is assumed rather than measured.
    """

    quantiles: tuple[float, ...]
    count: int
    isolated: float = 0.0
    homophily: float = 0.0
    assumed: bool = False

    def at(self, probability: Floats) -> Floats:
        """The value that a share ``probability`` of items does not exceed."""
        # The largest of n items stands for the last half item: the share above it is 1 / 2n.
        above = np.array([max(1 - p, 0.5 / self.count) for p in PROBABILITIES])
        place = -np.log(np.maximum(1 - probability, 0.5 / self.count))
        return np.exp(np.interp(place, -np.log(above), np.log(self.quantiles)))

    def spread(self, number: int) -> Floats:
        """``number`` values, ascending, that have this shape."""
        values = self.at((np.arange(number) + 0.5) / number)
        values[: round(self.isolated * number)] = 0
        return values


def _log_normal(sigma: float, count: int, homophily: float = 0.0) -> Shape:
    # Standard normal quantiles; the largest of n is near sqrt(2 log n) less its known correction.
    root = math.sqrt(2 * math.log(count))
    last = root - (math.log(math.log(count)) + math.log(4 * math.pi)) / (2 * root)
    normal = (-3.0, -1.2816, -0.6745, 0.0, 0.6745, 1.2816, 2.3263, 3.0902, last)
    quantiles = tuple(math.exp(sigma * z) for z in normal)
    return Shape(quantiles, count, homophily=homophily, assumed=True)


DEGREES: dict[str, Shape] = {
    "cora": Shape((0.5, 1, 2, 3, 5, 7, 19, 68, 168), 2708, homophily=0.81),
    "citeseer": Shape((0.5, 1, 1, 2, 3, 6, 15, 33, 99), 3327, isolated=0.0144, homophily=0.74),
    "pubmed": Shape((0.5, 1, 1, 2, 4, 12, 35, 70, 171), 19717, homophily=0.80),
    "ogbn-arxiv": Shape((0.5, 1, 3, 6, 14, 27, 106, 492, 13161), 169343, homophily=0.65),
    "ogbl-ddi": Shape((0.5, 10, 110, 446, 770, 1107, 1634, 2081, 2234), 4267),
    "ogbn-proteins": _log_normal(1.2, 132534),
    "ogbn-products": _log_normal(1.1, 2449029, homophily=0.8),
    "ogbl-collab": _log_normal(1.1, 235868),
    "ogbl-citation2": _log_normal(1.15, 2927963),
    "ogbl-ppa": _log_normal(1.2, 576289),
}
"""Degrees by dataset; for link prediction those of the training edges."""

SIZES: dict[str, Shape] = {
    "imdb-b": Shape((12, 12, 13, 17, 22, 31, 60, 84, 136), 1000),
    "imdb-m": Shape((7, 7, 8, 10, 15, 22, 48, 71, 89), 1500),
    "collab": Shape((32, 34, 40, 52, 82, 130, 343, 441, 492), 5000),
    "ogbg-molhiv": Shape((6, 15, 18, 23, 29, 38, 70, 123, 222), 41127),
    "ogbg-molpcba": Shape((8, 18, 22, 26, 30, 33, 42, 72, 332), 437929),
}
"""Nodes of a graph, by dataset."""

DENSITIES: dict[str, Shape] = {
    "imdb-b": Shape((0.10, 0.25, 0.35, 0.46, 0.61, 1, 1, 1, 1), 1000),
    "imdb-m": Shape((0.15, 0.39, 0.56, 1, 1, 1, 1, 1, 1), 1500),
    "collab": Shape((0.07, 0.16, 0.24, 0.42, 0.79, 1, 1, 1, 1), 5000),
}
"""Share of pairs of nodes of a graph that are tied, by dataset."""

SIZE_AND_DENSITY: dict[str, float] = {"imdb-b": -0.54, "imdb-m": -0.65, "collab": -0.05}
"""Correlation of the logarithms of a graph's size and density, by dataset."""


def whole(values: Floats, total: int, least: int, most: int, rng: np.random.Generator) -> Ints:
    """Whole numbers in proportion to ``values`` that add up to ``total`` exactly.

    Args:
        values: not negative; zeros stay zero unless ``total`` cannot be met without them.
        total: their sum, between ``least`` and ``most`` times their number.
        least: smallest number where the value is not zero.
        most: largest number.
        rng: decides who gets one more or one less.
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
    out = rounded(low)
    missing = total - int(out.sum())
    while missing:
        step = 1 if missing > 0 else -1
        room = np.flatnonzero(positive & (out < most if step > 0 else out > least))
        if room.size == 0:
            room = np.flatnonzero(out < most)
        some = rng.permutation(room)[: abs(missing)]
        out[some] += step
        missing -= step * some.size
    return out

r"""Classes written as signs, so that channels which hold one bit each can hold a class.

One channel per class, in it or not, is a poor choice where neighbours vote: a node is surrounded by
nodes that are mostly *not* of its class, and the vote says no in every channel. In a balanced code
half of the classes are :math:`+1` in a channel and the other half :math:`-1`, so votes begin level.
Many such halvings make a class of the pattern of signs, and a few wrong ones do not matter, as in
error-correcting output codes (Dietterich & Bakiri 1995).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def balanced_codes(classes: int, count: int, source: torch.Generator) -> Tensor:
    """Random halvings of the classes, no two alike, nor alike but for the sign.

    Args:
        classes: how many, at least two.
        count: halvings wanted; few classes have fewer.
        source: of the draws.

    Returns:
        One row per halving and a column per class: as many 1 as -1, and of an odd number of classes
        one 0. Float64.

    >>> codes = balanced_codes(4, 10, torch.Generator().manual_seed(0))
    >>> len(codes), codes.sum(1).tolist()
    (3, [0.0, 0.0, 0.0])
    """
    half = classes // 2
    possible = (classes if classes % 2 else 1) * math.comb(2 * half, half) // 2
    rows: dict[tuple[float, ...], None] = {}  # a set that keeps its order
    while len(rows) < min(count, possible):
        order = torch.randperm(classes, generator=source)
        row = torch.zeros(classes, dtype=torch.float64)
        row[order[:half]], row[order[half : 2 * half]] = 1, -1
        rows[tuple((row * row[row != 0][0]).tolist())] = None
    return torch.tensor(list(rows), dtype=torch.float64)

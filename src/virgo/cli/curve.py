"""A curve drawn with braille characters, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # a braille cell's columns


def curve(values: Sequence[float], width: int = 60, height: int = 8) -> list[str]:
    """Draw values from left to right, two points per column and four per line.

    More values than points are averaged; values that are not finite leave a gap.

    Args:
        values: the values.
        width: columns.
        height: lines.

    Returns:
        Lines of text.

    >>> print("\\n".join(curve([0, 1, 2, 3, 4, 5, 6, 7], width=4, height=2)))
    7 ⠀⠀⡠⠊
    0 ⡠⠊⠀⠀
    """
    columns = _squeeze(values, 2 * width)
    finite = [v for v in columns if math.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    cells = [[0] * width for _ in range(height)]
    for x, value in enumerate(columns):
        if math.isfinite(value):
            share = (value - low) / (high - low) if high > low else 0.0
            y = round((1 - share) * (4 * height - 1))
            cells[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
    labels = [f"{high:.3g}", *[""] * (height - 2), f"{low:.3g}"][-height:]
    margin = max(map(len, labels))
    return [
        f"{label:>{margin}} " + "".join(chr(0x2800 + cell) for cell in line)
        for label, line in zip(labels, cells, strict=True)
    ]


def _squeeze(values: Sequence[float], points: int) -> list[float]:
    if len(values) <= points:
        return list(values)
    edges = [round(i * len(values) / points) for i in range(points + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]

"""Results as text: aligned tables, numbers in three digits, and numbers that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def text_table(header: Sequence[str], body: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Aligned columns, with a line under the header.

    Written by hand: ``rich`` wraps and crops columns to the width of a terminal, and the same
    table has to come out in a file.

    Args:
        header: the title of each column.
        body: one sequence of cells per row.
        left: how many columns are aligned to the left; the rest are aligned to the right.

    Returns:
        The lines of the table.

    >>> print("\\n".join(text_table(("layer", "ratio"), [("0", "1.5"), ("10", "0.25")])))
    layer  ratio
    -----  -----
    0        1.5
    10      0.25
    """
    widths = [max(map(len, column)) for column in zip(header, *body, strict=True)]

    def render(line: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return [render(header), "  ".join("-" * width for width in widths), *map(render, body)]


def show(value: float, spread: float = 0.0) -> str:
    """A number in three digits, with its standard deviation over draws if there is one.

    Returns:
        The text; a dash for NaN.

    >>> show(1234.5), show(0.1234, 0.01), show(math.nan)
    ('1.23e+03', '0.123 ± 0.01', '-')
    """
    if math.isnan(value):
        return "-"
    return f"{value:.3g} ± {spread:.1g}" if spread > 0 else f"{value:.3g}"


def plain_numbers(value: Any) -> Any:
    """Nested numbers as strict JSON allows them.

    Returns:
        The same value with infinities as words and NaN as ``None``.

    >>> plain_numbers({"forward": (1.0, math.inf, math.nan)})
    {'forward': [1.0, 'infinity', None]}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("infinity" if value > 0 else "-infinity")
    if isinstance(value, dict):
        return {key: plain_numbers(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_numbers(inner) for inner in value]
    return value

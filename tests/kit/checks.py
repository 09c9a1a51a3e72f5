"""Checks and statistics that tests of several rooms share, written without the package."""

from __future__ import annotations

import json
from typing import Any

from torch import Tensor


def strict_json(text: str) -> Any:
    """Parse JSON as the standard has it, without Python's NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def over_nodes(tensor: Tensor) -> float:
    """Mean over nodes of the variance over neurons, in float64."""
    rows = tensor.detach().double()
    return float(((rows - rows.mean(1, keepdim=True)) ** 2).mean(1).mean())

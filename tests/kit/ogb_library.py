"""OGB's library for tests, imported as Virgo imports it."""

from __future__ import annotations

from typing import Any

import pytest

from virgo.errors import MissingExtra
from virgo.experiments.data.ogb_files import ogb


def ogb_or_skip(module: str = "utils") -> Any:
    """``ogb.<module>``. A bare import would ask a server for a newer version, in a thread."""
    try:
        return ogb(module)
    except MissingExtra:
        pytest.skip("needs ogb")

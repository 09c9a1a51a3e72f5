"""Plans and weights are what they were before the package was laid out anew.

``tests/reference_bits.json`` was written by ``python tests/kit/reference_bits.py`` at the commit
before. Draws are compared bit by bit. A closed form's variance may differ by the order in which
floating sums are taken, a measured one also by the machine's matrix products.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit import reference_bits

SAVED = json.loads((Path(__file__).parent / "reference_bits.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_plans_and_weights_are_those_saved() -> None:
    """One test, so that one process computes all of them once."""
    now = reference_bits.cases()
    assert now.keys() == SAVED.keys()
    for case, saved in SAVED.items():
        is_measured = case.endswith("measured")
        variances = pytest.approx(saved["variances"], rel=1e-4 if is_measured else 1e-12)
        assert now[case]["variances"] == variances, case
        assert is_measured or now[case]["weights"] == saved["weights"], case

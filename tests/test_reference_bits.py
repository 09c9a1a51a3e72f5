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


@pytest.fixture(scope="module")
def now() -> dict[str, dict[str, object]]:
    return reference_bits.cases()


@pytest.mark.parametrize("case", sorted(SAVED))
def test_plan_and_weights_are_those_saved(case: str, now: dict[str, dict[str, object]]) -> None:
    tolerance = 1e-4 if case.endswith("measured") else 1e-12
    assert now[case]["variances"] == pytest.approx(SAVED[case]["variances"], rel=tolerance)
    if not case.endswith("measured"):
        assert now[case]["weights"] == SAVED[case]["weights"]

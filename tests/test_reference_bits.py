"""Plans and weights are what they were before the package was laid out anew.

``tests/reference_bits.json`` was written by ``python tests/kit/reference_bits.py`` at the commit
before. Variances of the literature's formulas and what is drawn entry by entry are compared
exactly. The rest is rounded as a machine's libraries round it, and has a bound (:func:`bounds`).
On a processor without AVX2 PyTorch draws even a uniform number with one rounding more, so there
the bound takes the checksum's place.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import reference_bits

SAVED = json.loads((Path(__file__).parent / "reference_bits.json").read_text(encoding="utf-8"))
#: Whether draws here have the bits of those saved.
SAME_DRAWS = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def bounds(case: str) -> tuple[float, float]:
    """How far a case may be from what was saved.

    - A formula of the literature has no sum: its variances are exact.
    - A closed form sums some thousand terms in float64 (2e-16 each), in an order that is free.
    - A measured pass, which mirrored weights under Virgo's methods take too, sums up to some
      thousand terms in float32 (6e-8 each) in every one of at most four layers. Roundings add up
      like a random walk: 4 * sqrt(1000) * 6e-8 = 8e-6.
    - A QR decomposition is one in float64 of a random matrix, whose condition costs three or four
      digits of sixteen: what is left, as of a draw, is the rounding to float32, 6e-8, times 16.

    Returns:
        The bound of a variance, relative to it, and of a sketch, relative to the root mean square.
    """
    _, method, word = case.split("/")
    if word == "measured" or (word == "mirrored" and method.startswith("virgo")):
        return 1e-5, 1e-5
    return (1e-12 if method.startswith("virgo") else 0.0), 1e-6


def changed(case: str, saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What of a case is not as it was saved."""
    variance_bound, sketch_bound = bounds(case)
    found = []
    if now["variances"] != pytest.approx(saved["variances"], rel=variance_bound, abs=0.0):
        found.append(f"{case}: variances")
    if SAME_DRAWS and now.get("weights") != saved.get("weights"):
        found.append(f"{case}: weights")
    if now["sketch"].keys() != saved["sketch"].keys():
        return [*found, f"{case}: names of parameters"]
    for name, was in saved["sketch"].items():
        if now["sketch"][name] != pytest.approx(was, rel=0.0, abs=sketch_bound * was[0]):
            found.append(f"{case}: {name}")
    return found


@pytest.mark.slow
def test_plans_and_weights_are_those_saved() -> None:
    """One test, so that one process computes all of them once."""
    now = reference_bits.cases()
    assert now.keys() == SAVED.keys()
    assert [line for case, saved in SAVED.items() for line in changed(case, saved, now[case])] == []


def test_only_what_is_rounded_has_no_checksum() -> None:
    for case, saved in SAVED.items():
        assert saved["variances"], case
        assert saved["sketch"], case
        assert ("weights" in saved) == (case.rsplit("/", 1)[1] not in reference_bits.ROUNDED), case


def scale_a_variance(case: dict[str, Any], by: float) -> None:
    name = next(iter(case["variances"]))
    case["variances"][name] *= by


def scale_a_weight(case: dict[str, Any], by: float) -> None:
    name = next(name for name, (rms, *_) in case["sketch"].items() if rms)
    case["sketch"][name] = [value * by for value in case["sketch"][name]]


def turn_a_weight(case: dict[str, Any], by: float) -> None:
    """Another draw of the same size: only the products move."""
    name = next(name for name, (rms, *_) in case["sketch"].items() if rms)
    rms, *products = case["sketch"][name]
    case["sketch"][name] = [rms, *(value + by * rms for value in products)]


def other_checksum(case: dict[str, Any], by: float) -> None:
    case["weights"] = case["weights"][::-1]


@pytest.mark.parametrize(
    ("case", "change", "by"),
    [
        ("gcn/xavier/", scale_a_variance, 1 + 3e-16),
        ("gcn/virgo-forward/rms", scale_a_variance, 1 + 1e-11),
        ("gin/virgo/measured", scale_a_variance, 1 + 1e-4),
        ("gin/virgo-forward/mirrored", scale_a_variance, 1 - 1e-4),
        ("sage/kaiming-forward/orthogonal", scale_a_weight, 1 + 1e-5),
        ("sgc/lecun/mirrored", turn_a_weight, 1e-5),
        ("gat/virgo-forward/measured", turn_a_weight, 1e-4),
        ("gcn/virgo/", turn_a_weight, 1e-5),
        ("gcn/virgo/normal", other_checksum, 0.0),
    ],
)
def test_a_small_change_is_seen(
    monkeypatch: pytest.MonkeyPatch,
    case: str,
    change: Callable[[dict[str, Any], float], None],
    by: float,
) -> None:
    monkeypatch.setitem(globals(), "SAME_DRAWS", change is other_checksum)
    now = copy.deepcopy(SAVED[case])
    assert changed(case, SAVED[case], now) == []
    change(now, by)
    assert len(changed(case, SAVED[case], now)) == 1


@pytest.mark.parametrize("word", reference_bits.ROUNDED)
def test_what_a_machine_rounds_is_not_a_change(word: str) -> None:
    case = f"gin/virgo-forward/{word}"
    now = copy.deepcopy(SAVED[case])
    turn_a_weight(now, 2e-7)
    assert changed(case, SAVED[case], now) == []

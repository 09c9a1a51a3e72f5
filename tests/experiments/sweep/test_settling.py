"""Since when the order of methods has not changed: by hand, and against a slow reference."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virgo.experiments.sweep.records import Record
from virgo.experiments.sweep.settling import averaged, best_so_far, histories, ranks, settled

CURVES = st.dictionaries(st.integers(1, 12), st.integers(0, 6), min_size=1)


@given(CURVES)
def test_the_best_so_far_is_the_largest_up_to_there(curve: dict[int, float]) -> None:
    found = best_so_far(curve)
    assert list(found) == sorted(curve)
    for epoch, value in found.items():
        assert value == max(v for e, v in curve.items() if e <= epoch)


@given(st.lists(CURVES, min_size=1, max_size=4))
def test_the_mean_takes_each_seeds_last_value(curves: list[dict[int, float]]) -> None:
    found = averaged(curves)
    for epoch in range(1, 13):
        seen = [[e for e in curve if e <= epoch] for curve in curves]
        is_validated = any(epoch in curve for curve in curves)
        assert (epoch in found) == (is_validated and all(seen))
        if epoch in found:
            last = [curve[max(e)] for curve, e in zip(curves, seen, strict=True)]
            assert found[epoch] == pytest.approx(sum(last) / len(last))


def test_no_curve_has_no_mean() -> None:
    assert averaged([]) == {}
    assert averaged([{}, {1: 0.5}]) == {}
    assert best_so_far({}) == {}


def test_equals_share_a_place() -> None:
    assert ranks({"a": 1.0, "b": 1.0, "c": 2.0}) == {"a": 2, "b": 2, "c": 1}
    # equal on paper, not in the last digit
    assert ranks({"a": 0.1 + 0.2, "b": 0.3}) == {"a": 1, "b": 1}
    assert ranks({}) == {}


def slow(scores: dict[str, dict[int, float]]) -> tuple[int, int] | None:
    """Every epoch's order compared with the last one's, from the definition."""
    epochs = sorted({e for curve in scores.values() for e in curve})
    orders, firsts = {}, {}
    for epoch in epochs:
        seen = {name: [e for e in curve if e <= epoch] for name, curve in scores.items()}
        if not all(seen.values()):
            continue
        now = {name: scores[name][max(past)] for name, past in seen.items()}
        names = sorted(now)
        signs = [(now[a] > now[b]) - (now[a] < now[b]) for a in names for b in names]
        orders[epoch] = signs
        firsts[epoch] = sorted(name for name in names if now[name] == max(now.values()))
    if not orders:
        return None
    end = max(orders)
    return tuple(
        min(e for e in state if all(state[later] == state[end] for later in state if later >= e))
        for state in (orders, firsts)
    )  # type: ignore[return-value]


@given(st.dictionaries(st.sampled_from("abcd"), CURVES, min_size=1))
def test_settling_against_a_slow_reference(scores: dict[str, dict[int, float]]) -> None:
    found, expected = settled(scores), slow(scores)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert (found.order, found.first) == expected
        assert found.first <= found.order <= found.last
        assert found.is_settled == (found.order < found.last)


def test_an_order_by_hand() -> None:
    scores = {
        "a": {1: 0.1, 2: 0.4, 3: 0.6, 4: 0.7, 5: 0.8},
        "b": {1: 0.3, 2: 0.3, 3: 0.3, 4: 0.3, 5: 0.3},
        "c": {1: 0.2, 2: 0.2, 3: 0.3, 4: 0.35, 5: 0.4},
    }
    # a leads from 2 on; c ties with b at 3 and passes it at 4
    assert settled(scores) == (4, 2, 5, 4)
    del scores["c"][4], scores["c"][5]
    assert settled(scores) == (3, 2, 5, 4)  # the tie lasts


def test_a_tie_at_the_end_is_a_change() -> None:
    scores = {"a": {1: 0.1, 2: 0.2, 3: 0.5}, "b": {1: 0.2, 2: 0.5, 3: 0.5}}
    found = settled(scores)
    assert found == (3, 3, 3, 2)
    assert not found.is_settled
    once = settled({"a": {7: 0.1}, "b": {7: 0.2}})
    assert once == (7, 7, 7, None)


# --- records ------------------------------------------------------------------------------------


def one(init: str, curves: dict[int, Any], status: str = "ok", **config: Any) -> Record:
    seeds = tuple({"seed": s, "status": status, "curve": c} for s, c in curves.items())
    return Record("table2", "ogbl-ddi", "gcn", init, {"lr": 0.1, **config}, seeds)


def test_only_what_all_methods_have_is_compared() -> None:
    given = [
        one("xavier", {0: [[1, 0.2], [2, 0.1]], 1: [[1, 0.4], [2, 0.5]], 2: [[1, 0.9]]}),
        one("virgo-forward", {0: [[1, 0.1], [2, 0.3]], 1: [[1, 0.1], [2, 0.9]]}),
        one("virgo-forward", {2: [[1, 0.0]]}, status="diverged"),
        one("lecun", {0: [], 1: None}),  # ran without curves
        one("lecun", {0: [[1, 0.5]]}, lr=0.2),  # alone in its configuration
    ]
    (found,) = histories(given)
    assert found.seeds == (0, 1)
    assert dict(found.config) == {"lr": 0.1}
    assert found.curves == {"xavier": {1: 0.3, 2: 0.3}, "virgo-forward": {1: 0.1, 2: 0.6}}
    assert found.scores == {"xavier": {1: 0.3, 2: 0.35}, "virgo-forward": {1: 0.1, 2: 0.6}}
    assert found.settled == (2, 2, 2, 1)
    last = [list(score.values())[-1] for score in found.scores.values()]
    assert sum(last) / len(last) == pytest.approx((0.35 + 0.6) / 2)


def test_the_best_is_taken_by_seed_before_the_mean() -> None:
    """Negative control: two seeds that take turns have no best mean above their mean best."""
    (found,) = histories(
        [
            one("a", {0: [[1, 0.9], [2, 0.1]], 1: [[1, 0.1], [2, 0.9]]}),
            one("b", {0: [[1, 0.6], [2, 0.6]], 1: [[1, 0.6], [2, 0.6]]}),
        ]
    )
    assert found.scores["a"] == {1: 0.5, 2: 0.9}
    assert found.curves["a"] == {1: 0.5, 2: 0.5}
    assert found.settled.first == 2


def test_missing_numbers_and_other_types_of_the_same_configuration() -> None:
    (found,) = histories(
        [
            one("a", {0: [[2, 0.5], [1, None], [3, 0.4]]}, dropout=0),
            one("b", {0: [[1, 0.1], [2, 0.2], [3, 0.7]]}, dropout=0.0),
        ]
    )
    assert found.scores == {"a": {2: 0.5, 3: 0.5}, "b": {1: 0.1, 2: 0.2, 3: 0.7}}
    assert found.settled == (3, 3, 3, 2)


@pytest.mark.parametrize(
    "given",
    [[], [one("a", {0: [[1, 0.5]]})], [one("a", {0: [[1, 0.5]]}), one("b", {1: [[1, 0.5]]})]],
    ids=["nothing", "alone", "other-seeds"],
)
def test_nothing_to_compare(given: list[Record]) -> None:
    assert histories(given) == []


def test_the_order_of_records_does_not_matter() -> None:
    draw = random.Random(0)
    given = [
        one(init, {s: [[e, draw.random()] for e in range(1, 6)] for s in range(3)}, lr=lr)
        for init in "abc"
        for lr in (0.1, 0.2)
    ]
    expected = [(h.config, h.settled) for h in histories(given)]
    draw.shuffle(given)
    assert [(h.config, h.settled) for h in histories(given)] == expected
    scores = [score for history in histories(given) for score in history.scores.values()]
    assert all(math.isfinite(value) for score in scores for value in score.values())

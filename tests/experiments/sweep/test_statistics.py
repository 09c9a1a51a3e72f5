"""Paired tests and Holm's correction: against scipy, by hand, and by simulation."""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from virgo.errors import OptionError, VirgoError
from virgo.experiments.sweep.statistics import deviation, holm, mean, paired, sign_flip, student

VALUES = st.lists(st.floats(-100, 100).map(lambda v: round(v, 3)), min_size=2, max_size=9)


def seeds(values: np.ndarray) -> dict[int, float]:
    return dict(enumerate(values.tolist()))


@pytest.mark.parametrize("n", [2, 3, 10, 30])
def test_the_t_test_is_scipys(n: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(n)
    first, second = rng.normal(80, 1, n), rng.normal(79.5, 1, n)
    found = paired(seeds(first), seeds(second))
    expected = stats.ttest_rel(first, second)
    interval = expected.confidence_interval(0.95)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-10)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert found.difference == pytest.approx((first - second).mean())
    # t = d_z sqrt(n)
    assert found.effect * math.sqrt(n) == pytest.approx(expected.statistic, rel=1e-10)
    assert found.n == n


def test_the_sign_flips_are_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    differences = np.random.default_rng(3).normal(0.4, 1, 10)
    expected = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=np.inf
    )
    assert sign_flip(differences.tolist()) == pytest.approx(expected.pvalue, abs=1e-12)


@given(VALUES)
def test_the_sign_flips_are_counted_one_by_one(values: list[float]) -> None:
    thousandths = [round(1000 * value) for value in values]  # whole numbers: no rounding to mind
    observed = abs(sum(thousandths))
    flips = [
        abs(sum(sign * value for sign, value in zip(signs, thousandths, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(values))
    ]
    assert sign_flip(values) == sum(flip >= observed for flip in flips) / len(flips)


def test_too_many_pairs_to_flip_all() -> None:
    assert sign_flip([1.0] * 16) == 2.0**-15
    assert sign_flip([1.0] * 17) is None
    many = paired(seeds(np.arange(40.0)), seeds(np.arange(40.0) + np.tile([1.0, 2.0], 20)))
    assert many.exact is None
    assert many.p < 1e-9


def test_holm_by_hand() -> None:
    """Four tests, sorted 0.005, 0.011, 0.02, 0.04: times 4, 3, 2, 1 and never falling."""
    assert holm([0.02, 0.005, 0.04, 0.011]) == pytest.approx([0.04, 0.02, 0.04, 0.033])
    assert holm([0.03, 0.03, 0.03]) == pytest.approx([0.09, 0.09, 0.09])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_keeps_the_order_and_never_helps(values: list[float]) -> None:
    adjusted = holm(values)
    for (p, a), (q, b) in itertools.combinations(zip(values, adjusted, strict=True), 2):
        assert (p <= q) <= (a <= b)
    assert all(p <= a <= min(1, len(values) * p) for p, a in zip(values, adjusted, strict=True))


def test_no_false_alarms_and_real_effects_are_found() -> None:
    """2000 tables of 6 columns, ten seeds: rejections at 0.05 stay within the binomial bound."""
    rng, tables, columns, n = np.random.default_rng(0), 2000, 6, 10
    shared = rng.normal(0, 2, (tables, columns, n))  # what a seed's split does to both methods

    def rejections(effect: float) -> tuple[float, float]:
        first = shared + rng.normal(effect, 0.5, shared.shape)
        second = shared + rng.normal(0, 0.5, shared.shape)
        single = any_in_table = 0
        for a, b in zip(first, second, strict=True):
            ps = [paired(seeds(x), seeds(y)).p for x, y in zip(a, b, strict=True)]
            single += sum(p <= 0.05 for p in ps)
            any_in_table += min(holm(ps)) <= 0.05
        return single / (tables * columns), any_in_table / tables

    single, family = rejections(0.0)
    # four standard deviations of a binomial proportion
    assert abs(single - 0.05) < 4 * math.sqrt(0.05 * 0.95 / (tables * columns))
    assert family < 0.05 + 4 * math.sqrt(0.05 * 0.95 / tables)
    single, family = rejections(1.0)
    # d_z = 1 / sqrt(0.5) = 1.41, for which ten pairs have a power of 0.98
    assert single > 0.95
    assert family > 0.999


# --- folds that share training data -------------------------------------------------------------


@given(VALUES, st.floats(0.01, 3))
def test_without_overlap_it_is_the_plain_test(values: list[float], overlap: float) -> None:
    first, second = dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0)
    plain, corrected = paired(first, second), paired(first, second, overlap=overlap)
    assert paired(first, second, overlap=0.0) == plain
    # the correction widens the interval about the same difference, and never helps
    assert (corrected.difference, corrected.effect) == (plain.difference, plain.effect)
    assert corrected.p >= plain.p
    factor = math.sqrt((1 / len(values) + overlap) * len(values))
    width = corrected.high - corrected.low
    assert width == pytest.approx(factor * (plain.high - plain.low), rel=1e-9, abs=1e-9)
    assert corrected.exact is None


def test_the_corrected_test_by_hand() -> None:
    """Differences 1, 2, 3, 4, 5: mean 3, variance 5/2, so error^2 = 5/2 (1/5 + 1/8) = 13/16."""
    first, second = seeds(np.arange(2.0, 7.0)), dict.fromkeys(range(5), 1.0)
    found = paired(first, second, overlap=1 / 8)
    t = 3 / math.sqrt(13 / 16)
    # Student's distribution with four degrees of freedom, in closed form
    x = t / math.sqrt(4 + t * t)
    assert found.p == pytest.approx(1 - x * (3 - x * x) / 2, rel=1e-9)
    assert found.high - 3 == pytest.approx(2.776445105 * math.sqrt(13 / 16), rel=1e-9)
    assert found.effect == pytest.approx(3 / math.sqrt(5 / 2))
    assert (found.n, found.exact, found.overlap) == (5, None, 1 / 8)


def correlated(rho: float, tables: int, n: int = 10) -> np.ndarray:
    """Differences without an effect, every two of a table correlated by ``rho``."""
    rng = np.random.default_rng(4)
    common, own = rng.normal(size=(tables, 1)), rng.normal(size=(tables, n))
    return math.sqrt(rho) * common + math.sqrt(1 - rho) * own


@pytest.mark.parametrize(
    ("rho", "overlap", "size"),
    [
        (1 / 9, 1 / 8, 0.05),  # what is assumed: rho = n_test / (n_test + n_train)
        (1 / 9, 0.0, 0.166),  # the plain test: P(|t_9| > 2.262 / 1.5), as 1/n + 1/8 = 2.25 / n
        (0.0, 0.0, 0.05),
        (0.0, 1 / 8, 0.008),  # not needed: P(|t_9| > 2.262 * 1.5), less power and no false alarm
    ],
    ids=["corrected", "plain", "independent", "corrected-without-need"],
)
def test_false_alarms_where_folds_depend_on_each_other(
    rho: float, overlap: float, size: float
) -> None:
    tables = 4000
    zero = dict.fromkeys(range(10), 0.0)
    ps = [paired(seeds(d), zero, overlap=overlap).p for d in correlated(rho, tables)]
    alarms = np.mean(np.array(ps) <= 0.05)
    # four standard deviations of a binomial proportion
    assert abs(alarms - size) < 4 * math.sqrt(size * (1 - size) / tables)


def test_equal_differences_of_folds_claim_even_less() -> None:
    """Ten folds with 1/8 have the error of 1 / (1/10 + 1/8) = 40/9 independent pairs."""
    first, second = dict.fromkeys(range(10), 3.0), dict.fromkeys(range(10), 1.0)
    assert paired(first, second).p == 2.0**-9
    found = paired(first, second, overlap=1 / 8)
    assert found.p == pytest.approx(2 ** (1 - 40 / 9))
    assert found.p > 0.05
    assert paired(first, second, overlap=5.0).p == 1.0


@pytest.mark.parametrize("overlap", [-0.1, math.nan, math.inf])
def test_an_overlap_that_is_none(overlap: float) -> None:
    with pytest.raises(OptionError, match="overlap: expected test over training examples"):
        paired({0: 1.0, 1: 2.0}, {0: 0.0, 1: 0.0}, overlap=overlap)


def test_pairing_is_what_finds_the_effect() -> None:
    """Negative control: with the pairs broken, what the seeds share drowns the difference."""
    rng = np.random.default_rng(1)
    shared = rng.normal(0, 5, 10)
    first, second = shared + 1 + rng.normal(0, 0.2, 10), shared + rng.normal(0, 0.2, 10)
    assert paired(seeds(first), seeds(second)).p < 1e-4
    assert paired(seeds(first), seeds(np.roll(second, 3))).p > 0.05


def test_swapping_the_two_turns_the_sign() -> None:
    a, b = {0: 1.0, 1: 2.5, 2: 2.0}, {0: 0.5, 1: 1.0, 2: 2.5}
    there, back = paired(a, b), paired(b, a)
    assert back.difference == -there.difference
    assert (back.low, back.high) == pytest.approx((-there.high, -there.low))
    assert (back.p, back.exact) == pytest.approx((there.p, there.exact))


def test_equal_differences_claim_no_more_than_the_pairs_allow() -> None:
    """There is no t without spread; three equal differences are not a proof."""
    found = paired({0: 0.3, 1: 0.6, 2: 0.9}, {0: 0.1, 1: 0.4, 2: 0.7})
    assert found.effect == math.inf
    assert found.p == found.exact == 0.25
    assert found.low == found.high == pytest.approx(0.2)
    alike = paired({0: 0.3, 1: 0.6}, {0: 0.3, 1: 0.6})
    assert (alike.difference, alike.effect, alike.p, alike.exact) == (0.0, 0.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({0: 1.0, 1: 2.0}, {0: 1.0, 2: 2.0}, r"same seeds twice, got \[1, 2\]"),
        ({0: 1.0}, {0: 2.0}, "at least two seeds, got 1"),
        ({}, {}, "at least two seeds, got 0"),
        ({0: 1.0, 1: math.nan}, {0: 1.0, 1: 2.0}, "finite values"),
    ],
)
def test_what_cannot_be_compared(
    first: dict[int, float], second: dict[int, float], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        paired(first, second)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30), st.randoms())
def test_mean_and_deviation_do_not_depend_on_order(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert mean(shuffled) == mean(values)
    assert deviation(shuffled) == deviation(values)
    assert deviation(values) == pytest.approx(float(np.std(values, ddof=1)), rel=1e-9, abs=1e-9)
    assert math.isnan(mean([]))
    assert math.isnan(deviation([1.0]))


def test_without_scipy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(VirgoError, match=r"requires scipy. Run: pip install 'virgo-gnn\[sweep\]'"):
        student(1.0, 9)

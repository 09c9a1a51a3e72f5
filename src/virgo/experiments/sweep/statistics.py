"""Paired tests of two methods over the same seeds, their effect size, and Holm's correction.

The seeds are paired: seed 3 of one method has the same split and the same batch order as seed 3 of
another. What they share cancels in the difference, so the tests are about differences. They are
written here because scipy has neither the correction for folds nor an interval of paired means.

Where the seeds are folds, their training sets overlap and the differences are not independent of
each other: :func:`paired` then takes how much they overlap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from virgo.errors import OptionError, needed

#: Up to this many pairs all 2^n ways to flip the signs are counted.
MOST_FLIPPED = 16


def mean(values: Sequence[float]) -> float:
    """Return the mean, independent of the order of the values; NaN for none.

    >>> mean([0.1] * 10)
    0.1
    """
    return math.fsum(values) / len(values) if values else math.nan


def comparable(score: float) -> float:
    """Return a score to six digits, so that equal scores are equal numbers.

    Accuracies are computed in float32, whose rounding would otherwise break ties at random.

    >>> comparable(0.7799999713897705) == comparable(0.78)
    True
    """
    return round(score, 6)


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation (ddof 1); NaN for fewer than two values.

    >>> round(deviation([1.0, 2.0, 3.0]), 3), deviation([1.0])
    (1.0, nan)
    """
    if len(values) < 2:
        return math.nan
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


@dataclass(frozen=True)
class Paired:
    """The test of paired differences ``d_1 .. d_n``, in the unit of the values.

    Attributes:
        difference: their mean, ``mean(d)``.
        low, high: its 95 % confidence interval, ``mean(d) ± t_{0.975, n-1} error``; for this
            comparison alone, not corrected for how many there are.
        effect: Cohen's ``d_z = mean(d) / sd(d)``; infinite where all differences are equal.
        p: two-sided p value of the paired t test, ``t = mean(d) / error`` on ``n - 1`` degrees of
            freedom, where ``error = sd(d) sqrt(1/n + overlap)``. Where all differences are equal
            there is no t; ``2^(1 - m)`` stands in with ``m = 1 / (1/n + overlap)``, the number of
            independent pairs that would have this error: ``m`` pairs cannot show less.
        exact: two-sided p value of the sign-flip permutation test; None for too many pairs, and
            with an overlap, as pairs that depend on each other cannot change signs one by one.
        n: pairs.
        overlap: size of a test set over that of a training set where the pairs share training
            data; 0 for independent pairs.
    """

    difference: float
    low: float
    high: float
    effect: float
    p: float
    exact: float | None
    n: int
    overlap: float = 0.0


def paired(
    first: Mapping[int, float], second: Mapping[int, float], *, overlap: float = 0.0
) -> Paired:
    """Compare two methods by their values at the same seeds: is ``first`` larger?

    The t test asks for differences that are close to normal, which a mean over hundreds of test
    nodes is; the sign-flip test asks only that a difference and its negative are as likely.

    Both ask for differences that are independent. Where every seed trains on a sample of the same
    data, they are correlated by some ``rho``, and the variance of their mean is
    ``sigma^2 (1/n + (1 - 1/n) rho)``, while ``sd(d)^2`` estimates ``sigma^2 (1 - rho)``: the plain
    test's error is too small by a factor that grows with ``n``. Nadeau and Bengio ("Inference for
    the generalization error", Machine Learning 52, 2003) set ``rho = n_test / (n_test + n_train)``,
    which gives ``error = sd(d) sqrt(1/n + n_test / n_train)``, their corrected resampled t test.
    It was derived for random splits and is in use for folds. This ``rho`` is an assumption, for one
    partition cannot show it; where the folds depend less on each other, the test claims too little.

    Args:
        first: seed -> value.
        second: the same seeds.
        overlap: ``n_test / n_train`` where the seeds are splits of the same data, e.g. 1/8 for ten
            folds of which one is tested, one validated and eight are trained on; 0 for seeds that
            are independent.

    Returns:
        Difference, interval, effect and p values.

    Raises:
        OptionError: if the seeds differ, are fewer than two or have values that are not finite.

    >>> found = paired({0: 3.0, 1: 5.0, 2: 4.0}, {0: 1.0, 1: 2.0, 2: 3.0})
    >>> found.difference, round(found.effect, 3), round(found.p, 4), found.exact
    (2.0, 2.0, 0.0742, 0.25)
    >>> round(found.low, 3), round(found.high, 3)
    (-0.484, 4.484)

    The same as folds: the error grows from ``sqrt(1/3)`` to ``sqrt(1/3 + 1/8)``.

    >>> found = paired({0: 3.0, 1: 5.0, 2: 4.0}, {0: 1.0, 1: 2.0, 2: 3.0}, overlap=1 / 8)
    >>> found.difference, round(found.effect, 3), round(found.p, 4), found.exact
    (2.0, 2.0, 0.098, None)
    """
    if not 0 <= overlap < math.inf:
        raise OptionError(
            f"overlap: expected test over training examples, 0 or more, got {overlap}. "
            f"Leave it out where seeds do not share training data."
        )
    if set(first) != set(second):
        odd = sorted(set(first) ^ set(second))
        raise OptionError(
            f"paired: expected the same seeds twice, got {odd} on one side only. "
            f"Compare seeds that both have."
        )
    if len(first) < 2:
        raise OptionError(
            f"paired: expected at least two seeds, got {len(first)}. Run more of them."
        )
    differences = [first[seed] - second[seed] for seed in sorted(first)]
    if not all(math.isfinite(value) for value in differences):
        raise OptionError("paired: expected finite values, got others. Leave failed seeds out.")
    return _tested(differences, overlap)


def _tested(differences: Sequence[float], overlap: float) -> Paired:
    centre, n = mean(differences), len(differences)
    spread, factor = deviation(differences), 1 / n + overlap
    exact = None if overlap else sign_flip(differences)
    # equal differences leave a spread of rounding errors only
    if spread <= 1e-12 * max(1.0, abs(centre)):
        if abs(centre) <= 1e-12:
            return Paired(0.0, 0.0, 0.0, 0.0, 1.0, exact, n, overlap)
        p = min(1.0, 2.0 ** (1 - n / (1 + n * overlap)))
        sign = math.copysign(math.inf, centre)
        return Paired(centre, centre, centre, sign, p, exact, n, overlap)
    error = spread * math.sqrt(factor)
    p, reach = student(centre / error, n - 1)
    return Paired(
        centre,
        centre - reach * error,
        centre + reach * error,
        centre / spread,
        p,
        exact,
        n,
        overlap,
    )


def student(t: float, degrees: int, level: float = 0.95) -> tuple[float, float]:
    """Student's t distribution.

    Args:
        t: the statistic.
        degrees: degrees of freedom.
        level: of the interval.

    Returns:
        The two-sided p value of ``t``, and the quantile that an interval of ``level`` reaches to.

    Raises:
        DataError: if scipy is missing.

    >>> p, reach = student(2.262157, 9)
    >>> round(p, 6), round(reach, 6)
    (0.05, 2.262157)
    """
    special = needed("scipy.special", "A paired test", "sweep")
    p = 2 * special.stdtr(degrees, -abs(t))
    return float(p), float(special.stdtrit(degrees, (1 + level) / 2))


def sign_flip(differences: Sequence[float]) -> float | None:
    """Exact two-sided p value: in how many of the ``2^n`` sign patterns ``|mean|`` is as large.

    If the two methods are alike, each difference could as well have had the other sign.

    Args:
        differences: the paired differences.

    Returns:
        The p value; None above 16 pairs, where counting all is no longer cheap.

    >>> sign_flip([2.0, 3.0, 1.0]), sign_flip([1.0, -1.0]), sign_flip([1.0] * 10)
    (0.25, 1.0, 0.001953125)
    """
    values = np.asarray(differences, dtype=np.float64)
    n = values.size
    if n > MOST_FLIPPED:
        return None
    patterns = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    sums = np.abs((1 - 2 * patterns) @ values)
    # sums that are equal on paper may differ in their last digits
    slack = 1e-9 * max(float(np.abs(values).sum()), 1e-300)
    return float(np.mean(sums >= abs(float(values.sum())) - slack))


def holm(values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: adjusted p values, in the order given.

    With ``p_(1) <= .. <= p_(m)``, ``adjusted_(i) = max_{j <= i} min(1, (m - j + 1) p_(j))``. That
    at least one of the true null hypotheses is rejected at level ``a`` has at most probability
    ``a``, however the tests depend on each other.

    Args:
        values: p values.

    Returns:
        The adjusted p values.

    >>> holm([0.01, 0.04, 0.03, 0.005])
    [0.03, 0.06, 0.06, 0.02]
    """
    adjusted, running = [0.0] * len(values), 0.0
    for place, index in enumerate(sorted(range(len(values)), key=lambda i: (values[i], i))):
        running = max(running, min(1.0, (len(values) - place) * values[index]))
        adjusted[index] = running
    return adjusted

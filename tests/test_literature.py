"""The formulas of other papers, against computations that share nothing with them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from virgo import literature, theory
from virgo.errors import OptionError


def drift(width: int, variance: float, *, relu: bool) -> float:
    """Mean change of the log of the squared norm in one layer, exactly.

    Of ``width`` units ``k`` are active, and the log of a chi-square with ``k`` degrees of freedom
    has the mean ``digamma(k / 2) + log 2``. All units being silent is left out, as it must be.
    """
    counts = torch.arange(1, width + 1, dtype=torch.float64)
    logs = torch.digamma(counts / 2) + math.log(2)
    if not relu:
        return float(logs[-1]) + math.log(variance)
    weights = torch.exp(
        torch.lgamma(torch.tensor(width + 1.0, dtype=torch.float64))
        - torch.lgamma(counts + 1)
        - torch.lgamma(width - counts + 1)
    )
    return float((weights * logs).sum() / weights.sum()) + math.log(variance)


@pytest.mark.parametrize("width", [16, 64, 256])
def test_the_random_walk_has_no_drift_and_kaiming_has(width: int) -> None:
    """Their exponents are fits: within a tenth of what Kaiming's variance drifts by."""
    for relu, gain in ((True, 2.0), (False, 1.0)):
        ours = drift(width, literature.random_walk(width, gain), relu=relu)
        kaimings = drift(width, gain / width, relu=relu)
        assert kaimings < 0
        assert abs(ours) < 0.1 * abs(kaimings)


def test_the_random_walk_knows_two_activations() -> None:
    with pytest.raises(OptionError, match="random-walk: expected ReLU"):
        literature.random_walk(64, theory.gain(torch.tanh))


@pytest.mark.parametrize(("slope", "gain"), [(0.0, 2.0), (0.2, 2 / 1.04), (1.0, 1.0)])
def test_the_gain_of_a_leaky_slope_is_pytorchs(slope: float, gain: float) -> None:
    """``nonlinearity=`` serves any slope below zero: its gain is PyTorch's, squared."""
    ours = theory.gain(lambda z: nn.functional.leaky_relu(z, slope))
    assert ours == pytest.approx(gain, rel=1e-12)
    assert ours == pytest.approx(nn.init.calculate_gain("leaky_relu", slope) ** 2, rel=1e-12)


def test_a_steeper_relu_is_a_larger_weight() -> None:
    """A network with ReLUs of slope 2 is one of plain ReLUs with weights twice as large."""
    generator = torch.Generator().manual_seed(0)
    sizes = [5, 7, 6, 3]
    weights = [
        torch.randn(b, a, generator=generator, dtype=torch.float64)
        for a, b in itertools.pairwise(sizes)
    ]
    x = torch.randn(5, generator=generator, dtype=torch.float64)
    steep, plain = x, x
    for weight in weights[:-1]:
        steep = literature.RELU_SLOPE * torch.relu(weight @ steep)
        plain = torch.relu(literature.RELU_SLOPE * weight @ plain)
    assert torch.allclose(weights[-1] @ steep, weights[-1] @ plain, rtol=1e-12)
    grown = literature.relu_slope(5, 7) / theory.xavier(5, 7)
    assert grown == pytest.approx(literature.RELU_SLOPE**2)
    # the gain that undoes such a slope, for those who want it undone
    assert theory.gain(lambda z: 2 * torch.relu(z)) == pytest.approx(0.5)

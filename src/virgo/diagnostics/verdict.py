"""What to make of a measurement: vanishing, exploding, dead units, oversmoothing, no signal.

Decay is judged by the hidden layers, ``h^1 .. h^{L-1}``: the first and the last layer change the
width, and their one jump is not decay. It is shown, not blamed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from virgo.diagnostics.layer_statistics import Layer
from virgo.diagnostics.measurement import Measurement


@dataclass(frozen=True)
class Thresholds:
    """When to worry. Calibrated on Cora, CiteSeer and PubMed (docs/diagnostics.md).

    ``change`` is the factor by which the variance may change over all hidden layers together;
    ``watch`` the factor from which it is mentioned.
    """

    change: float = 1000.0
    watch: float = 30.0
    dead: float = 0.75  # share of units of a hidden layer that are zero everywhere
    alike: float = 1e-4  # mean average distance below which all nodes look alike
    first_hop: float = 1e-4  # second moment after the first layer over that of the input


@dataclass(frozen=True)
class Finding:
    """One thing that was noticed: how bad, where, what, and what to try."""

    level: str  # "bad" or "watch"
    cause: str
    layer: str
    sentence: str
    advice: str


def judge(measured: Measurement, limits: Thresholds) -> list[Finding]:
    """What is wrong, worst first."""
    layers = measured.layers
    hidden = layers[1:-1]
    found = [*_overflow(layers), *_first_hop(layers, limits)]
    if not found:
        found += _decay(hidden, "forward", limits) + _decay(hidden, "backward", limits)
    found += _dead(hidden, limits)
    if not any(finding.level == "bad" for finding in found):
        found += _alike(hidden, limits)
    return sorted(found, key=lambda finding: finding.level != "bad")


def _overflow(layers: Sequence[Layer]) -> list[Finding]:
    for layer in layers:
        if (
            math.isinf(layer.forward)
            or math.isinf(layer.backward)
            or (layer.width > 1 and math.isnan(layer.forward))
        ):
            return [
                Finding(
                    "bad",
                    "exploding",
                    layer.name,
                    f"Numbers overflow at layer {layer.index} ({layer.name}).",
                    _REMEDY,
                )
            ]
    return []


_REMEDY = "Try virgo.init_(model, data, 'virgo-forward', estimate='measured')."


def _first_hop(layers: Sequence[Layer], limits: Thresholds) -> list[Finding]:
    before, after = layers[0].second_moment, layers[1].second_moment
    if len(layers) > 2 and after < limits.first_hop * before:
        return [
            Finding(
                "bad",
                "no signal at the first hop",
                layers[1].name,
                f"The first layer lets almost nothing through: mean square "
                f"{before:.2g} goes in, {after:.2g} comes out.",
                "Check edge weights and the first weight. " + _REMEDY,
            )
        ]
    return []


def _decay(hidden: Sequence[Layer], direction: str, limits: Thresholds) -> list[Finding]:
    """Vanishing or exploding over the hidden layers, and the layer where most of it happens."""
    # one neuron has no variance: judge by the others
    ordered = [layer for layer in hidden if not math.isnan(getattr(layer, direction))]
    ordered = ordered if direction == "forward" else ordered[::-1]
    values = [getattr(layer, direction) for layer in ordered]
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return []
    what = "signal" if direction == "forward" else "gradient"
    way = "from" if direction == "forward" else "back from"
    if min(values) <= 0:
        first = ordered[[v <= 0 for v in values].index(True)]
        return [
            Finding(
                "bad",
                "vanishing",
                first.name,
                f"The {what} is zero at layer {first.index} ({first.name}).",
                _REMEDY,
            )
        ]
    change = max(values) / min(values)
    if change < min(limits.watch, limits.change):
        return []
    shrinking = values.index(max(values)) < values.index(min(values))
    steps = [b / a for a, b in pairwise(values)]
    worst = steps.index(min(steps) if shrinking else max(steps)) + 1
    level = "bad" if change >= limits.change else "watch"
    verb = "vanishes" if shrinking else "explodes"
    if level == "watch":
        verb = "weakens" if shrinking else "grows"
    return [
        Finding(
            level,
            "vanishing" if shrinking else "exploding",
            ordered[worst].name,
            f"The {what} {verb} by a factor of {change:.2g} over the hidden layers, {way} layer "
            f"{ordered[0].index} to layer {ordered[-1].index}, most of all at layer "
            f"{ordered[worst].index} ({ordered[worst].name}).",
            f"Try virgo.init_(model, data, 'virgo-{direction}', estimate='measured').",
        )
    ]


def _dead(hidden: Sequence[Layer], limits: Thresholds) -> list[Finding]:
    worst = max(hidden, key=lambda layer: layer.dead, default=None)
    if worst is None or worst.dead < limits.dead:
        return []
    return [
        Finding(
            "bad",
            "dead units",
            worst.name,
            f"{worst.dead:.0%} of the units that reach layer {worst.index} "
            f"({worst.name}) are zero at every node.",
            "Try a wider layer or distribution='mirrored'.",
        )
    ]


def _alike(hidden: Sequence[Layer], limits: Thresholds) -> list[Finding]:
    for layer in hidden:
        if layer.mean_average_distance < limits.alike:
            return [
                Finding(
                    "bad",
                    "oversmoothing",
                    layer.name,
                    f"All nodes look alike from layer {layer.index} on (mean average "
                    f"distance {layer.mean_average_distance:.1g}): oversmoothing.",
                    "Use fewer layers, residuals, or distribution='mirrored', which keeps "
                    "directions apart.",
                )
            ]
    return []

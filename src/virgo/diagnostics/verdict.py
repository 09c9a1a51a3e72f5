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
    """One thing that was noticed: how bad, and where."""

    level: str  # "bad" or "watch"
    cause: str
    layer: str
    sentence: str


def level_of(findings: Sequence[Finding]) -> str:
    """``"good"``, ``"watch"`` or ``"bad"``."""
    return min((finding.level for finding in findings), default="good")  # "bad" < "watch"


def judge(measured: Measurement, limits: Thresholds) -> list[Finding]:
    """What is wrong, worst first."""
    layers = measured.layers
    hidden = measured.hidden
    findings = [*_overflow(layers), *_first_hop(layers, limits)]
    if not findings:
        findings += _decay(hidden, "forward", limits) + _decay(hidden, "backward", limits)
    findings += _dead(hidden, limits)
    if not any(finding.level == "bad" for finding in findings):
        findings += _alike(hidden, limits)
    return sorted(findings, key=lambda finding: finding.level != "bad")


def _bad(cause: str, layer: Layer, sentence: str) -> list[Finding]:
    return [Finding("bad", cause, layer.name, sentence)]


def _overflow(layers: Sequence[Layer]) -> list[Finding]:
    for layer in layers:
        undefined = layer.width > 1 and math.isnan(layer.forward)
        if undefined or math.isinf(layer.forward) or math.isinf(layer.backward):
            sentence = f"Numbers overflow at layer {layer.index} ({layer.name})."
            return _bad("exploding", layer, sentence)
    return []


def _first_hop(layers: Sequence[Layer], limits: Thresholds) -> list[Finding]:
    before, after = layers[0].second_moment, layers[1].second_moment
    if len(layers) < 3 or not after < limits.first_hop * before:
        return []
    return _bad(
        "no signal at the first hop",
        layers[1],
        f"The first layer lets almost nothing through: mean square {before:.2g} goes in, "
        f"{after:.2g} comes out.",
    )


def _decay(hidden: Sequence[Layer], direction: str, limits: Thresholds) -> list[Finding]:
    """Vanishing or exploding over the hidden layers, and the layer where most of it happens."""
    # one neuron has no variance: judge by the others
    ordered = [layer for layer in hidden if not math.isnan(getattr(layer, direction))]
    ordered = ordered if direction == "forward" else ordered[::-1]
    values = [getattr(layer, direction) for layer in ordered]
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return []
    what, way = ("signal", "from") if direction == "forward" else ("gradient", "back from")
    if min(values) <= 0:
        first = ordered[[v <= 0 for v in values].index(True)]
        sentence = f"The {what} is zero at layer {first.index} ({first.name})."
        return _bad("vanishing", first, sentence)
    change = max(values) / min(values)
    if change < min(limits.watch, limits.change):
        return []
    shrinking = values.index(max(values)) < values.index(min(values))
    steps = [b / a for a, b in pairwise(values)]
    worst = ordered[steps.index(min(steps) if shrinking else max(steps)) + 1]
    level = "bad" if change >= limits.change else "watch"
    verbs = ("vanishes", "explodes") if level == "bad" else ("weakens", "grows")
    return [
        Finding(
            level,
            "vanishing" if shrinking else "exploding",
            worst.name,
            f"The {what} {verbs[0 if shrinking else 1]} by a factor of {change:.2g} over the "
            f"hidden layers, {way} layer {ordered[0].index} to layer {ordered[-1].index}, most of "
            f"all at layer {worst.index} ({worst.name}).",
        )
    ]


def _dead(hidden: Sequence[Layer], limits: Thresholds) -> list[Finding]:
    worst = max(hidden, key=lambda layer: layer.dead, default=None)
    if worst is None or worst.dead < limits.dead:
        return []
    return _bad(
        "dead units",
        worst,
        f"{worst.dead:.0%} of the units that reach layer {worst.index} ({worst.name}) are zero at "
        f"every node.",
    )


def _alike(hidden: Sequence[Layer], limits: Thresholds) -> list[Finding]:
    for layer in hidden:
        if layer.mean_average_distance < limits.alike:
            return _bad(
                "oversmoothing",
                layer,
                f"All nodes look alike from layer {layer.index} on (mean average distance "
                f"{layer.mean_average_distance:.1g}): oversmoothing.",
            )
    return []

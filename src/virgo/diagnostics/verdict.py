"""What to make of a measurement: vanishing, exploding, dead units, rank collapse, oversmoothing.

Decay is judged by the hidden layers, ``h^1 .. h^{L-1}``: the first and the last layer change the
width, and their one jump is not decay. It is shown, not blamed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from virgo.diagnostics.layer_statistics import Layer
from virgo.diagnostics.measurement import Measurement
from virgo.vocabulary import CHANGE, WATCHED

#: An effective rank below which nodes are alike before any layer could have made them so.
ONE_DIRECTION = 2.0


@dataclass(frozen=True)
class Thresholds:
    """When to worry. Set on half of the networks that were trained for it (docs/diagnostics.md).

    Attributes:
        change: the factor by which the variance may change over all hidden layers together.
        watch: the factor from which it is mentioned.
        dead: the share of units of a hidden layer that are zero everywhere.
        alike: the mean average distance below which all nodes look alike.
        first_hop: the second moment after the first layer over that of the input.
        rank: the share of the effective rank above 1 that must be left from the first to the last
            hidden layer.
        rank_watch: the share from which it is mentioned.
    """

    change: float = CHANGE
    watch: float = WATCHED
    dead: float = 0.75
    alike: float = 1e-4
    first_hop: float = 1e-4
    rank: float = 0.15
    rank_watch: float = 0.2


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
    """What is wrong, worst first. Signals with one cause are one finding.

    Nodes that have collapsed to one direction send back gradients of one direction: a gradient
    that weakens on the way is said with the collapse, and a collapse with what vanishes.

    Args:
        measured: one pass, or the mean of several.
        limits: when to worry.

    Returns:
        The findings; none for a network that is well.
    """
    layers, hidden = measured.layers, measured.hidden
    findings = [*_overflow(layers), *_first_hop(layers, limits)]
    if not findings:
        findings += _decay(hidden, "forward", limits) + _decay(hidden, "backward", limits)
    findings += _dead(hidden, limits)
    if not any(finding.level == "bad" for finding in findings):
        findings += _alike(hidden, limits)
    findings = _together(findings, _collapse(measured, limits))
    return sorted(findings, key=lambda finding: finding.level != "bad")


def _together(findings: list[Finding], collapse: Finding | None) -> list[Finding]:
    """The findings with a collapse of the rank among them, each cause once."""
    explained = ("oversmoothing", "no signal at the first hop")
    if collapse is None or any(finding.cause in explained for finding in findings):
        return findings
    decay = [finding for finding in findings if finding.cause in ("vanishing", "exploding")]
    rest = [finding for finding in findings if finding not in decay]
    if any(finding.level == "bad" for finding in decay):
        return findings if collapse.level == "watch" else [*_extended(decay, collapse), *rest]
    if decay and collapse.level == "bad":  # weakening is what a collapse does to a gradient
        collapse = replace(collapse, sentence=f"{collapse.sentence} {decay[-1].sentence}")
        decay = []
    return [collapse, *decay, *rest]


def _extended(decay: list[Finding], collapse: Finding) -> list[Finding]:
    """The last of the findings on decay, saying that the nodes collapse as well."""
    last = decay[-1]
    return [*decay[:-1], replace(last, sentence=f"{last.sentence} {collapse.sentence}")]


def _collapse(measured: Measurement, limits: Thresholds) -> Finding | None:
    """Nodes that the first hidden layer tells apart, and the last one does not."""
    seen = [
        layer
        for layer in measured.hidden
        if layer.width > 3 and layer.rows == measured.hidden[0].rows and layer.effective_rank > 0
    ]
    if len(seen) < 2:
        return None
    first, last = seen[0].effective_rank, seen[-1].effective_rank
    kept = (last - 1.0) / max(first - 1.0, 1e-9)
    if first < ONE_DIRECTION or kept >= max(limits.rank, limits.rank_watch):
        return None
    level = "bad" if kept < limits.rank else "watch"
    word = "collapse" if level == "bad" else "draw together"
    return Finding(
        level,
        "rank collapse",
        seen[-1].name,
        f"The nodes {word} towards one direction: of an effective rank of {first:.3g} at layer "
        f"{seen[0].index}, {last:.3g} is left at layer {seen[-1].index} ({seen[-1].name}).",
    )


def _bad(cause: str, layer: Layer, sentence: str) -> list[Finding]:
    return [Finding("bad", cause, layer.name, sentence)]


def _overflow(layers: Sequence[Layer]) -> list[Finding]:
    """Where numbers stop being finite, by an overflow or by weights that are NaN or infinite."""
    signal = [at for at in layers if at.width > 1 and not math.isfinite(at.forward)]
    gradient = [at for at in reversed(layers) if math.isinf(at.backward)]  # NaN: it has none
    for found, what, way in ((signal, "signal", "on"), (gradient, "gradient", "back")):
        if found:
            sentence = (
                f"The {what} is NaN or infinite from layer {found[0].index} ({found[0].name}) "
                f"{way}: it overflows, or weights are not finite."
            )
            return _bad("exploding", found[0], sentence)
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
    values = _comparable([getattr(layer, direction) for layer in ordered], ordered)
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


def _comparable(values: list[float], layers: Sequence[Layer]) -> list[float]:
    """Values without the steps at which rows are pooled: a mean of many rows is no decay."""
    scale, comparable = 1.0, values[:1]
    for (before, value), (a, b) in zip(pairwise(values), pairwise(layers), strict=True):
        if a.rows != b.rows and before > 0 and value > 0:
            scale *= before / value
        comparable.append(value * scale)
    return comparable


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

"""``compare()``: the paper's Figure 1 for any model and graph, with its claim put to the test."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from virgo.diagnostics.comparison import Comparison, Curve, Health
from virgo.diagnostics.measurement import Measurement, check_draws, measure
from virgo.diagnostics.verdict import Thresholds, judge
from virgo.errors import OptionError, named_options
from virgo.init import plan
from virgo.network.inputs import Forward
from virgo.network.losses import InferredLoss
from virgo.network.probe import Loss
from virgo.plans import Plan
from virgo.rules import parse_method
from virgo.vocabulary import COMPARED

Planner = Callable[[Any, str, int], Plan]
"""``planner(model, method, seed)`` is the plan of a method, options after a plus."""


def wants_depth(make_model: Callable[..., nn.Module]) -> bool:
    """Whether a maker of models is to be told the number of layers.

    Returns:
        True if it has a parameter without a default or one named for the depth.

    >>> wants_depth(lambda depth: depth), wants_depth(lambda hidden=64: hidden)
    (True, False)
    """
    parameters = inspect.signature(make_model).parameters.values()
    names = ("depth", "layers", "num_layers")
    return any(p.default is p.empty or p.name in names for p in parameters)


@named_options
def compare(
    make_model: Callable[..., nn.Module],
    data: Any,
    methods: Sequence[str] = COMPARED,
    depths: Sequence[int] | None = None,
    seeds: int = 3,
    *,
    loss: Loss | None = None,
    forward: Forward | None = None,
    planner: Planner | None = None,
    nodes: int | None = None,
    title: str | None = None,
    notes: Sequence[str] = (),
    progress: Callable[[int, int, str], None] | None = None,
) -> Comparison:
    """Forward and backward variance over layers, all methods side by side.

    Args:
        make_model: ``lambda depth: model``; called without an argument if it takes none.
        data: as for :func:`virgo.plan`.
        methods: names, with options after a plus: ``"virgo-forward+measured"``.
        depths: numbers of layers; one model as it is if ``make_model`` takes no depth.
        seeds: draws per method; curves are their mean, bands their standard deviation.
        loss: ``lambda output, data: ...``, also of a measured estimate of the gradient; by
            default inferred as :func:`check` does.
        forward: ``lambda model, data: ...`` for models called in an unusual way.
        planner: ``lambda model, method, seed: ...`` for plans other than
            :func:`virgo.plan`'s on ``data`` with this loss and this pass.
        nodes: measure on a connected sample of this many nodes.
        title: of the result; the model's class by default.
        notes: to print with the result.
        progress: called with (done, total, what).

    Returns:
        Curves, verdicts and claims. A method that fails on this model is listed with its error.

    Raises:
        OptionError: if an option is wrong, or every method failed.
    """
    check_draws(seeds)
    if not methods:
        raise OptionError("methods: expected at least one, got none. See virgo.methods().")
    takes_depth = wants_depth(make_model)
    if depths and not takes_depth:
        raise OptionError(
            "depths: expected a make_model that takes the depth, got one that takes nothing. "
            "Write lambda depth: ..."
        )
    numbers = list(depths or [5]) if takes_depth else [0]
    labels = {name: _label(name) for name in methods}  # raises if a name is wrong
    planner = planner or _plain_planner(data, loss, forward)
    measurements: list[tuple[str, Measurement]] = []
    failures: dict[str, str] = {}
    done = 0
    for depth in numbers:
        model = make_model(depth) if takes_depth else make_model()
        for name, label in labels.items():
            try:
                plans = [planner(model, name, draw) for draw in range(seeds)]
                chosen = loss or InferredLoss()
                measured = measure(
                    model, data, loss=chosen, plan=plans, forward=forward, nodes=nodes
                )
                measurements.append((label, measured))
            except (ValueError, RuntimeError) as error:
                failures[f"{label}, {depth} layers" if takes_depth else label] = str(error)
            done += 1
            if progress is not None:
                progress(done, len(numbers) * len(labels), label)
    if not measurements:
        names: dict[str, list[str]] = {}
        for name, why in failures.items():
            names.setdefault(why, []).append(name)
        reasons = "; ".join(f"{', '.join(those)}: {why}" for why, those in names.items())
        raise OptionError(f"compare: every method failed: {reasons}")
    return _summarised(measurements, seeds, title or type(model).__name__, failures, notes)


def _label(name: str) -> str:
    """A method with its options, its alias replaced by its name."""
    return "+".join([parse_method(name)[0], *name.split("+")[1:]])


def _plain_planner(data: Any, loss: Loss | None, forward: Forward | None) -> Planner:
    def planned(model: nn.Module, name: str, seed: int) -> Plan:
        method, options = parse_method(name)
        return plan(model, data, method, seed=seed, loss=loss, forward=forward, **options)

    return planned


def _summarised(
    measurements: Sequence[tuple[str, Measurement]],
    seeds: int,
    title: str,
    failures: dict[str, str],
    notes: Sequence[str],
) -> Comparison:
    """The measurements of all methods as curves and verdicts."""
    curves: list[Curve] = []
    health: list[Health] = []
    facts: dict[str, object] = {}
    for label, measured in measurements:
        depth = len(measured.layers) - 1
        facts |= measured.facts
        notes = [*dict.fromkeys([*notes, *measured.notes])]
        for direction in ("forward", "backward"):
            spread = tuple(getattr(layer, f"{direction}_sd") for layer in measured.layers)
            curves.append(
                Curve(label, depth, direction, tuple(getattr(measured, direction)), spread)
            )
        findings = judge(measured, Thresholds())
        level = findings[0].level if findings else "good"  # the worst comes first
        health.append(Health(label, depth, level, tuple(f.sentence for f in findings)))
    return Comparison(tuple(curves), seeds, title, failures, facts, tuple(notes), tuple(health))

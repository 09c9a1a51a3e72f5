"""``compare()``: the paper's Figure 1 for any model and graph, with its claim put to the test."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from virgo.diagnostics.comparison import CLASSIC, Comparison, Curve, Health
from virgo.diagnostics.measurement import Measurement, measure
from virgo.diagnostics.verdict import Thresholds, judge
from virgo.errors import OptionError
from virgo.init import plan
from virgo.network.inputs import Forward
from virgo.network.probe import Loss
from virgo.plans import Plan
from virgo.rules import parse_method

#: What `compare` runs by default: the paper's methods and ours.
METHODS = (
    *CLASSIC,
    "virgo-forward",
    "virgo-backward",
    "virgo",
    "virgo-forward+measured",
    "virgo-backward+measured",
)

Planner = Callable[[Any, str, int], Plan]
"""``planner(model, method, seed)`` is the plan of a method, options after a plus."""


def wants_depth(make_model: Callable[..., nn.Module]) -> bool:
    """Whether a maker of models is to be told the number of layers.

    >>> wants_depth(lambda depth: depth), wants_depth(lambda hidden=64: hidden)
    (True, False)
    """
    parameters = inspect.signature(make_model).parameters.values()
    names = ("depth", "layers", "num_layers")
    return any(p.default is p.empty or p.name in names for p in parameters)


def compare(
    make_model: Callable[..., nn.Module],
    data: Any,
    methods: Sequence[str] = METHODS,
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
        methods: names, with options after a plus: ``"virgo-forward+measured"``.
        depths: numbers of layers; one model as it is if ``make_model`` takes no depth.
        seeds: draws per method; curves are their mean, bands their standard deviation.
        loss: ``lambda output, data: ...``, also of a measured estimate of the gradient.
        forward: ``lambda model, data: ...`` for models called in an unusual way.
        planner: ``lambda model, method, seed: ...`` for plans other than
            :func:`virgo.plan`'s on ``data`` with this loss and this pass.
        nodes: measure on a connected sample of this many nodes.
        progress: called with (done, total, what).

    A method that fails on this model is listed with its error; the others go on.
    """
    if seeds < 1:
        raise OptionError(f"seeds: expected at least 1, got {seeds}.")
    takes_depth = wants_depth(make_model)
    if depths and not takes_depth:
        raise OptionError(
            "depths: expected a make_model that takes the depth, got one that takes nothing. "
            "Write lambda depth: ..."
        )
    wanted = list(depths or ([5] if takes_depth else [0]))
    labels = {name: _label(name) for name in methods}  # says so if a name is wrong
    planner = planner or _plain_planner(data, loss, forward)
    found: list[tuple[str, Measurement]] = []
    failures: dict[str, str] = {}
    total, done = len(wanted) * len(labels), 0
    for depth in wanted:
        model = make_model(depth) if takes_depth else make_model()
        for name, label in labels.items():
            try:
                plans = [planner(model, name, draw) for draw in range(seeds)]
                trace = measure(model, data, plan=plans, loss=loss, forward=forward, nodes=nodes)
            except Exception as error:
                if not isinstance(error, (ValueError, RuntimeError)):
                    raise
                failures[f"{label}, {depth} layers" if takes_depth else label] = str(error)
            else:
                found.append((label, trace))
            done += 1
            if progress is not None:
                progress(done, total, label)
    if not found:
        raise OptionError(
            "compare: every method failed: "
            + "; ".join(f"{name}: {why}" for name, why in failures.items())
        )
    return _summed(found, seeds, title or type(model).__name__, failures, notes)


def _label(name: str) -> str:
    """A method with its options, its alias replaced by its name."""
    return "+".join([parse_method(name)[0], *name.split("+")[1:]])


def _plain_planner(data: Any, loss: Loss | None, forward: Forward | None) -> Planner:
    def planned(model: nn.Module, name: str, seed: int) -> Plan:
        method, options = parse_method(name)
        return plan(model, data, method, seed=seed, loss=loss, forward=forward, **options)

    return planned


def _summed(
    found: Sequence[tuple[str, Measurement]],
    seeds: int,
    title: str,
    failures: dict[str, str],
    notes: Sequence[str],
) -> Comparison:
    """What was measured of every method, as curves and verdicts."""
    curves: list[Curve] = []
    health: list[Health] = []
    facts: dict[str, Any] = {}
    for label, trace in found:
        depth = len(trace.layers) - 1
        facts |= trace.facts
        notes = [*dict.fromkeys([*notes, *trace.notes])]
        for way in ("forward", "backward"):
            spread = tuple(getattr(layer, f"{way}_sd") for layer in trace.layers)
            curves.append(Curve(label, depth, way, tuple(getattr(trace, way)), spread))
        wrong = judge(trace, Thresholds())
        level = wrong[0].level if wrong else "good"  # the worst comes first
        health.append(Health(label, depth, level, tuple(each.sentence for each in wrong)))
    return Comparison(tuple(curves), seeds, title, failures, facts, tuple(notes), tuple(health))

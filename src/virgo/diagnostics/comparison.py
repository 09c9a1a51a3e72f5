"""``compare()``: the paper's Figure 1 for any model and graph, with its claim put to the test."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from virgo.diagnostics.measurement import Measurement, measure
from virgo.diagnostics.verdict import Thresholds, judge
from virgo.errors import OptionError
from virgo.init import plan
from virgo.network.inputs import Forward
from virgo.network.probe import Loss
from virgo.plans import Plan
from virgo.report.files import save, versions
from virgo.report.text import plain_numbers, show, text_table
from virgo.rules import parse_method

CLASSIC = ("lecun", "xavier", "kaiming-forward", "kaiming-backward")
#: What `compare` runs by default: the paper's methods and ours.
METHODS = (
    *CLASSIC,
    "virgo-forward",
    "virgo-backward",
    "virgo",
    "virgo-forward+measured",
    "virgo-backward+measured",
)

#: Two ranges closer than this factor are level: no claim rests on the last digit.
LEVEL = 1.01

Planner = Callable[[Any, str, int], Plan]
"""``planner(model, method, seed)`` is the plan of a method, options after a plus."""


@dataclass(frozen=True)
class Curve:
    """One method at one depth: variances of h^0 .. h^L, their spread over draws, and two sums.

    ``stability`` is max/min over all layers; ``leaves`` the number of layers after which the
    variance has left a factor of ten of where it began (the input forward, the output backward).
    """

    method: str
    depth: int
    direction: str
    values: tuple[float, ...]
    spread: tuple[float, ...]

    @property
    def stability(self) -> float:
        if not all(v > 0 for v in self.values):
            return math.inf
        return max(self.values) / min(self.values)

    @property
    def leaves(self) -> int | None:
        path = self.values if self.direction == "forward" else self.values[::-1]
        for steps, value in enumerate(path):
            if not (path[0] / 10 <= value <= path[0] * 10):
                return steps
        return None


@dataclass(frozen=True)
class Health:
    """The verdict on one method at one depth: :func:`virgo.check`'s, with its default limits."""

    method: str
    depth: int
    level: str  # "good", "watch" or "bad"
    findings: tuple[str, ...] = ()  # what is wrong, a sentence each


@dataclass(frozen=True)
class Claim:
    """The paper's claim for one direction and depth, with the two numbers it rests on."""

    depth: int
    direction: str
    virgo: str
    virgo_range: float
    classic: str
    classic_range: float

    @property
    def confirmed(self) -> bool:
        return self.virgo_range * LEVEL < self.classic_range

    @property
    def is_level(self) -> bool:
        """Whether the two differ by less than :data:`LEVEL`, as behind a norm they often do."""
        low, high = sorted([self.virgo_range, self.classic_range])
        return math.isfinite(high) and high <= low * LEVEL

    def __str__(self) -> str:
        word = "confirmed" if self.confirmed else "level" if self.is_level else "not confirmed"
        return (
            f"{self.depth} layers, {self.direction}: {word}: {self.virgo} changes by "
            f"x{self.virgo_range:.3g} over the layers, the best classic method ({self.classic}) "
            f"by x{self.classic_range:.3g}"
        )


@dataclass(frozen=True)
class Comparison:
    """All methods side by side."""

    curves: tuple[Curve, ...]
    seeds: int
    title: str = "model"
    failures: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    health: tuple[Health, ...] = ()

    @property
    def depths(self) -> list[int]:
        return sorted({curve.depth for curve in self.curves})

    def at(self, depth: int, direction: str) -> dict[str, Curve]:
        """The curves of one panel, by method."""
        return {c.method: c for c in self.curves if (c.depth, c.direction) == (depth, direction)}

    def claims(self) -> list[Claim]:
        """Does Virgo decline less steeply than the classic methods? Per depth and direction,
        for the closed form and, where it was run, for the measured estimate."""
        found = []
        for depth in self.depths:
            for direction in ("forward", "backward"):
                panel = self.at(depth, direction)
                classic = {n: c.stability for n, c in panel.items() if n in CLASSIC}
                if not classic:
                    continue
                best = min(classic, key=lambda n: classic[n])
                for name in (f"virgo-{direction}", f"virgo-{direction}+measured"):
                    if name in panel:
                        found.append(
                            Claim(
                                depth, direction, name, panel[name].stability, best, classic[best]
                            )
                        )
        return found

    def to_json(self, indent: int | None = None) -> str:
        raw = asdict(self)
        for curve, record in zip(self.curves, raw["curves"], strict=True):
            record |= {"stability": curve.stability, "leaves": curve.leaves}
        raw["claims"] = [{**asdict(c), "confirmed": c.confirmed} for c in self.claims()]
        return json.dumps(plain_numbers(raw), indent=indent)

    def table(self, depth: int) -> list[tuple[str, ...]]:
        """Method, stability and depth of leaving a factor of ten both ways, and the verdict."""
        forward, backward = self.at(depth, "forward"), self.at(depth, "backward")
        levels = {one.method: one.level for one in self.health if one.depth == depth}
        rows = []
        for name in forward:
            cells = []
            for panel in (forward, backward):
                curve = panel.get(name)
                cells += (
                    [
                        f"x{show(curve.stability)}",
                        "never" if curve.leaves is None else str(curve.leaves),
                    ]
                    if curve
                    else (["-", "-"])
                )
            rows.append((name, *cells, levels.get(name, "-")))
        return rows

    _HEADER = (
        "method",
        "forward max/min",
        "leaves x10 at",
        "backward max/min",
        "leaves x10 at",
        "verdict",
    )

    def __str__(self) -> str:
        lines = [f"{self.title}, mean of {self.seeds} draws"]
        for depth in self.depths:
            lines += ["", f"{depth} layers", *text_table(self._HEADER, self.table(depth))]
        lines += ["", "Does Virgo decline less steeply than the classic methods?"]
        lines += [f"  {claim}" for claim in self.claims()]
        lines += [f"failed: {name}: {why}" for name, why in self.failures.items()]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def _panels(self, depth: int) -> tuple[dict[str, Any], dict[str, Any]]:
        names = list(self.at(depth, "forward"))
        values: dict[str, Any] = {name: {} for name in names}
        spreads: dict[str, Any] = {name: {} for name in names}
        for direction in ("forward", "backward"):
            for name, curve in self.at(depth, direction).items():
                values[name][direction] = curve.values
                spreads[name][direction] = curve.spread
        return values, spreads

    def figure(self, depth: int | None = None) -> Any:
        """The picture of one depth (the deepest by default) as a matplotlib figure."""
        from virgo.report.plots import variance_over_depth

        depth = self.depths[-1] if depth is None else depth
        values, spreads = self._panels(depth)
        return variance_over_depth(values, spreads, title=f"{self.title}, {depth} layers")

    def plot(self, depth: int | None = None) -> Any:
        """Matplotlib axes, forward and backward."""
        return self.figure(depth).axes

    def document(self) -> dict[str, Any]:
        """The comparison as :func:`virgo.report.page.page` takes it."""
        claims = self.claims()
        held = sum(claim.confirmed for claim in claims)
        charts = [
            {
                "title": f"{'Signal' if d == 'forward' else 'Gradient'}, {depth} layers",
                "x_label": "layer (0 is the input)",
                "y_label": f"{d} variance",
                "log": True,
                "series": [
                    {
                        "name": n,
                        "values": list(c.values),
                        "spread": list(c.spread),
                        "dashed": n in CLASSIC,
                    }
                    for n, c in self.at(depth, d).items()
                ],
            }
            for depth in self.depths
            for d in ("forward", "backward")
        ]
        return {
            "title": f"Virgo compare: {self.title}",
            "subtitle": ", ".join(
                f"{v:,} {k}" for k, v in self.facts.items() if isinstance(v, int)
            ),
            "verdict": {
                "level": "none",
                "details": [str(claim) for claim in claims],
                "headline": f"Virgo declines less steeply than every classic method in "
                f"{held} of {len(claims)} comparisons.",
            },
            "charts": charts,
            "tables": [
                {
                    "title": f"Stability, {depth} layers",
                    "note": "max/min over all layers; "
                    "layers until the variance has left a factor of ten",
                    "header": list(self._HEADER),
                    "rows": [list(r) for r in self.table(depth)],
                }
                for depth in self.depths
            ],
            "config": {**self.facts, "draws": self.seeds, "failures": self.failures},
            "versions": versions(),
            "notes": list(self.notes),
        }

    def save(self, path: str | Path) -> Path:
        """Write ``.html``, ``.json`` or a picture, by the file's ending."""
        return save(self, path)


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


def joined(studies: Sequence[Comparison]) -> Comparison:
    """Comparisons of one title at several depths as one; facts and title are the first one's."""
    first = studies[0]
    failures: dict[str, str] = {}
    for study in studies:
        failures |= study.failures
    return replace(
        first,
        curves=tuple(curve for study in studies for curve in study.curves),
        health=tuple(one for study in studies for one in study.health),
        failures=failures,
        notes=tuple(dict.fromkeys(note for study in studies for note in study.notes)),
    )

"""``check()``: predicted beside measured, and a verdict a newcomer understands.

Decay is judged by the hidden layers, ``h^1 .. h^{L-1}``: the first and the last layer change the
width, and their one jump is not decay. It is shown, not blamed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from virgo import reading, theory
from virgo.amplitudes import hops
from virgo.diagnostics.measure import Layer, Measurement, measure, plain_numbers, show
from virgo.errors import GraphError, LayerError, OptionError, VirgoError
from virgo.inputs import Forward, Inputs
from virgo.modules import unwrap
from virgo.observing import Loss
from virgo.plans import Plan, text_table
from virgo.study import Study
from virgo.tracing import watch


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


@dataclass(frozen=True)
class Report:
    """Predicted beside measured, and a verdict."""

    measurement: Measurement
    predicted_forward: tuple[float, ...]
    predicted_backward: tuple[float, ...]
    findings: tuple[Finding, ...]
    thresholds: Thresholds
    title: str = "model"
    facts: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing bad was found."""
        return not any(finding.level == "bad" for finding in self.findings)

    @property
    def level(self) -> str:
        """``"good"``, ``"watch"`` or ``"bad"``."""
        return "bad" if not self.ok else "watch" if self.findings else "good"

    @property
    def verdict(self) -> str:
        """The verdict in a sentence or two."""
        if not self.findings:
            return "Signal and gradient survive all hidden layers."
        worst = sorted(self.findings, key=lambda finding: finding.level != "bad")
        return " ".join(f"{f.sentence} {f.advice}" for f in worst[:2])

    def rows(self, direction: str) -> list[tuple[str, str, float, float, float, float]]:
        """Layer, name, predicted, measured, measured/predicted, change from the layer before."""
        measured: list[float] = getattr(self.measurement, direction)
        predicted: tuple[float, ...] = getattr(self, f"predicted_{direction}")
        before = [math.nan, *measured[:-1]] if direction == "forward" else [*measured[1:], math.nan]
        return [
            (str(layer.index), layer.name, p, m, _quotient(m, p), _quotient(m, b))
            for layer, p, m, b in zip(
                self.measurement.layers, predicted, measured, before, strict=True
            )
        ]

    def to_json(self, indent: int | None = None) -> str:
        """Everything, with the verdict, as JSON."""
        return json.dumps(
            plain_numbers({"ok": self.ok, "level": self.level, "verdict": self.verdict,
                           **asdict(self)}),
            indent=indent,
        )  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{self.level.upper()}: {self.verdict}"]
        for direction in ("forward", "backward"):
            header = ("layer", "name", "predicted", "measured", "meas./pred.", "change")
            body = [(a, b, *map(show, numbers)) for a, b, *numbers in self.rows(direction)]
            lines += ["", f"{direction} variance", *text_table(header, body, left=2)]
        notes = [*self.measurement.notes, *self.notes]
        return "\n".join([*lines, *([""] if notes else []), *(f"note: {n}" for n in notes)])

    def figure(self) -> Any:
        """Forward and backward, predicted beside measured, as a matplotlib figure."""
        from virgo.report.plots import variance_over_depth

        return variance_over_depth(self._curves(), title=self.title)

    def plot(self) -> Any:
        """Matplotlib axes of :meth:`figure`."""
        return self.figure().axes

    def _curves(self) -> dict[str, dict[str, Sequence[float]]]:
        measured: dict[str, Sequence[float]]
        predicted: dict[str, Sequence[float]]
        measured = {"forward": self.measurement.forward, "backward": self.measurement.backward}
        predicted = {"forward": self.predicted_forward, "backward": self.predicted_backward}
        return {"measured": measured, "predicted": predicted}

    def document(self) -> dict[str, Any]:
        """The report as :func:`virgo.report.page.page` takes it."""
        curves = self._curves()
        header = ["layer", "what", "predicted", "measured", "measured / predicted",
                  "change from the layer before"]  # fmt: skip
        headline = self.findings[0].sentence if self.findings else self.verdict
        details = [self.findings[0].advice] if self.findings else []
        details += [f"{finding.sentence} {finding.advice}" for finding in self.findings[1:]]
        return {
            "title": f"Virgo check: {self.title}",
            "subtitle": ", ".join(f"{v:,} {k}" for k, v in self.measurement.facts.items()),
            "verdict": {"level": self.level, "headline": headline, "details": details},
            "charts": [_chart(direction, curves) for direction in ("forward", "backward")],
            "tables": [
                {"title": f"{direction.capitalize()} variance", "note": "", "header": header,
                 "rows": [list(row) for row in self.rows(direction)]}
                for direction in ("forward", "backward")
            ] + [_layer_table(self.measurement), _gradient_table(self.measurement)],
            "config": {**self.facts, "thresholds": asdict(self.thresholds)},
            "versions": versions(),
            "notes": [*self.measurement.notes, *self.notes],
        }  # fmt: skip

    def save(self, path: str | Path) -> Path:
        """Write the report: ``.html`` (one page), ``.json`` or ``.png``, by the file's ending."""
        return save(self, path)


def save(result: Any, path: str | Path) -> Path:
    """Write something with ``document()``, ``to_json()`` and ``figure()`` by ``path``'s ending."""
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in (".html", ".json", ".png", ".pdf", ".svg"):
        raise OptionError(
            f"save: expected a path that ends in .html, .json, .png, .pdf or .svg, got "
            f"{path.name!r}. Choose one."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == ".html":
        from virgo.report.page import save_page

        save_page(result.document(), path)
    elif kind == ".json":
        path.write_text(result.to_json(indent=1), encoding="utf-8")
    else:
        result.figure().savefig(path, dpi=200)
    return path


def check(
    model: nn.Module,
    data: Any,
    plan: Plan | None = None,
    *,
    thresholds: Thresholds | None = None,
    loss: Loss | None = None,
    forward: Forward | None = None,
    nodes: int | None = None,
    seed: int = 0,
) -> Report:
    """Do signal and gradient survive this model on this graph? Predicted, measured, verdict.

    Args:
        plan: check the weights this plan would draw; the model's own otherwise.
        thresholds: when to worry.
        loss, forward, nodes: as for :func:`measure`.

    >>> import virgo
    >>> from torch_geometric.nn import GCN
    >>> data = virgo.data.citation_like(num_nodes=300, seed=0)
    >>> deep = GCN(data.num_features, 64, num_layers=12, out_channels=7)
    >>> virgo.check(deep, data, virgo.plan(deep, data, "xavier")).ok
    False
    >>> virgo.check(deep, data, virgo.plan(deep, data, "virgo-forward", estimate="measured")).ok
    True
    """
    bare = unwrap(model)
    limits = thresholds or Thresholds()
    measured = measure(bare, data, loss=loss, plan=plan, forward=forward, nodes=nodes, seed=seed)
    read = reading.read(data)
    if nodes is not None and nodes < read.num_nodes:
        read = read.neighbourhood(nodes, seed)
    forecast, backcast, notes = _predict(bare, read, plan, forward, measured, loss)
    facts = {"model": type(bare).__name__, "layers": len(measured.layers) - 1,
             "method": plan.method if plan else "the model's own weights"}  # fmt: skip
    return Report(
        measured,
        tuple(forecast),
        tuple(backcast),
        tuple(judge(measured, limits)),
        limits,
        type(bare).__name__,
        facts,
        tuple(notes),
    )


# --- prediction ---------------------------------------------------------------------------------


def _predict(
    model: nn.Module,
    read: Inputs,
    plan: Plan | None,
    forward: Forward | None,
    measured: Measurement,
    loss: Loss | None,
) -> tuple[list[float], list[float], list[str]]:
    """Theorems 1 and 2 for the weights that are there; NaN where they do not apply."""
    count = len(measured.layers)
    unknown = [math.nan] * count
    try:
        study = Study(model, read, watch(model, read, forward), theory.RELU_GAIN, "mean", "", 0)
        chain = study.stages
        if [sorted(call.parents) for call in study.trace.calls[1:]] != [
            [i] for i in range(count - 2)
        ]:
            raise LayerError("the layers are not one chain")
        weights = plan.variances if plan else None
        forecast = _forecast(study, weights)
        mask = read.data.get("train_mask")
        labelled = np.ones(read.num_nodes)
        masked = isinstance(mask, Tensor) and mask.shape == (read.num_nodes,) and bool(mask.any())
        if loss is None and masked:
            labelled = mask.cpu().numpy().astype(float)
        classes = study.infer_classes(None) if loss is None else None
        backcast = _backcast(study, weights, labelled, classes, measured.backward[-1])
        assert len(chain) == count - 1
        return forecast, backcast, []
    except VirgoError as error:
        return unknown, unknown, [f"no prediction: {error}"]


def _variance(study: Study, call: int, weight: str, planned: dict[str, float] | None) -> float:
    name = study.full_name(study.trace.calls[call], weight)
    if planned is not None and name in planned:
        return planned[name]
    return float(study.parameters[name].detach().double().square().mean())


def _forecast(study: Study, planned: dict[str, float] | None) -> list[float]:
    """Theorem 1: each stage multiplies by ``m_1 var(w) / gain`` times what its operator does."""
    signal = study.node_signal
    if not np.any(signal):
        raise GraphError("data.x: the mean feature of every node is zero")
    carried = hops(study.trace, study.stages, signal, "forward")
    out = [float(signal @ signal) / signal.size]
    for c, chain in enumerate(study.stages):
        value = out[-1]
        for s, stage in enumerate(chain):
            value *= sum(
                norm * _through(study, c, term.weight, planned, fan=1)
                for term, norm in zip(stage, carried.terms[c, s], strict=True)
            )
        out.append(value)
    return out


def _backcast(
    study: Study,
    planned: dict[str, float] | None,
    labelled: np.ndarray[Any, Any],
    classes: int | None,
    seen: float,
) -> list[float]:
    """Theorem 2 where logits meet the default loss; otherwise from the gradient that was seen."""
    carried = hops(study.trace, study.stages, labelled, "backward")
    nodes, count = labelled.size, float(labelled.sum())
    value = 1.0 / (nodes * count * classes) if classes else seen
    out = [value]
    for c in reversed(range(len(study.stages))):
        for s in reversed(range(len(study.stages[c]))):
            first = len(out) == 1 and s == len(study.stages[c]) - 1
            step = sum(
                norm * _through(study, c, term.weight, planned, fan=0, bare=bool(first and classes))
                for term, norm in zip(study.stages[c][s], carried.terms[c, s], strict=True)
            )
            # at the logits the paper counts C - 1 of the C classes, and no activation
            value *= (classes - 1) * step if first and classes else step
        out.append(value)
    return out[::-1]


def _through(
    study: Study, call: int, weight: str | None, planned: dict[str, float] | None, fan: int,
    bare: bool = False,
) -> float:  # fmt: skip
    """What a weight does to a variance; ``fan`` 1 counts its inputs, 0 its outputs."""
    if weight is None:
        return 1.0
    variance = _variance(study, call, weight, planned)
    if bare:
        return variance
    name = study.full_name(study.trace.calls[call], weight)
    return study.parameters[name].shape[fan] * variance / theory.RELU_GAIN


# --- verdict ------------------------------------------------------------------------------------


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
            return [Finding("bad", "exploding", layer.name,
                            f"Numbers overflow at layer {layer.index} ({layer.name}).",
                            _REMEDY)]  # fmt: skip
    return []


_REMEDY = "Try virgo.init_(model, data, 'virgo-forward', estimate='measured')."


def _first_hop(layers: Sequence[Layer], limits: Thresholds) -> list[Finding]:
    before, after = layers[0].second_moment, layers[1].second_moment
    if len(layers) > 2 and after < limits.first_hop * before:
        return [Finding("bad", "no signal at the first hop", layers[1].name,
                        f"The first layer lets almost nothing through: mean square "
                        f"{before:.2g} goes in, {after:.2g} comes out.",
                        "Check edge weights and the first weight. " + _REMEDY)]  # fmt: skip
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
        return [Finding("bad", "vanishing", first.name,
                        f"The {what} is zero at layer {first.index} ({first.name}).",
                        _REMEDY)]  # fmt: skip
    change = max(values) / min(values)
    if change < limits.watch:
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
    return [Finding("bad", "dead units", worst.name,
                    f"{worst.dead:.0%} of the units that reach layer {worst.index} "
                    f"({worst.name}) are zero at every node.",
                    "Try a wider layer or distribution='mirrored'.")]  # fmt: skip


def _alike(hidden: Sequence[Layer], limits: Thresholds) -> list[Finding]:
    for layer in hidden:
        if layer.mean_average_distance < limits.alike:
            return [Finding("bad", "oversmoothing", layer.name,
                            f"All nodes look alike from layer {layer.index} on (mean average "
                            f"distance {layer.mean_average_distance:.1g}): oversmoothing.",
                            "Use fewer layers, residuals, or distribution='mirrored', which keeps "
                            "directions apart.")]  # fmt: skip
    return []


# --- the page's pieces --------------------------------------------------------------------------


def _quotient(a: float, b: float) -> float:
    return a / b if b and not math.isnan(b) else math.nan


def _chart(direction: str, curves: dict[str, dict[str, Sequence[float]]]) -> dict[str, Any]:
    return {
        "title": "Signal (forward variance)" if direction == "forward"
        else "Gradient (backward variance)",
        "x_label": "layer (0 is the input)",
        "y_label": "variance",
        "log": True,
        "series": [
            {"name": name, "values": list(curve[direction]), "spread": None,
             "dashed": name == "predicted"}
            for name, curve in curves.items()
        ],
    }  # fmt: skip


def _layer_table(measured: Measurement) -> dict[str, Any]:
    return {
        "title": "What each layer receives",
        "note": "Dirichlet energies with the normalised and the plain Laplacian, divided by the "
        "squared norm; MAD is the mean average distance (one minus cosine) between nodes.",
        "header": ["layer", "what", "width", "mean", "second moment", "dead units",
                   "Dirichlet (norm.)", "Dirichlet (plain)", "MAD"],
        "rows": [
            [layer.index, layer.name, layer.width, layer.mean, layer.second_moment, layer.dead,
             layer.dirichlet_normalized, layer.dirichlet_plain, layer.mean_average_distance]
            for layer in measured.layers
        ],
    }  # fmt: skip


def _gradient_table(measured: Measurement) -> dict[str, Any]:
    return {
        "title": "Gradient norm of every weight",
        "note": f"loss {measured.loss:.4g}",
        "header": ["parameter", "gradient norm"],
        "rows": [[name, norm] for name, norm in measured.weight_gradients.items()],
    }


def versions() -> dict[str, str]:
    """What this ran with."""
    import platform

    import torch
    import torch_geometric

    import virgo

    return {"virgo": virgo.__version__, "torch": torch.__version__,
            "torch_geometric": torch_geometric.__version__,
            "python": platform.python_version()}  # fmt: skip

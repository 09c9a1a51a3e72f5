"""``check()``: predicted beside measured, and a verdict a newcomer understands."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from virgo.diagnostics.measurement import Measurement, draws_of, measure_draws, trace_model
from virgo.diagnostics.prediction import predict
from virgo.diagnostics.verdict import Finding, Thresholds, judge
from virgo.network.inputs import Forward
from virgo.network.probe import Loss
from virgo.plans import Plan
from virgo.report.files import save, versions
from virgo.report.text import plain_numbers, show, text_table


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
            plain_numbers(
                {"ok": self.ok, "level": self.level, "verdict": self.verdict, **asdict(self)}
            ),
            indent=indent,
        )

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
        header = [
            "layer",
            "what",
            "predicted",
            "measured",
            "measured / predicted",
            "change from the layer before",
        ]
        headline = self.findings[0].sentence if self.findings else self.verdict
        details = [self.findings[0].advice] if self.findings else []
        details += [f"{finding.sentence} {finding.advice}" for finding in self.findings[1:]]
        return {
            "title": f"Virgo check: {self.title}",
            "subtitle": ", ".join(f"{v:,} {k}" for k, v in self.measurement.facts.items()),
            "verdict": {"level": self.level, "headline": headline, "details": details},
            "charts": [_chart(direction, curves) for direction in ("forward", "backward")],
            "tables": [
                {
                    "title": f"{direction.capitalize()} variance",
                    "note": "",
                    "header": header,
                    "rows": [list(row) for row in self.rows(direction)],
                }
                for direction in ("forward", "backward")
            ]
            + [_layer_table(self.measurement), _gradient_table(self.measurement)],
            "config": {**self.facts, "thresholds": asdict(self.thresholds)},
            "versions": versions(),
            "notes": [*self.measurement.notes, *self.notes],
        }

    def save(self, path: str | Path) -> Path:
        """Write the report: ``.html`` (one page), ``.json`` or ``.png``, by the file's ending."""
        return save(self, path)


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
    limits = thresholds or Thresholds()
    traced = trace_model(model, data, nodes, forward, seed)
    measured = measure_draws(traced, draws_of(plan), loss)
    predicted_forward, predicted_backward, notes = predict(traced, plan, measured, loss)
    title = type(traced.model).__name__
    return Report(
        measured,
        tuple(predicted_forward),
        tuple(predicted_backward),
        tuple(judge(measured, limits)),
        limits,
        title,
        {
            "model": title,
            "layers": len(measured.layers) - 1,
            "method": plan.method if plan else "the model's own weights",
        },
        tuple(notes),
    )


def _quotient(a: float, b: float) -> float:
    return a / b if b and not math.isnan(b) else math.nan


def _chart(direction: str, curves: dict[str, dict[str, Sequence[float]]]) -> dict[str, Any]:
    return {
        "title": "Signal (forward variance)"
        if direction == "forward"
        else "Gradient (backward variance)",
        "x_label": "layer (0 is the input)",
        "y_label": "variance",
        "log": True,
        "series": [
            {
                "name": name,
                "values": list(curve[direction]),
                "spread": None,
                "dashed": name == "predicted",
            }
            for name, curve in curves.items()
        ],
    }


def _layer_table(measured: Measurement) -> dict[str, Any]:
    return {
        "title": "What each layer receives",
        "note": "Dirichlet energies with the normalised and the plain Laplacian, divided by the "
        "squared norm; MAD is the mean average distance (one minus cosine) between nodes.",
        "header": [
            "layer",
            "what",
            "width",
            "mean",
            "second moment",
            "dead units",
            "Dirichlet (norm.)",
            "Dirichlet (plain)",
            "MAD",
        ],
        "rows": [
            [
                layer.index,
                layer.name,
                layer.width,
                layer.mean,
                layer.second_moment,
                layer.dead,
                layer.dirichlet_normalized,
                layer.dirichlet_plain,
                layer.mean_average_distance,
            ]
            for layer in measured.layers
        ],
    }


def _gradient_table(measured: Measurement) -> dict[str, Any]:
    return {
        "title": "Gradient norm of every weight",
        "note": f"loss {measured.loss:.4g}",
        "header": ["parameter", "gradient norm"],
        "rows": [[name, norm] for name, norm in measured.weight_gradients.items()],
    }

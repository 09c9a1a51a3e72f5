"""``check()``: predicted beside measured, and a verdict in plain words."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from virgo.diagnostics import measurement_views
from virgo.diagnostics.advice import advise
from virgo.diagnostics.measurement import (
    Measurement,
    PreparedModel,
    draws_of,
    measure_draws,
    read_subject,
    trace_subject,
)
from virgo.diagnostics.prediction import predict
from virgo.diagnostics.units import measure_units
from virgo.diagnostics.verdict import Finding, Thresholds, judge, level_of
from virgo.errors import GraphError, OptionError, named_options
from virgo.network import reading
from virgo.network.inputs import Forward
from virgo.network.losses import InferredLoss
from virgo.network.modules import copied, is_uninitialised, materialise, unwrap
from virgo.network.probe import Loss
from virgo.plans import Plan
from virgo.report.notebook import NotebookView, plots
from virgo.report.page import Document, variance_chart
from virgo.report.saving import save, versions
from virgo.report.text import plain_numbers, show, text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIRECTIONS = ("forward", "backward")
_VARIANCES = (
    "layer",
    "what",
    "predicted",
    "measured",
    "measured / predicted",
    "change from the layer before",
)


@dataclass(frozen=True)
class Report(NotebookView):
    """Predicted beside measured, and a verdict.

    Attributes:
        measurement: what was measured.
        predicted_forward: the variance of h^0 .. h^L by Theorem 1, undefined where it says nothing.
        predicted_backward: that of the gradient by Theorem 2.
        findings: what is wrong, worst first; empty where all is well.
        thresholds: by which it was judged.
        title: of the page.
        facts: about the model and the data.
        notes: in words, what one should know.
        advice: what to try, where something that was tried would help.
    """

    measurement: Measurement
    predicted_forward: tuple[float, ...]
    predicted_backward: tuple[float, ...]
    findings: tuple[Finding, ...]
    thresholds: Thresholds
    title: str = "model"
    facts: dict[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    advice: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing bad was found."""
        return not any(finding.level == "bad" for finding in self.findings)

    @property
    def level(self) -> str:
        """``"good"``, ``"watch"`` or ``"bad"``."""
        return level_of(self.findings)

    @property
    def verdict(self) -> str:
        """The verdict in a sentence or two, and the advice."""
        if not self.findings:
            return "Signal and gradient survive all hidden layers."
        worst = sorted(self.findings, key=lambda finding: finding.level != "bad")
        return " ".join([*(f.sentence for f in worst[:2]), self.advice]).strip()

    def rows(self, direction: str) -> list[tuple[str, str, float, float, float, float]]:
        """Layer, name, predicted, measured, measured/predicted, change from the layer before.

        Args:
            direction: ``"forward"`` or ``"backward"``.

        Returns:
            One row per layer.
        """
        measured, predicted = (curve[direction] for curve in self._curves().values())
        before = [math.nan, *measured[:-1]] if direction == "forward" else [*measured[1:], math.nan]
        layers = zip(self.measurement.layers, predicted, measured, before, strict=True)
        return [
            (str(layer.index), layer.name, p, m, _quotient(m, p), _quotient(m, b))
            for layer, p, m, b in layers
        ]

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """The JSON Schema of :meth:`to_json`, which is also in the package as a file."""
        file = resources.files("virgo.diagnostics").joinpath("report.schema.json")
        schema: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return schema

    def to_json(self, indent: int | None = None) -> str:
        """Everything, with the verdict, as JSON; :meth:`json_schema` says what is where.

        Args:
            indent: spaces per level; ``None`` for one line.

        Returns:
            The text.
        """
        verdict = {"ok": self.ok, "level": self.level, "verdict": self.verdict}
        return json.dumps(plain_numbers({**verdict, **asdict(self)}), indent=indent)

    def __repr__(self) -> str:
        causes = "; ".join(f"{f.cause} at {f.layer}" for f in self.findings)
        verdict = f"{self.level}: {causes}" if causes else self.level
        return f"Report({self.title}, {len(self.measurement.layers) - 1} layers, {verdict})"

    def __str__(self) -> str:
        lines = [f"{self.level.upper()}: {self.verdict}", f"loss: {self.measurement.loss_name}"]
        for direction in DIRECTIONS:
            header = ("layer", "name", "predicted", "measured", "meas./pred.", "change")
            body = [(a, b, *map(show, numbers)) for a, b, *numbers in self.rows(direction)]
            lines += ["", f"{direction} variance", *text_table(header, body, left=2)]
        notes = [*self.measurement.notes, *self.notes]
        return "\n".join([*lines, *([""] if notes else []), *(f"note: {n}" for n in notes)])

    def figure(self) -> Figure:
        """Forward and backward, predicted beside measured, as a matplotlib figure."""
        drawn: Figure = plots("report.plot").variance_over_depth(self._curves(), title=self.title)
        return drawn

    def records(self) -> list[dict[str, Any]]:
        """One dictionary per layer, predicted beside measured: the rows of :meth:`to_frame`."""
        predicted = zip(self.predicted_forward, self.predicted_backward, strict=True)
        return [
            {**layer, "predicted_forward": forward, "predicted_backward": backward}
            for layer, (forward, backward) in zip(
                self.measurement.records(), predicted, strict=True
            )
        ]

    def _curves(self) -> dict[str, dict[str, Sequence[float]]]:
        return {
            "measured": {d: getattr(self.measurement, d) for d in DIRECTIONS},
            "predicted": {d: getattr(self, f"predicted_{d}") for d in DIRECTIONS},
        }

    def document(self) -> Document:
        """The report as :func:`virgo.report.page.page` takes it."""
        headline = self.findings[0].sentence if self.findings else self.verdict
        details = [self.advice] if self.advice else []
        details += [finding.sentence for finding in self.findings[1:]]
        variances = [
            {
                "title": f"{direction.capitalize()} variance",
                "header": _VARIANCES,
                "rows": self.rows(direction),
            }
            for direction in DIRECTIONS
        ]
        return {
            "title": f"Virgo check: {self.title}",
            "subtitle": ", ".join(f"{v:,} {k}" for k, v in self.measurement.facts.items()),
            "verdict": {
                "level": self.level,
                "headline": headline,
                "details": details,
                "code": _CALL if self.advice.startswith(f"Try {_CALL}") else "",
            },
            "reading": _READING,
            "charts": [
                variance_chart(
                    f"{what} ({direction} variance)",
                    "variance",
                    {name: curve[direction] for name, curve in self._curves().items()},
                    dashed=("predicted",),
                )
                for direction, what in zip(DIRECTIONS, ("Signal", "Gradient"), strict=True)
            ],
            "tables": [*variances, *measurement_views.tables(self.measurement)],
            "config": {**self.facts, "thresholds": asdict(self.thresholds)},
            "versions": versions(),
            "notes": [*self.measurement.notes, *self.notes],
        }

    def save(self, path: str | Path) -> Path:
        """Write the report: ``.html`` (one page), ``.json`` or ``.png``, by the file's ending.

        Args:
            path: the file; missing folders are made.

        Returns:
            The path.
        """
        return save(self, path)


_CALL = "virgo.init_(model, data)"
_READING = (
    "Measured is what one pass of this network shows; predicted is what the paper's theory expects "
    "of the same weights on this graph. Level curves are healthy; where the two run apart, the "
    "theory does not describe this network, and the verdict rests on what was measured."
)


@named_options
def check(
    model: nn.Module,
    data: Any,
    plan: Plan | None = None,
    *,
    thresholds: Thresholds | None = None,
    loss: Loss | None = None,
    backward: bool = True,
    forward: Forward | None = None,
    nodes: int | None = None,
    seed: int = 0,
    advice: bool = True,
    norms: str = "batch",
) -> Report:
    """Do signal and gradient survive this model on this graph? Predicted, measured, verdict.

    It runs on every model that :func:`virgo.init_` accepts. The pass is that of training, with
    dropout off. Where the message-passing layers cannot be followed (there is none, or blocks are
    checkpointed or reversible), every part with weights is measured, without a prediction.

    Args:
        model: any model.
        data: as for :func:`virgo.plan`.
        plan: check the weights this plan would draw; the model's own otherwise.
        thresholds: when to worry.
        loss: as for :func:`measure`; by default inferred from the labels and the output
            (cross-entropy, binary cross-entropy, squared error), without labels a random linear
            probe of the output. The report says which.
        backward: whether to measure the gradient at all.
        forward: as for :func:`measure`.
        nodes: as for :func:`measure`.
        seed: of the sample, of a random probe, and of what is tried for the advice.
        norms: ``"batch"``, norms use the statistics of the batch, as in training; ``"fresh"``, as
            in evaluation, where a BatchNorm that has seen nothing is the identity.
        advice: whether to try ``virgo.init_(model, data)`` where the verdict is not good, which
            takes about as long as a few training steps.

    Returns:
        The report; ``print`` it, or :meth:`~Report.save` it as a page.

    Raises:
        OptionError: if ``norms`` is neither of the two.

    >>> import virgo
    >>> from torch_geometric.nn import GCN
    >>> data = virgo.data.citation_like(num_nodes=300, seed=0)
    >>> deep = GCN(data.num_features, 64, num_layers=12, out_channels=7)
    >>> virgo.check(deep, data, virgo.plan(deep, data, "xavier")).ok
    False
    """
    limits = thresholds or Thresholds()
    subject = read_subject(with_shapes(model, data, forward), data, nodes, forward, seed)
    chosen = (loss or InferredLoss(seed)) if backward else None
    if norms not in ("batch", "fresh"):
        raise OptionError(f"norms: expected batch or fresh, got {norms!r}. Choose one.")

    def measured_with(other: Plan | None) -> Measured:
        return _measured(subject, other, chosen, training=norms == "batch")

    measured, (predicted_forward, predicted_backward), notes = measured_with(plan)
    findings = judge(measured, limits)

    def level_with(other: Plan) -> str:
        return level_of(judge(measured_with(other)[0], limits))

    advised = advice and backward and findings
    title = type(subject.model).__name__
    return Report(
        measured,
        tuple(predicted_forward),
        tuple(predicted_backward),
        tuple(findings),
        limits,
        title,
        {
            "model": title,
            "layers": len(measured.layers) - 1,
            "method": plan.method if plan else "the model's own weights",
            "loss": measured.loss_name,
        },
        tuple(notes),
        advise(subject, plan, chosen, seed, findings, level_with) if advised else "",
    )


def with_shapes(model: nn.Module, data: Any, forward: Forward | None) -> nn.Module:
    """The model, or of a lazy one a copy that ran once."""
    bare = unwrap(model)
    if not is_uninitialised(bare):
        return bare
    bare = copied(bare)
    materialise(bare, reading.read(data), forward)
    return bare


#: A measurement, the predictions beside it, and notes.
Measured = tuple[Measurement, tuple[list[float], list[float]], list[str]]


def _measured(
    subject: PreparedModel, plan: Plan | None, loss: Loss | None, *, training: bool
) -> Measured:
    """The measurement, the predictions beside it, and notes."""
    try:
        traced = trace_subject(subject)
        measured = measure_draws(traced, draws_of(plan), loss, loss is not None, training=training)
    except GraphError:  # features or memory: no other way to measure helps
        raise
    except Exception as error:  # a user's model may do anything: it is measured another way
        measured = measure_units(subject, plan, loss)
        unknown = [math.nan] * len(measured.layers)
        reason = str(error).partition("\n")[0]
        note = f"every part with weights is measured, without a prediction: {reason}"
        return measured, (unknown, unknown), [note]
    inferred = isinstance(loss, InferredLoss) and loss.name == "cross-entropy"
    forward, backward, notes = predict(traced, plan, measured, None if inferred else loss)
    return measured, (forward, backward), notes


def _quotient(a: float, b: float) -> float:
    return a / b if b and not math.isnan(b) else math.nan

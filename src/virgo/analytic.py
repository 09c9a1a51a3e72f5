"""The closed-form estimate: each method's rule on each weight's graph ratios."""

from __future__ import annotations

import math
from dataclasses import dataclass

from virgo import rules, theory
from virgo.errors import LayerError
from virgo.plans import Row
from virgo.study import Study


def rows(study: Study, method: rules.Method) -> list[Row]:
    """A row a weight. A weight used twice gets the geometric mean of what its uses ask for,
    which leaves the variance at the far end unchanged."""
    made = []
    for name in study.uses:
        views = [_View(study, c, s, name) for c, s, _ in study.uses[name]]
        wanted = [_checked(method, view, name) for view in views]
        variance = wanted[0]
        if len(wanted) > 1:
            variance = math.exp(sum(map(math.log, wanted)) / len(wanted))
        plain = method.rule(rules.WithoutGraph(*study.fans(name), study.gain))
        made.append(study.row(name, variance, variance / plain))
    return made


@dataclass(frozen=True)
class _View:
    """One use of one weight, as a method sees it."""

    study: Study
    call: int
    stage: int
    name: str

    @property
    def fan_in(self) -> int:
        return self.study.fans(self.name)[0]

    @property
    def fan_out(self) -> int:
        return self.study.fans(self.name)[1]

    @property
    def gain(self) -> float:
        return self.study.gain

    @property
    def forward_ratio(self) -> float:
        return self.study.forward_hops.ratios[self.call, self.stage]

    @property
    def backward_ratio(self) -> float:
        return self.study.backward_hops.ratios[self.call, self.stage]

    @property
    def softmax_variance(self) -> float | None:
        study = self.study
        if study.num_classes is None or not study.is_last(self.call, self.stage):
            return None
        norm = study.backward_hops.last_squared_norm * study.inputs.num_nodes
        return theory.virgo_backward_last(study.inputs.num_nodes, study.num_classes, norm)


def _checked(method: rules.Method, view: _View, name: str) -> float:
    value = method.rule(view)
    if not (math.isfinite(value) and value > 0):
        raise LayerError(
            f"{name}: expected a positive finite variance from {method.name}, got {value}. "
            f"Check the method, the edge weights and the features."
        )
    return value

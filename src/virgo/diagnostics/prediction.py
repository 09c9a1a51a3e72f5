"""What Theorems 1 and 2 predict for the weights that are there, layer by layer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor, nn

from virgo import theory
from virgo.diagnostics.measurement import Measurement
from virgo.errors import GraphError, LayerError, VirgoError
from virgo.graph.amplitudes import hops
from virgo.layers import Term
from virgo.network.inputs import Forward, Inputs
from virgo.network.probe import Loss
from virgo.network.trace import watch
from virgo.plans import Plan
from virgo.study import Study


def predict(
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
        signal = plan.signal if plan else "mean"
        study = Study(model, read, watch(model, read, forward), theory.RELU_GAIN, signal, "", 0)
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
        assert len(study.stages) == count - 1
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
    carried = hops(study.trace.calls, study.operators, signal, "forward")
    out = [float(signal @ signal) / signal.size]
    for c, chain in enumerate(study.stages):
        value = out[-1]
        for s, stage in enumerate(chain):
            value *= sum(
                norm * _through(study, c, term, planned, fan=1)
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
    carried = hops(study.trace.calls, study.operators, labelled, "backward")
    nodes, count = labelled.size, float(labelled.sum())
    value = 1.0 / (nodes * count * classes) if classes else seen
    out = [value]
    for c in reversed(range(len(study.stages))):
        for s in reversed(range(len(study.stages[c]))):
            first = len(out) == 1 and s == len(study.stages[c]) - 1
            step = sum(
                norm * _through(study, c, term, planned, fan=0, bare=bool(first and classes))
                for term, norm in zip(study.stages[c][s], carried.terms[c, s], strict=True)
            )
            # at the logits the paper counts C - 1 of the C classes, and no activation
            value *= (classes - 1) * step if first and classes else step
        out.append(value)
    return out[::-1]


def _through(
    study: Study,
    call: int,
    term: Term,
    planned: dict[str, float] | None,
    fan: int,
    bare: bool = False,
) -> float:
    """What a weight does to a variance; ``fan`` 1 counts its inputs, 0 its outputs."""
    if term.weight is None:
        return 1.0
    variance = _variance(study, call, term.weight, planned)
    if bare:
        return variance
    shape = study.parameters[study.full_name(study.trace.calls[call], term.weight)].shape
    return theory.transfer(shape[1 - fan if term.in_first else fan], variance)

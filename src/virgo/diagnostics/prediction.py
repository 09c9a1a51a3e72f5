"""What Theorems 1 and 2 predict for the weights that are there, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping

from virgo import theory
from virgo.devices import widest
from virgo.diagnostics.measurement import Measurement, TracedModel
from virgo.errors import GraphError, VirgoError
from virgo.graph.amplitudes import Direction, hops
from virgo.graph.device import vector_of
from virgo.graph.vectors import AnyVector, extent, squared_norm
from virgo.layers import Term
from virgo.network.inputs import Inputs, counted_rows
from virgo.network.probe import Loss
from virgo.plans import Plan
from virgo.study import Study


def predict(
    traced: TracedModel, plan: Plan | None, measured: Measurement, loss: Loss | None
) -> tuple[list[float], list[float], list[str]]:
    """Theorems 1 and 2 for a plan's weights, or for the model's own.

    Args:
        traced: the model on its data, as it was measured.
        plan: whose variances to take in place of the model's own weights.
        measured: the measurement, for the gradient at the output where Lemma 1 does not give it.
        loss: of the measurement; ``None`` is cross-entropy on the training nodes.

    Returns:
        The forward and the backward variance of ``h^0 .. h^L``, NaN where the theorems do not
        apply, and notes that say why.
    """
    unknown = [math.nan] * len(measured.layers)
    if any(call.parents != {i} for i, call in enumerate(traced.trace.calls[1:])):
        return unknown, unknown, ["no prediction: the layers are not one chain"]
    signal = plan.signal if plan else "mean"
    study = Study(traced.model, traced.inputs, traced.trace, theory.RELU_GAIN, signal, "", 0)
    weights = plan.variances if plan else {}
    try:
        forward = _forward(study, weights)
        backward = _backward(study, weights, loss, measured.backward[-1])
    except VirgoError as error:
        return unknown, unknown, [f"no prediction: {error}"]
    return forward, backward, []


def _forward(study: Study, weights: Mapping[str, float]) -> list[float]:
    signal = study.node_signal
    if not extent(signal).magnitude:
        raise GraphError("data.x: the mean feature of every node is zero")
    shares = _shares(study, weights, signal, "forward")
    return theory.forward_variance(shares, squared_norm(signal) / study.inputs.num_nodes)


def _backward(
    study: Study, weights: Mapping[str, float], loss: Loss | None, measured: float
) -> list[float]:
    """From the logits under the default loss, otherwise from the gradient that was measured."""
    labelled = study.inputs.ones() if loss is not None else _labelled(study.inputs)
    classes = study.infer_classes(None) if loss is None else None
    shares = _shares(study, weights, labelled, "backward")
    output = measured
    if classes is not None:
        count = extent(labelled).total
        output = theory.logits_gradient_variance(study.inputs.num_nodes, classes, count)
    return theory.backward_variance(shares, output, classes)


def _labelled(inputs: Inputs) -> AnyVector:
    """One at each node that the default loss is taken over."""
    mask = counted_rows(inputs.data.get("train_mask"), inputs.num_nodes)
    return inputs.ones() if mask is None else vector_of(mask.to(inputs.device))


def _shares(
    study: Study, weights: Mapping[str, float], start: AnyVector, direction: Direction
) -> list[theory.LayerShares]:
    """Every layer's terms as the theorems need them: what the graph does, fan and variance."""
    carried = hops(study.trace.calls, study.operators, start, direction)

    def share(call: int, term: Term, norm: float) -> theory.TermShare:
        if term.weight is None:
            return theory.TermShare(norm)
        name = study.full_name(study.trace.calls[call], term.weight)
        weight = study.parameters[name].detach()
        fan = term.fans(weight.shape)[direction == "backward"]
        variance = weights.get(name)
        if variance is None:
            variance = float(weight.to(widest(weight)).square().mean())
        return theory.TermShare(norm, fan, variance)

    return [
        [
            [share(c, term, norm) for term, norm in zip(stage, carried.terms[c, s], strict=True)]
            for s, stage in enumerate(chain)
        ]
        for c, chain in enumerate(study.stages)
    ]

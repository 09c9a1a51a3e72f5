"""A measurement of any network: what each of its weighted parts returns, in one real pass.

Where :func:`virgo.measure` follows the message-passing layers, this follows the *units* of
:mod:`virgo.network.profile`: every layer, encoder and head. It needs no layer to be known, none to
pass messages, and stands checkpointed and reversible blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from virgo.diagnostics.layer_statistics import Layer, look
from virgo.diagnostics.measurement import (
    Measurement,
    PreparedModel,
    loss_name,
    remarks,
    update_ratios,
    weight_norms,
    with_ratios,
)
from virgo.errors import LayerError
from virgo.network.inputs import Inputs
from virgo.network.modules import arguments_of, float_tensors, hooked, received
from virgo.network.probe import Loss, gradient_norm, variance
from virgo.network.profile import UnitCall, as_in_training, is_recomputing, profile, units_of
from virgo.plans import Plan


def measure_units(subject: PreparedModel, plan: Plan | None, loss: Loss | None) -> Measurement:
    """What each weighted part of a model returns, and the gradient there; norms as in training.

    Args:
        subject: the model on its data, which come out as they went in.
        plan: measure the weights this plan draws instead of the model's own.
        loss: run backward from it; without one only the signal is measured.

    Returns:
        The measurement, whose layers are the input and one per call of a unit.

    Raises:
        LayerError: if no part with weights ran.
    """
    model = subject.model
    with as_in_training(model, weights=plan is not None):
        if plan is not None:
            plan.apply_(model)
        prepared = subject.inputs.prepared_for(model)
        probe = _UnitProbe(model, prepared)
        with hooked(probe.hooks()):
            seen = profile(model, prepared, subject.forward, loss, probe.units)
        norms = weight_norms(model)
    if not seen.calls:
        raise LayerError(
            f"{type(model).__name__}: expected a part with a matrix of weights to run, got none. "
            f"There is nothing to check; pass forward=lambda model, data: ... if one should run."
        )
    layers = [
        probe.layers[0],
        *(_with_variances(a, b) for a, b in zip(probe.layers[1:], seen.calls, strict=True)),
    ]
    gradients = {name: float(gradient_norm(value)) for name, value in probe.gradients.items()}
    return Measurement(
        layers=tuple(with_ratios(layers)),
        weight_gradients=gradients,
        loss=seen.loss,
        notes=(*subject.notes, *remarks(layers)),
        facts={"nodes": subject.inputs.num_nodes, "edges": int(prepared.data.num_edges or 0)},
        update_ratios=update_ratios(gradients, norms),
        loss_name=loss_name(loss),
    )


def _with_variances(layer: Layer, call: UnitCall) -> Layer:
    """The paper's variances where a tensor has them, and mean squares where it has none."""
    forward = call.signal if math.isnan(call.variance) and call.width > 1 else call.variance
    backward = call.gradient if math.isnan(call.gradient_variance) else call.gradient_variance
    if layer.non_finite > 0:
        forward = math.inf
    return replace(
        layer, forward=forward, backward=backward if call.width > 1 else math.nan, rows=call.rows
    )


class _UnitProbe:
    """Looks at what each unit returns, and gathers the gradients of parameters."""

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        self.model, self.inputs, self.units = model, inputs, units_of(model)
        self.layers: list[Layer] = []
        self.gradients: dict[str, Tensor] = {}

    def hooks(self) -> Iterator[RemovableHandle]:
        for path, unit in self.units.items():
            yield unit.register_forward_pre_hook(self._enter, with_kwargs=True)
            yield unit.register_forward_hook(self._leave(path))
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                yield parameter.register_hook(self._arrive(name))

    def _enter(self, unit: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if not self.layers:
            tensors = received(arguments_of(unit, args, kwargs))
            layer = look(0, "input", tensors, self.inputs)
            self.layers.append(replace(layer, forward=variance(tensors)))

    def _leave(self, path: str) -> Callable[..., None]:
        def hook(unit: nn.Module, args: object, output: object) -> None:
            tensors = [tensor for tensor in float_tensors(output) if tensor.numel()]
            if tensors and not is_recomputing():
                name = path or type(unit).__name__
                self.layers.append(look(len(self.layers), name, tensors, self.inputs))

        return hook

    def _arrive(self, name: str) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            before = self.gradients.get(name)
            value = gradient.detach().to_dense()  # embeddings may have sparse ones
            self.gradients[name] = value.clone() if before is None else before + value

        return hook

r"""Balanced weights for graph attention (:func:`virgo.literature.balanced` has the reference).

Attention vectors are zero, so attention starts as a mean. Hidden units come in pairs of opposite
sign (looks-linear, as mirrored weights here), and every unit's incoming and outgoing weights have
the same norm: the rows of one layer's weight and the columns of the next.

Assumptions: GAT or GATv2 layers that feed each other through an activation that is positively
homogeneous (ReLU, leaky ReLU), no residual weights. An odd hidden width has no pairs, and of heads
that are averaged opposite ones would cancel: then no layer has pairs, and the plan says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from virgo import literature
from virgo.errors import GraphError, LayerError
from virgo.layers.attention import value_and_scores
from virgo.network.modules import layers_of
from virgo.network.trace import Call, watch
from virgo.plans import Plan, Row
from virgo.related.units import PlanRequest, accounted

_HOMOGENEOUS = ("relu", "leaky_relu", "linear", "identity", "none")


def plan_gat_balanced(base: Plan, request: PlanRequest) -> Plan:
    """Zero attention and balanced norms for every GAT layer that ran."""
    if request.inputs.is_hetero:
        raise GraphError(
            "gat-balanced: expected one kind of node, got a HeteroData. Use lsuv or orthogonal."
        )
    _check(request.model)
    calls = list({call.path: call for call in _calls(request)}.values())
    weights = [_weight(request.model, call) for call in calls]
    widths = [request.model.get_parameter(name).size(0) for name in weights]
    hidden = widths[:-1]
    pairs = all(width % 2 == 0 for width in hidden) and not any(map(_averages, calls[:-1]))
    rows: list[Row] = []
    for index, (call, name, width) in enumerate(zip(calls, weights, widths, strict=True)):
        parameter = request.model.get_parameter(name)
        fan_in = int(parameter.shape[-1])
        row = Row(
            layer=call.path,
            weight=name,
            shape=tuple(parameter.shape),
            fan_in=fan_in,
            fan_out=width,
            ratio=1.0,
            variance=literature.balanced(fan_in, width, widths[0]),
            mirror_in=pairs and index > 0 and fan_in % 2 == 0,
            mirror_out=pairs and index < len(hidden),
        )
        if parameter.requires_grad and name not in [r.weight for r in rows]:
            rows.append(row)
    zeros = {
        f"{call.path}.{name}" if call.path else name
        for call in calls
        for name in (*_scores(call), *_biases(call))
    }
    plan = accounted(base, request.model, rows, zeros, {}, "not a GAT layer")
    return replace(plan, notes=(*plan.notes, *_notes(base, request, calls, rows, pairs)))


def _calls(request: PlanRequest) -> list[Call]:
    return watch(request.model, request.inputs, request.forward).calls


def _check(model: nn.Module) -> None:
    """Refuse a model that is not made of GAT layers."""
    for path, layer in layers_of(model).items():
        if value_and_scores(layer) is None:
            raise LayerError(
                f"{path or 'model'}: gat-balanced expects only GATConv and GATv2Conv layers, got "
                f"{type(layer).__name__}. Use lsuv or orthogonal."
            )
        if getattr(layer, "res", None) is not None:
            raise LayerError(
                f"{path or 'model'}: gat-balanced expects no residual weight, which its balance "
                f"leaves out, got {type(layer).__name__}(residual=True). Use lsuv."
            )


def _weight(model: nn.Module, call: Call) -> str:
    """The model's first name for the weight of a layer's values."""
    parts = value_and_scores(call.layer)
    assert parts is not None
    parameter = call.layer.get_parameter(parts[0])
    return next(name for name, p in model.named_parameters() if p is parameter)


def _averages(call: Call) -> bool:
    """Whether a layer returns the mean of several heads."""
    layer: Any = call.layer
    return layer.heads > 1 and not layer.concat


def _scores(call: Call) -> list[str]:
    parts = value_and_scores(call.layer)
    assert parts is not None
    return parts[1]


def _biases(call: Call) -> list[str]:
    return [name for name, _ in call.layer.named_parameters() if name.endswith("bias")]


def _notes(
    base: Plan, request: PlanRequest, calls: list[Call], rows: list[Row], pairs: bool
) -> list[str]:
    notes = []
    if not pairs:
        why = (
            "heads that are averaged have"
            if any(map(_averages, calls[:-1]))
            else "an odd hidden width has"
        )
        notes.append(f"{why} no pairs: balanced, but not linear at the start")
    if base.nonlinearity not in _HOMOGENEOUS:
        notes.append(
            f"{base.nonlinearity} is not homogeneous: balance is not conserved in training"
        )
    if len(rows) < len(calls):
        notes.append("a weight that is frozen or shared is not balanced with its neighbours")
    if any(call.through_linear for call in calls[1:]):
        notes.append("a Linear between two layers is left alone, which breaks their balance")
    return notes

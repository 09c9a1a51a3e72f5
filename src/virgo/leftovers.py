"""What a plan does not draw: biases it zeroes, and everything it leaves alone, with the reason."""

from __future__ import annotations

from dataclasses import replace

from virgo.layers import is_layer
from virgo.network.modules import is_linear, owner
from virgo.plans import Plan
from virgo.study import Study


def complete(made: Plan, study: Study) -> Plan:
    """Account for every parameter: add the biases, what is left alone and why, and the notes."""
    planned = {row.weight for row in made.rows}
    layers = {row.layer for row in made.rows}
    biases: list[str] = []
    left: list[tuple[str, str]] = []
    for name, parameter in study.model.named_parameters():
        if name in planned:
            continue
        layer = owner(name, layers)
        is_bias = layer is not None and name.endswith("bias") and _follows(name, planned, study)
        if not parameter.requires_grad:
            left.append((name, "frozen (requires_grad=False)"))
        elif is_bias and made.bias == "zero":
            biases.append(name)
        elif is_bias:
            left.append((name, "bias='keep'"))
        else:
            left.append((name, _reason(name, layer, study)))
    return replace(
        made,
        biases=tuple(biases),
        left_alone=tuple(left),
        notes=(*made.notes, *study.notes),
    )


def _follows(name: str, planned: set[str], study: Study) -> bool:
    """A bias of a layer or of a linear map inside it, not of a norm."""
    module = name.rpartition(".")[0]
    return f"{module}.weight" in planned or is_layer(study.model.get_submodule(module))


def _reason(name: str, layer: str | None, study: Study) -> str:
    path = name.rpartition(".")[0]
    module = study.model.get_submodule(path)
    kind = type(module).__name__
    if layer is not None:
        return f"not a weight of the layer's message passing ({kind})"
    unplanned = owner(path, study.layers)
    if unplanned is not None:
        ran = any(call.path == unplanned for call in study.trace.calls)
        return "its layer has nothing to plan" if ran else "its layer did not run"
    if is_linear(module):
        return "a linear layer outside message passing"
    return f"{kind} is not a message-passing layer"

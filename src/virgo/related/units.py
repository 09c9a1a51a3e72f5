"""Rows for every unit of a model, and every parameter accounted for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from virgo.balance import Unit, find_units
from virgo.errors import GraphError, LayerError
from virgo.network.graph_inputs import GraphInputs
from virgo.network.inputs import Forward, Inputs
from virgo.network.modules import fans_of
from virgo.network.probe import Loss
from virgo.plans import Plan, Row
from virgo.rules import Method, WithoutGraph


@dataclass(frozen=True)
class PlanRequest:
    """What a planner is given: a model on its data, the method, and how to run the model."""

    model: nn.Module
    inputs: Inputs
    method: Method
    forward: Forward | None = None
    loss: Loss | None = None

    def refuse_without_features(self) -> None:
        """For methods that run the model on its real input."""
        if isinstance(self.inputs, GraphInputs):
            raise GraphError(
                f"{self.method.name}: expected features, as it runs the model on them, got a graph "
                f"without any. Pass a Data with x, or use orthogonal, which runs nothing."
            )


def drawn_everywhere(base: Plan, request: PlanRequest) -> Plan:
    """The method's variance for every weight of every unit."""
    units = find_units(request.model, redraw=True)
    return planned(base, request, units)


def planned(base: Plan, request: PlanRequest, units: list[Unit]) -> Plan:
    """A plan that draws every weight of ``units`` by the method's rule on its fans.

    Args:
        base: without rows.
        request: the model and the method.
        units: of the model.

    Returns:
        The plan; biases of its units are set to zero unless they are to be kept.

    Raises:
        LayerError: there is nothing to draw.
    """
    rows = [
        _row(request, base.gain, unit.path, name)
        for unit in units
        for name in unit.weights
        if request.model.get_parameter(name).numel()
    ]
    if not rows:
        raise LayerError(
            f"{type(request.model).__name__}: expected a trainable weight, got none. Check "
            f"requires_grad."
        )
    names = {row.weight for row in rows}
    biases = {name for unit in units if names & set(unit.weights) for name in unit.biases}
    reasons = {name: reason for unit in units for name, reason in unit.left_alone}
    return accounted(base, request.model, rows, biases, reasons, "outside of every unit")


def accounted(
    base: Plan,
    model: nn.Module,
    rows: list[Row],
    zeros: set[str],
    reasons: dict[str, str],
    otherwise: str,
) -> Plan:
    """A plan with these rows that says of every other parameter what becomes of it.

    Args:
        base: without rows.
        model: whose parameters to account for.
        rows: the weights to draw.
        zeros: parameters to set to zero; a bias is left alone if biases are to be kept.
        reasons: why others are left alone.
        otherwise: the reason of all the rest.

    Returns:
        The plan.
    """
    planned = {row.weight for row in rows}
    biases, left_alone = [], []
    for name, parameter in model.named_parameters():
        if name in planned:
            continue
        is_kept = base.bias == "keep" and name.endswith("bias")
        if not parameter.requires_grad:
            left_alone.append((name, "frozen (requires_grad=False)"))
        elif name in zeros and not is_kept:
            biases.append(name)
        else:
            default = "bias='keep'" if name in zeros else otherwise
            left_alone.append((name, reasons.get(name, default)))
    return replace(base, rows=tuple(rows), biases=tuple(biases), left_alone=tuple(left_alone))


def _row(request: PlanRequest, gain: float, path: str, name: str) -> Row:
    shape = tuple(request.model.get_parameter(name).shape)
    owner = request.model.get_submodule(name.rpartition(".")[0])
    fan_in, fan_out, in_first = fans_of(owner, shape)
    variance = request.method.rule(WithoutGraph(fan_in, fan_out, gain))
    return Row(path, name, shape, fan_in, fan_out, 1.0, variance, in_first=in_first)

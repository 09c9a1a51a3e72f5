r"""The estimate from real passes: Virgo's target met with what the network does.

A bias-free ReLU network is positively homogeneous: scaling one layer's weights by ``c`` scales
everything after it by ``c`` and nothing before it. So one forward pass with any weights tells the
exact factor by which each layer must be scaled for the mean-over-nodes variance of its output to
equal that of its input, and one backward pass tells the same for gradients. Where the network is
not homogeneous (tanh, biases, norms, residuals, attention) the same step is repeated until
it no longer pays, and the plan records what was reached.

No knowledge of a layer is needed beyond its weights. ``h^l`` is what layer ``l + 1`` receives
(after activation and norm), for the last layer what it returns; everything in eval mode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from virgo import rules, theory
from virgo.devices import widest
from virgo.draws import PAIRED
from virgo.errors import GraphError, OptionError
from virgo.network.inputs import Forward, Inputs
from virgo.network.modules import fans_of, is_linear, preserved
from virgo.network.probe import DefaultLoss, Loss, Pass, observe, with_gradients
from virgo.network.trace import Trace
from virgo.plans import Plan, Row
from virgo.study import Study

MAX_PASSES = 12
_VISIBLE = 0.1  # change of a layer's log scale that shows whether its output responds


@dataclass
class _Unit:
    """The weights of one layer, scaled together."""

    path: str
    rows: list[Row]
    calls: list[int]
    degree: float  # how many of its weights a signal meets in turn
    scale: float = 1.0
    settled: str = ""  # why it is no longer adjusted
    history: list[tuple[float, float]] = field(default_factory=list)  # log scale, log ratio


def measure(
    base: Plan,
    method: rules.Method,
    study: Study,
    forward: Forward | None,
    loss: Loss | None,
    tolerance: float,
) -> Plan:
    """A plan whose variances come from passes through the model; the model is left as it was."""
    _check(base, method)
    model = study.model
    chosen_loss = loss or DefaultLoss(base.seed)
    results: dict[str, list[_Unit]] = {}
    passes = 0
    with preserved(model, weights=True):
        inputs = with_gradients(study.inputs.prepared_for(model))
        wants_gradient = "backward" in method.directions
        own = observe(model, inputs, forward, chosen_loss if wants_gradient else None)
        own_rms = {name: _mean_square(p) for name, p in study.parameters.items()}
        with torch.no_grad():
            for name in study.zero_scores:
                study.parameters[name].zero_()
        for direction in method.directions:
            units = _units(study, base)
            _draw(model, base, units)
            taken = _settle(model, inputs, study.trace, units, forward, None, tolerance, passes=2)
            if direction == "backward":
                taken += _settle(model, inputs, study.trace, units, forward, chosen_loss, tolerance)
            elif not all(unit.settled == "met" for unit in units):
                taken += _settle(model, inputs, study.trace, units, forward, None, tolerance)
            results[direction] = units
            passes += taken
        rows = _join(results, base.gain)
        _draw(model, base, [_Unit("", rows, [], 1.0)])
        final = observe(model, inputs, forward, chosen_loss if wants_gradient else None)
        passes += 1
    achieved, before = _profiles(final, wants_gradient), _profiles(own, wants_gradient)
    notes = [
        f"{unit.path}: {reason}"
        for units in results.values()
        for unit in units
        if (reason := _unmet(unit, tolerance))
    ]
    facts: dict[str, Any] = {"passes": passes, "tolerance": tolerance, "achieved": achieved}
    if wants_gradient:
        facts["loss"] = getattr(chosen_loss, "name", "given")
    if _worst(achieved, method) > 1.05 * _worst(before, method):
        notes.append("no scale was better than the model's own, which is kept")
        rows = [
            replace(row, variance=own_rms[row.weight], distribution="own")
            for row in rows
            if own_rms[row.weight] > 0
        ]
        base, facts = replace(base, bias="keep"), {**facts, "achieved": before}
    return replace(
        base, rows=tuple(rows), measured=facts, notes=(*base.notes, *dict.fromkeys(notes))
    )


def _mean_square(parameter: nn.Parameter) -> float:
    values = parameter.detach()
    return float(values.to(widest(values)).square().mean()) if parameter.numel() else 0.0


def _profiles(seen: Pass, wants_gradient: bool) -> dict[str, dict[str, Any]]:
    profiles = {"forward": _profile(seen.received, seen.returned)}
    if wants_gradient:
        profiles["backward"] = _profile(seen.grad_received, seen.grad_returned)
    return profiles


def _worst(profiles: dict[str, dict[str, Any]], method: rules.Method) -> float:
    """The widest range in the directions that a method keeps stable."""
    ranges = [profiles[direction]["range"] for direction in method.directions]
    return max(math.inf if value is None else float(value) for value in ranges)


def _check(base: Plan, method: rules.Method) -> None:
    """Refuse what has no target to measure."""
    if not method.directions:
        with_target = [n for n in rules.methods() if n != rules.AUTO and rules.find(n).directions]
        raise OptionError(
            f"estimate='measured': expected a method with a target to meet "
            f"({', '.join(with_target)}), got {method.name!r}. Use estimate='analytic'."
        )
    if base.variant == "released":
        raise OptionError(
            "estimate='measured': expected variant='theorem', got 'released'. The released code "
            "has no measured estimate."
        )


def _units(study: Study, base: Plan) -> list[_Unit]:
    """The layers that ran with the weights to scale in each, at Kaiming's variance to begin."""
    units: dict[str, _Unit] = {}
    taken: set[str] = set()
    for index, call in enumerate(study.trace.calls):
        if call.path in units:
            units[call.path].calls.append(index)
            continue
        chain = study.stages[index]
        if chain:
            named = [study.full_name(call, t.weight) for stage in chain for t in stage if t.weight]
            rows = [
                study.row(name, 1.0, 1.0)
                for name in dict.fromkeys(named)
                if name in study.uses and name not in taken
            ]
            degree = float(sum(any(t.weight for t in stage) for stage in chain))
        else:
            if base.distribution in PAIRED:
                raise OptionError(
                    f"{call.path}: distribution={base.distribution!r} needs to know the layer, got "
                    f"{type(call.layer).__name__}, which is not registered. Use another "
                    f"distribution or virgo.register_layer."
                )
            rows = [
                row for row in _matrices(study, call.path, call.layer) if row.weight not in taken
            ]
            degree = 1.0
        rows = [
            replace(row, variance=theory.virgo_forward(row.fan_in, gain=base.gain)) for row in rows
        ]
        taken |= {row.weight for row in rows}
        units[call.path] = _Unit(call.path, rows, [index], max(degree, 1.0))
        if not rows:
            units[call.path].settled = "no weights of its own to scale"
    return list(units.values())


def _matrices(study: Study, path: str, layer: nn.Module) -> list[Row]:
    """Every trainable matrix of a layer nobody described.

    Outside a Linear, a leading dimension of 1 marks a vector kept for broadcasting (attention).

    Returns:
        One row per matrix, of variance 1.
    """
    rows = []
    for name, parameter in layer.named_parameters():
        full = study.names[id(parameter)]
        owner = layer.get_submodule(name.rpartition(".")[0])
        is_vector = parameter.size(0) == 1 and not is_linear(owner) if parameter.dim() else True
        if parameter.dim() < 2 or is_vector or not parameter.requires_grad:
            continue
        if isinstance(owner, (nn.Embedding, nn.LayerNorm)):
            continue
        shape = tuple(parameter.shape)
        fan_in, fan_out, in_first = fans_of(owner, shape)
        rows.append(Row(path, full, shape, fan_in, fan_out, 1.0, 1.0, in_first=in_first))
    return rows


def _draw(model: nn.Module, base: Plan, units: list[_Unit]) -> None:
    """Put the weights a plan with these rows would draw into the model."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for unit in units:
            for row in unit.rows:
                parameter = parameters[row.weight]
                parameter.copy_(base.draw(row, base.seed, parameter))
            if base.bias == "zero":
                owners = {
                    o for row in unit.rows for o in (row.weight.rpartition(".")[0], row.layer)
                }
                for name, parameter in parameters.items():
                    owner, _, leaf = name.rpartition(".")
                    # DGL has a bias called h_bias
                    if owner in owners and leaf.endswith("bias") and parameter.requires_grad:
                        parameter.zero_()


def _settle(
    model: nn.Module,
    inputs: Inputs,
    trace: Trace,
    units: list[_Unit],
    forward: Forward | None,
    loss: Loss | None,
    tolerance: float,
    passes: int = MAX_PASSES,
) -> int:
    """Scale until every layer meets its target, gives no response, or passes run out."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for unit in units:
        unit.history.clear()
        unit.settled = "" if unit.rows else unit.settled
    best, best_scales, off = math.inf, {unit.path: unit.scale for unit in units}, math.inf
    for taken in range(1, passes + 1):
        seen = observe(model, inputs, forward, loss, rescale=loss is None and taken == 1)
        for call, value in zip(trace.calls, seen.received, strict=True):
            if math.isnan(value):
                raise GraphError(
                    f"{call.path}: expected numbers, received NaN. Check the features, the edge "
                    f"weights and the layers before it."
                )
        if loss is None:
            ratios = _ratios(seen.received, seen.used, seen.returned, trace)
        else:
            after = [
                _passed_on(i, seen.grad_received, seen.grad_returned, trace)
                for i in range(len(trace.calls))
            ]
            pairs = zip(seen.grad_received, after, strict=True)
            ratios = [_ratio(received, given) for received, given in pairs]
        off = max((_off(unit, ratios) for unit in units if unit.rows), default=0.0)
        if off < best:
            best, best_scales = off, {unit.path: unit.scale for unit in units}
        factors = [_next_factor(u, [ratios[i] for i in u.calls], tolerance) for u in units]
        _scale(parameters, units, factors)
        if all(factor == 1.0 for factor in factors):
            return taken
    if best < off:  # the passes ran out on a worse state than an earlier one
        _scale(parameters, units, [best_scales[unit.path] / unit.scale for unit in units])
    return passes


def _off(unit: _Unit, ratios: list[float]) -> float:
    """How far a layer is from its target, as a log."""
    mine = [ratios[i] for i in unit.calls]
    return abs(sum(map(math.log, mine)) / len(mine)) if all(r > 0 for r in mine) else math.inf


def _scale(parameters: dict[str, nn.Parameter], units: list[_Unit], factors: list[float]) -> None:
    with torch.no_grad():
        for unit, factor in zip(units, factors, strict=True):
            if factor != 1.0:
                unit.scale *= factor
                for row in unit.rows:
                    parameters[row.weight].mul_(factor)


def _unmet(unit: _Unit, tolerance: float) -> str:
    """Why a layer is not at its target; nothing if it is."""
    if unit.settled or not unit.history:
        return "" if unit.settled == "met" else unit.settled
    off = abs(unit.history[-1][1])
    if off <= math.log(tolerance):
        return ""
    return f"still x{math.exp(off):.3g} off its target after {len(unit.history)} passes"


def _passed_on(index: int, received: list[float], returned: list[float], trace: Trace) -> float:
    """``h^{l+1}``: what the next layer received, or what the last one returned."""
    after = [received[child] for child in trace.children[index]] or [returned[index]]
    if not all(value > 0 for value in after):
        return 0.0
    return math.exp(sum(map(math.log, after)) / len(after))


def _ratios(
    received: list[float], used: list[float], returned: list[float], trace: Trace
) -> list[float]:
    return [
        _ratio(_passed_on(i, received, returned, trace), used[i]) for i in range(len(trace.calls))
    ]


def _ratio(after: float, before: float) -> float:
    return after / before if before > 0 and after > 0 else math.nan


def _next_factor(unit: _Unit, ratios: list[float], tolerance: float) -> float:
    """By how much to scale a layer's weights, given how its output compares with its input."""
    if not unit.rows or unit.settled not in ("", "met"):
        return 1.0
    if not all(math.isfinite(r) for r in ratios):
        unit.settled = "no variance reaches it, so its weights stay at Kaiming's"
        return _revert(unit)
    log_ratio = sum(map(math.log, ratios)) / len(ratios)
    unit.history.append((math.log(unit.scale), log_ratio))
    if abs(log_ratio) <= 0.25 * math.log(tolerance):
        unit.settled = "met"
        return 1.0
    unit.settled = ""
    response = 2.0 * unit.degree
    if len(unit.history) > 1:
        (scale_before, ratio_before), (scale, ratio) = unit.history[-2:]
        if scale != scale_before:
            slope = (ratio - ratio_before) / (scale - scale_before)
            # a step too small to see against what the other layers did says nothing
            told = abs(scale - scale_before) > _VISIBLE
            if told and abs(slope) < 0.05 and len(unit.history) > 2:
                unit.settled = (
                    "its output does not respond to its scale (normalised), so its "
                    "weights stay at Kaiming's"
                )
                return _revert(unit)
            # the secant, kept near what a homogeneous layer would do
            response = min(max(slope, 0.25 * response), 2.0 * response)
    step = -log_ratio / response
    limit = math.log(1e6) if len(unit.history) == 1 else math.log(4.0)
    return math.exp(min(max(step, -limit), limit))


def _revert(unit: _Unit) -> float:
    return 1.0 / unit.scale


def _join(results: dict[str, list[_Unit]], gain: float) -> list[Row]:
    """The rows of one direction, or the harmonic mean of both directions' variances."""
    per_direction = [
        {
            row.weight: replace(row, variance=row.variance * unit.scale**2)
            for unit in units
            for row in unit.rows
        }
        for units in results.values()
    ]
    directions = list(results)
    rows = []
    for name, row in per_direction[0].items():
        variance = row.variance
        plain = gain / (row.fan_in if directions[0] == "forward" else row.fan_out)
        if len(per_direction) == 2:
            variance = theory.harmonic_mean(variance, per_direction[1][name].variance)
            plain = theory.harmonic_mean(gain / row.fan_in, gain / row.fan_out)
        if not (math.isfinite(variance) and variance > 0):
            raise GraphError(
                f"{name}: expected a finite positive variance, measured {variance}. Check the "
                f"features and the loss, or use estimate='analytic'."
            )
        rows.append(replace(row, variance=variance, ratio=variance / plain))
    return rows


def _profile(received: list[float], returned: list[float]) -> dict[str, Any]:
    """The variance of ``h^0 .. h^L`` and its range over layers; None where it has no number."""
    values = [*received, returned[-1]]
    sound = all(math.isfinite(v) and v > 0 for v in values)
    return {
        "variances": [v if math.isfinite(v) else None for v in values],
        "range": max(values) / min(values) if sound else None,
    }

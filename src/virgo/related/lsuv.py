r"""Layer-sequential unit variance.

Reference: Mishkin, Matas, *All you need is a good init*, ICLR 2016 (arXiv:1511.06422), with the
authors' code (ducha-aiki/LSUV-pytorch) where the text leaves a choice. Weights start orthonormal;
then, in the order in which layers run, each layer's weights are divided by the standard deviation
of its output, over all nodes and units together, until

.. math:: |\operatorname{Var} h_l - 1| < 0.1

or ten divisions were made. Their batch is the whole graph here, and their layer is a weighted part
of the model: inside a message-passing layer first every linear map by its own output, then the
layer as a whole by what it returns after its sum over neighbours, all its weights together.

Layers before the one at work are settled, so its input no longer changes and only the layer itself
is run again: the whole costs about three forward passes, whatever the depth. A layer that is used
several times is settled on its first use.

Assumption: a layer's output answers to the scale of its weights. Where it does not (a norm inside
the layer) or nothing reaches it, its weights stay orthonormal and the plan says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from virgo.balance import Unit, find_units
from virgo.devices import widest
from virgo.network.bare_weights import BareWeight, bare_weights_called
from virgo.network.inputs import run
from virgo.network.modules import float_tensors, hooked
from virgo.network.probe import call_users_code
from virgo.network.profile import as_in_training, units_of
from virgo.plans import Plan
from virgo.related.units import PlanRequest, planned

#: How far from one a variance may be, and how often a layer's weights are divided at most.
TOLERANCE, MOST_STEPS = 0.1, 10
Hook = Callable[[nn.Module, tuple[object, ...], dict[str, object], object], object]


def plan_lsuv(base: Plan, request: PlanRequest) -> Plan:
    """Orthonormal weights, scaled layer by layer; the model is left as it was."""
    request.refuse_without_features()
    units = find_units(request.model, redraw=True)
    start = planned(base, request, units)
    modules = units_of(request.model)
    settling = _Settling(request.model, modules, {row.weight for row in start.rows})
    with as_in_training(request.model, weights=True):
        inputs = request.inputs.prepared_for(request.model)
        start.apply_(request.model)
        bare = bare_weights_called(modules.values())
        with torch.no_grad(), bare, hooked(settling.hooks(units)):
            call_users_code(
                type(request.model).__name__,
                lambda: run(request.model, inputs.data, request.forward),
            )
    rows = [
        replace(row, variance=row.variance * factor**2, ratio=factor**2)
        for row in start.rows
        for factor in [settling.scales.get(row.weight, 1.0)]
    ]
    return replace(
        start,
        rows=tuple(rows),
        estimate="measured",
        measured={"passes": 1, "tolerance": TOLERANCE, "achieved": {}, **settling.facts()},
        notes=(*start.notes, *settling.notes(units)),
    )


@dataclass
class _Settling:
    """Weights in the middle of a pass, each layer scaled when it runs for the first time."""

    model: nn.Module
    modules: dict[str, nn.Module]  # the units
    planned: set[str]
    scales: dict[str, float] = field(default_factory=dict)
    variances: dict[str, float] = field(default_factory=dict)  # reached, by path
    steps: int = 0

    def hooks(self, units: list[Unit]) -> Iterator[RemovableHandle]:
        """One hook on every unit and on every module inside of it that owns some of its weights."""
        for unit in units:
            mine = [name for name in unit.weights if name in self.planned]
            whole = self.modules[unit.path]
            owners: dict[str, list[str]] = {}
            for name in mine if not isinstance(whole, BareWeight) else ():
                owners.setdefault(name.rpartition(".")[0], []).append(name)
            for path, names in {**owners, unit.path: mine}.items():
                if names:
                    module = whole if path == unit.path else self.model.get_submodule(path)
                    hook = self._settle(path, names)
                    yield module.register_forward_hook(hook, with_kwargs=True)

    def _settle(self, path: str, names: list[str]) -> Hook:
        def hook(
            module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object
        ) -> object:
            if path in self.variances:
                return None
            variance, response = _variance(output), 1.0
            self.variances[path] = variance
            for _ in range(MOST_STEPS):
                if abs(variance - 1) < TOLERANCE or not _is_sound(variance):
                    break
                factor = variance ** (-0.5 / response)
                self._scale(names, factor)
                output = module.forward(*args, **kwargs)
                before, variance = variance, _variance(output)
                if not _is_sound(variance):
                    self._scale(names, 1 / factor)
                    output = module.forward(*args, **kwargs)
                    break
                # two weights in a row answer twice as strongly as one
                answer = math.log(variance / before) / (2 * math.log(factor))
                response = min(max(answer, 0.25), 4.0)
                self.steps += 1
                self.variances[path] = variance
            return output

        return hook

    def _scale(self, names: list[str], factor: float) -> None:
        for name in names:
            self.model.get_parameter(name).mul_(factor)
            self.scales[name] = self.scales.get(name, 1.0) * factor

    def facts(self) -> dict[str, object]:
        return {
            "steps": self.steps,
            "variances": {
                path: value if math.isfinite(value) else None
                for path, value in self.variances.items()
            },
        }

    def notes(self, units: list[Unit]) -> list[str]:
        """Units that are not at unit variance, and why."""
        notes = []
        for unit in units:
            if not self.planned & set(unit.weights):
                continue
            variance, path = self.variances.get(unit.path), unit.path or "model"
            if variance is None:
                notes.append(f"{path}: it did not run, so its weights stay orthonormal")
            elif not _is_sound(variance):
                notes.append(f"{path}: its output has no variance to divide by")
            elif abs(variance - 1) >= TOLERANCE:
                notes.append(
                    f"{path}: its output's variance is {variance:.3g}, not 1: it does not "
                    f"answer to the scale of its weights"
                )
        return notes


def _variance(output: object) -> float:
    """Of all numbers in the first tensor that a layer returned, as in the authors' code."""
    tensors = [tensor for tensor in float_tensors(output) if tensor.numel() > 1]
    if not tensors:
        return math.nan
    return float(tensors[0].detach().to(widest(tensors[0])).var(unbiased=False))


def _is_sound(variance: float) -> bool:
    return math.isfinite(variance) and variance > 0

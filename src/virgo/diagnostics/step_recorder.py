"""One training step, seen through hooks: what a :class:`virgo.Monitor` records."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from virgo.network.modules import arguments_of, float_tensors, layers_of, received
from virgo.network.probe import Args, Kwargs, LayerHooks, gradient_norm, variance
from virgo.network.profile import is_recomputing


@dataclass(frozen=True)
class StepRecord:
    """One recorded step, input first: L+1 entries for L calls of layers.

    NaN marks values that do not exist (a gradient that was not computed, one neuron), infinity
    values that overflowed. ``gradient_norms`` are of the layers' parameters, as the last
    ``backward()`` of the step left them: accumulated, before any clipping, still scaled under a
    ``GradScaler``.
    """

    step: int
    names: tuple[str, ...]  # where each was taken: input, into <layer>, ..., output
    forward: list[float]
    backward: list[float]
    gradient_norms: dict[str, float]
    nodes: int  # rows that the first layer received

    def scalars(self) -> dict[str, float]:
        """The record as a logger takes it: tag -> number, without those that do not exist."""
        digits = len(str(len(self.names) - 1))
        tags = [f"{i:0{digits}d}_{_tag(name)}" for i, name in enumerate(self.names)]
        scalars: dict[str, float] = {}
        for kind, values in (("forward", self.forward), ("backward", self.backward)):
            scalars |= {f"virgo/{kind}/{tag}": v for tag, v in zip(tags, values, strict=True)}
        scalars |= {f"virgo/gradient_norm/{_tag(n)}": v for n, v in self.gradient_norms.items()}
        return {tag: value for tag, value in scalars.items() if not math.isnan(value)}


@dataclass
class _Signal:
    """``h^l`` on its way: its variance, and that of its gradient once it arrives."""

    name: str
    forward: float
    backward: float = math.nan
    handles: list[RemovableHandle] = field(default_factory=list)


class StepRecorder:
    """Records the next training pass of ``model`` through hooks; it never runs anything itself."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.paths = {id(layer): path for path, layer in layers_of(model).items()}
        self.signals: list[_Signal] = []
        self.output: _Signal | None = None
        self.norms: dict[str, Tensor] = {}
        self.nodes = 0
        self.running: nn.Module | None = None
        self.backward_began = False
        self.hooks = LayerHooks(model, self._enter, self._leave)
        inside = {id(p) for layer in layers_of(model).values() for p in layer.parameters()}
        for name, parameter in model.named_parameters():
            if id(parameter) in inside and parameter.requires_grad:
                self.norms[name] = torch.tensor(math.nan)
                hook = _norm_into(self.norms, name)
                self.hooks.handles.append(parameter.register_post_accumulate_grad_hook(hook))

    def remove(self) -> None:
        """Take every hook away, those on tensors included."""
        self.hooks.remove()

    def record(self, step: int) -> StepRecord | None:
        """What was recorded, or None if no layer ran in a training pass."""
        if self.output is None:
            return None
        signals = [*self.signals, self.output]
        return StepRecord(
            step=step,
            names=tuple(signal.name for signal in signals),
            forward=[signal.forward for signal in signals],
            backward=[signal.backward for signal in signals],
            gradient_norms={name: float(norm) for name, norm in self.norms.items()},
            nodes=self.nodes,
        )

    def _enter(self, layer: nn.Module, args: Args, kwargs: Kwargs) -> None:
        if self.backward_began or not self._is_training(layer):
            return
        tensors = received(arguments_of(layer, args, kwargs))
        path = self.paths[id(layer)] or type(layer).__name__
        if not self.signals:
            self.nodes = sum(map(_rows, tensors))
        self.signals.append(self._watch(f"into {path}" if self.signals else "input", tensors))
        self.running = layer

    def _leave(self, layer: nn.Module, args: Args, output: object) -> None:
        if self.running is not layer:
            return
        self.running = None
        if self.output is not None:  # it was not the last layer's
            for handle in self.output.handles:
                handle.remove()
        self.output = self._watch("output", float_tensors(output))

    def _is_training(self, layer: nn.Module) -> bool:
        """Whether this call is part of a training pass of the model, and not of a copy of it."""
        return (
            self.model.training
            and torch.is_grad_enabled()
            and id(layer) in self.paths
            and not torch.compiler.is_compiling()
            and not is_recomputing()
        )

    def _watch(self, name: str, tensors: list[Tensor]) -> _Signal:
        signal = _Signal(name, variance(tensors))
        watched = [tensor for tensor in tensors if tensor.requires_grad]
        rows, arrived = sum(map(_rows, watched)), set[int]()

        def arrive(index: int, gradient: Tensor) -> None:
            self.backward_began = True
            # of several backward passes through one forward pass, the first counts
            if index not in arrived:
                arrived.add(index)
                share = variance([gradient]) * _rows(gradient) / rows
                signal.backward = share + (0.0 if math.isnan(signal.backward) else signal.backward)

        signal.handles = self.hooks.on_gradients(watched, arrive)
        return signal


def _tag(name: str) -> str:
    """A name with the letters that every logger takes; relations have ``<`` and ``>`` in theirs."""
    return re.sub(r"[^\w.\-]", "_", name)


def _norm_into(norms: dict[str, Tensor], name: str) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        if parameter.grad is not None:
            norms[name] = gradient_norm(parameter.grad)

    return hook


def _rows(tensor: Tensor) -> int:
    return tensor.numel() // tensor.size(-1) if tensor.dim() and tensor.size(-1) else 0

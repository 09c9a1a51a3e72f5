"""One training step, seen through hooks: what a :class:`virgo.Monitor` records.

A :class:`Recorder` is made for one step and leaves when it ends. It never runs anything itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from virgo.network.modules import arguments_of, float_tensors, hooked, layers_of, received
from virgo.network.probe import node_variance, wide


@dataclass(frozen=True)
class Record:
    """One recorded step, input first: L+1 entries for L calls of layers.

    NaN is what does not exist (a gradient that nobody computed, one neuron); infinity is a value
    that overflowed. ``gradient_norms`` are of the layers' parameters, as the last ``backward()``
    of the step left them: accumulated, before any clipping, still scaled under a ``GradScaler``.
    """

    step: int
    names: tuple[str, ...]  # where each was taken: input, into <layer>, ..., output
    forward: list[float]
    backward: list[float]
    gradient_norms: dict[str, float]
    nodes: int  # rows that the first layer received

    def scalars(self) -> dict[str, float]:
        """What a logger takes: tag -> number, without those that do not exist."""
        digits = len(str(len(self.names) - 1))
        tags = [f"{i:0{digits}d}_{name.replace(' ', '_')}" for i, name in enumerate(self.names)]
        found: dict[str, float] = {}
        for kind, values in (("forward", self.forward), ("backward", self.backward)):
            found |= {f"virgo/{kind}/{tag}": v for tag, v in zip(tags, values, strict=True)}
        found |= {f"virgo/gradient_norm/{n}": v for n, v in self.gradient_norms.items()}
        return {tag: value for tag, value in found.items() if not math.isnan(value)}


@dataclass
class _Seen:
    """One tensor on its way: its variance, and that of its gradient once it arrives."""

    name: str
    forward: float
    backward: float = math.nan
    handles: list[RemovableHandle] = field(default_factory=list)

    def forget(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()


class Recorder:
    """Hooks on every layer of ``model`` that look at its next training pass."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.paths = {id(layer): path for path, layer in layers_of(model).items()}
        self.calls: list[_Seen] = []
        self.output: _Seen | None = None
        self.norms: dict[str, Tensor] = {}
        self.nodes = 0
        self.open: nn.Module | None = None  # the layer that is running
        self.over = False  # the backward pass has begun
        self.hooks = ExitStack()
        self.hooks.enter_context(hooked(self._hooks()))

    def _hooks(self) -> Iterator[RemovableHandle]:
        enter, leave = _Hook(self._enter), _Hook(self._leave)
        inside: set[int] = set()
        for layer in layers_of(self.model).values():
            yield layer.register_forward_pre_hook(enter, with_kwargs=True)
            yield layer.register_forward_hook(leave)
            inside |= {id(parameter) for parameter in layer.parameters()}
        for name, parameter in self.model.named_parameters():
            if id(parameter) in inside and parameter.requires_grad:
                self.norms[name] = torch.tensor(math.nan)
                yield parameter.register_post_accumulate_grad_hook(_norm_into(self.norms, name))

    def remove(self) -> None:
        """Take every hook away, those on tensors included."""
        self.hooks.close()
        for seen in (*self.calls, self.output):
            if seen is not None:
                seen.forget()

    def record(self, step: int) -> Record | None:
        """What was seen, or None if no layer ran in a training pass."""
        if self.output is None:
            return None
        rows = [*self.calls, self.output]
        return Record(
            step=step,
            names=tuple(seen.name for seen in rows),
            forward=[seen.forward for seen in rows],
            backward=[seen.backward for seen in rows],
            gradient_norms={name: float(norm) for name, norm in self.norms.items()},
            nodes=self.nodes,
        )

    def _enter(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.over or not self._is_training(layer):
            return
        tensors = received(arguments_of(layer, args, kwargs))
        path = self.paths[id(layer)] or type(layer).__name__
        if not self.calls:
            self.nodes = sum(map(_rows, tensors))
        self.calls.append(self._look(f"into {path}" if self.calls else "input", tensors))
        self.open = layer

    def _leave(self, layer: nn.Module, args: Any, output: Any) -> None:
        if self.open is not layer:
            return
        self.open = None
        if self.output is not None:
            self.output.forget()  # it was not the last layer's
        self.output = self._look("output", float_tensors(output))

    def _is_training(self, layer: nn.Module) -> bool:
        """Whether this call is part of a training pass of the model, and not of a copy of it."""
        return (
            self.model.training
            and torch.is_grad_enabled()
            and id(layer) in self.paths
            and not torch.compiler.is_compiling()
            and not _is_recomputing()
        )

    def _look(self, name: str, tensors: list[Tensor]) -> _Seen:
        seen = _Seen(name, variance(tensors))
        watched = [tensor for tensor in tensors if tensor.requires_grad]
        rows = sum(map(_rows, watched))
        seen.handles = [tensor.register_hook(self._arrival(seen, rows)) for tensor in watched]
        return seen

    def _arrival(self, seen: _Seen, rows: int) -> Callable[[Tensor], None]:
        """A hook for the gradient of one of the tensors that ``seen`` stands for."""
        pending = True

        def hook(gradient: Tensor) -> None:
            nonlocal pending
            self.over = True
            if pending:  # of several backward passes through one forward pass, the first
                pending = False
                share = variance([gradient]) * _rows(gradient) / rows
                seen.backward = share if math.isnan(seen.backward) else seen.backward + share

        return hook


class _Hook:
    """A hook that copies and pickles as nothing, so that a watched model can be saved or cloned."""

    def __init__(self, call: Callable[..., None]) -> None:
        self.call = call

    def __call__(self, *arguments: Any) -> None:
        self.call(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return _idle_hook, ()


def _idle_hook() -> Callable[..., None]:
    return _idle


def _idle(*arguments: Any) -> None:
    """What a watched layer's copy has in place of the hook."""


def _is_recomputing() -> bool:
    """Whether a backward pass runs: activation checkpointing calls layers again during it."""
    current = getattr(torch._C, "_current_graph_task_id", None)
    return current is not None and current() != -1


def _norm_into(norms: dict[str, Tensor], name: str) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        if parameter.grad is not None:
            gradient = parameter.grad.detach()
            norms[name] = torch.linalg.vector_norm(gradient, dtype=wide(gradient))

    return hook


def _rows(tensor: Tensor) -> int:
    return tensor.numel() // tensor.size(-1) if tensor.dim() and tensor.size(-1) else 0


def variance(tensors: list[Tensor]) -> float:
    """The variance of a layer, infinite where it overflows."""
    if any(not t.dim() or t.size(-1) < 2 for t in tensors) or not sum(t.size(0) for t in tensors):
        return math.nan
    value = node_variance(tensors)
    return math.inf if math.isnan(value) else value

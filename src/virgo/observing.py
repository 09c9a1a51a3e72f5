"""Run a model on its graph and record what passes through its layers, both ways.

Both the measured estimate and the diagnostics look through these eyes. ``h^l`` is what layer
``l + 1`` receives (after activation and norm), for the last layer what it returns; everything in
eval mode, as :func:`virgo.tracing.preserved` sets it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from .errors import LayerError
from .inputs import Forward, Inputs, run
from .sampling import generator_for
from .tracing import arguments_of, float_tensors, hooked, layers_of, received

Loss = Callable[[Any, Any], Tensor]


class Probe(Protocol):
    """Called with every layer's tensors as they pass: ``kind`` is received, returned or either
    with ``grad_`` before it."""

    def __call__(self, index: int, kind: str, tensors: list[Tensor]) -> None: ...


def node_variance(tensors: list[Tensor]) -> float:
    r"""The paper's variance of a layer: the mean over nodes of the variance over neurons.

    One neuron has no variance: NaN.

    >>> node_variance([torch.tensor([[1.0, 3.0], [2.0, 2.0]])])
    0.5
    """
    total, count = 0.0, 0
    for tensor in tensors:
        rows = tensor.detach().reshape(-1, tensor.size(-1))
        if rows.size(1) < 2:
            return math.nan
        for chunk in rows.split(1 << 16):  # float64, but never a second copy of it all
            total += float(chunk.double().var(1, unbiased=False).sum())
        count += rows.size(0)
    return total / count if count else math.nan


def second_moment(tensors: list[Tensor]) -> float:
    """The mean square over nodes and neurons."""
    total, count = 0.0, 0
    for tensor in tensors:
        total += float(tensor.detach().double().square().sum())
        count += tensor.numel()
    return total / count if count else math.nan


def spread(tensors: list[Tensor]) -> float:
    """The variance, or the second moment where the variance says nothing.

    One neuron has no variance, and the same number in every neuron (constant features) has
    variance zero though a signal is there.
    """
    variance = node_variance(tensors)
    return variance if variance > 0 or math.isinf(variance) else second_moment(tensors)


@dataclass
class Pass:
    """What one pass showed, call by call: variances received and returned, both directions."""

    received: list[float] = field(default_factory=list)
    used: list[float] = field(default_factory=list)  # received, after rescaling on the fly
    returned: list[float] = field(default_factory=list)
    grad_received: list[float] = field(default_factory=list)
    grad_returned: list[float] = field(default_factory=list)
    grad_weights: dict[str, float] = field(default_factory=dict)  # norm by parameter name
    loss: float = math.nan


def observe(
    model: nn.Module,
    inputs: Inputs,
    forward: Forward | None = None,
    loss: Loss | None = None,
    *,
    rescale: bool = False,
    statistic: Callable[[list[Tensor]], float] = spread,
    probe: Probe | None = None,
) -> Pass:
    """Run the model on its graph and record every layer's variances.

    Args:
        loss: also run backward from this loss and record the gradients' variances.
        rescale: bring what each layer receives back to the variance the first one received, so
            that weights far too large or small do not overflow on the way.
        statistic: the number to record of each layer's tensors.
        probe: shown every layer's tensors as they pass.
    """
    seen = Pass()
    open_calls: list[int] = []

    def enter(layer: nn.Module, args: Any, kwargs: Any) -> Any:
        tensors = received(arguments_of(layer, args, kwargs))
        index = len(seen.received)
        open_calls.append(index)
        variance = statistic(tensors)
        seen.received.append(variance)
        seen.used.append(variance)
        seen.returned.append(math.nan)
        seen.grad_received.append(math.nan)
        seen.grad_returned.append(math.nan)
        catch(tensors, index, "received", seen.grad_received)
        target = seen.used[0]
        if rescale and index and args and isinstance(args[0], Tensor):
            if 0 < variance < math.inf and target > 0:
                seen.used[index] = target
                return (args[0] * math.sqrt(target / variance), *args[1:]), kwargs
        return None

    def leave(layer: nn.Module, args: Any, output: Any) -> None:
        index = open_calls.pop()
        tensors = float_tensors(output)
        seen.returned[index] = statistic(tensors)
        catch(tensors, index, "returned", seen.grad_returned)

    def catch(tensors: list[Tensor], index: int, kind: str, into: list[float]) -> None:
        """Show the tensors to the probe, and their gradients when they arrive."""
        if probe is not None:
            probe(index, kind, tensors)
        watched = [t for t in tensors if loss is not None and t.requires_grad]
        gradients: list[Tensor] = []

        def arrive(gradient: Tensor) -> None:
            gradients.append(gradient.detach())
            if len(gradients) == len(watched):
                into[index] = statistic(gradients)
                if probe is not None:
                    probe(index, f"grad_{kind}", gradients)
                gradients.clear()

        for tensor in watched:
            tensor.register_hook(arrive)

    def hooks() -> Any:
        for layer in layers_of(model).values():
            yield layer.register_forward_pre_hook(enter, with_kwargs=True)
            yield layer.register_forward_hook(leave)

    context = torch.enable_grad() if loss is not None else torch.no_grad()
    with context, hooked(hooks()):
        output = run(model, inputs.data, forward)
        if loss is not None:
            value = loss(output, inputs.data)
            seen.loss = float(value.detach())
            named = {n: p for n, p in model.named_parameters() if p.requires_grad}
            features = [s["x"] for s in inputs.data.stores if _records_gradient(s.get("x"))]
            # returned to us, not accumulated in the parameters
            gradients = torch.autograd.grad(
                value, [*named.values(), *features], allow_unused=True
            )
            for name, gradient in zip(named, gradients, strict=False):
                seen.grad_weights[name] = 0.0 if gradient is None else float(gradient.norm())
    return seen


def _records_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def with_gradients(inputs: Inputs) -> Inputs:
    """Features that record a gradient, sharing memory with the originals where they are dense."""
    for store in inputs.data.stores:
        x = store.get("x")
        if isinstance(x, Tensor) and x.is_floating_point():
            dense = x if x.layout == torch.strided else x.to_dense()
            store["x"] = dense.detach().requires_grad_()
    return inputs


def default_loss(inputs: Inputs, seed: int) -> tuple[Loss, str]:
    """Cross-entropy on the labelled training nodes; without classes, a random linear probe."""

    def loss(output: Any, data: Any) -> Tensor:
        tensors = float_tensors(output)
        if not tensors:
            raise LayerError("loss: expected a model that returns a tensor. Pass loss=.")
        out, y = tensors[0], data.get("y") if not inputs.is_hetero else None
        classes = (
            isinstance(y, Tensor)
            and not y.is_floating_point()
            and out.dim() == 2
            and y.numel() == out.size(0)
            and int(y.max()) < out.size(1)
            and int(y.min()) >= 0
        )
        if classes and isinstance(y, Tensor):
            y = y.reshape(-1).long()
            mask = data.get("train_mask")
            if isinstance(mask, Tensor) and mask.shape == y.shape and bool(mask.any()):
                return functional.cross_entropy(out[mask].float(), y[mask])
            return functional.cross_entropy(out.float(), y)
        generator = generator_for(seed, "probe")
        total = out.new_zeros(())
        for tensor in tensors:
            probe = torch.randn(tensor.shape, generator=generator).to(tensor)
            total = total + (tensor * probe).sum() / tensor.size(0)
        return total

    y = None if inputs.is_hetero else inputs.data.get("y")
    has_classes = isinstance(y, Tensor) and not y.is_floating_point()
    return loss, "cross-entropy" if has_classes else "a random linear probe of the output"

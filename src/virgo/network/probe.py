"""Run a model on its graph and record what passes through its layers, both ways.

Both the measured estimate and the diagnostics look through these eyes. ``h^l`` is what layer
``l + 1`` receives (after activation and norm), for the last layer what it returns; everything in
eval mode, as :func:`virgo.network.modules.preserved` sets it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle
from torch_geometric.data import Data

from virgo.draws import generator_for
from virgo.errors import LayerError, VirgoError
from virgo.network.inputs import Forward, Inputs, run
from virgo.network.modules import arguments_of, float_tensors, hooked, layers_of, received

Loss = Callable[[Any, Any], Tensor]


class Probe(Protocol):
    """Called with every layer's tensors as they pass: ``kind`` is received or returned."""

    def __call__(self, index: int, kind: str, tensors: list[Tensor]) -> None: ...


def node_variance(tensors: list[Tensor]) -> float:
    r"""The paper's variance of a layer: the mean over nodes of the variance over neurons.

    One neuron has no variance: NaN.

    >>> node_variance([torch.tensor([[1.0, 3.0], [2.0, 2.0]])])
    0.5
    """
    total, count = 0.0, 0
    for tensor in tensors:
        if not tensor.dim() or tensor.size(-1) < 2:
            return math.nan
        sparse = tensor.layout != torch.strided
        total += _sparse_sum(tensor) if sparse else _dense_sum(tensor)
        count += tensor.size(0) if sparse else tensor.numel() // tensor.size(-1)
    return total / count if count else math.nan


def wide(tensor: Tensor) -> torch.dtype:
    """The widest floating type of a tensor's device."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def _dense_sum(tensor: Tensor) -> float:
    """The sum over rows of the variance over columns, in pieces that stay in a cache."""
    rows = tensor.detach().reshape(-1, tensor.size(-1))
    piece = 1 << (16 if tensor.device.type == "cpu" else 24)
    total = torch.zeros((), dtype=wide(tensor), device=tensor.device)
    for chunk in torch.split(rows, max(1, piece // rows.size(1))):
        copied = chunk.to(total.dtype, copy=True)
        flat = copied.sub_(copied.mean(1, keepdim=True)).reshape(-1)
        total += torch.dot(flat, flat)
    return float(total) / rows.size(1)


def _sparse_sum(tensor: Tensor) -> float:
    coo = tensor.detach().to_sparse_coo().coalesce()
    values, width = coo.values().to(wide(tensor)), tensor.size(1)
    sums = values.new_zeros(tensor.size(0)).index_add_(0, coo.indices()[0], values)
    return float(values.square().sum() / width - (sums / width).square().sum())


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
    placed: list[RemovableHandle] = []  # on tensors, of which the features outlive the pass

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
        usable = 0 < variance < math.inf and target > 0
        if rescale and usable and index and args and isinstance(args[0], Tensor):
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
        expected = len(watched)  # a hook that held its own tensor would keep the pass in memory
        gradients: list[Tensor] = []

        def arrive(gradient: Tensor) -> None:
            gradients.append(gradient.detach())
            into[index] = statistic(gradients)  # of those that arrive: some kinds of node may not
            if len(gradients) == expected:
                gradients.clear()

        placed.extend(tensor.register_hook(arrive) for tensor in watched)

    def hooks() -> Any:
        for layer in layers_of(model).values():
            yield layer.register_forward_pre_hook(enter, with_kwargs=True)
            yield layer.register_forward_hook(leave)

    context = torch.enable_grad() if loss is not None else torch.no_grad()
    with context, hooked(hooks()):
        output = _called(type(model).__name__, lambda: run(model, inputs.data, forward))
        if loss is not None:
            value = _called("loss", lambda: loss(output, inputs.data))
            seen.loss = float(value.detach())
            named = {n: p for n, p in model.named_parameters() if p.requires_grad}
            features = [s["x"] for s in inputs.data.stores if _records_gradient(s.get("x"))]
            # returned to us, not accumulated in the parameters
            gradients = torch.autograd.grad(value, [*named.values(), *features], allow_unused=True)
            for name, gradient in zip(named, gradients, strict=False):
                seen.grad_weights[name] = 0.0 if gradient is None else _norm(gradient)
    for handle in placed:
        handle.remove()
    return seen


def _called(what: str, call: Callable[[], Any]) -> Any:
    """The user's own code, whose errors are passed on with a word on where they came from."""
    try:
        return call()
    except VirgoError:
        raise
    except Exception as error:
        raise LayerError(
            f"{what}: expected a pass on the whole graph, got {type(error).__name__}: {error}. "
            f"Check forward= and loss=, and the model on this data."
        ) from error


def _norm(gradient: Tensor) -> float:
    return float(torch.linalg.vector_norm(gradient, dtype=wide(gradient)))


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


class DefaultLoss:
    """Cross-entropy on the labelled training nodes; without classes, a random linear probe.

    ``name`` says which of the two it was, once it has been called.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.name = seed, "not called yet"

    def __call__(self, output: Any, data: Any) -> Tensor:
        tensors = float_tensors(output)
        if not tensors:
            raise LayerError("loss: expected a model that returns a tensor. Pass loss=.")
        y = data.get("y") if isinstance(data, Data) else None
        if isinstance(y, Tensor) and fits_classes(tensors[0], y):
            self.name = "cross-entropy"
            return self._cross_entropy(tensors[0], y.reshape(-1).long(), data.get("train_mask"))
        self.name = "a random linear probe of the output"
        generator = generator_for(self.seed, "probe")
        total = tensors[0].new_zeros(())
        for tensor in tensors:
            probe = torch.randn(tensor.shape, generator=generator, device="cpu").to(tensor)
            total = total + (tensor * probe).sum() / tensor.size(0)
        return total

    def _cross_entropy(self, logits: Tensor, y: Tensor, mask: Any) -> Tensor:
        if isinstance(mask, Tensor) and mask.shape == y.shape and bool(mask.any()):
            return functional.cross_entropy(logits[mask].float(), y[mask])
        return functional.cross_entropy(logits.float(), y)


def fits_classes(output: Tensor, y: Any) -> bool:
    """Whether ``y`` holds one class per row of ``output``."""
    return (
        isinstance(y, Tensor)
        and not y.is_floating_point()
        and output.dim() == 2
        and y.numel() == output.size(0) > 0
        and int(y.max()) < output.size(1)
        and int(y.min()) >= 0
    )

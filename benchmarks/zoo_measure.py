"""Independent measurement: what signal and gradient do over a network's layers.

Nothing here comes from Virgo, so it can be held against what Virgo says of the same network.

A *layer* is an outermost message-passing module, or any other module outside of those that itself
owns a trainable matrix (embeddings apart). Its *signal* is the mean square of everything it
returns, its *gradient* the mean square of the loss's gradient at the same numbers. A *range* is
the largest over the smallest of those over all layers; infinite where a layer is exactly zero or
not finite. The pass is one of training, so batch norms use the batch, but without dropout.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch_geometric.data import HeteroData
from torch_geometric.loader import DataLoader

Forward = Callable[[nn.Module, Any], Any]


def call(model: nn.Module, data: Any, forward: Forward | None) -> Any:
    """Call a model as its user would: by the names of its arguments, on a loader's first batch."""
    data = first_batch(data)
    if forward is not None:
        return forward(model, data)
    if isinstance(model, gnn.Sequential):
        return model(*[data[name] for name in model.signature.param_dict])
    uncompiled = getattr(model, "_orig_mod", model)
    parameters = inspect.signature(uncompiled.forward).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    required = [p.name for p in named if p.default is p.empty]
    if required in (["data"], ["batch"]):
        return model(data)
    given = {p.name: _attribute(data, p.name) for p in named}
    return model(**{k: v for k, v in given.items() if v is not None or k in required})


def first_batch(data: Any) -> Any:
    """What a model is called on: a loader's first batch, otherwise the data."""
    is_loader = isinstance(data, (DataLoader, torch.utils.data.DataLoader))
    return next(iter(data)) if is_loader else data


def _attribute(data: Any, name: str) -> Any:
    if isinstance(data, HeteroData):
        return data.collect(name.removesuffix("_dict"), True) or None
    return data.get(name)


def natural_loss(output: Any, data: Any, draw: torch.Generator) -> Tensor:
    """Cross-entropy, BCE or squared error where the labels fit; a random linear probe otherwise."""
    if isinstance(data, HeteroData):
        data = data["paper"]
        output = output["paper"] if isinstance(output, dict) else output
    out = next(t for t in tensors(output) if t.is_floating_point() and t.requires_grad)
    on_edges = "edge_label" in data
    labels = data["edge_label"] if on_edges else data.get("y")
    mask = None if on_edges else data.get("train_mask")
    if labels is None:
        return probe(out, draw)
    if labels.is_floating_point() and out.numel() == labels.numel():
        binary = bool(((labels == 0) | (labels == 1)).all())
        loss = functional.binary_cross_entropy_with_logits if binary else functional.mse_loss
        out = out.view_as(labels)
    elif out.shape[:-1] == labels.shape and out.size(-1) > int(labels.max()):
        loss = functional.cross_entropy
    else:
        return probe(out, draw)
    if mask is not None:
        out, labels = out[mask], labels[mask]
    if loss is functional.cross_entropy:
        out, labels = out.flatten(0, -2), labels.flatten()
    return loss(out, labels.to(out.dtype) if labels.is_floating_point() else labels)


def probe(out: Tensor, draw: torch.Generator) -> Tensor:
    """A random linear function of the output."""
    return (out * torch.randn(out.shape, generator=draw, dtype=out.dtype)).mean()


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in a module's output, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors(part)


@dataclass
class Layer:
    """One call of one layer: sums of squares and how many numbers they are of."""

    name: str
    rows: int
    signal: float
    count: int
    gradient: float = 0.0
    gradient_count: int = 0


@dataclass(frozen=True)
class Ranges:
    """Largest over smallest, over all layers; ``alike`` compares gradients of as many rows only.

    Pooling divides a gradient by the number of nodes it averages whatever the weights are, so
    layers before and after it differ by that factor at best.
    """

    forward: float
    gradient: float
    alike: float
    layers: int

    @property
    def wider(self) -> float:
        return max(self.forward, self.gradient)


def watched(model: nn.Module) -> dict[str, nn.Module]:
    """The layers of ``model`` by name."""
    inside: set[int] = set()
    layers = {}
    for name, module in model.named_modules():
        if id(module) in inside:
            continue
        is_layer = isinstance(module, gnn.MessagePassing) or _is_dense_layer(module)
        if is_layer:
            inside.update(id(part) for part in module.modules())
        if is_layer or (_owns_matrix(module) and not isinstance(module, nn.Embedding)):
            layers[name] = module
    return layers


def _is_dense_layer(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__module__.startswith("torch_geometric.nn.dense.") and kind.__name__.endswith(
        "Conv"
    )


def _owns_matrix(module: nn.Module) -> bool:
    return any(p.requires_grad and p.dim() > 1 for p in module.parameters(recurse=False))


class Recorder(TorchFunctionMode):
    """Every call of every layer, in order; gradients arrive with the backward pass.

    A product with a weight outside of any layer's call is one too: ``x @ lin.weight.t()`` in
    ``forward`` itself (as PMLP has it) runs no hook.
    """

    PRODUCTS = (
        torch.matmul,
        torch.mm,
        Tensor.matmul,
        Tensor.mm,
        Tensor.__matmul__,
        functional.linear,
    )

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.calls: list[Layer] = []
        self.names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
        self.running = 0

    def before(self, *_: Any) -> None:
        self.running += 1

    def after(self, name: str, _: nn.Module, __: Any, output: Any) -> None:
        self.running -= 1
        self.record(name, output)

    def record(self, name: str, output: Any) -> None:
        values = [t for t in tensors(output) if t.is_floating_point() and t.numel()]
        if not values:
            return
        squares = sum(t.detach().double().square().sum().item() for t in values)
        layer = Layer(name, values[0].size(0), squares, sum(t.numel() for t in values))
        self.calls.append(layer)

        def backward(gradient: Tensor) -> None:
            layer.gradient += gradient.detach().double().square().sum().item()
            layer.gradient_count += gradient.numel()

        for value in values:
            if value.requires_grad:
                value.register_hook(backward)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func in self.PRODUCTS and not self.running:
            factors = [t if t._base is None else t._base for t in tensors(args)]
            weights = [self.names[id(t)] for t in factors if id(t) in self.names]
            if weights:
                self.record(weights[0], output)
        return output


@contextmanager
def recorded(model: nn.Module) -> Iterator[list[Layer]]:
    """What a :class:`Recorder` hears; its hooks are gone afterwards."""
    recorder = Recorder(model)
    with ExitStack() as stack:
        for name, module in watched(model).items():
            stack.callback(module.register_forward_pre_hook(recorder.before).remove)
            hook = module.register_forward_hook(partial(recorder.after, name))
            stack.callback(hook.remove)
        stack.enter_context(recorder)
        yield recorder.calls


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Dropout as the identity, whether a module, a function or an option of attention."""

    def identity(x: Tensor, *_: Any, **__: Any) -> Tensor:
        return x

    with ExitStack() as stack:
        stack.enter_context(patch.object(functional, "dropout", identity))
        for module in model.modules():
            if isinstance(getattr(module, "dropout", None), float):
                stack.enter_context(patch.object(module, "dropout", 0.0))
        yield


def measure(model: nn.Module, data: Any, forward: Forward | None, seed: int) -> Ranges:
    """The ranges of one training pass. Changes the buffers of the model, not its weights."""
    bare = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    batch = first_batch(data)
    with torch.random.fork_rng(devices=[]):
        materialise(bare, batch, forward, seed)
        torch.manual_seed(seed)
        bare.train()
        bare.zero_grad()
        with without_dropout(bare), recorded(bare) as calls:
            output = call(bare, batch, forward)
            loss = natural_loss(output, batch, torch.Generator().manual_seed(seed))
            loss.backward()
    return ranges(calls)


def is_lazy(model: nn.Module) -> bool:
    return any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters())


def materialise(model: nn.Module, data: Any, forward: Forward | None, seed: int) -> None:
    """Give lazy layers their shapes."""
    if is_lazy(model):
        torch.manual_seed(seed)
        model.eval()
        with torch.no_grad():
            call(model, data, forward)


def ranges(calls: list[Layer]) -> Ranges:
    """The ranges of what was recorded."""
    reached = [c for c in calls if c.gradient_count]
    gradients = [(c.rows, c.gradient / c.gradient_count) for c in reached]
    alike = [
        spread([value for rows, value in gradients if rows == wanted])
        for wanted in {rows for rows, _ in gradients}
    ]
    forward = spread([c.signal / c.count for c in calls])
    return Ranges(forward, spread([g for _, g in gradients]), max([forward, *alike]), len(calls))


def spread(values: list[float]) -> float:
    """The largest over the smallest; infinite where one is zero or not finite."""
    if not values:
        return 1.0
    low, high = min(values), max(values)
    return high / low if low > 0 and all(map(math.isfinite, values)) else math.inf

"""Look at a model from outside: hooks on its layers, and what passes through them both ways.

:class:`LayerHooks` is the one place where hooks are put on layers and on tensors for their
gradients, and removed again; planning and :func:`virgo.measure` use it through :func:`observe`,
:class:`virgo.Monitor` directly. ``h^l`` is what layer ``l + 1`` receives (after activation and
norm), for the last layer what it returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle
from torch_geometric.data import Data

from virgo.devices import widest
from virgo.draws import generator_for
from virgo.errors import LayerError, VirgoError, said_by
from virgo.network.dgl_graphs import is_dgl_graph
from virgo.network.inputs import Forward, Inputs, counted_rows, run
from virgo.network.modules import arguments_of, float_tensors, layers_of, received, refuse_scattered
from virgo.network.side_effects import noticed

Loss = Callable[[Any, Any], Tensor]
Statistic = Callable[[list[Tensor]], float]
#: Called with the index of a layer's call, "received" or "returned", and the tensors.
Probe = Callable[[int, str, list[Tensor]], None]
Args = tuple[object, ...]
Kwargs = dict[str, object]
T = TypeVar("T")


def node_variance(tensors: list[Tensor]) -> float:
    r"""The paper's variance of a layer: the mean over nodes of the variance over neurons.

    Returns:
        The variance; NaN for a single neuron, which has none.

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


def _dense_sum(tensor: Tensor) -> float:
    """The sum over rows of the variance over columns, in pieces that stay in a cache."""
    rows = tensor.detach().reshape(-1, tensor.size(-1))
    piece = 1 << (16 if tensor.device.type == "cpu" else 24)
    total = torch.zeros((), dtype=widest(tensor), device=tensor.device)
    for chunk in torch.split(rows, max(1, piece // rows.size(1))):
        copied = chunk.to(total.dtype, copy=True)
        flat = copied.sub_(copied.mean(1, keepdim=True)).reshape(-1)
        total += torch.dot(flat, flat)
    return float(total) / rows.size(1)


def _sparse_sum(tensor: Tensor) -> float:
    coo = tensor.detach().to_sparse_coo().coalesce()
    values, width = coo.values().to(widest(tensor)), tensor.size(1)
    sums = values.new_zeros(tensor.size(0)).index_add_(0, coo.indices()[0], values)
    return float(values.square().sum() / width - (sums / width).square().sum())


def second_moment(tensors: list[Tensor]) -> float:
    """The mean square over nodes and neurons."""
    total, count = 0.0, 0
    for tensor in tensors:
        total += float(tensor.detach().to(widest(tensor)).square().sum())
        count += tensor.numel()
    return total / count if count else math.nan


def spread(tensors: list[Tensor]) -> float:
    """The variance, or the second moment where there is none.

    Returns:
        The second moment for a single neuron, and for the same number in every neuron (constant
        features), whose variance is zero though there is a signal.
    """
    variance = node_variance(tensors)
    return variance if variance > 0 or math.isinf(variance) else second_moment(tensors)


def variance(tensors: list[Tensor]) -> float:
    """:func:`node_variance`, infinite where it overflows; NaN where there is none."""
    if any(not t.dim() or t.size(-1) < 2 for t in tensors) or not sum(t.size(0) for t in tensors):
        return math.nan
    value = node_variance(tensors)
    return math.inf if math.isnan(value) else value


def gradient_norm(gradient: Tensor) -> Tensor:
    """The Euclidean norm of a gradient, in the widest type of its device."""
    real = gradient.detach().abs() if gradient.is_complex() else gradient.detach()
    norm: Tensor = torch.linalg.vector_norm(real, dtype=widest(gradient))
    return norm


class LayerHooks:
    """Hooks on the layers of a model and on tensors that pass through them, removed together.

    Args:
        model: whose outermost message-passing layers to look at.
        enter: called with a layer, its positional and its keyword arguments before it runs; may
            return other arguments.
        leave: called with a layer, its positional arguments and what it returned.
    """

    def __init__(
        self,
        model: nn.Module,
        enter: Callable[[nn.Module, Args, Kwargs], tuple[Args, Kwargs] | None],
        leave: Callable[[nn.Module, Args, object], None],
    ) -> None:
        self.handles: list[RemovableHandle] = []
        for layer in layers_of(model).values():
            self.handles.append(layer.register_forward_pre_hook(_Hook(enter), with_kwargs=True))
            self.handles.append(layer.register_forward_hook(_Hook(leave)))

    def __enter__(self) -> LayerHooks:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def on_gradients(
        self, tensors: Sequence[Tensor], arrive: Callable[[int, Tensor], None]
    ) -> list[RemovableHandle]:
        """Call ``arrive`` with a position in ``tensors`` and its gradient when that is computed.

        The hooks hold no tensor, which would keep a whole pass in memory.

        Returns:
            The handles, for hooks that are to be removed before the others.
        """
        handles = [
            tensor.register_hook(lambda gradient, i=i: arrive(i, gradient.detach()))
            for i, tensor in enumerate(tensors)
        ]
        self.handles += handles
        return handles

    def remove(self) -> None:
        """Take every hook away, those on tensors included."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()


class _Hook:
    """A hook that copies and pickles as nothing, so that a watched model can be saved or cloned."""

    def __init__(self, call: Callable[..., object]) -> None:
        self.call = call

    def __call__(self, *arguments: object) -> object:
        return self.call(*arguments)

    def __reduce__(self) -> tuple[object, ...]:
        return _Hook, (_idle,)


def _idle(*arguments: object) -> None:
    """What a watched layer's copy has in place of the hook."""


@dataclass
class Pass:
    """One pass, call by call: variances received and returned, in both directions."""

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
    statistic: Statistic = spread,
    probe: Probe | None = None,
) -> Pass:
    """Run the model on its graph and record every layer's variances.

    Args:
        model: in the mode it is to run in, see :func:`virgo.network.modules.preserved`.
        inputs: the graph, on the model's device.
        forward: ``lambda model, data: ...`` for models called in an unusual way.
        loss: also run backward from this loss and record the gradients' variances.
        rescale: bring what each layer receives back to the variance the first one received, so
            that weights far too large or small do not overflow on the way.
        statistic: the number to record of each layer's tensors.
        probe: shown every layer's tensors as they pass.

    Returns:
        What was recorded, one entry per call of a layer.
    """
    observer = _Observer(statistic, probe, rescale, backward=loss is not None)
    context = torch.enable_grad() if loss is not None else torch.no_grad()
    with context, LayerHooks(model, observer.enter, observer.leave) as observer.hooks:
        name = type(model).__name__
        with noticed(model, inputs.data, forward):
            output = call_users_code(name, lambda: run(model, inputs.data, forward), model)
        if loss is not None:
            value = call_users_code("loss", lambda: loss(output, inputs.data))
            observer.seen.loss = float(value.detach())
            observer.seen.grad_weights = _backward(value, model, inputs)
    return observer.seen


class _Observer:
    """Fills a :class:`Pass` from the hooks of one pass."""

    hooks: LayerHooks

    def __init__(
        self, statistic: Statistic, probe: Probe | None, rescale: bool, backward: bool
    ) -> None:
        self.statistic, self.probe = statistic, probe
        self.rescale, self.backward = rescale, backward
        self.seen = Pass()
        self.running: list[int] = []  # calls that have not returned, outermost first

    def enter(self, layer: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        seen, index = self.seen, len(self.seen.received)
        tensors = received(arguments_of(layer, args, kwargs))
        self.running.append(index)
        variance = self.statistic(tensors)
        seen.received.append(variance)
        seen.used.append(variance)
        for values in (seen.returned, seen.grad_received, seen.grad_returned):
            values.append(math.nan)
        self._pass_on(tensors, index, "received", seen.grad_received)
        target = seen.used[0]
        usable = 0 < variance < math.inf and target > 0
        at = int(bool(args) and is_dgl_graph(args[0]))  # DGL's layers take the graph first
        features = args[at] if len(args) > at else None
        if self.rescale and usable and index and isinstance(features, Tensor):
            seen.used[index] = target
            scaled = features * math.sqrt(target / variance)
            return (*args[:at], scaled, *args[at + 1 :]), kwargs
        return None

    def leave(self, layer: nn.Module, args: Args, output: object) -> None:
        index = self.running.pop()
        tensors = float_tensors(output)
        self.seen.returned[index] = self.statistic(tensors)
        self._pass_on(tensors, index, "returned", self.seen.grad_returned)

    def _pass_on(self, tensors: list[Tensor], index: int, kind: str, into: list[float]) -> None:
        """Show the tensors to the probe, and record their gradients when they arrive."""
        if self.probe is not None:
            self.probe(index, kind, tensors)
        watched = [t for t in tensors if self.backward and t.requires_grad]
        expected, gradients = len(watched), list[Tensor]()

        def arrive(_: int, gradient: Tensor) -> None:
            gradients.append(gradient)
            # of those that arrive: the loss may not depend on some kinds of node
            into[index] = self.statistic(gradients)
            if len(gradients) == expected:
                gradients.clear()

        self.hooks.on_gradients(watched, arrive)


def _backward(value: Tensor, model: nn.Module, inputs: Inputs) -> dict[str, float]:
    """Run backward without accumulating in the parameters; their gradients' norms by name."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    features = [x for store in inputs.data.stores if isinstance(x := store.get("x"), Tensor)]
    leaves = [*named.values(), *(x for x in features if x.requires_grad)]
    gradients = torch.autograd.grad(value, leaves, allow_unused=True)
    return {
        name: 0.0 if gradient is None else float(gradient_norm(gradient))
        for name, gradient in zip(named, gradients, strict=False)
    }


def call_users_code(what: str, call: Callable[[], T], model: nn.Module | None = None) -> T:
    """Call the user's own code; its errors are passed on with where they came from.

    Args:
        what: is called.
        call: calls it.
        model: looked at for the reason, if it is one that is called.

    Returns:
        What the call does.

    Raises:
        LayerError: the call raised something.
    """  # noqa: DOC501  (a VirgoError is passed on)
    try:
        return call()
    except VirgoError:
        raise
    except Exception as error:
        if model is not None:
            refuse_scattered(model, error)
        raise LayerError(
            f"{what}: expected a pass on the whole graph, got {said_by(error)}. "
            f"Check the model on this data, and pass forward=lambda model, data: ... if it is "
            f"called in its own way, loss=lambda output, data: ... if its loss is its own."
        ) from error


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

    def _cross_entropy(self, logits: Tensor, y: Tensor, mask: object) -> Tensor:
        picked = counted_rows(mask, y.numel())
        if picked is not None:
            return functional.cross_entropy(logits[picked].float(), y[picked])
        return functional.cross_entropy(logits.float(), y)


def fits_classes(output: Tensor, y: object) -> bool:
    """Whether ``y`` holds one class per row of ``output``."""
    return (
        isinstance(y, Tensor)
        and not y.is_floating_point()
        and output.dim() == 2
        and y.numel() == output.size(0) > 0
        and int(y.max()) < output.size(1)
        and int(y.min()) >= 0
    )

"""Signal and gradient over every weighted part of a network, in one real pass.

A *unit* is an outermost message-passing layer, another module that owns a trainable matrix itself
(an encoder, a head, a hand-written graph convolution), or a matrix that no layer holds. Its
*signal* is the mean square of what it returns, its *gradient* the mean square of the loss's
gradient there. The pass is that of training: norms use the statistics of the batch, and dropout is
off, so that the pass is the same each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from virgo.devices import squared_sum, widest
from virgo.layers import is_dgl_layer, is_message_passing
from virgo.network.bare_weights import bare_weights, bare_weights_called, owns_matrix
from virgo.network.inputs import Forward, Inputs, run, stored_values
from virgo.network.modules import (
    arguments_of,
    float_tensors,
    hooked,
    own_gradients,
    preserved,
    received,
)
from virgo.network.probe import Loss, call_users_code
from virgo.network.side_effects import noticed

#: Rows of which the effective rank of a layer's output is taken.
_RANK_ROWS = 256
#: Autograd nodes that put tensors side by side or pick from them, where others add them up.
_JOINS = ("CatBackward", "StackBackward", "MaxBackward", "AmaxBackward", "IndexBackward")


@dataclass(frozen=True)
class Link:
    """How an earlier call's output reaches a later call."""

    normalised: bool = False  # through a norm, which undoes its scale
    joined: bool = False  # side by side with others, not added to them


@dataclass
class UnitCall:
    """One call of one unit: what it returned, and where its input came from."""

    path: str
    signal: float
    rows: int
    width: int
    dead: float = 0.0  # share of columns that are zero in every row
    rank: float = math.nan  # effective rank of (a sample of) the rows
    gradient: float = math.nan
    received: float = math.nan  # mean square of its input
    variance: float = math.nan  # over columns, mean over rows: the paper's definition
    gradient_variance: float = math.nan
    parents: dict[int, Link] = field(default_factory=dict)

    @property
    def is_sound(self) -> bool:
        """Whether its signal is a positive finite number."""
        return math.isfinite(self.signal) and self.signal > 0


@dataclass
class Profile:
    """Every call of every unit in the order they ran, and the loss of the pass."""

    calls: list[UnitCall]
    entry: float = math.nan  # mean square of what the first unit received
    loss: float = math.nan
    ends: dict[int, Link] = field(default_factory=dict)  # calls whose output reaches the model's

    @property
    def forward(self) -> list[float]:
        """The signal of every call."""
        return [call.signal for call in self.calls]

    @property
    def backward(self) -> list[float]:
        """The gradient of every call that one reaches."""
        return [call.gradient for call in self.calls if not math.isnan(call.gradient)]

    @property
    def wider(self) -> float:
        """The wider of the two ranges; infinite where a signal is zero or overflows."""
        return max(extent(self.forward), extent(self.backward))

    @property
    def wider_variance(self) -> float:
        """The same of variances over neurons in place of mean squares, where they exist."""
        signals = [c.variance for c in self.calls if not math.isnan(c.variance)]
        gradients = [c.gradient_variance for c in self.calls if c.gradient_variance > 0]
        return max(extent(signals), extent(gradients))


def extent(values: list[float]) -> float:
    """The largest over the smallest; infinite where one is zero or not finite.

    Args:
        values: none of them negative.

    Returns:
        The quotient; 1 for no values.

    >>> extent([1.0, 4.0, 2.0]), extent([1.0, 0.0])
    (4.0, inf)
    """
    if not values:
        return 1.0
    if not all(math.isfinite(value) and value > 0 for value in values):
        return math.inf
    return max(values) / min(values)


def units_of(model: nn.Module) -> dict[str, nn.Module]:
    """The units of ``model`` by path, in order of declaration."""
    inside: set[int] = set()
    units: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        if id(module) in inside:
            continue
        if is_message_passing(module):
            inside.update(map(id, module.modules()))
            units[path] = module
        elif bare := bare_weights(path, module):
            units.update(bare)
        elif owns_matrix(module) and not isinstance(module, nn.Embedding):
            units[path] = module
    return units


def is_norm(module: nn.Module) -> bool:
    """Whether a module normalises, by its name: BatchNorm, LayerNorm, PairNorm, GraphNorm, ..."""
    return "norm" in type(module).__name__.lower()


@contextmanager
def as_in_training(model: nn.Module, *, weights: bool = False) -> Iterator[None]:
    """Norms as in training, dropout off; everything is put back afterwards."""
    with preserved(model, weights=weights):
        for module in model.modules():
            if is_norm(module):
                module.train()
        yield


def profile(
    model: nn.Module,
    inputs: Inputs,
    forward: Forward | None = None,
    loss: Loss | None = None,
    units: dict[str, nn.Module] | None = None,
) -> Profile:
    """Run ``model`` forward and backward once and record every call of every unit.

    Call it inside :func:`as_in_training`.

    Args:
        model: unwrapped, with its parameters in place.
        inputs: prepared for the model.
        forward: how to call the model.
        loss: what to run backward from; without it only the signal is recorded.
        units: of :func:`units_of`, where they have hooks already.

    Returns:
        The profile of the pass.
    """
    recorder = _Recorder(model, units or units_of(model))
    context = torch.enable_grad() if loss is not None else torch.no_grad()
    with context, bare_weights_called(recorder.units.values()), hooked(recorder.hooks()):
        name = type(model).__name__
        with noticed(model, inputs.data, forward):
            output = call_users_code(name, lambda: run(model, inputs.data, forward), model)
        recorder.finish(output)
        if loss is not None:
            value = call_users_code("loss", lambda: loss(output, inputs.data))
            recorder.result.loss = float(value.detach())
            if value.requires_grad:
                with own_gradients(value, model):
                    call_users_code("a backward pass", value.backward)
    recorder.forget()
    return recorder.result


class _Recorder:
    """Hooks on every unit and every norm, which write one :class:`Profile`."""

    def __init__(self, model: nn.Module, units: dict[str, nn.Module]) -> None:
        self.model, self.units = model, units
        self.result = Profile([])
        self.outputs: dict[object, int] = {}  # autograd node -> the call that returned it
        self.norms: set[object] = set()  # autograd nodes of what norms returned
        self.open: list[UnitCall | None] = []
        self.placed: list[RemovableHandle] = []

    def hooks(self) -> Iterator[RemovableHandle]:
        inside = {id(part) for unit in self.units.values() for part in unit.modules()}
        for path, unit in self.units.items():
            yield unit.register_forward_pre_hook(self._enter(path), with_kwargs=True)
            yield unit.register_forward_hook(self._leave)
        for module in self.model.modules():
            if is_norm(module) and id(module) not in inside:
                yield module.register_forward_hook(self._after_norm)

    def forget(self) -> None:
        for handle in self.placed:
            handle.remove()
        self.outputs.clear()
        self.norms.clear()

    def _enter(self, path: str) -> Callable[..., None]:
        def hook(unit: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            if is_recomputing():
                self.open.append(None)
                return
            tensors = received(arguments_of(unit, args, kwargs))
            call = UnitCall(path, math.nan, 0, 0, received=mean_square(tensors))
            call.parents = self._links(tensors)
            if not self.result.calls:
                self.result.entry = call.received
            self.open.append(call)

        return hook

    def _leave(self, unit: nn.Module, args: object, output: object) -> None:
        call = self.open.pop()
        tensors = [t for t in float_tensors(output) if t.numel()]
        if call is None or not tensors:
            return
        index = len(self.result.calls)
        self.result.calls.append(call)
        first = tensors[0].detach()
        if is_dgl_layer(unit) and first.dim() > 2:
            first = first.flatten(1)  # DGL keeps attention heads apart
        call.signal, call.rows = mean_square(tensors), first.size(0) if first.dim() else 1
        call.width = first.size(-1) if first.dim() else 1
        if first.dim() == 2 and first.layout == torch.strided:
            call.dead = float((first == 0).all(0).to(widest(first)).mean())
            call.rank = effective_rank(first)
        call.variance = column_variance(tensors)
        arrival = _Arrival(call)
        for tensor in tensors:
            if tensor.grad_fn is not None:
                self.outputs[tensor.grad_fn] = index
            if tensor.requires_grad:
                self.placed.append(tensor.register_hook(arrival))

    def _after_norm(self, norm: nn.Module, args: object, output: object) -> None:
        self.norms.update(t.grad_fn for t in float_tensors(output) if t.grad_fn is not None)

    def finish(self, output: object) -> None:
        """Note which calls reach the model's output."""
        self.result.ends = self._links(float_tensors(output))

    def _links(self, tensors: list[Tensor]) -> dict[int, Link]:
        """The calls whose output lies behind these tensors, and what lies between."""
        links: dict[int, Link] = {}
        pending = [(t.grad_fn, Link()) for t in tensors if t.grad_fn is not None]
        seen = set(pending)
        while pending:
            node, link = pending.pop()
            if node in self.outputs:
                call = self.outputs[node]
                before = links.get(call, link)
                links[call] = Link(
                    before.normalised and link.normalised, before.joined and link.joined
                )
                continue
            link = Link(
                link.normalised or node in self.norms,
                link.joined or type(node).__name__.startswith(_JOINS),
            )
            for following, _ in node.next_functions:
                if following is not None and (following, link) not in seen:
                    seen.add((following, link))
                    pending.append((following, link))
        return links


class _Arrival:
    """Adds up the squares of the gradients that reach the tensors of one call."""

    def __init__(self, call: UnitCall) -> None:
        self.call = call
        self.squares = self.variances = 0.0
        self.count = 0

    def __call__(self, gradient: Tensor) -> None:
        size = gradient.numel()
        self.squares += mean_square([gradient]) * size
        self.variances += column_variance([gradient]) * size
        self.count += size
        self.call.gradient = self.squares / self.count
        self.call.gradient_variance = self.variances / self.count


def is_recomputing() -> bool:
    """Whether a backward pass runs: activation checkpointing calls layers again during it."""
    current = getattr(torch._C, "_current_graph_task_id", None)
    return current is not None and current() != -1


def mean_square(tensors: list[Tensor]) -> float:
    """The mean square of all numbers in some tensors; NaN without any."""
    total, count = 0.0, 0
    for tensor in tensors:
        total += squared_sum(stored_values(tensor.detach()))
        count += tensor.numel()
    return total / count if count else math.nan


def column_variance(tensors: list[Tensor]) -> float:
    """The variance over columns, mean over rows; NaN for a single column."""
    total, count = 0.0, 0
    for tensor in tensors:
        if tensor.dim() < 2 or tensor.size(-1) < 2 or tensor.layout != torch.strided:
            return math.nan
        rows = tensor.detach().reshape(-1, tensor.size(-1)).to(widest(tensor))
        total += float(rows.var(1, unbiased=False).sum())
        count += rows.size(0)
    return total / count if count else math.nan


def effective_rank(matrix: Tensor) -> float:
    r"""The participation ratio of the singular values, :math:`(\sum s^2)^2 / \sum s^4`.

    1 where all rows point in one direction, the number of columns where they fill the space.
    Of many rows a fixed sample is looked at.

    Args:
        matrix: one row per node.

    Returns:
        The effective rank; NaN for a matrix that is zero or not finite.

    >>> round(effective_rank(torch.eye(4)), 6), round(effective_rank(torch.ones(5, 4)), 6)
    (4.0, 1.0)
    """
    step = max(1, matrix.size(0) // _RANK_ROWS)
    rows = matrix[::step][:_RANK_ROWS]
    rows = rows.to(widest(rows))
    scale = rows.abs().max()
    if not bool(torch.isfinite(scale)) or float(scale) == 0.0:
        return math.nan
    rows = rows / scale
    gram = rows.T @ rows if rows.size(1) <= rows.size(0) else rows @ rows.T
    return float(torch.trace(gram) ** 2 / gram.square().sum())

"""Watch a model run once, and leave no trace of having done so.

The order in which layers run, which of them feed which, and which of the data's tensors each
was given are facts about a forward pass, not about the order of attributes in ``__init__``. One
pass over a few nodes tells all of it.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Container, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_flatten
from torch.utils.hooks import RemovableHandle

from .errors import LayerError, VirgoError
from .inputs import Forward, Inputs, run
from .layers import is_layer

_CACHES = ("_cached_edge_index", "_cached_adj_t", "_cached_x")
_SOFTMAX = ("LogSoftmaxBackward0", "SoftmaxBackward0")


@dataclass
class Call:
    """One call of one message-passing layer."""

    path: str
    layer: nn.Module
    linears: tuple[str, ...] = ()  # the Linear modules it ran, as the layer names them
    width: int | None = None  # of the features it received
    edge_weight: Tensor | None = None
    own_edges: bool = True  # whether its edges were the data's
    parents: set[int] = field(default_factory=set)  # earlier calls whose output it received
    from_input: bool = False  # received the model's input, through no layer
    to_output: bool = False  # its output reached the model's, through no layer
    through_linear: bool = False  # a Linear outside of any layer changed its input


@dataclass
class Trace:
    """What a pass showed: the calls in order, and whether the last one returns the logits."""

    calls: list[Call]
    logits: bool = False
    output: Any = None
    inputs: Inputs | None = None

    @cached_property
    def children(self) -> list[list[int]]:
        """For each call, the calls that received its output."""
        found: list[list[int]] = [[] for _ in self.calls]
        for index, call in enumerate(self.calls):
            for parent in sorted(call.parents):
                found[parent].append(index)
        return found

    def ends(self, index: int) -> bool:
        """Whether what a call returns leaves the network: to its output, into no other layer."""
        return not self.children[index]


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside ``torch.compile`` and ``DataParallel`` wrappers."""
    while True:
        if isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        elif isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        else:
            return model


@contextmanager
def _own_weather(model: nn.Module) -> Iterator[None]:
    """Passes of ours: no random state consumed, no autocast, no inference mode around them.

    Autocast keeps casts of weights that a measurement changes, and inference mode records no
    graph to follow.
    """
    devices = {p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"}
    kinds = {p.device.type for p in model.parameters()} | {"cpu"}
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=sorted(devices)))
        stack.enter_context(torch.inference_mode(False))
        for kind in sorted(kinds & {"cpu", "cuda"}):
            stack.enter_context(torch.autocast(kind, enabled=False))
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


@contextmanager
def preserved(model: nn.Module, *, weights: bool = False) -> Iterator[None]:
    """Whatever happens inside, the model comes out as it went in.

    Restored: training mode, gradients, buffers, layer caches and any other attribute,
    ``requires_grad``, the global random state; with ``weights=True`` the parameters too. Layer
    caches are emptied inside, since what they hold belongs to another graph.
    """
    modules = list(model.modules())
    attributes = [
        {key: dict(value) if type(value) is dict else value for key, value in vars(m).items()}
        for m in modules
    ]
    buffers = [(b, b.detach().clone()) for b in model.buffers() if not is_lazy(b)]
    parameters = [
        (p, p.detach().clone() if weights and not is_lazy(p) else None, p.grad, p.requires_grad)
        for p in model.parameters()
    ]
    with _own_weather(model):
        try:
            model.eval()
            _empty_caches(model)
            yield
        finally:
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
                for parameter, saved, grad, requires_grad in parameters:
                    if saved is not None:
                        parameter.copy_(saved)
                    parameter.grad = grad
                    parameter.requires_grad_(requires_grad)
            for module, kept in zip(modules, attributes, strict=True):
                for key, then in kept.items():
                    now = vars(module).get(key)
                    if type(then) is dict and type(now) is dict:
                        now.clear()
                        now.update(then)
                    elif now is not then:
                        vars(module)[key] = then
                for key in set(vars(module)) - set(kept):
                    del vars(module)[key]


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """The outermost message-passing layers by path, in order of declaration."""
    found: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        if is_layer(module) and owner(path, found) is None:
            found[path] = module
    if not found:
        raise LayerError(
            f"{type(model).__name__}: expected at least one message-passing layer, got none. "
            f"If it passes messages in a module of its own, teach it with virgo.register_layer."
        )
    return found


def owner(path: str, layers: Container[str]) -> str | None:
    """The layer of ``layers`` that a module or parameter path lies in, if any.

    >>> owner("convs.0.lin.weight", {"convs.0", "convs.1"})
    'convs.0'
    """
    if "" in layers:
        return ""
    parts = path.split(".")
    prefixes = (".".join(parts[: i + 1]) for i in range(len(parts)))
    return next((prefix for prefix in prefixes if prefix in layers), None)


def is_uninitialised(model: nn.Module) -> bool:
    """Whether some parameter waits for a first batch to learn its shape."""
    return any(is_lazy(p) for p in model.parameters()) or any(is_lazy(b) for b in model.buffers())


def materialise(model: nn.Module, inputs: Inputs, forward: Forward | None) -> None:
    """Run lazy layers once on a few nodes so that their parameters get their shapes."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with _own_weather(model), torch.no_grad():
            run(model, inputs.few_nodes().prepared_for(model).data, forward)
    except VirgoError:
        raise
    except Exception as error:
        raise LayerError(
            f"{type(model).__name__}: its layers are lazy and a forward pass to give them shapes "
            f"raised {type(error).__name__}: {error}. Pass forward=lambda model, data: ..., or "
            f"run the model once yourself."
        ) from error
    finally:
        for module, training in modes:
            module.training = training
        _empty_caches(model)
    if is_uninitialised(model):
        raise LayerError(
            f"{type(model).__name__}: expected a forward pass to initialise its lazy layers, got "
            f"some that did not run. Pass forward=lambda model, data: ... that runs them."
        )


def _empty_caches(model: nn.Module) -> None:
    """Forget normalised edges that layers kept of another graph."""
    for module in model.modules():
        for cache in _CACHES:
            if getattr(module, cache, None) is not None:
                setattr(module, cache, None)


def arguments_of(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """What a layer was called with, by the names in its ``forward``."""
    try:
        return dict(inspect.signature(layer.forward).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        return {str(i): value for i, value in enumerate(args)} | kwargs


def float_tensors(value: Any) -> list[Tensor]:
    """The floating tensors in nested tuples, lists and dictionaries."""
    leaves, _ = tree_flatten(value)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def received(arguments: dict[str, Any]) -> list[Tensor]:
    """The node features a layer was called with: its first argument, whatever its name."""
    return float_tensors(next(iter(arguments.values()), None))


def watch(model: nn.Module, inputs: Inputs, forward: Forward | None = None) -> Trace:
    """Run ``model`` once on a few nodes and tell what happened.

    A model that only runs on its own whole graph (it adds one learned row per node, say) is run
    on that instead.
    """
    try:
        return _watch(model, inputs.few_nodes(), forward)
    except VirgoError:
        raise
    except Exception as few:
        try:
            return _watch(model, inputs, forward)
        except VirgoError:
            raise
        except Exception as whole:
            raise LayerError(
                f"{type(model).__name__}: expected a forward pass, got {type(whole).__name__}: "
                f"{whole}. Pass forward=lambda model, data: ... if it is called in its own way."
            ) from few


def _watch(model: nn.Module, inputs: Inputs, forward: Forward | None) -> Trace:
    with preserved(model), torch.enable_grad():
        inputs = inputs.prepared_for(model)
        watcher = _Watcher(model, inputs, _make_leaves(inputs))
        with hooked(watcher.hooks()):
            output = run(model, inputs.data, forward)
        watcher.finish(output)
    if not watcher.calls:
        raise LayerError(
            f"{type(model).__name__}: none of its message-passing layers ran in a forward pass. "
            f"Pass forward=lambda model, data: ... that runs them."
        )
    return Trace(watcher.calls, watcher.logits, output, inputs)


def _make_leaves(inputs: Inputs) -> list[Tensor]:
    """Give the features a gradient, so that the graph behind each tensor is recorded."""
    stores = inputs.data.stores
    leaves = []
    for store in stores:
        x = store.get("x")
        if isinstance(x, Tensor) and x.is_floating_point() and x.layout == torch.strided:
            store["x"] = x.detach().requires_grad_()
            leaves.append(store["x"])
    return leaves


@contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Hooks that are gone afterwards, also when the pass inside raises."""
    placed: list[RemovableHandle] = []
    try:
        placed.extend(handles)
        yield
    finally:
        for handle in placed:
            handle.remove()


class _Watcher:
    """Hooks that turn one forward pass into a list of calls."""

    def __init__(self, model: nn.Module, inputs: Inputs, leaves: list[Tensor]) -> None:
        self.model, self.inputs = model, inputs
        self.leaves = {id(leaf) for leaf in leaves}
        self.calls: list[Call] = []
        self.logits = False
        self.outputs: dict[Any, int] = {}  # autograd node -> call that returned it
        self.linears: set[Any] = set()  # autograd nodes of Linear outputs outside of layers
        self.open: list[tuple[Call, list[str]]] = []  # layers that are running, outermost first
        self.passed_linear = False

    def hooks(self) -> Iterator[RemovableHandle]:
        inner: set[int] = set()
        for path, layer in layers_of(self.model).items():
            yield layer.register_forward_pre_hook(self._enter(path), with_kwargs=True)
            yield layer.register_forward_hook(self._leave)
            for name, module in layer.named_modules():
                inner.add(id(module))
                if is_linear(module):
                    whole = f"{path}.{name}" if path else name
                    yield module.register_forward_pre_hook(self._check_width(whole))
                    yield module.register_forward_pre_hook(self._inner_linear(name))
        for path, module in self.model.named_modules():
            if id(module) not in inner and is_linear(module):
                yield module.register_forward_pre_hook(self._check_width(path))
                yield module.register_forward_hook(self._outer_linear)

    def _check_width(self, path: str) -> Any:
        def hook(module: Any, args: tuple[Any, ...]) -> None:
            _check_channels(path, module, args[0] if args else None, self.leaves)

        return hook

    def _outer_linear(self, module: nn.Module, args: Any, output: Any) -> None:
        self.linears.update(t.grad_fn for t in float_tensors(output) if t.grad_fn is not None)

    def _inner_linear(self, name: str) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            if self.open and name not in self.open[-1][1]:
                self.open[-1][1].append(name)

        return hook

    def _enter(self, path: str) -> Any:
        def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            arguments = arguments_of(layer, args, kwargs)
            tensors = received(arguments)
            call = Call(path, layer, width=tensors[0].size(-1) if tensors else None)
            if tensors:
                _check_channels(path, layer, tensors[0], self.leaves)
            self._edges(call, arguments)
            parents, roots = self._reached(tensors)
            call.parents = parents
            call.from_input = roots or not (parents or self.calls)
            if not parents and not roots and self.calls:
                call.parents = {len(self.calls) - 1}  # its past is cut off: take the last one
            call.through_linear = self.passed_linear
            self.open.append((call, []))

        return hook

    def _edges(self, call: Call, arguments: dict[str, Any]) -> None:
        if self.inputs.is_hetero:
            call.own_edges = False
            return
        edges = arguments.get("edge_index", arguments.get("adj_t"))
        if edges is None:  # a layer that calls them something else
            edges = next((a for a in list(arguments.values())[1:] if _looks_like_edges(a)), None)
        if isinstance(edges, Tensor):
            if edges.layout != torch.strided:
                call.own_edges = edges is self.inputs.adjacency
            else:
                mine = self.inputs.data.get("edge_index")
                call.own_edges = isinstance(mine, Tensor) and (
                    edges is mine or (edges.shape == mine.shape and bool((edges == mine).all()))
                )
        weight = arguments.get("edge_weight")
        call.edge_weight = weight if isinstance(weight, Tensor) else None

    def _leave(self, layer: nn.Module, args: Any, output: Any) -> None:
        call, linears = self.open.pop()
        call.linears = tuple(linears)
        index = len(self.calls)
        self.calls.append(call)
        for tensor in float_tensors(output):
            if tensor.grad_fn is not None:
                self.outputs[tensor.grad_fn] = index

    def _reached(self, tensors: list[Tensor]) -> tuple[set[int], bool]:
        """Which calls' outputs, and whether the model's input, lie behind these tensors."""
        parents: set[int] = set()
        from_input = any(id(t) in self.leaves for t in tensors)
        self.passed_linear = False
        pending = [t.grad_fn for t in tensors if t.grad_fn is not None]
        seen = set(pending)
        while pending:
            node = pending.pop()
            if node in self.outputs:
                parents.add(self.outputs[node])
                continue
            if node in self.linears:
                self.passed_linear = True
            variable = getattr(node, "variable", None)
            if id(variable) in self.leaves or "Embedding" in type(node).__name__:
                from_input = True
            for following, _ in node.next_functions:
                if following is not None and following not in seen:
                    seen.add(following)
                    pending.append(following)
        return parents, from_input

    def finish(self, output: Any) -> None:
        tensors = float_tensors(output)
        reached, _ = self._reached(tensors)
        for index in reached:
            self.calls[index].to_output = True
        if len(reached) == 1 and len(tensors) == 1 and max(reached) == len(self.calls) - 1:
            node = tensors[0].grad_fn
            while type(node).__name__ in _SOFTMAX:
                node = node.next_functions[0][0]  # type: ignore[union-attr]
            self.logits = self.outputs.get(node) == len(self.calls) - 1


def _looks_like_edges(value: Any) -> bool:
    if not isinstance(value, Tensor):
        return False
    pairs = value.dim() == 2 and value.size(0) == 2 and not value.is_floating_point()
    return pairs or value.layout != torch.strided


def is_linear(module: nn.Module) -> bool:
    """PyTorch's ``Linear`` or PyG's, which is not a subclass of it."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Linear"


def _check_channels(path: str, module: Any, x: Any, leaves: set[int]) -> None:
    """A width that does not fit, said before a matrix product says it less clearly."""
    expected = getattr(module, "in_channels", getattr(module, "in_features", None))
    if not isinstance(expected, int) or expected <= 0 or not isinstance(x, Tensor):
        return
    if x.dim() and x.size(-1) != expected:
        what = "data.x has" if id(x) in leaves else "it receives"
        raise LayerError(
            f"{path}: expected in_channels={expected} features, but {what} {x.size(-1)}. "
            f"Build the model for this data or pass the features it was built for."
        )

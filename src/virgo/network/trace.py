"""Watch a model run once, and leave no trace of having done so.

The order in which layers run, which of them feed which, and which of the data's tensors each
was given are facts about a forward pass, not about the order of attributes in ``__init__``. One
pass over a few nodes tells all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from virgo.errors import LayerError, VirgoError, said_by
from virgo.network.dgl_graphs import edges_of, is_dgl_graph
from virgo.network.inputs import Forward, Inputs, run
from virgo.network.modules import (
    arguments_of,
    float_tensors,
    hooked,
    is_linear,
    layers_of,
    preserved,
    received,
    refuse_scattered,
)
from virgo.network.side_effects import noticed

#: Autograd nodes of activations, and what `torch.nn.functional` calls them; the number that
#: shapes one, where it has one, is saved in the node under the name given.
_ACTIVATIONS: dict[str, tuple[str, str]] = {
    "ReluBackward0": ("relu", ""),
    "LeakyReluBackward0": ("leaky_relu", "negative_slope"),
    "EluBackward0": ("elu", "alpha"),
    "GeluBackward0": ("gelu", ""),
    "TanhBackward0": ("tanh", ""),
    "SigmoidBackward0": ("sigmoid", ""),
    "SiluBackward0": ("silu", ""),
    "SoftplusBackward0": ("softplus", ""),
    "MishBackward0": ("mish", ""),
    "HardtanhBackward0": ("hardtanh", ""),
}
#: Autograd nodes that may follow the logits: a softmax, and what a user's full backward hook adds.
_BEHIND_LOGITS = ("LogSoftmaxBackward0", "SoftmaxBackward0", "BackwardHookFunctionBackward")


@dataclass
class Call:
    """One call of one message-passing layer."""

    path: str
    layer: nn.Module
    linears: tuple[str, ...] = ()  # the Linear modules it ran, as the layer names them
    width: int | None = None  # of the features it received
    edge_weight: Tensor | None = None
    edge_type: Tensor | None = None  # the relation of each edge
    given: frozenset[str] = frozenset()  # its arguments that were not None
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
    activations: tuple[tuple[str, float | None], ...] = ()  # between layers: name and number

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


def watch(model: nn.Module, inputs: Inputs, forward: Forward | None = None) -> Trace:
    """Run ``model`` once on a few nodes and tell what happened.

    A model that only runs on its own whole graph (it adds one learned row per node, say) is run
    on that instead.

    Args:
        model: left as it was.
        inputs: the data.
        forward: how to call the model, where it is not ``model(x, edge_index, ...)``.

    Returns:
        The layers in the order of their calls, and what each read from.

    Raises:
        LayerError: the model does not run, or runs none of its layers.
    """  # noqa: DOC501  (a VirgoError is passed on)
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
            refuse_scattered(model, whole)
            raise LayerError(
                f"{type(model).__name__}: expected a forward pass, got {said_by(whole)}. "
                f"Pass forward=lambda model, data: ... if it is called in its own way."
            ) from few


def _watch(model: nn.Module, inputs: Inputs, forward: Forward | None) -> Trace:
    with preserved(model), torch.enable_grad():
        inputs = inputs.prepared_for(model)
        watcher = _Watcher(model, inputs, _make_leaves(inputs))
        with hooked(watcher.hooks()), noticed(model, inputs.data, forward):
            output = run(model, inputs.data, forward)
        watcher.finish(output)
    if not watcher.calls:
        raise LayerError(
            f"{type(model).__name__}: none of its message-passing layers ran in a forward pass. "
            f"Pass forward=lambda model, data: ... that runs them."
        )
    return Trace(watcher.calls, watcher.logits, output, inputs, tuple(watcher.activations))


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
        self.activations: dict[tuple[str, float | None], None] = {}  # between layers, in order

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
            call.given = frozenset(name for name, value in arguments.items() if value is not None)
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
        graph = next((a for a in arguments.values() if is_dgl_graph(a)), None)
        if graph is not None:
            edges = edges_of(graph)
            call.own_edges = edges is not None
        elif edges is None:  # a layer that calls them something else
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
        edge_type = arguments.get("edge_type")
        call.edge_type = edge_type if isinstance(edge_type, Tensor) else None

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
            if type(node).__name__ in _ACTIVATIONS:  # also a layer's own, on what it returns
                name, number = _ACTIVATIONS[type(node).__name__]
                self.activations[name, getattr(node, f"_saved_{number}", None)] = None
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
            while type(node).__name__ in _BEHIND_LOGITS:
                node = node.next_functions[0][0]  # type: ignore[union-attr]
            self.logits = self.outputs.get(node) == len(self.calls) - 1


def _looks_like_edges(value: Any) -> bool:
    if not isinstance(value, Tensor):
        return False
    pairs = value.dim() == 2 and value.size(0) == 2 and not value.is_floating_point()
    return pairs or value.layout != torch.strided


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

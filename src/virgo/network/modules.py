"""What any ``nn.Module`` is asked here: its layers, its wrappers, and to be left as it was."""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_flatten
from torch.utils.hooks import RemovableHandle

from virgo.devices import forked_rng
from virgo.errors import LayerError, VirgoError, said_by, shown
from virgo.layers import is_layer
from virgo.network.dgl_graphs import is_dgl_graph
from virgo.network.inputs import Forward, Inputs, run

#: Modules that only hold parameters, and are never called.
PARAMETER_CONTAINERS = (nn.ParameterList, nn.ParameterDict)
_CACHES = ("_cached_edge_index", "_cached_adj_t", "_cached_x", "_cached_h")


def unwrap(model: nn.Module, *, allow_meta: bool = False) -> nn.Module:
    """The module inside ``torch.compile`` and ``DataParallel`` wrappers.

    Args:
        model: wrapped or not.
        allow_meta: whether its parameters may be on the meta device.

    Returns:
        The innermost module; ``model`` itself if nothing wraps it.

    Raises:
        LayerError: if this is no module, a compiled one of TorchScript, or one whose parameters
            hold no numbers to work with.
    """
    if not isinstance(cast(object, model), nn.Module):
        raise LayerError(
            f"model: expected a torch.nn.Module, got {shown(model)}. Pass the model itself, built."
        )
    for path, module in model.named_modules():
        if (
            isinstance(module, torch.jit.ScriptModule)
            and next(module.parameters(), None) is not None
        ):
            raise LayerError(
                f"{path or 'model'}: expected a module that can be watched while it runs, got one "
                f"that TorchScript compiled. Initialise the model before torch.jit compiles it."
            )
    for name, parameter in model.named_parameters():
        lazy: bool = is_lazy(parameter)  # has no shape, device or mode to ask for
        if parameter.is_meta and not lazy and not allow_meta:
            raise LayerError(
                f"{name}: expected numbers, got a parameter on the meta device. "
                f"virgo.init_(model, data) gives it memory and numbers."
            )
        if not lazy and parameter.is_inference():
            raise LayerError(
                f"{name}: expected a parameter that can be trained, got one made under "
                f"torch.inference_mode. Build the model outside of it."
            )
    while True:
        if isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        elif isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        else:
            return model


def refuse_scattered(model: nn.Module, error: Exception) -> None:
    """Raise if a pass failed for a model whose tensors are on several devices.

    Args:
        model: that did not run.
        error: why.

    Raises:
        LayerError: names a tensor on each of two devices.
    """
    found: dict[torch.device, str] = {}
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        found.setdefault(value.device, name)
    if len(found) > 1:
        (first, name), (second, other) = list(found.items())[:2]
        raise LayerError(
            f"{type(model).__name__}: expected parameters and buffers on one device, got {name} on "
            f"{first} and {other} on {second}. Call model.to({str(first)!r}) before."
        ) from error


@contextmanager
def _own_weather(model: nn.Module) -> Iterator[None]:
    """Passes of ours: no random state consumed, no autocast, no inference mode around them.

    Autocast keeps casts of weights that a measurement changes, inference mode records no
    graph to follow, and parts that are compiled would be compiled anew with hooks on them.
    """
    devices = {p.device for p in model.parameters()}
    kinds = {device.type for device in devices} | {"cpu"}
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with ExitStack() as stack:
        stack.enter_context(forked_rng(devices))
        stack.enter_context(torch.inference_mode(False))
        if _is_compiled(model) and hasattr(torch.compiler, "set_stance"):  # new in PyTorch 2.6
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for kind in sorted(kinds & {"cpu", "cuda", "mps"}):
            stack.enter_context(torch.autocast(kind, enabled=False))
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


def _is_compiled(model: nn.Module) -> bool:
    """Whether a part of it was compiled, in place or as a wrapper."""
    return any(
        getattr(module, "_compiled_call_impl", None) is not None
        or isinstance(getattr(module, "_orig_mod", None), nn.Module)
        for module in model.modules()
    )


def copied(model: nn.Module) -> nn.Module:
    """A copy; a lazy layer of PyG 2.6 draws random numbers when it is copied.

    Args:
        model: what to copy.

    Returns:
        The copy; the random state is as it was.
    """
    with _own_weather(model):
        return copy.deepcopy(model)


@contextmanager
def preserved(model: nn.Module, *, weights: bool = False) -> Iterator[None]:
    """Whatever happens inside, the model comes out as it went in.

    Restored: training mode, gradients, buffers, layer caches and any other attribute,
    ``requires_grad``, the global random state; with ``weights=True`` the parameters too. Layer
    caches are emptied inside, since what they hold belongs to another graph.
    """
    modules = list(model.modules())
    attributes = [dict(vars(m)) for m in modules]
    contents = [_contents_of(value) for kept in attributes for value in kept.values()]
    modes = [m.training for m in modules]  # which a scripted module does not keep in Python
    buffers = [(b, b.detach().clone()) for b in model.buffers() if _is_writable(b)]
    parameters = [
        (p, p.detach().clone() if weights and _is_writable(p) else None, p.grad, p.requires_grad)
        for p in model.parameters()
    ]
    with _own_weather(model):
        try:
            model.eval()
            _empty_caches(model)
            for parameter, *_ in parameters:
                parameter.grad = None  # a loss that runs backward itself would add to it
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
                    if vars(module).get(key) is not then:
                        vars(module)[key] = then
                for key in set(vars(module)) - set(kept):
                    del vars(module)[key]
            for put_back in contents:
                put_back()
            for module, mode in zip(modules, modes, strict=True):
                if module.training != mode:
                    module.training = mode


@contextmanager
def own_gradients(value: Tensor, model: nn.Module) -> Iterator[None]:
    """Inside, ``value.backward()`` accumulates nothing that outlives it and steps no optimiser.

    Not :func:`torch.autograd.grad`, which checkpointed layers refuse. Gradients of everything that
    ``value`` depends on are put back afterwards, also of leaves outside of the model (an embedding
    that ``forward`` closes over, a head in the loss), and hooks that run once a gradient is there,
    such as a step of an optimiser, do not.

    Args:
        value: where the backward pass begins.
        model: whose parameters it may reach behind a checkpoint, too.
    """
    leaves = {id(leaf): leaf for leaf in (*model.parameters(), *_leaves_behind(value))}.values()
    gradients = [(leaf, leaf.grad) for leaf in leaves if not is_lazy(leaf)]
    hooks = [hook for leaf, _ in gradients if (hook := leaf._post_accumulate_grad_hooks)]
    saved = [dict(hook) for hook in hooks]
    try:
        for leaf, _ in gradients:
            leaf.grad = None
        for hook in hooks:
            hook.clear()
        yield
    finally:
        for leaf, gradient in gradients:
            leaf.grad = gradient
        for hook, kept in zip(hooks, saved, strict=True):
            hook.update(kept)


def _leaves_behind(value: Tensor) -> Iterator[Tensor]:
    """The tensors that a backward pass from ``value`` accumulates gradients in."""
    pending = [value.grad_fn] if value.grad_fn is not None else []
    seen = set(pending)
    while pending:
        node = pending.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            yield leaf
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)


@contextmanager
def unchanged_on_error(model: nn.Module) -> Iterator[None]:
    """Weights that are written inside are put back if it ends in an error."""
    saved = [(parameter, parameter.detach().clone()) for parameter in model.parameters()]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for parameter, value in saved:
                parameter.copy_(value)
        raise


def _contents_of(value: Any) -> Callable[[], object]:
    """What puts a module's attribute back that may be changed in place; nothing for others."""
    if type(value) in (dict, set):
        copy_of = value.copy()
        return lambda: (value.clear(), value.update(copy_of))
    if type(value) is list:
        items = value.copy()
        return lambda: value.__setitem__(slice(None), items)
    if isinstance(value, torch.Generator):
        state = value.get_state()
        return lambda: value.set_state(state)
    if type(value) is Tensor and _is_writable(value) and not value.is_inference():
        numbers, version = value.detach().clone(), value._version
        return lambda: value._version == version or value.detach().copy_(numbers)
    return lambda: None


def _is_writable(tensor: Tensor) -> bool:
    """Whether it can be changed in place: neither without a size yet, nor expanded."""
    return not is_lazy(tensor) and not has_shared_memory(tensor)


def has_shared_memory(tensor: Tensor) -> bool:
    """Whether several elements are one number in memory, as after ``expand``.

    Args:
        tensor: such as a weight.

    Returns:
        Whether writing to it is refused by PyTorch.

    >>> has_shared_memory(torch.ones(1, 2).expand(3, 2)), has_shared_memory(torch.ones(3, 2))
    (True, False)
    """
    if tensor.layout != torch.strided:
        return False
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return any(stride == 0 and size > 1 for size, stride in sizes)


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

    Args:
        path: dotted, as in ``model.named_modules()``.
        layers: the paths of the layers.

    Returns:
        The path of the outermost such layer, or None.

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


def materialise(
    model: nn.Module, inputs: Inputs, forward: Forward | None, seed: int | None = None
) -> None:
    """Run lazy layers once on a few nodes so that their parameters get their shapes.

    Args:
        model: with lazy layers.
        inputs: to take the nodes from.
        forward: how to call the model.
        seed: of the numbers that the layers draw themselves; the global state's by default.

    Raises:
        VirgoError: they do not run, or some of them do not.
        LayerError: the same.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with _own_weather(model), torch.no_grad():
            if seed is not None:
                torch.manual_seed(seed)  # of the random state that is put back
            run(model, inputs.few_nodes().prepared_for(model).data, forward)
    except VirgoError:
        raise
    except Exception as error:
        raise LayerError(
            f"{type(model).__name__}: its layers are lazy and a forward pass to give them shapes "
            f"raised {said_by(error)}. Pass forward=lambda model, data: ..., or "
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


@contextmanager
def given_shapes(
    model: nn.Module, inputs: Inputs, forward: Forward | None, seed: int
) -> Iterator[nn.Module]:
    """The model, or of a lazy one a copy with shapes, which it becomes if there is no error.

    Args:
        model: lazy or not.
        inputs: to give it shapes.
        forward: how to call the model.
        seed: of the numbers that its layers draw themselves.

    Yields:
        A model whose parameters have their shapes.
    """
    if not is_uninitialised(model):
        yield model
        return
    shaped = copied(model)
    materialise(shaped, inputs, forward, seed)
    yield shaped
    materialise(model, inputs, forward, seed)
    model.load_state_dict(shaped.state_dict())


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
    """The node features a layer was called with: its first argument, whatever its name.

    DGL's layers take the graph before them.

    Args:
        arguments: of the call, by name.

    Returns:
        Its floating tensors.
    """
    return float_tensors(next((a for a in arguments.values() if not is_dgl_graph(a)), None))


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


def is_linear(module: nn.Module) -> bool:
    """PyTorch's ``Linear`` or PyG's, which is not a subclass of it."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Linear"


def fans_of(owner: nn.Module, shape: Sequence[int]) -> tuple[int, int, bool]:
    """How a module multiplies with a matrix of its own, by its kind.

    Args:
        owner: the module that holds the matrix.
        shape: of the matrix.

    Returns:
        Its inputs, its outputs, and whether it is ``[in, out]``, for ``x @ weight``.
    """
    # PyTorch's modules and PyG's Linear have [out, in]; PyG's other parameters, and people's own,
    # which a container holds too, are [in, out]
    out_first = is_linear(owner) or type(owner).__module__.startswith("torch.nn.")
    if out_first and not isinstance(owner, PARAMETER_CONTAINERS):
        return shape[-1], shape[-2], False
    return shape[-2], shape[-1], True

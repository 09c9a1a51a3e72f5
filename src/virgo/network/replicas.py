"""Models whose numbers are elsewhere: sharded over processes (FSDP2), or nowhere yet (meta device).

Both are planned on a *replica*: a plain module with the same names and all its numbers, whose
weights are put back when everything went well. Sharded parameters are gathered once, for which all
processes must call together; parameters on the meta device get memory and the numbers of their
modules' ``reset_parameters``, drawn from the seed.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from virgo.devices import forked_rng
from virgo.draws import generator_for
from virgo.errors import LayerError

_COMPOSABLE = "__composable_api"  # where fully_shard() keeps its state in a module
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_sharded(value: object) -> bool:
    """Whether a parameter is spread over processes."""
    library = sys.modules.get("torch.distributed.tensor")  # slow to import, so not by us
    return library is not None and isinstance(value, library.DTensor)


def needs_replica(model: nn.Module) -> bool:
    """Whether some parameter is sharded or has no memory."""
    return any(is_sharded(p) or (p.is_meta and not is_lazy(p)) for p in model.parameters())


def whole(value: Tensor) -> Tensor:
    """All of a tensor; a sharded one is gathered from all processes."""
    return value.detach().full_tensor() if is_sharded(value) else value.detach()  # type: ignore[attr-defined]


def fill(parameter: Tensor, value: Tensor) -> None:
    """Copy ``value`` into a parameter; into a sharded one its own part, without communication."""
    with torch.no_grad():
        if is_sharded(parameter):
            parameter.to_local().copy_(_own_part(parameter, value))  # type: ignore[attr-defined]
        else:
            parameter.copy_(value)


def _own_part(parameter: Any, value: Tensor) -> Tensor:
    """Of the whole value, the shard that this process holds."""
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = parameter.device_mesh, parameter.placements
    value = value.to(mesh.device_type)
    try:
        shared = distribute_tensor(value, mesh, placements, src_data_rank=None)
    except TypeError:  # before PyTorch 2.7: the same values, sent by the first process
        shared = distribute_tensor(value, mesh, placements)
    return shared.to_local()


def replica_of(model: nn.Module, device: torch.device, seed: int) -> nn.Module:
    """A plain module with all numbers of ``model``, which stays as it is.

    Args:
        model: with parameters that are sharded or on the meta device.
        device: for what is on the meta device.
        seed: of the numbers of modules on the meta device.

    Returns:
        A module of the same names whose parameters can be worked with.

    Raises:
        LayerError: a module on the meta device cannot fill its own parameters.
    """
    if any(is_lazy(p) for p in model.parameters()):
        raise LayerError(
            f"{type(model).__name__}: expected sizes of all layers on the meta device, got lazy "
            f"ones. Give in_channels, or build the model on the CPU."
        )
    for module in model.modules():
        reshard: object = getattr(module, "reshard", None)
        if callable(reshard) and hasattr(module, "unshard"):  # FSDPModule after a pass
            reshard()
    copied = _plain(model, device, {})
    _reset(model, copied, seed)
    return copied


def put_back(replica: nn.Module, model: nn.Module) -> None:
    """Give ``model`` the numbers of its replica, and memory where it had none."""
    sharded = any(is_sharded(p) for p in model.parameters())
    if not sharded:
        for module, other in zip(model.modules(), replica.modules(), strict=True):
            module._parameters.update(other._parameters)
            module._buffers.update(other._buffers)
        return
    if any(p.is_meta for p in model.parameters()):
        meshes = (p.device_mesh for p in model.parameters() if is_sharded(p))  # type: ignore[attr-defined]
        model.to_empty(device=next(meshes).device_type)
    for parameter, value in zip(model.parameters(), replica.parameters(), strict=True):
        fill(parameter, value.detach())
    for buffer, number in zip(model.buffers(), replica.buffers(), strict=True):
        buffer.copy_(number)


def _plain(module: nn.Module, device: torch.device, memo: dict[int, Any]) -> nn.Module:
    """A copy without ``fully_shard``: its class, its hooks and its state are left out."""
    if id(module) in memo:
        copied: nn.Module = memo[id(module)]
        return copied
    kind = type(module)
    index = getattr(kind, "_orig_cls_mro_index", 0)  # fully_shard() derives a class of its own
    kind = kind.__mro__[index]
    copied = memo[id(module)] = kind.__new__(kind)
    attributes = {k: v for k, v in vars(module).items() if not k.startswith(_COMPOSABLE)}
    for name in _HOOKS:
        hooks = attributes[name]
        kept = {k: v for k, v in hooks.items() if not _is_distributed(v)}
        attributes[name] = type(hooks)(kept)
    attributes["_parameters"] = {
        name: _copied(p, device, memo) for name, p in module._parameters.items()
    }
    attributes["_buffers"] = {name: _copied(b, device, memo) for name, b in module._buffers.items()}
    attributes["_modules"] = {
        name: None if child is None else _plain(child, device, memo)
        for name, child in module._modules.items()
    }
    vars(copied).update(attributes)
    return copied


def _is_distributed(hook: object) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("torch.distributed")


def _copied(value: Tensor | None, device: torch.device, memo: dict[int, Any]) -> Tensor | None:
    """All numbers of a parameter or buffer; NaN where there are none yet. Ties are kept."""
    if value is None or id(value) in memo:
        return None if value is None else memo[id(value)]
    if value.is_meta:
        numbers = torch.empty(value.shape, dtype=value.dtype, device=device)
        if numbers.is_floating_point():
            numbers.fill_(torch.nan)  # so that what nobody fills is seen
    else:
        numbers = whole(value).clone()
    if isinstance(value, nn.Parameter):
        numbers = nn.Parameter(numbers, requires_grad=value.requires_grad)
    memo[id(value)] = numbers
    return numbers


def _reset(model: nn.Module, replica: nn.Module, seed: int) -> None:
    """Let every module that was on the meta device fill its own parameters and buffers."""
    empty = {
        path
        for path, module in model.named_modules()
        for value in (*module._parameters.values(), *module._buffers.values())
        if value is not None and value.is_meta
    }
    for path, module in replica.named_modules():
        reset = getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))
        if path in empty and callable(reset):
            devices = {p.device for p in module.parameters()}
            state = generator_for(seed, f"reset/{path}").initial_seed()
            with forked_rng(devices, state), torch.no_grad():
                reset()
    named = {**dict(replica.named_parameters()), **dict(replica.named_buffers())}
    left = [
        name
        for name, value in named.items()
        if name.rpartition(".")[0] in empty
        and value.is_floating_point()
        and bool(value.isnan().any())
    ]
    if left:
        raise LayerError(
            f"{', '.join(left)}: expected modules on the meta device to fill their parameters by "
            f"reset_parameters(), got some that do not. Give them one, or build the model on a "
            f"device that has memory."
        )

"""A second real device without hardware: a PrivateUse1 back end whose memory is the host's.

Every operator runs on the CPU, so results can be compared number by number. What a GPU would refuse
is refused: tensors of two devices in one operator (but for single numbers), ``.numpy()``, and an
operator that has no kernel there. What moves to the host is counted in :data:`to_host`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._pytree import tree_map

_setup = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
#: Whether this PyTorch can have a device that is written in Python; 2.10 and later can.
AVAILABLE = _setup is not None
NAME = "second_device"  # also a method of tensors and modules from now on
#: Shapes of what was copied from the device to the host since it was last cleared.
to_host: list[tuple[int, ...]] = []
_library: list[torch.library.Library] = []
_aten = torch.ops.aten
_COPIES = (_aten._to_copy.default, _aten.copy_.default, _aten._copy_from_and_resize.default)


class SecondTensor(Tensor):
    """A tensor on the second device: ``raw`` holds its numbers."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> SecondTensor:
        wrapper: SecondTensor = Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride() if raw.layout == torch.strided else None,
            storage_offset=raw.storage_offset() if raw.layout == torch.strided else 0,
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
        )
        wrapper.raw = raw
        return wrapper

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def tolist(self) -> Any:
        """Numbers for Python, as any device gives them."""
        return self.raw.tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{self.raw!r} on {NAME}"

    @classmethod
    def __torch_dispatch__(
        cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        _refuse_mixture(operator, args, kwargs)
        leaves = [a for a in _leaves((args, kwargs)) if isinstance(a, SecondTensor)]
        target = kwargs.get("device")
        stays = target is None or torch.device(target).type == NAME
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        raw = operator(*tree_map(_unwrap, args), **tree_map(_unwrap, kwargs))
        if operator is _aten.copy_.default and not isinstance(args[0], SecondTensor):
            to_host.append(tuple(args[0].shape))
            return args[0]
        if not stays:
            to_host.append(tuple(args[0].shape))
            return raw.clone()
        known = {id(leaf.raw): leaf for leaf in leaves}
        return tree_map(lambda out: known[id(out)] if id(out) in known else _wrap(out), raw)


class _Module:
    """``torch.second_device``; not "available", or ``DataParallel`` would put every model there."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return False

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Its random numbers are the CPU's."""


def _leaves(value: Any) -> list[Any]:
    leaves: list[Any] = []
    tree_map(leaves.append, value)
    return leaves


def _unwrap(value: Any) -> Any:
    return value.raw if isinstance(value, SecondTensor) else value


def _wrap(value: Any) -> Any:
    return SecondTensor(value) if type(value) is Tensor else value


def _refuse_mixture(operator: Any, args: Any, kwargs: Any) -> None:
    if operator in _COPIES:
        return
    for leaf in _leaves((args, kwargs)):
        if isinstance(leaf, Tensor) and not isinstance(leaf, SecondTensor) and leaf.dim():
            index = operator in (_aten.index.Tensor, _aten.index_put.default)
            if index and not leaf.is_floating_point():
                continue  # CUDA takes indices from the host, too
            raise RuntimeError(
                f"{operator}: expected all tensors on one device, got {NAME} and {leaf.device}"
            )


def _factory(operator: Any) -> Callable[..., Tensor]:
    def make(*args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        return SecondTensor(operator(*args, device="cpu", **kwargs))

    return make


def _factories() -> Iterator[Any]:
    """Operators that make a tensor from nothing but sizes and numbers."""
    for qualified in torch._C._dispatch_get_all_op_names():
        space, _, name = qualified.partition("::")
        base, _, overload = name.partition(".")
        if space == "aten" and hasattr(_aten, base):
            operator = getattr(getattr(_aten, base), overload or "default", None)
            arguments = operator._schema.arguments if operator is not None else []
            takes_tensors = any("Tensor" in str(a.type) for a in arguments)
            if any(a.name == "device" for a in arguments) and not takes_tensors:
                yield operator


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """What ``torch.tensor(..., device=)`` calls below the level of subclasses."""
    _unwrap(target).copy_(_unwrap(source))
    return target


def register() -> torch.device:
    """Make the device known to this process; once. Tests skip where there cannot be one."""
    if _setup is None:
        pytest.skip("this PyTorch has no devices written in Python")
    if not _library:
        _setup(NAME, backend_module=_Module())
        library = torch.library.Library("aten", "IMPL")
        for operator in _factories():
            library.impl(operator, _factory(operator), "PrivateUse1")
        library.impl("_copy_from", _copy_from, "PrivateUse1")
        _library.append(library)
    return torch.device(NAME, 0)

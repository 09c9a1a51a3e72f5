"""CUDA tensors without CUDA: PyTorch's fake ones, which have a device and a shape but no numbers.

An operator that mixes devices raises, as do ``.numpy()`` and an operator without rules for shapes.
Three things need numbers or CUDA itself and are replaced, all here: values that Python asks for
(1, True, and False for ``any``; 1 and 0 in turns where a tensor is copied to the host), shapes that
depend on values, and the backward pass. PyTorch's autograd engine asks for CUDA's streams before it
starts ("Cannot access accelerator device when none is available"), so gradients are zeros of the
leaves' shapes and devices; backward passes run on :mod:`kit.second_device`. Without an entry in the
table of guards even a copy would raise "PyTorch is not linked with support for cuda devices"; the
CPU's does nothing, and serves. Sparse CSR tensors have no fake form.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

from virgo import devices

CUDA = torch.device("cuda", 0)
#: c10's table of guards, one for each kind of device: 0 is the CPU's, 1 is CUDA's.
_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
_aten = torch.ops.aten
_COPIES = (_aten._to_copy.default, _aten.copy_.default)


class FakeCuda(FakeTensorMode):
    """What touches CUDA is fake, what does not is computed.

    Attributes:
        overlapping: shapes of what was copied to CUDA from pinned memory, without waiting.
        waiting: shapes of what was copied there in another way.
        to_host: shapes of what was copied back.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.overlapping: list[tuple[int, ...]] = []
        self.waiting: list[tuple[int, ...]] = []
        self.to_host: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _aten.is_pinned.default:
            return hasattr(args[0], "is_in_pinned_memory")
        if func is _aten._pin_memory.default:
            pinned = args[0].clone()
            pinned.is_in_pinned_memory = True
            return pinned
        leaves = tree_leaves((args, kwargs))
        if not any(map(_is_fake, leaves)):
            return func(*args, **kwargs)
        if func in _COPIES and _leaves_cuda(func, args, kwargs):
            self.to_host.append(tuple(args[0].shape))
            numbers = _numbers(args[0].shape, kwargs.get("dtype") or args[0].dtype)
            return args[0].copy_(numbers) if func is _aten.copy_.default else numbers
        if func in _COPIES:
            self._note(args[-1] if func is _aten.copy_.default else args[0], kwargs)
        return self._stubbed(func, types, args, kwargs)

    def _note(self, source: Tensor, options: dict[str, Any]) -> None:
        if source.device.type == "cpu":
            is_pinned = hasattr(source, "is_in_pinned_memory")
            fast = is_pinned and options.get("non_blocking", False)
            (self.overlapping if fast else self.waiting).append(tuple(source.shape))

    def _stubbed(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        first = args[0] if args else None
        if func is _aten._local_scalar_dense.default:
            if first.dtype == torch.bool:
                return not getattr(first, "is_any", False)
            return 1.0 if first.is_floating_point() else 1
        if func in (_aten.nonzero.default, _aten.bincount.default):
            shape = (1, first.dim()) if func is _aten.nonzero.default else (args[2],)
            with self:
                return torch.zeros(shape, dtype=torch.long, device=first.device)
        if func is _aten.equal.default:
            return False
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func is _aten.any.default:
            result.is_any = True  # which is asked for what should not be there
        return result


def _numbers(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """What comes to the host: 1, 0, 1, 0, ..., so that labels are of two classes."""
    return (1 - torch.arange(shape.numel()) % 2).to(dtype).view(shape)


def _is_fake(leaf: Any) -> bool:
    return isinstance(leaf, FakeTensor) or (isinstance(leaf, torch.device) and leaf.type == "cuda")


def _leaves_cuda(func: Any, args: Any, kwargs: Any) -> bool:
    if func is _aten.copy_.default:
        return bool(args[0].device.type == "cpu" and args[1].device.type == "cuda")
    target = kwargs.get("device")
    return bool(args[0].is_cuda and target is not None and torch.device(target).type == "cpu")


def _zero_gradients(self: Tensor, *args: Any, **kwargs: Any) -> None:
    """In place of a backward pass: zeros at all leaves."""
    seen, open_ = set(), [self.grad_fn]
    while open_:
        node: Any = open_.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            node.variable.grad = torch.zeros_like(node.variable)
        open_ += [after for after, _ in node.next_functions]


def _zeros_of(outputs: Tensor, inputs: Sequence[Tensor], **options: Any) -> list[Tensor]:
    """In place of ``torch.autograd.grad``."""
    return [torch.zeros_like(value) for value in inputs]


@contextmanager
def fake_cuda() -> Iterator[FakeCuda]:
    """Inside, a tensor that is moved to CUDA is fake; skips where PyTorch has no such table."""
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    try:
        table = (ctypes.c_void_p * 2).in_dll(ctypes.CDLL(str(library)), _GUARDS)
    except (OSError, ValueError):
        pytest.skip("this PyTorch shows no table of device guards")
    before = table[1]
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor", UserWarning)
        patch.setattr(torch.Tensor, "backward", _zero_gradients)
        patch.setattr(torch.autograd, "grad", _zeros_of)
        patch.setattr(devices, "_WITH_CSR", ("cpu",))  # fake matrices are dense
        patch.setattr(torch.__future__, "_overwrite_module_params_on_conversion", True)
        patch.setattr(torch.accelerator, "is_available", lambda: True)  # loaders pin only then
        patch.setattr(torch.cuda, "_lazy_init", lambda: None)
        patch.setattr(torch.cuda, "get_rng_state", lambda device: torch.zeros(16))
        patch.setattr(torch.cuda, "set_rng_state", lambda state, device: None)
        patch.setattr(torch.cuda, "device", lambda device: nullcontext())
        patch.setattr(torch.cuda, "manual_seed", lambda seed: None)
        table[1] = before or table[0]
        try:
            with FakeCuda() as mode:
                yield mode
        finally:
            table[1] = before

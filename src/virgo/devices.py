"""Devices: which one to use, what it can do, and how numbers are summed and copied there."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from virgo.errors import OptionError

CPU = torch.device("cpu")
#: What ``--device`` takes; a number may follow a kind, as in ``cuda:1``.
KINDS = ("auto", "cpu", "cuda", "mps")
#: Devices without float64.
_NARROW = ("mps",)
#: Devices on which PyTorch multiplies CSR matrices.
_WITH_CSR = ("cpu", "cuda", "xpu")
#: Devices on which Adam takes a step in one kernel.
_WITH_FUSED_ADAM = ("cpu", "cuda", "mps", "xpu")


def choose_device(name: str | torch.device | None = "auto") -> torch.device:
    """The device called ``name``, or the best there is.

    Args:
        name: ``"auto"`` (CUDA, then MPS, then the CPU), ``"cpu"``, ``"cuda"``, ``"cuda:1"``,
            ``"mps"`` or a device.

    Returns:
        The device.

    Raises:
        OptionError: there is no such device here.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if name is None or name == "auto":
        kinds = [kind for kind in ("cuda", "mps") if count_devices(kind)]
        return torch.device(kinds[0] if kinds else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise OptionError(
            f"device: expected one of {', '.join(KINDS)} or cuda:N, got {name!r}. Choose one."
        ) from None
    if device.type == "meta":
        raise OptionError(
            f"device: expected a device that computes, got {name!r}, on which tensors have shapes "
            f"but no numbers. Use --device auto or cpu."
        )
    count = count_devices(device.type)
    if not count:
        raise OptionError(
            f"device: expected a device that is here, got {name!r}, which PyTorch "
            f"{torch.__version__} does not see. Use --device cpu, or install PyTorch for it."
        )
    if device.index is not None and device.index >= count:
        raise OptionError(
            f"device: expected {device.type}:0 to {device.type}:{count - 1}, got {name!r}. "
            f"Choose one."
        )
    return device


def count_devices(kind: str) -> int:
    """How many devices of a kind there are; the CPU counts as one."""
    if kind == "cpu":
        return 1
    if kind == "cuda":
        return torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    return int(getattr(getattr(torch, kind, None), "device_count", int)())


def widest(where: Tensor | torch.device) -> torch.dtype:
    """The widest floating type of a device.

    Args:
        where: a device, or a tensor on it.

    Returns:
        float64, or float32 where there is none.

    >>> widest(torch.zeros(1)), widest(torch.device("mps"))
    (torch.float64, torch.float32)
    """
    device = where.device if isinstance(where, Tensor) else where
    return torch.float32 if device.type in _NARROW else torch.float64


def has_csr(device: torch.device) -> bool:
    """Whether PyTorch multiplies CSR matrices there."""
    return device.type in _WITH_CSR


def has_fused_adam(device: torch.device) -> bool:
    """Whether Adam takes a step in one kernel there."""
    return device.type in _WITH_FUSED_ADAM


def total(values: Tensor) -> float:
    """The sum of all numbers: in float64 where the device has it, otherwise compensated."""
    flat = values.detach().reshape(-1)
    wide = widest(flat)
    return float(flat.sum(dtype=wide)) if wide == torch.float64 else compensated_sum(flat)


def compensated_sum(values: Tensor) -> float:
    """The sum of float32 numbers with the rounding errors of all additions added at the end.

    Halves are added to each other, and what each addition rounds away (Knuth's TwoSum) is summed
    apart: about the accuracy of float64, on a device that has none.

    Args:
        values: one dimension.

    Returns:
        The sum.

    >>> compensated_sum(torch.tensor([1e8, 1.0, -1e8, 1.0]))
    2.0
    """
    values = values.float()
    lost = torch.zeros_like(values)
    while values.numel() > 1:
        if values.numel() % 2:
            values, lost = (torch.cat([part, part.new_zeros(1)]) for part in (values, lost))
        a, b = values.chunk(2)
        values = a + b
        part = values - a
        error = (a - (values - part)) + (b - part)
        first, second = lost.chunk(2)
        lost = first + second + error
    return float(values.sum()) + float(lost.sum())


def squared_sum(values: Tensor) -> float:
    """The sum of squares, see :func:`total`."""
    values = values.detach()
    if widest(values) == torch.float64:
        return float(torch.linalg.vector_norm(values, dtype=torch.float64) ** 2)
    return total(values.float().square())


def moved(value: Tensor, device: torch.device) -> Tensor:
    """A tensor on ``device``; to a GPU through pinned memory, so that the copy overlaps work."""
    if value.device == device:
        return value
    if device.type == "cuda" and value.device.type == "cpu" and value.layout == torch.strided:
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)


def synchronise(device: torch.device) -> None:
    """Wait until a device has done what it was told; the CPU always has."""
    if device.type == "cpu":
        return
    wait: Any = getattr(torch.get_device_module(device), "synchronize", None)
    if wait is not None:
        wait(*((device,) if device.type == "cuda" else ()))  # MPS has one device


@contextmanager
def forked_rng(devices: Iterable[torch.device], seed: int | None = None) -> Iterator[None]:
    """The global random state of the CPU and of ``devices``, put back afterwards.

    Args:
        devices: those beside the CPU.
        seed: to set inside.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for device in {device for device in devices if device.type != "cpu"}:
            stack.enter_context(_kept_state(device))
            if seed is not None:
                _seed(device, seed)
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        yield


def _seed(device: torch.device, seed: int) -> None:
    module: Any = torch.get_device_module(device)
    if hasattr(module, "manual_seed"):
        around = module.device(device) if hasattr(module, "device") else nullcontext()
        with around:  # a seed is set for the current device
            module.manual_seed(seed)


@contextmanager
def _kept_state(device: torch.device) -> Iterator[None]:
    module: Any = torch.get_device_module(device)
    if not hasattr(module, "get_rng_state"):
        yield
        return
    numbered = bool(inspect.signature(module.get_rng_state).parameters)  # MPS has one state
    arguments = (device,) if numbered else ()
    state = module.get_rng_state(*arguments)
    try:
        yield
    finally:
        module.set_rng_state(state, *arguments)

"""What a pass does besides computing an output: noticed, and said."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from virgo.errors import VirgoWarning

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@contextmanager
def noticed(model: nn.Module, data: Any, forward: object) -> Iterator[None]:
    """Warn where a pass changes the data in place, or a ``forward=`` weights, hooks or torch.

    None of it is undone: it is the user's doing, and may be meant.

    Args:
        model: that is run inside.
        data: that it is run on.
        forward: what the user passed; without it only the data are looked at.

    Yields:
        Nothing.
    """
    looks = forward is not None and not any(is_lazy(p) for p in model.parameters())
    before, tensors = _state(model) if looks else {}, _tensors(data)
    yield
    after = _state(model) if looks else {}
    changed = [what for what in before if before[what] != after[what]]
    if changed:
        _warn(
            f"forward: expected a function that only calls the model, got one that changes "
            f"{' and '.join(changed)}. They are left as it made them; let it only call the model."
        )
    edited = [name for name, (tensor, version) in tensors.items() if tensor._version != version]
    if edited:
        _warn(
            f"{type(model).__name__}: expected a pass that leaves the data as they are, got one "
            f"that writes into {' and '.join(edited)}, and does so in every pass. Let it work on a "
            f"copy, such as x = x.clone()."
        )


def _warn(message: str) -> None:
    warnings.warn(message, VirgoWarning, stacklevel=5)


def _tensors(data: Any) -> dict[str, tuple[Tensor, int]]:
    """The dense tensors of the data by name, and how often each was written to."""
    return {
        f"data.{key}": (value, value._version)
        for store in data.stores
        for key, value in store.items()
        if isinstance(value, Tensor) and value.layout == torch.strided and not value.is_inference()
    }


def _state(model: nn.Module) -> dict[str, Any]:
    """What can be looked at without cost: a tensor counts its own changes."""
    return {
        "weights": [-1 if p.is_inference() else p._version for p in model.parameters()],
        "hooks": [len(getattr(m, hooks)) for m in model.modules() for hooks in _HOOKS],
        "torch's number of threads": torch.get_num_threads(),
        "torch's default dtype": torch.get_default_dtype(),
    }

"""What a user's ``forward=`` does besides calling the model: noticed, and said."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from virgo.errors import VirgoWarning

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@contextmanager
def noticed(model: nn.Module, forward: object) -> Iterator[None]:
    """Warn where a ``forward=`` changes weights, hooks, torch's threads or default type.

    None of it is undone: it is the user's doing, and may be meant.

    Args:
        model: that is run inside.
        forward: what the user passed; without it nothing is looked at.

    Yields:
        Nothing.
    """
    if forward is None or any(is_lazy(p) for p in model.parameters()):
        yield
        return
    before = _state(model)
    yield
    after = _state(model)
    changed = [what for what in before if before[what] != after[what]]
    if changed:
        warnings.warn(
            f"forward: expected a function that only calls the model, got one that changes "
            f"{' and '.join(changed)}. They are left as it made them; let it only call the model.",
            VirgoWarning,
            stacklevel=4,
        )


def _state(model: nn.Module) -> dict[str, Any]:
    """What can be looked at without cost: a tensor counts its own changes."""
    return {
        "weights": [-1 if p.is_inference() else p._version for p in model.parameters()],
        "hooks": [len(getattr(m, hooks)) for m in model.modules() for hooks in _HOOKS],
        "torch's number of threads": torch.get_num_threads(),
        "torch's default dtype": torch.get_default_dtype(),
    }

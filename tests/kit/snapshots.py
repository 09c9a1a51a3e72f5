"""Everything about a model, and about the process, that Virgo promises to leave alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
CACHES = ("_cached_edge_index", "_cached_adj_t", "_cached_x")


def random_state() -> tuple[Any, ...]:
    """The three global generators, in a form that compares with ``==``."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 - it is the global state we guard
    return torch.get_rng_state().tolist(), (kind, keys.tolist(), *rest), random.getstate()


def module_state(model: nn.Module) -> dict[str, Any]:
    """What of each module is not a tensor: mode, hooks, caches (by identity), attribute names."""
    return {
        path: (
            module.training,
            [list(getattr(module, hooks)) for hooks in HOOKS],
            [id(getattr(module, cache, None)) for cache in CACHES],
            sorted(vars(module)),
        )
        for path, module in model.named_modules()
    }


def tensors(model: nn.Module) -> dict[str, Tensor | None]:
    """Copies of every parameter and buffer; none where a lazy one has no values yet."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    return {name: None if is_lazy(t) else t.detach().clone() for name, t in named}


def gradients(model: nn.Module) -> dict[str, tuple[int, Tensor | None, bool]]:
    """Of each parameter: which tensor it is, its gradient, whether it wants one."""
    return {
        name: (id(p), None if p.grad is None else p.grad.clone(), p.requires_grad)
        for name, p in model.named_parameters(remove_duplicate=False)
    }


def same(left: Tensor | None, right: Tensor | None) -> bool:
    """Bit for bit, with NaN equal to itself."""
    if left is None or right is None:
        return left is right
    return (
        left.dtype == right.dtype
        and torch.equal(left.isnan(), right.isnan())
        and torch.equal(left.nan_to_num(), right.nan_to_num())
    )


@contextmanager
def untouched(model: nn.Module, *, weights: bool = True) -> Iterator[None]:
    """Fails unless the block leaves the model as it was, or all of it but its weights."""
    before = tensors(model), module_state(model), gradients(model), random_state()
    try:
        yield
    finally:
        after = tensors(model), module_state(model), gradients(model), random_state()
        assert after[0].keys() == before[0].keys()
        buffers = {name for name, _ in model.named_buffers()}
        for name in before[0]:
            if weights or name in buffers:
                assert same(before[0][name], after[0][name]), f"{name} was changed"
        assert after[1] == before[1]
        for name, (identity, grad, wants) in before[2].items():
            assert after[2][name][0] == identity, f"{name} is another tensor"
            assert same(after[2][name][1], grad), f"{name}.grad was changed"
            assert after[2][name][2] == wants, f"{name}.requires_grad was changed"
        assert after[3] == before[3], "a global random state was advanced"


def unusual(model: nn.Module) -> nn.Module:
    """A model in a state that is easy to lose: mixed modes, hooks, gradients, a frozen weight."""
    model.train()
    modules = list(model.modules())
    modules[-1].eval()
    modules[1].register_forward_hook(lambda module, args, output: None)
    modules[0].register_forward_pre_hook(lambda module, args: None)
    for index, parameter in enumerate(model.parameters()):
        if is_lazy(parameter):
            continue
        if index % 2 == 0:
            parameter.grad = torch.full_like(parameter, 0.5)
    return model

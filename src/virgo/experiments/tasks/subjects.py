"""A task's network before training, with all that it takes to measure it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.data import Data

from virgo.diagnostics.comparing import Planner
from virgo.network.inputs import Forward, run
from virgo.network.probe import Loss


@dataclass(frozen=True)
class Subject:
    """What :func:`virgo.compare` and :func:`virgo.check` look at, and how.

    Attributes:
        model: the network, with PyTorch's initialisation.
        data: the graph it is run on.
        loss: the task's own, of the output of ``forward`` and ``data``.
        forward: how the network is run on ``data``.
        plan: the plan that a run of the task would start from: of the network, a method with
            options after a plus, and a seed.
        notes: remarks to show beside the numbers.
        facts: the same as numbers.
    """

    model: nn.Module
    data: Data
    loss: Loss
    forward: Forward
    plan: Planner
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def with_batch_statistics(model: nn.Module, data: Any) -> Any:
    """A pass in which BatchNorm uses the mean and variance of its input, as in training.

    Its running statistics change; the caller restores them, as :func:`virgo.measure` does.

    Args:
        model: the network.
        data: what :func:`virgo.network.inputs.run` takes.

    Returns:
        The output.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    modes = [norm.training for norm in norms]
    try:
        for norm in norms:
            norm.train()
        return run(model, data)
    finally:
        for norm, mode in zip(norms, modes, strict=True):
            norm.train(mode)

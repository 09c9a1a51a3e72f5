"""Training and evaluation: one loop for nodes, links and graphs, and ``run`` for one network."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from virgo.experiments.data.datasets import Dataset
from virgo.experiments.models.network import Config
from virgo.experiments.tasks import checkpoint
from virgo.experiments.tasks.compute import CPU, Compute
from virgo.experiments.tasks.node import NodeTask
from virgo.experiments.tasks.outcome import Outcome, Seeds, is_out_of_memory
from virgo.experiments.tasks.settings import Settings
from virgo.experiments.tasks.training import Epoch, Task, Training

__all__ = [
    "CPU",
    "Compute",
    "Epoch",
    "NodeTask",
    "Outcome",
    "Seeds",
    "Settings",
    "Task",
    "Training",
    "checkpoint",
    "run",
    "task_of",
]

_tasks: dict[tuple[int, Compute], Task] = {}


def task_of(dataset: Dataset, device: Compute | torch.device | str = CPU) -> Any:
    """The task of a dataset, with all that its runs share; only the last one is cached.

    Args:
        dataset: what :func:`virgo.data.load` returned.
        device: where its runs compute, and with :class:`Compute` how.

    Returns:
        The task.
    """
    compute = device if isinstance(device, Compute) else Compute.of(device)
    key = (id(dataset), compute)
    if key not in _tasks:  # the task holds the dataset, so no other gets this id
        task = _kind(dataset)(dataset, compute)
        _tasks.clear()
        _tasks[key] = task
    return _tasks[key]


def _kind(dataset: Dataset) -> Callable[[Dataset, Compute], Task]:
    if dataset.task == "node":
        return NodeTask
    if dataset.task == "link":
        from virgo.experiments.tasks.link import LinkTask

        return LinkTask
    from virgo.experiments.tasks.graph import GraphTask

    return GraphTask


def run(
    dataset: Dataset,
    model: str,
    init: str,
    config: Config,
    seed: int,
    device: Compute | torch.device | str = CPU,
) -> Outcome:
    """Train one network and test its best weights.

    Args:
        dataset: what :func:`virgo.data.load` returned.
        model: one of :data:`virgo.experiments.models.MODELS`.
        init: an initialisation, e.g. ``"xavier"`` or ``"virgo-backward+measured"``.
        config: the fields of :class:`Settings`.
        seed: of everything random; runs of one seed differ only in their initialisation.
        device: where it computes, e.g. ``"cuda:1"``, and with :class:`Compute` how.

    Returns:
        The outcome. A loss that is not finite and a lack of memory are outcomes, too.

    Raises:
        RuntimeError: any other failure.
    """  # noqa: DOC501  (a MemoryError is always an outcome)
    began = time.perf_counter()
    try:
        task = task_of(dataset, device)
        return Training(task, model, init, Settings.of(config), seed).complete()
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return Outcome.failed("out of memory", 0, time.perf_counter() - began)

"""Training and evaluation: one loop for each kind of task, and ``run`` for one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from virgo.experiments.tasks import checkpoint
from virgo.experiments.tasks.node import NodeTask
from virgo.experiments.tasks.outcome import Outcome, Seeds, is_out_of_memory
from virgo.experiments.tasks.settings import Settings
from virgo.experiments.tasks.training import Epoch, Task, Training

__all__ = [
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

_tasks: dict[int, Task] = {}


def task_of(dataset: Any) -> Any:
    """The dataset with what its runs share; the last one asked for is kept."""
    if id(dataset) not in _tasks:  # the task holds the dataset, so the id stays its own
        task = _kind(dataset)(dataset)
        _tasks.clear()
        _tasks[id(dataset)] = task
    return _tasks[id(dataset)]


def _kind(dataset: Any) -> Callable[[Any], Task]:
    if dataset.task == "node":
        return NodeTask
    if dataset.task == "link":
        from virgo.experiments.tasks.link import LinkTask

        return LinkTask
    from virgo.experiments.tasks.graph import GraphTask

    return GraphTask


def run(dataset: Any, model: str, init: str, config: Mapping[str, Any], seed: int) -> Outcome:
    """Train one network and test its best weights.

    Args:
        dataset: what :func:`virgo.data.load` returned.
        model: one of :data:`virgo.experiments.models.MODELS`.
        init: an initialisation, e.g. ``"xavier"`` or ``"virgo-backward+measured"``.
        config: the fields of :class:`Settings`.
        seed: of everything random; runs with one seed share all of it but the initialisation.

    Returns:
        The outcome. A loss that is no longer finite and memory that does not suffice are outcomes,
        too; a mistake in the arguments is an error.
    """
    began = time.perf_counter()
    try:
        training = Training(task_of(dataset), model, init, Settings.of(config), seed)
        epochs = []
        while not training.done:
            epochs.append(training.advance())
        curve = tuple((e.number, e.valid) for e in epochs if e.valid is not None)
        return replace(training.finish(), curve=curve)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return Outcome.failed("out of memory", 0, time.perf_counter() - began)

"""Training and evaluation on batches of graphs."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from virgo.errors import DataError
from virgo.experiments.models.pooled import Pooled
from virgo.experiments.tasks.fused import relu_dropout
from virgo.experiments.tasks.graph.labels import present
from virgo.experiments.tasks.outcome import Seeds
from virgo.experiments.tasks.settings import Settings

if TYPE_CHECKING:
    from virgo.experiments.tasks.graph import GraphTask

#: Graphs that are evaluated at a time.
EVALUATED = 256


def dropped(p: float, rng: np.random.Generator, h: Tensor, relu: bool) -> Tensor:
    """Dropout, after a ReLU if that is asked for, with masks from ``rng``."""
    if not p:
        return h.relu() if relu else h
    return relu_dropout(h, p, rng) if relu else h * relu_dropout(torch.ones_like(h), p, rng)


class GraphBatches:
    """Training on batches of graphs in an order that follows from the seed and the epoch."""

    def __init__(self, task: GraphTask, settings: Settings, seeds: Seeds) -> None:
        self.task, self.settings, self.seed = task, settings, seeds.training
        self.split = task.split_of(seeds.number)
        self.runs_forward = task.is_molecules

    def train_epoch(self, model: Pooled, optimiser: torch.optim.Optimizer, epoch: int) -> float:
        """One epoch; the mean loss, or nan where it is not finite."""
        rng = np.random.default_rng([self.seed, epoch])
        train = self.split["train"]
        order = train[torch.from_numpy(rng.permutation(train.numel()))]
        drop = partial(dropped, model.dropout, rng)
        model.train()
        total, count = 0.0, 0
        for graphs in order.split(self.settings.batch_size):
            y = self.task.y[graphs]
            labels = present(y)
            # as in OGB's own loop; BatchNorm has no variance over one node
            if not labels or self.task.merged.num_nodes(graphs) < 2:
                continue
            optimiser.zero_grad()
            loss = self.task.loss(self.task.output(model, graphs, drop), self.task.compute.put(y))
            value = loss.item()
            if not math.isfinite(value):
                return math.nan
            loss.backward()
            if self.settings.max_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), self.settings.max_grad_norm)
            optimiser.step()
            total += value * labels
            count += labels
        if not count:
            raise DataError(
                f"{self.task.dataset.name}: expected batches with two nodes and a label, got none "
                f"with batch_size={self.settings.batch_size}. Raise it."
            )
        return total / count

    @torch.no_grad()
    def predict(self, model: Pooled, part: str) -> Tensor:
        """The network's output for the graphs of ``part``."""
        model.eval()
        outputs = [self.task.output(model, ids) for ids in self.split[part].split(EVALUATED)]
        return torch.cat(outputs)

    def evaluate(self, model: Pooled, part: str) -> float:
        """The metric on the graphs of ``part``."""
        y = self.task.y[self.split[part]]
        output = self.predict(model, part).float()
        return self.task.score(output, y)

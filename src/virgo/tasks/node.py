"""Node classification, on the whole graph or on samples of it."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from virgo.errors import OptionError
from virgo.init import init_
from virgo.models import Network, build
from virgo.schemes import parse_method
from virgo.tasks import metrics
from virgo.tasks.outcome import Seeds
from virgo.tasks.passes import Graph, Pass
from virgo.tasks.sampled import SampledBatches, Sampling
from virgo.tasks.settings import Settings
from virgo.tasks.training import Batches

#: Initial weights kept for the configurations that follow with the same network and seed.
KEPT_STARTS = 16


class WholeGraph:
    """One step an epoch, on exactly what the training nodes can see."""

    def __init__(self, task: NodeTask, model: Network, seed: int) -> None:
        self.loss = metrics.loss_for(task.dataset.metric)
        self.target = task.dataset.data.y[task.dataset.split["train"]]
        self.task, self.seed = task, seed
        self.train = task.pass_over(model, "train")

    def train_epoch(self, model: Network, optimiser: torch.optim.Optimizer, epoch: int) -> float:
        """One step; the loss before it."""
        rng = np.random.default_rng([self.seed, epoch])
        optimiser.zero_grad()
        loss = self.loss(self.train(model, rng), self.target)
        value = loss.item()
        if math.isfinite(value):
            loss.backward()
            optimiser.step()
        return value

    @torch.no_grad()
    def predict(self, model: Network, part: str) -> Tensor:
        """The network's output at the nodes of ``part``."""
        return self.task.pass_over(model, part)(model)

    def evaluate(self, model: Network, part: str) -> float:
        """The metric at the nodes of ``part``."""
        return metrics.node_score(self.task.dataset, part, self.predict(model, part))


class NodeTask:
    """A dataset with all that its runs share."""

    def __init__(self, dataset: Any) -> None:
        if dataset.task != "node":
            raise OptionError(
                f"{dataset.name}: expected a node classification dataset, got a {dataset.task} one."
            )
        if dataset.metric not in metrics.NODE_METRICS:
            known = ", ".join(metrics.NODE_METRICS)
            raise OptionError(
                f"{dataset.name}: expected a metric of {known}, got {dataset.metric!r}."
            )
        self.dataset = dataset
        self._graphs: dict[tuple[str, ...], Graph] = {}
        self._samplings: dict[tuple[str, ...], Sampling] = {}
        self._passes: dict[tuple[Any, ...], Pass] = {}
        self._starts: OrderedDict[tuple[Any, ...], dict[str, Tensor]] = OrderedDict()

    def pass_over(self, model: Network, part: str) -> Pass:
        """The pass to the nodes of ``part`` for a network like this one, made once."""
        key = (model.operators, model.num_layers, part)
        if key not in self._passes:
            if model.operators not in self._graphs:
                self._graphs[model.operators] = Graph(self.dataset.data, model.operators)
            graph = self._graphs[model.operators]
            self._passes[key] = Pass(graph, model.num_layers, self.dataset.split[part])
        return self._passes[key]

    def batches(self, model: Network, settings: Settings, seeds: Seeds) -> Batches:
        """How these settings train."""
        if settings.num_neighbors is None:
            return WholeGraph(self, model, seeds.training)
        if model.operators not in self._samplings:
            self._samplings[model.operators] = Sampling(self.dataset.data, model.operators)
        sampling = self._samplings[model.operators]
        return SampledBatches(self.dataset, sampling, settings, seeds.training)

    def start(self, name: str, init: str, settings: Settings, seed: int) -> Network:
        """The network, initialised; learning rate and dropout do not matter to that."""
        data = self.dataset.data
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # of what a method leaves alone
            model = build(name, data.num_features, self.dataset.num_classes, settings.to_dict())
        sizes = (settings.hidden_channels, settings.num_layers, settings.ngnn_type,
                 settings.num_ngnn_layers)  # fmt: skip
        key = (name, init, sizes, seed)
        if key not in self._starts:
            method, options = parse_method(init)
            init_(model, data, method, seed=seed, **options)
            self._starts[key] = {k: v.clone() for k, v in model.state_dict().items()}
            if len(self._starts) > KEPT_STARTS:
                self._starts.popitem(last=False)
        model.load_state_dict(self._starts[key])
        for parameter in model.convs[0].parameters():
            # Sparse features multiply W^T row by row: have its rows together in memory.
            parameter.data = parameter.data.t().contiguous().t()
        return model

"""Node classification, on the whole graph or on samples of it."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from virgo.experiments.data.datasets import Dataset
from virgo.experiments.models import Network
from virgo.experiments.tasks import metrics
from virgo.experiments.tasks.compute import CPU, Compute
from virgo.experiments.tasks.encoding import Encoding, OperatorCache
from virgo.experiments.tasks.outcome import Seeds
from virgo.experiments.tasks.sampled import SampledNodeBatches, Sampling
from virgo.experiments.tasks.settings import Settings
from virgo.experiments.tasks.starts import Starts, transposed_in_memory
from virgo.experiments.tasks.training import Batches
from virgo.init import plan
from virgo.rules import parse_method


class WholeGraphNodes:
    """One step per epoch, on exactly what the training nodes can see."""

    def __init__(self, task: NodeTask, model: Network, seed: int) -> None:
        self.loss = metrics.loss_for(task.dataset.metric)
        self.target = task.compute.put(task.dataset.data.y[task.dataset.split["train"]])
        self.task, self.seed = task, seed
        self.train = task.encoding(model, "train")

    def train_epoch(self, model: Network, optimiser: torch.optim.Optimizer, epoch: int) -> float:
        """One step; the loss before it."""
        rng = np.random.default_rng([self.seed, epoch])
        optimiser.zero_grad()
        loss = self.loss(self.train(model, rng=rng), self.target)
        value = loss.item()
        if math.isfinite(value):
            loss.backward()
            optimiser.step()
        return value

    @torch.no_grad()
    def predict(self, model: Network, part: str) -> Tensor:
        """The network's output at the nodes of ``part``."""
        return self.task.encoding(model, part)(model)

    def evaluate(self, model: Network, part: str) -> float:
        """The metric at the nodes of ``part``."""
        return metrics.node_score(self.task.dataset, part, self.predict(model, part))


class NodeTask:
    """A dataset with all that its runs share.

    Args:
        dataset: what :func:`virgo.data.load` returned.
        compute: where and how its runs compute.
    """

    def __init__(self, dataset: Dataset, compute: Compute = CPU) -> None:
        metrics.check_dataset(dataset, "node", metrics.NODE_METRICS)
        self.dataset, self.compute = dataset, compute
        self._operators: dict[tuple[str, ...], OperatorCache] = {}
        self._samplings: dict[tuple[str, ...], Sampling] = {}
        self._encodings: dict[tuple[tuple[str, ...], int, str], Encoding] = {}
        self.recipe = {
            "form": "node",
            "in_channels": int(dataset.data.num_features),
            "out_channels": int(dataset.num_classes),
        }
        self._starts = Starts(self.recipe, compute.device)

    def encoding(self, model: Network, part: str) -> Encoding:
        """The pass to the nodes of ``part`` for a network like this one, made once."""
        key = (model.operators, model.num_layers, part)
        if key not in self._encodings:
            if model.operators not in self._operators:
                self._operators[model.operators] = OperatorCache(self.dataset.data, model.operators)
            graph = self._operators[model.operators]
            nodes = self.dataset.split[part]
            encoding = Encoding.at_nodes(graph, model.num_layers, nodes)
            self._encodings[key] = encoding.to(self.compute.device)
        return self._encodings[key]

    def batches(self, model: Network, settings: Settings, seeds: Seeds) -> Batches:
        """How these settings train."""
        if settings.num_neighbors is None:
            return WholeGraphNodes(self, model, seeds.training)
        if model.operators not in self._samplings:
            self._samplings[model.operators] = Sampling(self.dataset.data, model.operators)
        sampling = self._samplings[model.operators]
        return SampledNodeBatches(self.dataset, sampling, settings, seeds.training, self.compute)

    def start(self, name: str, init: str, settings: Settings, seeds: Seeds) -> Network:
        """The network, initialised; learning rate and dropout do not matter to that."""
        method, options = parse_method(init)
        seed, data = seeds.initialisation, self.dataset.data
        model: Network = self._starts.initialised(
            name,
            init,
            settings,
            seed,
            lambda model: plan(model, data, method, seed=seed, **options).apply_(model),
        )
        if self.compute.is_cpu:
            transposed_in_memory(model.convs[0])
        return model

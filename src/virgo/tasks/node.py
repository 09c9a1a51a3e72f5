"""Node classification: one training and evaluation loop, on the whole graph or on samples of it.

The paper's protocol (section 5.1): Adam, validation after every epoch, early stopping, and the
weights of the best validation epoch tested once.
"""

from __future__ import annotations

import copy
import math
import time
from collections import OrderedDict
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from virgo.errors import OptionError
from virgo.init import init_
from virgo.models import Network, build
from virgo.schemes import parse_method
from virgo.tasks import metrics
from virgo.tasks.outcome import Outcome, Seeds
from virgo.tasks.passes import Graph, Pass
from virgo.tasks.sampled import SampledBatches, Sampling
from virgo.tasks.settings import Settings

#: Initial weights kept for the configurations that follow with the same network and seed.
KEPT_STARTS = 16


class Batches(Protocol):
    """How a network is trained for an epoch, and how it predicts."""

    def train_epoch(
        self, model: Network, optimiser: torch.optim.Optimizer, epoch: int
    ) -> float: ...

    def predict(self, model: Network, part: str) -> Tensor: ...


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
        return self.task.pass_over(model, part)(model)


class NodeTask:
    """A dataset with all that its runs share."""

    def __init__(self, dataset: Any) -> None:
        if dataset.task != "node":
            raise OptionError(
                f"{dataset.name}: expected a node classification dataset, got a {dataset.task} one."
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

    def batches(self, model: Network, settings: Settings, seed: int) -> Batches:
        """How these settings train."""
        if settings.num_neighbors is None:
            return WholeGraph(self, model, seed)
        if model.operators not in self._samplings:
            self._samplings[model.operators] = Sampling(self.dataset.data, model.operators)
        return SampledBatches(self.dataset, self._samplings[model.operators], settings, seed)

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


class Epoch(NamedTuple):
    """One epoch's training loss, and its validation score if there was one."""

    number: int
    loss: float
    valid: float | None


class Training:
    """One run, epoch by epoch, so that it can be shown, stopped and continued.

    Args:
        task: the dataset.
        model: name of the network.
        init: the initialisation, e.g. ``"virgo-backward+measured"``.
        settings: the hyper-parameters.
        seed: of everything random.
    """

    def __init__(
        self, task: NodeTask, model: str, init: str, settings: Settings, seed: int
    ) -> None:
        self.task, self.name, self.init, self.settings, self.seed = (
            task,
            model,
            init,
            settings,
            seed,
        )
        self.seconds = 0.0
        began = time.perf_counter()
        self.seeds = Seeds.of(seed)
        self.model = task.start(model, init, settings, self.seeds.initialisation)
        self.optimiser = torch.optim.Adam(
            self.model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay, fused=True
        )
        self.batches = task.batches(self.model, settings, self.seeds.training)
        self.score = metrics.scorer(task.dataset.metric)
        self.epoch = 0
        self.best_epoch = 0
        self.best_valid = -math.inf
        self.best = copy.deepcopy(self.model.state_dict())
        self.diverged = False
        self.seconds += time.perf_counter() - began

    @property
    def done(self) -> bool:
        """Whether the last epoch was run, patience is over, or the loss is not finite."""
        patience = self.settings.patience
        return (
            self.diverged
            or self.epoch >= self.settings.epochs
            or (patience is not None and self.epoch - self.best_epoch >= patience)
        )

    @torch.no_grad()
    def _keep(self) -> None:
        for name, parameter in self.model.named_parameters():
            self.best[name].copy_(parameter)

    def advance(self) -> Epoch:
        """Train for one epoch and validate."""
        began = time.perf_counter()
        self.epoch += 1
        loss = self.batches.train_epoch(self.model, self.optimiser, self.epoch)
        self.diverged = not math.isfinite(loss)
        valid = None
        if not self.diverged and self.epoch % self.settings.eval_every == 0:
            valid = self._evaluate("valid")
            # As good as the best counts as better: a small step may change no prediction for long.
            if valid >= self.best_valid:
                self.best_valid, self.best_epoch = valid, self.epoch
                self._keep()
        self.seconds += time.perf_counter() - began
        return Epoch(self.epoch, loss, valid)

    def finish(self) -> Outcome:
        """Test the best weights, once."""
        if self.diverged:
            return Outcome.failed("diverged", self.epoch, self.seconds)
        began = time.perf_counter()
        self.model.load_state_dict(self.best)
        test = self._evaluate("test")
        self.seconds += time.perf_counter() - began
        return Outcome(self.best_valid, test, self.best_epoch, self.epoch, self.seconds)

    def _evaluate(self, part: str) -> float:
        target = self.task.dataset.data.y[self.task.dataset.split[part]]
        return self.score(self.batches.predict(self.model, part), target)

"""One run of any task, epoch by epoch: the paper's protocol.

Adam, validation after every epoch, early stopping, and the weights of the best validation epoch
tested once. What an epoch and a score are, the task defines.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from virgo.devices import has_fused_adam
from virgo.errors import VirgoWarning
from virgo.experiments.data.datasets import Dataset
from virgo.experiments.tasks.compute import Compute
from virgo.experiments.tasks.outcome import Outcome, Seeds
from virgo.experiments.tasks.settings import Settings


class Batches(Protocol):
    """How a network is trained for an epoch, and how it is scored."""

    def train_epoch(self, model: Any, optimiser: torch.optim.Optimizer, epoch: int) -> float:
        """One epoch; its loss, which is not finite if it diverged."""

    def evaluate(self, model: Any, part: str) -> float:
        """The dataset's metric on ``"valid"`` or ``"test"``."""


class Task(Protocol):
    """A dataset with all that its runs share."""

    dataset: Dataset
    compute: Compute
    recipe: dict[str, Any]
    """What :func:`virgo.experiments.models.from_recipe` builds its networks from."""

    def start(self, name: str, init: str, settings: Settings, seeds: Seeds) -> nn.Module:
        """The network, initialised; learning rate and dropout do not matter to that."""

    def batches(self, model: Any, settings: Settings, seeds: Seeds) -> Batches:
        """How these settings train it."""


class Epoch(NamedTuple):
    """One epoch's training loss, and its validation score if there was one."""

    number: int
    loss: float
    valid: float | None


class Training:
    """One run, epoch by epoch, so that it can be shown, stopped and continued.

    Args:
        task: the dataset, as :func:`virgo.experiments.tasks.task_of` gives it.
        model: name of the network.
        init: the initialisation, e.g. ``"virgo-backward+measured"``.
        settings: the hyper-parameters.
        seed: of everything random.
    """

    def __init__(self, task: Task, model: str, init: str, settings: Settings, seed: int) -> None:
        self.task, self.settings, self.seed = task, settings, seed
        self.name, self.init = model, init
        self.seconds = 0.0
        began = time.perf_counter()
        self.seeds = Seeds.of(seed)
        self.model = task.start(model, init, settings, self.seeds)
        self.optimiser = torch.optim.Adam(
            self.model.parameters(),
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            fused=has_fused_adam(task.compute.device),
        )
        self.batches = task.batches(self.model, settings, self.seeds)
        if task.compute.compile:
            self._compile()
        self.epoch = 0
        self.best_epoch = 0
        self.best_valid = -math.inf
        self.best = copy.deepcopy(self.model.state_dict())
        self.diverged = False
        self.seconds += time.perf_counter() - began

    def _compile(self) -> None:
        if getattr(self.batches, "runs_forward", False):
            self.model.compile(dynamic=True)
            return
        warnings.warn(
            "compile: nothing to compile: this task multiplies constant matrices, which "
            "torch.compile leaves as they are. It is for neighbour sampling and molecules.",
            VirgoWarning,
            stacklevel=3,
        )

    @property
    def done(self) -> bool:
        """Whether the last epoch was run, patience is over, or the loss is not finite."""
        patience = self.settings.patience
        return (
            self.diverged
            or self.epoch >= self.settings.epochs
            or (patience is not None and self.epoch - self.best_epoch >= patience)
        )

    def advance(self) -> Epoch:
        """Train for one epoch and validate."""
        began = time.perf_counter()
        self.epoch += 1
        if self.settings.halve_every is not None:
            halvings = (self.epoch - 1) // self.settings.halve_every
            for group in self.optimiser.param_groups:
                group["lr"] = self.settings.lr * 0.5**halvings
        with self.task.compute.autocast():
            loss = self.batches.train_epoch(self.model, self.optimiser, self.epoch)
        self.diverged = not math.isfinite(loss)
        valid = None
        is_due = self.epoch % self.settings.eval_step == 0 or self.epoch == self.settings.epochs
        if is_due and not self.diverged:
            valid = self._score("valid")
            # As good as the best counts as better: a small step may change no prediction for long.
            is_better = valid > self.best_valid
            if is_better or (valid == self.best_valid and not self.settings.strict):
                self.best_valid, self.best_epoch = valid, self.epoch
                for name, value in self.model.state_dict().items():
                    self.best[name].copy_(value)
        self.seconds += time.perf_counter() - began
        return Epoch(self.epoch, loss, valid)

    def complete(self) -> Outcome:
        """Train to the end and test; the outcome has the validation curve."""
        epochs = []
        while not self.done:
            epochs.append(self.advance())
        curve = tuple((e.number, e.valid) for e in epochs if e.valid is not None)
        return replace(self.finish(), curve=curve)

    def _score(self, part: str) -> float:
        with self.task.compute.autocast():
            return self.batches.evaluate(self.model, part)

    def finish(self) -> Outcome:
        """Test the best weights, once."""
        if self.diverged:
            return Outcome.failed("diverged", self.epoch, self.seconds)
        began = time.perf_counter()
        self.model.load_state_dict(self.best)
        test = self._score("test")
        self.seconds += time.perf_counter() - began
        return Outcome(self.best_valid, test, self.best_epoch, self.epoch, self.seconds)

"""What planning, a training step and a seed of a sweep cost beside PyG's plain loop.

Both take turns in one process, so that whatever else the machine does hits both alike, and ratios
can be compared between machines.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch.nn import functional

from virgo.devices import forked_rng, has_fused_adam, synchronise
from virgo.experiments.data.datasets import Dataset
from virgo.experiments.models import build
from virgo.experiments.tasks.compute import Compute
from virgo.experiments.tasks.metrics import check_dataset, loss_for
from virgo.experiments.tasks.node import NodeTask
from virgo.experiments.tasks.outcome import Seeds
from virgo.experiments.tasks.settings import Settings
from virgo.experiments.tasks.training import Training
from virgo.init import plan

#: Epochs of one seed in a sweep's ratio.
EPOCHS = 20


@dataclass(frozen=True)
class Timing:
    """Median seconds of one operation here and in PyG's plain loop.

    Attributes:
        name: of the operation.
        ours: seconds here.
        plain: seconds in the plain loop.
        beside: what the plain loop does in that time.
    """

    name: str
    ours: float
    plain: float
    beside: str

    @property
    def ratio(self) -> float:
        """How many of the plain loop's operations take the time of one here."""
        return self.ours / self.plain

    def to_dict(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self) | {"ratio": self.ratio}


class PlainLoop:
    """PyG's layers in the loop of its examples, on the whole graph."""

    def __init__(self, dataset: Dataset, name: str, settings: Settings, compute: Compute) -> None:
        self.compute, self.settings = compute, settings
        self.data = dataset.data.clone().to(compute.device)
        self.train = compute.put(dataset.split["train"])
        self.valid = compute.put(dataset.split["valid"])
        self.loss = loss_for(dataset.metric)
        sizes = (int(dataset.data.num_features), int(dataset.num_classes))
        self.model = build(name, *sizes, settings.to_dict()).to(compute.device)
        self.optimiser = torch.optim.Adam(
            self.model.parameters(), lr=settings.lr, fused=has_fused_adam(compute.device)
        )

    def step(self) -> None:
        """One training step."""
        self.model.train()
        self.optimiser.zero_grad()
        with self.compute.autocast():
            output = self.model(self.data.x, self.data.edge_index)
            value = self.loss(output[self.train], self.data.y[self.train])
        value.item()
        value.backward()
        self.optimiser.step()

    @torch.no_grad()
    def epoch(self) -> None:
        """One step and the validation after it."""
        with torch.enable_grad():
            self.step()
        self.model.eval()
        with self.compute.autocast():
            output = self.model(self.data.x, self.data.edge_index)[self.valid]
        functional.softmax(output, -1).argmax(1).sum().item()


def time_loops(
    dataset: Dataset, name: str, settings: Settings, compute: Compute, rounds: int = 20
) -> list[Timing]:
    """Plan, step and seed beside the plain loop.

    Args:
        dataset: of node classification.
        name: of the network.
        settings: its sizes.
        compute: where and how.
        rounds: how often each is timed.

    Returns:
        One timing each.
    """
    check_dataset(dataset, "node")
    task = NodeTask(dataset, compute)
    training = Training(task, name, "virgo-backward", settings, seed=0)
    plain = PlainLoop(dataset, name, settings, compute)

    def train() -> None:
        with compute.autocast():
            training.batches.train_epoch(training.model, training.optimiser, 1)

    def seed() -> None:
        run = Training(task, name, "virgo-backward", settings, seed=0)
        for _ in range(EPOCHS):
            run.advance()

    def plain_seed() -> None:
        loop = PlainLoop(dataset, name, settings, compute)
        for _ in range(EPOCHS):
            loop.epoch()

    network = task._starts.build(name, settings, Seeds.of(0).initialisation)
    device = compute.device
    with forked_rng([device], seed=0):
        planned, step = _turns(
            lambda: plan(network, plain.data, "virgo-backward"), plain.step, rounds, device
        )
        ours, plain_step = _turns(train, plain.step, rounds, device)
        whole, plain_whole = _turns(seed, plain_seed, max(1, rounds // 5), device)
    return [
        Timing("plan", planned, step, "a training step"),
        Timing("training step", ours, plain_step, "a training step"),
        Timing("seed of a sweep", whole, plain_whole, f"{EPOCHS} epochs with validation"),
    ]


def _turns(
    ours: Callable[[], object], plain: Callable[[], object], rounds: int, device: torch.device
) -> tuple[float, float]:
    """Median seconds of both, in turns, after one round that is not counted."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for round_ in range(rounds + 1):
        for work, times in zip((ours, plain), seconds, strict=True):
            began = time.perf_counter()
            work()
            synchronise(device)
            if round_:
                times.append(time.perf_counter() - began)
    return statistics.median(seconds[0]), statistics.median(seconds[1])

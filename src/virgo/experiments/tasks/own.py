"""A user's own data and model as a task, trained and tested by the paper's protocol.

Two kinds of data are trained on as they are: one ``Data`` with masks and classes (nodes), and lists
of graphs with a class each under ``"train"``, ``"valid"`` and ``"test"``. For anything else a
function trains and tests; it may do what it likes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from virgo.errors import DataError, LayerError, OptionError
from virgo.experiments.data.datasets import FOLDS, MASKS, PARTS, Dataset
from virgo.experiments.tasks.calling import call
from virgo.experiments.tasks.compute import CPU, Compute
from virgo.experiments.tasks.outcome import Seeds
from virgo.experiments.tasks.settings import Settings
from virgo.init import plan
from virgo.network.inputs import is_classes, run
from virgo.rules import parse_method

#: The method that leaves a model as its own constructor made it.
UNTOUCHED = "default"
#: Grid keys that training takes; all others are the model's.
TRAINING = (
    "lr",
    "weight_decay",
    "epochs",
    "patience",
    "strict",
    "halve_every",
    "eval_step",
    "batch_size",
    "max_grad_norm",
)
_WHAT = (
    "one Data with y, train_mask, val_mask and test_mask, or lists of graphs under 'train', "
    "'valid' and 'test'"
)
Split = tuple[Any, Any, Any]


@dataclass(frozen=True)
class OwnData:
    """What a user's function returned, as far as training has to know it.

    Attributes:
        name: what records and errors call it.
        data: the ``Data``, the lists of graphs, or anything where a function trains.
        generated: the remark on generated data.
        folds: one split per seed, where the dataset has folds in place of a split.
        metric: of training that is not the user's own.
    """

    name: str
    data: Any
    generated: str | None = None
    folds: tuple[Mapping[str, Any], ...] = ()
    metric: str = "accuracy"

    @classmethod
    def of(cls, name: str, value: Any) -> OwnData:
        """From a ``Data``, lists of graphs, or a dataset of :func:`virgo.data.load`."""
        if not isinstance(value, Dataset):
            if isinstance(value, (list, tuple)) and len(value) == 3:
                value = dict(zip(PARTS, value, strict=True))
            return cls(name, value)
        if value.task != "graph":
            return cls(name, value.data, value.generated)
        if value.split:
            parts = {part: _taken(value.data, value.split[part]) for part in PARTS}
            return cls(name, parts, value.generated)
        tests = [test for _, test in value.folds()]
        folds = []
        for fold in range(FOLDS):
            after = (fold + 1) % FOLDS
            rest = torch.cat([t for i, t in enumerate(tests) if i not in (fold, after)])
            ids = {"train": rest, "valid": tests[after], "test": tests[fold]}
            folds.append({part: _taken(value.data, ids[part]) for part in PARTS})
        return cls(name, folds[0], value.generated, tuple(folds))

    @property
    def is_nodes(self) -> bool:
        """Whether it is one graph with masks and classes."""
        data = self.data
        return (
            isinstance(data, Data)
            and all(data.get(mask) is not None for mask in MASKS)
            and is_classes(data.get("y"))
        )

    @property
    def is_graphs(self) -> bool:
        """Whether it is lists of graphs."""
        return isinstance(self.data, Mapping) and set(self.data) == set(PARTS)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Features and classes, under the names that a model may ask for."""
        if self.is_nodes:
            features, y = self.data.num_features, self.data.y
        elif self.is_graphs:
            graphs = [graph for part in PARTS for graph in self.data[part]]
            features, y = graphs[0].num_features, torch.cat([g.y.view(-1) for g in graphs])
            if not is_classes(y):
                return {"in_channels": features, "num_features": features}
        else:
            return {}
        classes = int(y.max()) + 1
        return {
            "in_channels": features,
            "num_features": features,
            "out_channels": classes,
            "num_classes": classes,
        }

    def check(self) -> None:
        """Raise unless it can be trained on without a function of the user's."""
        if self.is_nodes or (self.is_graphs and "num_classes" in self.sizes):
            self._refuse_empty_parts()
            return
        found: Any = type(self.data).__name__
        if isinstance(self.data, Data):
            lacking = [mask for mask in MASKS if self.data.get(mask) is None]
            classes = [] if is_classes(self.data.get("y")) else ["classes y"]
            found = f"a Data without {', '.join([*lacking, *classes])}"
        elif self.is_graphs:
            found = "graphs whose y is not a class"
        raise DataError(
            f"{self.name}: expected {_WHAT}, got {found}. Add what is missing, or pass your own "
            f"training as train (--train): train(model, data, config, seed) that returns "
            f"{{'valid': ..., 'test': ...}}."
        )

    def _refuse_empty_parts(self) -> None:
        for part, rows in self.split(0).items():
            if not (rows.any() if self.is_nodes else len(rows)):
                raise DataError(
                    f"{self.name}: expected something in every part of the split, got nothing to "
                    f"{part} on. Fill it."
                )

    def seen_by_init(self, seed: int) -> Any:
        """What a seed's initialisation may look at: its training graphs, or its split's masks."""
        if self.is_graphs or self.folds:
            return self.split(seed)["train"]
        if not self.is_nodes or all(self.data[mask].dim() == 1 for mask in MASKS):
            return self.data
        data = copy.copy(self.data)
        for mask, rows in zip(MASKS, self.split(seed).values(), strict=True):
            data[mask] = rows
        return data

    def split(self, seed: int) -> Mapping[str, Any]:
        """The masks of the nodes, or the graphs, of one seed.

        Masks with several columns are several splits, of which seed ``s`` has number ``s mod k``.

        Args:
            seed: number of the run.

        Returns:
            Masks or graphs under ``"train"``, ``"valid"`` and ``"test"``.
        """
        if self.folds:
            return self.folds[seed % len(self.folds)]
        if self.is_graphs:
            parts: Mapping[str, Any] = self.data
            return parts
        masks = [self.data[mask] for mask in MASKS]
        columns = [m if m.dim() == 1 else m[:, seed % m.size(1)] for m in masks]
        return dict(zip(PARTS, columns, strict=True))


@dataclass
class OwnTask:
    """A model's factory and an initialisation on own data, as :class:`Training` takes a task.

    Args:
        dataset: the data.
        make: the model's factory, or class.
        init: a method of :func:`virgo.methods`, ``"default"`` to leave the model alone, or a
            function of the model, the data and the seed.
        config: the whole configuration.
        label: what errors call the factory.
        train: whether training takes its keys out of the configuration.
        recipe: nothing.
        compute: how it is trained; on the CPU.
    """

    dataset: Any  # an OwnData; the protocol's Dataset is that of the paper's datasets
    make: Callable[..., Any]
    init: str | Callable[..., Any]
    config: Mapping[str, Any]
    label: str = "model"
    train: bool = True
    recipe: dict[str, Any] = field(default_factory=dict)  # only its factory can build the network
    compute: Compute = CPU

    def build(self, seed: int) -> nn.Module:
        """The model, its own random draws made from ``seed``."""
        own: OwnData = self.dataset
        keys = {k: v for k, v in self.config.items() if not self.train or k not in TRAINING}
        offered = {**own.sizes, "config": dict(self.config), "data": own.data, "seed": seed}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = call(
                self.label,
                self.make,
                keys,
                offered,
                first="data",
                strict=self.train,
                others=TRAINING,
            )
        if not isinstance(model, nn.Module):
            raise OptionError(
                f"{self.label}: expected a torch.nn.Module from it, got {type(model).__name__}. "
                f"Return the model."
            )
        return model

    def start(self, name: str, init: str, settings: Settings, seeds: Seeds) -> nn.Module:
        """The network, initialised."""
        model = self.build(seeds.initialisation)
        own: OwnData = self.dataset
        graphs = own.seen_by_init(seeds.number)
        if callable(self.init):
            offered = {"model": model, "data": graphs, "seed": seeds.initialisation}
            offered["config"] = dict(self.config)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seeds.initialisation)
                call(init, self.init, {}, offered, first="model")
        elif self.init != UNTOUCHED:
            method, options = parse_method(self.init)
            if not isinstance(graphs, Data):
                graphs = list(graphs)
                options = {"loss": _batch_loss, **options}
            plan(model, graphs, method, seed=seeds.initialisation, **options).apply_(model)
        return model

    def batches(self, model: nn.Module, settings: Settings, seeds: Seeds) -> OwnNodes | OwnGraphs:
        """How these settings train."""
        own: OwnData = self.dataset
        own.check()
        if own.is_nodes:
            return OwnNodes(own, settings, seeds, self.label)
        return OwnGraphs(own, settings, seeds, self.label)


def _taken(graphs: Any, ids: Tensor) -> Any:
    return [graphs[i] for i in ids.tolist()] if isinstance(graphs, list) else graphs[ids]


def _batch_loss(output: Tensor, batch: Any) -> Tensor:
    return functional.cross_entropy(output, batch.y.view(-1))


def _logits(output: Any, rows: int, classes: int, label: str) -> Tensor:
    is_matrix = isinstance(output, Tensor) and output.dim() == 2
    if is_matrix and output.size(0) == rows and output.size(1) >= classes:
        return cast(Tensor, output)
    got = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
    raise LayerError(
        f"{label}: expected logits of shape [{rows}, {classes}] from its forward, got {got}. "
        f"Return them, or pass your own training as train (--train)."
    )


class _Steps:
    """One optimiser step, and random draws that follow from the seed and the epoch."""

    def __init__(self, own: OwnData, settings: Settings, seeds: Seeds, label: str) -> None:
        self.own, self.settings, self.seed, self.label = own, settings, seeds.training, label
        self.split = own.split(seeds.number)

    def train_epoch(self, model: nn.Module, optimiser: torch.optim.Optimizer, epoch: int) -> float:
        """One epoch; its mean loss, which is not finite if it diverged."""
        draw = int(np.random.SeedSequence([self.seed, epoch]).generate_state(1)[0])
        model.train()
        total = count = 0.0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(draw)
            for output, y in self.outputs(model, "train"):
                loss = functional.cross_entropy(output, y)
                value = loss.item()
                if not math.isfinite(value):
                    return value
                optimiser.zero_grad()
                loss.backward()
                if self.settings.max_grad_norm is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), self.settings.max_grad_norm)
                optimiser.step()
                total, count = total + value * y.numel(), count + y.numel()
        return total / count

    @torch.no_grad()
    def evaluate(self, model: nn.Module, part: str) -> float:
        """Accuracy on a part."""
        model.eval()
        right = count = 0
        for output, y in self.outputs(model, part):
            right, count = right + int((output.argmax(1) == y).sum()), count + y.numel()
        return right / count

    def outputs(self, model: nn.Module, part: str) -> Any:
        """Pairs of logits and classes."""
        raise NotImplementedError


class OwnNodes(_Steps):
    """One step per epoch on the whole graph."""

    def outputs(self, model: nn.Module, part: str) -> Sequence[tuple[Tensor, Tensor]]:
        """The logits and classes of the part's nodes."""
        data, mask = self.own.data, self.split[part]
        classes = self.own.sizes["num_classes"]
        logits = _logits(run(model, data), data.num_nodes, classes, self.label)
        return [(logits[mask], data.y.view(-1)[mask])]


class OwnGraphs(_Steps):
    """Batches of graphs, shuffled in training."""

    def outputs(self, model: nn.Module, part: str) -> Any:
        """The logits and classes of batch after batch."""
        graphs, size = self.split[part], self.settings.batch_size
        classes = self.own.sizes["num_classes"]
        for batch in DataLoader(graphs, batch_size=size, shuffle=part == "train"):
            if part == "train" and batch.num_graphs == 1 and min(size, len(graphs)) > 1:
                continue  # BatchNorm has no variance over one graph that is left over
            logits = _logits(run(model, batch), batch.num_graphs, classes, self.label)
            yield logits, batch.y.view(-1)

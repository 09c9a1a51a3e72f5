"""Graph classification: one label, or a row of them, a graph.

The social networks of the TU collection have no split. **Run number** :math:`s` **stands for fold**
:math:`s` of ten stratified ones: it is tested on fold :math:`s`, validated on fold
:math:`s + 1 \\bmod 10`, which training does not see, and trained on the other eight. To choose the
epoch by the test fold, as is often done with these datasets, would be to report a maximum over
epochs of what is to be estimated. Runs 10 to 19 are the folds of another partition, and so on.

OGB's molecules have a split by scaffold, and OGB's evaluators: a task for which a part has no
positive or no negative label is left out of the mean, and missing labels are in neither loss nor
score.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from virgo.errors import DataError, OptionError
from virgo.experiments.data.datasets import FOLDS
from virgo.experiments.models import from_recipe
from virgo.experiments.models.pooled import Drop, Pooled, PooledNetwork
from virgo.experiments.tasks.fused import Constant, relu_dropout
from virgo.experiments.tasks.graph.labels import (
    METRICS,
    check_parts,
    labels_of,
    loss_for,
    present,
    score,
)
from virgo.experiments.tasks.graph.merged import Merged
from virgo.experiments.tasks.metrics import check_dataset
from virgo.experiments.tasks.outcome import Seeds
from virgo.experiments.tasks.settings import Settings
from virgo.experiments.tasks.starts import Starts, transposed_in_memory
from virgo.experiments.tasks.subjects import Subject, with_batch_statistics
from virgo.init import plan
from virgo.network.inputs import run
from virgo.plans import Plan
from virgo.rules import parse_method

#: Training sets of more graphs than this are sampled for the approximation graph, to this many.
LARGE, SAMPLED = 50_000, 10_000
#: Numbers that a pass of a measured estimate may keep for its gradient: 2 GB of them.
MEASURED_NUMBERS = 1 << 29
#: The same of a pass that diagnostics look at: half a gigabyte, so that many methods take a minute.
SEEN_NUMBERS = 1 << 27
#: How BatchNorm may be looked at, and what to say of it.
NORMS = {
    "batch": "BatchNorm divides by the statistics of these graphs, as in training",
    "fresh": "BatchNorm is as in evaluation: before training it changes nothing",
}
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

    def train_epoch(self, model: Pooled, optimiser: torch.optim.Optimizer, epoch: int) -> float:
        """One epoch; the mean loss, or nan where it is not finite.

        A batch of fewer than two nodes, for which BatchNorm has no variance, and one without a
        label are left out, as in OGB's own loop.
        """
        rng = np.random.default_rng([self.seed, epoch])
        train = self.split["train"]
        order = train[torch.from_numpy(rng.permutation(train.numel()))]
        drop = partial(dropped, model.dropout, rng)
        model.train()
        total, count = 0.0, 0
        for graphs in order.split(self.settings.batch_size):
            y = self.task.y[graphs]
            labels = present(y)
            if not labels or self.task.merged.num_nodes(graphs) < 2:
                continue
            optimiser.zero_grad()
            loss = self.task.loss(self.task.output(model, graphs, drop), y)
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
        return score(self.task.dataset.metric, self.predict(model, part), y)


class GraphTask:
    """A dataset of graphs with all that its runs share.

    Integer features are atoms: OGB's molecule form; others take the TU form.
    """

    def __init__(self, dataset: Any) -> None:
        check_dataset(dataset, "graph", METRICS)
        self.dataset = dataset
        self.merged = Merged(dataset.data, dataset.name)
        self.is_molecules = self.merged.x is not None and not self.merged.x.is_floating_point()
        if self.is_molecules and self.merged.edge_attr is None:
            raise DataError(
                f"{dataset.name}: expected edge_attr beside integer features, which are OGB's "
                f"atoms, got none. Give its bonds, or floating features."
            )
        self.y = labels_of(dataset, self.merged.y)
        self.loss = loss_for(dataset.metric)
        self._splits: dict[int, Mapping[str, Tensor]] = {}
        self._approximation: tuple[Any, Data] | None = None
        sizes = {} if self.is_molecules else {"in_channels": self.merged.width}
        self.recipe = {
            "form": "molecule" if self.is_molecules else "pooled",
            "out_channels": int(dataset.num_classes),
            **sizes,
        }
        self._starts = Starts(self.recipe)
        check_parts(dataset, self.y, self.split_of(0))

    @property
    def in_channels(self) -> int:
        """Features of a node."""
        return self.merged.width

    # --- parts ------------------------------------------------------------------------------

    def split_of(self, number: int) -> Mapping[str, Tensor]:
        """The graphs that run ``number`` trains, validates and tests on."""
        if self.dataset.split:
            parts: Mapping[str, Tensor] = self.dataset.split
            return parts
        if number not in self._splits:
            fold = number % FOLDS
            tests = [test for _, test in self.dataset.folds(number // FOLDS)]
            valid, test = tests[(fold + 1) % FOLDS], tests[fold]
            others = [t for i, t in enumerate(tests) if i not in (fold, (fold + 1) % FOLDS)]
            train = torch.cat(others).sort().values
            self._splits[number] = {"train": train, "valid": valid, "test": test}
        return self._splits[number]

    # --- networks ---------------------------------------------------------------------------

    def output(self, model: Any, graphs: Tensor, drop: Drop | None = None) -> Tensor:
        """A network's output for some graphs.

        The layers of the TU form are products with the operator's rows of these graphs, and the
        first one looks up the columns of its weight that one-hot features would pick.
        """
        if not isinstance(model, PooledNetwork):
            data = self.merged.take(graphs)
            out: Tensor = model(
                data.x, data.edge_index, data.edge_attr, data.batch, graphs.numel(), drop
            )
            return out
        nodes, batch = self.merged.batch(graphs)
        operators = {name: self.merged.operator(name, graphs) for name in model.operators}
        x, ids = self.merged.x, self.merged.ids
        features = x[nodes] if x is not None else ids[nodes]  # type: ignore[index]

        def convolve(layer: int, h: Tensor) -> Tensor:
            return model.mix(model.convs[layer], partial(_apply, operators, h))

        return model.run(features, convolve, batch, graphs.numel(), drop)

    def build(self, name: str, settings: Settings) -> Pooled:
        """The network called ``name`` in this dataset's form, with PyTorch's initialisation."""
        model: Pooled = from_recipe(name, self.recipe, settings.to_dict())
        return model

    def start(self, name: str, init: str, settings: Settings, seeds: Seeds) -> Pooled:
        """The network, initialised; learning rate and dropout do not matter to that."""
        seed = seeds.initialisation
        model: Pooled = self._starts.initialised(
            name,
            init,
            settings,
            seed,
            lambda model: self.plan(model, init, seed, seeds.number).apply_(model),
        )
        if self.merged.ids is not None:
            transposed_in_memory(model.convs[0])
        return model

    def batches(self, model: Pooled, settings: Settings, seeds: Seeds) -> GraphBatches:
        """How these settings train."""
        return GraphBatches(self, settings, seeds)

    def subject(
        self,
        name: str,
        settings: Settings,
        seed: int = 0,
        max_graphs: int | None = None,
        norms: str = "batch",
    ) -> Subject:
        """The network called ``name`` at its start, to be looked at, not trained.

        Args:
            settings: its sizes.
            seed: of what no method draws, and of the sample of graphs.
            max_graphs: at most so many training graphs of run 0, by default what
                :data:`SEEN_NUMBERS` permits; also of measured estimates, each of which draws
                graphs of its own.
            norms: ``"batch"``: BatchNorm divides by what it sees, as in training; ``"fresh"``: by
                its running statistics, as in evaluation, which before training change nothing.
        """
        if norms not in NORMS:
            raise OptionError(f"norms: expected {' or '.join(NORMS)}, got {norms!r}. Choose one.")
        if max_graphs is not None and max_graphs < 1:
            raise OptionError(f"max_graphs: expected at least 1, got {max_graphs}. Raise it.")
        model: Pooled = self._starts.build(name, settings, seed)
        max_graphs = max_graphs or self._fitting(model, self.split_of(0)["train"], SEEN_NUMBERS)
        data, sampled = self.approximation(0, seed, model, max_graphs)
        graphs, total = sampled["graphs"], sampled["of"]
        notes = (f"measured on {graphs:,} of {total:,} training graphs", NORMS[norms])
        return Subject(
            model,
            data,
            lambda output, batch: self.loss(output, batch.y),
            with_batch_statistics if norms == "batch" else run,
            partial(self.plan, max_graphs=max_graphs),
            notes,
            {"graphs": graphs, "training graphs": total, "norms": norms},
        )

    # --- the approximation graph ------------------------------------------------------------

    def plan(
        self,
        model: Pooled,
        init: str,
        seed: int,
        number: int = 0,
        max_graphs: int | None = None,
    ) -> Plan:
        """The plan of an initialisation on the training graphs of run ``number``.

        On the paper's approximation graph: all of them merged, or a uniform sample where they are
        too many; ``Plan.graph["sampled"]`` says which. Theorem 4's rule for a softmax on the last
        layer does not apply to a network that ends in pooling.

        Args:
            max_graphs: run the network on no more than these, for a quicker measured estimate.
        """
        method, options = parse_method(init)
        is_run = options.get("estimate") == "measured"
        data, sampled = self.approximation(number, seed, model if is_run else None, max_graphs)
        made = plan(
            model,
            data,
            method,
            seed=seed,
            num_classes=False,
            loss=lambda output, batch: self.loss(output, batch.y),
            **options,
        )
        return replace(made, graph={**made.graph, "sampled": sampled})

    def approximation(
        self,
        number: int = 0,
        seed: int = 0,
        model: Pooled | None = None,
        max_graphs: int | None = None,
    ) -> tuple[Data, dict[str, Any]]:
        """The training graphs of run ``number`` merged, and which of them.

        Args:
            number: of the run.
            seed: of the sample, if there is one; drawn as ``virgo.plan(max_graphs=)`` does.
            model: the network, if it is to be run on it: then there are no more graphs than
                :data:`MEASURED_NUMBERS` permits, as a sparse matrix where PyG's layers take one.
            max_graphs: with ``model``, no more than these either.
        """
        train = self.split_of(number)["train"]
        total = most = train.numel()
        if total > LARGE:
            most = SAMPLED
        as_matrix = model is not None and self._as_matrix(model)
        if model is not None:
            most = min(most, self._fitting(model, train, MEASURED_NUMBERS), max_graphs or most)
        sampled: dict[str, Any] = {"graphs": most, "of": total, "seed": None}
        if most < total:
            chosen = np.sort(np.random.default_rng(seed).choice(total, size=most, replace=False))
            train = train[torch.from_numpy(chosen)]
            sampled |= {"seed": seed, "index": chosen.tolist()}
        # All plans of a fold, or of a dataset with a split, follow one another: keep the last.
        key = (None if self.dataset.split else number, most, sampled["seed"], as_matrix)
        if self._approximation is None or self._approximation[0] != key:
            data = self.merged.take(train, as_matrix=as_matrix)
            data.y = self.y[train]
            self._approximation = key, data
        return self._approximation[1], sampled

    def _as_matrix(self, model: Pooled) -> bool:
        """Whether PyG's layers of this network take a sparse matrix to the same effect."""
        return isinstance(model, PooledNetwork) and not self.merged.has_loops

    def _fitting(self, model: Pooled, graphs: Tensor, numbers: int) -> int:
        """How many of ``graphs`` a pass may see whose gradient keeps about ``numbers`` numbers.

        It keeps ten rows a node and layer, and two an edge that is no matrix's.
        """
        rows = model.num_layers * int(model.head.in_features)
        edges = 0 if self._as_matrix(model) else self.merged.num_edges(graphs)
        nodes = self.merged.num_nodes(graphs)
        kept = nodes * (10 * rows + 3 * self.in_channels) + edges * 2 * rows
        return max(1, int(numbers / kept * graphs.numel()))


def _apply(operators: Mapping[str, Constant], h: Tensor, name: str, weight: Tensor) -> Tensor:
    """``P H W^T``, the rows of ``H`` given as numbers of columns if they are one-hot."""
    product = h @ weight.t() if h.is_floating_point() else weight.t().index_select(0, h)
    return operators[name] @ product

"""Graph classification: one label, or one row of labels, per graph.

The social networks of the TU collection have no split. **Run number** :math:`s` **stands for fold**
:math:`s` of ten stratified ones: it is tested on fold :math:`s`, validated on fold
:math:`s + 1 \\bmod 10`, which training does not see, and trained on the other eight. Choosing the
epoch by the test fold, as is often done with these datasets, would report a maximum over epochs of
the quantity to estimate. Runs 10 to 19 are the folds of another partition, and so on.

OGB's molecules have a split by scaffold, and OGB's evaluators: a task for which a part has no
positive or no negative label is left out of the mean, and missing labels are in neither loss nor
score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from virgo.devices import has_csr
from virgo.errors import DataError, OptionError
from virgo.experiments.data.datasets import FOLDS, Dataset
from virgo.experiments.models import from_recipe
from virgo.experiments.models.pooled import Drop, Pooled, PooledNetwork
from virgo.experiments.tasks.compute import CPU, Compute
from virgo.experiments.tasks.fused import Constant
from virgo.experiments.tasks.graph.batches import GraphBatches
from virgo.experiments.tasks.graph.labels import METRICS, check_parts, labels_of, loss_for, score
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
#: The same for diagnostics: half a gigabyte, so that many methods take a minute.
SEEN_NUMBERS = 1 << 27
#: How diagnostics may run BatchNorm, with the remark to show.
NORMS = {
    "batch": "BatchNorm divides by the statistics of these graphs, as in training",
    "fresh": "BatchNorm is as in evaluation: before training it changes nothing",
}


class GraphTask:
    """A dataset of graphs with all that its runs share.

    Args:
        dataset: what :func:`virgo.data.load` returned. Integer features are atoms, which take
            OGB's molecule form; others take the TU form.
        compute: where and how its runs compute.
    """

    def __init__(self, dataset: Dataset, compute: Compute = CPU) -> None:
        check_dataset(dataset, "graph", METRICS)
        self.dataset, self.compute = dataset, compute
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
        self._approximation: tuple[object, Data] | None = None
        sizes = {} if self.is_molecules else {"in_channels": self.merged.width}
        self.recipe = {
            "form": "molecule" if self.is_molecules else "pooled",
            "out_channels": int(dataset.num_classes),
            **sizes,
        }
        self._starts = Starts(self.recipe, compute.device)
        self._check()

    def _check(self) -> None:
        check_parts(self.dataset, self.y, self.split_of(0))

    def score(self, output: Tensor, y: Tensor) -> float:
        """The dataset's metric of an output and its labels."""
        return score(self.dataset.metric, output, y)

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

    def output(self, model: Pooled, graphs: Tensor, drop: Drop | None = None) -> Tensor:
        """A network's output for some graphs.

        The layers of the TU form are products with the operator's rows of these graphs, and the
        first one looks up the columns of its weight that one-hot features would pick.

        Args:
            model: in either form.
            graphs: their numbers.
            drop: ReLU and dropout; PyTorch's if ``None``.

        Returns:
            One row per graph.
        """
        put = self.compute.put
        if not isinstance(model, PooledNetwork):
            data = self.merged.take(graphs)
            inputs = (data.x, data.edge_index, data.edge_attr, data.batch)
            out: Tensor = model(*map(put, inputs), graphs.numel(), drop)
            return out
        nodes, batch = self.merged.batch(graphs)
        device = self.compute.device
        operators = {
            name: self.merged.operator(name, graphs).to(device) for name in model.operators
        }
        x, ids = self.merged.x, self.merged.ids
        features = put(x[nodes] if x is not None else ids[nodes])  # type: ignore[index]

        def convolve(layer: int, h: Tensor) -> Tensor:
            return model.mix(model.convs[layer], partial(_apply, operators, h))

        return model.run(features, convolve, put(batch), graphs.numel(), drop)

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
        if self.merged.ids is not None and self.compute.is_cpu:
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
        """The network called ``name`` before training, for diagnostics.

        Args:
            name: of the network.
            settings: its sizes.
            seed: of what no method draws, and of the sample of graphs.
            max_graphs: at most so many training graphs of run 0, by default what
                :data:`SEEN_NUMBERS` permits; also of measured estimates, each of which draws
                graphs of its own.
            norms: ``"batch"``: BatchNorm divides by what it sees, as in training; ``"fresh"``: by
                its running statistics, as in evaluation, which before training change nothing.

        Returns:
            The network, its graphs, its loss and its plans.

        Raises:
            OptionError: ``norms`` or ``max_graphs`` is neither of these.
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
        too many. Theorem 4's rule for a softmax on the last layer does not apply to a network that
        ends in pooling.

        Args:
            model: the network.
            init: a method with options after a plus.
            seed: of the weights and of the sample.
            number: of the run.
            max_graphs: run the network on no more than these, for a quicker measured estimate.

        Returns:
            The plan; ``Plan.graph["sampled"]`` says which graphs it saw.
        """
        method, options = parse_method(init)
        is_run = options.get("estimate") == "measured"
        data, sampled = self.approximation(number, seed, model if is_run else None, max_graphs)
        planned = plan(
            model,
            data,
            method,
            seed=seed,
            num_classes=False,
            loss=lambda output, batch: self.loss(output, batch.y),
            **options,
        )
        return replace(planned, graph={**planned.graph, "sampled": sampled})

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

        Returns:
            The merged graph, and ``graphs``, ``of``, ``seed`` and ``index`` of the sample.
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
        is_pooled = isinstance(model, PooledNetwork) and not self.merged.has_loops
        return is_pooled and has_csr(self.compute.device)

    def _fitting(self, model: Pooled, graphs: Tensor, numbers: int) -> int:
        """How many of ``graphs`` a pass may see whose gradient keeps about ``numbers`` numbers."""
        # It keeps ten rows per node and layer, and two per edge that is not in a matrix.
        rows = model.num_layers * int(model.head.in_features)
        edges = 0 if self._as_matrix(model) else self.merged.num_edges(graphs)
        nodes = self.merged.num_nodes(graphs)
        kept = nodes * (10 * rows + 3 * self.merged.width) + edges * 2 * rows
        return max(1, int(numbers / kept * graphs.numel()))


def _apply(operators: Mapping[str, Constant], h: Tensor, name: str, weight: Tensor) -> Tensor:
    """``P H W^T``, the rows of ``H`` given as numbers of columns if they are one-hot."""
    product = h @ weight.t() if h.is_floating_point() else weight.t().index_select(0, h)
    return operators[name] @ product

"""Three ways to train a link model: on the whole graph, on clusters of it, on sampled ones.

All of an epoch's randomness (order, negatives, neighbours, dropout) follows from the run's seed
and the epoch's number.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from virgo.errors import DataError
from virgo.experiments.models.link import LinkModel
from virgo.experiments.tasks.encoding import Encoding
from virgo.experiments.tasks.link import pairs, ranking
from virgo.experiments.tasks.link.clusters import Clusters
from virgo.experiments.tasks.link.negatives import Targets
from virgo.experiments.tasks.sampled import layerwise
from virgo.experiments.tasks.settings import Settings

if TYPE_CHECKING:
    from virgo.experiments.tasks.link import LinkTask

#: Batches of an epoch on sampled neighbourhoods, as in OGB's example: all would take too long.
MAX_BATCHES = 1000
#: Gradients of each part of the model are clipped to this norm where OGB's example does so.
CLIPPED = {"ogbl-ddi": 1.0, "ogbl-collab": 1.0, "ogbl-ppa": 1.0}


class LinkStep(NamedTuple):
    """One step's embeddings, and the pairs of their rows with and without a link (``[2, n]``)."""

    h: Tensor
    positive: Tensor
    negative: Tensor


class LinkBatches(ABC):
    """What the three ways share.

    Args:
        task: dataset, training edges and negatives.
        settings: the hyper-parameters.
        seed: of all that is random in training.
    """

    def __init__(self, task: LinkTask, settings: Settings, seed: int) -> None:
        self.task, self.dataset, self.settings, self.seed = task, task.dataset, settings, seed
        clipped = CLIPPED.get(ranking.base_name(self.dataset.name))
        self.max_grad_norm = clipped if settings.max_grad_norm is None else settings.max_grad_norm

    def put(self, value: Tensor) -> Tensor:
        """A tensor where the model is."""
        return self.task.compute.put(value)

    @abstractmethod
    def steps(self, model: LinkModel, rng: np.random.Generator, epoch: int) -> Iterator[LinkStep]:
        """The steps of an epoch."""

    @abstractmethod
    def embeddings(self, model: LinkModel) -> Tensor:
        """Every node's embedding, without dropout."""

    def train_epoch(self, model: LinkModel, optimiser: torch.optim.Optimizer, epoch: int) -> float:
        """One epoch; the mean loss of a positive and a negative pair, nan if it diverged."""
        rng = np.random.default_rng([self.seed, epoch])
        total, count = 0.0, 0
        optimiser.zero_grad()
        for step in self.steps(model, rng, epoch):
            loss = pairs.backward(model, step.h, step.positive, step.negative, rng)
            if not math.isfinite(loss):
                return math.nan
            if self.max_grad_norm is not None:
                for group in model.groups():
                    nn.utils.clip_grad_norm_(group, self.max_grad_norm)
            optimiser.step()
            optimiser.zero_grad()
            size = step.positive.size(1)
            total, count = total + loss * size, count + size
        if not count:
            raise DataError(
                f"{self.dataset.name}: expected edges inside the batches, got none. Take fewer or "
                f"larger clusters."
            )
        return total / count

    @torch.no_grad()
    def evaluate(self, model: LinkModel, part: str) -> float:
        """The dataset's metric on a part of its split, by OGB's evaluator."""
        h = self.embeddings(model)
        split = self.dataset.split[part]
        return ranking.evaluate(
            self.dataset.name,
            split,
            lambda ends: pairs.scores(model.predictor, h, self.put(ends)).float(),
            pairs.piece_of(h),
        )


class WholeGraphLinks(LinkBatches):
    """Batches of training edges; every node's embedding is computed anew for each."""

    def steps(self, model: LinkModel, rng: np.random.Generator, epoch: int) -> Iterator[LinkStep]:
        """One for each batch of training edges."""
        encoding, edges = self.task.encoding(model), self.task.positive
        order = torch.from_numpy(rng.permutation(edges.size(1)))
        for chosen in order.split(self.settings.batch_size):
            positive = edges[:, chosen]
            negative = self.task.negatives(positive, rng)
            h = encoding(model.encoder, model.learned(), rng)
            yield LinkStep(h, self.put(positive), self.put(negative))

    def embeddings(self, model: LinkModel) -> Tensor:
        """Every node's embedding, without dropout."""
        return self.task.encoding(model)(model.encoder, model.learned())


class LayerwiseLinks(LinkBatches):
    """Evaluation layer by layer over the whole graph, for those that train on parts of it."""

    def embeddings(self, model: LinkModel) -> Tensor:
        """Every node's embedding, without dropout."""
        operators = self.task.sampling(model.operators).operators
        x = self.dataset.data.x
        inputs = model.inputs(None if x is None else self.put(x))
        return layerwise(model.encoder, operators, inputs)


class ClusterBatches(LayerwiseLinks):
    """ClusterGCN: subgraphs of a few clusters, all of whose edges are positive pairs.

    Negatives keep the source and draw another node of the subgraph, as in OGB's example.

    Args:
        clusters: of the graph.
    """

    def __init__(self, task: LinkTask, settings: Settings, seed: int, clusters: Clusters) -> None:
        super().__init__(task, settings, seed)
        self.clusters = clusters

    def steps(self, model: LinkModel, rng: np.random.Generator, epoch: int) -> Iterator[LinkStep]:
        """One for each batch of clusters; a batch without edges is skipped."""
        order = torch.from_numpy(rng.permutation(self.clusters.num_parts))
        for parts in order.split(self.settings.batch_size):
            graph = self.clusters.batch(parts)
            if not graph.num_edges:
                continue
            encoding = Encoding.whole(graph, model.operators, model.num_layers)
            encoding = encoding.to(self.task.compute.device)
            positive = graph.edge_index
            negative = Targets(int(graph.num_nodes))(positive, rng)
            h = encoding(model.encoder, model.learned(self.put(graph.nodes)), rng)
            yield LinkStep(h, self.put(positive), self.put(negative))


class SampledLinkBatches(LayerwiseLinks):
    """Neighbour sampling: batches of training edges with sampled neighbourhoods of their ends."""

    def __init__(
        self, task: LinkTask, settings: Settings, seed: int, operators: tuple[str, ...]
    ) -> None:
        from virgo.experiments.data.neighbours import NeighborSampler  # compiles

        super().__init__(task, settings, seed)
        neighbours = task.sampling(operators).neighbours
        self.sampler = NeighborSampler(neighbours, settings.num_neighbors or (), seed)

    def steps(self, model: LinkModel, rng: np.random.Generator, epoch: int) -> Iterator[LinkStep]:
        """One for each batch of training edges, at most :data:`MAX_BATCHES`."""
        self.sampler.set_epoch(epoch)
        size, edges = self.settings.batch_size, self.task.positive
        most = min(edges.size(1), MAX_BATCHES * size)
        drawn = rng.choice(edges.size(1), size=most, replace=False)
        for chosen in torch.from_numpy(drawn).split(size):
            positive = edges[:, chosen]
            ends = torch.cat([positive, self.task.negatives(positive, rng)], dim=1)
            nodes, rows = torch.unique(ends, return_inverse=True)
            h = self._encode(model, nodes, rng)
            half = positive.size(1)
            positive, negative = rows[:, :half].contiguous(), rows[:, half:].contiguous()
            yield LinkStep(h, self.put(positive), self.put(negative))

    def _encode(self, model: LinkModel, nodes: Tensor, rng: np.random.Generator) -> Tensor:
        from torch_geometric.sampler import NodeSamplerInput

        out = self.sampler.sample_from_nodes(NodeSamplerInput(None, nodes))
        x = None if model.embedding is not None else self.dataset.data.x[out.node]
        encoding = Encoding.sampled(out, model.operators, model.num_layers, x)
        encoding = encoding.to(self.task.compute.device)
        return encoding(model.encoder, model.learned(self.put(out.node)), rng)

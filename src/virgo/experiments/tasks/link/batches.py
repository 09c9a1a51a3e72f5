"""Three ways to train a link model: on the whole graph, on clusters of it, on sampled ones.

All of an epoch's randomness (order, negatives, neighbours, dropout) follows from the run's seed
and the epoch's number.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from virgo.errors import DataError
from virgo.experiments.models.link import LinkModel
from virgo.experiments.tasks.link import pairs, ranking
from virgo.experiments.tasks.link.clusters import Clusters
from virgo.experiments.tasks.link.encoding import Encoding
from virgo.experiments.tasks.link.negatives import Negatives, Targets
from virgo.experiments.tasks.sampled import Sampling, layerwise
from virgo.experiments.tasks.settings import Settings

#: Batches of an epoch on sampled neighbourhoods, as in OGB's example: all would take too long.
MAX_BATCHES = 1000
#: Gradients of each part of the model are clipped to this norm where OGB's example does so.
CLIPPED = {"ogbl-ddi": 1.0, "ogbl-collab": 1.0, "ogbl-ppa": 1.0}


class Step:
    """One step's embeddings, and the pairs to learn from.

    Attributes:
        h: embeddings, with their graph.
        positive: ``[2, pairs]`` of rows of ``h`` with a link.
        negative: the same without.
    """

    def __init__(self, h: Tensor, positive: Tensor, negative: Tensor) -> None:
        self.h, self.positive, self.negative = h, positive, negative


class LinkBatches(ABC):
    """What the three ways share.

    Args:
        dataset: with OGB's edge split.
        settings: the hyper-parameters.
        seed: of all that is random in training.
    """

    def __init__(self, dataset: Any, settings: Settings, seed: int) -> None:
        self.dataset, self.settings, self.seed = dataset, settings, seed
        base = ranking.base_name(dataset.name)
        given = settings.max_grad_norm
        self.max_grad_norm = CLIPPED.get(base) if given is None else given

    @abstractmethod
    def steps(self, model: LinkModel, rng: np.random.Generator, epoch: int) -> Iterator[Step]:
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
            self.dataset.name, split, lambda ends: pairs.scores(model.predictor, h, ends)
        )


class WholeGraph(LinkBatches):
    """Batches of training edges; every node's embedding is computed anew for each.

    Args:
        encoding: of the whole graph.
        positive: training edges, ``[2, edges]``.
        negatives: what they are held against.
    """

    def __init__(
        self,
        dataset: Any,
        settings: Settings,
        seed: int,
        encoding: Encoding,
        positive: Tensor,
        negatives: Negatives,
    ) -> None:
        super().__init__(dataset, settings, seed)
        self.encoding, self.positive, self.negatives = encoding, positive, negatives

    def steps(self, model: LinkModel, rng: np.random.Generator, epoch: int) -> Iterator[Step]:
        """One for each batch of training edges."""
        learned = model.embedding.weight if model.embedding is not None else None
        order = torch.from_numpy(rng.permutation(self.positive.size(1)))
        for chosen in order.split(self.settings.batch_size):
            positive = self.positive[:, chosen]
            negative = self.negatives(positive, rng)
            h = self.encoding(model.encoder, learned, rng)
            yield Step(h, self.encoding.rows(positive), self.encoding.rows(negative))

    def embeddings(self, model: LinkModel) -> Tensor:
        """Every node's embedding, without dropout."""
        learned = model.embedding.weight if model.embedding is not None else None
        h = self.encoding(model.encoder, learned)
        return h if self.encoding.order is None else h[self.encoding.rows(torch.arange(len(h)))]


class Layerwise(LinkBatches):
    """Evaluation layer by layer over the whole graph, for those that train on parts of it.

    Args:
        sampling: the whole graph's operators and neighbour lists.
    """

    def __init__(self, dataset: Any, settings: Settings, seed: int, sampling: Sampling) -> None:
        super().__init__(dataset, settings, seed)
        self.sampling = sampling

    def embeddings(self, model: LinkModel) -> Tensor:
        """Every node's embedding, without dropout."""
        return layerwise(model.encoder, self.sampling.operators, model.inputs(self.dataset.data.x))


class ClusterBatches(Layerwise):
    """ClusterGCN: subgraphs of a few clusters, all of whose edges are positive pairs.

    Negatives keep the source and draw another node of the subgraph, as in OGB's example.

    Args:
        sampling: the whole graph's operators.
        clusters: of the graph.
    """

    def __init__(
        self, dataset: Any, settings: Settings, seed: int, sampling: Sampling, clusters: Clusters
    ) -> None:
        super().__init__(dataset, settings, seed, sampling)
        self.clusters = clusters

    def steps(self, model: LinkModel, rng: np.random.Generator, epoch: int) -> Iterator[Step]:
        """One for each batch of clusters; one without edges teaches nothing and is left out."""
        order = torch.from_numpy(rng.permutation(self.clusters.num_parts))
        for parts in order.split(self.settings.batch_size):
            graph = self.clusters.batch(parts)
            if not graph.num_edges:
                continue
            encoding = Encoding.whole(graph, model.operators, model.num_layers)
            learned = None
            if model.embedding is not None:
                learned = model.embedding.weight[graph.nodes]
            positive = graph.edge_index
            negative = Targets(int(graph.num_nodes))(positive, rng)
            h = encoding(model.encoder, learned, rng)
            yield Step(h, encoding.rows(positive), encoding.rows(negative))


class SampledBatches(Layerwise):
    """Neighbour sampling: batches of training edges with sampled neighbourhoods of their ends.

    Args:
        sampling: the whole graph's operators and neighbour lists.
        positive: training edges, ``[2, edges]``.
        negatives: what they are held against.
    """

    def __init__(
        self,
        dataset: Any,
        settings: Settings,
        seed: int,
        sampling: Sampling,
        positive: Tensor,
        negatives: Negatives,
    ) -> None:
        from virgo.experiments.data.neighbours import NeighborSampler  # compiles

        super().__init__(dataset, settings, seed, sampling)
        self.positive, self.negatives = positive, negatives
        self.sampler = NeighborSampler(sampling.neighbours, settings.num_neighbors or (), seed)

    def steps(self, model: LinkModel, rng: np.random.Generator, epoch: int) -> Iterator[Step]:
        """One for each batch of training edges, at most :data:`MAX_BATCHES`."""
        self.sampler.set_epoch(epoch)
        size, edges = self.settings.batch_size, self.positive.size(1)
        drawn = rng.choice(edges, size=min(edges, MAX_BATCHES * size), replace=False)
        for chosen in torch.from_numpy(drawn).split(size):
            positive = self.positive[:, chosen]
            ends = torch.cat([positive, self.negatives(positive, rng)], dim=1)
            nodes, rows = torch.unique(ends, return_inverse=True)
            h = self._encode(model, nodes, rng)
            half = positive.size(1)
            yield Step(h, rows[:, :half].contiguous(), rows[:, half:].contiguous())

    def _encode(self, model: LinkModel, nodes: Tensor, rng: np.random.Generator) -> Tensor:
        from torch_geometric.sampler import NodeSamplerInput

        out = self.sampler.sample_from_nodes(NodeSamplerInput(None, nodes))
        x, learned = None, None
        if model.embedding is not None:
            learned = model.embedding.weight[out.node]
        else:
            x = self.dataset.data.x[out.node]
        encoding = Encoding.sampled(out, model.operators, model.num_layers, x)
        return encoding(model.encoder, learned, rng)

"""Link prediction by the protocol of OGB's leaderboard, which the paper follows."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from virgo.devices import has_csr, moved
from virgo.errors import DataError, OptionError
from virgo.experiments.data.datasets import Dataset
from virgo.experiments.models.link import LinkModel, link_loss
from virgo.experiments.tasks.compute import CPU, Compute
from virgo.experiments.tasks.encoding import Encoding
from virgo.experiments.tasks.fused import csr
from virgo.experiments.tasks.link import ranking
from virgo.experiments.tasks.link.batches import (
    ClusterBatches,
    LinkBatches,
    SampledLinkBatches,
    WholeGraphLinks,
)
from virgo.experiments.tasks.link.clusters import Clusters
from virgo.experiments.tasks.link.negatives import Negatives, negatives_for
from virgo.experiments.tasks.metrics import check_dataset
from virgo.experiments.tasks.outcome import Seeds
from virgo.experiments.tasks.sampled import Sampling
from virgo.experiments.tasks.settings import Settings
from virgo.experiments.tasks.starts import Starts
from virgo.experiments.tasks.subjects import Subject
from virgo.init import plan
from virgo.network.probe import Loss
from virgo.plans import Plan
from virgo.rules import parse_method

PARTS = ("train", "valid", "test")
#: Training edges, at most, of the loss that an initialisation or a measurement sees.
SEEN_EDGES = 1 << 15


class LinkTask:
    """A dataset of links with all that its runs share.

    Batches of training edges and as many negatives, an MLP on the product of two embeddings, binary
    cross-entropy. The whole graph at once; with ``num_parts`` ClusterGCN, whose ``batch_size``
    counts clusters; with ``num_neighbors`` neighbour sampling. Gradients are clipped where OGB's
    example does so (``batches.CLIPPED``) unless ``max_grad_norm`` is given; infinity switches that
    off.

    Args:
        dataset: what :func:`virgo.data.load` returned.
        compute: where and how its runs compute.
    """

    def __init__(self, dataset: Dataset, compute: Compute = CPU) -> None:
        check_dataset(dataset, "link")
        self.dataset, self.compute = dataset, compute
        self.positive = _training_edges(dataset)
        for part in PARTS[1:]:
            ranking.check_part(dataset.name, part, dataset.split.get(part, {}))
        self._encodings: dict[tuple[tuple[str, ...], int], Encoding] = {}
        self._samplings: dict[tuple[str, ...], Sampling] = {}
        self._clusters: dict[int, Clusters] = {}
        self.recipe = {
            "form": "link",
            "num_features": 0 if dataset.data.x is None else int(dataset.data.num_features),
            "num_nodes": int(dataset.data.num_nodes),
        }
        self._starts = Starts(self.recipe, compute.device)

    @cached_property
    def negatives(self) -> Negatives:
        """Draws the negative pairs of training."""
        data = self.dataset.data
        base = ranking.base_name(self.dataset.name)
        return negatives_for(base, data.edge_index, int(data.num_nodes))

    def encoding(self, model: LinkModel) -> Encoding:
        """The pass over the whole graph for an encoder like this one, made once."""
        key = (model.operators, model.num_layers)
        if key not in self._encodings:
            encoding = Encoding.whole(self.dataset.data, *key)
            self._encodings[key] = encoding.to(self.compute.device)
        return self._encodings[key]

    def sampling(self, operators: tuple[str, ...]) -> Sampling:
        """The whole graph's operators and neighbour lists, made once."""
        if operators not in self._samplings:
            data = self.dataset.data
            self._samplings[operators] = Sampling(data, operators, data.get("edge_weight"))
        return self._samplings[operators]

    def batches(self, model: LinkModel, settings: Settings, seeds: Seeds) -> LinkBatches:
        """How these settings train."""
        parts, seed = settings.num_parts, seeds.training
        if parts is None and settings.num_neighbors is None:
            return WholeGraphLinks(self, settings, seed)
        if parts is None:
            return SampledLinkBatches(self, settings, seed, model.operators)
        if settings.num_neighbors is not None:
            raise OptionError(
                f"num_parts: expected none beside num_neighbors, got {parts}. Choose clusters or "
                f"neighbours."
            )
        if parts not in self._clusters:
            self._clusters = {parts: Clusters(self.dataset.data, parts)}
        return ClusterBatches(self, settings, seed, self._clusters[parts])

    def start(self, name: str, init: str, settings: Settings, seeds: Seeds) -> LinkModel:
        """The model with its message-passing layers initialised, the rest as in OGB's example."""
        seed = seeds.initialisation
        model: LinkModel = self._starts.initialised(
            name, init, settings, seed, lambda model: self.plan(model, init, seed).apply_(model)
        )
        return model

    def plan(self, model: LinkModel, init: str, seed: int) -> Plan:
        """The plan of an initialisation on the graph of the training edges.

        Args:
            model: the network; where embeddings are learned, its present ones are the features.
            init: a method with options after a plus.
            seed: of the weights and of the edges of the loss.

        Returns:
            The plan.
        """
        method, options = parse_method(init)
        if model.embedding is not None:
            # Random embeddings have no mean to follow through the graph, but a size.
            options.setdefault("signal", "rms")
        graph = self.graph_of(model, as_matrix=options.get("estimate") == "measured")
        return plan(
            model,
            graph,
            method,
            seed=seed,
            num_classes=False,
            forward=encoded,
            loss=self.loss_of(model, seed),
            **options,
        )

    def subject(self, name: str, settings: Settings, seed: int = 0) -> Subject:
        """The network called ``name`` before training, for diagnostics.

        Args:
            name: of the encoder.
            settings: its sizes.
            seed: of embeddings and predictor, and of the edges of the loss.

        Returns:
            The network, its graph, its loss and its plans.
        """
        model: LinkModel = self._starts.build(name, settings, seed)
        total = self.positive.size(1)
        seen = min(total, SEEN_EDGES)
        note = f"the loss is over {seen:,} of {total:,} training edges and as many negatives"
        data = self.graph_of(model, as_matrix=True)
        facts = {"training edges": total, "edges of the loss": seen}
        return Subject(model, data, self.loss_of(model, seed), encoded, self.plan, (note,), facts)

    def graph_of(self, model: LinkModel, *, as_matrix: bool = False) -> Data:
        """What an initialisation sees of the dataset, learned embeddings as features.

        Args:
            model: whose embeddings, and whose layers' edge weights.
            as_matrix: give ``adj_t`` in place of ``edge_index``, to run the encoder on: that takes
                a hundredth of the memory that PyG's messages along ``edge_index`` take.

        Returns:
            The graph of the training edges.
        """
        data, number = self.dataset.data, int(self.dataset.data.num_nodes)
        graph = Data(x=model.inputs(data.x).detach(), num_nodes=number)
        weight = data.get("edge_weight") if "gcn" in model.operators else None
        if as_matrix and has_csr(self.compute.device):
            source, target = data.edge_index
            weight = torch.ones(source.numel()) if weight is None else weight
            graph.adj_t = csr(target, source, weight, (number, number))
        else:
            graph.edge_index, graph.edge_weight = data.edge_index, weight
        return graph.to(graph.x.device)

    def loss_of(self, model: LinkModel, seed: int) -> Loss:
        """The loss of one batch of edges and negatives, as a function of the encoder's output."""
        rng = np.random.default_rng([seed, 0])
        most = min(self.positive.size(1), SEEN_EDGES)
        chosen = torch.from_numpy(rng.choice(self.positive.size(1), most, replace=False))
        positive = self.positive[:, chosen]
        negative = self.negatives(positive, rng)

        def loss(h: Tensor, data: Data) -> Tensor:
            pairs = (moved(ends, h.device) for ends in (positive, negative))
            return link_loss(*(model.score(h, ends) for ends in pairs))

        return loss


def encoded(model: nn.Module, data: Data) -> Tensor:
    """The encoder as an initialisation runs it: from the features in ``data``."""
    edges = data.adj_t if "adj_t" in data else data.edge_index
    assert isinstance(model, LinkModel)
    return model.encode(data.x, edges, data.get("edge_weight"))


def _training_edges(dataset: Dataset) -> Tensor:
    """``[2, edges]``; an error where there are none, or where they are of another graph."""
    pairs = dataset.split.get("train", {})
    if "source_node" in pairs:
        edges = torch.stack([pairs["source_node"], pairs["target_node"]])
    else:
        edges = pairs.get("edge", torch.empty(0, 2, dtype=torch.long)).t().contiguous()
    number = int(dataset.data.num_nodes)
    if not edges.numel() or not dataset.data.num_edges:
        raise DataError(
            f"{dataset.name}, train: expected edges to learn from, got none. Use OGB's split."
        )
    for part in PARTS:
        for field, ids in dataset.split.get(part, {}).items():
            if field.startswith(("edge", "source", "target")) and ids.numel():
                low, high = int(ids.min()), int(ids.max())
                if low < 0 or high >= number:
                    raise DataError(
                        f"{dataset.name}, {part}: expected nodes in [0, {number}) under "
                        f"{field!r}, got {low} to {high}. Use the split of this graph."
                    )
    return edges

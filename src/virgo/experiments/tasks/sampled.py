"""Mini-batches by neighbour sampling, and predictions layer by layer over the whole graph."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from virgo.devices import forked_rng
from virgo.experiments.data.datasets import Dataset
from virgo.experiments.models import Network
from virgo.experiments.models.convolutions import operator_entries
from virgo.experiments.tasks import metrics
from virgo.experiments.tasks.compute import CPU, Compute
from virgo.experiments.tasks.fused import Matrix, csr, multiply, put_matrix
from virgo.experiments.tasks.settings import Settings

#: Rows of a layer computed at a time, which bounds the memory between two layers' outputs.
ROWS = 1 << 16


class Sampling:
    """What all runs on samples of one graph share: its neighbour lists and operators.

    Args:
        data: the graph.
        operators: names of the operators.
        edge_weight: one number per edge, for GCN's operator.
    """

    def __init__(
        self, data: Data, operators: tuple[str, ...], edge_weight: Tensor | None = None
    ) -> None:
        from virgo.experiments.data.neighbours import InNeighbours  # compiles

        number = int(data.num_nodes or 0)
        self.neighbours = InNeighbours.of(data, edge_ids=False)
        self.operators = {
            name: csr(
                *operator_entries(name, data.edge_index, number, edge_weight), (number, number)
            )
            for name in operators
        }


class SampledNodeBatches:
    """Training on sampled neighbourhoods of batches of nodes, through PyG's loader."""

    runs_forward = True  # of the network, so that it can be compiled

    def __init__(
        self,
        dataset: Dataset,
        sampling: Sampling,
        settings: Settings,
        seed: int,
        compute: Compute = CPU,
    ) -> None:
        from virgo.experiments.data.neighbours import NeighborSampler

        self.compute = compute
        self.dataset, self.batch_size, self.seed = dataset, settings.batch_size, seed
        self.operators = sampling.operators
        self.sampler = NeighborSampler(sampling.neighbours, settings.num_neighbors or (), seed)
        self.loss = metrics.loss_for(dataset.metric)

    def train_epoch(self, model: Network, optimiser: torch.optim.Optimizer, epoch: int) -> float:
        """One epoch over the training nodes; the mean loss, or nan where it is not finite."""
        from torch_geometric.loader import NodeLoader

        model.train()
        self.sampler.set_epoch(epoch)
        (seed,) = np.random.SeedSequence([self.seed, epoch]).generate_state(1)
        loader = NodeLoader(
            self.dataset.data,
            self.sampler,
            input_nodes=self.dataset.split["train"],
            batch_size=self.batch_size,
            shuffle=True,
            generator=torch.Generator().manual_seed(int(seed)),
            pin_memory=self.compute.device.type == "cuda",
        )
        total, count = 0.0, 0
        with forked_rng([self.compute.device], int(seed)):  # of the dropout masks
            for batch in loader:
                batch = batch.to(self.compute.device, non_blocking=True)
                optimiser.zero_grad()
                output = model(
                    batch.x, batch.edge_index, batch.num_sampled_nodes, batch.num_sampled_edges
                )[: batch.batch_size]
                loss = self.loss(output, batch.y[: batch.batch_size])
                if not torch.isfinite(loss):
                    return math.nan
                loss.backward()
                optimiser.step()
                total += loss.item() * batch.batch_size
                count += batch.batch_size
        return total / count

    @torch.no_grad()
    def predict(self, model: Network, part: str) -> Tensor:
        """The network's output at the nodes of ``part``."""
        model.eval()
        output = layerwise(model, self.operators, self.compute.put(self.dataset.data.x))
        return output[self.compute.put(self.dataset.split[part])]

    def evaluate(self, model: Network, part: str) -> float:
        """The metric at the nodes of ``part``."""
        return metrics.node_score(self.dataset, part, self.predict(model, part))


def layerwise(
    model: Network, operators: Mapping[str, Tensor], x: Tensor, rows: int = ROWS
) -> Tensor:
    """The network's output at all nodes: every layer is computed once for every node.

    A batch of nodes would need nearly the whole graph after a few hops, again for every batch.

    Args:
        model: in evaluation mode.
        operators: the CSR matrix of each of the network's operators.
        x: features.
        rows: nodes of a layer to compute at a time.

    Returns:
        One row per node.
    """
    h = x
    for layer in range(model.num_layers):
        parts = []
        for begin in range(0, x.size(0), rows):
            blocks = {
                name: put_matrix(_rows(matrix, begin, rows), h.device)
                for name, matrix in operators.items()
            }
            part = model.combine(layer, partial(_apply, blocks, h))
            parts.append(part.relu_() if layer < model.num_layers - 1 else part)
        h = torch.cat(parts)
    return h


def _apply(blocks: Mapping[str, Matrix], h: Tensor, name: str, weight: Tensor) -> Tensor:
    return multiply(blocks[name], h) @ weight.t()


def _rows(matrix: Tensor, begin: int, rows: int) -> Tensor:
    """Some rows of a CSR matrix, without a copy of its entries."""
    pointer = matrix.crow_indices()[begin : begin + rows + 1]
    first, last = int(pointer[0]), int(pointer[-1])
    return torch.sparse_csr_tensor(
        pointer - first,
        matrix.col_indices()[first:last],
        matrix.values()[first:last],
        (pointer.numel() - 1, matrix.size(1)),
        check_invariants=False,
    )

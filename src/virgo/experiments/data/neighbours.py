"""Neighbour sampling for PyG's ``NodeLoader`` and ``LinkLoader``, compiled and seeded.

PyG's own ``NeighborLoader`` needs a compiled extension; :class:`NeighborSampler` needs none and
gives the same kind of batch. Which neighbours a batch gets follows from ``(seed, epoch, nodes of
the batch in their order)`` alone: it does not depend on how many batches came before, on the number
of loader workers or on threads, and no global random state is read or changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.sampler.neighbor_sampler import edge_sample

from virgo.errors import GraphError, OptionError
from virgo.experiments.data.in_neighbours import InNeighbours

_WORD = (1 << 64) - 1
#: Tells the stream of negatives from that of neighbours.
_NEGATIVES = 1


@dataclass(frozen=True)
class Block:
    """All in-edges of some target nodes, as a bipartite graph.

    One layer on the targets alone is ``conv((x[nodes], x[nodes[:num_targets]]), edge_index)``.

    Args:
        nodes: the sources' ids: the targets first, as given, then others in order of discovery.
        edge_index: ``[2, E]``; sources and targets count in ``nodes``.
        edges: the edges' ids, if the graph has them.
        num_targets: how many of ``nodes`` are targets.
    """

    nodes: Tensor
    edge_index: Tensor
    edges: Tensor | None
    num_targets: int


def _walk(
    graph: InNeighbours,
    seeds: npt.NDArray[np.int64],
    fanouts: Sequence[int],
    word: int,
) -> SamplerOutput:
    """The sampled neighbourhood of ``seeds``, hop by hop; every hop starts at the new nodes."""
    from virgo.experiments.data import _sampling

    scratch = graph.borrow()
    state = np.array([word], dtype=np.uint64)
    nodes, edges = [seeds], [np.empty((3, 0), dtype=np.int64)]
    first, known = 0, seeds.size
    _sampling.number(seeds, scratch.local)
    for fanout in fanouts:
        size = _sampling.count_hop(graph.pointer, nodes[-1], fanout)
        row, col, at = hop = np.empty((3, size), dtype=np.int64)
        fresh = np.empty(size, dtype=np.int64)
        _sampling.choose(graph.pointer, nodes[-1], first, fanout, state, scratch.seen, col, at)
        found = _sampling.discover(graph.columns, at, known, scratch.local, row, fresh)
        first, known = known, known + found
        nodes.append(fresh[:found])
        edges.append(hop)
    every = np.concatenate(nodes)
    _sampling.forget(every, scratch.local)
    graph.give_back(scratch)  # not if interrupted: then its markers are not blank
    row, col, at = np.concatenate(edges, axis=1)
    return SamplerOutput(
        node=torch.from_numpy(every),
        row=torch.from_numpy(row),
        col=torch.from_numpy(col),
        edge=graph.edges(at),
        num_sampled_nodes=[part.size for part in nodes],
        num_sampled_edges=[part.shape[1] for part in edges[1:]],
    )


def full_neighbours(graph: InNeighbours, nodes: Tensor) -> Block:
    """All in-neighbours of a block of target nodes, for layer-wise inference.

    Cost is that of the block's edges, beside a marker for every node of the graph that is used
    again from block to block.

    Args:
        graph: the in-neighbours to read.
        nodes: ids of the target nodes.
    """
    targets = graph.nodes("full_neighbours", nodes)
    out = _walk(graph, targets, [-1], 0)
    return Block(out.node, torch.stack([out.row, out.col]), out.edge, targets.size)


class NeighborSampler(BaseSampler):  # type: ignore[misc]  # torch_geometric is untyped
    """Samples up to so many in-neighbours a hop, uniformly and without replacement.

    A batch has the form that PyG's ``NeighborLoader`` gives (directional, not disjoint): seeds
    first and as given, other nodes in order of discovery; every hop samples in-edges of the nodes
    that the hop before it met first; edges point from neighbour to node and come hop by hop, so
    ``trim_to_layer`` works. A node with at most ``fanout`` in-edges gets them all. Self-loops and
    repeated edges count as edges of their own, each sampled at most once. An isolated node comes
    without edges. A seed that comes twice has two places, each with neighbours of its own.

    The sample follows from ``seed``, the epoch (see :meth:`set_epoch`) and the nodes of the batch.
    Without :meth:`set_epoch` a batch of the same nodes in the same order gets the same neighbours
    in every epoch; with ``shuffle=True`` batches differ by themselves.

    Cost is that of the sampled edges, beside a marker for every node of the graph that is used
    again from batch to batch, one for each thread that samples.

    Args:
        graph: a homogeneous ``Data``, or its :class:`InNeighbours`.
        num_neighbors: how many in-neighbours to sample in each hop, -1 for all.
        seed: of every draw.
        edge_ids: whether batches carry edge ids and edge features; ignored if ``graph`` is
            an :class:`InNeighbours`.

    Example:
        >>> from torch_geometric.loader import NodeLoader
        >>> import virgo
        >>> data = virgo.data.citation_like(num_nodes=300, seed=0)
        >>> sampler = NeighborSampler(data, [10, 5], seed=0)
        >>> loader = NodeLoader(data, sampler, input_nodes=data.train_mask, batch_size=8)
        >>> batch = next(iter(loader))
        >>> batch.batch_size, batch.num_sampled_nodes[0], len(batch.num_sampled_edges)
        (8, 8, 2)
    """

    def __init__(
        self,
        graph: Data | InNeighbours,
        num_neighbors: Sequence[int],
        seed: int = 0,
        edge_ids: bool = True,
    ) -> None:
        self.num_neighbors = _fanouts(num_neighbors)
        if not isinstance(graph, InNeighbours):
            graph = InNeighbours.of(graph, edge_ids)
        self.graph = graph
        self.seed = int(seed)
        # In shared memory, so that workers that outlive an epoch see the next one.
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()
        if graph.num_nodes:
            # Compiles now: workers start as copies of this process and need not compile again.
            first = np.zeros(1, dtype=np.int64)
            _walk(graph, first, [1], self._word(first))

    def set_epoch(self, epoch: int) -> None:
        """Other neighbours from now on; call it before the loader's epoch begins.

        Args:
            epoch: a number of the epoch, 0 or more; the same number brings the same neighbours.
        """
        if epoch < 0:
            raise OptionError(f"set_epoch: epoch must be 0 or more, got {epoch}. Count from 0.")
        self._epoch[0] = epoch

    def sample_from_nodes(self, index: NodeSamplerInput, **kwargs: Any) -> SamplerOutput:
        """The neighbourhood of a batch of nodes; ``metadata`` is ``(input_id, None)``."""
        _plain(index.time, index.input_type)
        out = self._sample(index.node)
        out.metadata = (index.input_id, None)
        return out

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput:
        """The neighbourhood of both ends of a batch of edges, and of sampled negatives.

        Negatives are uniform, or follow the weights in ``neg_sampling``; like PyG's they may
        happen to be edges. They follow from the seed, the epoch and the batch too.
        """
        _plain(index.time, index.input_type)
        ends = self.graph.nodes("NeighborSampler", torch.cat([index.row, index.col]))
        seeded = None
        if neg_sampling is not None:
            seeded = _SeededNegatives(neg_sampling, self._word(ends, _NEGATIVES))
        return edge_sample(
            index,
            lambda seeds, _: self._sample(seeds),
            self.graph.num_nodes,
            disjoint=False,
            node_time=None,
            neg_sampling=seeded,
        )

    def _word(self, nodes: npt.NDArray[np.int64], purpose: int = 0) -> int:
        from virgo.experiments.data import _sampling

        # Each is mixed before the next comes: seed 1 in epoch 0 is not seed 0 in epoch 1.
        start = np.array([self.seed & _WORD, int(self._epoch[0]), purpose], dtype=np.uint64)
        word = _sampling.fold(np.uint64(0), start)
        return int(_sampling.fold(np.uint64(word), nodes))

    def _sample(self, seeds: Tensor) -> SamplerOutput:
        nodes = self.graph.nodes("NeighborSampler", seeds)
        return _walk(self.graph, nodes, self.num_neighbors, self._word(nodes))

    def __repr__(self) -> str:
        hops = ", ".join(str(fanout) for fanout in self.num_neighbors)
        return f"NeighborSampler([{hops}], seed={self.seed})"


class _SeededNegatives(NegativeSampling):  # type: ignore[misc]  # torch_geometric is untyped
    """PyG's negative sampling, with a generator instead of global random state."""

    def __init__(self, like: NegativeSampling, word: int) -> None:
        super().__init__(like.mode, like.amount, like.src_weight, like.dst_weight)
        self.generator = torch.Generator().manual_seed(word >> 1)

    def sample(
        self, num_samples: int, endpoint: Literal["src", "dst"], num_nodes: int | None = None
    ) -> Tensor:
        weight = self.src_weight if endpoint == "src" else self.dst_weight
        if weight is None:
            assert num_nodes is not None
            return torch.randint(num_nodes, (num_samples,), generator=self.generator)
        if weight.numel() != num_nodes:
            raise OptionError(
                f"NegativeSampling: expected one weight for each of {num_nodes} nodes, got "
                f"{weight.numel()}. Give every node a weight."
            )
        return torch.multinomial(weight, num_samples, replacement=True, generator=self.generator)


def _fanouts(num_neighbors: Sequence[int]) -> list[int]:
    if isinstance(num_neighbors, (str, dict)) or not hasattr(num_neighbors, "__iter__"):
        raise OptionError(
            f"NeighborSampler: num_neighbors must be a list with a number for each hop, got "
            f"{num_neighbors!r}. Write [15, 10, 5]."
        )
    fanouts = list(num_neighbors)
    good = [isinstance(fanout, (int, np.integer)) for fanout in fanouts]
    if not fanouts or not all(good) or any(fanout == 0 or fanout < -1 for fanout in fanouts):
        raise OptionError(
            f"NeighborSampler: num_neighbors must be one or more numbers above 0, or -1 for all, "
            f"got {fanouts}. Leave a hop out instead of sampling nothing."
        )
    return [int(fanout) for fanout in fanouts]


def _plain(time: Tensor | None, kind: Any) -> None:
    if kind is not None:
        raise GraphError(
            f"NeighborSampler: expected one kind of node and edge, got the type {kind!r} of a "
            f"HeteroData. Pass data.to_homogeneous()."
        )
    if time is not None:
        raise OptionError(
            "NeighborSampler: expected seeds without timestamps, got some. Drop input_time."
        )

"""Neighbour sampling for PyG's ``NodeLoader`` and ``LinkLoader``, compiled and seeded.

PyG's own ``NeighborLoader`` needs a compiled extension (pyg-lib) that has no wheel for every
platform; :class:`NeighborSampler` needs none and returns the same kind of batch. The neighbours of
a batch depend only on ``(seed, epoch, nodes of the batch in order)``: not on earlier batches, the
number of loader workers or threads. Global random state is neither read nor changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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
from virgo.graph import csr

_INT32_MAX = np.iinfo(np.int32).max
_WORD = (1 << 64) - 1
#: Separates the random stream of negatives from that of neighbours.
_NEGATIVES = 1


class Scratch:
    """Working memory of one batch: a position per node (-1: none), and stamps per edge offset."""

    def __init__(self, graph: InNeighbours) -> None:
        dtype = np.dtype(np.int32 if graph.num_nodes <= _INT32_MAX else np.int64)
        self.position = np.full(graph.num_nodes, -1, dtype=dtype)
        max_degree = int(np.diff(graph.pointer).max(initial=0))
        assert max_degree < 1 << 32, "draws are made of 32 bits"
        self.seen = np.zeros(max_degree + 1, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class InNeighbours:
    """Every node's in-neighbours in CSR form: the edges in order of their target.

    Self-loops and repeated edges are kept: each is an edge of its own.

    Args:
        pointer: where each node's edges begin, 64 bits, one more than nodes.
        columns: the edges' sources, 32 bits where the number of nodes allows.
        ids: the edges' columns in the original ``edge_index``; ``None`` where they are in that
            order already, or were not asked for.
        has_ids: whether edge ids are known.
    """

    pointer: npt.NDArray[np.int64]
    columns: csr.Indices
    ids: csr.Indices | None
    has_ids: bool = True
    _free: list[Scratch] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse arrays that the compiled loops would follow out of each other."""
        bounds = csr.Bounds("InNeighbours", self.pointer.size - 1)
        bounds.check_pointer(self.pointer, self.columns.size)
        bounds.check_rows(self.pointer, self.columns)
        if self.ids is not None and self.ids.size != self.columns.size:
            raise GraphError(
                f"InNeighbours: expected {self.columns.size:,} ids, one per edge, got "
                f"{self.ids.size:,}. Build it with InNeighbours.of(data)."
            )

    @classmethod
    def of(cls, data: Data, edge_ids: bool = True) -> InNeighbours:
        """The in-neighbours of a homogeneous graph.

        Args:
            data: the graph.
            edge_ids: see :meth:`build`.

        Returns:
            Its edges in CSR form.

        Raises:
            GraphError: the graph is heterogeneous, or has no ``edge_index`` or ``num_nodes``.
        """
        if not isinstance(data, Data):
            raise GraphError(
                f"InNeighbours: expected one kind of node and edge in a Data, got a "
                f"{type(data).__name__}. Pass data.to_homogeneous()."
            )
        if not isinstance(data.edge_index, Tensor) or data.num_nodes is None:
            raise GraphError(
                "InNeighbours: expected data.edge_index and data.num_nodes, got none. Set them."
            )
        return cls.build(data.edge_index, int(data.num_nodes), edge_ids)

    @classmethod
    def build(cls, edge_index: Tensor, num_nodes: int, edge_ids: bool = True) -> InNeighbours:
        """Stable counting sort of the edges by target.

        Args:
            edge_index: ``[2, E]``, sources first.
            num_nodes: the number of nodes.
            edge_ids: whether to remember the edges' original columns (4 bytes per edge, 8 above
                2^31 edges); needed only for graphs with edge features.

        Returns:
            The edges in CSR form.

        Raises:
            GraphError: ``edge_index`` has another shape or type, or names nodes out of range.
        """
        if edge_index.dim() != 2 or edge_index.size(0) != 2 or edge_index.is_floating_point():
            raise GraphError(
                f"InNeighbours: edge_index must be integers of shape [2, E], got {edge_index.dtype}"
                f" of shape {list(edge_index.shape)}. Pass a COO edge_index."
            )
        low, high = edge_index.aminmax() if edge_index.numel() else (0, -1)
        if low < 0 or high >= num_nodes:
            raise GraphError(
                f"InNeighbours: node ids in edge_index must be in [0, {num_nodes}), got "
                f"{int(low)} to {int(high)}. Check num_nodes."
            )
        sources, targets = (np.ascontiguousarray(row) for row in edge_index.detach().cpu().numpy())
        counted = csr.Counted.of(targets, num_nodes)
        ids: Any = None
        if edge_ids and not counted.is_sorted:
            ids = np.arange(targets.size, dtype=np.int32 if targets.size <= _INT32_MAX else None)
        # the edges' ids are sorted along with them, as edge weights are
        rows: Any = csr.Compressed.build(targets, sources, num_nodes, ids, counted)
        return cls(rows.pointer, rows.columns, rows.weights, edge_ids)

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return self.pointer.size - 1

    def edges(self, index: npt.NDArray[np.int64]) -> Tensor | None:
        """The ids of the edges at ``index`` of ``columns``, or ``None`` where they are unknown."""
        if not self.has_ids:
            return None
        return torch.from_numpy(index if self.ids is None else self.ids[index].astype(np.int64))

    def borrow(self) -> Scratch:
        """Blank scratch that nobody else uses; :meth:`give_back` it when it is blank again."""
        try:
            return self._free.pop()  # atomic, so two threads never get the same
        except IndexError:
            return Scratch(self)

    def give_back(self, scratch: Scratch) -> None:
        """Keep ``scratch`` for the next batch."""
        self._free.append(scratch)

    def __getstate__(self) -> dict[str, Any]:
        """Without scratch, which every process makes for itself."""
        return {**self.__dict__, "_free": []}

    def nodes(self, nodes: Tensor) -> npt.NDArray[np.int64]:
        """``nodes`` as an array of valid ids."""
        if nodes.dim() != 1 or nodes.is_floating_point() or nodes.dtype == torch.bool:
            raise OptionError(
                f"NeighborSampler: expected a vector of node ids, got {nodes.dtype} of shape "
                f"{list(nodes.shape)}. Pass mask.nonzero().view(-1) for a mask."
            )
        if nodes.numel() == 0:
            raise OptionError(
                "NeighborSampler: expected at least one node, got none. Skip the batch."
            )
        ids: npt.NDArray[np.int64] = nodes.detach().cpu().numpy().astype(np.int64)
        if ids.min() < 0 or ids.max() >= self.num_nodes:
            raise OptionError(
                f"NeighborSampler: node ids must be in [0, {self.num_nodes}), got {ids.min()} to "
                f"{ids.max()}. Sample from the graph that the ids belong to."
            )
        return ids


def _sample_hops(
    graph: InNeighbours,
    seeds: npt.NDArray[np.int64],
    fanouts: Sequence[int],
    word: int,
) -> SamplerOutput:
    """The sampled neighbourhood of ``seeds``, hop by hop; every hop starts at the new nodes."""
    from virgo.experiments.data import sampling_kernels as kernels

    scratch = graph.borrow()
    state = np.array([word], dtype=np.uint64)
    nodes, edges = [seeds], [np.empty((3, 0), dtype=np.int64)]
    first, known = 0, seeds.size
    kernels.assign_positions(seeds, scratch.position)
    for fanout in fanouts:
        size = kernels.count_hop(graph.pointer, nodes[-1], fanout)
        row, col, at = hop = np.empty((3, size), dtype=np.int64)
        fresh = np.empty(size, dtype=np.int64)
        kernels.choose(graph.pointer, nodes[-1], first, fanout, state, scratch.seen, col, at)
        count = kernels.discover(graph.columns, at, known, scratch.position, row, fresh)
        first, known = known, known + count
        nodes.append(fresh[:count])
        edges.append(hop)
    batch = np.concatenate(nodes)
    kernels.clear_positions(batch, scratch.position)
    graph.give_back(scratch)  # not if interrupted: then it is not blank
    row, col, at = np.concatenate(edges, axis=1)
    return SamplerOutput(
        node=torch.from_numpy(batch),
        row=torch.from_numpy(row),
        col=torch.from_numpy(col),
        edge=graph.edges(at),
        num_sampled_nodes=[part.size for part in nodes],
        num_sampled_edges=[part.shape[1] for part in edges[1:]],
    )


class NeighborSampler(BaseSampler):  # type: ignore[misc]  # torch_geometric is untyped
    """Samples up to a given number of in-neighbours per hop, uniformly, without replacement.

    A batch has the form that PyG's ``NeighborLoader`` gives (directional, not disjoint): seeds
    first and as given, other nodes in order of discovery; every hop samples in-edges of the nodes
    that the previous hop discovered; edges point from neighbour to node and are ordered by hop, so
    ``trim_to_layer`` works. A node with at most ``fanout`` in-edges gets them all. Self-loops and
    repeated edges count as edges of their own, each sampled at most once. A repeated seed has two
    positions, each with neighbours of its own.

    The sample depends on ``seed``, the epoch (see :meth:`set_epoch`) and the nodes of the batch.
    Without :meth:`set_epoch` a batch of the same nodes in the same order gets the same neighbours
    in every epoch; with ``shuffle=True`` batches differ anyway.

    The cost is proportional to the sampled edges, plus one array over all nodes of the graph per
    sampling thread, reused from batch to batch.

    Args:
        graph: a homogeneous ``Data``, or its :class:`InNeighbours`.
        num_neighbors: how many in-neighbours to sample in each hop, -1 for all.
        seed: seed of every draw.
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
            _sample_hops(graph, first, [1], self._word(first))

    def set_epoch(self, epoch: int) -> None:
        """Draw other neighbours from now on; call it before the loader's epoch begins.

        Args:
            epoch: number of the epoch, 0 or more; the same number gives the same neighbours.

        Raises:
            OptionError: it is negative.
        """
        if epoch < 0:
            raise OptionError(f"set_epoch: epoch must be 0 or more, got {epoch}. Count from 0.")
        self._epoch[0] = epoch

    def sample_from_nodes(self, index: NodeSamplerInput, **kwargs: Any) -> SamplerOutput:
        """The sampled neighbourhood of a batch of nodes.

        Args:
            index: the nodes.
            kwargs: ignored, as PyG's interface asks.

        Returns:
            The neighbourhood; its ``metadata`` is ``(input_id, None)``.
        """
        _require_homogeneous(index.time, index.input_type)
        out = self._sample(index.node)
        out.metadata = (index.input_id, None)
        return out

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput:
        """The sampled neighbourhood of both ends of a batch of edges, and of sampled negatives.

        Negatives depend on the seed, the epoch and the batch too; like PyG's they may happen to be
        edges.

        Args:
            index: the edges.
            neg_sampling: how many negatives, uniform or by its weights.

        Returns:
            The neighbourhood, with PyG's metadata for ``LinkLoader``.
        """
        _require_homogeneous(index.time, index.input_type)
        ends = self.graph.nodes(torch.cat([index.row, index.col]))
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
        from virgo.experiments.data import sampling_kernels as kernels

        # Each is mixed before the next comes: seed 1 in epoch 0 is not seed 0 in epoch 1.
        start = np.array([self.seed & _WORD, int(self._epoch[0]), purpose], dtype=np.uint64)
        word = kernels.fold(np.uint64(0), start)
        return int(kernels.fold(np.uint64(word), nodes))

    def _sample(self, seeds: Tensor) -> SamplerOutput:
        nodes = self.graph.nodes(seeds)
        return _sample_hops(self.graph, nodes, self.num_neighbors, self._word(nodes))

    def __repr__(self) -> str:
        hops = ", ".join(str(fanout) for fanout in self.num_neighbors)
        return f"NeighborSampler([{hops}], seed={self.seed})"


class _SeededNegatives(NegativeSampling):  # type: ignore[misc]  # torch_geometric is untyped
    """PyG's negative sampling with a generator instead of global random state."""

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
            f"NeighborSampler: num_neighbors must be a list with one number per hop, got "
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


def _require_homogeneous(time: Tensor | None, kind: object) -> None:
    if kind is not None:
        raise GraphError(
            f"NeighborSampler: expected one kind of node and edge, got the type {kind!r} of a "
            f"HeteroData. Pass data.to_homogeneous()."
        )
    if time is not None:
        raise OptionError(
            "NeighborSampler: expected seeds without timestamps, got some. Drop input_time."
        )

"""ClusterGCN's batches: a graph cut into clusters by METIS, and the subgraphs of some of them.

A partition takes minutes for a large graph and follows from the graph alone, so it is cached under
a digest of the graph, by an atomic write.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from virgo.errors import DataError, OptionError, needed
from virgo.experiments.data import user_cache
from virgo.experiments.tasks.fused import members, offsets
from virgo.report.files import atomic_write

#: Raised whenever the same graph would be partitioned in another way.
FORMAT = 1
#: Of METIS, which draws the same numbers from it on every machine.
SEED = 0


def partition(edge_index: Tensor, num_nodes: int, num_parts: int) -> Tensor:
    """Which of ``num_parts`` clusters each node is in, with few edges between them; cached.

    Args:
        edge_index: edges, in any direction; loops and repetitions do not matter.
        num_nodes: of the graph.
        num_parts: of the partition.

    Returns:
        One cluster number per node.

    Raises:
        OptionError: more parts than nodes, or METIS is not installed.
        DataError: the cache cannot be written to.
    """
    if not isinstance(num_parts, int) or num_parts < 1 or num_parts > num_nodes:
        raise OptionError(
            f"num_parts: expected a whole number from 1 to the {num_nodes} nodes of the graph, "
            f"got {num_parts!r}. Choose fewer."
        )
    path = _cache_path(edge_index, num_nodes, num_parts)
    part = _read(path, num_nodes, num_parts)
    if part is None:
        part = _metis(edge_index, num_nodes, num_parts)
        _write(path, part)
    return torch.from_numpy(part.astype(np.int64))


def _cache_path(edge_index: Tensor, num_nodes: int, num_parts: int) -> Path:
    digest = hashlib.sha256(f"{FORMAT} {num_nodes} {edge_index.size(1)}".encode())
    for ends in edge_index:
        digest.update(np.ascontiguousarray(ends.numpy(), dtype=np.int64).data)
    return user_cache() / "partitions" / f"{digest.hexdigest()[:24]}-{num_parts}.npy"


def _read(path: Path, num_nodes: int, num_parts: int) -> NDArray[np.int32] | None:
    """The cached partition, if there is an intact one."""
    with contextlib.suppress(OSError, ValueError, EOFError):
        part: NDArray[np.int32] = np.load(path, allow_pickle=False)
        if (
            part.shape == (num_nodes,)
            and part.dtype == np.int32
            and part.min() >= 0
            and part.max() < num_parts
        ):
            return part
    return None


def _write(path: Path, part: NDArray[np.int32]) -> None:
    try:
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            np.save(file, part)
    except OSError as error:
        raise DataError(
            f"{user_cache()}: expected a writable cache, got {error}. Set VIRGO_CACHE to a folder "
            f"that can be written to."
        ) from error


def _metis(edge_index: Tensor, num_nodes: int, num_parts: int) -> NDArray[np.int32]:
    if num_parts == 1:
        return np.zeros(num_nodes, dtype=np.int32)
    pymetis = needed("pymetis", "Partitioning a graph by num_parts", "clusters")
    source, target = to_undirected(
        edge_index[:, edge_index[0] != edge_index[1]], num_nodes=num_nodes
    )
    pointer = offsets(torch.bincount(source, minlength=num_nodes)).int().numpy()
    adjacency = pymetis.CSRAdjacency(pointer, target.int().numpy())
    options = pymetis.Options(seed=SEED)
    parts = pymetis.part_graph(num_parts, adjacency, recursive=False, options=options)
    return np.asarray(parts.vertex_part, dtype=np.int32)


class Clusters:
    """A graph in clusters, of which some at a time are a batch.

    Args:
        data: the graph.
        num_parts: clusters.
    """

    def __init__(self, data: Data, num_parts: int) -> None:
        self.data, self.num_nodes = data, int(data.num_nodes)
        part = partition(data.edge_index, self.num_nodes, num_parts)
        self.num_parts = num_parts
        self.nodes = torch.argsort(part, stable=True)
        self._begin = offsets(torch.bincount(part, minlength=num_parts))
        target = data.edge_index[1]
        self._edges = torch.argsort(target, stable=True)  # by target, as a batch takes them
        self._first = offsets(torch.bincount(target, minlength=self.num_nodes))

    def batch(self, parts: Tensor) -> Data:
        """The subgraph of some clusters, with the edges between them.

        Args:
            parts: ids of clusters, without repetition.

        Returns:
            A graph with ``x`` and ``edge_weight`` where the whole has them, and ``nodes``: which
            nodes of the whole it is of.
        """
        nodes = self.nodes[members(self._begin, parts)]
        local = torch.full((self.num_nodes,), -1)
        local[nodes] = torch.arange(nodes.numel())
        edges = self._edges[members(self._first, nodes)]
        ends = local[self.data.edge_index[:, edges]]
        kept = ends[0] >= 0
        batch = Data(edge_index=ends[:, kept], num_nodes=nodes.numel(), nodes=nodes)
        if self.data.x is not None:
            batch.x = self.data.x[nodes]
        if self.data.get("edge_weight") is not None:
            batch.edge_weight = self.data.edge_weight[edges[kept]]
        return batch

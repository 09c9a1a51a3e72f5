"""ClusterGCN's batches: a graph cut into clusters by METIS, and the subgraphs of some of them.

A partition takes minutes for a large graph and follows from the graph alone, so it is kept in the
cache under a digest of the graph: written aside and renamed, which is one step.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from virgo.errors import DataError, OptionError
from virgo.experiments.data import user_cache

#: Raised whenever the same graph would be partitioned in another way.
FORMAT = 1
#: Of METIS, which draws the same numbers from it on every machine.
SEED = 0


def partition(edge_index: Tensor, num_nodes: int, num_parts: int) -> Tensor:
    """Which of ``num_parts`` clusters each node is in, few edges between them; from the cache.

    Args:
        edge_index: edges, in any direction; loops and repetitions do not matter.
        num_nodes: of the graph.
        num_parts: of the partition.

    Raises:
        OptionError: more parts than nodes, or METIS is not installed.
        DataError: the cache cannot be written to.
    """
    if not isinstance(num_parts, int) or num_parts < 1 or num_parts > num_nodes:
        raise OptionError(
            f"num_parts: expected a whole number from 1 to the {num_nodes} nodes of the graph, "
            f"got {num_parts!r}. Choose fewer."
        )
    path = _place(edge_index, num_nodes, num_parts)
    part = _read(path, num_nodes, num_parts)
    if part is None:
        part = _metis(edge_index, num_nodes, num_parts)
        _write(path, part)
    return torch.from_numpy(part.astype(np.int64))


def _place(edge_index: Tensor, num_nodes: int, num_parts: int) -> Path:
    digest = hashlib.sha256(f"{FORMAT} {num_nodes} {edge_index.size(1)}".encode())
    for ends in edge_index:
        digest.update(np.ascontiguousarray(ends.numpy(), dtype=np.int64).data)
    return user_cache() / "partitions" / f"{digest.hexdigest()[:24]}-{num_parts}.npy"


def _read(path: Path, num_nodes: int, num_parts: int) -> NDArray[Any] | None:
    """The partition that is kept, if there is an intact one."""
    with contextlib.suppress(OSError, ValueError, EOFError):
        part: NDArray[Any] = np.load(path, allow_pickle=False)
        if (
            part.shape == (num_nodes,)
            and part.dtype == np.int32
            and part.min() >= 0
            and part.max() < num_parts
        ):
            return part
    return None


def _write(path: Path, part: NDArray[Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(prefix=".", suffix=".npy", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                np.save(file, part)
            os.replace(aside, path)
        except OSError:
            Path(aside).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise DataError(
            f"{user_cache()}: expected a writable cache, got {error}. Set VIRGO_CACHE to a folder "
            f"that can be written to."
        ) from error


def _metis(edge_index: Tensor, num_nodes: int, num_parts: int) -> NDArray[np.int32]:
    if num_parts == 1:
        return np.zeros(num_nodes, dtype=np.int32)
    try:
        import pymetis
    except ImportError as error:
        raise OptionError(
            f"num_parts: expected pymetis to partition with, got {error}. Install "
            f"virgo-gnn[clusters]."
        ) from error
    source, target = to_undirected(
        edge_index[:, edge_index[0] != edge_index[1]], num_nodes=num_nodes
    )
    pointer = np.zeros(num_nodes + 1, dtype=np.int32)
    np.cumsum(torch.bincount(source, minlength=num_nodes).numpy(), out=pointer[1:])
    adjacency = pymetis.CSRAdjacency(pointer, target.numpy().astype(np.int32))
    options = pymetis.Options(seed=SEED)
    found = pymetis.part_graph(num_parts, adjacency, recursive=False, options=options)
    return np.asarray(found.vertex_part, dtype=np.int32)


class Clusters:
    """A graph in clusters, of which some at a time are a batch.

    Args:
        data: the graph.
        num_parts: clusters.
    """

    def __init__(self, data: Any, num_parts: int) -> None:
        self.data, self.num_nodes = data, int(data.num_nodes)
        part = partition(data.edge_index, self.num_nodes, num_parts)
        self.num_parts = num_parts
        self.nodes = torch.argsort(part, stable=True)
        self._begin = _pointer(part, num_parts)
        target = data.edge_index[1]
        self._edges = torch.argsort(target, stable=True)  # by target, as a batch takes them
        self._first = _pointer(target, self.num_nodes)

    def batch(self, parts: Tensor) -> Data:
        """The subgraph of some clusters, with the edges between them.

        Args:
            parts: ids of clusters, without repetition.

        Returns:
            A graph with ``x`` and ``edge_weight`` where the whole has them, and ``nodes``: which
            nodes of the whole it is of.
        """
        nodes = self.nodes[_spans(self._begin, parts)]
        local = torch.full((self.num_nodes,), -1)
        local[nodes] = torch.arange(nodes.numel())
        edges = self._edges[_spans(self._first, nodes)]
        ends = local[self.data.edge_index[:, edges]]
        kept = ends[0] >= 0
        made = Data(edge_index=ends[:, kept], num_nodes=nodes.numel(), nodes=nodes)
        if self.data.x is not None:
            made.x = self.data.x[nodes]
        if self.data.get("edge_weight") is not None:
            made.edge_weight = self.data.edge_weight[edges[kept]]
        return made


def _pointer(keys: Tensor, number: int) -> Tensor:
    """Where each key's items begin among items in order of their keys, and where the last ends."""
    pointer = torch.zeros(number + 1, dtype=torch.long)
    torch.cumsum(torch.bincount(keys, minlength=number), 0, out=pointer[1:])
    return pointer


def _spans(pointer: Tensor, keys: Tensor) -> Tensor:
    """The places of the items of ``keys``, one key after the other.

    >>> _spans(torch.tensor([0, 2, 5, 6]), torch.tensor([2, 0])).tolist()
    [5, 0, 1]
    """
    begin, size = pointer[keys], pointer[keys + 1] - pointer[keys]
    before = size.cumsum(0) - size
    return torch.repeat_interleave(begin - before, size) + torch.arange(int(size.sum()))

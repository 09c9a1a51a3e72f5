"""Every node's in-neighbours, compressed, for sampling and for layer-wise inference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data

from virgo.errors import GraphError, OptionError

Indices = npt.NDArray[np.int64] | npt.NDArray[np.int32]
_NARROW = np.iinfo(np.int32).max


class Scratch:
    """What a batch needs beside its output: blank markers for nodes, and stamps for offsets."""

    def __init__(self, graph: InNeighbours) -> None:
        kind: Any = np.int32 if graph.num_nodes <= _NARROW else np.int64
        self.local = np.full(graph.num_nodes, -1, dtype=kind)
        most = int(np.diff(graph.pointer).max(initial=0))
        assert most < 1 << 32, "draws are made of 32 bits"
        self.seen = np.zeros(most + 1, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class InNeighbours:
    """Every node's in-neighbours, compressed: the edges in order of their target.

    Self-loops and repeated edges are kept as they are: each is an edge of its own.

    Args:
        pointer: where each node's edges begin, 64 bits, one more than nodes.
        columns: the edges' sources, 32 bits where the number of nodes allows.
        ids: the edges' places in the ``edge_index`` they come from; ``None`` where
            they lie in that order already, or where nobody asked for them.
        has_ids: whether edge ids can be told.
    """

    pointer: npt.NDArray[np.int64]
    columns: Indices
    ids: Indices | None
    has_ids: bool = True
    _free: list[Scratch] = field(default_factory=list, init=False, repr=False)

    @classmethod
    def of(cls, data: Data, edge_ids: bool = True) -> InNeighbours:
        """The in-neighbours of a homogeneous graph."""
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
        """Counting sort of the edges by target: linear, stable, skipped where already sorted.

        Args:
            edge_index: ``[2, E]``, sources first.
            num_nodes: the number of nodes.
            edge_ids: whether to remember where edges came from (4 bytes an edge, 8 above 2^31
                edges); needed only for graphs with edge features.
        """
        from virgo.experiments.data import _sampling

        if edge_index.dim() != 2 or edge_index.size(0) != 2 or edge_index.is_floating_point():
            raise GraphError(
                f"InNeighbours: edge_index must be integers of shape [2, E], got {edge_index.dtype}"
                f" of shape {list(edge_index.shape)}. Pass a COO edge_index."
            )
        sources, targets = (np.ascontiguousarray(row) for row in edge_index.detach().cpu().numpy())
        pointer = np.zeros(num_nodes + 1, dtype=np.int64)
        order = _sampling.count(targets, sources, num_nodes, pointer)
        if order == 2:
            raise GraphError(
                f"InNeighbours: node ids in edge_index must be in [0, {num_nodes}), got "
                f"{int(edge_index.min())} to {int(edge_index.max())}. Check num_nodes."
            )
        np.cumsum(pointer, out=pointer)
        narrow: Any = np.int32 if num_nodes <= _NARROW else np.int64
        if order == 0:
            return cls(pointer, sources.astype(narrow), None, edge_ids)
        kind: Any = np.int32 if sources.size <= _NARROW else np.int64
        columns = np.empty(sources.size, dtype=narrow)
        ids = np.empty(sources.size if edge_ids else 0, dtype=kind)
        _sampling.place(targets, sources, pointer[:-1].copy(), columns, ids)
        return cls(pointer, columns, ids if edge_ids else None, edge_ids)

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return self.pointer.size - 1

    def edges(self, position: npt.NDArray[np.int64]) -> Tensor | None:
        """The ids of the edges at ``position`` of ``columns``."""
        if not self.has_ids:
            return None
        found = position if self.ids is None else self.ids[position].astype(np.int64)
        return torch.from_numpy(found)

    def borrow(self) -> Scratch:
        """Blank scratch that nobody else has; :meth:`give_back` it when it is blank again."""
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

    def nodes(self, where: str, nodes: Tensor) -> npt.NDArray[np.int64]:
        """``nodes`` as an array of valid ids."""
        if nodes.dim() != 1 or nodes.is_floating_point() or nodes.dtype == torch.bool:
            raise OptionError(
                f"{where}: expected a vector of node ids, got {nodes.dtype} of shape "
                f"{list(nodes.shape)}. Pass mask.nonzero().view(-1) for a mask."
            )
        if nodes.numel() == 0:
            raise OptionError(f"{where}: expected at least one node, got none. Skip the batch.")
        ids: npt.NDArray[np.int64] = nodes.detach().cpu().numpy().astype(np.int64)
        if ids.min() < 0 or ids.max() >= self.num_nodes:
            raise OptionError(
                f"{where}: node ids must be in [0, {self.num_nodes}), got {ids.min()} to "
                f"{ids.max()}. Sample from the graph that the ids belong to."
            )
        return ids

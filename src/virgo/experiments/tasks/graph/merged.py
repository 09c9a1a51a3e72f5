"""Many small graphs side by side as one, from which batches are cut by index arithmetic.

PyG makes a batch by looping over its graphs, which on small graphs takes longer than the network.
Here all graphs lie one after the other, and a batch is a few array look-ups.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, InMemoryDataset

from virgo.errors import DataError
from virgo.experiments.models.convolutions import operator_entries
from virgo.experiments.tasks.fused import Constant, csr, members, offsets, ranges


class Merged:
    """All graphs of a dataset; one-hot features are stored as column numbers.

    Args:
        graphs: a dataset of PyG's or a list of ``Data``, with ``x`` and ``y``.
        name: what errors call it.

    Attributes:
        nodes: where each graph's nodes begin, and the end.
        edges: where each graph's edges begin, and the end.
        edge_index: nodes counted from their graph's first.
        x: features, or none if they are one-hot.
        ids: the columns of one-hot features, or none.
        width: columns of the features.
        edge_attr: features of the edges, if there are any.
        y: one label, or one row of labels, per graph.
    """

    def __init__(self, graphs: Any, name: str = "graphs") -> None:
        self.name = name
        self.x: Tensor | None = None
        self.ids: Tensor | None = None
        self.nodes: Tensor
        self.edges: Tensor
        self.width: int
        if isinstance(graphs, InMemoryDataset) and graphs._indices is None and len(graphs) > 1:
            self._take_collated(graphs)
        else:
            self._concatenate(list(graphs))
        self._find_one_hot()
        self._operators: dict[str, tuple[Tensor, Tensor]] = {}
        self._check()

    def __len__(self) -> int:
        return int(self.nodes.numel()) - 1

    def _take_collated(self, graphs: InMemoryDataset) -> None:
        """PyG's datasets store their graphs one after the other already."""
        data, slices = graphs._data, graphs.slices
        self.edge_index, self.edges = data.edge_index, slices["edge_index"].long()
        self.edge_attr: Tensor | None = data.get("edge_attr")
        self.y: Tensor = data.y
        self.width = int(graphs[0].num_features)
        if data.get("x") is not None:
            self.x, self.nodes = data.x, slices["x"].long()
        elif data.get("degree") is not None and graphs[0].x is not None:
            # virgo.experiments.data.preprocessing.OneHotDegree makes x when a graph is looked at
            self.ids, self.nodes = data.degree, slices["degree"].long()
        else:
            raise self._featureless(0)

    def _concatenate(self, graphs: Sequence[Any]) -> None:
        if not graphs:
            raise DataError(f"{self.name}: expected graphs, got none. Pass some.")
        for number, graph in enumerate(graphs):
            if graph.get("x") is None or graph.x.dim() != 2:
                raise self._featureless(number)
            if graph.get("edge_index") is None or graph.get("y") is None:
                raise DataError(
                    f"{self.name}: expected edge_index and y in every graph, got none in number "
                    f"{number}. A graph without edges has an edge_index of shape [2, 0]."
                )
            if graph.x.size(1) != graphs[0].x.size(1):
                raise DataError(
                    f"{self.name}: expected {graphs[0].x.size(1)} features per node as in the "
                    f"first graph, got {graph.x.size(1)} in number {number}. Give all the same."
                )
        self.width = int(graphs[0].x.size(1))
        self.nodes = offsets(torch.tensor([graph.x.size(0) for graph in graphs]))
        self.edges = offsets(torch.tensor([graph.edge_index.size(1) for graph in graphs]))
        self.edge_index = torch.cat([graph.edge_index for graph in graphs], 1)
        self.x = torch.cat([graph.x for graph in graphs])
        self.y = torch.cat([graph.y for graph in graphs])
        has_edge_attr = graphs[0].get("edge_attr") is not None
        self.edge_attr = torch.cat([g.edge_attr for g in graphs]) if has_edge_attr else None

    def _featureless(self, number: int) -> DataError:
        return DataError(
            f"{self.name}: expected features x of shape [nodes, features] in every graph, got none "
            f"in number {number}. Give it its degrees, one-hot."
        )

    def _find_one_hot(self) -> None:
        x = self.x
        if x is None or not x.is_floating_point():
            return
        if x.size(0) and int(torch.count_nonzero(x)) == x.size(0):
            ids = x.argmax(1)
            if bool((x.gather(1, ids.view(-1, 1)) == 1).all()):
                self.x, self.ids = None, ids

    def _check(self) -> None:
        """Raise for what would otherwise move an edge or a label into another graph."""
        for pointer, rows in (
            (self.nodes, self.x if self.ids is None else self.ids),
            (self.edges, self.edge_index.t()),
        ):
            size = -1 if rows is None else rows.size(0)
            if pointer[0] != 0 or pointer[-1] != size or bool((pointer.diff() < 0).any()):
                raise DataError(
                    f"{self.name}: expected graphs one after the other, got slices that overlap or "
                    f"leave something out. Process the dataset again."
                )
        if (
            self.ids is not None
            and self.ids.numel()
            and not 0 <= int(self.ids.min()) <= int(self.ids.max()) < self.width
        ):
            raise DataError(
                f"{self.name}: expected columns of one-hot features from 0 to {self.width - 1}, "
                f"got {int(self.ids.min())} to {int(self.ids.max())}. Process the dataset again."
            )
        size = torch.repeat_interleave(self.nodes.diff(), self.edges.diff())
        wrong = ((self.edge_index < 0) | (self.edge_index >= size)).any(0)
        if bool(wrong.any()):
            number = int(torch.searchsorted(self.edges, wrong.nonzero()[0, 0], right=True)) - 1
            raise DataError(
                f"{self.name}: expected edges between the {int(self.nodes.diff()[number])} nodes "
                f"of graph {number}, got others. Relabel its nodes."
            )
        if self.edge_attr is not None and self.edge_attr.size(0) != self.edge_index.size(1):
            raise DataError(
                f"{self.name}: expected {self.edge_index.size(1)} rows of edge_attr, one per edge, "
                f"got {self.edge_attr.size(0)}. Check it against edge_index."
            )
        if self.y.size(0) != len(self):
            raise DataError(
                f"{self.name}: expected {len(self)} rows of labels y, one per graph, got "
                f"{self.y.size(0)}. Give each graph a y of shape [1] or [1, tasks]."
            )

    def batch(self, graphs: Tensor) -> tuple[Tensor, Tensor]:
        """The nodes of some graphs, and which of these graphs each is in."""
        batch = torch.repeat_interleave(torch.arange(graphs.numel()), _counts(self.nodes, graphs))
        return members(self.nodes, graphs), batch

    def num_nodes(self, graphs: Tensor) -> int:
        """The number of nodes of some graphs together."""
        return int(_counts(self.nodes, graphs).sum())

    def num_edges(self, graphs: Tensor) -> int:
        """The number of edges of some graphs together."""
        return int(_counts(self.edges, graphs).sum())

    @cached_property
    def has_loops(self) -> bool:
        """Whether there are self-loops, which PyG treats differently in a sparse matrix."""
        return bool((self.edge_index[0] == self.edge_index[1]).any())

    def take(self, graphs: Tensor, *, as_matrix: bool = False) -> Data:
        """Some graphs as PyG batches them, one-hot features as a sparse matrix.

        Args:
            graphs: which.
            as_matrix: give ``adj_t`` in place of ``edge_index``; layers then need no memory for
                messages.

        Returns:
            The batch.
        """
        nodes, batch = self.batch(graphs)
        edges = members(self.edges, graphs)
        first = offsets(_counts(self.nodes, graphs))[:-1]
        shift = torch.repeat_interleave(first, _counts(self.edges, graphs))
        edge_index = self.edge_index.index_select(1, edges) + shift
        data = Data(
            y=self.y[graphs], batch=batch, num_nodes=nodes.numel(), num_graphs=graphs.numel()
        )
        if as_matrix:
            source, target = edge_index
            shape = (nodes.numel(), nodes.numel())
            data.adj_t = csr(target, source, torch.ones(source.numel()), shape)
        else:
            data.edge_index = edge_index
        if self.x is not None:
            data.x = self.x.index_select(0, nodes)
        elif self.ids is not None:
            where = torch.stack([torch.arange(nodes.numel()), self.ids[nodes]])
            shape = (nodes.numel(), self.width)
            data.x = torch.sparse_coo_tensor(
                where, torch.ones(nodes.numel()), shape, is_coalesced=True, check_invariants=False
            )
        if self.edge_attr is not None:
            data.edge_attr = self.edge_attr.index_select(0, edges)
        return data

    def operator(self, name: str, graphs: Tensor) -> Constant:
        """An operator of :attr:`virgo.experiments.models.Network.operators` on some graphs."""
        if name not in self._operators:
            self._operators[name] = self._make_operator(name)
        matrix, transposed = self._operators[name]
        block = self._block(matrix, graphs)
        return Constant(block, block if transposed is matrix else self._block(transposed, graphs))

    def _make_operator(self, name: str) -> tuple[Tensor, Tensor]:
        """On all graphs, and its transpose, which for undirected graphs is the same."""
        first = torch.repeat_interleave(self.nodes[:-1], self.edges.diff())
        size = int(self.nodes[-1])
        row, col, value = operator_entries(name, self.edge_index + first, size)
        matrix = csr(row, col, value, (size, size))
        transposed = csr(col, row, value, (size, size))
        same = (
            torch.equal(matrix.crow_indices(), transposed.crow_indices())
            and torch.equal(matrix.col_indices(), transposed.col_indices())
            and torch.equal(matrix.values(), transposed.values())
        )
        return matrix, matrix if same else transposed

    def _block(self, matrix: Tensor, graphs: Tensor) -> Tensor:
        """The rows and columns of some graphs; nothing else is in their rows."""
        pointer = matrix.crow_indices()
        start, count = self.nodes[graphs], _counts(self.nodes, graphs)
        begin = pointer[start]
        length = pointer[start + count] - begin
        entries, nodes = ranges(begin, length), ranges(start, count)
        shift = torch.repeat_interleave((offsets(count)[:-1] - start).int(), length)
        return torch.sparse_csr_tensor(
            offsets(_counts(pointer, nodes)).int(),
            matrix.col_indices()[entries] + shift,
            matrix.values()[entries],
            (nodes.numel(), nodes.numel()),
            check_invariants=False,
        )


def _counts(pointer: Tensor, groups: Tensor) -> Tensor:
    """How many items each group has."""
    return pointer[groups + 1] - pointer[groups]

"""A DGL graph as something a plan can be made for, and models called as DGL's are.

DGL is optional and never imported here: whoever passes a ``DGLGraph`` has imported it. The graph is
mirrored in a ``Data``, so that sampling and conversion are PyG's; before each pass it becomes a
``DGLGraph`` again.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from virgo.errors import GraphError, LayerError

#: Where people keep features and labels in ``g.ndata``, most usual first.
_FEATURES = ("feat", "x", "features", "feature", "h", "attr", "node_feat")
_LABELS = ("label", "labels", "y", "target")
#: What ``forward`` calls the graph, the features and what it takes from ``g.edata``.
_GRAPH_ARGUMENTS = ("g", "graph", "bg", "batched_graph", "dgl_graph")
_FEATURE_ARGUMENTS = (*_FEATURES, "feats", "inputs", "in_feat", "n_feat", "nfeat", "node_feats")
_EDGE_ARGUMENTS = (
    ("edge_weight", "edge_weights", "eweight", "w", "weight"),
    ("etypes", "etype", "edge_type", "edge_types", "rel_type", "_TYPE"),
    ("efeat", "edge_feat", "edge_feats", "edge_attr", "feat"),
)


def _dgl() -> Any:
    """DGL if it is imported, None otherwise."""
    return sys.modules.get("dgl")


def is_dgl_graph(value: object) -> TypeGuard[Any]:
    """Whether this is a ``dgl.DGLGraph``."""
    return isinstance(value, getattr(_dgl(), "DGLGraph", ()))


def edges_of(graph: Any) -> Tensor | None:
    """The ``edge_index`` of a DGL graph with one kind of node; None for blocks and others."""
    if graph.is_block or not graph.is_homogeneous:
        return None
    return torch.stack(graph.edges()).long()


class DGLData(Data):  # type: ignore[misc]
    """The mirror of a DGL graph.

    ``x``, ``y`` and ``train_mask`` are the features, the labels and the training nodes; all other
    entries of ``g.ndata`` and ``g.edata`` are ``"node:<key>"`` and ``"edge:<key>"``. Losses find
    the graph's own ``ndata`` and ``edata`` here too.
    """

    def __cat_dim__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        return 0 if ":" in key else super().__cat_dim__(key, value, *args, **kwargs)

    @property
    def ndata(self) -> Any:
        return self.to_dgl().ndata

    @property
    def edata(self) -> Any:
        return self.to_dgl().edata

    def to_dgl(self) -> Any:
        """The DGL graph of these edges, with the tensors that are here now."""
        edges, structure = self.__dict__.get("_structure", (None, None))
        if edges is not self.edge_index:
            structure = self._rebuilt()
            self.__dict__["_structure"] = (self.edge_index, structure)
        graph = structure.local_var()  # new columns are this one's own
        columns = {"x": self.get("x_key"), "y": self.get("y_key"), "train_mask": "train_mask"}
        for key, value in self.to_dict().items():
            kind, _, name = key.partition(":")
            if kind == "edge" and name:
                graph.edata[name] = value
            elif kind == "node" and name:
                graph.ndata[name] = value
            elif key in columns and columns[key] is not None:
                graph.ndata[columns[key]] = value
        return graph

    def _rebuilt(self) -> Any:
        source, target = self.edge_index
        graph = _dgl().graph((source, target), num_nodes=self.num_nodes)
        batch = self.get("batch")
        if batch is not None:
            graph.set_batch_num_nodes(torch.bincount(batch))
            graph.set_batch_num_edges(torch.bincount(batch[source], minlength=int(batch.max()) + 1))
        return graph

    def both_ways(self) -> DGLData:
        """With every edge in both directions, since DGL's layers refuse nodes that receive none."""
        data: DGLData = copy.copy(self)
        data.edge_index = torch.cat([self.edge_index, self.edge_index.flip(0)], dim=1)
        for key, value in self.to_dict().items():
            if key.startswith("edge:"):
                data[key] = torch.cat([value, value])
        return data

    def subgraph(self, subset: Tensor) -> DGLData:
        """Of these nodes, those that still receive an edge, where before all did."""
        data: DGLData = super().subgraph(subset)
        if _receiving(self).all():
            while not (receiving := _receiving(data)).all():
                data = Data.subgraph(data, receiving.nonzero()[:, 0])
        return data


def _receiving(data: Data) -> Tensor:
    """Whether each node has an incoming edge."""
    receiving = torch.zeros(data.num_nodes, dtype=torch.bool, device=data.edge_index.device)
    receiving[data.edge_index[1]] = True
    return receiving


def mirror(graph: Any, labels: Tensor | None = None) -> DGLData:
    """The :class:`DGLData` of a DGL graph.

    Args:
        graph: with one kind of node and edge.
        labels: one per graph of a batch, if they are not in ``graph.ndata``.

    Returns:
        The mirror, which shares the graph's tensors.

    Raises:
        GraphError: the graph has several kinds of nodes or edges.
    """
    edges = edges_of(graph)
    if edges is None:
        raise GraphError(
            f"data: expected a DGL graph with one kind of node and edge, got {graph.ntypes} and "
            f"{graph.etypes}. Use dgl.to_homogeneous(g)."
        )
    features = _features_of(graph.ndata)
    label = next((key for key in _LABELS if key in graph.ndata), None)
    names = {features: "x", label: "y", "train_mask": "train_mask"}
    data = DGLData(edge_index=edges, num_nodes=graph.num_nodes(), x_key=features, y_key=label)
    for key, value in graph.ndata.items():
        data[names.get(key, f"node:{key}")] = value
    for key, value in graph.edata.items():
        data[f"edge:{key}"] = value
    if labels is not None:
        data.y, data.y_key = labels, None
    if graph.batch_size > 1:
        counts = graph.batch_num_nodes()
        data.batch = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    if graph.idtype == torch.int64:  # DGL keeps its sparse formats in the graph
        data.__dict__["_structure"] = (data.edge_index, graph.local_var())
    return data


def _features_of(columns: Any) -> str | None:
    """The key of the node features: a usual name, or the only matrix of floating numbers."""
    for key in _FEATURES:
        if key in columns:
            return key
    matrices = [k for k, v in columns.items() if v.is_floating_point() and v.dim() == 2]
    return matrices[0] if len(matrices) == 1 else None


def batched(members: Iterable[Any]) -> DGLData:
    """Many DGL graphs, or pairs of graph and label, side by side as one."""
    graphs = [member[0] if isinstance(member, tuple) else member for member in members]
    strangers = [type(graph).__name__ for graph in graphs if not is_dgl_graph(graph)]
    if strangers:
        raise GraphError(
            f"data: expected every graph of the list to be a DGLGraph, got {strangers[0]}. "
            f"Pass graphs of one library."
        )
    return mirror(_dgl().batch(graphs))


def call(model: nn.Module, data: DGLData, forward: Callable[[nn.Module, Any], Any] | None) -> Any:
    """Call a model with a DGL graph, and with the tensors that its ``forward`` asks for."""
    graph = data.to_dgl()
    if forward is not None:
        return forward(model, graph)
    parameters = [
        p
        for p in inspect.signature(model.forward).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    required = [p.name for p in parameters if p.default is p.empty]
    values = {name: _argument(name, graph, data.get("x")) for name in required}
    # whatever they are called, DGL's own order is the graph, then the features
    for name, value in zip(required, (graph, data.get("x")), strict=False):
        is_given = any(value is v for v in values.values())
        if values[name] is None and not is_given:
            values[name] = value
    missing = [name for name, value in values.items() if value is None]
    if missing:
        raise LayerError(
            f"{type(model).__name__}.forward: its argument {missing[0]!r} is nowhere in the graph. "
            f"Pass forward=lambda model, g: model(...)."
        )
    optional = {p.name for p in parameters} & {"edge_weight"} - set(required)
    values |= {name: graph.edata[name] for name in optional if name in graph.edata}
    return model(**values)


def _argument(name: str, graph: Any, x: Tensor | None) -> Any:
    """What a model wants under this name; None if nothing has it."""
    if name in _GRAPH_ARGUMENTS:
        return graph
    if name in _FEATURE_ARGUMENTS:
        return x
    group = next((group for group in _EDGE_ARGUMENTS if name in group), ())
    for columns, keys in ((graph.edata, (name, *group)), (graph.ndata, (name,))):
        for key in keys:
            if key in columns:
                return columns[key]
    return None

"""Whatever the user calls data, as one thing a model can be run on.

A plan needs three views of the input: the whole of it (for the operators), one number per node
(the signal), and a handful of nodes (to watch the model run once at no cost).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, Dataset, HeteroData

from .errors import GraphError, LayerError
from .propagation import Graph, Vector

Forward = Callable[[nn.Module, Any], Any]
SAMPLE_EDGES = 32
_CHUNK = 1 << 22  # numbers converted to float64 at a time

#: Other names under which people take the features and the edges in ``forward``.
_ALIASES = {
    "x": ("x", "features", "feature", "feats", "feat", "h", "inputs", "node_features"),
    "edge_index": ("edge_index", "adj_t", "adj", "edges"),
    "edge_weight": ("edge_weight", "edge_weights", "weight"),
}
_WHOLE = ("data", "graph", "batch", "g", "input", "inputs", "sample")


@dataclass(frozen=True)
class Inputs:
    """The graph a plan is made for.

    ``sampled`` says which graphs of a dataset were merged.
    """

    data: Any
    sampled: dict[str, Any] | None = None

    @property
    def is_hetero(self) -> bool:
        return isinstance(self.data, HeteroData)

    @property
    def x(self) -> Tensor | None:
        x = self.data.get("x")
        return x if isinstance(x, Tensor) else None

    @property
    def adjacency(self) -> Tensor | None:
        """The sparse adjacency the model is run on, where there is one instead of edges."""
        for key in ("adj_t", "edge_index"):
            value = self.data.get(key)
            if isinstance(value, Tensor) and value.layout != torch.strided:
                return value
        return None

    @property
    def num_nodes(self) -> int:
        return int(self.data.num_nodes or 0)

    def edges(self) -> tuple[Tensor, Tensor | None]:
        """``edge_index`` and, for a sparse adjacency, its values (which always act as weights)."""
        adjacency = self.adjacency
        if adjacency is None:
            edge_index: Tensor = self.data.edge_index
            return edge_index.as_subclass(Tensor), None
        coo = adjacency.to_sparse_coo().coalesce()
        # the rows of adj_t are targets
        return coo.indices().flip(0).contiguous(), coo.values()

    def graph(self, edge_weight: Tensor | None = None) -> Graph:
        """The operators' view of the edges, with the weights a layer is given."""
        edge_index, values = self.edges()
        if values is not None:
            return Graph(edge_index, self.num_nodes, values, keep_loops=False)
        return Graph(edge_index, self.num_nodes, edge_weight)

    def few_nodes(self) -> Inputs:
        """A subgraph of a few edges with everything the model may ask for, to watch it run."""
        if self.is_hetero:
            return self
        edge_index, values = self.edges()
        total, wanted = edge_index.size(1), min(SAMPLE_EDGES, edge_index.size(1))
        picks = torch.arange(wanted, device=edge_index.device) * (total - 1) // max(1, wanted - 1)
        chosen = edge_index[:, picks]
        nodes, relabelled = torch.unique(chosen, return_inverse=True)
        small = copy.copy(self.data)  # its own class, so that its own methods are there
        for key, value in self.data.to_dict().items():
            if not isinstance(value, Tensor):
                continue
            if key == "batch":
                small[key] = torch.zeros(nodes.numel(), dtype=torch.long, device=value.device)
            elif key == "ptr":
                small[key] = torch.tensor([0, nodes.numel()], device=value.device)
            elif value.layout != torch.strided:
                small[key] = (
                    _dense_rows(value, nodes)
                    if key == "x"
                    else _like(value, relabelled, values, picks, nodes.numel())
                )
            elif key == "edge_index":
                small[key] = relabelled
            elif self.data.is_edge_attr(key) and value.size(0) == total:
                small[key] = value[picks]
            elif self.data.is_node_attr(key):
                small[key] = value[nodes]
        small.num_nodes = nodes.numel()
        if hasattr(small, "_num_graphs"):
            small._num_graphs = 1
        return Inputs(small)

    def neighbourhood(self, nodes: int, seed: int = 0) -> Inputs:
        """A connected sample: grow from random nodes, hop by hop, until there are enough."""
        if self.is_hetero:
            raise GraphError("nodes: expected one kind of node, got a HeteroData. Sample it first.")
        rng = np.random.default_rng(seed)
        graph = self.graph()
        rows = graph.by_target
        kept = np.zeros(self.num_nodes, dtype=bool)
        frontier = rng.choice(
            self.num_nodes, size=min(self.num_nodes, 1 + nodes // 64), replace=False
        )
        count = 0
        while count < nodes:
            frontier = frontier[: nodes - count]
            kept[frontier] = True
            count += frontier.size
            spans = [rows.columns[rows.pointer[i] : rows.pointer[i + 1]] for i in frontier]
            reached = np.unique(np.concatenate(spans)) if spans else frontier[:0]
            frontier = rng.permutation(reached[~kept[reached]])
            if not frontier.size:
                left = np.flatnonzero(~kept)
                if not left.size:
                    break
                frontier = rng.choice(left, size=1)
        chosen = torch.from_numpy(np.flatnonzero(kept))
        return Inputs(self.data.subgraph(chosen), self.sampled)

    def prepared_for(self, model: nn.Module) -> Inputs:
        """The same data on the model's device, its floating tensors in the model's precision.

        Integer features become floating ones unless the model looks them up in an embedding.
        """
        like = next((p for p in model.parameters() if p.is_floating_point()), None)
        if like is None:
            return self
        embeds = any(isinstance(module, nn.Embedding) for module in model.modules())

        def convert(value: Tensor, key: str) -> Tensor:
            to_float = value.is_floating_point() or (key == "x" and not embeds)
            return value.to(like.device, like.dtype if to_float else value.dtype)

        data = copy.copy(self.data)
        for store in data.stores:
            for key, value in list(store.items()):
                if isinstance(value, Tensor):
                    store[key] = convert(value, key)
        if not self.is_hetero:
            data.num_nodes = self.num_nodes
        return Inputs(data, self.sampled)


def _dense_rows(x: Tensor, nodes: Tensor) -> Tensor:
    """The rows ``nodes`` of a sparse feature matrix, dense."""
    coo = x.to_sparse_coo().coalesce()
    rows, columns = coo.indices()
    place = torch.full((x.size(0),), -1, device=x.device)
    place[nodes] = torch.arange(nodes.numel(), device=x.device)
    mine = place[rows] >= 0
    dense = torch.zeros(nodes.numel(), x.size(1), dtype=x.dtype, device=x.device)
    dense[place[rows[mine]], columns[mine]] = coo.values()[mine]
    return dense


def _like(
    adjacency: Tensor, edges: Tensor, values: Tensor | None, picks: Tensor, num_nodes: int
) -> Tensor:
    """A small adjacency in the layout of ``adjacency``."""
    assert values is not None
    small = torch.sparse_coo_tensor(
        edges.flip(0), values[picks], (num_nodes, num_nodes), check_invariants=False
    ).coalesce()
    return small.to_sparse(layout=adjacency.layout) if adjacency.layout != small.layout else small


def read(data: Any, *, max_graphs: int | None = None, seed: int = 0) -> Inputs:
    """Accept what people have: ``Data``, a dataset or list of graphs, a tuple, a sparse matrix."""
    sampled = None
    if isinstance(data, HeteroData):
        return Inputs(data)
    if isinstance(data, tuple) and data and isinstance(data[0], Tensor):
        data = _from_tuple(data)
    elif isinstance(data, Tensor):
        data = _from_tuple((None, data))
    elif not isinstance(data, Data):
        data, sampled = _merge(data, max_graphs, seed)
    inputs = Inputs(data, sampled)
    _check_edges(inputs)
    return inputs


def _from_tuple(parts: tuple[Any, ...]) -> Data:
    if len(parts) not in (2, 3):
        raise GraphError(
            f"data: expected (x, edge_index) or (x, edge_index, edge_weight), "
            f"got a tuple of {len(parts)}. Pass a torch_geometric.data.Data instead."
        )
    x, edges = parts[:2]
    data = Data(x=x)
    if isinstance(edges, Tensor) and edges.layout != torch.strided:
        data.adj_t = edges
    else:
        data.edge_index = edges
    if len(parts) == 3 and parts[2] is not None:
        data.edge_weight = parts[2]
    if x is None and isinstance(edges, Tensor) and edges.layout != torch.strided:
        data.num_nodes = edges.size(0)
    return data


def _merge(graphs: Any, max_graphs: int | None, seed: int) -> tuple[Data, dict[str, Any] | None]:
    """The paper's *approximation graph*: many graphs side by side as one."""
    is_list = isinstance(graphs, Sequence) and not isinstance(graphs, (str, bytes))
    if not is_list and not isinstance(graphs, Dataset):
        raise GraphError(
            f"data: expected a Data, a list or dataset of graphs, or (x, edge_index), "
            f"got {type(graphs).__name__}. Wrap your tensors in torch_geometric.data.Data."
        )
    total = len(graphs)
    if total == 0:
        raise GraphError(
            "data: expected at least one graph, got an empty list. Pass the training set."
        )
    if max_graphs is not None and max_graphs < 1:
        raise GraphError(f"max_graphs: expected at least 1, got {max_graphs}.")
    chosen = np.arange(total)
    sampled: dict[str, Any] | None = {"graphs": total, "of": total, "seed": None}
    if max_graphs is not None and max_graphs < total:
        picks = np.random.default_rng(seed).choice(total, size=max_graphs, replace=False)
        chosen = np.sort(picks)
        sampled = {"graphs": max_graphs, "of": total, "seed": seed, "index": chosen.tolist()}
    members = [graphs[int(i)] for i in chosen]
    strangers = [type(g).__name__ for g in members if not isinstance(g, Data)]
    if strangers:
        raise GraphError(
            f"data: expected every graph of the list to be a Data, got {strangers[0]}. "
            f"Pass Data objects."
        )
    widths = {g.x.size(-1) if g.x is not None and g.x.dim() > 1 else None for g in members}
    if len(widths) > 1:
        raise GraphError(
            f"data: expected graphs of one feature width, got {sorted(map(str, widths))}. "
            f"Give all graphs the same features."
        )
    merged: Data = Batch.from_data_list(members)
    return merged, sampled


def _check_edges(inputs: Inputs) -> None:
    data, adjacency = inputs.data, inputs.adjacency
    if adjacency is not None:
        if adjacency.dim() != 2 or adjacency.size(0) != adjacency.size(1):
            raise GraphError(
                f"adj_t: expected a square matrix, got {tuple(adjacency.shape)}. "
                f"Bipartite graphs need estimate='measured' on a HeteroData."
            )
        if adjacency._nnz() == 0:
            raise GraphError("adj_t: expected at least one edge, got none. Check the graph.")
        if not bool(torch.isfinite(inputs.edges()[1]).all()):  # type: ignore[arg-type]
            raise GraphError("adj_t: expected finite values, got NaN or infinity. Clean them.")
    else:
        edge_index = data.get("edge_index")
        if not isinstance(edge_index, Tensor):
            raise GraphError(
                f"data.edge_index: expected a tensor of shape [2, num_edges], "
                f"got {type(edge_index).__name__}. Set data.edge_index or data.adj_t."
            )
        if edge_index.dim() != 2 or edge_index.size(0) != 2:
            raise GraphError(
                f"data.edge_index: expected shape [2, num_edges], "
                f"got {list(edge_index.shape)}. Transpose it if edges are its rows."
            )
        if edge_index.dtype not in (torch.int64, torch.int32):
            raise GraphError(
                f"data.edge_index: expected integers (int64 or int32), got {edge_index.dtype}. "
                f"Use edge_index.long()."
            )
        if edge_index.size(1) == 0 and inputs.num_nodes > 0:
            raise GraphError(
                "data.edge_index: expected at least one edge, got none. Without edges there is "
                "nothing for Virgo to add to Kaiming; use method='kaiming-forward' on a graph "
                "with edges or torch.nn.init."
            )
        num_nodes = inputs.num_nodes
        low, high = (int(v) for v in torch.aminmax(edge_index)) if num_nodes else (0, -1)
        if low < 0 or high >= num_nodes:
            raise GraphError(
                f"data.edge_index: expected node ids in 0..{num_nodes - 1}, got {low}..{high}. "
                f"Relabel the nodes or set data.num_nodes."
            )
    num_nodes = inputs.num_nodes
    if num_nodes == 0:
        raise GraphError("data: expected at least one node, got none. Check the graph.")
    x = inputs.x
    if x is not None and x.size(0) != num_nodes:
        raise GraphError(
            f"data.x: expected {num_nodes} rows, one a node, got {x.size(0)}. "
            f"Check data.x against data.num_nodes."
        )
    weight = data.get("edge_weight")
    if isinstance(weight, Tensor):
        edges = inputs.edges()[0].size(1)
        if weight.numel() != edges:
            raise GraphError(
                f"data.edge_weight: expected {edges} weights, one an edge, got {weight.numel()}. "
                f"Check it against data.edge_index."
            )
        if not bool(torch.isfinite(weight).all()):
            raise GraphError(
                "data.edge_weight: expected finite weights, got NaN or infinity. Clean them."
            )


def node_signal(inputs: Inputs, kind: str) -> Vector:
    """One float64 per node: the mean of its features (the paper) or their root mean square.

    Rows are reduced a chunk at a time, so no second copy of the feature matrix is made.
    """
    x = inputs.x
    if x is None:
        return np.ones(inputs.num_nodes)
    if x.dim() == 1:
        x = x[:, None]
    out = _sparse_rows(x, kind) if x.layout != torch.strided else _dense_reduce(x, kind)
    if not np.isfinite(out).all():
        bad = int(np.flatnonzero(~np.isfinite(out))[0])
        raise GraphError(
            f"data.x: expected finite features, got NaN or infinity (first at node {bad}). "
            f"Clean the features, e.g. torch.nan_to_num(data.x)."
        )
    return out


def _dense_reduce(x: Tensor, kind: str) -> Vector:
    rows = max(1, _CHUNK // max(1, x.size(1)))
    parts = []
    for chunk in x.detach().split(rows):
        wide = chunk.double()
        parts.append(wide.mean(1) if kind == "mean" else wide.square().mean(1).sqrt())
    return torch.cat(parts).cpu().numpy()


def _sparse_rows(x: Tensor, kind: str) -> Vector:
    coo = x.detach().to_sparse_coo().coalesce()
    values = coo.values().double()
    total = torch.zeros(x.size(0), dtype=torch.float64, device=x.device)
    total.index_add_(0, coo.indices()[0], values if kind == "mean" else values.square())
    total /= x.size(1)
    return (total if kind == "mean" else total.sqrt()).cpu().numpy()


def run(model: nn.Module, data: Any, forward: Forward | None = None) -> Any:
    """Call a model the way its ``forward`` asks to be called."""
    if forward is not None:
        return forward(model, data)
    names = getattr(getattr(model, "signature", None), "param_dict", None)
    if names:  # torch_geometric.nn.Sequential keeps its arguments here
        return model(*[_lookup(data, name) for name in names])
    parameters = [
        p
        for p in inspect.signature(model.forward).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    required = [p.name for p in parameters if p.default is p.empty]
    if len(required) == 1 and required[0] in _WHOLE and required[0] not in ("x", "inputs"):
        return model(data)
    arguments: dict[str, Any] = {}
    for parameter in parameters:
        value = _lookup(data, parameter.name)
        if value is None and parameter.name == "batch" and parameter.name in required:
            value = torch.zeros(data.num_nodes, dtype=torch.long, device=_device(data))
        if value is not None:
            arguments[parameter.name] = value
        elif parameter.name in required:
            raise LayerError(
                f"{type(model).__name__}.forward: its argument {parameter.name!r} is nowhere in "
                f"the data. Pass forward=lambda model, data: model(...)."
            )
    return model(**arguments)


def _device(data: Any) -> torch.device:
    return next((v.device for v in data.to_dict().values() if isinstance(v, Tensor)),
                torch.device("cpu"))  # fmt: skip


def _lookup(data: Any, name: str) -> Any:
    names = next((group for group in _ALIASES.values() if name in group), (name,))
    for candidate in (name, *names):
        if isinstance(data, HeteroData):  # x is x_dict there; to_hetero() keeps calling it x
            value = getattr(data, candidate.removesuffix("_dict") + "_dict", None) or None
        else:
            value = data.get(candidate)
        if value is not None:
            return value
    return None

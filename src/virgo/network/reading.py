"""Accept what people call data, and refuse what is broken in it before anything else happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, Dataset, HeteroData

from virgo.errors import GraphError
from virgo.network import dgl_graphs
from virgo.network.inputs import Inputs


def read(data: Any, *, max_graphs: int | None = None, seed: int = 0) -> Inputs:
    """Accept what people have: ``Data``, a dataset or list of graphs, a tuple, a sparse matrix.

    DGL's graphs are taken wherever PyG's are. Of a loader the first batch is taken.

    Args:
        data: one graph, several, or a loader of them.
        max_graphs: of a dataset, how many to draw at most.
        seed: of that draw.

    Returns:
        Checked inputs; several graphs are merged into one.
    """
    sampled = None
    if isinstance(data, torch.utils.data.DataLoader):
        with torch.random.fork_rng(devices=[]):  # a loader draws its seed when it starts
            data = next(iter(data), None)
    if isinstance(data, HeteroData):
        return Inputs(data)
    if dgl_graphs.is_dgl_graph(data):
        data = dgl_graphs.mirror(data)
    elif _is_labelled_batch(data):
        data = dgl_graphs.mirror(*data)
    elif isinstance(data, tuple) and data and isinstance(data[0], Tensor):
        data = _from_tuple(data)
    elif isinstance(data, Tensor):
        data = _from_tuple((None, data))
    elif not isinstance(data, Data):
        data, sampled = _merge(data, max_graphs, seed)
    inputs = Inputs(data, sampled)
    _check_edges(inputs)
    return inputs


def device_of(data: Any) -> torch.device:
    """Where data are, by their first tensor; the CPU where that cannot be told."""
    if isinstance(data, (Data, HeteroData)):
        data = [value for store in data.stores for value in store.values()]
    parts = data if isinstance(data, (tuple, list)) else (data,)
    devices = (part.device for part in parts if isinstance(part, Tensor))
    return next(devices, torch.device("cpu"))


def _is_labelled_batch(data: Any) -> bool:
    """Whether this is what a loader of DGL's gives: a batch of graphs, and their labels."""
    is_pair = isinstance(data, (tuple, list)) and len(data) == 2
    return is_pair and dgl_graphs.is_dgl_graph(data[0]) and isinstance(data[1], Tensor)


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
    if max_graphs is not None and (not isinstance(max_graphs, (int, np.integer)) or max_graphs < 1):
        raise GraphError(
            f"max_graphs: expected at least 1, got {max_graphs!r}. Leave it out to "
            f"merge all graphs."
        )
    chosen = np.arange(total)
    sampled: dict[str, Any] | None = {"graphs": total, "of": total, "seed": None}
    if max_graphs is not None and max_graphs < total:
        picks = np.random.default_rng(seed).choice(total, size=max_graphs, replace=False)
        chosen = np.sort(picks)
        sampled = {"graphs": max_graphs, "of": total, "seed": seed, "index": chosen.tolist()}
    members = [graphs[int(i)] for i in chosen]
    first = members[0][0] if isinstance(members[0], tuple) and members[0] else members[0]
    if dgl_graphs.is_dgl_graph(first):
        return dgl_graphs.batched(members), sampled
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
    if inputs.adjacency is not None:
        _check_adjacency(inputs, inputs.adjacency)
    elif inputs.data.get("edge_index") is not None:
        _check_edge_index(inputs.data.edge_index, inputs.num_nodes, inputs.has_edges)
    else:
        return  # points or a dense adjacency; Inputs.edges refuses where edges count
    num_nodes = inputs.num_nodes
    if num_nodes == 0:
        raise GraphError("data: expected at least one node, got none. Check the graph.")
    x = inputs.x
    if x is not None and x.size(0) != num_nodes:
        raise GraphError(
            f"data.x: expected {num_nodes} rows, one per node, got {x.size(0)}. "
            f"Check data.x against data.num_nodes."
        )
    _check_edge_weight(inputs)


def _check_adjacency(inputs: Inputs, adjacency: Tensor) -> None:
    if adjacency.dim() != 2 or adjacency.size(0) != adjacency.size(1):
        raise GraphError(
            f"adj_t: expected a square matrix, got {tuple(adjacency.shape)}. "
            f"Bipartite graphs need estimate='measured' on a HeteroData."
        )
    if adjacency._nnz() == 0:
        raise GraphError("adj_t: expected at least one edge, got none. Check the graph.")
    if not bool(torch.isfinite(inputs.edges()[1]).all()):  # type: ignore[arg-type]
        raise GraphError("adj_t: expected finite values, got NaN or infinity. Clean them.")


def _check_edge_index(edge_index: object, num_nodes: int, both_are_nodes: bool) -> None:
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
    if edge_index.size(1) == 0 and num_nodes > 0:
        raise GraphError(
            "data.edge_index: expected at least one edge, got none. Pass a graph with edges; "
            "without them the layers are those of an MLP, for which torch.nn.init serves."
        )
    nodes = edge_index if both_are_nodes else edge_index[0]  # hyperedges have their own numbers
    low, high = (int(v) for v in torch.aminmax(nodes)) if num_nodes else (0, -1)
    if low < 0 or high >= num_nodes:
        raise GraphError(
            f"data.edge_index: expected node ids in 0..{num_nodes - 1}, got {low}..{high}. "
            f"Relabel the nodes or set data.num_nodes; if these are hyperedges, pass a "
            f"torch_geometric.data.hypergraph_data.HyperGraphData."
        )


def _check_edge_weight(inputs: Inputs) -> None:
    weight = inputs.data.get("edge_weight")
    if not isinstance(weight, Tensor):
        return
    edges = inputs.edges()[0].size(1)
    if weight.numel() != edges:
        raise GraphError(
            f"data.edge_weight: expected {edges} weights, one per edge, got {weight.numel()}. "
            f"Check it against data.edge_index."
        )
    if not bool(torch.isfinite(weight).all()):
        raise GraphError(
            "data.edge_weight: expected finite weights, got NaN or infinity. Clean them."
        )

"""Heterogeneous and relational networks."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric.data import Data
from zoo_data import CLASSES, NODES, RELATIONS, WIDTH, dense, library, network

hetero = partial(network, "hetero")
Dict = dict[str, Tensor]


class Homogeneous(nn.Module):
    """Two layers, to be made heterogeneous."""

    def __init__(self, first: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.conv1, self.conv2 = first, last

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


def transformed(seed: int, first: nn.Module, last: nn.Module, aggr: str = "sum") -> Any:
    data = library(seed)
    return gnn.to_hetero(Homogeneous(first, last), data.metadata(), aggr=aggr), data


@hetero("to_hetero SAGE lazy")
def _(seed: int) -> Any:
    return transformed(seed, gnn.SAGEConv((-1, -1), WIDTH), gnn.SAGEConv((-1, -1), CLASSES))


@hetero("to_hetero SAGE mean of relations")
def _(seed: int) -> Any:
    data = library(seed, same_width=True)
    model = Homogeneous(gnn.SAGEConv((32, 32), WIDTH), gnn.SAGEConv((WIDTH, WIDTH), CLASSES))
    return gnn.to_hetero(model, data.metadata(), aggr="mean"), data


@hetero("to_hetero GAT lazy")
def _(seed: int) -> Any:
    options = {"add_self_loops": False}
    first = gnn.GATConv((-1, -1), 8, heads=4, **options)
    return transformed(seed, first, gnn.GATConv((-1, -1), CLASSES, **options))


@hetero("to_hetero GraphConv")
def _(seed: int) -> Any:
    return transformed(seed, gnn.GraphConv((-1, -1), WIDTH), gnn.GraphConv((-1, -1), CLASSES))


@hetero("to_hetero GraphSAGE 3 layers")
def _(seed: int) -> Any:
    data = library(seed, same_width=True)
    return gnn.to_hetero(gnn.GraphSAGE((32, 32), WIDTH, 3, CLASSES), data.metadata()), data


class Convolved(nn.Module):
    """HeteroConv with a layer per relation, and a head on papers."""

    def __init__(self, metadata: Any, layer: Any, depth: int, aggr: str = "sum") -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            gnn.HeteroConv({edge: layer(edge) for edge in metadata[1]}, aggr=aggr)
            for _ in range(depth)
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x_dict: Dict, edge_index_dict: dict[Any, Tensor]) -> Tensor:
        for conv in self.convs:
            x_dict = {k: v.relu() for k, v in conv(x_dict, edge_index_dict).items()}
        return self.head(x_dict["paper"])


@hetero("HeteroConv SAGE")
def _(seed: int) -> Any:
    data = library(seed)
    return Convolved(data.metadata(), lambda _: gnn.SAGEConv((-1, -1), WIDTH), 2), data


@hetero("HeteroConv GAT and SAGE")
def _(seed: int) -> Any:
    data = library(seed)

    def layer(edge: tuple[str, str, str]) -> nn.Module:
        if edge[0] == edge[2]:
            return gnn.GATConv(-1, WIDTH)
        return gnn.SAGEConv((-1, -1), WIDTH)

    return Convolved(data.metadata(), layer, 2, "mean"), data


@hetero("HeteroConv GCN same widths")
def _(seed: int) -> Any:
    data = library(seed, same_width=True)

    def layer(edge: tuple[str, str, str]) -> nn.Module:
        if edge[0] == edge[2]:
            return gnn.GCNConv(32, WIDTH)
        return gnn.GraphConv((32, 32), WIDTH, aggr="mean")

    return Convolved(data.metadata(), layer, 3), data


class HGT(nn.Module):
    """PyG's example: a linear layer per type, HGT layers, a head."""

    def __init__(self, data: Any, depth: int) -> None:
        super().__init__()
        self.lins = nn.ModuleDict({kind: gnn.Linear(-1, WIDTH) for kind in data.node_types})
        self.convs = nn.ModuleList(
            gnn.HGTConv(WIDTH, WIDTH, data.metadata(), heads=4) for _ in range(depth)
        )
        self.head = gnn.Linear(WIDTH, CLASSES)

    def forward(self, x_dict: Dict, edge_index_dict: dict[Any, Tensor]) -> Tensor:
        x_dict = {kind: self.lins[kind](x).relu() for kind, x in x_dict.items()}
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
        return self.head(x_dict["paper"])


@hetero("HGT")
def _(seed: int) -> Any:
    data = library(seed)
    return HGT(data, 2), data


class HAN(nn.Module):
    def __init__(self, data: Any) -> None:
        super().__init__()
        widths = {kind: data[kind].num_features for kind in data.node_types}
        self.conv = gnn.HANConv(widths, WIDTH, data.metadata(), heads=4, dropout=0.6)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x_dict: Dict, edge_index_dict: dict[Any, Tensor]) -> Tensor:
        return self.head(self.conv(x_dict, edge_index_dict)["paper"])


@hetero("HAN")
def _(seed: int) -> Any:
    data = library(seed)
    return HAN(data), data


class DictLinear(nn.Module):
    """HeteroDictLinear around a HeteroConv; returns a dict."""

    def __init__(self, data: Any) -> None:
        super().__init__()
        widths = {kind: data[kind].num_features for kind in data.node_types}
        self.encode = gnn.HeteroDictLinear(widths, WIDTH)
        layers = {edge: gnn.SAGEConv(WIDTH, WIDTH) for edge in data.edge_types}
        self.conv = gnn.HeteroConv(layers)
        self.decode = gnn.HeteroDictLinear(WIDTH, CLASSES, types=data.node_types)

    def forward(self, x_dict: Dict, edge_index_dict: dict[Any, Tensor]) -> Dict:
        x_dict = {k: v.relu() for k, v in self.encode(x_dict).items()}
        x_dict = {k: v.relu() for k, v in self.conv(x_dict, edge_index_dict).items()}
        return self.decode(x_dict)


@hetero("HeteroDictLinear")
def _(seed: int) -> Any:
    data = library(seed)
    return DictLinear(data), data


class TypedLinear(nn.Module):
    """HeteroLinear: a weight per node type, between RGCN layers."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = gnn.HeteroLinear(64, WIDTH, 3)
        self.conv1 = gnn.RGCNConv(WIDTH, WIDTH, RELATIONS)
        self.conv2 = gnn.RGCNConv(WIDTH, CLASSES, RELATIONS)

    def forward(
        self, x: Tensor, node_type: Tensor, edge_index: Tensor, edge_type: Tensor
    ) -> Tensor:
        x = self.encode(x, node_type).relu()
        x = self.conv1(x, edge_index, edge_type).relu()
        return self.conv2(x, edge_index, edge_type)


@hetero("HeteroLinear RGCN")
def _(seed: int) -> Any:
    return TypedLinear(), dense(seed, "node_type", "edge_type")


class Ids(nn.Module):
    """PyG's example for entities: no features, the first layer looks nodes up."""

    def __init__(self, cls: Any, **options: Any) -> None:
        super().__init__()
        self.conv1 = cls(NODES, WIDTH, RELATIONS, **options)
        self.conv2 = cls(WIDTH, CLASSES, RELATIONS, **options)

    def forward(self, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        return self.conv2(self.conv1(None, edge_index, edge_type).relu(), edge_index, edge_type)


def entities(seed: int) -> Data:
    data = dense(seed, "edge_type")
    del data.x
    data.num_nodes = NODES
    return data


@hetero("RGCN on ids")
def _(seed: int) -> Any:
    return Ids(gnn.RGCNConv), entities(seed)


@hetero("RGCN on ids bases")
def _(seed: int) -> Any:
    return Ids(gnn.RGCNConv, num_bases=3), entities(seed)


@hetero("FastRGCN on ids bases")
def _(seed: int) -> Any:
    return Ids(gnn.FastRGCNConv, num_bases=3), entities(seed)


class HeteroLinks(nn.Module):
    """Edges between authors and papers, scored by a product: a dict of label edges."""

    def __init__(self, data: Any) -> None:
        super().__init__()
        widths = {kind: data[kind].num_features for kind in data.node_types}
        self.encode = gnn.HeteroDictLinear(widths, WIDTH)
        self.gnn = gnn.to_hetero(gnn.GraphSAGE((WIDTH, WIDTH), WIDTH, 2), data.metadata())

    def forward(
        self, x_dict: Dict, edge_index_dict: dict[Any, Tensor], edge_label_index_dict: dict
    ) -> Tensor:
        x_dict = self.gnn(self.encode(x_dict), edge_index_dict)
        source, target = edge_label_index_dict["author", "writes", "paper"]
        return (x_dict["author"][source] * x_dict["paper"][target]).sum(-1)


@hetero("link prediction on authors and papers")
def _(seed: int) -> Any:
    data = library(seed)
    store = data["author", "writes", "paper"]
    draw = torch.Generator().manual_seed(seed)
    store.edge_label_index = torch.stack(
        [torch.randint(80, (64,), generator=draw), torch.randint(120, (64,), generator=draw)]
    )
    store.edge_label = torch.randint(2, (64,), generator=draw).float()
    return HeteroLinks(data), data

"""Every class of ``torch_geometric.nn.conv`` that runs here, as a plain three-layer ReLU network.

A table entry is one layer as a function of its width in and out. Where PyG calls a layer with more
than features and edges, the network takes the same arguments, by the same names.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.utils import degree, to_dense_adj
from zoo_data import (
    CLASSES,
    EDGE_FEATURES,
    FEATURES,
    RELATIONS,
    WIDTH,
    add,
    batch,
    cloud,
    dense,
    generator,
    network,
    papers,
)

Layer = Callable[[int, int], nn.Module]

#: Classes of ``torch_geometric.nn.conv`` that cannot run without a compiled extension.
UNAVAILABLE = {
    "CuGraphSAGEConv": "needs pylibcugraphops (CUDA only)",
    "CuGraphGATConv": "needs pylibcugraphops (CUDA only)",
    "CuGraphRGCNConv": "needs pylibcugraphops (CUDA only)",
    "FusedGATConv": "needs dgNN (CUDA only)",
    "PANConv": "needs torch-sparse",
    "SplineConv": "needs pyg-lib (spline kernels)",
    "DynamicEdgeConv": "needs pyg-lib or torch-cluster (knn)",
    "GravNetConv": "needs pyg-lib or torch-cluster (knn)",
    "XConv": "needs pyg-lib or torch-cluster (knn)",
}


class Stack(nn.Module):
    """Layers with ReLU between them; subclasses name the arguments that PyG's layers take."""

    def __init__(self, layer: Layer, widths: tuple[int, ...]) -> None:
        super().__init__()
        pairs = pairwise(widths)
        self.convs = nn.ModuleList(layer(a, b) for a, b in pairs)

    def through(self, x: Tensor, *rest: Any) -> Tensor:
        for conv in self.convs[:-1]:
            x = conv(x, *rest).relu()
        return self.convs[-1](x, *rest)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.through(x, edge_index)


class Weighted(Stack):
    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        return self.through(x, edge_index, edge_weight)


class EdgeFeatured(Stack):
    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.through(x, edge_index, edge_attr)


class Relational(Stack):
    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        return self.through(x, edge_index, edge_type)


class InSpace(Stack):
    def forward(self, x: Tensor, pos: Tensor, edge_index: Tensor) -> Tensor:
        return self.through(x, pos, edge_index)


class Dense(Stack):
    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        return self.through(x, adj)


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    parts: list[nn.Module] = []
    for a, b in pairwise(widths):
        parts += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def heads(cls: Callable[..., nn.Module], number: int, **options: Any) -> Layer:
    """Attention layers whose heads are concatenated but in the last, where they are averaged."""

    def layer(a: int, b: int) -> nn.Module:
        if b == CLASSES:
            return cls(a, b, heads=number, concat=False, **options)
        return cls(a, b // number, heads=number, **options)

    return layer


def stack(name: str, layer: Layer, data: Any = papers, cls: type[Stack] = Stack) -> None:
    """Enter the three-layer network of ``layer``."""

    def definition(seed: int) -> tuple[nn.Module, Any]:
        inputs = data(seed)
        return cls(layer, (inputs.num_features, WIDTH, WIDTH, CLASSES)), inputs

    add(name, "conv", definition)


# Features and edges.
stack("GCNConv", gnn.GCNConv)
stack("GCNConv normalize=False", partial(gnn.GCNConv, normalize=False), dense)
stack("GCNConv cached", partial(gnn.GCNConv, cached=True))
stack("SAGEConv", gnn.SAGEConv)
stack("SAGEConv max", partial(gnn.SAGEConv, aggr="max"))
stack("SAGEConv project", partial(gnn.SAGEConv, project=True), dense)
stack("SAGEConv normalize", partial(gnn.SAGEConv, normalize=True))
stack("SAGEConv mean+max+std", partial(gnn.SAGEConv, aggr=["mean", "max", "std"]), dense)
stack("SAGEConv lstm", partial(gnn.SAGEConv, aggr="lstm"), lambda seed: sorted_edges(papers(seed)))
stack("GraphConv", gnn.GraphConv)
stack("GraphConv mean", partial(gnn.GraphConv, aggr="mean"))
stack("GraphConv max", partial(gnn.GraphConv, aggr="max"), dense)
stack("GINConv", lambda a, b: gnn.GINConv(mlp(a, b, b)))
stack("GINConv train_eps", lambda a, b: gnn.GINConv(mlp(a, b, b), train_eps=True), dense)
stack("GATConv", heads(gnn.GATConv, 1))
stack("GATConv 4 heads", heads(gnn.GATConv, 4))
stack("GATConv 4 heads residual", heads(gnn.GATConv, 4, residual=True), dense)
stack("GATv2Conv", heads(gnn.GATv2Conv, 4))
stack("GATv2Conv share_weights", heads(gnn.GATv2Conv, 2, share_weights=True), dense)
stack("TransformerConv", heads(gnn.TransformerConv, 4))
stack("TransformerConv beta", heads(gnn.TransformerConv, 2, beta=True), dense)
stack("SuperGATConv MX", heads(gnn.SuperGATConv, 4))
stack("SuperGATConv SD", heads(gnn.SuperGATConv, 4, attention_type="SD"), dense)
stack("ChebConv", partial(gnn.ChebConv, K=3))
stack("TAGConv", gnn.TAGConv)
stack("SGConv", partial(gnn.SGConv, K=2))
stack("SSGConv", partial(gnn.SSGConv, alpha=0.1, K=4))
stack("ARMAConv", gnn.ARMAConv)
stack("ARMAConv 3 stacks 2 layers", partial(gnn.ARMAConv, num_stacks=3, num_layers=2), dense)
stack("ClusterGCNConv", gnn.ClusterGCNConv)
stack("LEConv", gnn.LEConv)
stack("MFConv", gnn.MFConv)
stack("FeaStConv", partial(gnn.FeaStConv, heads=4))
stack("FiLMConv", gnn.FiLMConv)
stack("EdgeConv", lambda a, b: gnn.EdgeConv(mlp(2 * a, b, b)), dense)
stack("EdgeConv sum", lambda a, b: gnn.EdgeConv(mlp(2 * a, b, b), aggr="sum"), cloud)
stack("GENConv", gnn.GENConv, dense)
stack("GENConv power", partial(gnn.GENConv, aggr="powermean", norm="layer", msg_norm=True), dense)
stack("GeneralConv", gnn.GeneralConv)
stack("GeneralConv attention", partial(gnn.GeneralConv, attention=True, heads=4), dense)
stack("ResGatedGraphConv", gnn.ResGatedGraphConv, dense)
stack("DirGNNConv", lambda a, b: gnn.DirGNNConv(gnn.GCNConv(a, b, add_self_loops=False)))
stack("DirGNNConv SAGE", lambda a, b: gnn.DirGNNConv(gnn.SAGEConv(a, b), alpha=0.3))


def sorted_edges(data: Any) -> Any:
    """Edges sorted by target, as LSTM aggregation asks for."""
    return data.sort(sort_by_row=False)


def eg(a: int, b: int) -> nn.Module:
    """EGConv splits its output among heads, which the number of classes must allow."""
    return gnn.EGConv(a, b, num_heads=1 if b == CLASSES else 8, aggregators=["symnorm", "max"])


stack("EGConv", eg, dense)


def pna(seed: int, **options: Any) -> Layer:
    """PNA scales by the degrees of the training graph."""
    data = dense(seed)
    degrees = torch.bincount(degree(data.edge_index[1], data.num_nodes).long())
    return partial(
        gnn.PNAConv,
        aggregators=["mean", "min", "max", "std"],
        scalers=["identity", "amplification", "attenuation"],
        deg=degrees,
        **options,
    )


@network("conv", "PNAConv")
def _(seed: int) -> Any:
    return Stack(pna(seed), (FEATURES, WIDTH, WIDTH, CLASSES)), dense(seed)


@network("conv", "PNAConv edge_dim")
def _(seed: int) -> Any:
    layer = pna(seed, edge_dim=EDGE_FEATURES)
    return EdgeFeatured(layer, (FEATURES, WIDTH, WIDTH, CLASSES)), dense(seed, "edge_attr")


# Edge weights.
def weighted(seed: int) -> Any:
    return papers(seed, "edge_weight")


stack("GCNConv edge_weight", gnn.GCNConv, weighted, Weighted)
stack("GraphConv edge_weight", gnn.GraphConv, weighted, Weighted)
stack("ChebConv edge_weight", partial(gnn.ChebConv, K=2), weighted, Weighted)

# Edge features.
EDGE = {"edge_dim": EDGE_FEATURES}


def featured(seed: int) -> Any:
    return dense(seed, "edge_attr")


def unit_cube(seed: int) -> Any:
    data = featured(seed)
    data.edge_attr = torch.sigmoid(data.edge_attr)
    return data


stack("GATConv edge_dim", heads(gnn.GATConv, 4, **EDGE), featured, EdgeFeatured)
stack("GATv2Conv edge_dim", heads(gnn.GATv2Conv, 4, **EDGE), featured, EdgeFeatured)
stack("TransformerConv edge_dim", heads(gnn.TransformerConv, 4, **EDGE), featured, EdgeFeatured)
stack(
    "GINEConv",
    lambda a, b: gnn.GINEConv(mlp(a, b, b), edge_dim=EDGE_FEATURES),
    featured,
    EdgeFeatured,
)
stack("GENConv edge_dim", partial(gnn.GENConv, **EDGE), featured, EdgeFeatured)
stack(
    "GeneralConv in_edge_channels",
    partial(gnn.GeneralConv, in_edge_channels=EDGE_FEATURES),
    featured,
    EdgeFeatured,
)
stack("ResGatedGraphConv edge_dim", partial(gnn.ResGatedGraphConv, **EDGE), featured, EdgeFeatured)
stack("PDNConv", partial(gnn.PDNConv, hidden_channels=16, **EDGE), featured, EdgeFeatured)
stack("GMMConv", partial(gnn.GMMConv, dim=EDGE_FEATURES, kernel_size=4), unit_cube, EdgeFeatured)
stack(
    "NNConv", lambda a, b: gnn.NNConv(a, b, mlp(EDGE_FEATURES, 16, a * b)), featured, EdgeFeatured
)
stack(
    "NNConv mean",
    lambda a, b: gnn.NNConv(a, b, mlp(EDGE_FEATURES, a * b), aggr="mean"),
    featured,
    EdgeFeatured,
)


# Relations.
def related(seed: int) -> Any:
    return dense(seed, "edge_type")


KINDS = {"num_relations": RELATIONS}
for relational in (gnn.RGCNConv, gnn.FastRGCNConv):
    label = relational.__name__
    stack(label, partial(relational, **KINDS), related, Relational)
    stack(f"{label} bases", partial(relational, num_bases=2, **KINDS), related, Relational)
stack(
    "RGCNConv blocks",
    lambda a, b: gnn.RGCNConv(a, b, num_blocks=None if b == CLASSES else 4, **KINDS),
    related,
    Relational,
)


def rgat(a: int, b: int, **options: Any) -> nn.Module:
    """PyG leaves ``l2`` uninitialised (memory as it was found); here it has the value it means."""
    layer = gnn.RGATConv(a, b, **KINDS, **options)
    nn.init.constant_(layer.l2, 1 / b)
    return layer


stack("RGATConv", rgat, related, Relational)
stack(
    "RGATConv dot product bases",
    partial(rgat, num_bases=2, attention_mode="multiplicative-self-attention", dim=1),
    related,
    Relational,
)
stack("FiLMConv relations", partial(gnn.FiLMConv, **KINDS), related, Relational)


class Heat(Stack):
    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        node_type: Tensor,
        edge_type: Tensor,
        edge_attr: Tensor,
    ) -> Tensor:
        return self.through(x, edge_index, node_type, edge_type, edge_attr)


stack(
    "HEATConv",
    partial(
        gnn.HEATConv,
        num_node_types=3,
        num_edge_types=RELATIONS,
        edge_type_emb_dim=8,
        edge_dim=EDGE_FEATURES,
        edge_attr_emb_dim=8,
        heads=2,
        concat=False,
    ),
    lambda seed: dense(seed, "node_type", "edge_type", "edge_attr"),
    Heat,
)


# Points in space.
stack(
    "PointNetConv",
    lambda a, b: gnn.PointNetConv(mlp(a + 3, b, b), mlp(b, b)),
    cloud,
    InSpace,
)
stack("PointTransformerConv", gnn.PointTransformerConv, cloud, InSpace)
stack(
    "PointTransformerConv networks",
    lambda a, b: gnn.PointTransformerConv(a, b, pos_nn=mlp(3, 16, b), attn_nn=mlp(b, 16, b)),
    cloud,
    InSpace,
)


class PointPairs(Stack):
    def forward(self, x: Tensor, pos: Tensor, normal: Tensor, edge_index: Tensor) -> Tensor:
        return self.through(x, pos, normal, edge_index)


stack(
    "PPFConv",
    lambda a, b: gnn.PPFConv(mlp(a + 4, b, b), mlp(b, b)),
    lambda seed: cloud(seed, "normal"),
    PointPairs,
)


# Layers that keep their width: between an encoder and a head.
class Between(nn.Module):
    """An encoder, layers of one width with ReLU between them, a head."""

    def __init__(self, layer: Callable[[int], nn.Module], features: int, depth: int = 3) -> None:
        super().__init__()
        self.encoder = nn.Linear(features, WIDTH)
        self.convs = nn.ModuleList(layer(i) for i in range(depth))
        self.head = nn.Linear(WIDTH, CLASSES)

    def step(self, conv: nn.Module, x: Tensor, first: Tensor, *rest: Any) -> Tensor:
        return conv(x, *rest).relu()

    def through(self, x: Tensor, *rest: Any) -> Tensor:
        x = first = self.encoder(x).relu()
        for conv in self.convs:
            x = self.step(conv, x, first, *rest)
        return self.head(x)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.through(x, edge_index)


class BetweenWithFirst(Between):
    """The layers also see what the encoder gave."""

    def step(self, conv: nn.Module, x: Tensor, first: Tensor, *rest: Any) -> Tensor:
        return conv(x, first, *rest).relu()


class BetweenWithEdges(Between):
    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.through(x, edge_index, edge_attr)


class BetweenInSpace(Between):
    def forward(self, x: Tensor, pos: Tensor, edge_index: Tensor) -> Tensor:
        return self.through(x, pos, edge_index)


class Interleaved(Between):
    """A linear layer after each layer, for those without weights."""

    def __init__(self, layer: Callable[[int], nn.Module], features: int, depth: int = 3) -> None:
        super().__init__(layer, features, depth)
        self.lins = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.encoder(x).relu()
        for conv, lin in zip(self.convs, self.lins, strict=True):
            x = lin(conv(x, edge_index)).relu()
        return self.head(x)


def between(
    name: str, layer: Callable[[int], nn.Module], data: Any = papers, cls: type[Between] = Between
) -> None:
    def definition(seed: int) -> tuple[nn.Module, Any]:
        inputs = data(seed)
        return cls(layer, inputs.num_features), inputs

    add(name, "conv", definition)


between("APPNP", lambda _: gnn.APPNP(K=5, alpha=0.1))
between("AGNNConv", lambda _: gnn.AGNNConv())
between("LGConv", lambda _: gnn.LGConv(), cls=Interleaved)
between(
    "SimpleConv", lambda _: gnn.SimpleConv(aggr="mean", combine_root="self_loop"), cls=Interleaved
)
between("WLConvContinuous", lambda _: gnn.WLConvContinuous(), cls=Interleaved)
between("GCN2Conv", lambda i: gnn.GCN2Conv(WIDTH, 0.1, 0.5, i + 1), cls=BetweenWithFirst)
between(
    "GCN2Conv unshared",
    lambda i: gnn.GCN2Conv(WIDTH, 0.1, 0.5, i + 1, shared_weights=False),
    cls=BetweenWithFirst,
)
between("FAConv", lambda _: gnn.FAConv(WIDTH), cls=BetweenWithFirst)
between("GatedGraphConv", lambda _: gnn.GatedGraphConv(WIDTH, num_layers=2))
between("AntiSymmetricConv", lambda _: gnn.AntiSymmetricConv(WIDTH, num_iters=2))
between("GPSConv", lambda _: gnn.GPSConv(WIDTH, gnn.GCNConv(WIDTH, WIDTH), heads=4), dense)
between(
    "GPSConv GIN performer",
    lambda _: gnn.GPSConv(
        WIDTH, gnn.GINConv(mlp(WIDTH, WIDTH, WIDTH)), heads=4, attn_type="performer"
    ),
    dense,
)
between("CGConv", lambda _: gnn.CGConv(WIDTH, dim=EDGE_FEATURES), featured, BetweenWithEdges)
between(
    "CGConv batch_norm mean",
    lambda _: gnn.CGConv(WIDTH, dim=EDGE_FEATURES, aggr="mean", batch_norm=True),
    featured,
    BetweenWithEdges,
)
between(
    "PointGNNConv",
    lambda _: gnn.PointGNNConv(
        mlp_h=gnn.MLP([WIDTH, 16, 3]),
        mlp_f=gnn.MLP([WIDTH + 3, WIDTH, WIDTH]),
        mlp_g=gnn.MLP([WIDTH, WIDTH, WIDTH]),
    ),
    cloud,
    BetweenInSpace,
)


# Layers with their own way of being called.
class MixHop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = gnn.MixHopConv(FEATURES, WIDTH, powers=[0, 1, 2])
        self.conv2 = gnn.MixHopConv(3 * WIDTH, WIDTH, powers=[0, 1, 2])
        self.head = nn.Linear(3 * WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.conv1(x, edge_index).relu()
        return self.head(self.conv2(x, edge_index).relu())


add("MixHopConv", "conv", lambda seed: (MixHop(), papers(seed)))


class Dna(nn.Module):
    """Dynamic neighbourhood aggregation over the history of every node."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(FEATURES, WIDTH)
        self.convs = nn.ModuleList(gnn.DNAConv(WIDTH, heads=4, groups=groups) for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        history = self.encoder(x).relu().unsqueeze(1)
        for conv in self.convs:
            x = conv(history, edge_index).relu().unsqueeze(1)
            history = torch.cat([history, x], 1)
        return self.head(history[:, -1])


add("DNAConv", "conv", lambda seed: (Dna(1), papers(seed)))
add("DNAConv groups", "conv", lambda seed: (Dna(4), dense(seed)))


class SignedNet(nn.Module):
    """Friends and foes, in two halves of the features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = gnn.SignedConv(FEATURES, WIDTH // 2, first_aggr=True)
        self.conv2 = gnn.SignedConv(WIDTH // 2, WIDTH // 2, first_aggr=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, pos_edge_index: Tensor, neg_edge_index: Tensor) -> Tensor:
        x = self.conv1(x, pos_edge_index, neg_edge_index).relu()
        return self.head(self.conv2(x, pos_edge_index, neg_edge_index).relu())


def signed(seed: int) -> Any:
    """A graph whose edges are positive or negative."""
    data = dense(seed)
    positive = data.edge_index[0] % 3 > 0
    data.pos_edge_index = data.edge_index[:, positive]
    data.neg_edge_index = data.edge_index[:, ~positive]
    return data


add("SignedConv", "conv", lambda seed: (SignedNet(), signed(seed)))


class Hyper(Stack):
    def forward(self, x: Tensor, hyperedge_index: Tensor) -> Tensor:
        return self.through(x, hyperedge_index)


class AttentiveHyper(nn.Module):
    """Attention between nodes and hyperedges, whose features are as wide as the nodes'."""

    def __init__(self) -> None:
        super().__init__()
        options = {"use_attention": True, "heads": 4, "concat": False}
        self.lin = nn.Linear(FEATURES, WIDTH)
        self.conv = gnn.HypergraphConv(WIDTH, WIDTH, **options)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, hyperedge_index: Tensor, hyperedge_attr: Tensor) -> Tensor:
        x = self.lin(x).relu()
        return self.head(self.conv(x, hyperedge_index, hyperedge_attr=hyperedge_attr).relu())


def hypergraph(seed: int) -> Any:
    """Every node's neighbourhood is a hyperedge."""
    data = papers(seed)
    data.hyperedge_index = data.edge_index
    return data


stack("HypergraphConv", gnn.HypergraphConv, hypergraph, Hyper)


@network("conv", "HypergraphConv attention")
def _(seed: int) -> Any:
    data = hypergraph(seed)
    data.hyperedge_attr = data.x[:, :WIDTH].clone()
    return AttentiveHyper(), data


class Colours(nn.Module):
    """Weisfeiler-Leman colours, looked up in an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.wl = gnn.WLConv()
        self.embed = nn.Embedding(200, WIDTH)
        self.lin1, self.lin2 = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.lin2(self.lin1(self.embed(self.wl(x, edge_index))).relu())


@network("conv", "WLConv")
def _(seed: int) -> Any:
    data = papers(seed)
    data.x = data.x[:, :4].sum(1).long()
    return Colours(), data


@network("conv", "MeshCNNConv")
def _(seed: int) -> Any:
    """A mesh's edges, each with the four others of its two faces."""
    data = dense(seed)
    around = torch.randint(data.num_nodes, (data.num_nodes, 4), generator=generator(seed))
    target = torch.arange(data.num_nodes).repeat_interleave(4)
    data.edge_index = torch.stack([around.flatten(), target])
    return Stack(gnn.MeshCNNConv, (FEATURES, WIDTH, WIDTH, CLASSES)), data


# Dense layers: one adjacency matrix per graph.
def dense_batch(seed: int) -> Any:
    """Eight graphs of 24 nodes as matrices."""
    graph = papers(seed, nodes=192)
    adj = to_dense_adj(graph.edge_index, max_num_nodes=192)[0]
    blocks = torch.stack([adj[i : i + 24, i : i + 24] for i in range(0, 192, 24)])
    near = torch.eye(24).roll(1, 0)
    return Data(
        x=graph.x.view(8, 24, FEATURES),
        adj=((blocks + near + near.T) > 0).float(),
        y=graph.y.view(8, 24),
        num_nodes=192,
    )


for name, layer in {
    "DenseGCNConv": gnn.DenseGCNConv,
    "DenseSAGEConv": gnn.DenseSAGEConv,
    "DenseGraphConv": gnn.DenseGraphConv,
    "DenseGINConv": lambda a, b: gnn.DenseGINConv(mlp(a, b, b)),
    "DenseGATConv": heads(gnn.DenseGATConv, 4),
}.items():
    add(
        name,
        "conv",
        lambda seed, layer=layer: (
            Dense(layer, (FEATURES, WIDTH, WIDTH, CLASSES)),
            dense_batch(seed),
        ),
    )


class Pooled(nn.Module):
    """GINE on molecules, summed up."""

    def __init__(self) -> None:
        super().__init__()
        widths = (16, WIDTH, WIDTH)
        pairs = pairwise(widths)
        self.convs = nn.ModuleList(
            gnn.GINEConv(mlp(a, b, b), edge_dim=EDGE_FEATURES) for a, b in pairs
        )
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x, edge_index, edge_attr).relu()
        return self.head(gnn.global_add_pool(x, batch))


add("GINEConv pooled", "conv", lambda seed: (Pooled(), batch(seed)))

"""The ready-made models of ``torch_geometric.nn.models`` that run here.

``DimeNet``, ``DimeNetPlusPlus``, ``ViSNet`` and ``GNNFF`` search for neighbours and need pyg-lib;
``Node2Vec`` and ``MetaPath2Vec`` are embeddings without layers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric.utils import degree
from zoo_convs import mlp, signed
from zoo_data import (
    CLASSES,
    EDGE_FEATURES,
    FEATURES,
    NODES,
    WIDTH,
    add,
    batch,
    dense,
    generator,
    network,
    papers,
)

model = partial(network, "model")


def basic(name: str, cls: Any, depth: int = 3, data: Any = papers, **options: Any) -> None:
    """Enter one of the models that share ``BasicGNN``."""

    def definition(seed: int) -> Any:
        return cls(FEATURES, WIDTH, depth, CLASSES, **options), data(seed)

    add(name, "model", definition)


basic("GCN", gnn.GCN)
basic("GCN dropout", gnn.GCN, dropout=0.5)
basic("GCN elu", gnn.GCN, act="elu")
basic("GCN tanh", gnn.GCN, 6, act="tanh")
basic("GCN gelu layer norm", gnn.GCN, act="gelu", norm="layer", data=dense)
basic("GCN batch norm", gnn.GCN, 4, norm="batch")
basic("GCN graph norm", gnn.GCN, 4, norm="graph")
basic("GCN jk cat", gnn.GCN, jk="cat")
basic("GCN jk max", gnn.GCN, 4, jk="max")
basic("GCN jk lstm", gnn.GCN, jk="lstm")
basic("GCN 8", gnn.GCN, 8)
basic("GCN 32", gnn.GCN, 32)
basic("GCN 64", gnn.GCN, 64)
basic("GCN edge_weight", gnn.GCN, data=lambda seed: papers(seed, "edge_weight"))
basic("GraphSAGE", gnn.GraphSAGE)
basic("GraphSAGE max", gnn.GraphSAGE, aggr="max")
basic("GraphSAGE leaky relu jk last", gnn.GraphSAGE, act="leaky_relu", jk="last", data=dense)
basic("GIN 5", gnn.GIN, 5)
basic("GIN 8", gnn.GIN, 8)
basic("GIN batch norm", gnn.GIN, 5, norm="batch")
basic("GAT", gnn.GAT)
basic("GAT heads", gnn.GAT, heads=4, data=dense)
basic("GAT v2 heads jk cat", gnn.GAT, heads=4, v2=True, jk="cat")
basic("GAT 8 dropout", gnn.GAT, 8, heads=2, dropout=0.6)
basic("EdgeCNN", gnn.EdgeCNN, data=dense)


@model("PNA")
def _(seed: int) -> Any:
    data = dense(seed)
    degrees = torch.bincount(degree(data.edge_index[1], data.num_nodes).long())
    options = {"aggregators": ["mean", "max", "std"], "scalers": ["identity", "amplification"]}
    return gnn.PNA(FEATURES, WIDTH, 3, CLASSES, deg=degrees, **options), data


class DeepGCN(nn.Module):
    """DeepGCN as in PyG's example for ogbn-proteins, on node features."""

    def __init__(self, block: str, depth: int, checkpoints: bool = False) -> None:
        super().__init__()
        self.encoder = nn.Linear(FEATURES, WIDTH)
        self.layers = nn.ModuleList()
        width = WIDTH
        for _ in range(depth):
            conv = gnn.GENConv(width, WIDTH, aggr="softmax", learn_t=True, num_layers=2)
            width = width if block == "dense" else WIDTH
            norm = nn.LayerNorm(width if block == "res+" else WIDTH)
            layer = gnn.DeepGCNLayer(conv, norm, nn.ReLU(), block, 0.1, ckpt_grad=checkpoints)
            self.layers.append(layer)
            width = width + WIDTH if block == "dense" else WIDTH
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.encoder(x)
        for layer in self.layers:
            x = layer(x, edge_index)
        return self.head(x.relu())


add("DeepGCN res+", "model", lambda seed: (DeepGCN("res+", 8), dense(seed)))
add("DeepGCN res", "model", lambda seed: (DeepGCN("res", 6), dense(seed)))
add("DeepGCN dense", "model", lambda seed: (DeepGCN("dense", 4), dense(seed)))
add("DeepGCN plain", "model", lambda seed: (DeepGCN("plain", 4), dense(seed)))
add("DeepGCN checkpointed", "model", lambda seed: (DeepGCN("res+", 4, True), dense(seed)))


class GCNII(nn.Module):
    """Initial residual and identity mapping."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.lins = nn.ModuleList([nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)])
        self.convs = nn.ModuleList(gnn.GCN2Conv(WIDTH, 0.1, 0.5, i + 1) for i in range(depth))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = first = self.lins[0](x).relu()
        for conv in self.convs:
            x = nn.functional.dropout(x, 0.5, training=self.training)
            x = conv(x, first, edge_index).relu()
        return self.lins[1](x)


add("GCNII 16", "model", lambda seed: (GCNII(16), papers(seed)))


class RevBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.conv = gnn.SAGEConv(width, width)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(self.norm(x).relu(), edge_index)


class RevGNN(nn.Module):
    """Reversible blocks, whose activations are recomputed in the backward pass."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)
        blocks = (RevBlock(WIDTH // 2) for _ in range(depth))
        self.convs = nn.ModuleList(gnn.GroupAddRev(b, num_groups=2) for b in blocks)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.lin1(x)
        for conv in self.convs:
            x = conv(x, edge_index)
        return self.lin2(self.norm(x).relu())


add("RevGNN", "model", lambda seed: (RevGNN(6), dense(seed)))
add("GraphUNet", "model", lambda seed: (gnn.GraphUNet(FEATURES, WIDTH, CLASSES, 3), papers(seed)))
add("RECT_L", "model", lambda seed: (gnn.RECT_L(FEATURES, WIDTH), papers(seed)))
add("PMLP", "model", lambda seed: (gnn.PMLP(FEATURES, WIDTH, CLASSES, 3), papers(seed)))
add("MLP", "model", lambda seed: (gnn.MLP([FEATURES, WIDTH, WIDTH, CLASSES]), papers(seed)))
add("SignedGCN", "model", lambda seed: (gnn.SignedGCN(FEATURES, WIDTH, 3), signed(seed)))


@model("LINKX")
def _(seed: int) -> Any:
    return gnn.LINKX(NODES, FEATURES, WIDTH, CLASSES, num_layers=2), papers(seed)


@model("LightGCN")
def _(seed: int) -> Any:
    data = papers(seed, "edge_label_index", "edge_label")
    return gnn.LightGCN(NODES, WIDTH, num_layers=3), data


@model("AttentiveFP")
def _(seed: int) -> Any:
    options = {"edge_dim": EDGE_FEATURES, "num_layers": 3, "num_timesteps": 2}
    return gnn.AttentiveFP(16, WIDTH, 1, **options), batch(seed, regression=True)


@model("NeuralFingerprint")
def _(seed: int) -> Any:
    return gnn.models.NeuralFingerprint(16, WIDTH, 2, num_layers=3), batch(seed)


@model("SGFormer")
def _(seed: int) -> Any:
    data = dense(seed)
    data.batch = torch.zeros(NODES, dtype=torch.long)
    return gnn.SGFormer(FEATURES, WIDTH, CLASSES), data


@model("Polynormer")
def _(seed: int) -> Any:
    data = dense(seed)
    data.batch = torch.zeros(NODES, dtype=torch.long)
    return gnn.Polynormer(FEATURES, WIDTH, CLASSES, local_layers=3, heads=2), data


@model("ARLinkPredictor")
def _(seed: int) -> Any:
    return gnn.ARLinkPredictor(FEATURES, WIDTH, WIDTH), papers(seed)


@model("LPFormer")
def _(seed: int) -> Any:
    data = papers(seed, "edge_label_index", "edge_label")
    weight = torch.rand(data.num_edges, generator=generator(seed))
    data.ppr_matrix = torch.sparse_coo_tensor(data.edge_index, weight, (NODES, NODES)).coalesce()

    def score(model: nn.Module, data: Any) -> Tensor:
        """The pairs to score are called ``batch``."""
        pairs = data.edge_label_index
        return model(pairs, data.x, data.edge_index, data.ppr_matrix)

    return gnn.models.LPFormer(FEATURES, WIDTH), data, score


def within(pos: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor]:
    """Pairs of atoms of one molecule that are near, and their distance."""
    batch = torch.zeros(pos.size(0), dtype=torch.long) if batch is None else batch
    distance = torch.cdist(pos, pos)
    near = (distance < 4) & (batch[:, None] == batch[None]) & ~torch.eye(len(pos)).bool()
    edge_index = near.nonzero().t()
    return edge_index, distance[edge_index[0], edge_index[1]]


@model("SchNet")
def _(seed: int) -> Any:
    options = {"num_filters": WIDTH, "num_interactions": 3, "num_gaussians": 16}
    return gnn.SchNet(WIDTH, interaction_graph=within, **options), batch(seed, regression=True)


# MetaLayer: edges, nodes and the graph as a whole update each other.
class EdgeModel(nn.Module):
    def __init__(self, node: int, edge: int) -> None:
        super().__init__()
        self.mlp = mlp(2 * node + edge, WIDTH, WIDTH)

    def forward(self, src: Tensor, dst: Tensor, edge_attr: Tensor, u: Any, batch: Any) -> Tensor:
        return self.mlp(torch.cat([src, dst, edge_attr], 1))


class NodeModel(nn.Module):
    def __init__(self, node: int) -> None:
        super().__init__()
        self.mlp1, self.mlp2 = mlp(node + WIDTH, WIDTH, WIDTH), mlp(node + WIDTH, WIDTH, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, u: Any, b: Any) -> Tensor:
        row, col = edge_index
        out = self.mlp1(torch.cat([x[row], edge_attr], 1))
        out = gnn.aggr.MeanAggregation()(out, col, dim_size=x.size(0))
        return self.mlp2(torch.cat([x, out], 1))


class MetaNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = gnn.MetaLayer(EdgeModel(FEATURES, EDGE_FEATURES), NodeModel(FEATURES))
        self.layer2 = gnn.MetaLayer(EdgeModel(WIDTH, WIDTH), NodeModel(WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x, edge_attr, _ = self.layer1(x, edge_index, edge_attr)
        x, _, _ = self.layer2(x, edge_index, edge_attr)
        return self.head(x)


add("MetaLayer", "model", lambda seed: (MetaNet(), dense(seed, "edge_attr")))


# Autoencoders: `model(x, edge_index)` encodes.
class Encoder(nn.Module):
    """Mean and log standard deviation, as the variational autoencoders take them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = gnn.GCNConv(FEATURES, WIDTH)
        self.mu, self.logstd = gnn.GCNConv(WIDTH, 16), gnn.GCNConv(WIDTH, 16)

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        x = self.conv1(x, edge_index).relu()
        return self.mu(x, edge_index), self.logstd(x, edge_index)


def encode(model: nn.Module, data: Any) -> Any:
    """Autoencoders are called with ``*args``, which name nothing."""
    return model(data.x, data.edge_index)


@model("GAE")
def _(seed: int) -> Any:
    return gnn.GAE(gnn.GCN(FEATURES, WIDTH, 2, 16)), papers(seed), encode


@model("VGAE")
def _(seed: int) -> Any:
    return gnn.VGAE(Encoder()), papers(seed), encode


@model("ARGVA")
def _(seed: int) -> Any:
    return gnn.ARGVA(Encoder(), mlp(16, WIDTH, 1)), papers(seed), encode


@model("DeepGraphInfomax")
def _(seed: int) -> Any:
    def summary(z: Tensor, *_: Any) -> Tensor:
        return z.mean(0).sigmoid()

    def corruption(x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        return x.roll(1, 0), edge_index

    encoder = gnn.GCN(FEATURES, WIDTH, 2, WIDTH, act="prelu", act_kwargs={"num_parameters": 1})
    return gnn.DeepGraphInfomax(WIDTH, encoder, summary, corruption), papers(seed), encode


class MaskedLabels(nn.Module):
    """UniMP: transformer layers that see the labels of training nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.label = gnn.MaskLabel(CLASSES, FEATURES)
        self.conv1 = gnn.TransformerConv(FEATURES, 8, heads=4, beta=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.conv2 = gnn.TransformerConv(WIDTH, CLASSES, heads=4, concat=False, beta=True)

    def forward(self, x: Tensor, edge_index: Tensor, y: Tensor, train_mask: Tensor) -> Tensor:
        x = self.label(x, y, train_mask)
        return self.conv2(self.norm(self.conv1(x, edge_index)).relu(), edge_index)


add("UniMP", "model", lambda seed: (MaskedLabels(), dense(seed)))


class Temporal(nn.Module):
    """The embedding and link modules of a temporal graph network, on a given memory."""

    def __init__(self) -> None:
        super().__init__()
        self.time = gnn.models.tgn.TimeEncoder(16)
        self.conv = gnn.TransformerConv(WIDTH, 16, heads=2, edge_dim=EDGE_FEATURES + 16)
        self.src, self.dst, self.final = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(
        self, x: Tensor, edge_index: Tensor, t: Tensor, edge_attr: Tensor, edge_label_index: Tensor
    ) -> Tensor:
        z = self.conv(x, edge_index, torch.cat([self.time(t), edge_attr], -1))
        src, dst = edge_label_index
        return self.final((self.src(z[src]) + self.dst(z[dst])).relu()).squeeze(-1)


@model("TGN embedding and link")
def _(seed: int) -> Any:
    data = dense(seed, "edge_attr", "edge_label_index", "edge_label", features=WIDTH)
    data.t = torch.linspace(0, 5, data.num_edges)
    return Temporal(), data

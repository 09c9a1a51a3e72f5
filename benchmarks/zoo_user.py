"""Networks as users write them: encoders, heads, residual streams, norms, pooling, inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import lightning
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.utils import to_torch_coo_tensor
from zoo_convs import mlp
from zoo_data import (
    CLASSES,
    EDGE_FEATURES,
    FEATURES,
    NODES,
    WIDTH,
    add,
    batch,
    cloud,
    dense,
    generator,
    molecules,
    network,
    papers,
)

user = partial(network, "user")


class Encoded(nn.Module):
    """A linear encoder, convolutions, a linear head."""

    def __init__(self, depth: int, residual: bool = False, norm: Any = None) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.convs = nn.ModuleList(gnn.GCNConv(WIDTH, WIDTH) for _ in range(depth))
        self.norms = nn.ModuleList((norm or nn.Identity)() for _ in range(depth))
        self.residual = residual

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.encoder(x).relu()
        for conv, norm in zip(self.convs, self.norms, strict=True):
            out = norm(conv(x, edge_index)).relu()
            x = x + out if self.residual else out
        return self.head(x)


class PreNorm(Encoded):
    """``x + f(norm(x))``."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.encoder(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + conv(norm(x).relu(), edge_index)
        return self.head(x)


NORMS = {
    "BatchNorm": partial(nn.BatchNorm1d, WIDTH),
    "LayerNorm": partial(nn.LayerNorm, WIDTH),
    "PairNorm": gnn.PairNorm,
    "GraphNorm": partial(gnn.GraphNorm, WIDTH),
    "InstanceNorm": partial(gnn.InstanceNorm, WIDTH),
    "GraphSizeNorm": gnn.GraphSizeNorm,
    "DiffGroupNorm": partial(gnn.DiffGroupNorm, WIDTH, 4),
    "MeanSubtractionNorm": gnn.MeanSubtractionNorm,
}
for norm_name, norm in NORMS.items():
    add(f"norm {norm_name}", "user", lambda seed, norm=norm: (Encoded(4, norm=norm), papers(seed)))
add("encoder convs head", "user", lambda seed: (Encoded(3), papers(seed)))
add("residual 16", "user", lambda seed: (Encoded(16, residual=True), dense(seed)))
add("residual 4", "user", lambda seed: (Encoded(4, residual=True), papers(seed)))
add(
    "residual BatchNorm 8", "user", lambda seed: (Encoded(8, True, NORMS["BatchNorm"]), dense(seed))
)
add(
    "pre-norm residual 12", "user", lambda seed: (PreNorm(12, norm=NORMS["LayerNorm"]), dense(seed))
)


class Sum(nn.Module):
    """A residual stream of GIN layers, whose sums grow quickly."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.convs = nn.ModuleList(gnn.GINConv(mlp(WIDTH, WIDTH, WIDTH)) for _ in range(16))

    def forward(self, data: Data) -> Tensor:
        x = self.encoder(data.x)
        for conv in self.convs:
            x = x + conv(x, data.edge_index).relu()
        return self.head(x)


add("residual GIN 16", "user", lambda seed: (Sum(), dense(seed)))


class Tutorial(nn.Module):
    """The first model of PyG's documentation: takes the data, ends in log_softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = gnn.GCNConv(FEATURES, 16), gnn.GCNConv(16, CLASSES)

    def forward(self, data: Data) -> Tensor:
        x, edge_index = data.x, data.edge_index
        x = functional.relu(self.conv1(x, edge_index))
        x = functional.dropout(x, training=self.training)
        return functional.log_softmax(self.conv2(x, edge_index), dim=1)


add("tutorial GCN", "user", lambda seed: (Tutorial(), papers(seed)))


@user("Sequential of PyG")
def _(seed: int) -> Any:
    layers = [
        (nn.Dropout(0.5), "x -> x"),
        (gnn.GCNConv(FEATURES, WIDTH), "x, edge_index -> x1"),
        nn.ReLU(inplace=True),
        (gnn.GCNConv(WIDTH, WIDTH), "x1, edge_index -> x2"),
        nn.ReLU(inplace=True),
        (lambda x1, x2: [x1, x2], "x1, x2 -> xs"),
        (gnn.JumpingKnowledge("cat"), "xs -> x"),
        nn.Linear(2 * WIDTH, CLASSES),
    ]
    return gnn.Sequential("x, edge_index", layers), papers(seed)


class KipfLayer(nn.Module):
    """Kipf's own layer: a bare parameter and a sparse product."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(a, b)), nn.Parameter(torch.empty(b))
        bound = 1 / math.sqrt(b)
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        return torch.spmm(adj, x @ self.weight) + self.bias


class Kipf(nn.Module):
    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(KipfLayer(a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = functional.dropout(layer(x, adj).relu(), 0.5, self.training)
        return self.layers[-1](x, adj)


def with_adjacency(seed: int) -> Data:
    """The normalised adjacency as a sparse matrix beside the edges."""
    data = papers(seed)
    edges, weight = gnn.conv.gcn_conv.gcn_norm(data.edge_index, num_nodes=NODES)
    data.adj = to_torch_coo_tensor(edges, weight, size=NODES)
    return data


add(
    "Kipf's GraphConvolution",
    "user",
    lambda seed: (Kipf(FEATURES, 16, CLASSES), with_adjacency(seed)),
)
add(
    "Kipf's GraphConvolution 6",
    "user",
    lambda seed: (Kipf(FEATURES, *[WIDTH] * 5, CLASSES), with_adjacency(seed)),
)


class OwnMessagePassing(gnn.MessagePassing):
    """A message-passing layer of the user's own."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(aggr="mean")
        self.lin, self.gate = nn.Linear(a, b), nn.Linear(2 * a, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.lin(x) + self.propagate(edge_index, x=x)

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return self.gate(torch.cat([x_i, x_j], -1)).sigmoid() * self.lin(x_j)


class Plain(nn.Module):
    """Layers with an activation between them."""

    def __init__(self, layers: list[nn.Module], act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layers, self.act = nn.ModuleList(layers), act

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = self.act(layer(x, edge_index))
        return self.layers[-1](x, edge_index)


def plain(name: str, layer: Any, depth: int, act: Any = torch.relu, data: Any = papers) -> None:
    def definition(seed: int) -> Any:
        widths = (FEATURES, *[WIDTH] * (depth - 1), CLASSES)
        return Plain([layer(a, b) for a, b in pairwise(widths)], act), data(seed)

    add(name, "user", definition)


plain("own message passing", OwnMessagePassing, 3)
plain("tanh GCN 8", gnn.GCNConv, 8, torch.tanh)
plain("sigmoid SAGE", gnn.SAGEConv, 3, torch.sigmoid)
plain("PReLU GCN", gnn.GCNConv, 4, nn.PReLU())
plain("silu GraphConv", gnn.GraphConv, 4, functional.silu, dense)
plain("linear GCN", gnn.GCNConv, 4, nn.Identity())
plain("GIN without norm 8", lambda a, b: gnn.GINConv(mlp(a, b, b)), 8, data=dense)
plain(
    "GIN with BatchNorm inside",
    lambda a, b: gnn.GINConv(
        nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(), nn.Linear(b, b))
    ),
    5,
)
plain("NGNN", lambda a, b: Nested(a, b), 3)


class Nested(nn.Module):
    """A convolution with an extra linear layer in it, as in NGNN."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.conv, self.lin = gnn.SAGEConv(a, b), nn.Linear(b, b)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.lin(self.conv(x, edge_index).relu())


class Tied(nn.Module):
    """One convolution applied six times, and a head that shares the encoder's weight."""

    def __init__(self, autoencoder: bool = False) -> None:
        super().__init__()
        self.encoder = nn.Linear(FEATURES, WIDTH)
        self.conv = gnn.GCNConv(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.autoencoder = autoencoder

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.encoder(x).relu()
        for _ in range(6):
            x = self.conv(x, edge_index).relu()
        return x @ self.encoder.weight if self.autoencoder else self.head(x)


add("weights shared by layers", "user", lambda seed: (Tied(), papers(seed)))


@user("tied autoencoder")
def _(seed: int) -> Any:
    data = dense(seed)
    data.y = data.x.clone()
    return Tied(autoencoder=True), data


class Listed(nn.Module):
    """A graph convolution written out in ``forward``, with its weights in a list."""

    def __init__(self) -> None:
        super().__init__()
        widths = [FEATURES, *[WIDTH] * 7, CLASSES]
        self.weights = nn.ParameterList(
            nn.init.kaiming_uniform_(torch.empty(shape)) for shape in pairwise(widths)
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        adjacency = to_torch_coo_tensor(edge_index, size=x.size(0))
        *hidden, last = self.weights
        for weight in hidden:
            x = (adjacency @ (x @ weight)).relu()
        return x @ last


add("weights in a ParameterList 8", "user", lambda seed: (Listed(), papers(seed)))


class Writing(Encoded):
    """As GraphGym's layers: each puts what it returns into the data it is given."""

    def forward(self, data: Data) -> Tensor:
        data.x = self.encoder(data.x)
        for conv in self.convs:
            data.x = conv(data.x, data.edge_index).relu()
        return self.head(data.x)


add("layers that write into the data", "user", lambda seed: (Writing(4), papers(seed)))


# Outputs and tasks.
class Outputs(nn.Module):
    """Two layers; what is returned is up to ``wrap``."""

    def __init__(self, wrap: Callable[[Tensor, Tensor], Any], classes: int = CLASSES) -> None:
        super().__init__()
        self.conv1, self.conv2 = gnn.SAGEConv(FEATURES, WIDTH), gnn.SAGEConv(WIDTH, classes)
        self.wrap = wrap

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        hidden = self.conv1(x, edge_index).relu()
        return self.wrap(self.conv2(hidden, edge_index), hidden)


def only(out: Tensor, _: Tensor) -> Tensor:
    return out


add("tuple output", "user", lambda seed: (Outputs(lambda o, h: (o, h)), papers(seed)))
add(
    "dict output",
    "user",
    lambda seed: (Outputs(lambda o, h: {"logits": o, "embedding": h}), papers(seed)),
)


@user("regression")
def _(seed: int) -> Any:
    data = dense(seed)
    data.y = data.x[:, :1] + 0.1 * torch.randn(NODES, 1, generator=generator(seed))
    return Outputs(only, 1), data


@user("multi-label")
def _(seed: int) -> Any:
    data = papers(seed)
    data.y = (torch.rand(NODES, 10, generator=generator(seed)) < 0.3).float()
    return Outputs(only, 10), data


@user("without labels")
def _(seed: int) -> Any:
    data = papers(seed)
    for key in [key for key in data.keys() if key not in ("x", "edge_index")]:  # noqa: SIM118
        del data[key]
    return Outputs(only, WIDTH), data


class Links(nn.Module):
    """Embeddings of both ends, then a product or a network."""

    def __init__(self, product: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = gnn.GCNConv(FEATURES, WIDTH), gnn.GCNConv(WIDTH, WIDTH)
        self.score = None if product else mlp(2 * WIDTH, WIDTH, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        z = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        a, b = z[edge_label_index[0]], z[edge_label_index[1]]
        if self.score is None:
            return (a * b).sum(-1)
        return self.score(torch.cat([a, b], -1)).squeeze(-1)


for product in (True, False):
    add(
        f"link prediction {'product' if product else 'network'}",
        "user",
        lambda seed, product=product: (
            Links(product),
            papers(seed, "edge_label_index", "edge_label"),
        ),
    )


# Whole graphs.
class GraphLevel(nn.Module):
    """Convolutions, a pooling, a head: graph classification."""

    def __init__(self, pool: Any, layer: Any = gnn.GraphConv, factor: int = 1) -> None:
        super().__init__()
        self.convs = nn.ModuleList([layer(16, WIDTH), layer(WIDTH, WIDTH), layer(WIDTH, WIDTH)])
        self.pool, self.head = pool, mlp(factor * WIDTH, WIDTH, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return self.head(self.pool(x, batch))


POOLS: dict[str, Callable[[], Any]] = {
    "global mean": lambda: gnn.global_mean_pool,
    "global sum": lambda: gnn.global_add_pool,
    "global max": lambda: gnn.global_max_pool,
    "attention": lambda: gnn.AttentionalAggregation(mlp(WIDTH, WIDTH, 1)),
    "softmax": lambda: gnn.SoftmaxAggregation(learn=True),
    "GRU": lambda: gnn.GRUAggregation(WIDTH, WIDTH),
    "set transformer": lambda: gnn.SetTransformerAggregation(WIDTH, heads=4),
}
for pool_name, pool in POOLS.items():
    add(f"pooling {pool_name}", "user", lambda seed, pool=pool: (GraphLevel(pool()), batch(seed)))
add(
    "pooling Set2Set",
    "user",
    lambda seed: (GraphLevel(gnn.Set2Set(WIDTH, 3), gnn.GCNConv, 2), batch(seed)),
)


@user("GIN graph classification DataLoader")
def _(seed: int) -> Any:
    def layer(a: int, b: int) -> nn.Module:
        return gnn.GINConv(mlp(a, b, b))

    return GraphLevel(gnn.global_add_pool, layer), DataLoader(molecules(seed), batch_size=12)


class Coarsened(nn.Module):
    """Convolutions with a pooling after each that removes or merges nodes."""

    def __init__(self, pool: Any) -> None:
        super().__init__()
        self.conv1, self.conv2 = gnn.GraphConv(16, WIDTH), gnn.GraphConv(WIDTH, WIDTH)
        self.pool1, self.pool2 = pool(WIDTH), pool(WIDTH)
        self.head = mlp(2 * WIDTH, WIDTH, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        total = 0
        for conv, pool in ((self.conv1, self.pool1), (self.conv2, self.pool2)):
            x = conv(x, edge_index).relu()
            if isinstance(pool, gnn.EdgePooling):
                x, edge_index, batch, _ = pool(x, edge_index, batch)
            else:
                x, edge_index, _, batch, *_ = pool(x, edge_index, None, batch)
            mean, top = gnn.global_mean_pool(x, batch), gnn.global_max_pool(x, batch)
            total = total + torch.cat([mean, top], 1)
        return self.head(total)


for pooling in (gnn.TopKPooling, gnn.SAGPooling, gnn.EdgePooling):
    add(pooling.__name__, "user", lambda seed, pooling=pooling: (Coarsened(pooling), batch(seed)))


class Molecules(nn.Module):
    """Embedded atoms, encoded bonds, GINE with BatchNorm, a regression on graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.atoms, self.bonds = nn.Embedding(10, WIDTH), nn.Linear(EDGE_FEATURES, WIDTH)
        self.convs = nn.ModuleList(gnn.GINEConv(mlp(WIDTH, WIDTH, WIDTH)) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, z: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        x, edge_attr = self.atoms(z), self.bonds(edge_attr)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + norm(conv(x, edge_index, edge_attr)).relu()
        return self.head(gnn.global_mean_pool(x, batch))


add("molecules regression", "user", lambda seed: (Molecules(), batch(seed, regression=True)))


@user("molecules regression DataLoader")
def _(seed: int) -> Any:
    return Molecules(), DataLoader(molecules(seed, regression=True), batch_size=12)


class GPS(nn.Module):
    """GraphGPS on molecules, as PyG's example has it."""

    def __init__(self) -> None:
        super().__init__()
        self.atoms, self.bonds = nn.Embedding(10, WIDTH), nn.Linear(EDGE_FEATURES, WIDTH)
        layers = (gnn.GINEConv(mlp(WIDTH, WIDTH, WIDTH)) for _ in range(4))
        self.convs = nn.ModuleList(gnn.GPSConv(WIDTH, layer, heads=4) for layer in layers)
        self.head = mlp(WIDTH, WIDTH // 2, WIDTH // 4, 1)

    def forward(self, z: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        x, edge_attr = self.atoms(z), self.bonds(edge_attr)
        for conv in self.convs:
            x = conv(x, edge_index, batch, edge_attr=edge_attr)
        return self.head(gnn.global_add_pool(x, batch))


add("GraphGPS", "user", lambda seed: (GPS(), batch(seed, regression=True)))


class DiffPool(nn.Module):
    """Dense graphs, softly clustered: returns logits and two auxiliary losses."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.assign = gnn.DenseSAGEConv(16, WIDTH), gnn.DenseSAGEConv(16, 6)
        self.last, self.head = gnn.DenseSAGEConv(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> tuple[Tensor, ...]:
        from torch_geometric.utils import to_dense_adj, to_dense_batch

        x, mask = to_dense_batch(x, batch)
        adj = to_dense_adj(edge_index, batch)
        clusters = self.assign(x, adj, mask)
        x = self.embed(x, adj, mask).relu()
        x, adj, link, entropy = gnn.dense_diff_pool(x, adj, clusters, mask)
        return self.head(self.last(x, adj).relu().mean(1)), link, entropy


add("DiffPool", "user", lambda seed: (DiffPool(), batch(seed)))


# Inputs that are not what they usually are.
@user("lazy layers")
def _(seed: int) -> Any:
    layers = [gnn.SAGEConv(-1, WIDTH), gnn.GCNConv(-1, WIDTH), gnn.GATConv(-1, CLASSES)]
    return Plain(layers, torch.relu), papers(seed)


class Words(nn.Module):
    """Integer features, embedded."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH)
        self.conv1, self.conv2 = gnn.GCNConv(WIDTH, WIDTH), gnn.GCNConv(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.embed(x.squeeze(-1))
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


@user("integer features embedded")
def _(seed: int) -> Any:
    data = papers(seed)
    data.x = torch.randint(50, (NODES, 1), generator=generator(seed))
    return Words(), data


class NodeTable(nn.Module):
    """No features: an embedding per node, as for ogbl-ddi."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(NODES, WIDTH)
        self.gnn = gnn.GraphSAGE(WIDTH, WIDTH, 3, CLASSES)

    def forward(self, edge_index: Tensor) -> Tensor:
        return self.gnn(self.embed.weight, edge_index)


@user("embedding per node")
def _(seed: int) -> Any:
    data = papers(seed)
    del data.x
    data.num_nodes = NODES
    return NodeTable(), data


class Points(nn.Module):
    """A point cloud whose edges the model finds itself, from positions and then from features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = gnn.EdgeConv(mlp(6, WIDTH, WIDTH))
        self.conv2 = gnn.EdgeConv(mlp(2 * WIDTH, WIDTH, WIDTH))
        self.head = mlp(2 * WIDTH, WIDTH, CLASSES)

    def forward(self, pos: Tensor) -> Tensor:
        x1 = self.conv1(pos, self.nearest(pos))
        x2 = self.conv2(x1, self.nearest(x1))
        return self.head(torch.cat([x1, x2], 1))

    @staticmethod
    def nearest(x: Tensor) -> Tensor:
        near = torch.cdist(x.detach(), x.detach()).topk(8, largest=False).indices
        return torch.stack([near.flatten(), torch.arange(len(x)).repeat_interleave(8)])


@user("point cloud without edges")
def _(seed: int) -> Any:
    data = cloud(seed)
    del data.x, data.edge_index
    return Points(), data


@user("point cloud given edges")
def _(seed: int) -> Any:
    class PointNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = gnn.PointNetConv(mlp(6, WIDTH, WIDTH))
            self.conv2 = gnn.PointNetConv(mlp(WIDTH + 3, WIDTH, WIDTH))
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, pos: Tensor, edge_index: Tensor) -> Tensor:
            x = self.conv1(pos, pos, edge_index).relu()
            return self.head(self.conv2(x, pos, edge_index).relu())

    data = cloud(seed)
    del data.x
    return PointNet(), data


# How models are run.
class Checkpointed(Encoded):
    """Activations recomputed in the backward pass."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.encoder(x).relu()
        for conv in self.convs:
            x = checkpoint(conv, x, edge_index, use_reentrant=False).relu()
        return self.head(x)


add("gradient checkpointing", "user", lambda seed: (Checkpointed(4), papers(seed)))


@user("torch.compile")
def _(seed: int) -> Any:
    return torch.compile(gnn.GCN(FEATURES, WIDTH, 3, CLASSES), backend="eager"), papers(seed)


class Module(lightning.LightningModule):
    """A LightningModule: forward and a training step."""

    def __init__(self) -> None:
        super().__init__()
        self.gnn = gnn.GraphSAGE(FEATURES, WIDTH, 3, CLASSES, dropout=0.5)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.gnn(x, edge_index)

    def training_step(self, data: Data, _: int) -> Tensor:
        out = self(data.x, data.edge_index)
        return functional.cross_entropy(out[data.train_mask], data.y[data.train_mask])


add("LightningModule", "user", lambda seed: (Module(), papers(seed)))


class Frozen(Encoded):
    """A pretrained encoder that is not trained further."""

    def __init__(self) -> None:
        super().__init__(3)
        self.encoder.requires_grad_(False)


add("frozen encoder", "user", lambda seed: (Frozen(), papers(seed)))


class Branches(nn.Module):
    """A graph branch and a feature branch, concatenated: H2GCN and friends."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(FEATURES, WIDTH)
        self.near, self.far = gnn.GCNConv(FEATURES, WIDTH), gnn.TAGConv(FEATURES, WIDTH)
        self.weight = nn.Parameter(torch.randn(3 * WIDTH, CLASSES) / math.sqrt(3 * WIDTH))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        parts = [self.lin(x), self.near(x, edge_index), self.far(x, edge_index)]
        return torch.cat(parts, 1).relu() @ self.weight


add("branches concatenated", "user", lambda seed: (Branches(), papers(seed)))


class Virtual(nn.Module):
    """A virtual node that hears from all and speaks to all."""

    def __init__(self) -> None:
        super().__init__()
        self.virtual = nn.Embedding(1, WIDTH)
        self.encoder = nn.Linear(16, WIDTH)
        self.convs = nn.ModuleList(gnn.GCNConv(WIDTH, WIDTH) for _ in range(3))
        self.mlps = nn.ModuleList(mlp(WIDTH, WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.encoder(x)
        virtual = self.virtual.weight.expand(int(batch.max()) + 1, -1)
        for conv, net in zip(self.convs, self.mlps, strict=True):
            x = conv(x + virtual[batch], edge_index).relu()
            virtual = virtual + net(gnn.global_add_pool(x, batch))
        return self.head(gnn.global_mean_pool(x, batch))


add("virtual node", "user", lambda seed: (Virtual(), batch(seed)))


class Recurrent(nn.Module):
    """Graph convolutions inside a GRU cell, over a few steps."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = gnn.GCNConv(WIDTH, WIDTH)
        self.cell, self.encoder = nn.GRUCell(WIDTH, WIDTH), nn.Linear(FEATURES, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        state = self.encoder(x).tanh()
        for _ in range(3):
            state = self.cell(self.conv(state, edge_index), state)
        return self.head(state)


add("graph recurrent unit", "user", lambda seed: (Recurrent(), dense(seed)))


@user("sparse adjacency adj_t")
def _(seed: int) -> Any:
    class Adjacency(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = gnn.GCNConv(FEATURES, WIDTH), gnn.GCNConv(WIDTH, CLASSES)

        def forward(self, x: Tensor, adj_t: Tensor) -> Tensor:
            return self.conv2(self.conv1(x, adj_t).relu(), adj_t)

    data = papers(seed)
    data.adj_t = to_torch_coo_tensor(data.edge_index.flip(0), size=NODES)
    del data.edge_index
    return Adjacency(), data


@user("double precision")
def _(seed: int) -> Any:
    data = dense(seed)
    data.x = data.x.double()
    return Encoded(3).double(), data

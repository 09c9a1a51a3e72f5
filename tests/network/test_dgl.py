"""DGL's models on DGL's graphs: the same numbers as PyG's, the same plans, the same defaults."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from kit.dgl_library import load_dgl
from torch import Tensor, nn
from torch_geometric.data import Data

import virgo
from virgo.layers import LayerView, describe_kind, is_message_passing
from virgo.network import reading
from virgo.network.profile import units_of

dgl = load_dgl()
import dgl.nn.pytorch as dgl_nn  # noqa: E402

FEATURES, CLASSES, RELATIONS = 40, 7, 3


def mlp(fan_in: int, fan_out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(fan_in, fan_out), nn.ReLU(), nn.Linear(fan_out, fan_out))


#: name -> DGL's layer and PyG's, and how PyG's calls each parameter of DGL's.
PAIRS: dict[str, tuple[Callable[..., nn.Module], Callable[..., nn.Module], dict[str, str]]] = {
    "GraphConv": (
        lambda i, o: dgl_nn.GraphConv(i, o),
        lambda i, o: pyg.GCNConv(i, o, add_self_loops=False),
        {"weight": "lin.weight", "bias": "bias"},
    ),
    "SAGEConv": (
        lambda i, o: dgl_nn.SAGEConv(i, o, "mean"),
        lambda i, o: pyg.SAGEConv(i, o),
        {
            "fc_neigh.weight": "lin_l.weight",
            "fc_self.weight": "lin_r.weight",
            "fc_self.bias": "lin_l.bias",
        },
    ),
    "GINConv": (
        lambda i, o: dgl_nn.GINConv(mlp(i, o), init_eps=0.25),
        lambda i, o: pyg.GINConv(mlp(i, o), eps=0.25),
        {f"apply_func.{n}": f"nn.{n}" for n in ("0.weight", "0.bias", "2.weight", "2.bias")},
    ),
    "SGConv": (
        lambda i, o: dgl_nn.SGConv(i, o, k=2),
        lambda i, o: pyg.SGConv(i, o, K=2, add_self_loops=False),
        {"fc.weight": "lin.weight", "fc.bias": "lin.bias"},
    ),
    "GATConv": (
        lambda i, o: dgl_nn.GATConv(i, o, 1),
        lambda i, o: pyg.GATConv(i, o, add_self_loops=False),
        {"fc.weight": "lin.weight", "attn_l": "att_src", "attn_r": "att_dst", "bias": "bias"},
    ),
    "RelGraphConv": (
        lambda i, o: dgl_nn.RelGraphConv(i, o, RELATIONS),
        lambda i, o: pyg.RGCNConv(i, o, RELATIONS, aggr="add"),
        {"linear_r.W": "weight", "loop_weight": "root", "h_bias": "bias"},
    ),
}
CLOSED = ("GraphConv", "SAGEConv", "GINConv", "SGConv")


class Stack(nn.Module):
    """Layers of one kind with ReLU between them, in either library."""

    def __init__(self, make: Callable[..., nn.Module], depth: int = 3, width: int = 12) -> None:
        super().__init__()
        widths = [FEATURES, *[width] * (depth - 1), CLASSES]
        self.convs = nn.ModuleList(map(make, widths[:-1], widths[1:]))

    def through(self, x: Tensor, call: Callable[[nn.Module, Tensor], Tensor]) -> Tensor:
        for i, conv in enumerate(self.convs):
            x = call(conv, x.relu() if i else x).flatten(1)  # DGL keeps attention heads apart
        return x


class DGLStack(Stack):
    def forward(self, g: Any, feat: Tensor) -> Tensor:
        typed = isinstance(self.convs[0], dgl_nn.RelGraphConv)
        extra = (g.edata["etype"],) if typed else ()
        return self.through(feat, lambda conv, x: conv(g, x, *extra))


class PyGStack(Stack):
    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        extra = (edge_type,) if isinstance(self.convs[0], pyg.RGCNConv) else ()
        return self.through(x, lambda conv, x: conv(x, edge_index, *extra))


@pytest.fixture(scope="module")
def data() -> Data:
    """A citation graph with one self-loop per node, which neither library then adds."""
    data = virgo.data.citation_like(num_nodes=150, num_features=FEATURES, seed=0)
    loops = torch.arange(data.num_nodes).expand(2, -1)
    data.edge_index = torch.cat([data.edge_index, loops], dim=1)
    kinds = torch.arange(data.edge_index.size(1)) * 7 % 5 % RELATIONS
    data.edge_type = kinds
    return data


def to_dgl(data: Data) -> Any:
    graph = dgl.graph(tuple(data.edge_index), num_nodes=data.num_nodes)
    graph.ndata.update({"feat": data.x, "label": data.y, "train_mask": data.train_mask})
    graph.edata["etype"] = data.edge_type
    return graph


@pytest.fixture
def graph(data: Data) -> Any:
    return to_dgl(data)


def stacks(name: str, depth: int = 3) -> tuple[DGLStack, PyGStack, dict[str, str]]:
    """The same network with the same weights in both libraries, and its parameters' names."""
    torch.manual_seed(0)
    of_dgl, of_pyg, local = PAIRS[name]
    ours, theirs = DGLStack(of_dgl, depth), PyGStack(of_pyg, depth)
    names = {
        f"convs.{i}.{mine}": f"convs.{i}.{other}"
        for i in range(depth)
        for mine, other in local.items()
    }
    parameters = dict(theirs.named_parameters())
    assert sorted(names) == sorted(n for n, _ in ours.named_parameters())
    with torch.no_grad():
        for mine, parameter in ours.named_parameters():
            if mine.endswith("bias"):
                parameter.normal_()
            other = parameters[names[mine]]
            in_first = mine.endswith(".weight") and isinstance(ours.convs[0], dgl_nn.GraphConv)
            other.copy_(parameter.T if in_first else parameter)
    return ours, theirs, names


@pytest.mark.parametrize("name", PAIRS)
def test_same_weights_give_the_same_output_as_in_pyg(name: str, data: Data, graph: Any) -> None:
    ours, theirs, _ = stacks(name)
    expected = theirs(data.x, data.edge_index, data.edge_type)
    # float32 sums over different orders of edges
    torch.testing.assert_close(ours(graph, data.x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", ["virgo-forward", "virgo-backward", "virgo", "xavier"])
@pytest.mark.parametrize("name", CLOSED)
def test_plans_agree_with_pygs(name: str, method: str, data: Data, graph: Any) -> None:
    ours, theirs, names = stacks(name)
    mine, other = virgo.plan(ours, graph, method), virgo.plan(theirs, data, method)
    assert mine.num_classes == other.num_classes == CLASSES
    # the same sums in float64
    renamed = {names[weight]: variance for weight, variance in mine.variances.items()}
    assert renamed == pytest.approx(other.variances, rel=1e-9)
    assert {names[bias] for bias in mine.biases} == set(other.biases)
    assert mine.left_alone == other.left_alone == ()


@pytest.mark.parametrize("name", PAIRS)
def test_measured_plans_agree_with_pygs(name: str, data: Data, graph: Any) -> None:
    ours, theirs, names = stacks(name)
    options = {"distribution": "own", "estimate": "measured"}
    mine = virgo.plan(ours, graph, "virgo-forward", **options)
    other = virgo.plan(theirs, data, "virgo-forward", **options)
    first = {names[row.weight]: row.variance for row in mine.rows if row.weight in names}
    assert mine.measured is not None
    assert mine.measured["achieved"]["forward"]["range"] < 1.02  # the default tolerance
    if name in CLOSED:
        assert first == pytest.approx(other.variances, rel=1e-3)


@pytest.mark.parametrize("name", PAIRS)
def test_the_default_serves_every_layer(name: str, data: Data, graph: Any) -> None:
    ours, theirs, _ = stacks(name, depth=5)
    with torch.no_grad():
        for parameter in [*ours.parameters(), *theirs.parameters()]:
            parameter.mul_(3.0 if parameter.dim() > 1 else 0.0)  # too loud, to have a reason
    assert len(units_of(ours)) == 5
    plan, other = virgo.init_(ours, graph), virgo.init_(theirs, data)
    assert plan.choice is not None
    assert other.choice is not None
    tried, others = (
        {t["name"]: t["score"] for t in choice["tried"]} for choice in (plan.choice, other.choice)
    )
    assert tried.keys() <= others.keys()  # PyG's attention and relations have closed forms, too
    # what is drawn depends on the weights' names, which are the libraries' own
    for kept in ("as it is", "own weights, scaled by measured passes"):
        assert tried[kept] == pytest.approx(others[kept], rel=0.02)
    assert tried[plan.choice["chosen"]] < tried["as it is"] - 0.1
    assert {name.rpartition(".")[2] for name, _ in plan.left_alone} <= {"attn_l", "attn_r"}
    signals = [layer["signal"] for layer in plan.choice["after"]]
    assert independent(ours, graph) == pytest.approx(signals, rel=1e-4)


def independent(model: DGLStack, graph: Any) -> list[float]:
    """The mean square of every layer's output, by hooks of the test's own."""
    seen: list[float] = []
    hooks = [
        conv.register_forward_hook(lambda *call: seen.append(float(call[-1].square().mean())))
        for conv in model.convs
    ]
    with torch.no_grad():
        model(graph, graph.ndata["feat"])
    for hook in hooks:
        hook.remove()
    return seen


DESCRIBED: dict[str, Callable[[], nn.Module]] = {
    **{
        f"GraphConv {n}": lambda n=n: dgl_nn.GraphConv(4, 4, norm=n, allow_zero_in_degree=True)
        for n in ("both", "left", "right", "none")
    },
    "SAGEConv mean": lambda: dgl_nn.SAGEConv(4, 4, "mean"),
    "SAGEConv gcn": lambda: dgl_nn.SAGEConv(4, 4, "gcn"),
    "GINConv sum": lambda: dgl_nn.GINConv(nn.Linear(4, 4), "sum", init_eps=0.5),
    "GINConv mean": lambda: dgl_nn.GINConv(nn.Linear(4, 4), "mean", init_eps=0.5),
    "SGConv": lambda: dgl_nn.SGConv(4, 4, k=2, allow_zero_in_degree=True),
}


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("name", DESCRIBED)
def test_descriptions_are_what_the_layer_computes(name: str, weighted: bool) -> None:
    """On a directed graph with loops, double edges, and nodes that only send or only receive."""
    source = torch.tensor([0, 0, 1, 2, 2, 3, 3, 5, 5])
    target = torch.tensor([1, 1, 2, 1, 2, 0, 2, 1, 5])
    graph = dgl.graph((source, target), num_nodes=6)
    weight = torch.linspace(0.5, 1.5, 9) if weighted else None
    layer = DESCRIBED[name]()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.eye(4)) if parameter.dim() == 2 else parameter.zero_()
    view = LayerView(virgo.Graph(torch.stack([source, target]), 6, weight), linears=("apply_func",))
    describe = describe_kind(layer)
    assert describe is not None
    (stage,) = describe(layer, view)
    x = torch.rand(6, 4, generator=torch.Generator().manual_seed(0))
    expected = sum(term.operator(x.double().numpy()) for term in stage)
    got = layer(graph, x, edge_weight=weight).detach().double().numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    parameters = dict(layer.named_parameters())
    assert all(term.weight in parameters for term in stage)


@pytest.mark.parametrize(
    "make",
    [
        lambda: dgl_nn.SAGEConv(4, 4, "pool"),
        lambda: dgl_nn.SAGEConv(4, 4, "mean", norm=nn.LayerNorm(4)),
        lambda: dgl_nn.GINConv(nn.Linear(4, 4), "max"),
        lambda: dgl_nn.SGConv(4, 4, norm=nn.LayerNorm(4)),
    ],
)
def test_layers_without_constant_coefficients_are_refused_by_name(make: Any) -> None:
    layer = make()
    describe = describe_kind(layer)
    assert describe is not None
    with pytest.raises(virgo.LayerError, match=type(layer).__name__):
        describe(layer, LayerView(virgo.Graph(torch.tensor([[0, 1], [1, 0]]), 2)))


def test_subclasses_that_compute_otherwise_are_not_described() -> None:
    class Renamed(dgl_nn.GraphConv):
        pass

    class Twice(dgl_nn.GraphConv):
        def forward(self, graph: Any, feat: Tensor) -> Tensor:
            return 2 * super().forward(graph, feat)

    assert describe_kind(Renamed(4, 4)) is describe_kind(dgl_nn.GraphConv(4, 4)) is not None
    assert describe_kind(Twice(4, 4)) is None
    assert is_message_passing(Twice(4, 4))
    assert not is_message_passing(dgl_nn.EdgeWeightNorm())


def test_the_graph_is_left_as_it_was(graph: Any) -> None:
    ours, _, _ = stacks("SAGEConv")
    before = {key: (value, value.clone()) for key, value in graph.ndata.items()}
    state = torch.get_rng_state()
    virgo.init_(ours.double(), graph)  # in the model's precision
    assert next(ours.parameters()).dtype == torch.float64
    assert set(graph.ndata) == set(before)
    assert set(graph.edata) == {"etype"}
    assert all(torch.equal(graph.ndata[key], copy_) for key, (_, copy_) in before.items())
    assert graph.ndata["feat"].dtype == torch.float32
    assert not graph.ndata["feat"].requires_grad
    assert torch.equal(torch.get_rng_state(), state)


class ReadsTheGraph(DGLStack):
    """Takes the graph alone, and its features under a name of its own."""

    def forward(self, graph: Any) -> Tensor:  # type: ignore[override]
        return super().forward(graph, graph.ndata["bag_of_words"])


class OddNames(DGLStack):
    def forward(self, network: Any, signals: Tensor, *, scale: float = 1.0) -> Tensor:  # type: ignore[override]
        return super().forward(network, scale * signals)


class KeepsTheGraph(DGLStack):
    """As in DGL's first examples: the graph is part of the model."""

    def forward(self, features: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(self.g, features)


@pytest.mark.parametrize("kind", [ReadsTheGraph, OddNames, KeepsTheGraph])
def test_models_are_called_as_they_ask(kind: type[DGLStack], graph: Any) -> None:
    torch.manual_seed(0)
    plain = DGLStack(PAIRS["GraphConv"][0])
    model = kind(PAIRS["GraphConv"][0])
    expected = virgo.plan(plain, graph, "virgo").variances
    model.g = graph
    if kind is ReadsTheGraph:
        graph.ndata["bag_of_words"] = graph.ndata.pop("feat")
    assert virgo.plan(model, graph, "virgo").variances == expected
    assert virgo.plan(model, graph).choice is not None


def test_forward_and_loss_see_the_graph(graph: Any) -> None:
    model = DGLStack(PAIRS["GraphConv"][0])
    calls: list[Any] = []

    def forward(model: nn.Module, g: Any) -> Tensor:
        calls.append(g)
        return model(g, g.ndata["feat"])

    def loss(output: Tensor, g: Any) -> Tensor:
        return nn.functional.cross_entropy(output, g.ndata["label"])

    plan = virgo.plan(model, graph, forward=forward, loss=loss)
    assert plan.choice is not None
    assert plan.choice["loss"] == "given"
    assert calls
    assert all(isinstance(g, dgl.DGLGraph) for g in calls)
    graph.ndata["train_mask"][:] = True
    default = virgo.plan(model, graph).choice
    assert default is not None
    assert default["loss"] == "cross-entropy"
    assert default["before"] == plan.choice["before"] or default["before"][0] == pytest.approx(
        plan.choice["before"][0], rel=1e-5
    )


class Weighted(DGLStack):
    def forward(self, g: Any, feat: Tensor, edge_weight: Tensor) -> Tensor:  # type: ignore[override]
        return self.through(feat, lambda conv, x: conv(g, x, edge_weight=edge_weight))


def test_edge_weights_count(data: Data, graph: Any) -> None:
    """DGL's GraphConv counts edges whatever they weigh, so weights of 2 quarter the variances."""
    ours, model = DGLStack(PAIRS["GraphConv"][0]), Weighted(PAIRS["GraphConv"][0])
    plain = virgo.plan(ours, graph, "virgo-forward").variances
    graph.edata["w"] = torch.full((graph.num_edges(),), 2.0)
    weighted = virgo.plan(model, graph, "virgo-forward").variances
    assert weighted == pytest.approx({k: v / 4 for k, v in plain.items()}, rel=1e-9)


def test_an_activation_inside_the_layer_is_read(graph: Any) -> None:
    class Inside(DGLStack):
        def through(self, x: Tensor, call: Callable[[nn.Module, Tensor], Tensor]) -> Tensor:
            for conv in self.convs:
                x = call(conv, x)
            return x

    for activation in (torch.tanh, torch.relu):
        model = Inside(lambda i, o, phi=activation: dgl_nn.GraphConv(i, o, activation=phi))
        model.convs[-1]._activation = None
        plan = virgo.plan(model, graph, "virgo-forward")
        assert plan.nonlinearity == activation.__name__
        assert plan.num_classes == CLASSES
    outside = virgo.plan(DGLStack(PAIRS["GraphConv"][0]), graph, "virgo-forward")
    assert plan.variances == outside.variances


class Rewires(DGLStack):
    def forward(self, g: Any, feat: Tensor) -> Tensor:
        return super().forward(dgl.add_self_loop(g), feat)


def test_edges_made_inside_the_model_are_measured(graph: Any) -> None:
    model = Rewires(PAIRS["GraphConv"][0])
    with pytest.raises(virgo.LayerError, match="edges other than the data's"):
        virgo.plan(model, graph, "virgo")
    assert virgo.init_(model, graph).choice is not None


def test_what_cannot_be_run_says_so(graph: Any) -> None:
    class Wants(DGLStack):
        def forward(self, g: Any, feat: Tensor, positions: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(g, feat + positions)

    with pytest.raises(virgo.LayerError, match="'positions' is nowhere in the graph"):
        virgo.plan(Wants(PAIRS["GraphConv"][0]), graph)
    model = DGLStack(PAIRS["GraphConv"][0])
    edges = {("a", "to", "b"): ([0], [0]), ("b", "to", "a"): ([0], [0])}
    with pytest.raises(virgo.GraphError, match=r"dgl\.to_homogeneous"):
        virgo.plan(model, dgl.heterograph(edges))
    with pytest.raises(virgo.GraphError, match="one kind of node"):
        virgo.plan(model, dgl.to_block(graph))
    with pytest.raises(virgo.GraphError, match="at least one edge"):
        virgo.plan(model, dgl.graph(([], []), num_nodes=3))


def test_check_and_measure_take_it(graph: Any) -> None:
    ours, _, _ = stacks("GraphConv")
    virgo.init_(ours, graph, "virgo-forward")
    report = virgo.check(ours, graph)
    assert "convs.2" in str(report)
    assert virgo.measure(ours, graph).forward


class Pooled(nn.Module):
    """One output per graph of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = dgl_nn.SAGEConv(FEATURES, 8, "mean"), nn.Linear(8, 2)

    def forward(self, g: Any, h: Tensor) -> Tensor:
        with g.local_scope():
            g.ndata["out"] = self.conv(g, h).relu()
            return self.head(dgl.mean_nodes(g, "out"))


def test_lists_and_loaders_of_graphs(graph: Any) -> None:
    parts = [dgl.node_subgraph(graph, range(i, i + 30)) for i in range(0, 150, 30)]
    labels = torch.tensor([0, 1, 0, 1, 1])
    plan = virgo.plan(Pooled(), parts, "virgo-forward")
    assert plan.graph["nodes"] == 150
    assert plan.graph["sampled"]["of"] == 5
    assert virgo.plan(Pooled(), parts, max_graphs=2).graph["nodes"] == 60
    pairs = list(zip(parts, labels, strict=True))
    assert virgo.plan(Pooled(), pairs).graph["nodes"] == 150
    loader = dgl.dataloading.GraphDataLoader(pairs, batch_size=5)
    choice = virgo.plan(Pooled(), loader).choice
    assert choice is not None
    assert choice["loss"] == "cross-entropy"
    outputs: list[Tensor] = []
    virgo.plan(
        Pooled(), parts, forward=lambda m, g: outputs.append(m(g, g.ndata["feat"])) or outputs[-1]
    )
    assert max(len(output) for output in outputs) == 5


def test_a_sample_keeps_no_node_that_receives_nothing(data: Data) -> None:
    """DGL's layers refuse those."""
    plain = copy.copy(data)
    plain.edge_index = data.edge_index[:, data.edge_index[0] != data.edge_index[1]]
    plain.edge_type = torch.zeros(plain.edge_index.size(1), dtype=torch.long)
    graph = to_dgl(plain)
    graph = dgl.node_subgraph(graph, torch.nonzero(graph.in_degrees())[:, 0])
    sample = reading.read(graph).neighbourhood(40, seed=1)
    assert 2 <= sample.num_nodes <= 40
    rebuilt = sample.data.to_dgl()
    assert rebuilt.num_nodes() == sample.num_nodes
    assert int(rebuilt.in_degrees().min()) >= 1
    few = reading.read(graph).few_nodes().data.to_dgl()
    assert int(few.in_degrees().min()) >= 1
    assert len(few.edata["etype"]) == few.num_edges()


def test_a_cached_sgconv_forgets_the_watched_nodes(graph: Any) -> None:
    model = dgl_nn.SGConv(FEATURES, CLASSES, k=2, cached=True)
    plan = virgo.init_(model, graph, "virgo-forward")
    assert [row.weight for row in plan.rows] == ["fc.weight"]
    assert model._cached_h is None
    assert model(graph, graph.ndata["feat"]).shape == (graph.num_nodes(), CLASSES)

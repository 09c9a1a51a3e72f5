"""Every variance of a plan equals an independent dense float64 computation.

The oracle below is written from the paper's formulas with dense numpy matrices; it imports nothing
of Virgo. Tolerance: 1e-9 relative, as the issue asks. Both sides sum in float64, where five hops
over a few dozen nodes cannot lose more than a thousand roundings, 1e-13.
"""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from kit.networks import Stack
from kit.reference_bits import METHODS
from scipy import integrate
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data
from torch_geometric.nn import (
    GCN,
    GIN,
    AGNNConv,
    ClusterGCNConv,
    GCNConv,
    GINConv,
    GraphConv,
    GraphSAGE,
    LEConv,
    SAGEConv,
    Sequential,
    SGConv,
    global_mean_pool,
)

import virgo
from virgo.network import reading

CLASSES = 6
Matrix = np.ndarray
Part = tuple[Matrix, str, int, int]  # operator, weight, fan in, fan out
Stages = list[list[Part]]


pytestmark = pytest.mark.usefixtures("one_thread")


def close(expected: Any) -> Any:
    return pytest.approx(expected, rel=1e-9, abs=0.0)


# --- graphs --------------------------------------------------------------------------------


def graph(
    seed: int = 0,
    nodes: int = 24,
    edges: int = 70,
    features: int = 5,
    *,
    weighted: bool = False,
    undirected: bool = False,
    labels: bool = True,
    offset: float = 0.0,
) -> Data:
    """Distinct edges without self-loops in random order; features nonnegative unless shifted."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randperm(nodes * nodes, generator=generator)
    pairs = torch.stack([codes // nodes, codes % nodes])
    edge_index = pairs[:, pairs[0] != pairs[1]][:, :edges]
    if undirected:
        edge_index = torch.cat([edge_index, edge_index.flip(0)], 1).unique(dim=1)
    x = torch.rand(nodes, features, generator=generator, dtype=torch.float64) ** 2 - offset
    data = Data(x=x, edge_index=edge_index)
    if weighted:
        data.edge_weight = 0.2 + 3 * torch.rand(
            edge_index.size(1), generator=generator, dtype=torch.float64
        )
    if labels:
        data.y = torch.arange(nodes) % CLASSES
    return data


GRAPHS = {
    "directed": lambda: graph(1),
    "weighted": lambda: graph(2, weighted=True),
    "undirected": lambda: graph(3, undirected=True),
}


# --- the oracle: operators -----------------------------------------------------------------


def dense(data: Data, *, weighted: bool = True) -> Matrix:
    """``A``, rows are targets."""
    found = np.zeros((data.num_nodes, data.num_nodes))
    weight = data.get("edge_weight") if weighted else None
    for edge, (source, target) in enumerate(data.edge_index.T.tolist()):
        found[target, source] += 1.0 if weight is None else weight[edge].item()
    return found


def gcn_operator(a: Matrix) -> Matrix:
    loops = a + np.eye(len(a))
    scale = np.diag(loops.sum(1) ** -0.5)
    return scale @ loops @ scale


def mean_operator(a: Matrix) -> Matrix:
    return np.diag(1 / np.maximum(a.sum(1), 1)) @ a


def cluster_operator(a: Matrix, diag_lambda: float) -> Matrix:
    averaged = mean_operator(a + np.eye(len(a)))
    return averaged + diag_lambda * np.diag(np.diag(averaged))


# --- the oracle: variances -----------------------------------------------------------------


def unit(x: Matrix) -> Matrix:
    return x / np.sqrt(x @ x)


def together(vectors: list[Matrix]) -> Matrix:
    """Independent signals: squares add."""
    return vectors[0] if len(vectors) == 1 else np.sqrt(sum(v**2 for v in vectors))


def walk(stages: Stages, start: Matrix, *, transpose: bool) -> tuple[list[float], Matrix]:
    """Through the stages of one layer: the ratio of squared norms of each, and the end."""
    ratios, a = [], start
    for stage in stages[::-1] if transpose else stages:
        parts = [(p.T if transpose else p) @ a for p, *_ in stage]
        ratios.append((a @ a) / sum(part @ part for part in parts))
        a = together(parts)
    return ratios[::-1] if transpose else ratios, a


def ratios_of(
    layers: list[Stages],
    start: Matrix,
    sources: list[list[int]],
    starts: list[bool],
    *,
    transpose: bool,
) -> list[list[float]]:
    """Ratios of every stage where layer ``i`` receives the layers ``sources[i]``.

    Several sources are weighed equally, since Virgo's target is that they are equally strong.
    """
    ends: dict[int, Matrix] = {}
    found: dict[int, list[float]] = {}
    for i in range(len(layers))[:: -1 if transpose else 1]:
        arriving = [unit(ends[j]) for j in sources[i]] + ([unit(start)] if starts[i] else [])
        found[i], ends[i] = walk(layers[i], together(arriving), transpose=transpose)
    return [found[i] for i in range(len(layers))]


def oracle(
    layers: list[Stages],
    h0: Matrix,
    method: str,
    *,
    num_classes: int | None = CLASSES,
    gain: float = 2.0,
    parents: list[list[int]] | None = None,
    from_input: Sequence[int] = (0,),
    to_output: Sequence[int] | None = None,
) -> list[tuple[str, float]]:
    """Theorems 3 and 4 and the classic methods, a (weight, variance) for every use."""
    count, nodes = len(layers), len(h0)
    parents = parents or [[], *([i] for i in range(count - 1))]
    to_output = (count - 1,) if to_output is None else to_output
    children = [[j for j in range(count) if i in parents[j]] for i in range(count)]
    begins = [i in from_input for i in range(count)]
    ends = [i in to_output for i in range(count)]
    ahead = ratios_of(layers, h0, parents, begins, transpose=False)
    back = ratios_of(layers, np.ones(nodes), children, ends, transpose=True)
    made = []
    for i, stages in enumerate(layers):
        for s, stage in enumerate(stages):
            is_last = i == count - 1 and s == len(stages) - 1
            for _, name, fan_in, fan_out in stage:
                forward = gain / fan_in * ahead[i][s]
                backward = gain / fan_out * back[i][s]
                if is_last and num_classes is not None:
                    # back is ||1||^2 / ||P^T 1||^2, and ||1||^2 is N
                    backward = back[i][s] / (num_classes - 1)
                value = {
                    "lecun": 1 / (3 * fan_in),
                    "xavier": 2 / (fan_in + fan_out),
                    "kaiming-forward": gain / fan_in,
                    "kaiming-backward": gain / fan_out,
                    "virgo-forward": forward,
                    "virgo-backward": backward,
                    "virgo": 2 / (1 / forward + 1 / backward),
                }[method]
                made.append((name, value))
    return made


# --- layers, with what they are to the oracle ----------------------------------------------

Made = tuple[nn.Module, Callable[[str, Data], Stages]]


def make_gcn(i: int, o: int) -> Made:
    return GCNConv(i, o), lambda p, d: [[(gcn_operator(dense(d)), f"{p}.lin.weight", i, o)]]


def make_sg(i: int, o: int) -> Made:
    def stages(p: str, d: Data) -> Stages:
        return [[(np.linalg.matrix_power(gcn_operator(dense(d)), 2), f"{p}.lin.weight", i, o)]]

    return SGConv(i, o, K=2), stages


def make_sage(i: int, o: int, *, aggr: str = "mean", root: bool = True) -> Made:
    def stages(p: str, d: Data) -> Stages:
        a = dense(d, weighted=False)
        neighbours = mean_operator(a) if aggr == "mean" else a
        parts = [(neighbours, f"{p}.lin_l.weight", i, o)]
        return [[*parts, (np.eye(len(a)), f"{p}.lin_r.weight", i, o)] if root else parts]

    return SAGEConv(i, o, aggr=aggr, root_weight=root), stages


def make_projecting(i: int, o: int) -> Made:
    """SAGE's projection is a stage before the sum."""

    def stages(p: str, d: Data) -> Stages:
        project = [(np.eye(d.num_nodes), f"{p}.lin.weight", i, i)]
        return [project, *make_sage(i, o)[1](p, d)]

    return SAGEConv(i, o, project=True), stages


def make_graph(i: int, o: int) -> Made:
    def stages(p: str, d: Data) -> Stages:
        a = dense(d)
        return [[(a, f"{p}.lin_rel.weight", i, o), (np.eye(len(a)), f"{p}.lin_root.weight", i, o)]]

    return GraphConv(i, o), stages


def make_cluster(i: int, o: int) -> Made:
    def stages(p: str, d: Data) -> Stages:
        operator = cluster_operator(dense(d, weighted=False), 0.5)
        root = (np.eye(len(operator)), f"{p}.lin_root.weight", i, o)
        return [[(operator, f"{p}.lin_out.weight", i, o), root]]

    return ClusterGCNConv(i, o, diag_lambda=0.5), stages


def make_le(i: int, o: int) -> Made:
    def stages(p: str, d: Data) -> Stages:
        a = dense(d)
        operators = (a, np.diag(a.sum(1)), np.eye(len(a)))
        return [[(op, f"{p}.lin{k}.weight", i, o) for k, op in enumerate(operators, 1)]]

    return LEConv(i, o), stages


def make_gin(i: int, o: int, *, inner: tuple[int, ...] = (4,), eps: float = 0.25) -> Made:
    # an eps that float32 holds exactly: that is the one the layer computes with
    widths = (i, *(i + extra for extra in inner), o)
    pairs = list(itertools.pairwise(widths))
    blocks = [block for a, b in pairs for block in (nn.Linear(a, b), nn.ReLU())][:-1]

    def stages(p: str, d: Data) -> Stages:
        a = dense(d, weighted=False)
        eye = np.eye(len(a))
        return [
            [(a + (1 + eps) * eye if k == 0 else eye, f"{p}.nn.{2 * k}.weight", fan_in, fan_out)]
            for k, (fan_in, fan_out) in enumerate(pairs)
        ]

    return GINConv(nn.Sequential(*blocks), eps=eps), stages


MAKERS: dict[str, Callable[[int, int], Made]] = {
    "gcn": make_gcn,
    "sg": make_sg,
    "sage": make_sage,
    "sage-sum": lambda i, o: make_sage(i, o, aggr="sum"),
    "sage-no-root": lambda i, o: make_sage(i, o, root=False),
    "sage-project": make_projecting,
    "graph": make_graph,
    "cluster": make_cluster,
    "le": make_le,
    "gin": make_gin,
    "gin-deep": lambda i, o: make_gin(i, o, inner=(4, 2)),
}


WIDTHS = (5, 11, 7, 9, 13, 3)  # all different; the last is replaced by the number of classes


def stack(makers: Sequence[Callable[[int, int], Made]], data: Data) -> tuple[Stack, list[Stages]]:
    widths = [*WIDTHS[: len(makers)], CLASSES]
    made = [make(i, o) for make, i, o in zip(makers, widths, widths[1:], strict=False)]
    layers = [stages(f"convs.{k}", data) for k, (_, stages) in enumerate(made)]
    return Stack([conv for conv, _ in made]), layers


def mean_features(data: Data) -> Matrix:
    return data.x.double().numpy().mean(1)


def assert_plans(
    model: nn.Module, data: Any, layers: list[Stages], h0: Matrix, options: Any = None, **more: Any
) -> None:
    """All seven methods against the oracle, the order of rows included."""
    for method in METHODS:
        expected = oracle(layers, h0, method, **more)
        plan = virgo.plan(model, data, method, **(options or {}))
        assert list(plan.variances) == [name for name, _ in expected]
        assert plan.variances == close(dict(expected)), method


# --- stacks --------------------------------------------------------------------------------


@pytest.mark.parametrize("which", GRAPHS)
@pytest.mark.parametrize("depth", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", MAKERS)
def test_variances_equal_a_dense_computation(kind: str, depth: int, which: str) -> None:
    data = GRAPHS[which]()
    model, layers = stack([MAKERS[kind]] * depth, data)
    assert_plans(model, data, layers, mean_features(data))


@pytest.mark.parametrize("kind", MAKERS)
def test_without_the_softmax_rule(kind: str) -> None:
    """Where the last layer's output is no logits, Theorem 4's general rule goes to every layer."""
    data = graph(4, weighted=True)
    model, layers = stack([MAKERS[kind]] * 3, data)
    options = {"num_classes": False}
    assert_plans(model, data, layers, mean_features(data), options, num_classes=None)
    with_rule = virgo.plan(model, data, "virgo-backward").variances
    without = virgo.plan(model, data, "virgo-backward", **options).variances
    last = {name for _, name, *_ in layers[-1][-1]}
    for name, variance in with_rule.items():  # it changes the last stage and nothing else
        assert (variance == without[name]) == (name not in last)


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "le"])
def test_root_mean_square_signal(kind: str) -> None:
    data = graph(5, weighted=True)
    model, layers = stack([MAKERS[kind]] * 3, data)
    h0 = np.sqrt((data.x.numpy() ** 2).mean(1))
    assert_plans(model, data, layers, h0, {"signal": "rms"})
    by_mean = virgo.plan(model, data, "virgo-forward").variances
    by_rms = virgo.plan(model, data, "virgo-forward", signal="rms").variances
    assert any(abs(by_mean[k] / by_rms[k] - 1) > 1e-6 for k in by_mean)


@pytest.mark.parametrize("kind", ["gcn", "sg", "sage", "gin"])
def test_features_of_both_signs(kind: str) -> None:
    """A mean feature keeps its sign through one term; several terms add squares."""
    data = graph(6, offset=0.2)
    h0 = mean_features(data)
    assert h0.min() < 0 < h0.max()
    model, layers = stack([MAKERS[kind]] * 2, data)
    assert_plans(model, data, layers, h0)


def test_layers_of_different_kinds_in_one_model() -> None:
    data = graph(7, weighted=True)
    makers = [MAKERS[kind] for kind in ("sage", "gcn", "gin", "le", "graph")]
    model, layers = stack(makers, data)
    assert_plans(model, data, layers, mean_features(data))


def test_backward_uses_transposes() -> None:
    """Negative control: on a directed graph the untransposed operators give other numbers."""
    data = graph(1)
    model, layers = stack([make_sage] * 3, data)
    wrong = [[[(p.T, *rest) for p, *rest in stage] for stage in stages] for stages in layers]
    expected = dict(oracle(wrong, mean_features(data), "virgo-backward"))
    assert virgo.plan(model, data, "virgo-backward").variances != pytest.approx(expected, rel=1e-3)


def test_rows_hold_fans_and_graph_ratio() -> None:
    data = graph(8, weighted=True)
    model, layers = stack([make_gcn, make_sage, make_gin], data)
    h0 = mean_features(data)
    plain = {"virgo-forward": "kaiming-forward", "virgo-backward": "kaiming-backward"}
    for method in METHODS:
        expected = dict(oracle(layers, h0, method))
        base = dict(oracle(layers, h0, plain.get(method, method), num_classes=None))
        if method == "virgo":
            pairs = (dict(oracle(layers, h0, m)) for m in plain.values())
            base = {k: 2 / (1 / a + 1 / b) for (k, a), b in zip(*_items(pairs), strict=True)}
        for row in virgo.plan(model, data, method).rows:
            _, _, fan_in, fan_out = next(
                part for st in layers for stage in st for part in stage if part[1] == row.weight
            )
            assert (row.fan_in, row.fan_out) == (fan_in, fan_out)
            assert row.shape == (fan_out, fan_in)
            assert row.ratio == close(expected[row.weight] / base[row.weight])
            assert row.std == close(math.sqrt(expected[row.weight]))


def _items(pairs: Iterator[dict[str, float]]) -> tuple[Any, Any]:
    first, second = pairs
    return first.items(), second.values()


def test_a_cached_layer_is_planned_for_the_graph_it_is_given() -> None:
    old, new = graph(9), graph(10)
    model = Stack([GCNConv(5, 8, cached=True), SGConv(8, CLASSES, K=2, cached=True)])
    model(old.x.float(), old.edge_index)
    layers = [make_gcn(5, 8)[1]("convs.0", new), make_sg(8, CLASSES)[1]("convs.1", new)]
    kept = model.convs[0]._cached_edge_index
    assert_plans(model, new, layers, mean_features(new))
    assert model.convs[0]._cached_edge_index is kept


# --- models that users write ---------------------------------------------------------------


class OutOfOrder(nn.Module):
    """Declared last to first, and one layer that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.last = GCNConv(7, CLASSES)
        self.unused = SAGEConv(3, 3)
        self.second = GCNConv(11, 7)
        self.first = GCNConv(5, 11)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(x, edge_index).relu()
        return self.last(self.second(x, edge_index).relu(), edge_index)


def test_layers_count_in_the_order_they_run() -> None:
    data = graph(11)
    operator = gcn_operator(dense(data))
    widths = {"first": (5, 11), "second": (11, 7), "last": (7, CLASSES)}
    layers = [[[(operator, f"{name}.lin.weight", *fans)]] for name, fans in widths.items()]
    model = OutOfOrder()
    assert_plans(model, data, layers, mean_features(data))
    left = dict(virgo.plan(model, data, "virgo-backward").left_alone)
    assert left["unused.lin_l.weight"] == "its layer did not run"
    declared = [layers[2], layers[1], layers[0]]
    wrong = dict(oracle(declared, mean_features(data), "virgo-forward"))
    assert virgo.plan(model, data, "virgo-forward").variances != pytest.approx(wrong, rel=1e-3)


class Recurrent(nn.Module):
    """The middle layer runs twice, with another layer between its uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle = GCNConv(5, 8), SAGEConv(8, 8)
        self.between, self.last = GCNConv(8, 8), GCNConv(8, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for layer in (self.first, self.middle, self.between, self.middle):
            x = layer(x, edge_index).relu()
        return self.last(x, edge_index)


def test_a_layer_used_twice_is_one_row_with_the_geometric_mean() -> None:
    """Of the two variances its uses ask for; the product over the network is then unchanged."""
    data = graph(12)
    layers = [
        make_gcn(5, 8)[1]("first", data),
        make_sage(8, 8)[1]("middle", data),
        make_gcn(8, 8)[1]("between", data),
        make_sage(8, 8)[1]("middle", data),
        make_gcn(8, CLASSES)[1]("last", data),
    ]
    for method in METHODS:
        uses: dict[str, list[float]] = {}
        for name, variance in oracle(layers, mean_features(data), method):
            uses.setdefault(name, []).append(variance)
        plan = virgo.plan(Recurrent(), data, method)
        expected = {name: math.prod(v) ** (1 / len(v)) for name, v in uses.items()}
        assert plan.variances == close(expected)
        assert {row.weight: row.uses for row in plan.rows} == {k: len(v) for k, v in uses.items()}
        assert len(uses["middle.lin_l.weight"]) == 2
        if method == "virgo-forward":
            one, two = uses["middle.lin_l.weight"]
            assert abs(one / two - 1) > 1e-3  # or the mean would say nothing
    assert "lin_l.weight x2" in str(plan)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([GCNConv(5, 8), GCNConv(8, 8), SAGEConv(8, 8), GCNConv(8, 4)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.convs[0](x, edge_index).relu()
        for conv in self.convs[1:3]:
            h = h + conv(h, edge_index).relu()
        return self.convs[3](h, edge_index)


def test_residual_branches_are_weighed_equally() -> None:
    data = graph(13, labels=False)
    makers = [make_gcn(5, 8), make_gcn(8, 8), make_sage(8, 8), make_gcn(8, 4)]
    layers = [stages(f"convs.{k}", data) for k, (_, stages) in enumerate(makers)]
    parents = [[], [0], [0, 1], [0, 1, 2]]
    assert_plans(Residual(), data, layers, mean_features(data), num_classes=None, parents=parents)


class NGNN(nn.Module):
    """A linear layer inserted after each but the last convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([SAGEConv(5, 11), SAGEConv(7, CLASSES)])
        self.inserted = nn.Linear(11, 7)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.inserted(self.convs[0](x, edge_index).relu()).relu()
        return self.convs[1](x, edge_index)


def test_linear_layers_between_are_left_alone() -> None:
    data = graph(14)
    layers = [make_sage(5, 11)[1]("convs.0", data), make_sage(7, CLASSES)[1]("convs.1", data)]
    model = NGNN()
    assert_plans(model, data, layers, mean_features(data))
    before = model.inserted.weight.detach().clone(), model.inserted.bias.detach().clone()
    plan = virgo.init_(model, data, "virgo-backward")
    assert torch.equal(model.inserted.weight, before[0])
    assert torch.equal(model.inserted.bias, before[1])
    left = dict(plan.left_alone)
    assert left["inserted.weight"] == "a linear layer outside message passing"
    assert "inserted.bias" in left


def test_pyg_sequential() -> None:
    data = graph(15, weighted=True)
    model = Sequential(
        "x, edge_index, edge_weight",
        [
            (GCNConv(5, 8), "x, edge_index, edge_weight -> x"),
            nn.ReLU(inplace=True),
            (SAGEConv(8, CLASSES), "x, edge_index -> x"),
        ],
    )
    paths = [name for name, module in model.named_modules() if hasattr(module, "propagate")]
    layers = [make_gcn(5, 8)[1](paths[0], data), make_sage(8, CLASSES)[1](paths[1], data)]
    assert_plans(model, data, layers, mean_features(data))


# --- PyG's own models ----------------------------------------------------------------------

BASIC: dict[str, tuple[type[nn.Module], Callable[[int, int], Made]]] = {
    "gcn": (GCN, make_gcn),
    "sage": (GraphSAGE, make_sage),
    "gin": (GIN, lambda i, o: make_gin(i, o, inner=(o - i,), eps=0.0)),
}


def basic(kind: str, widths: Sequence[int], data: Data) -> list[Stages]:
    """The oracle's view of a PyG model; the inner layers of its GIN are called ``lins``."""
    made = []
    for k, (i, o) in enumerate(itertools.pairwise(widths)):
        stages = BASIC[kind][1](i, o)[1](f"convs.{k}", data)
        renamed = [
            [
                (p, name.replace(".nn.2.", ".nn.lins.1.").replace(".nn.0.", ".nn.lins.0."), *fans)
                for p, name, *fans in stage
            ]
            for stage in stages
        ]
        made.append(renamed)
    return made


@pytest.mark.parametrize("kind", BASIC)
@pytest.mark.parametrize("norm", [None, "batch", "layer", "graph_norm"])
def test_pyg_models_with_norms(kind: str, norm: str | None) -> None:
    """A norm between layers changes no plan: the theory does not know it, and says so elsewhere."""
    data = graph(16)
    model = BASIC[kind][0](5, 8, num_layers=3, out_channels=CLASSES, norm=norm)
    layers = basic(kind, [5, 8, 8, CLASSES], data)
    assert_plans(model, data, layers, mean_features(data))
    left = dict(virgo.plan(model, data, "virgo-backward").left_alone)
    owners = {name.rpartition(".")[0] for name in left}
    assert all("norm" in owner for owner in owners)
    assert bool(owners) == (norm is not None)


@pytest.mark.parametrize("kind", BASIC)
@pytest.mark.parametrize("jk", ["last", "cat", "max", "lstm"])
def test_pyg_models_with_jumping_knowledge(kind: str, jk: str) -> None:
    """Every layer that jumps receives the output's gradient and its successor's, equally."""
    data = graph(17)
    model = BASIC[kind][0](5, 8, num_layers=3, out_channels=CLASSES, jk=jk)
    layers = basic(kind, [5, 8, 8, 8], data)
    jumps = (2,) if jk == "last" else (0, 1, 2)
    assert_plans(model, data, layers, mean_features(data), num_classes=None, to_output=jumps)
    left = dict(virgo.plan(model, data, "virgo-backward").left_alone)
    assert left["lin.weight"] == "a linear layer outside message passing"


@pytest.mark.parametrize("act", ["relu", None])
def test_without_an_activation_to_be_seen_it_is_relu(act: str | None) -> None:
    data = graph(18)
    model = GCN(5, 8, num_layers=3, out_channels=CLASSES, act=act)
    layers = basic("gcn", [5, 8, 8, CLASSES], data)
    assert_plans(model, data, layers, mean_features(data))


# --- the softmax rule: where it applies ----------------------------------------------------


class Ending(nn.Module):
    def __init__(self, end: Callable[[Tensor], Tensor], width: int = CLASSES) -> None:
        super().__init__()
        self.conv = GCNConv(5, width)
        self.end = end

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.end(self.conv(x, edge_index))


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (lambda h: h, CLASSES),
        (lambda h: F.log_softmax(h, dim=-1), CLASSES),
        (lambda h: h.softmax(-1), CLASSES),
        (lambda h: h.relu(), None),
        (lambda h: h.tanh(), None),
        (lambda h: h.mean(0, keepdim=True), None),
        (lambda h: global_mean_pool(h, None), None),
    ],
    ids=["logits", "log-softmax", "softmax", "relu", "tanh", "mean", "pool"],
)
def test_classes_are_inferred_only_where_the_last_output_is_the_logits(
    end: Callable[[Tensor], Tensor], expected: int | None
) -> None:
    data = graph(19)
    assert virgo.plan(Ending(end), data, "virgo-backward").num_classes == expected


def test_classes_are_not_inferred_from_what_are_no_classes() -> None:
    model, data = Ending(lambda h: h), graph(20)
    assert virgo.plan(model, data, "virgo-backward").num_classes == CLASSES
    for y in (None, torch.rand(24), torch.rand(24, 3), torch.full((24,), CLASSES)):
        data.y = y
        assert virgo.plan(model, data, "virgo-backward").num_classes is None
    assert virgo.plan(model, data, "virgo-backward", num_classes=CLASSES).num_classes == CLASSES
    assert virgo.plan(model, data, "virgo-backward", num_classes=True).num_classes == CLASSES


@pytest.mark.parametrize("said", [0, 1])
def test_fewer_than_two_classes_are_refused(said: int) -> None:
    with pytest.raises(virgo.OptionError, match=r"num_classes: expected at least 2.*False"):
        virgo.plan(Ending(lambda h: h), graph(20), "virgo-backward", num_classes=said)


# --- what data may be ----------------------------------------------------------------------


def sparse(index: Tensor, values: Tensor, size: tuple[int, int], layout: torch.layout) -> Tensor:
    with warnings.catch_warnings():  # torch says once a process that CSR is in beta
        warnings.simplefilter("ignore")
        coo = torch.sparse_coo_tensor(index, values, size).coalesce()
        return coo if layout == torch.sparse_coo else coo.to_sparse(layout=layout)


def adjacency(data: Data, layout: torch.layout = torch.sparse_csr) -> Tensor:
    weight = data.get("edge_weight")
    values = torch.ones(data.num_edges) if weight is None else weight
    return sparse(data.edge_index.flip(0), values.float(), (data.num_nodes,) * 2, layout)


def sparse_features(data: Data, layout: torch.layout) -> Tensor:
    index = data.x.nonzero().T
    return sparse(index, data.x[tuple(index)], tuple(data.x.shape), layout)


FORMS: dict[str, Callable[[Data], Any]] = {
    "tuple": lambda d: (d.x, d.edge_index),
    "tuple-of-none": lambda d: (d.x, d.edge_index, None),
    "adj_t": lambda d: Data(x=d.x, adj_t=adjacency(d)),
    "adj_t-in-a-tuple": lambda d: (d.x, adjacency(d)),
    "EdgeIndex": lambda d: Data(x=d.x, edge_index=EdgeIndex(d.edge_index, sparse_size=(24, 24))),
    "sorted-EdgeIndex": lambda d: (
        d.x,
        EdgeIndex(d.edge_index, sparse_size=(24, 24)).sort_by("col")[0],
    ),
    "x-coo": lambda d: Data(x=sparse_features(d, torch.sparse_coo), edge_index=d.edge_index),
    "x-csr": lambda d: Data(x=sparse_features(d, torch.sparse_csr), edge_index=d.edge_index),
    "x-integer": lambda d: Data(x=d.x.long(), edge_index=d.edge_index),
    "x-integer-coo": lambda d: Data(
        x=sparse_features(Data(x=d.x.long()), torch.sparse_coo), edge_index=d.edge_index
    ),
    "x-bool-counts": lambda d: Data(x=d.x.to(torch.uint8), edge_index=d.edge_index),
    "shuffled-edges": lambda d: Data(x=d.x, edge_index=d.edge_index.flip(1)),
    "int32-edges": lambda d: Data(x=d.x, edge_index=d.edge_index.int()),
    "list-of-one": lambda d: [d],
    "batch-of-one": lambda d: Batch.from_data_list([d]),
}


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_data_gives_the_same_plan(form: str, kind: str) -> None:
    """Features are small integers with zeros, so that every form can hold them exactly."""
    data = graph(21)
    data.x = (data.x * 6).floor()
    model, _ = stack([MAKERS[kind]] * 3, data)
    for method in ("virgo-forward", "virgo-backward", "virgo"):
        expected = virgo.plan(model, data, method, num_classes=CLASSES).variances
        found = virgo.plan(model, FORMS[form](data), method, num_classes=CLASSES).variances
        assert found == close(expected)


@pytest.mark.parametrize("kind", ["gcn", "graph", "le", "sg"])
def test_weights_in_a_tuple_and_in_a_sparse_adjacency(kind: str) -> None:
    data = graph(22, weighted=True)
    data.edge_weight = data.edge_weight.float().double()
    model, layers = stack([MAKERS[kind]] * 3, data)
    options = {"num_classes": CLASSES}
    for form in ((data.x, data.edge_index, data.edge_weight), (data.x, adjacency(data))):
        assert_plans(model, form, layers, mean_features(data), options)
    unweighted = virgo.plan(model, (data.x, data.edge_index), "virgo").variances
    weighted = virgo.plan(model, data, "virgo").variances
    assert unweighted != pytest.approx(weighted, rel=1e-3)


class Odd(nn.Module):
    """Weights under another name, shape ``[E, 1]``."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([GCNConv(5, CLASSES)])

    def forward(self, graph: Data) -> Tensor:
        return self.convs[0](graph.x, graph.edge_index, graph.edge_attr.view(-1))


def test_edge_weights_are_found_under_whatever_name_the_model_uses() -> None:
    data = graph(23, weighted=True)
    layers = [make_gcn(5, CLASSES)[1]("convs.0", data)]
    named = Data(
        x=data.x, edge_index=data.edge_index, edge_attr=data.edge_weight[:, None], y=data.y
    )
    assert_plans(Odd(), named, layers, mean_features(data))


def test_edge_weights_are_not_mistaken_for_a_tensor_that_starts_like_them() -> None:
    """The watched pass sees 32 edges; another tensor may agree with the weights on those."""
    data = graph(24, edges=200)
    data.edge_weight = torch.full((200,), 10.0, dtype=torch.float64)
    seen = torch.linspace(0, 199, 32, dtype=torch.float64).long()
    data.edge_weight[seen] = 1.0
    with_other = Data(
        x=data.x,
        edge_index=data.edge_index,
        edge_attr=torch.ones(200, dtype=torch.float64),
        edge_weight=data.edge_weight,
        y=data.y,
    )
    model, layers = stack([make_gcn] * 2, data)
    assert_plans(model, with_other, layers, mean_features(data))


def test_more_edges_than_float32_counts_exactly_can_be_watched() -> None:
    """2^24 + 3 rounds up in float32, one past the last edge."""
    edge_index = torch.zeros(2, 2**24 + 4, dtype=torch.int32)
    edge_index[1, -1] = 1
    read = reading.read(Data(x=torch.ones(2, 1), edge_index=edge_index))
    assert read.few_nodes().num_nodes == 2


def several(count: int = 5) -> list[Data]:
    return [graph(30 + k, nodes=10 + k, edges=20 + 2 * k) for k in range(count)]


def side_by_side(graphs: Sequence[Data]) -> Data:
    """The paper's approximation graph, put together by hand."""
    shift, edges = 0, []
    for member in graphs:
        edges.append(member.edge_index + shift)
        shift += member.num_nodes
    return Data(
        x=torch.cat([g.x for g in graphs]),
        edge_index=torch.cat(edges, 1),
        y=torch.cat([g.y for g in graphs]),
    )


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin"])
def test_many_graphs_are_one_approximation_graph(kind: str) -> None:
    graphs = several()
    whole = side_by_side(graphs)
    model, layers = stack([MAKERS[kind]] * 3, whole)
    h0 = mean_features(whole)
    assert_plans(model, whole, layers, h0)
    assert_plans(model, graphs, layers, h0)
    assert_plans(model, Batch.from_data_list(graphs), layers, h0)
    facts = virgo.plan(model, graphs, "virgo-backward").graph
    assert facts["nodes"] == whole.num_nodes
    assert facts["edges"] == whole.num_edges
    assert facts["sampled"]["graphs"] == facts["sampled"]["of"] == 5


def test_sampled_graphs_are_recorded_and_follow_the_seed() -> None:
    graphs = several(8)
    model, _ = stack([make_gcn] * 2, graphs[0])
    plans = [
        virgo.plan(model, graphs, "virgo-backward", max_graphs=3, seed=seed) for seed in range(12)
    ]
    for seed, plan in enumerate(plans):
        facts = plan.graph["sampled"]
        assert (facts["graphs"], facts["of"], facts["seed"]) == (3, 8, seed)
        assert len(set(facts["index"])) == 3
        chosen = [graphs[i] for i in facts["index"]]
        assert plan.variances == virgo.plan(model, chosen, "virgo-backward").variances
        assert plan == virgo.plan(model, graphs, "virgo-backward", max_graphs=3, seed=seed)
        assert virgo.Plan.from_json(plan.to_json()) == plan
    assert len({tuple(plan.graph["sampled"]["index"]) for plan in plans}) > 1
    everything = virgo.plan(model, graphs, "virgo-backward", max_graphs=8)
    assert everything.variances == virgo.plan(model, graphs, "virgo-backward").variances


def test_graphs_are_sampled_uniformly() -> None:
    """600 draws of 2 of 6: each graph is picked Binomial(600, 1/3) times, so its count is within
    5 standard deviations, 5 sqrt(600 * 2/9) = 57.7, of 200 but for a chance of 6 * 6e-7."""
    graphs = [Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]])) for _ in range(6)]
    counts = np.zeros(6)
    for seed in range(600):
        read = reading.read(graphs, max_graphs=2, seed=seed)
        counts[read.sampled["index"]] += 1
    assert counts.sum() == 1200
    assert np.abs(counts - 200).max() < 5 * math.sqrt(600 * 2 / 9)


# --- the released variant ------------------------------------------------------------------


def released(data: Data, widths: Sequence[int], method: str) -> list[float]:
    """What the authors' script computes for each layer, from the reading notes."""
    depth, hidden, nodes = len(widths) - 1, widths[1], data.num_nodes
    operator = gcn_operator(dense(data, weighted=False))
    ahead, back = [mean_features(data)], [np.ones(nodes)]
    for _ in range(depth):
        ahead.append(operator @ ahead[-1])
        back.append(operator @ back[-1])
    f, b = [a @ a for a in ahead], [a @ a for a in back]
    forward = [2 / widths[0]] + [2 / hidden * f[k] / f[k + 1] for k in range(1, depth)]
    backward = [2 / hidden * b[depth - k - 1] / b[depth - k] for k in range(depth - 1)]
    backward.append(nodes / ((CLASSES - 1) * b[1]))
    both = [2 / (1 / v + 1 / w) for v, w in zip(forward, backward, strict=True)]
    return {"virgo-forward": forward, "virgo-backward": backward, "virgo": both}[method]


@pytest.mark.parametrize("which", ["undirected", "weighted"])
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("kind", BASIC)
def test_released_variant(kind: str, depth: int, which: str) -> None:
    data = GRAPHS[which]()
    if kind == "gin":
        data.edge_weight = None
    widths = [5, *[8] * (depth - 1), CLASSES]
    model = BASIC[kind][0](5, 8, num_layers=depth, out_channels=CLASSES)
    names = [[name for stage in st for _, name, *_ in stage] for st in basic(kind, widths, data)]
    for method in ("virgo-forward", "virgo-backward", "virgo"):
        per_layer = released(data, widths, method)
        expected = {n: v for group, v in zip(names, per_layer, strict=True) for n in group}
        plan = virgo.plan(model, data, method, variant="released")
        assert plan.variances == close(expected)
        assert plan.variant == "released"
        assert plan.biases == ()
        assert {reason for _, reason in plan.left_alone} == {"bias='keep'"}
    theorem = virgo.plan(model, data, "virgo-forward").variances
    other = virgo.plan(model, data, "virgo-forward", variant="released").variances
    assert other != pytest.approx(theorem, rel=1e-6)


def test_released_variant_takes_the_first_hidden_width_for_all_later_layers() -> None:
    data = graph(3, undirected=True)
    widths = [5, 11, 7, CLASSES]
    model, _ = stack([make_gcn] * 3, data)
    for method in ("virgo-forward", "virgo-backward", "virgo"):
        plan = virgo.plan(model, data, method, variant="released")
        assert list(plan.variances.values()) == close(released(data, widths, method))


def test_released_variant_leaves_the_middle_of_an_inner_mlp_alone() -> None:
    data = graph(3, undirected=True)
    inner = nn.Sequential(
        nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, CLASSES)
    )
    plan = virgo.plan(Stack([GINConv(inner)]), data, "virgo-forward", variant="released")
    assert plan.variances == close({"convs.0.nn.0.weight": 2 / 5, "convs.0.nn.4.weight": 2 / 5})
    assert "convs.0.nn.2.weight" in dict(plan.left_alone)


def test_released_variant_of_a_projecting_sage_is_that_of_sage() -> None:
    """It sets ``lin_l`` and ``lin_r``; the projection is not the first hidden width."""
    data = graph(3, undirected=True)
    model = GraphSAGE(5, 8, num_layers=3, out_channels=CLASSES, project=True)
    per_layer = released(data, [5, 8, 8, CLASSES], "virgo-forward")
    plan = virgo.plan(model, data, "virgo-forward", variant="released")
    sides = ("lin_l", "lin_r")
    expected = {f"convs.{k}.{s}.weight": v for k, v in enumerate(per_layer) for s in sides}
    found = {name: v for name, v in plan.variances.items() if name.split(".")[2] in sides}
    assert found == close(expected)


def test_released_variant_keeps_biases_in_the_model() -> None:
    data = graph(3, undirected=True)
    model = GraphSAGE(5, 8, num_layers=2, out_channels=CLASSES)
    before = {k: v.detach().clone() for k, v in model.named_parameters() if k.endswith("bias")}
    assert any(v.abs().max() > 0 for v in before.values())
    virgo.init_(model, data, "virgo-forward", variant="released")
    after = dict(model.named_parameters())
    assert all(torch.equal(after[k], v) for k, v in before.items())
    virgo.init_(model, data, "virgo-forward", variant="released", bias="zero")
    assert all(after[k].abs().max() == 0 for k in before)


def test_released_variant_of_classic_methods_is_the_method_itself() -> None:
    data = graph(3)
    model, _ = stack([make_gcn] * 3, data)
    for method in METHODS[:4]:
        expected = virgo.plan(model, data, method).variances
        assert virgo.plan(model, data, method, variant="released").variances == expected


def test_released_backward_needs_a_number_of_classes() -> None:
    data = graph(3, labels=False)
    model, _ = stack([make_gcn] * 3, data)
    with pytest.raises(virgo.OptionError, match=r"num_classes: .*Pass num_classes="):
        virgo.plan(model, data, "virgo-backward", variant="released")


# --- depth ---------------------------------------------------------------------------------


class Deep(nn.Module):
    """A thousand layers, which PyG's models would also do, at the cost of as many norms."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(make() for _ in range(1000))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return x


def test_a_thousand_layers_neither_overflow_nor_underflow() -> None:
    """Far from its start a signal is the leading eigenvector: the ratio is 1 / lambda^2.

    The squared norm of GIN's signal grows beyond 10^308, the largest float64, within 200 layers.
    """
    data = graph(40, nodes=12, edges=60, features=3, undirected=True)
    leading = np.linalg.eigvalsh(dense(data) + np.eye(12)).max()
    assert 2 * 200 * math.log10(leading) > 308
    model = Deep(lambda: GINConv(nn.Linear(3, 3)))
    ahead = virgo.plan(model, data, "virgo-forward")
    back = virgo.init_(model, data, "virgo-backward")
    for plan in (ahead, back):
        assert len(plan.rows) == 1000
        assert all(math.isfinite(v) and v > 0 for v in plan.variances.values())
    assert ahead.rows[-1].ratio == close(leading**-2)
    assert back.rows[0].ratio == close(leading**-2)
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


# --- options -------------------------------------------------------------------------------


def second_moment(phi: Callable[[float], float]) -> float:
    """``E[phi(z)^2]`` by adaptive quadrature, in two halves for the kink at zero."""

    def integrand(z: float) -> float:
        return phi(z) ** 2 * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)

    halves = [integrate.quad(integrand, *ends, epsabs=1e-13)[0] for ends in ((-12, 0), (0, 12))]
    return sum(halves)


def leaky(z: Tensor) -> Tensor:
    return F.leaky_relu(z, 0.3)


@pytest.mark.parametrize(
    ("nonlinearity", "gain"),
    [
        ("relu", 2.0),
        ("ReLU", 2.0),
        ("linear", 1.0),
        ("identity", 1.0),
        ("tanh", 1 / second_moment(math.tanh)),
        (torch.tanh, 1 / second_moment(math.tanh)),
        (nn.Tanh(), 1 / second_moment(math.tanh)),
        (leaky, 2 / (1 + 0.3**2)),
        ("leaky_relu", 2 / (1 + 0.01**2)),
        ("leaky-relu", 2 / (1 + 0.01**2)),
        (lambda z: 3 * z, 1 / 9),
    ],
)
def test_gain_of_the_nonlinearity(nonlinearity: Any, gain: float) -> None:
    data = graph(41)
    model, layers = stack([make_gcn] * 3, data)
    options = {"nonlinearity": nonlinearity}
    assert virgo.plan(model, data, "virgo-backward", **options).gain == close(gain)
    assert_plans(model, data, layers, mean_features(data), options, gain=gain)


def test_an_unknown_nonlinearity_is_refused() -> None:
    data = graph(41)
    model, _ = stack([make_gcn], data)
    with pytest.raises(virgo.OptionError, match=r"nonlinearity: expected .*relu.*got 'rellu'"):
        virgo.plan(model, data, "virgo-backward", nonlinearity="rellu")
    with pytest.raises(virgo.OptionError, match=r"nonlinearity: .*lets a signal through"):
        virgo.plan(model, data, "virgo-backward", nonlinearity=lambda z: 0 * z)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("Virgo_Forward", "virgo-forward"),
        ("VIRGO-FORWARD", "virgo-forward"),
        ("virgo forward", "virgo-forward"),
        ("VirgoFor", "virgo-forward"),
        ("VirgoBack", "virgo-backward"),
        ("virgoBackward", "virgo-backward"),
        ("Virgo", "virgo"),
        ("KaiFor", "kaiming-forward"),
        ("KaiBack", "kaiming-backward"),
        ("kaiming_backward", "kaiming-backward"),
        ("Xavier", "xavier"),
        ("LeCun", "lecun"),
        ("Lecun", "lecun"),
    ],
)
def test_spellings_of_methods(spelling: str, name: str) -> None:
    data = graph(42)
    model, _ = stack([make_gcn] * 2, data)
    assert virgo.plan(model, data, spelling) == virgo.plan(model, data, name)
    assert virgo.plan(model, data, spelling).method == name


@pytest.mark.parametrize("wrong", ["vigro", "", "kaiming", None, 3])
def test_an_unknown_method_lists_the_choices(wrong: Any) -> None:
    data = graph(42)
    model, _ = stack([make_gcn] * 2, data)
    with pytest.raises(virgo.OptionError, match=r"method: expected one of .*got") as caught:
        virgo.plan(model, data, wrong)
    assert all(name in str(caught.value) for name in METHODS)


def test_methods_lists_seven_with_a_line_each() -> None:
    listed = virgo.methods()
    assert set(METHODS) <= set(listed)
    assert all(listed[name] and "\n" not in listed[name] for name in METHODS)


@pytest.mark.parametrize("option", ["variant", "distribution", "signal", "estimate", "bias"])
def test_an_unknown_option_value_lists_the_choices(option: str) -> None:
    data = graph(42)
    model, _ = stack([make_gcn] * 2, data)
    with pytest.raises(virgo.OptionError, match=rf"{option}: expected one of .*got 'nonsense'"):
        virgo.plan(model, data, "virgo-backward", **{option: "nonsense"})


def test_an_unknown_layer_is_refused_with_the_two_ways_out() -> None:
    data = graph(42)
    model = Stack([GCNConv(5, 8), AGNNConv(), GCNConv(8, CLASSES)])
    with pytest.raises(
        virgo.LayerError, match=r"convs\.1: .*AGNNConv.*register_layer.*estimate='measured'"
    ):
        virgo.plan(model, data, "virgo-backward")


def test_a_bare_layer_is_a_model() -> None:
    data = graph(43)
    plan = virgo.plan(SAGEConv(5, CLASSES), data, "virgo-forward")
    layers = [make_sage(5, CLASSES)[1]("", data)]
    expected = {n.removeprefix("."): v for n, v in oracle(layers, mean_features(data), plan.method)}
    assert plan.variances == close(expected)


# --- plans as data -------------------------------------------------------------------------


@pytest.fixture
def planned() -> tuple[nn.Module, Data, virgo.Plan]:
    data = graph(44)
    model = GraphSAGE(5, 8, num_layers=3, out_channels=CLASSES, norm="batch")
    return model, data, virgo.plan(model, data, "virgo-forward", seed=3)


def test_json_has_the_promised_rows(planned: tuple[nn.Module, Data, virgo.Plan]) -> None:
    _, _, plan = planned
    raw = json.loads(plan.to_json())
    assert [row["weight"] for row in raw["rows"]] == list(plan.variances)
    for row, made in zip(raw["rows"], plan.rows, strict=True):
        assert {"weight", "fan_in", "fan_out", "ratio", "variance"} <= set(row)
        assert row["variance"] == made.variance == plan.variances[made.weight]
        assert (row["fan_in"], row["fan_out"]) == (made.fan_in, made.fan_out)
    assert raw["method"] == "virgo-forward"
    assert raw["seed"] == 3
    assert raw["num_classes"] == CLASSES


@pytest.mark.parametrize("indent", [None, 2])
def test_json_reads_back_exactly(
    planned: tuple[nn.Module, Data, virgo.Plan], indent: int | None
) -> None:
    _, _, plan = planned
    again = virgo.Plan.from_json(plan.to_json(indent=indent))
    assert again == plan
    assert str(again) == str(plan)
    assert again.to_json() == plan.to_json()


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "3", '{"format": 1}', "not json"])
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(virgo.PlanError, match=r"plan: expected .*to_json"):
        virgo.Plan.from_json(text)


def test_json_of_another_format_is_refused(planned: tuple[nn.Module, Data, virgo.Plan]) -> None:
    raw = json.loads(planned[2].to_json()) | {"format": 99}
    with pytest.raises(virgo.PlanError, match=r"format 1, got 99"):
        virgo.Plan.from_json(json.dumps(raw))


@pytest.mark.parametrize(
    "distribution", ["uniform", "normal", "truncated", "orthogonal", "mirrored"]
)
def test_applying_a_stored_plan_gives_the_bits_of_init(distribution: str) -> None:
    data = graph(45)

    def fresh() -> nn.Module:
        return GraphSAGE(5, 8, num_layers=3, out_channels=CLASSES, norm="batch")

    one, two, other = fresh(), fresh(), fresh()
    other.load_state_dict(two.state_dict())
    plan = virgo.init_(one, data, "virgo-forward", seed=5, distribution=distribution)
    stored = virgo.Plan.from_json(plan.to_json())
    assert stored.apply_(two) is two
    stored.apply_(other, seed=6)
    planned = {*plan.variances, *plan.biases}
    assert planned
    for (name, a), b, c in zip(
        one.named_parameters(), two.parameters(), other.parameters(), strict=True
    ):
        if name in planned:
            assert torch.equal(a, b), name
        if name in plan.variances:
            assert not torch.equal(a, c), name


def test_a_generator_can_stand_for_the_seed() -> None:
    data = graph(45)
    model, _ = stack([make_gcn] * 2, data)

    def weights(seed: int) -> Tensor:
        virgo.init_(model, data, "virgo-backward", generator=torch.Generator().manual_seed(seed))
        return model.convs[0].lin.weight.detach().clone()

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_planning_touches_nothing() -> None:
    data = graph(46)
    model = GCN(5, 8, num_layers=3, out_channels=CLASSES, norm="batch", dropout=0.5).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.random.get_rng_state()
    x = data.x.clone()
    for method in METHODS:
        virgo.plan(model, data, method)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert model.training
    assert torch.equal(data.x, x)
    assert not data.x.requires_grad
    assert set(data.keys()) == {"x", "edge_index", "y"}


def test_printing_names_weights_and_what_is_left_alone() -> None:
    data = graph(47)
    model = GCN(5, 8, num_layers=3, out_channels=CLASSES, jk="cat", norm="layer")
    model.convs[1].lin.weight.requires_grad_(False)
    text = str(virgo.plan(model, data, "virgo-forward", bias="keep"))
    head, *lines = text.splitlines()
    assert "virgo-forward" in head
    assert "24 nodes" in head
    assert "70 edges" in head
    columns = ("layer", "weight", "fan in", "fan out", "graph ratio", "variance", "std")
    assert all(column in lines[0] for column in columns)
    table = [line.split() for line in lines if line.startswith("convs.")]
    assert [cells[:4] for cells in table] == [
        ["convs.0", "lin.weight", "5", "8"],
        ["convs.2", "lin.weight", "8", "8"],
    ]
    assert "convs.1.lin.weight: frozen" in text
    assert "convs.0.bias: bias='keep'" in text
    assert "lin.weight: a linear layer outside message passing" in text
    assert "norms.0.weight: LayerNorm is not a message-passing layer" in text


def test_every_parameter_is_accounted_for() -> None:
    """Drawn, set to zero or left alone with a reason: nothing is forgotten, nothing twice."""
    data = graph(48)
    for model in (
        GIN(5, 8, num_layers=3, out_channels=CLASSES, norm="batch", jk="lstm", train_eps=True),
        GraphSAGE(5, 8, num_layers=2, project=True),
        NGNN(),
        OutOfOrder(),
    ):
        plan = virgo.plan(model, data, "virgo-backward")
        listed = [*plan.variances, *plan.biases, *(name for name, _ in plan.left_alone)]
        assert sorted(listed) == sorted(name for name, _ in model.named_parameters())
        assert all(reason for _, reason in plan.left_alone)

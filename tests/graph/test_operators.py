"""Every operator is the layer itself, run with identity weights and no bias.

On one-hot features a layer with identity weights returns the matrix of its operator, so each
comparison here is of whole matrices. The layer is PyG's own, in float64, which makes it an oracle:
nothing of Virgo takes part in it.

Tolerance: an entry is a sum of at most a few dozen products of numbers near one, each with a
relative rounding error of 1.1e-16; 1e-12 leaves room for the order of summation and for nothing
else. A wrong degree, loop or direction is off by more than 1e-3 on the graphs below.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import (
    ClusterGCNConv,
    GCNConv,
    GINConv,
    GINEConv,
    GraphConv,
    LEConv,
    SAGEConv,
    SGConv,
)

import virgo
from virgo.experiments.models.convolutions import nonzeros
from virgo.graph import threads
from virgo.graph.operators import Compressed, Graph, Operator
from virgo.network import inputs, reading, trace
from virgo.study import Study

CLOSE = {"rtol": 1e-12, "atol": 1e-12}
Edges = tuple[Tensor, int, Tensor | None]


# --- graphs --------------------------------------------------------------------------------


def _both_ways(pairs: list[tuple[int, int]]) -> Tensor:
    return torch.tensor(pairs + [(j, i) for i, j in pairs]).T.contiguous()


def _random_edges(nodes: int, edges: int, seed: int) -> Tensor:
    """Distinct directed edges without self-loops, in random order."""
    generator = torch.Generator().manual_seed(seed)
    pairs = [(i, j) for i in range(nodes) for j in range(nodes) if i != j]
    picks = torch.randperm(len(pairs), generator=generator)[:edges]
    return torch.tensor(pairs)[picks].T.contiguous()


def _weights(edge_index: Tensor, seed: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    count = edge_index.size(1)
    return 0.25 + 2.0 * torch.rand(count, generator=generator, dtype=torch.float64)


def _complete(nodes: int) -> Tensor:
    return _both_ways([(i, j) for i in range(nodes) for j in range(i)])


_UNDIRECTED = _random_edges(11, 20, seed=3)
_DIRECTED = _random_edges(10, 24, seed=5)
_LOOPS = torch.tensor([[0, 1, 2, 2, 0, 3, 4, 1], [1, 2, 2, 0, 0, 4, 3, 3]])
_TWO_LOOPS = torch.tensor([[0, 1, 2, 2, 2, 0, 3], [1, 2, 2, 0, 2, 0, 1]])
_DUPLICATES = torch.tensor([[0, 0, 1, 2, 0, 3, 3, 1], [1, 1, 2, 0, 1, 2, 2, 0]])

GRAPHS: dict[str, Edges] = {
    "path": (_both_ways([(0, 1), (1, 2), (2, 3), (3, 4)]), 5, None),
    "star": (_both_ways([(0, i) for i in range(1, 6)]), 6, None),
    "ring": (_both_ways([(i, (i + 1) % 7) for i in range(7)]), 7, None),
    "complete": (_complete(5), 5, None),
    "random": (torch.cat([_UNDIRECTED, _UNDIRECTED.flip(0)], 1).unique(dim=1), 11, None),
    "directed": (_DIRECTED, 10, None),
    "isolated": (torch.tensor([[0, 1, 3], [1, 3, 0]]), 5, None),
    "self-loops": (_LOOPS, 5, None),
    "two-loops-on-a-node": (_TWO_LOOPS, 4, None),
    "duplicates": (_DUPLICATES, 4, None),
    "weighted": (_DIRECTED, 10, _weights(_DIRECTED)),
    "weighted-isolated": (torch.tensor([[0, 1, 3], [1, 3, 0]]), 5, torch.tensor([0.5, 2.0, 3.0])),
    "weighted-self-loops": (_LOOPS, 5, _weights(_LOOPS)),
    "weighted-two-loops-on-a-node": (_TWO_LOOPS, 4, _weights(_TWO_LOOPS)),
    "weighted-duplicates": (_DUPLICATES, 4, _weights(_DUPLICATES)),
}
WEIGHTED = [name for name in GRAPHS if name.startswith("weighted")]
SIMPLE = [n for n in GRAPHS if "loops" not in n and "duplicates" not in n]  # a matrix can hold it


def dataset(name: str, *, sparse: bool = False, **more: Any) -> Data:
    """One-hot features on a graph: a layer with identity weights returns its operator."""
    edge_index, nodes, weight = GRAPHS[name]
    data = Data(x=torch.eye(nodes, dtype=torch.float64), **more)
    if not sparse:
        data.edge_index = edge_index
        if weight is not None:
            data.edge_weight = weight.double()
        return data
    values = torch.ones(edge_index.size(1)) if weight is None else weight
    data.adj_t = adjacency(edge_index, values.double(), nodes)
    return data


def adjacency(edge_index: Tensor, values: Tensor, nodes: int) -> Tensor:
    """The matrix PyG calls ``adj_t``: rows are targets."""
    with warnings.catch_warnings():  # torch says once a process that CSR is in beta
        warnings.simplefilter("ignore")
        coo = torch.sparse_coo_tensor(edge_index.flip(0), values, (nodes, nodes))
        return coo.coalesce().to_sparse_csr()


# --- both sides of a comparison ------------------------------------------------------------


def set_identity(layer: nn.Module, *, only: str | None = None) -> nn.Module:
    """Identity weights, no bias; with ``only``, every other matrix is zero."""
    layer.double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.zero_()
            if parameter.dim() == 2 and (only is None or name == only):
                parameter.copy_(torch.eye(*parameter.shape))
    return layer


def stages_of(model: nn.Module, data: Any) -> list[list[tuple[Any, ...]]]:
    """What Virgo says the model computes, the way ``virgo.plan`` asks for it."""
    read = reading.read(data)
    seen = trace.watch(model, read)
    return Study(model, read, seen, 2.0, "mean", "uniform", seed=0).stages


def matrix_of(stages: list[tuple[Any, ...]], nodes: int) -> np.ndarray:
    """A layer's stages applied to one-hot features, all weights identities."""
    x = np.eye(nodes)
    for stage in stages:
        x = sum(term.operator(x) for term in stage)
    return x


pytestmark = pytest.mark.usefixtures("one_thread", "double_by_default")


def pyg(layer: nn.Module, data: Data) -> np.ndarray:
    with torch.no_grad():
        return inputs.run(layer, data).numpy()


def assert_operator_is_layer(layer: nn.Module, data: Data) -> None:
    set_identity(layer)
    (stages,) = stages_of(layer, data)
    expected = pyg(layer, data)
    assert np.abs(expected).max() > 0
    np.testing.assert_allclose(matrix_of(stages, data.num_nodes), expected, **CLOSE)


# --- layers and their flags ----------------------------------------------------------------

Factory = Callable[[int, str], nn.Module]
Kinds = dict[str, Factory]

GCN_KINDS: Kinds = {
    "gcn": lambda n, flow: GCNConv(n, n, flow=flow),
    "gcn-improved": lambda n, flow: GCNConv(n, n, improved=True, flow=flow),
    "gcn-no-loops": lambda n, flow: GCNConv(n, n, add_self_loops=False, flow=flow),
    "gcn-improved-no-loops": lambda n, flow: GCNConv(
        n, n, improved=True, add_self_loops=False, flow=flow
    ),
    "gcn-plain": lambda n, flow: GCNConv(n, n, normalize=False, flow=flow),
    "sg-1": lambda n, flow: SGConv(n, n, K=1, flow=flow),
    "sg-3": lambda n, flow: SGConv(n, n, K=3, flow=flow),
    "sg-3-no-loops": lambda n, flow: SGConv(n, n, K=3, add_self_loops=False, flow=flow),
}
PLAIN_KINDS: Kinds = {
    "sage-mean": lambda n, flow: SAGEConv(n, n, flow=flow),
    "sage-sum": lambda n, flow: SAGEConv(n, n, aggr="sum", flow=flow),
    "sage-mean-no-root": lambda n, flow: SAGEConv(n, n, root_weight=False, flow=flow),
    "sage-add-no-root": lambda n, flow: SAGEConv(n, n, aggr="add", root_weight=False, flow=flow),
    "graph-add": lambda n, flow: GraphConv(n, n, flow=flow),
    "graph-mean": lambda n, flow: GraphConv(n, n, aggr="mean", flow=flow),
    "gin": lambda n, flow: GINConv(nn.Identity(), flow=flow),
    "gin-eps": lambda n, flow: GINConv(nn.Linear(n, n), eps=0.3, flow=flow),
    "gin-mean": lambda n, flow: GINConv(nn.Linear(n, n), aggr="mean", flow=flow),
    "gin-mean-eps": lambda n, flow: GINConv(nn.Identity(), eps=0.3, aggr="mean", flow=flow),
    "gin-mlp": lambda n, flow: GINConv(
        nn.Sequential(nn.Linear(n, n), nn.ReLU(), nn.Linear(n, n)), eps=0.3, flow=flow
    ),
}
CLUSTER_KINDS: Kinds = {
    "cluster": lambda n, flow: ClusterGCNConv(n, n, flow=flow),
    "cluster-lambda": lambda n, flow: ClusterGCNConv(n, n, diag_lambda=0.5, flow=flow),
}
KINDS: Kinds = {**GCN_KINDS, **PLAIN_KINDS, **CLUSTER_KINDS}
FORWARD, REVERSED = "source_to_target", "target_to_source"


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("kind", KINDS)
def test_operator_equals_layer(kind: str, graph: str) -> None:
    data = dataset(graph)
    assert_operator_is_layer(KINDS[kind](data.num_nodes, FORWARD), data)


@pytest.mark.parametrize("graph", ["directed", "weighted", "weighted-self-loops", "duplicates"])
@pytest.mark.parametrize("kind", KINDS)
def test_operator_equals_layer_with_flow_target_to_source(kind: str, graph: str) -> None:
    data = dataset(graph)
    assert_operator_is_layer(KINDS[kind](data.num_nodes, REVERSED), data)


def test_cluster_gcn_on_loops_of_its_own() -> None:
    """PyG runs ``add_self_loops=False`` only where each node has one loop already."""
    loops = torch.arange(10).repeat(2, 1)
    edge_index = torch.cat([_DIRECTED[:, :9], loops, _DIRECTED[:, 9:]], dim=1)
    data = Data(x=torch.eye(10), edge_index=edge_index)
    for diag_lambda in (0.0, 0.5):
        layer = ClusterGCNConv(10, 10, diag_lambda=diag_lambda, add_self_loops=False)
        assert_operator_is_layer(layer, data)


SPARSE_GRAPHS = [*SIMPLE, "self-loops", "weighted-self-loops"]


@pytest.mark.parametrize("graph", SPARSE_GRAPHS)
@pytest.mark.parametrize("kind", KINDS)
def test_operator_equals_layer_on_a_sparse_adjacency(kind: str, graph: str) -> None:
    """Entries of ``adj_t`` are weights to PyG, also for layers that take no ``edge_weight``."""
    data = dataset(graph, sparse=True)
    assert_operator_is_layer(KINDS[kind](data.num_nodes, FORWARD), data)


def test_directions_differ_where_they_should() -> None:
    """Negative control: on a directed graph a turned-round operator is another one."""
    data = dataset("directed")
    nodes = data.num_nodes
    for kind, factory in KINDS.items():
        (forward,) = stages_of(factory(nodes, FORWARD).double(), data)
        layer = set_identity(factory(nodes, REVERSED))
        gap = np.abs(matrix_of(forward, nodes) - pyg(layer, data)).max()
        assert gap > 1e-3, kind


@pytest.mark.parametrize("way", [FORWARD, REVERSED, "sparse"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_leconv_term_by_term(graph: str, way: str) -> None:
    """``A W1 - deg W2 + W3``: a variance does not see the sign of the middle term."""
    data = dataset(graph, sparse=way == "sparse")
    nodes = data.num_nodes
    layer = LEConv(nodes, nodes, flow=FORWARD if way == "sparse" else way).double()
    ((stage,),) = stages_of(layer, data)
    signs = {"lin1.weight": 1.0, "lin2.weight": -1.0, "lin3.weight": 1.0}
    assert [term.weight for term in stage] == list(signs)
    for term in stage:
        expected = pyg(set_identity(layer, only=term.weight), data)
        assert np.abs(expected).max() > 0
        found = signs[term.weight] * term.operator(np.eye(nodes))
        np.testing.assert_allclose(found, expected, **CLOSE)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize(
    "factory",
    [
        lambda n: SAGEConv(n, n),
        lambda n: SAGEConv(n, n, aggr="sum"),
        lambda n: GraphConv(n, n),
        lambda n: GraphConv(n, n, aggr="mean"),
        lambda n: ClusterGCNConv(n, n, diag_lambda=0.5),
    ],
    ids=["sage-mean", "sage-sum", "graph-add", "graph-mean", "cluster"],
)
def test_each_term_of_a_sum_is_the_layer_with_only_its_weight(
    factory: Callable[[int], nn.Module], graph: str
) -> None:
    """Which weight goes with which operator, not only that their sum is right."""
    data = dataset(graph)
    nodes = data.num_nodes
    layer = factory(nodes).double()
    ((stage,),) = stages_of(layer, data)
    assert len(stage) == 2
    for term in stage:
        expected = pyg(set_identity(layer, only=term.weight), data)
        np.testing.assert_allclose(term.operator(np.eye(nodes)), expected, **CLOSE)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("aggr", ["mean", "sum"])
def test_sage_projects_first(aggr: str, graph: str) -> None:
    """``relu(x W) `` is a stage of its own; one-hot features pass its ReLU unchanged."""
    data = dataset(graph)
    nodes = data.num_nodes
    layer = SAGEConv(nodes, nodes, aggr=aggr, project=True)
    assert_operator_is_layer(layer, data)
    ((project, aggregate),) = stages_of(layer, data)
    assert [term.weight for term in project] == ["lin.weight"]
    assert [term.weight for term in aggregate] == ["lin_l.weight", "lin_r.weight"]
    np.testing.assert_array_equal(project[0].operator(np.eye(nodes)), np.eye(nodes))
    expected = pyg(set_identity(SAGEConv(nodes, nodes, aggr=aggr)), data)
    np.testing.assert_allclose(matrix_of([aggregate], nodes), expected, **CLOSE)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("eps", [0.0, 0.3])
@pytest.mark.parametrize("aggr", ["add", "mean"])
def test_gine_without_edge_features_to_speak_of(aggr: str, eps: float, graph: str) -> None:
    """Zero edge features and nonnegative node features: the ReLU in its messages does nothing."""
    data = dataset(graph)
    data.edge_attr = torch.zeros(data.num_edges, data.num_nodes, dtype=torch.float64)
    inner = nn.Linear(data.num_nodes, data.num_nodes)
    assert_operator_is_layer(GINEConv(inner, eps=eps, aggr=aggr), data)


@pytest.fixture
def every_warning() -> Iterator[None]:
    """Torch gives some warnings once a process, so that only the first test would see them."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


@pytest.mark.usefixtures("every_warning")
def test_a_trained_eps_is_read_from_the_layer_without_a_warning() -> None:
    data = dataset("directed")
    layer = GINConv(nn.Linear(data.num_nodes, data.num_nodes), train_eps=True)
    set_identity(layer)
    with torch.no_grad():
        layer.eps.fill_(0.7)
    (stages,) = stages_of(layer, data)
    np.testing.assert_allclose(matrix_of(stages, data.num_nodes), pyg(layer, data), **CLOSE)


class TwoWeights(nn.Module):
    """Two layers of one model that walk the same edges with different weights."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.a = GraphConv(nodes, nodes)
        self.b = GraphConv(nodes, nodes)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor, strength: Tensor) -> Any:
        return self.b(self.a(x, edge_index, edge_weight), edge_index, strength)


def test_each_layer_gets_the_weights_it_was_called_with() -> None:
    data = dataset("weighted", strength=_weights(_DIRECTED, seed=99))
    model = set_identity(TwoWeights(data.num_nodes))
    first, second = stages_of(model, data)
    eye = data.x
    for stages, layer, weight in (
        (first, model.a, data.edge_weight),
        (second, model.b, data.strength),
    ):
        expected = layer(eye, data.edge_index, weight).detach().numpy()
        np.testing.assert_allclose(matrix_of(stages, data.num_nodes), expected, **CLOSE)
    assert not np.allclose(matrix_of(first, 10), matrix_of(second, 10))


@pytest.mark.parametrize("aggr", ["max", "min", "std"])
def test_aggregations_without_constant_coefficients_are_refused(aggr: str) -> None:
    data = dataset("path")
    with pytest.raises(virgo.LayerError, match=r"constant coefficients.*estimate='measured'"):
        stages_of(SAGEConv(5, 5, aggr=aggr).double(), data)


# --- operators by themselves ---------------------------------------------------------------


def operators(graph: Graph) -> Iterator[tuple[str, Operator]]:
    yield "identity", graph.identity()
    yield "sum", graph.sum()
    yield "gin", graph.sum(1.3)
    yield "mean", graph.mean()
    yield "degree", graph.degree()
    yield "gcn", graph.gcn()
    yield "gcn improved", graph.gcn(improved=True)
    yield "gcn no loops", graph.gcn(add_self_loops=False)
    yield "gcn three hops", graph.gcn().times(3)
    yield "mean of a reversed graph", graph.reversed.mean()
    yield "cluster", graph.cluster_gcn(diag_lambda=0.5)


@pytest.mark.parametrize("name", GRAPHS)
def test_transpose_is_the_dense_transpose(name: str) -> None:
    edge_index, nodes, weight = GRAPHS[name]
    eye = np.eye(nodes)
    for kind, operator in operators(Graph(edge_index, nodes, weight)):
        dense = operator(eye)
        np.testing.assert_allclose(operator.T(eye), dense.T, **CLOSE, err_msg=kind)
        np.testing.assert_array_equal(operator.T.T(eye), dense, err_msg=kind)
        column = np.linspace(0.5, 2.0, nodes)
        np.testing.assert_allclose(operator.T(column), dense.T @ column, **CLOSE, err_msg=kind)


def test_transpose_of_a_directed_operator_is_another_one() -> None:
    """Negative control of the test above: there is something for it to find."""
    edge_index, nodes, _ = GRAPHS["directed"]
    for operator in (Graph(edge_index, nodes).mean(), Graph(edge_index, nodes).gcn()):
        assert np.abs(operator(np.eye(nodes)) - operator.T(np.eye(nodes))).max() > 1e-3


def power_law(nodes: int = 3000, edges: int = 40_000) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(11)
    ends = (nodes * rng.random((2, edges)) ** 3).astype(np.int64)
    return torch.from_numpy(ends), torch.from_numpy(rng.random(edges))


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="needs two threads to compare")
@pytest.mark.parametrize("weighted", [False, True])
def test_the_number_of_threads_changes_no_bit(weighted: bool) -> None:
    edge_index, weight = power_law()
    graph = Graph(edge_index, 3000, weight if weighted else None)
    x = np.random.default_rng(0).standard_normal(3000)
    results = []
    for count in (1, 2):  # `one_thread` puts back what it found
        numba.set_num_threads(count)
        results.append([graph.gcn()(x), graph.gcn().T(x), graph.mean()(x)])
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("weighted", [False, True])
def test_several_columns_have_the_bits_of_each_alone(
    weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any number of threads, in any memory order; the columns are not all alike."""
    edge_index, weight = power_law()
    graph = Graph(edge_index, 3000, weight if weighted else None)
    x = np.random.default_rng(0).standard_normal((3000, 5))
    operators = (graph.gcn(), graph.gcn().T, graph.mean(), graph.sum(0.5).times(2))
    alone = [np.stack([operator(column) for column in x.T], 1) for operator in operators]
    monkeypatch.setattr(threads, "_WORTH_THREADS", 0)
    for count in (1, 2):
        monkeypatch.setattr(threads, "cores", lambda count=count: count)
        for operator, expected in zip(operators, alone, strict=True):
            for block in (x, np.asfortranarray(x)):
                np.testing.assert_array_equal(operator(block), expected)
    assert len({column.tobytes() for column in alone[0].T}) == 5


@pytest.mark.parametrize("weighted", [False, True])
def test_product_equals_a_slow_exact_sum(weighted: bool) -> None:
    """Rows of a power-law graph summed exactly; n additions err by at most n eps sum|terms|."""
    edge_index, weight = power_law(nodes=300, edges=5000)
    weights = weight if weighted else None
    x = np.random.default_rng(1).standard_normal(300)
    found = Graph(edge_index, 300, weights).sum()(x)
    terms: list[list[float]] = [[] for _ in range(300)]
    for edge, (source, target) in enumerate(edge_index.T.tolist()):
        terms[target].append(x[source] * (weight[edge].item() if weighted else 1.0))
    for row, parts in enumerate(terms):
        bound = 2.0**-52 * max(1, len(parts)) * math.fsum(map(abs, parts))
        assert abs(found[row] - math.fsum(parts)) <= bound


@pytest.mark.parametrize("name", GRAPHS)
def test_int32_edges_give_the_same_operator(name: str) -> None:
    edge_index, nodes, weight = GRAPHS[name]
    wide = dict(operators(Graph(edge_index, nodes, weight)))
    for kind, operator in operators(Graph(edge_index.int(), nodes, weight)):
        np.testing.assert_array_equal(operator(np.eye(nodes)), wide[kind](np.eye(nodes)))
        np.testing.assert_array_equal(operator.T(np.eye(nodes)), wide[kind].T(np.eye(nodes)))


@pytest.mark.parametrize("weighted", [False, True])
def test_sorted_and_shuffled_edges_compress_to_the_same_matrix(weighted: bool) -> None:
    edge_index, weight = power_law(nodes=200, edges=1500)
    rows, columns = edge_index.numpy()
    values = weight.numpy() if weighted else None
    order = np.lexsort((columns, rows))
    in_order = Compressed.build(
        rows[order], columns[order], 200, None if values is None else values[order]
    )
    shuffled = Compressed.build(rows, columns, 200, values)
    np.testing.assert_array_equal(in_order.pointer, shuffled.pointer)
    dense = np.zeros((200, 200))
    np.add.at(dense, (rows, columns), 1.0 if values is None else values)
    for matrix in (in_order, shuffled):
        assert matrix.columns.dtype == np.int32
        np.testing.assert_allclose(matrix @ np.eye(200), dense, **CLOSE)
    for row in range(200):
        at = slice(in_order.pointer[row], in_order.pointer[row + 1])
        assert sorted(in_order.columns[at]) == sorted(shuffled.columns[at])


def test_compressing_sorted_edges_copies_nothing_out_of_place() -> None:
    """Sorted edges keep their order to the last one, also within a row (the sort is stable)."""
    rows, columns = np.array([0, 0, 2, 2, 2]), np.array([4, 1, 3, 0, 3])
    weights = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    matrix = Compressed.build(rows, columns, 5, weights)
    np.testing.assert_array_equal(matrix.columns, columns)
    np.testing.assert_array_equal(matrix.weights, weights)
    np.testing.assert_array_equal(matrix.pointer, [0, 2, 2, 5, 5, 5])


def test_blocks_cover_every_row_once() -> None:
    """Threads share rows by block: a row in two blocks or in none would go unnoticed on one."""
    edge_index, _ = power_law()
    blocks = Graph(edge_index, 3000).by_target.blocks
    assert blocks[0] == 0
    assert blocks[-1] == 3000
    assert (np.diff(blocks) >= 0).all()


def test_matrix_argument_is_taken_column_by_column() -> None:
    edge_index, nodes, weight = GRAPHS["weighted"]
    x = np.random.default_rng(2).standard_normal((nodes, 3))
    for kind, operator in operators(Graph(edge_index, nodes, weight)):
        columns = np.stack([operator(np.ascontiguousarray(c)) for c in x.T], axis=1)
        np.testing.assert_allclose(operator(x), columns, **CLOSE, err_msg=kind)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_coefficients_multiply_like_the_operator(weighted: bool) -> None:
    rng = np.random.default_rng(5)
    index = torch.from_numpy(rng.integers(0, 12, (2, 50)))  # with self-loops and equal edges
    weight = torch.from_numpy(rng.uniform(0.5, 2.0, 50)) if weighted else None
    graph, x = Graph(index, 12, weight), rng.standard_normal(12)
    operators = [graph.identity(), graph.degree(), graph.sum(1.5), graph.mean(), graph.gcn()]
    operators += [graph.cluster_gcn(diag_lambda=0.5), graph.mean_with_self(0.3)]
    for operator in operators:
        target, source, value = nonzeros(operator, 12)
        product = np.bincount(target, value * x[source], 12)
        # a dozen numbers of order one, added in another order
        np.testing.assert_allclose(product, operator(x.copy()), atol=1e-13, rtol=0)
        assert value.all()


def test_a_graph_says_how_large_it_is() -> None:
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    assert repr(Graph(edges, 1200)) == "Graph(1,200 nodes, 3 edges)"
    assert repr(Graph(edges, 3, torch.ones(3))) == "Graph(3 nodes, 3 edges, weighted)"

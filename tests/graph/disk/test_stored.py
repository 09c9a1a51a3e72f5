"""Graphs on disk through the operators and plans: the same numbers as in memory, little memory."""

from __future__ import annotations

import copy
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN, GIN, GCNConv, GraphConv, GraphSAGE, SGConv

import virgo
from virgo.cli import main
from virgo.cli.planning import OPERATORS, chain
from virgo.errors import GraphError, LayerError, OptionError
from virgo.graph import csr, disk, neighbourhoods, threads
from virgo.graph.operators import Graph, Operator
from virgo.graph.vectors import column, extent, magnitudes, root_of_squares, scaled, squared_norm
from virgo.network import graph_inputs
from virgo.plans import Plan


def edges(nodes: int = 60, count: int = 400, seed: int = 0) -> torch.Tensor:
    """Directed, with duplicates, self-loops and nodes without edges."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, nodes - 3, (2, count)))


def stored(
    folder: Path, index: torch.Tensor, nodes: int, weight: Any = None, **options: Any
) -> Any:
    source = folder / "edges.npz"
    more = {} if weight is None else {"edge_weight": np.asarray(weight)}
    np.savez(source, edge_index=index.numpy(), **more)
    disk.build(source, folder / "graph", num_nodes=nodes, **options)
    return virgo.Graph.open(folder / "graph")


def operators(graph: Any) -> Iterator[tuple[str, Operator]]:
    yield "sum", graph.sum(0.5)
    yield "mean", graph.mean()
    yield "mean_with_self", graph.mean_with_self(1.5)
    yield "degree", graph.degree()
    yield "gcn", graph.gcn()
    yield "gcn improved", graph.gcn(improved=True)
    yield "gcn bare", graph.gcn(add_self_loops=False)
    yield "cluster", graph.cluster_gcn(diag_lambda=0.5)
    yield "cluster by source", graph.cluster_gcn(by_source=True)
    yield "twice", graph.gcn().times(2)
    yield "sum, three times", graph.sum().times(3)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("in_memory", [False, True])
def test_operators_are_those_of_the_graph_in_memory(
    tmp_path: Path, weighted: bool, in_memory: bool
) -> None:
    index = edges()
    weight = torch.rand(index.size(1), dtype=torch.float64) + 0.1 if weighted else None
    here, there = Graph(index, 60, weight), stored(tmp_path, index, 60, weight)
    if in_memory:
        there = virgo.Graph.open(tmp_path / "graph", in_memory=True)
    assert (there.by_target.mapped is None) == in_memory
    assert (there.reversed.by_target.mapped is None) == in_memory
    assert (there.num_edges, there.is_weighted, there.has_loops) == (400, weighted, True)
    x = np.random.default_rng(1).standard_normal(60)
    pairs = [(here, there), (here.reversed, there.reversed), (here.unweighted, there.unweighted)]
    for first, second in pairs:
        for (name, one), (_, two) in zip(operators(first), operators(second), strict=True):
            np.testing.assert_allclose(two(x), one(x), rtol=1e-12, atol=1e-14, err_msg=name)
            np.testing.assert_allclose(two.T(x), one.T(x), rtol=1e-12, atol=1e-14, err_msg=name)
    assert there.unweighted is there.unweighted.unweighted
    assert "60 nodes, 400 edges" in repr(there)


def test_a_symmetric_graph_is_stored_once(tmp_path: Path) -> None:
    index = edges()
    there = stored(tmp_path, index, 60, symmetric=True)
    assert not list((tmp_path / "graph").glob("out_*"))
    both = torch.cat([index, index.flip(0)], 1).unique(dim=1)
    here = Graph(both, 60)
    x = np.random.default_rng(1).standard_normal(60)
    np.testing.assert_allclose(there.gcn().T(x), here.gcn().T(x), rtol=1e-12)
    assert there.reversed is there
    assert there.by_source is there.by_target


def test_an_operator_may_use_its_inputs_memory_only_if_told(tmp_path: Path) -> None:
    there = stored(tmp_path, edges(), 60)
    x = np.random.default_rng(1).standard_normal(60)
    for name, operator in operators(there):
        before = x.copy()
        expected = operator(x)
        there_is_room = np.full(60, np.nan)
        np.testing.assert_array_equal(operator(x, out=there_is_room), expected, err_msg=name)
        np.testing.assert_array_equal(x, before, err_msg=name)
        again, room = before.copy(), np.full(60, np.nan)
        np.testing.assert_array_equal(operator(before, overwrite=True), expected, err_msg=name)
        both = operator(again, overwrite=True, out=room)
        np.testing.assert_array_equal(both, expected, err_msg=name)


def test_sums_do_not_depend_on_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = stored(tmp_path, edges(500, 20_000), 500)
    x = np.random.default_rng(2).standard_normal(500)
    alone = there.gcn()(x)
    monkeypatch.setattr(threads, "_WORTH_THREADS", 0)
    for cores in (1, 2, 7):
        monkeypatch.setattr(threads, "cores", lambda cores=cores: cores)
        np.testing.assert_array_equal(there.gcn()(x), alone)


def test_counted_loops_take_four_bytes_a_node(tmp_path: Path) -> None:
    """A billion nodes' diagonal must fit beside three vectors; weights need all eight."""
    index, kinds = edges(), {}
    for weighted in (False, True):
        folder = tmp_path / str(weighted)
        folder.mkdir()
        weight = torch.rand(index.size(1)).double() if weighted else None
        there = stored(folder, index, 60, weight)
        kinds[weighted] = {g.gcn().loop.dtype for g in (there, Graph(index, 60, weight))}
    assert kinds == {False: {np.dtype(np.int32)}, True: {np.dtype(np.float64)}}


def test_a_used_graph_is_copied_by_its_path(tmp_path: Path) -> None:
    there = stored(tmp_path, edges(), 60)
    x = np.arange(60.0)
    expected = there.gcn()(x)
    written = pickle.dumps(there)
    assert len(written) < 500
    for again in (pickle.loads(written), copy.deepcopy(there)):
        np.testing.assert_array_equal(again.gcn()(x), expected)
        np.testing.assert_array_equal(again.reversed.sum()(x), there.reversed.sum()(x))


@pytest.mark.parametrize(
    ("index", "weight", "message"),
    [
        ([[0, -1], [1, 2]], None, "edge_index: expected ids from 0 to 2, got -1 to 2"),
        ([[0, 5], [1, 2]], None, "edge_index: expected ids from 0 to 2, got 0 to 5"),
        ([[0, 1], [1, 2]], [1.0], "edge_weight: expected 2 numbers, one per edge, got 1"),
        ([[0, 1], [1, 2], [2, 0]], None, "edge_index: expected integers of shape"),
        ([[0.0, 1.0], [1.0, 2.0]], None, "edge_index: expected integers of shape"),
    ],
)
def test_a_graph_refuses_what_would_be_looked_up_elsewhere(
    index: Any, weight: Any, message: str
) -> None:
    given = None if weight is None else torch.tensor(weight)
    with pytest.raises(GraphError, match=re.escape(message)):
        Graph(torch.tensor(index), 3, given)


def test_a_vector_of_another_size_is_refused(tmp_path: Path) -> None:
    there = stored(tmp_path, edges(), 60)
    for graph in (there, Graph(edges(), 60)):
        with pytest.raises(GraphError, match="x: expected 60 numbers, one per node, got 10"):
            graph.sum()(np.ones(10))


def test_sixty_four_bit_columns(tmp_path: Path) -> None:
    index = edges()
    rows = Graph(index, 60).by_target
    wide = csr.Compressed(rows.pointer, rows.columns.astype(np.int64), None, rows.blocks)
    x = np.random.default_rng(2).standard_normal(60)
    np.testing.assert_array_equal(wide.hop(x), rows.hop(x))


def test_a_hop_gives_its_pages_back(tmp_path: Path) -> None:
    """The files pass through; what stays resident of them is less than a tenth."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "edges.npy", rng.integers(0, 20_000, (2, 4_000_000), dtype=np.int32))
    disk.build(tmp_path / "edges.npy", tmp_path / "graph")
    code = f"""
import numpy as np, virgo
def resident():
    lines = dict(line.split(":") for line in open("/proc/self/status"))
    return int(lines["RssFile"].split()[0]) * 1024
graph = virgo.Graph.open({str(tmp_path / "graph")!r})
operator, x = graph.gcn(), np.ones(graph.num_nodes)
small = virgo.Graph.open({str(tmp_path / "graph")!r}).by_target
operator.T(x)  # compiles
before = resident()
operator(x); operator.T(x)
print(resident() - before)
"""
    if not Path("/proc/self/status").exists():
        pytest.skip("resident memory is read from /proc")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    columns = (tmp_path / "graph" / "in_columns.bin").stat().st_size
    assert columns == 16_000_000
    assert int(done.stdout) < columns // 10


# --- vectors ------------------------------------------------------------------------------------


def test_vectors_in_memory() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(50_001)
    assert squared_norm(x) == pytest.approx(float(np.sum(x.astype(np.longdouble) ** 2)), rel=1e-15)
    assert squared_norm(x.reshape(-1, 3)) == pytest.approx(squared_norm(x), rel=1e-15)
    np.testing.assert_array_equal(scaled(x, 2.0), 2 * x)
    np.testing.assert_array_equal(magnitudes(x), np.abs(x))
    assert extent(x) == (x.min(), pytest.approx(x.sum()), pytest.approx(np.abs(x).sum()))
    np.testing.assert_allclose(root_of_squares([x, x]), np.sqrt(2) * np.abs(x))
    for function in (squared_norm, magnitudes, extent):
        with pytest.raises(TypeError, match="no vector: str"):
            function("x")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.ones(4), r"mean_features: expected 5 numbers, one per node, got shape \[4\]"),
        (np.ones((5, 2)), r"got shape \[5, 2\]"),
        (np.array([1, 2, np.nan, 4, 5]), r"NaN or infinity \(first at node 2\)"),
        (np.array(list("abcde")), "expected numbers, got"),
        ("nowhere.npy", "expected a .npy file of numbers, got nowhere.npy"),
    ],
)
def test_bad_mean_features(given: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        column(given, 5)


def test_mean_features_from_anything(tmp_path: Path) -> None:
    np.save(tmp_path / "mean.npy", np.arange(5, dtype=np.float16))
    np.savez(tmp_path / "two.npz", a=np.ones(5))
    for given in (
        tmp_path / "mean.npy",
        str(tmp_path / "mean.npy"),
        torch.arange(5.0),
        range(5),
        torch.arange(5)[:, None],
    ):
        np.testing.assert_array_equal(column(given, 5), np.arange(5.0))
    with pytest.raises(GraphError, match="expected one array in"):
        column(tmp_path / "two.npz", 5)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "mean.npy").read_bytes()[:-4])
    with pytest.raises(GraphError, match=r"expected a \.npy file of numbers"):
        column(tmp_path / "cut.npy", 5)


# --- plans --------------------------------------------------------------------------------------


class Weighted(nn.Module):
    """Layers that take the edge weights, and one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GraphConv(8, 16), GraphConv(16, 4)

    def forward(self, x: Any, edge_index: Any, edge_weight: Any = None) -> Any:
        return self.second(self.first(x, edge_index, edge_weight).relu(), edge_index)


MODELS = {
    "gcn": lambda: GCN(8, 16, 3, 4),
    "gcn, jumping": lambda: GCN(8, 16, 3, 4, jk="cat"),
    "sage": lambda: GraphSAGE(8, 16, 2, 4),
    "gin": lambda: GIN(8, 16, 2, 4),
    "weighted": Weighted,
}


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("method", ["virgo-forward", "virgo-backward", "virgo", "xavier"])
def test_a_plan_is_that_of_the_data(tmp_path: Path, name: str, method: str) -> None:
    index, x = edges(), torch.rand(60, 8, dtype=torch.float64)
    weight = torch.rand(index.size(1), dtype=torch.float64) + 0.1 if name == "weighted" else None
    model, data = MODELS[name](), Data(x=x.float(), edge_index=index, edge_weight=weight)
    expected = virgo.plan(model, data, method)
    mean = data.x.double().mean(1)
    for graph in (stored(tmp_path, index, 60, weight), Graph(index, 60, weight)):
        for given in ({"mean_features": mean}, {"features": data.x.numpy()}):
            found = virgo.plan(model, graph, method, **given)
            assert found.graph == expected.graph
            assert found.variances == pytest.approx(expected.variances, rel=1e-12)
            assert found.biases == expected.biases


def test_without_features_every_node_starts_alike(tmp_path: Path) -> None:
    model, index = GCN(8, 16, 2, 4), edges()
    found = virgo.plan(model, stored(tmp_path, index, 60), "virgo-forward", num_classes=4)
    data = Data(edge_index=index, num_nodes=60, x=torch.ones(60, 8))
    assert found.variances == pytest.approx(
        virgo.plan(model, data, "virgo-forward").variances, rel=1e-12
    )
    assert any("no features to average" in note for note in found.notes)


def test_released_and_softmax_rules_hold_for_a_stored_graph(tmp_path: Path) -> None:
    model, index = GCN(8, 16, 2, 4), edges()
    x, y = torch.rand(60, 8), torch.arange(60) % 4
    data, graph = Data(x=x, edge_index=index, y=y), stored(tmp_path, index, 60)
    for options in ({"variant": "released"}, {}):
        expected = virgo.plan(model, data, "virgo", **options)
        assert expected.num_classes == 4
        found = virgo.plan(model, graph, "virgo", num_classes=4, features=x.numpy(), **options)
        assert found.variances == pytest.approx(expected.variances, rel=1e-12)


def test_init_draws_from_a_stored_graphs_plan(tmp_path: Path) -> None:
    model = GCN(8, 64, 2, 4)
    plan = virgo.init_(model, stored(tmp_path, edges(), 60), "virgo-backward", seed=3)
    again = plan.apply_(GCN(8, 64, 2, 4))
    assert torch.equal(model.convs[0].lin.weight, again.convs[0].lin.weight)


def test_depth_does_not_overflow(tmp_path: Path) -> None:
    """A sum over 50 neighbours grows 50-fold a layer: 10^340 after 200."""
    ring = torch.arange(100)
    index = torch.cat([torch.stack([ring, (ring + k) % 100]) for k in range(1, 51)], 1)
    found = virgo.plan(chain("sum", [4] * 201), stored(tmp_path, index, 100), "virgo-forward")
    assert found.rows[199].ratio == pytest.approx(1 / 50**2, rel=1e-9)


def test_a_signal_that_cancels_is_refused(tmp_path: Path) -> None:
    graph = stored(tmp_path, edges(), 60)
    mean = np.tile([1.0, -1.0], 30)
    with pytest.raises(GraphError, match="a signal that cancels"):
        virgo.plan(GCN(8, 16, 2, 4), graph, "virgo-forward", mean_features=mean)
    with pytest.raises(GraphError, match="expected a signal to arrive"):
        virgo.plan(GCN(8, 16, 2, 4), graph, "virgo-forward", mean_features=np.zeros(60))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mean_features": np.ones(60), "features": np.ones((60, 8))}, OptionError, "got both"),
        ({"features": np.ones((59, 8))}, GraphError, "features: expected a matrix of 60 rows"),
        ({"features": np.ones((60, 7))}, LayerError, "features: expected 8 columns"),
        ({"distribution": "mirrored"}, OptionError, "distribution: 'mirrored' follows"),
        ({"estimate": "measured"}, OptionError, "estimate='measured': expected features="),
    ],
)
def test_bad_options(tmp_path: Path, options: Any, error: type[Exception], message: str) -> None:
    graph = stored(tmp_path, edges(), 60)
    with pytest.raises(error, match=message):
        virgo.plan(GCN(8, 16, 2, 4), graph, "virgo-backward", **options)


def test_features_beside_data_are_refused() -> None:
    data = Data(x=torch.ones(60, 8), edge_index=edges())
    with pytest.raises(OptionError, match="mean_features: expected it beside a graph without"):
        virgo.plan(GCN(8, 16, 2, 4), data, "virgo-backward", mean_features=np.ones(60))


def test_lazy_first_layers_are_named(tmp_path: Path) -> None:
    with pytest.raises(LayerError, match="expected a layer with known in_channels"):
        virgo.plan(GraphSAGE(-1, 16, 1), stored(tmp_path, edges(), 60), "virgo-backward")
    assert not graph_inputs.is_graph(Data())
    assert graph_inputs.is_graph(Graph(edges(), 60))


# --- measured on samples ------------------------------------------------------------------------


def test_a_sample_of_everything_is_the_graph(tmp_path: Path) -> None:
    index, x = edges(), torch.rand(60, 8).numpy()
    graph = stored(tmp_path, index, 60)
    sample = neighbourhoods.sample(graph, x, 1000, seed=0)
    pairs = sorted(zip(*index.tolist(), strict=True))
    assert sorted(zip(*sample.edge_index.tolist(), strict=True)) == pairs
    np.testing.assert_array_equal(sample.x.numpy(), x)


def test_a_sample_is_induced_and_connected_to_where_it_grew(tmp_path: Path) -> None:
    index = edges(400, 1600)
    weight = torch.rand(1600, dtype=torch.float64)
    graph = stored(tmp_path, index, 400, weight)
    x = torch.arange(400.0)[:, None].numpy()
    sample = neighbourhoods.sample(graph, x, 50, seed=1)
    assert sample.num_nodes == 50
    ids = sample.x[:, 0].long()
    kept = torch.isin(index, ids).all(0)
    expected = sorted(zip(*index[:, kept].tolist(), weight[kept].float().tolist(), strict=True))
    found = ids[sample.edge_index]
    assert sorted(zip(*found.tolist(), sample.edge_weight.tolist(), strict=True)) == expected
    again = neighbourhoods.sample(graph, x, 50, seed=1)
    assert torch.equal(again.edge_index, sample.edge_index)


@pytest.mark.parametrize("make", [lambda: GCN(8, 16, 2, 4), lambda: GAT(8, 16, 2, 4)])
def test_measured_on_samples_states_its_error(tmp_path: Path, make: Any) -> None:
    """On samples that hold the whole graph it is the measured estimate, without any error."""
    index, x = edges(), torch.rand(60, 8)
    model, graph = make(), stored(tmp_path, index, 60)
    whole = virgo.plan(model, Data(x=x, edge_index=index), "virgo-backward", estimate="measured")
    found = virgo.plan(
        model, graph, "virgo-backward", estimate="measured", features=x.numpy(), nodes=500
    )
    assert found.variances == pytest.approx(whole.variances, rel=1e-3)
    assert found.measured is not None
    sampling = found.measured["sampling"]
    assert sampling["standard_error"] < 1e-3
    assert sampling["change_from_half_size"] < 1e-3
    few = virgo.plan(
        model, graph, "virgo-backward", estimate="measured", features=x.numpy(), nodes=20
    )
    assert few.measured is not None
    assert few.measured["sampling"]["standard_error"] > 1e-3
    assert "4 sampled neighbourhoods of 20 nodes: standard error up to" in str(few)
    assert Plan.from_json(few.to_json()).measured == few.measured
    assert few.graph == {"nodes": 60, "edges": 400}


def test_samples_need_edges(tmp_path: Path) -> None:
    graph = stored(tmp_path, torch.tensor([[0], [1]]), 5000)
    with pytest.raises(GraphError, match="expected a sample with edges"):
        neighbourhoods.sample(graph, np.ones((5000, 2)), 4, seed=0)
    with pytest.raises(OptionError, match="nodes: expected at least 2"):
        neighbourhoods.sample(graph, np.ones((5000, 2)), 1, seed=0)


# --- the command line ---------------------------------------------------------------------------


@pytest.mark.parametrize("operator", list(OPERATORS))
def test_plan_command(tmp_path: Path, operator: str, capsys: pytest.CaptureFixture[str]) -> None:
    index, mean = edges(), np.random.default_rng(0).random(60)
    weight = torch.rand(index.size(1), dtype=torch.float64) + 0.1
    stored(tmp_path, index, 60, weight)
    np.save(tmp_path / "mean.npy", mean)
    path = tmp_path / "plan.json"
    words = [
        "plan",
        "--graph",
        str(tmp_path / "graph"),
        "--mean-features",
        str(tmp_path / "mean.npy"),
        "--widths",
        "8",
        "16",
        "4",
        "--method",
        "virgo-forward",
        "--operator",
        operator,
        "--json",
        str(path),
    ]
    assert main([*words, "--in-memory"]) == 0
    kept = Plan.from_json(path.read_text())
    assert capsys.readouterr().out
    assert main(words) == 0
    assert Plan.from_json(path.read_text()).variances == kept.variances
    shown = capsys.readouterr().out
    assert "virgo-forward (theorem, analytic, uniform) on 60 nodes, 400 edges" in shown
    saved = Plan.from_json(path.read_text())
    data = Data(
        x=torch.from_numpy(mean)[:, None].expand(-1, 8), edge_index=index, edge_weight=weight
    )
    model = chain(operator, [8, 16, 4], weighted=True)
    expected = virgo.plan(model.double(), data, "virgo-forward").variances
    assert saved.variances == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--widths", "8"], "--widths: expected the features, the hidden widths and the outputs"),
        (["--widths", "8", "4", "--json", "x.txt"], "--json: expected a path ending in .json"),
        (["--widths", "8", "4", "--graph", "nowhere"], "nowhere: expected a graph's folder"),
        (["--widths", "8", "4", "--method", "best"], "method: expected one of auto, lecun"),
        (
            ["--widths", "8", "4", "--in-memory", "--engine", "duckdb"],
            "--in-memory: expected a graph on disk, got --engine",
        ),
    ],
)
def test_plan_commands_errors(
    tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path, edges(), 60)
    assert main(["plan", "--graph", str(tmp_path / "graph"), *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_the_softmax_rule_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(tmp_path, edges(), 60)
    found = {}
    for more in ([], ["--softmax"]):
        path = tmp_path / f"plan{len(more)}.json"
        assert (
            main(
                [
                    "plan",
                    "--graph",
                    str(tmp_path / "graph"),
                    "--widths",
                    "8",
                    "4",
                    "--json",
                    str(path),
                    *more,
                ]
            )
            == 0
        )
        found[len(more)] = json.loads(path.read_text())["num_classes"]
    assert found == {0: None, 1: 4}
    capsys.readouterr()


class Through(nn.Module):
    """A layer without hops hands its input through, while others need that input too."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.through = GCNConv(8, 8), SGConv(8, 8, K=0)
        self.one, self.two, self.after = GCNConv(8, 8), GCNConv(8, 8), GCNConv(8, 8)

    def forward(self, x: Any, edge_index: Any) -> Any:
        h = self.before(x, edge_index).relu()
        u = self.one(self.through(h, edge_index), edge_index)
        v = self.two(h, edge_index)
        return self.after((u + v).relu(), edge_index)


class Backwards(nn.Module):
    """The same for gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = GCNConv(8, 8), GCNConv(8, 8)
        self.through, self.after = SGConv(8, 8, K=0), GCNConv(8, 8)

    def forward(self, x: Any, edge_index: Any) -> Any:
        u, v = self.one(x, edge_index), self.through(self.two(x, edge_index), edge_index)
        return self.after((u + v).relu(), edge_index)


@pytest.mark.parametrize(
    ("network", "method"), [(Through, "virgo-forward"), (Backwards, "virgo-backward")]
)
def test_a_vector_that_is_handed_through_is_not_overwritten(
    tmp_path: Path, network: Any, method: str
) -> None:
    index, mean = edges(), np.random.default_rng(0).random(60)
    there = stored(tmp_path, index, 60)
    x = torch.from_numpy(mean)[:, None].expand(-1, 8)
    model = network().double()
    data = Data(x=x, edge_index=index)
    for found in (
        virgo.plan(model, data, method).variances,
        virgo.plan(model, there, method, mean_features=mean).variances,
    ):
        assert found["one.lin.weight"] == pytest.approx(found["two.lin.weight"], rel=1e-12)


class Turned(nn.Module):
    """Declared in the order opposite to that in which it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = GCNConv(8, 4), GCNConv(16, 8)

    def forward(self, x: Any, edge_index: Any) -> Any:
        return self.last(self.first(x, edge_index).relu(), edge_index)


def test_the_width_is_that_of_the_layer_that_runs_first(tmp_path: Path) -> None:
    there, x = stored(tmp_path, edges(), 60), torch.rand(60, 16, dtype=torch.float64)
    model = Turned().double()
    expected = virgo.plan(model, Data(x=x, edge_index=edges()), "virgo-forward").variances
    for given in ({"mean_features": x.mean(1).numpy()}, {"features": x.numpy()}):
        found = virgo.plan(model, there, "virgo-forward", **given).variances
        assert found == pytest.approx(expected, rel=1e-9)
    with pytest.raises(LayerError, match="features: expected 16 columns"):
        virgo.plan(model, there, "virgo-forward", features=x[:, :9].numpy())


def test_lazy_layers_on_a_graph_without_features(tmp_path: Path) -> None:
    there, x = stored(tmp_path, edges(), 60), np.random.default_rng(0).random((60, 16))
    with pytest.raises(LayerError, match="expected a layer with known in_channels"):
        virgo.plan(GCN(-1, 8, 2, 3), there, "virgo-forward")
    expected = virgo.plan(GCN(16, 8, 2, 3), there, "virgo-forward", features=x).variances
    assert virgo.plan(GCN(-1, 8, 2, 3), there, "virgo-forward", features=x).variances == expected
    model = GCN(-1, 8, 2, 3)
    assert virgo.init_(model, there, "virgo-forward", features=x).variances == expected
    assert tuple(model.convs[0].lin.weight.shape) == (8, 16)


def test_weights_that_a_model_computes_are_not_taken_for_the_graphs(tmp_path: Path) -> None:
    index, weight = edges(), torch.rand(400, dtype=torch.float64) + 0.1
    there = stored(tmp_path, index, 60, weight)
    model, mean = GCN(16, 8, 2, 3), np.ones(60)
    for graph in (there, there.unweighted):
        with pytest.raises(LayerError, match="edge weights that are none of the data's tensors"):
            virgo.plan(
                model,
                graph,
                "virgo-forward",
                mean_features=mean,
                forward=lambda m, d: m(d.x, d.edge_index, torch.rand(d.num_edges)),
            )


def test_mean_features_are_looked_at_by_every_method(tmp_path: Path) -> None:
    there, model = stored(tmp_path, edges(), 60), GCN(16, 8, 2, 3)
    np.save(tmp_path / "short.npy", np.ones(7))
    for method in ("xavier", "virgo-backward"):
        with pytest.raises(GraphError, match=r"mean_features: expected a \.npy file"):
            virgo.plan(model, there, method, mean_features=str(tmp_path / "no.npy"))
        with pytest.raises(GraphError, match="mean_features: expected 60 numbers"):
            virgo.plan(model, there, method, mean_features=tmp_path / "short.npy")
    with pytest.raises(OptionError, match="signal='rms': expected features"):
        virgo.plan(model, there, "virgo-forward", mean_features=np.ones(60), signal="rms")


# --- real graphs --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cora", "ogbl-ddi", "ogbn-arxiv"])
def test_plans_agree_on_real_graphs(tmp_path: Path, data_root: Path, name: str) -> None:
    """From the publishers' files to a folder to a plan, beside the plan in memory."""
    index, nodes = _real(name, data_root)
    graph = stored(tmp_path, index, nodes)
    mean = np.random.default_rng(0).random(nodes)
    model = GCN(8, 16, 3, 4)
    for method in ("virgo-forward", "virgo-backward"):
        expected = virgo.plan(model, Graph(index, nodes), method, mean_features=mean)
        found = virgo.plan(model, graph, method, mean_features=mean)
        assert found.variances == pytest.approx(expected.variances, rel=1e-9)


def _real(name: str, root: Path) -> tuple[torch.Tensor, int]:
    if name == "ogbn-arxiv":  # its features are not at hand, its structure is
        raw = root / "ogbn_arxiv" / "raw" / "edge.csv.gz"
        pairs = np.loadtxt(raw, delimiter=",", dtype=np.int64)
        return torch.from_numpy(pairs.T.copy()), 169_343
    data = virgo.data.load(name, root).data
    return data.edge_index, int(data.num_nodes)

"""Graphs in tables, on the real DuckDB: equal to the compressed rows in memory, and resumable."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN, GIN, GraphSAGE

import virgo
from virgo.cli.planning import chain
from virgo.errors import DataError, GraphError, MissingExtra, OptionError
from virgo.graph.operators import Graph
from virgo.graph.vectors import extent, magnitudes, root_of_squares, scaled, squared_norm

pytest.importorskip("ibis", reason="needs virgo-gnn[lake]")
pytest.importorskip("duckdb", reason="needs virgo-gnn[lake]")
import pyarrow as pa
import pyarrow.parquet as pq

from virgo.graph import sql

# Ibis still calls DuckDB by a name that DuckDB is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")

#: Sums of float64 in another order.
CLOSE = {"rtol": 1e-9, "atol": 1e-12}
NODES = 14

OPERATORS: dict[str, Callable[[Any], Any]] = {
    "identity": lambda g: g.identity(),
    "sum": lambda g: g.sum(),
    "gin": lambda g: g.sum(1.3),
    "mean": lambda g: g.mean(),
    "mean-with-self": lambda g: g.mean_with_self(0.7),
    "degree": lambda g: g.degree(),
    "gcn": lambda g: g.gcn(),
    "gcn-improved": lambda g: g.gcn(improved=True),
    "gcn-no-loops": lambda g: g.gcn(add_self_loops=False),
    "cluster": lambda g: g.cluster_gcn(diag_lambda=0.4),
    "cluster-no-loops": lambda g: g.cluster_gcn(add_self_loops=False),
    "cluster-by-source": lambda g: g.cluster_gcn(diag_lambda=0.2, by_source=True),
    "twice": lambda g: g.gcn().times(2),
    "reversed": lambda g: g.reversed.mean(),
    "unweighted": lambda g: g.unweighted.gcn(),
}


@pytest.fixture(scope="module")
def con() -> Iterator[Any]:
    connection = sql.connect("duckdb", threads=1, memory="1GB")
    yield connection
    connection.disconnect()


def edges_of(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Loops, duplicates, and two nodes without edges; loops of one node weigh the same."""
    rng = np.random.default_rng(seed)
    edges = rng.integers(0, NODES - 2, (2, 60))
    edges[:, :4] = [[1, 1, 2, 5], [1, 1, 2, 5]]
    edges[:, 4:7] = [[3, 3, 3], [4, 4, 4]]
    weights = rng.uniform(0.1, 2.0, 60)
    loops = edges[0] == edges[1]
    weights[loops] = 0.5 + edges[0][loops] / 7
    return edges, weights


def table_of(con: Any, columns: dict[str, Any]) -> Any:
    from virgo.graph.sql.connections import new_name

    return con.create_table(new_name(), pa.table(columns), temp=True)


def both(con: Any, seed: int, *, weighted: bool, **options: Any) -> tuple[Graph, sql.LakeGraph]:
    edges, weights = edges_of(seed)
    table = table_of(con, {"src": edges[0], "dst": edges[1], "w": weights})
    keep_loops = options.get("keep_loops", True)
    plain = Graph(
        torch.from_numpy(edges),
        NODES,
        torch.from_numpy(weights) if weighted else None,
        keep_loops=keep_loops,
    )
    inside = sql.LakeGraph(table, weight="w" if weighted else None, num_nodes=NODES, **options)
    return plain, inside


# --- the same numbers ----------------------------------------------------------------------


@pytest.mark.parametrize("keep_loops", [True, False], ids=["kept", "added"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_every_operator_equals_the_rows_in_memory(
    con: Any, weighted: bool, keep_loops: bool
) -> None:
    plain, inside = both(con, 0, weighted=weighted, keep_loops=keep_loops)
    values = np.random.default_rng(1).standard_normal(NODES)
    signal = inside.signal(values)
    for name, make in OPERATORS.items():
        if not keep_loops and not name.startswith("gcn"):
            continue  # nothing else asks
        for turn in (lambda op: op, lambda op: op.T):
            expected = turn(make(plain))(values.copy())
            found = turn(make(inside))(signal)
            np.testing.assert_allclose(found.to_numpy(), expected, err_msg=name, **CLOSE)
            assert squared_norm(found) == pytest.approx(squared_norm(expected), rel=1e-9), name
    assert (inside.num_nodes, inside.num_edges) == (plain.num_nodes, plain.num_edges)
    assert inside.is_weighted == weighted


def test_a_wrong_operator_is_seen(con: Any) -> None:
    plain, inside = both(con, 0, weighted=True)
    values = np.ones(NODES)
    found = inside.gcn()(inside.ones()).to_numpy()
    assert not np.allclose(found, plain.gcn(improved=True)(values.copy()))
    assert not np.allclose(inside.sum().T(inside.ones()).to_numpy(), plain.sum()(values.copy()))


def test_an_operator_says_whether_it_leaves_the_node(con: Any) -> None:
    _, inside = both(con, 0, weighted=False)
    assert inside.identity().graph is None
    assert inside.degree().graph is None
    assert inside.gcn().graph is inside


def test_algebra(con: Any) -> None:
    _, inside = both(con, 2, weighted=True)
    rng = np.random.default_rng(3)
    one, other = rng.standard_normal(NODES), rng.standard_normal(NODES)
    a, b = scaled(inside.signal(one), -2.0), inside.signal(other)
    assert squared_norm(a) == pytest.approx(4 * one @ one, rel=1e-12)
    np.testing.assert_allclose(magnitudes(a).to_numpy(), 2 * np.abs(one), **CLOSE)
    np.testing.assert_allclose(
        root_of_squares([a, b, b]).to_numpy(), np.sqrt(4 * one**2 + 2 * other**2), **CLOSE
    )
    np.testing.assert_allclose(extent(a), extent(-2.0 * one), **CLOSE)
    np.testing.assert_allclose(
        inside.sum()(magnitudes(a)).to_numpy(), inside.sum()(inside.signal(abs(2 * one))).to_numpy()
    )
    # a node that no edge enters has no row, and still counts as zero
    assert extent(inside.sum()(inside.ones())).least == 0.0
    assert squared_norm(inside.ones()) == NODES
    np.testing.assert_array_equal(inside.ones().to_numpy(), np.ones(NODES))


def test_ones_for_more_nodes_than_a_block(con: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virgo.graph.sql.connections._BLOCK", 5)
    table = table_of(con, {"src": [0], "dst": [12]})
    np.testing.assert_array_equal(sql.LakeGraph(table).ones().to_numpy(), np.ones(13))


def test_deep_networks_neither_overflow_nor_vanish(con: Any) -> None:
    _, inside = both(con, 0, weighted=False)
    x = inside.ones()
    for _ in range(6):
        x = inside.sum()(x)
        x = scaled(x, 1e100 / np.sqrt(squared_norm(x)))  # applied with the next hop
    assert squared_norm(x) == pytest.approx(1e200)


def test_ids_of_any_kind(con: Any) -> None:
    names = np.array([f"n{i:02d}" for i in range(NODES)])
    edges, _ = edges_of(4)
    table = table_of(con, {"a": names[edges[0]], "b": names[edges[1]]})
    listed = table_of(con, {"id": names})
    plain = Graph(torch.from_numpy(edges), NODES)
    inside = sql.LakeGraph(table, source="a", target="b", nodes=listed)
    assert inside.num_nodes == NODES
    values = np.random.default_rng(0).standard_normal(NODES)
    signal = inside.signal(table_of(con, {"node": names, "value": values}))
    for make in (OPERATORS["gcn"], OPERATORS["mean"], OPERATORS["gin"]):
        rows = make(inside)(signal).table.to_pyarrow().to_pylist()
        found = {row["node"]: row["value"] for row in rows}
        expected = make(plain)(values.copy())
        np.testing.assert_allclose([found.get(name, 0.0) for name in names], expected, **CLOSE)
    # without a list, nodes are those with edges
    assert sql.LakeGraph(table, source="a", target="b", ids="any").num_nodes == len(
        np.unique(edges)
    )
    with pytest.raises(OptionError, match="whose order says nothing"):
        inside.signal(values)
    with pytest.raises(OptionError, match="ids of their own"):
        signal.to_numpy()
    strange = table_of(con, {"node": [*names[:-1], "stranger"], "value": values})
    with pytest.raises(GraphError, match="nodes of the graph, got 1 other ids"):
        inside.signal(strange)


# --- ways in -------------------------------------------------------------------------------


def test_tables_files_folders_and_patterns(con: Any, tmp_path: Path) -> None:
    edges, _ = edges_of(5)
    folder = tmp_path / "it's edges"
    folder.mkdir()
    for part, rows in enumerate(np.array_split(edges, 3, axis=1)):
        pq.write_table(
            pa.table({"src": rows[0], "dst": rows[1].astype("int32")}),
            folder / f"part-{part}.parquet",
        )
    con.create_table("my_edges", pa.table({"src": edges[0], "dst": edges[1]}), temp=True)
    expected = Graph(torch.from_numpy(edges), NODES).gcn()(np.ones(NODES))
    for given in (folder, str(folder / "*.parquet"), "my_edges"):
        inside = sql.open(con, given, num_nodes=NODES)
        np.testing.assert_allclose(inside.gcn()(inside.ones()).to_numpy(), expected, **CLOSE)
    one = sql.open("duckdb", folder / "part-0.parquet", threads=1, memory="500MB", tmp=tmp_path)
    assert one.num_edges == 20
    assert repr(one).startswith("LakeGraph(duckdb, ")
    assert one.num_nodes == edges[:, :20].max() + 1


def test_features_in_every_form(con: Any, tmp_path: Path) -> None:
    _, inside = both(con, 6, weighted=False)
    features = np.random.default_rng(0).standard_normal((NODES, 3))
    means = features.mean(1)
    order = np.random.default_rng(1).permutation(NODES)
    np.save(tmp_path / "means.npy", means)
    pq.write_table(pa.table({"node": order, "value": means[order]}), tmp_path / "means.parquet")
    wide = table_of(con, {"id": order, **{f"f{i}": features[order, i] for i in range(3)}})
    forms = [
        means,
        torch.from_numpy(means),
        means[:, None],
        tmp_path / "means.npy",
        str(tmp_path / "means.parquet"),
    ]
    for form in forms:
        np.testing.assert_allclose(inside.signal(form).to_numpy(), means, **CLOSE)
    np.testing.assert_allclose(inside.signal(wide, node="id").to_numpy(), means, **CLOSE)
    chosen = inside.signal(wide, node="id", value="f1")
    np.testing.assert_allclose(chosen.to_numpy(), features[:, 1], **CLOSE)
    assert inside.signal(chosen) is chosen


def test_a_database_file(tmp_path: Path) -> None:
    address = f"duckdb://{tmp_path / 'lake.db'}"
    first = sql.connect(address, threads=1)
    first.create_table("edges", pa.table({"src": [0, 1], "dst": [1, 2]}))
    first.disconnect()
    again = sql.connect(address, threads=1)
    assert sql.open(again, "edges").num_nodes == 3
    again.disconnect()


def test_temporary_tables_go_with_their_vectors(con: Any) -> None:
    _, inside = both(con, 0, weighted=False)

    def held() -> int:
        gc.collect()  # what other tests left to the collector must not go in between
        return len([name for name in con.list_tables() if name.startswith("virgo_")])

    x = inside.gcn()(inside.ones())
    before = held()
    for _ in range(5):
        x = inside.gcn()(x)
    assert held() == before


def test_a_spill_folder_goes_with_its_connection() -> None:
    connection = sql.connect("duckdb", threads=1)
    folder = Path(connection.settings["temp_directory"])
    assert folder.is_dir()
    connection.disconnect()
    del connection
    gc.collect()
    assert not folder.exists()


# --- checkpoints ---------------------------------------------------------------------------


def run(inside: sql.LakeGraph, hops: int) -> np.ndarray:
    x = inside.signal(np.linspace(-1.0, 2.0, NODES))
    for _ in range(hops):
        x = inside.gcn()(x)
        x = scaled(x, 1 / np.sqrt(squared_norm(x)))
    joined = root_of_squares([x, inside.mean().T(x)])
    return joined.to_numpy()


def test_a_second_run_resumes_where_the_first_one_stopped(con: Any, tmp_path: Path) -> None:
    folder = tmp_path / "it's kept"

    def start() -> sql.LakeGraph:
        return both(con, 0, weighted=True, checkpoint=folder)[1]

    first = start()
    expected = run(first, 2)
    done = [
        "signal",
        "degrees",
        *["gcn(improved=False, add_self_loops=True)"] * 2,
        "mean, transposed",
        "2 terms together",
    ]
    assert first.home.results.computed == done
    second = start()
    np.testing.assert_array_equal(run(second, 2), expected)
    assert (second.home.results.computed, len(second.home.results.resumed)) == ([], 6)
    longer = start()
    run(longer, 3)
    assert longer.home.results.computed == [done[2], *done[4:]]
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_other_inputs_compute_anew(con: Any, tmp_path: Path) -> None:
    def graph(seed: int = 0, **options: Any) -> sql.LakeGraph:
        options = {"weighted": True, **options}
        return both(con, seed, checkpoint=tmp_path, **options)[1]

    inside = graph()
    inside.gcn()(inside.ones())
    for other in (graph(seed=1), graph(weighted=False), graph(keep_loops=False)):
        other.gcn()(other.ones())
        assert not other.home.results.resumed
    same = graph()
    for op in (same.gcn(improved=True), same.gcn().T):
        op(same.ones())
    same.gcn()(scaled(same.ones(), 2.0))
    hops = [note for note in same.home.results.resumed if note != "degrees"]
    assert not hops
    turned = graph().reversed
    turned.gcn()(turned.ones())
    assert not turned.home.results.resumed


def test_an_edge_that_moved_is_another_graph(con: Any, tmp_path: Path) -> None:
    keys = set()
    for target in (1, 2):
        table = table_of(con, {"src": [0, 1, 2, 3], "dst": [target, 3, 3, 0]})
        keys.add(sql.LakeGraph(table, checkpoint=tmp_path).key)
    assert len(keys) == 2


@pytest.mark.parametrize("damage", ["truncated", "lost", "changed", "unsealed", "garbled"])
def test_a_damaged_result_is_computed_again(con: Any, tmp_path: Path, damage: str) -> None:
    def start() -> sql.LakeGraph:
        return both(con, 0, weighted=True, checkpoint=tmp_path)[1]

    expected = run(start(), 2)
    notes = {path: json.loads(path.read_text())["note"] for path in tmp_path.glob("*.json")}
    manifest = next(path for path, note in notes.items() if note.startswith("gcn"))
    data = manifest.with_suffix(".parquet")
    if damage == "truncated":
        data.write_bytes(data.read_bytes()[:-20])
    elif damage == "lost":
        data.unlink()
    elif damage == "changed":
        rows = pq.read_table(data).to_pandas()
        rows.loc[3, "value"] *= 1.001
        pq.write_table(pa.Table.from_pandas(rows), data)
    elif damage == "unsealed":
        manifest.unlink()
    else:
        manifest.write_text("{")
    again = start()
    np.testing.assert_allclose(run(again, 2), expected, **CLOSE)
    assert len(again.home.results.computed) == 1
    assert len(again.home.results.resumed) == 5


def test_an_interrupted_hop_leaves_nothing(
    con: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = both(con, 0, weighted=False, checkpoint=tmp_path)[1]
    inside.gcn()(inside.ones())

    def full(*args: object) -> None:
        raise OSError("No space left on device")

    before = sorted(tmp_path.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr("virgo.report.files.os.replace", full)
        with pytest.raises(DataError, match=r"mean: .*No space left.*same checkpoint="):
            inside.mean()(inside.ones())
    assert sorted(tmp_path.iterdir()) == before
    again = both(con, 0, weighted=False, checkpoint=tmp_path)[1]
    again.gcn()(again.ones())
    assert again.home.results.computed == []


def test_checkpoints_as_tables(tmp_path: Path) -> None:
    con = sql.connect(f"duckdb://{tmp_path / 'lake.db'}", threads=1)
    expected = run(both(con, 0, weighted=True, checkpoint="table:kept")[1], 2)
    again = both(con, 0, weighted=True, checkpoint="table:kept")[1]
    np.testing.assert_array_equal(run(again, 2), expected)
    assert not again.home.results.computed
    con.disconnect()


# --- whole plans ---------------------------------------------------------------------------

MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "gcn": lambda: GCN(16, 32, num_layers=3, out_channels=5),
    "sage": lambda: GraphSAGE(16, 32, num_layers=3, out_channels=5),
    "gin": lambda: GIN(16, 32, num_layers=3, out_channels=5),
}


@pytest.mark.parametrize("method", ["virgo-forward", "virgo-backward", "virgo"])
@pytest.mark.parametrize("model", MODELS)
def test_a_plan_equals_the_one_in_memory(con: Any, model: str, method: str) -> None:
    edges, _ = edges_of(7)
    table = table_of(con, {"src": edges[0], "dst": edges[1]})
    values = np.random.default_rng(0).uniform(0.1, 1.0, NODES)
    network = MODELS[model]()
    plain = Graph(torch.from_numpy(edges), NODES)
    expected = virgo.plan(network, plain, method, mean_features=values, num_classes=5)
    inside = sql.LakeGraph(table, num_nodes=NODES)
    made = virgo.plan(network, inside, method, mean_features=values, num_classes=5)
    assert made.variances == pytest.approx(expected.variances, rel=1e-9)
    assert made.graph == expected.graph


def test_a_signed_signal_is_checked_for_cancelling(con: Any) -> None:
    _, inside = both(con, 0, weighted=False)
    values = np.where(np.arange(NODES) % 2, 1.0, -1.0)
    with pytest.raises(GraphError, match="cancels"):
        virgo.plan(MODELS["gcn"](), inside, "virgo-forward", mean_features=values)


def test_mirrored_weights_are_refused(con: Any) -> None:
    _, inside = both(con, 0, weighted=False)
    with pytest.raises(OptionError, match="one number per node, got 2 columns"):
        inside.signal(np.ones((NODES, 2)))
    with pytest.raises(OptionError, match=r"got 3 columns .*another distribution"):
        inside.gcn()(np.ones((NODES, 3)))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"expected a vector of this graph.*graph\.ones"):
        inside.gcn()(np.ones(NODES))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="expected a vector of this graph"):
        inside.gcn()(both(con, 0, weighted=False)[1].ones())


# --- real graphs ---------------------------------------------------------------------------


def agree(con: Any, edges: np.ndarray, num_nodes: int, kinds: tuple[str, ...]) -> None:
    table = table_of(con, {"src": edges[0], "dst": edges[1]})
    plain = Graph(torch.from_numpy(edges), num_nodes)
    inside = sql.LakeGraph(table, num_nodes=num_nodes)
    values = np.random.default_rng(0).standard_normal(num_nodes)
    signal = inside.signal(values)
    for kind in kinds:
        for turn in (lambda op: op, lambda op: op.T):
            expected = turn(OPERATORS[kind](plain))(values.copy())
            found = turn(OPERATORS[kind](inside))(signal).to_numpy()
            np.testing.assert_allclose(
                found, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max()
            )


@pytest.mark.data
def test_cora(con: Any, cora: Data) -> None:
    agree(con, cora.edge_index.numpy(), cora.num_nodes, ("gcn", "mean", "gin", "cluster"))
    means = cora.x.double().mean(1).numpy()
    edges = cora.edge_index.numpy()
    inside = sql.LakeGraph(table_of(con, {"src": edges[0], "dst": edges[1]}), num_nodes=2708)
    network = GCN(cora.num_features, 64, num_layers=3, out_channels=7)
    expected = virgo.plan(network, cora, "virgo")
    made = virgo.plan(network, inside, "virgo", mean_features=means, num_classes=7)
    assert made.variances == pytest.approx(expected.variances, rel=1e-7)  # features are float32


@pytest.mark.data
@pytest.mark.parametrize(
    ("folder", "kinds"), [("ogbl_ddi", ("gcn", "gin")), ("ogbn_arxiv", ("gcn", "mean"))]
)
def test_ogb(con: Any, data_root: Path, folder: str, kinds: tuple[str, ...]) -> None:
    pandas = pytest.importorskip("pandas")
    found = sorted((data_root / folder).rglob("raw/edge.csv.gz"))
    if not found:
        pytest.skip(f"no real data: {data_root} has no {folder}/raw/edge.csv.gz")
    edges = pandas.read_csv(found[0], header=None).to_numpy().T
    edges = np.ascontiguousarray(np.concatenate([edges, edges[::-1]], axis=1))
    agree(con, edges, int(edges.max()) + 1, kinds)


# --- bad input -----------------------------------------------------------------------------

BAD_EDGES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "empty": ({"src": pa.array([], "int64"), "dst": pa.array([], "int64")}, {}, "empty table"),
    "null": ({"src": [0, None], "dst": [1, 1]}, {}, r"1 rows without one \(null\)"),
    "negative": ({"src": [0, -3], "dst": [1, 1]}, {}, r"ids from 0, got -3.*ids='any'"),
    "high": ({"src": [0, 9], "dst": [1, 1]}, {"num_nodes": 5}, "below num_nodes = 5, got 9"),
    "nan": ({"src": [0], "dst": [1], "w": [np.nan]}, {"weight": "w"}, "0 null and 1 NaN"),
    "infinite": ({"src": [0], "dst": [1], "w": [-np.inf]}, {"weight": "w"}, "1 NaN or infinite"),
    "no-weight": (
        {"src": [0, 0], "dst": [1, 1], "w": [None, 1.0]},
        {"weight": "w"},
        "got 1 null",
    ),
    "column": ({"src": [0], "to": [1]}, {}, "expected a column 'dst', got src, to"),
    "weight-column": ({"src": [0], "dst": [1]}, {"weight": "w"}, "expected a column 'w'"),
    "strings": ({"src": ["a"], "dst": ["b"]}, {}, "whole numbers in column 'src', got string"),
    "mixed": ({"src": [0], "dst": ["b"]}, {"ids": "any"}, "ids of one kind, got int64 and string"),
    "weight-text": ({"src": [0], "dst": [1], "w": ["x"]}, {"weight": "w"}, "numbers in column 'w'"),
    "ids": ({"src": [0], "dst": [1]}, {"ids": "some"}, "'dense' or 'any', got 'some'"),
    "count": ({"src": [0], "dst": [1]}, {"num_nodes": 0}, "whole number above 0, got 0"),
    "any-count": ({"src": [0], "dst": [1]}, {"num_nodes": 3, "ids": "any"}, "Pass nodes"),
    "prefix": ({"src": [0], "dst": [1]}, {"checkpoint": "table:a b"}, "letters, digits and _"),
}


@pytest.mark.parametrize("case", BAD_EDGES)
def test_bad_edges(con: Any, case: str) -> None:
    columns, options, message = BAD_EDGES[case]
    with pytest.raises(virgo.VirgoError, match=message):
        sql.LakeGraph(table_of(con, columns), **options)


BAD_FEATURES: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"node": [0, 1], "value": [1.0, 1.0]}, "each of 3 nodes, got 2"),
    "duplicate": ({"node": [0, 1, 1, 2], "value": [1.0] * 4}, "4 rows for 3 nodes"),
    "stranger": ({"node": [0, 1, 3], "value": [1.0] * 3}, "nodes of the graph, got ids out"),
    "nan": ({"node": [0, 1, 2], "value": [1.0, np.nan, 1.0]}, "0 rows with a null and 1 NaN"),
    "null": ({"node": [0, 1, None], "value": [1.0] * 3}, "1 rows with a null"),
    "column": ({"id": [0], "value": [1.0]}, "expected a column 'node', got id, value"),
    "only-nodes": ({"node": [0, 1, 2]}, "got only nodes"),
    "text": ({"node": [0, 1, 2], "value": ["a"] * 3}, "numbers in column 'value', got string"),
    "names": ({"node": ["a"], "value": [1.0]}, "whole numbers in column 'node'"),
}


@pytest.mark.parametrize("case", BAD_FEATURES)
def test_bad_features(con: Any, case: str) -> None:
    columns, message = BAD_FEATURES[case]
    inside = sql.LakeGraph(table_of(con, {"src": [0, 1], "dst": [1, 2]}))
    with pytest.raises(virgo.VirgoError, match=message):
        inside.signal(table_of(con, columns))


def test_bad_lists_of_nodes(con: Any) -> None:
    edges = table_of(con, {"src": ["a", "b"], "dst": ["b", "c"]})
    for listed, message in (
        (["a", "b"], "1 ends of edges that are not listed"),
        (["a", "b", "b", "c"], "got 1 duplicates"),
    ):
        with pytest.raises(GraphError, match=message):
            sql.LakeGraph(edges, nodes=table_of(con, {"node": listed}))
    with pytest.raises(OptionError, match="no list of nodes for ids that count from 0"):
        sql.LakeGraph(edges, nodes=edges, ids="dense")


def test_loops_of_which_no_one_is_the_last(con: Any) -> None:
    table = table_of(con, {"src": [0, 0, 1], "dst": [0, 0, 0], "w": [1.0, 2.0, 1.0]})
    inside = sql.LakeGraph(table, weight="w")
    with pytest.raises(GraphError, match="1 nodes with unlike ones"):
        inside.gcn()
    inside.gcn(add_self_loops=False)(inside.ones())
    inside.unweighted.gcn()(inside.ones())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: sql.open("duckdb", p / "none.parquet"), "expected Parquet files, got .*none"),
        (lambda p: sql.open("duckdb", p / "bad.parquet"), "expected Parquet files, got .*bad"),
        (lambda p: sql.open("duckdb", "no_such"), "got 'no_such', which is neither"),
        (lambda p: sql.open("duckdb", 3), "got int"),
        (lambda p: sql.open("oracle-of-delphi", "edges"), "engine: expected duckdb, spark"),
        (lambda p: sql.connect("duckdb", memory="lots"), "memory= and threads="),
        (lambda p: sql.connect("sqlite://", memory="1GB"), "expected them for duckdb and spark"),
        (lambda p: sql.LakeGraph("edges"), "expected a table of Ibis, got str"),
        (
            lambda p: sql.open("duckdb", p / "good.parquet", checkpoint=p / "bad.parquet"),
            "a folder that can be made",
        ),
    ],
    ids=["missing", "damaged", "name", "type", "engine", "memory", "other", "path", "folder"],
)
def test_bad_calls(call: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no more")
    pq.write_table(pa.table({"src": [0], "dst": [1]}), tmp_path / "good.parquet")
    with pytest.raises(virgo.VirgoError, match=message):
        call(tmp_path)


def test_a_cluster_needs_a_folder_that_all_of_it_reaches() -> None:
    from virgo.graph.sql.checkpoints import results_for

    session = SimpleNamespace(sparkContext=SimpleNamespace(master="spark://host:7077"))
    cluster = SimpleNamespace(
        name="pyspark", raw_sql=lambda query: SimpleNamespace(sparkSession=session)
    )
    with pytest.raises(OptionError, match="every executor of the cluster can write"):
        results_for(cluster, None)
    with pytest.raises(OptionError, match="'table:PREFIX' for the engine postgres"):
        results_for(SimpleNamespace(name="postgres"), "folder")


@pytest.mark.parametrize(
    ("missing", "engine", "extra"),
    [("ibis", "duckdb", "lake"), ("duckdb", "duckdb", "lake"), ("pyspark.sql", "spark", "spark")],
)
def test_a_missing_library_is_named(
    missing: str, engine: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(
        MissingExtra, match=rf"requires {missing.partition('.')[0]}.*virgo-gnn\[{extra}\]"
    ):
        sql.connect(engine)


@pytest.mark.parametrize("operator", ["sum", "gin", "graph"])
def test_ones_are_no_decimals(tmp_path: Path, operator: str) -> None:
    """Whose sums overflow, and which a checkpoint would keep as they are."""
    rng = np.random.default_rng(0)
    index = np.concatenate([rng.integers(0, 500, (2, 4000)), np.zeros((2, 400), int)], 1)
    index[0, -400:] = np.arange(400)  # a hub
    pq.write_table(pa.table({"src": index[0], "dst": index[1]}), tmp_path / "edges.parquet")
    model = chain(operator, [4] * 25)
    here = virgo.Graph(torch.from_numpy(index), 500)
    expected = virgo.plan(model, here, "virgo").variances
    there = sql.open(
        "duckdb", str(tmp_path / "edges.parquet"), num_nodes=500, checkpoint=tmp_path / "kept"
    )
    found = virgo.plan(model, there, "virgo").variances
    assert found == pytest.approx(expected, rel=1e-9)

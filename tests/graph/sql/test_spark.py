"""Graphs in tables, on a real Spark: equal numbers, whatever tasks and executors are lost."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.nn import GCN, GraphSAGE

import virgo
from virgo.graph.operators import Graph
from virgo.graph.vectors import extent, root_of_squares, scaled, squared_norm

pytest.importorskip("ibis", reason="needs virgo-gnn[spark]")
pytest.importorskip("pyspark", reason="needs virgo-gnn[spark]")
if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
    pytest.skip("no Java, which Spark needs", allow_module_level=True)

from virgo.graph import sql

# PySpark leaves its sockets to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NODES, EDGES = 40, 300
#: Small queries take as long as Spark takes to plan and compile them.
QUICK = {
    "spark.sql.shuffle.partitions": 2,
    "spark.default.parallelism": 2,
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.memory": "512m",
}
CLOSE = {"rtol": 1e-9, "atol": 1e-12}

OPERATORS: dict[str, Callable[[Any], Any]] = {
    "gin": lambda g: g.sum(1.3),
    "gcn": lambda g: g.gcn(improved=True),
    "cluster": lambda g: g.cluster_gcn(diag_lambda=0.4, by_source=True),
}


@pytest.fixture(scope="module")
def patched() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        # the tests' own functions run in Python beside the executors
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        yield patch


@pytest.fixture(scope="module")
def con(patched: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two threads, four tries a task."""
    connection = start("local[2,4]", tmp_path_factory.mktemp("warehouse"))
    yield connection
    connection.disconnect()


def start(master: str, folder: Path) -> Any:
    return sql.connect(master, tmp=folder, **QUICK, **{"spark.sql.warehouse.dir": folder})


def edges_of(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Loops, duplicates, two nodes without edges, and one with a third of all edges."""
    rng = np.random.default_rng(seed)
    edges = rng.integers(0, NODES - 2, (2, EDGES))
    edges[:, :4] = [[1, 1, 2, 5], [1, 1, 2, 5]]
    edges[1, 4:100] = 7
    weights = rng.uniform(0.1, 2.0, EDGES)
    loops = edges[0] == edges[1]
    weights[loops] = 0.5 + edges[0][loops] / 7
    return edges, weights


def frame_of(con: Any, columns: dict[str, Any]) -> Any:
    import pyarrow as pa

    return session_of(con).createDataFrame(pa.table(columns)).repartition(2)


def session_of(con: Any) -> Any:
    return con.raw_sql("SELECT 1").sparkSession


def both(con: Any, **options: Any) -> tuple[Graph, sql.LakeGraph]:
    edges, weights = edges_of(0)
    frame_of(con, {"src": edges[0], "dst": edges[1], "w": weights}).createOrReplaceTempView("edges")
    plain = Graph(torch.from_numpy(edges), NODES, torch.from_numpy(weights))
    return plain, sql.open(con, "edges", weight="w", num_nodes=NODES, **options)


def test_operators_equal_the_rows_in_memory(con: Any) -> None:
    plain, inside = both(con)
    values = np.random.default_rng(1).standard_normal(NODES)
    x = inside.signal(values)
    for name, make in OPERATORS.items():
        expected, found = make(plain)(values.copy()), make(inside)(x)
        np.testing.assert_allclose(found.to_numpy(), expected, err_msg=name, **CLOSE)
        assert squared_norm(found) == pytest.approx(squared_norm(expected), rel=1e-9)
    expected = plain.gcn().T(values.copy())
    found = inside.gcn().T(x)
    np.testing.assert_allclose(found.to_numpy(), expected, **CLOSE)
    np.testing.assert_allclose(extent(found), extent(expected), **CLOSE)
    joined = root_of_squares([found, scaled(x, -2.0)]).to_numpy()
    np.testing.assert_allclose(joined, np.sqrt(expected**2 + 4 * values**2), **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [GCN, GraphSAGE])
def test_a_plan_equals_the_one_in_memory(con: Any, kind: Any) -> None:
    plain, inside = both(con)
    values = np.random.default_rng(0).uniform(0.1, 1.0, NODES)
    model = kind(16, 32, num_layers=2, out_channels=5)
    options = {"method": "virgo", "mean_features": values, "num_classes": 5}
    expected = virgo.plan(model, plain.unweighted, "virgo-backward", **options)
    made = virgo.plan(model, inside.unweighted, "virgo-backward", **options)
    assert made.variances == pytest.approx(expected.variances, rel=1e-9)


def hops(inside: sql.LakeGraph, count: int) -> np.ndarray:
    x = inside.signal(np.linspace(-1.0, 2.0, NODES))
    for _ in range(count):
        x = inside.gcn()(x)
        x = scaled(x, 1 / np.sqrt(squared_norm(x)))
    return x.to_numpy()


def expected_hops(count: int) -> np.ndarray:
    edges, weights = edges_of(0)
    operator = Graph(torch.from_numpy(edges), NODES, torch.from_numpy(weights)).gcn()
    x = np.linspace(-1.0, 2.0, NODES)
    for _ in range(count):
        x = operator(x)
        x = x / np.linalg.norm(x)
    return x


@pytest.mark.slow
def test_checkpoints(con: Any, tmp_path: Path) -> None:
    first = both(con, checkpoint=tmp_path)[1]
    np.testing.assert_allclose(hops(first, 2), expected_hops(2), **CLOSE)
    assert len(first.home.results.computed) == 4  # signal, degrees, two hops
    assert all((path / "_SUCCESS").exists() for path in tmp_path.glob("*.parquet"))
    second = both(con, checkpoint=tmp_path)[1]
    np.testing.assert_allclose(hops(second, 3), expected_hops(3), **CLOSE)
    assert second.home.results.computed == ["gcn(improved=False, add_self_loops=True)"]
    # half of a result is none
    victim = max(tmp_path.glob("*.parquet"), key=lambda path: path.stat().st_mtime)
    max(victim.glob("part-*.parquet"), key=lambda path: path.stat().st_size).unlink()
    third = both(con, checkpoint=tmp_path)[1]
    np.testing.assert_allclose(hops(third, 3), expected_hops(3), **CLOSE)
    assert len(third.home.results.computed) == 1


def watched(con: Any, name: str, act: Callable[[], None]) -> None:
    """The edges, read through a function of Python that runs in the executors."""
    from pyspark.sql.functions import udf
    from pyspark.sql.types import LongType

    edges, weights = edges_of(0)

    def look(value: int) -> int:
        act()
        return value

    frame = frame_of(con, {"src": edges[0], "dst": edges[1], "w": weights})
    frame = frame.withColumn("src", udf(look, LongType())("src"))
    frame.createOrReplaceTempView(name)


@pytest.mark.slow
def test_a_task_that_fails_is_tried_again(con: Any, tmp_path: Path) -> None:
    armed = str(tmp_path / "armed")

    def fail_once() -> None:
        if os.path.exists(armed):
            os.unlink(armed)
            raise RuntimeError("an accident in a task")

    watched(con, "flaky", fail_once)
    inside = sql.open(con, "flaky", weight="w", num_nodes=NODES, checkpoint=tmp_path / "kept")
    Path(armed).touch()
    np.testing.assert_allclose(hops(inside, 1), expected_hops(1), **CLOSE)
    assert not os.path.exists(armed)


def executors() -> set[int]:
    """The executors of this process: none of anybody else's."""
    psutil = pytest.importorskip("psutil", reason="needs psutil to find the executors")
    children = psutil.Process().children(recursive=True)
    found = set()
    for child in children:
        try:
            if any("CoarseGrainedExecutorBackend" in word for word in child.cmdline()):
                found.add(child.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
def test_a_killed_executor_and_a_lost_cluster(patched: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two executors of their own: one is killed in the middle of a hop. Then all of it is lost."""
    kept, started, slow = tmp_path / "kept", str(tmp_path / "started"), str(tmp_path / "slow")

    def dawdle() -> None:
        if os.path.exists(slow):
            open(started, "a").close()
            time.sleep(0.02)

    before = start("local[2]", tmp_path)
    hops(both(before, checkpoint=kept)[1], 1)
    before.disconnect()

    con = start("local-cluster[2,1,1024]", tmp_path)
    try:
        watched(con, "dawdling", dawdle)
        inside = sql.open(con, "dawdling", weight="w", num_nodes=NODES, checkpoint=kept)
        running = executors()
        assert len(running) == 2
        Path(slow).touch()
        found: list[np.ndarray] = []
        worker = threading.Thread(target=lambda: found.append(hops(inside, 3)))
        worker.start()
        while not os.path.exists(started):
            assert worker.is_alive()
            time.sleep(0.05)
        os.kill(min(running), signal.SIGKILL)
        assert not found
        time.sleep(1.0)
        os.unlink(slow)
        worker.join(120)
        np.testing.assert_allclose(found[0], expected_hops(3), **CLOSE)
        assert min(running) not in executors()
        # what the first cluster had done was not done again
        assert len(inside.home.results.resumed) == 3
        assert inside.home.results.computed == ["gcn(improved=False, add_self_loops=True)"] * 2
    finally:
        con.disconnect()

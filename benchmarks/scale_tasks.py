"""What benchmarks/scale.py measures, each in a process of its own that prints one line of JSON.

A process of its own, because its peak memory is one of the results.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
from turns import median_and_ratio, timed

from virgo.graph.threads import cores

WIDTHS = (128, 256, 256, 172)  # three layers, as on ogbn-papers100M
_READ = 1 << 24
_WRITTEN = 1 << 18


def peak_memory() -> int:
    """Peak resident bytes of this process, mapped files included."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


def uncached(path: Path) -> None:
    """Let the system forget a file, so that reading it is reading the disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# --- building -----------------------------------------------------------------------------------


def build(edges: Path, graph: Path, memory: str, nodes: int) -> dict[str, Any]:
    """``virgo graph build`` beside reading its input once and copying it, none of them cached.

    An array is read as bytes; Parquet and CSV are decoded by pyarrow, batch by batch.
    """
    uncached(edges)
    start = time.perf_counter()
    _read_once(edges)
    reading = time.perf_counter() - start
    uncached(edges)
    start = time.perf_counter()
    _copy_once(edges, graph.with_suffix(".copy"))
    copying = time.perf_counter() - start
    uncached(edges)
    start = time.perf_counter()
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "virgo.cli",
        "graph",
        "build",
        str(edges),
        str(graph),
        "--memory",
        memory,
        "--num-nodes",
        str(nodes),
        "--force",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"virgo graph build ended with {status}")
    seconds = time.perf_counter() - start
    return {
        "read_once_seconds": reading,
        "copy_once_seconds": copying,
        "seconds": seconds,
        "over_reading": seconds / reading,
        "over_copying": seconds / copying,
        "peak_bytes": usage.ru_maxrss * 1024,
        "memory_option": memory,
        "bytes": sum(f.stat().st_size for f in graph.iterdir()),
    }


def _read_once(path: Path) -> None:
    if path.suffix == ".npy":
        with open(path, "rb", buffering=0) as file:
            buffer = bytearray(_READ)
            while file.readinto(buffer):
                pass
    elif path.suffix == ".parquet":
        from pyarrow import parquet

        for _ in parquet.ParquetFile(path).iter_batches(batch_size=1 << 20):
            pass
    else:
        from pyarrow import csv

        for _ in csv.open_csv(path):
            pass


def _copy_once(path: Path, out: Path) -> None:
    """Byte by byte, to the disk; a file system that shares blocks would do less."""
    try:
        with open(path, "rb", buffering=0) as file, open(out, "wb", buffering=0) as copy:
            while block := file.read(_WRITTEN):
                copy.write(block)
            os.fsync(copy.fileno())
    finally:
        out.unlink(missing_ok=True)


def converted(edges: Path, out: Path) -> dict[str, Any]:
    """The edge list as Parquet or CSV."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    index = np.load(edges, mmap_mode="r")
    table = pa.table({"src": index[0], "dst": index[1]})
    (parquet.write_table if out.suffix == ".parquet" else csv.write_csv)(table, out)
    return {"bytes": out.stat().st_size}


# --- hops ---------------------------------------------------------------------------------------


@numba.njit(nogil=True)
def _gather(columns: Any, x: Any, begin: int, end: int) -> float:
    """The least that a hop must do: look up one number per edge."""
    total = 0.0
    for edge in range(np.uint64(begin), np.uint64(end)):
        total += x[columns[edge]]
    return total


def hop(graph: Path, rounds: int, rivals: bool) -> dict[str, Any]:
    """One hop of GCN's operator in memory, in turns with the others; edges a second."""
    import virgo

    stored = virgo.Graph.open(graph, in_memory=True)
    inside, operator = stored.by_target, stored.gcn()
    x = np.random.default_rng(0).random(stored.num_nodes)
    carried = [x.copy(), np.empty_like(x)]

    def virgo_hop() -> None:  # one after another, as in a plan
        carried[:] = operator(carried[0], overwrite=True, out=carried[1]), carried[0]

    functions: dict[str, Callable[[], Any]] = {
        "gather": lambda: _gathered(inside, carried[0]),
        "virgo": virgo_hop,
    }
    if rivals:
        functions |= _rivals(inside, x)
    times = timed("hop", functions, rounds)
    both = {name: median_and_ratio(times, name, "virgo") for name in times}
    found = {name: seconds for name, (seconds, _) in both.items()}
    ratios = {f"{name}_over_virgo": r for name, (_, r) in both.items() if name != "virgo"}
    return {
        "edges": stored.num_edges,
        "nodes": stored.num_nodes,
        "rounds": rounds,
        "seconds": found,
        "ratios": ratios,
        "peak_bytes": peak_memory(),
    }


def _gathered(rows: Any, x: Any) -> None:
    columns = rows.columns.view(f"u{rows.columns.itemsize}")
    parts = rows.blocks.size - 1  # as many as Virgo takes
    ends = np.linspace(0, columns.size, parts + 1).astype(np.int64)
    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(lambda i: _gather(columns, x, ends[i], ends[i + 1]), range(parts)))


def _rivals(rows: Any, x: Any) -> dict[str, Callable[[], Any]]:
    """scipy's and torch's sparse products with ready values, PyG's layer with its cache filled."""
    import torch
    from scipy.sparse import csr_array
    from torch_geometric.nn import GCNConv

    edges, nodes = rows.columns.size, rows.pointer.size - 1
    narrow = rows.pointer.astype(np.int32)
    values = np.ones(edges)
    scipys = csr_array((values, rows.columns, narrow), shape=(nodes, nodes))
    torchs = torch.sparse_csr_tensor(
        torch.from_numpy(narrow),
        torch.from_numpy(rows.columns),
        torch.from_numpy(values),
        size=(nodes, nodes),
    )
    vector = torch.from_numpy(x)
    targets = torch.repeat_interleave(torch.arange(nodes), torch.from_numpy(np.diff(rows.pointer)))
    index = torch.stack([torch.from_numpy(rows.columns.astype(np.int64)), targets])
    layer = GCNConv(1, 1, bias=False, cached=True)
    torch.nn.init.ones_(layer.lin.weight)
    column = vector.float()[:, None]

    def pyg() -> Any:
        with torch.no_grad():
            return layer(column, index)

    return {"scipy": lambda: scipys @ x, "torch": lambda: torchs @ vector, "pyg": pyg}


# --- plans --------------------------------------------------------------------------------------


def plan(graph: Path, mean_features: Path, in_memory: bool) -> dict[str, Any]:
    """Three layers' variances from a graph on disk: memory-mapped, or read into memory first."""
    import virgo
    from virgo.cli.planning import chain

    model = chain("gcn", WIDTHS)
    ready = peak_memory()
    start = time.perf_counter()
    stored = virgo.Graph.open(graph, in_memory=in_memory)
    made = virgo.plan(model, stored, "virgo-forward", mean_features=mean_features)
    seconds = time.perf_counter() - start
    return {
        "edges": stored.num_edges,
        "nodes": stored.num_nodes,
        "seconds": seconds,
        "peak_bytes": peak_memory(),
        "libraries_bytes": ready,
        "variances": list(made.variances.values()),
    }


def end_to_end(edges: Path, rounds: int) -> dict[str, Any]:
    """From ``edge_index`` in memory to variances, beside the released code's route."""
    import torch
    from init_cost import through_gcnconv, through_virgo
    from torch_geometric.data import Data

    index = torch.from_numpy(np.load(edges).astype(np.int64))
    nodes = int(index.max()) + 1
    x = torch.rand(nodes, 8, generator=torch.Generator().manual_seed(0))
    data = Data(x=x, edge_index=index, y=torch.arange(nodes) % 40)
    routes = {"virgo": through_virgo, "released": through_gcnconv}
    answers: dict[str, Any] = {}

    def take(name: str) -> None:
        answers[name] = routes[name](data)

    times = timed("route", {name: partial(take, name) for name in routes}, rounds)
    worst = max(abs(a / b - 1) for a, b in zip(*answers.values(), strict=True))
    both = {name: median_and_ratio(times, name, "virgo") for name in routes}
    return {
        "edges": index.shape[1],
        "nodes": nodes,
        "ratio": both["released"][1],
        "largest_difference": worst,
        "seconds": {name: seconds for name, (seconds, _) in both.items()},
    }


def engines(edges: Path, graph: Path, mean_features: Path, which: str) -> dict[str, Any]:
    """The same plan by joins in DuckDB or Spark."""
    import virgo
    from virgo.cli.planning import chain
    from virgo.graph import sql

    model, stored = chain("gcn", WIDTHS), virgo.Graph.open(graph)
    start = time.perf_counter()
    ours = virgo.plan(model, stored, "virgo-forward", mean_features=mean_features)
    csr = time.perf_counter() - start
    values = np.load(mean_features)
    start = time.perf_counter()
    there = sql.open(which, str(edges), num_nodes=stored.num_nodes)
    theirs = virgo.plan(model, there, "virgo-forward", mean_features=values)
    seconds = time.perf_counter() - start
    pairs = zip(ours.variances.values(), theirs.variances.values(), strict=True)
    return {
        "edges": stored.num_edges,
        "nodes": stored.num_nodes,
        "seconds": seconds,
        "stored_seconds": csr,
        "over_stored": seconds / csr,
        "largest_difference": max(abs(a / b - 1) for a, b in pairs),
    }


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    task = globals()[order.pop("task")]
    paths = ("edges", "graph", "mean_features", "out")
    given = {key: Path(value) if key in paths else value for key, value in order.items()}
    print(json.dumps(task(**given)))

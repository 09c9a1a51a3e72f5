"""Faults and load: what was tried, what failed. Rewrites results/reliability.json with --publish.

    python benchmarks/reliability.py                   # everything (hours)
    python benchmarks/reliability.py "full disk" pickle --scale 0.1

Every experiment is a function that returns how often something was tried and what went wrong; the
slow tests run the same functions with fewer tries. What is not named keeps its entry.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from publishing import output_file

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]
Result = dict[str, Any]
#: Name -> (the function, tries at scale 1, what is guaranteed).
EXPERIMENTS: dict[str, tuple[Callable[[int], Result], int, str]] = {}


def experiment(name: str, tries: int, guarantee: str) -> Callable[[Any], Any]:
    """Register an experiment."""

    def register(function: Callable[[int], Result]) -> Callable[[int], Result]:
        EXPERIMENTS[name] = (function, tries, guarantee)
        return function

    return register


# --- damaged files, hostile calls ---------------------------------------------------------------


def _fuzzed(target: str) -> Callable[[int], Result]:
    def run(tries: int) -> Result:
        from kit import fuzz

        result = fuzz.run(target, 0, tries)
        return {"tried": tries, "bad": result["bad"][:20], "outcomes": result["outcomes"]}

    return run


for _target, _tries in (
    ("graphs", 2000),
    ("builds", 500),
    ("edges", 1000),
    ("plans", 1000),
    ("checkpoints", 500),
    ("stores", 300),
    ("records", 300),
):
    experiment(
        f"damaged {_target}",
        _tries,
        "a VirgoError or a result; no signal, no hang, no other exception",
    )(_fuzzed(_target))


@experiment(
    "hostile calls", 100, "a VirgoError; model, random state and torch's defaults as before"
)
def hostile_calls(percent: int) -> Result:
    import test_hostile_calls

    tried, bad = test_hostile_calls.run(min(1.0, percent / 100), verbose=True)
    return {"tried": tried, "bad": bad[:20]}


@experiment("cost of the bounds", 10, "a hop after the first is as fast as without any check")
def cost_of_bounds(repeats: int) -> Result:
    import numpy as np

    from virgo.graph.csr import Bounds, Compressed

    rng = np.random.default_rng(0)
    nodes, degree = 500_000, 16
    pointer = np.arange(nodes + 1, dtype=np.int64) * degree
    columns = rng.integers(0, nodes, nodes * degree, dtype=np.int32)
    x = rng.random(nodes)
    plain = Compressed.of_arrays(pointer, columns, None)
    plain.hop(x)
    first, later, unchecked = [], [], []
    for _ in range(max(3, repeats)):
        rows = Compressed.of_arrays(pointer, columns, None, Bounds("graph", nodes))
        for rows_, times in ((rows, first), (rows, later), (plain, unchecked)):
            began = time.perf_counter()
            rows_.hop(x)
            times.append(time.perf_counter() - began)
    base = min(unchecked)
    return {
        "tried": len(first),
        "bad": [],
        "first_hop": round(min(first) / base - 1, 4),
        "later_hops": round(min(later) / base - 1, 4),
        "edges": int(columns.size),
    }


# --- kills --------------------------------------------------------------------------------------


@experiment("killed builds", 100, "the finished graph has the checksums of an undisturbed build")
def killed_builds(kills: int) -> Result:
    """So many of each kind; some die while they sort, some before and after they rename."""
    from kit import edges as kit

    from virgo.graph.disk import build, read_header

    bad: list[str] = []
    tried: dict[str, int] = {}
    kinds = {"plain": {}, "symmetric": {"symmetric": True}, "relabelled": {"relabel": True}}
    for number, (kind, options) in enumerate(kinds.items()):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            edges = kit.random_edges(number, 5000, 60_000, weighted=number == 1)
            source = kit.WRITERS["npz"](edges, folder)
            build(source, folder / "quiet", memory=2**18, **options)
            quiet = {k: v.sha256 for k, v in read_header(folder / "quiet").files.items()}
            tried[kind], seed = 0, 0
            while tried[kind] < kills:
                some = min(kills - tried[kind] + 1, 25)
                arguments = [str(source), str(folder / f"g{seed}"), str(seed), str(some)]
                script = [sys.executable, str(ROOT / "tests/kit/edges.py")]
                words = [*script, *arguments, json.dumps({"memory": 2**18, **options})]
                environment = {**os.environ, "PYTHONPATH": _path()}
                done = subprocess.run(words, capture_output=True, text=True, env=environment)
                said = json.loads(done.stdout) if done.returncode == 0 else {"kills": some}
                tried[kind], seed = tried[kind] + said["kills"], seed + 1
                if said.get("files") != quiet:
                    bad.append(f"{kind}, seed {seed}: {done.stderr[-200:]}")
    return {"tried": sum(tried.values()), "bad": bad, "kinds": tried}


def _killed_sweeps(kills: int, storage: Callable[[Path, int], str]) -> Result:
    """Sweep after sweep, each killed until it is finished, in ``tests/kit/forked.py``."""
    killed: Counter[str] = Counter()
    bad: list[str] = []
    again = sweeps = 0
    with tempfile.TemporaryDirectory() as name:
        while killed.total() < kills and len(bad) < 5:
            folder = Path(name) / str(sweeps)
            folder.mkdir()
            most = min(20, kills - killed.total())
            words = [str(ROOT / "tests/kit/forked.py"), storage(folder, sweeps), str(folder)]
            words += [str(most), str(sweeps), str(Path(name) / "undisturbed.db")]
            ours = {"PYTHONPATH": _path(), "STUB_LOG": str(folder / "log"), "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                [sys.executable, *words], capture_output=True, text=True, env={**os.environ, **ours}
            )
            sweeps += 1
            if done.returncode:
                bad.append(f"sweep {sweeps}: {done.stderr[-300:]}")
                continue
            found = json.loads(done.stdout)
            killed.update(found["killed"])
            again += found["again"]
            bad += [f"sweep {sweeps}: {words}" for words in found["bad"]]
    return {"tried": killed.total(), "bad": bad, "kinds": dict(killed), "sweeps": sweeps,
            "seeds_run_again": again}  # fmt: skip


@experiment(
    "killed sweeps, SQLite", 100, "records of an undisturbed sweep; a killed worker costs one seed"
)
def killed_sweeps(kills: int) -> Result:
    return _killed_sweeps(kills, lambda folder, _: str(folder / "s.db"))


@experiment(
    "killed sweeps, PostgreSQL",
    100,
    "records of an undisturbed sweep; a killed worker costs one seed",
)
def killed_sweeps_on_a_server(kills: int) -> Result:
    from kit.postgres import new_database, served

    with served() as server:
        return _killed_sweeps(kills, lambda _, number: new_database(server, f"sweep{number}"))


# --- a full disk, a read-only one, little memory -------------------------------------------------


@contextlib.contextmanager
def _mounted(size: str, *, read_only: bool = False) -> Iterator[Path]:
    """A file system of its own: needs root, and a system that lets root mount."""
    with tempfile.TemporaryDirectory() as name:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", name], check=True)
        try:
            (Path(name) / "there").mkdir()
            if read_only:
                subprocess.run(["mount", "-o", "remount,ro", name], check=True)
            yield Path(name)
        finally:
            subprocess.run(["umount", "-l", name], check=True)


def _commands(disk: Path, elsewhere: Path) -> dict[str, list[str]]:
    import numpy as np

    rng = np.random.default_rng(0)
    np.save(elsewhere / "edges.npy", rng.integers(0, 10**5, (2, 10**6)))
    small = ["--dataset", "like:cora@0.05", "--epochs", "3"]
    sweep = ["--init", "xavier", "--limit", "2", "--seeds", "1", "--jobs", "0"]
    elsewhere_store = ["--storage", str(elsewhere / "s.db")]
    return {
        "graph build": ["graph", "build", str(elsewhere / "edges.npy"), str(disk / "graph")],
        "graph build --tmp": [
            *("graph", "build", str(elsewhere / "edges.npy"), str(elsewhere / "graph")),
            *("--tmp", str(disk)),
        ],
        "train --save": ["train", *small, "--save", str(disk / "run.safetensors")],
        "train --json": ["train", *small, "--json", str(disk / "run.json")],
        "sweep --storage": ["sweep", "table1", *small, *sweep, "--storage", str(disk / "s.db")],
        "sweep --out": ["sweep", "table1", *small, *sweep, *elsewhere_store, "--out", str(disk)],
    }


def _on_disk(size: str, read_only: bool) -> Result:
    bad, tried, said = [], 0, {}
    with tempfile.TemporaryDirectory() as name, _mounted(size, read_only=read_only) as disk:
        for what, words in _commands(disk, Path(name)).items():
            if not read_only:  # all but the last block is taken
                (disk / "filler").write_bytes(b"")
                with contextlib.suppress(OSError), open(disk / "filler", "wb") as filler:
                    while True:
                        filler.write(bytes(4096))
                        filler.flush()
            done = _virgo(words, cwd=Path(name))
            tried += 1
            said[what] = done.stderr.strip()[-200:]
            lines = [line for line in done.stderr.splitlines() if line.startswith("virgo: ")]
            if done.returncode != 2 or len(lines) != 1 or "Traceback" in done.stderr:
                bad.append(f"{what}: exit code {done.returncode}: {done.stderr.strip()[-300:]}")
            half = [path.name for path in disk.rglob("*") if path.suffix in (".json", ".jsonl")]
            if half and not read_only:
                bad.append(f"{what}: left {half}")
    return {"tried": tried, "bad": bad, "said": said}


@experiment(
    "full disk", 1, "one error that names the disk; no half-written file under a final name"
)
def full_disk(_: int) -> Result:
    return _on_disk("2m", read_only=False)


@experiment("read-only disk", 1, "one error that names the folder")
def read_only_disk(_: int) -> Result:
    return _on_disk("2m", read_only=True)


def _path() -> str:
    return os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), *sys.path])


def _virgo(
    words: list[str], *, cwd: Path, limit: int | None = None
) -> subprocess.CompletedProcess[str]:
    def narrow() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    return subprocess.run(
        [sys.executable, "-m", "virgo.cli", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        preexec_fn=narrow if limit is not None else None,
        env={**os.environ, "PYTHONPATH": _path(), "OMP_NUM_THREADS": "1"},
        timeout=900,
    )


@experiment("little memory", 4, "one error, or enough memory; no traceback, no signal")
def little_memory(tries: int) -> Result:
    """``ulimit -v`` above what importing takes, and below what the graph takes."""
    import numpy as np

    bad, codes = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rng = np.random.default_rng(0)
        np.save(folder / "edges.npy", rng.integers(0, 10**7, (2, 2 * 10**6)))
        build = ["graph", "build", "edges.npy", "graph", "--relabel", "--force"]
        _virgo(build, cwd=folder)
        for number in range(max(2, tries)):
            limit = (1100 + 100 * (number // 2)) * 2**20
            plan = ["plan", "graph", "--widths", "64", "64", "8", "--in-memory"]
            done = _virgo((build, plan)[number % 2], cwd=folder, limit=limit)
            codes.append(done.returncode)
            if done.returncode not in (0, 2) or "Traceback" in done.stderr:
                bad.append(f"{limit >> 20} MB: {done.returncode}: {done.stderr.strip()[-300:]}")
    return {"tried": len(codes), "bad": bad, "codes": codes}


# --- many at once -------------------------------------------------------------------------------


@experiment("two sweeps on one store", 3, "every seed is run once, by one of them")
def two_sweeps(tries: int) -> Result:
    from kit.sweeps import executions

    bad = []
    for number in range(tries):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            words = ["sweep", "table1", "--dataset", "cora", "--init", "xavier", "--limit", "8"]
            words += ["--seeds", "3", "--jobs", "2", "--storage", str(folder / "s.db")]
            words += ["--runner", "kit.sweep_stub:run", "--loader", "kit.sweep_stub:load"]
            environment = {**os.environ, "PYTHONPATH": _path(), "STUB_LOG": str(folder / "log")}
            command = [sys.executable, "-m", "virgo.cli", *words, "--out", name]
            both = [
                subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
                for _ in range(2)
            ]
            codes = [process.wait(timeout=900) for process in both]
            begun = executions(folder / "log")
            if codes != [0, 0] or len(begun) != 8 * 3 or set(begun.values()) != {1}:
                twice = sum(times > 1 for times in begun.values())
                bad.append(f"try {number}: codes {codes}, {len(begun)} seeds, {twice} twice")
    return {"tried": tries, "bad": bad}


def _small() -> tuple[Any, Any]:
    import torch
    from torch_geometric.nn import GCN

    import virgo

    data = virgo.data.citation_like(num_nodes=200, seed=0)
    torch.manual_seed(0)
    return GCN(data.num_features, 16, 3, 7), data


@experiment("threads that plan at once", 50, "the plan of a single thread, from each")
def planning_threads(threads: int) -> Result:
    import virgo

    model, data = _small()
    expected = virgo.plan(model, data, "virgo-backward", estimate="analytic").to_json()
    barrier, bad = threading.Barrier(threads), []
    models = [_small()[0] for _ in range(threads)]

    def plan(number: int) -> None:
        barrier.wait()
        if virgo.plan(models[number], data, "virgo-backward").to_json() != expected:
            bad.append(f"thread {number}")

    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(plan, number) for number in range(threads)]:
            try:
                future.result(timeout=600)
            except Exception as error:
                bad.append(f"{type(error).__name__}: {error}")
    return {"tried": threads, "bad": bad}


@experiment("bits of 1 and 2 threads", 50, "equal bits, whatever the number of threads")
def same_bits(million_edges: int) -> Result:
    import numpy as np

    from virgo.graph import threads
    from virgo.graph.csr import Compressed

    rng = np.random.default_rng(0)
    nodes = 500_000
    degrees = rng.multinomial(million_edges * 10**6, np.full(nodes, 1 / nodes))
    pointer = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    columns = rng.integers(0, nodes, int(pointer[-1]), dtype=np.int32)
    rows, x = Compressed.of_arrays(pointer, columns, None), rng.standard_normal(nodes)
    before, results = threads.cores, []
    try:
        for count in (1, 2):
            threads.cores = lambda count=count: count
            results.append(rows.hop(x))
    finally:
        threads.cores = before
    same = bool(np.array_equal(results[0], results[1]))
    return {"tried": 1, "bad": [] if same else ["other bits"], "edges": int(columns.size)}


@experiment("a clock that goes backwards", 3, "the sweep ends with all seeds")
def clock_backwards(tries: int) -> Result:
    from kit.sweeps import records, small

    from virgo.experiments.sweep.running import run

    bad, now = [], time.time
    for number in range(tries):
        with tempfile.TemporaryDirectory() as name:
            start, calls = now(), [0]

            def backwards(start: float = start, calls: list[int] = calls) -> float:
                calls[0] += 1
                return start - 3600.0 * calls[0]

            time.time = backwards
            try:
                progress = run(small(Path(name) / "s.db"), 0)
            finally:
                time.time = now
            found = records(Path(name) / "s.db")
            if progress.seeds != 9 or len(found) != 3:
                bad.append(f"try {number}: {progress.seeds} seeds, {len(found)} records")
    return {"tried": tries, "bad": bad}


# --- other processes ----------------------------------------------------------------------------


def _objects() -> dict[str, Any]:
    import virgo
    from virgo.graph.disk import build

    model, data = _small()
    plan = virgo.plan(model, data, "virgo-backward")
    folder = Path(tempfile.mkdtemp())
    import numpy as np

    np.save(folder / "edges.npy", data.edge_index.numpy())
    build(folder / "edges.npy", folder / "graph")
    return {
        "Plan": plan,
        "Row": plan.rows[0],
        "Measurement": virgo.measure(model, data),
        "Report": virgo.check(model, data, advice=False),
        "Comparison": virgo.compare(lambda: _small()[0], data, ["xavier"], seeds=1),
        "Thresholds": virgo.Thresholds(),
        "Graph": virgo.Graph(data.edge_index, data.num_nodes),
        "stored Graph": virgo.Graph.open(folder / "graph"),
        "Operator": virgo.Graph(data.edge_index, data.num_nodes).gcn(),
        "VirgoError": virgo.PlanError("plan: expected this, got that. Do something."),
        "Dataset": virgo.data.load("like:cora@0.05"),
    }


class _Pickler(pickle.Pickler):
    """Tensors by their values: torch's own pickles name addresses."""

    def reducer_override(self, value: Any) -> Any:
        import torch

        if isinstance(value, torch.Tensor):
            return torch.from_numpy, (value.detach().cpu().numpy(),)
        return NotImplemented


def _again(content: bytes) -> tuple[str, bytes]:
    """What a pickled object says of itself, and its content when it is pickled once more."""
    value, buffer = pickle.loads(content), io.BytesIO()
    _Pickler(buffer).dump(value)
    return repr(value), buffer.getvalue()


def _look(pipe: Any) -> None:
    """What another process makes of each object that it is sent, until it is sent nothing."""
    for content in iter(pipe.recv_bytes, b""):
        try:
            pipe.send(_again(content))
        except Exception as error:
            pipe.send((f"failed: {type(error).__name__}: {error}", b""))


@experiment("pickle, fork and spawn", 1, "the same object in another process")
def other_processes(_: int) -> Result:
    """One process for all objects: to import everything for each takes minutes."""
    bad, tried, objects = [], 0, _objects()
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        ours, theirs = context.Pipe()
        process = context.Process(target=_look, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        for name, value in objects.items():
            tried += 1
            content = pickle.dumps(value)
            try:
                ours.send_bytes(content)
                answer = ours.recv() if ours.poll(120) else ("no answer", b"")
            except (EOFError, OSError) as error:
                answer = (f"the process died: {error!r}", b"")
            if answer != _again(content):
                bad.append(f"{name}, {method}: {answer[0][:200]}")
            if answer[0] == "no answer":  # what it says later would be taken for the next one's
                break
        process.kill()
        process.join()
    return {"tried": tried, "bad": bad}


# --- the command --------------------------------------------------------------------------------


def run(name: str, scale: float = 1.0) -> Result:
    """One experiment, with its number of tries scaled."""
    function, tries, guarantee = EXPERIMENTS[name]
    began = time.monotonic()
    result = function(max(1, round(tries * scale)))
    seconds = round(time.monotonic() - began, 1)
    return {**result, "failed": len(result["bad"]), "seconds": seconds, "guarantee": guarantee}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"some of: {', '.join(EXPERIMENTS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of tries")
    path = output_file("reliability.json")
    args = parser.parse_args()
    from virgo.report.files import write_text_atomically

    for name in args.names or EXPERIMENTS:
        result = run(name, args.scale)
        print(f"{name}: tried {result['tried']}, failed {result['failed']}, {result['seconds']} s")
        for line in result["bad"]:
            print(f"  {line}")
        known = json.loads(path.read_text()) if path.is_file() else {}
        text = json.dumps({**known, name: result}, indent=1)
        write_text_atomically(path, text + "\n")


if __name__ == "__main__":
    main()

"""What a plan costs. Prints ratios from one run; rewrites results/init_cost.json.

    python benchmarks/init_cost.py [--nodes 1000000 --edges 12000000]

Side by side, alternating, on a generated power-law graph and on Cora (a generated graph of its
size where it is not at hand): Virgo's analytic plan; the same numbers through PyG's own GCNConv
propagation on one column, which is how the authors' code does it; one training epoch. Medians of
several rounds; the first call of each, with whatever it compiles or loads, is shown apart. Extra
memory is the peak above what was resident before, of a process that does nothing else. Spectral
weights follow every feature through a network, so they are timed apart, against a training step of
the same deep network, on Cora and PubMed where they are at hand: at most ten of them is what
they may cost. ``--spectral`` does this part only.
Without ``--publish`` the file goes to out/, and the published one stays as it is.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from publishing import output_file
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GCN, GCNConv

import virgo

ROOT = Path(__file__).resolve().parent.parent
SUMMARY = output_file("init_cost.json")
LAYERS, WIDTH, CLASSES = 3, 64, 40


def power_law(nodes: int, edges: int, features: int = 8, seed: int = 0) -> Data:
    """Endpoints drawn with Pareto-distributed propensities, as many graphs of the web are."""
    rng = np.random.default_rng(seed)
    weight = rng.pareto(1.5, nodes) + 1.0
    cumulative = np.cumsum(weight) / weight.sum()
    index = np.empty((2, edges), dtype=np.int64)
    for row in range(2):
        index[row] = np.searchsorted(cumulative, rng.random(edges)).clip(max=nodes - 1)
    index[1] = rng.permutation(nodes)[index[1]]  # hubs of one side are not hubs of the other
    x = torch.from_numpy(rng.random((nodes, features), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, CLASSES, nodes))
    return Data(x=x, edge_index=torch.from_numpy(index), y=y)


def make_model(data: Data) -> GCN:
    classes = int(data.y.max()) + 1
    return GCN(data.num_features, WIDTH, LAYERS, classes)


def through_virgo(data: Data) -> list[float]:
    return list(virgo.plan(make_model(data), data, "virgo-forward").variances.values())


def through_gcnconv(data: Data) -> list[float]:
    """The variances of Theorem 3 with PyG's layer as the operator."""
    model = make_model(data)
    identity = GCNConv(1, 1, bias=False)
    torch.nn.init.ones_(identity.lin.weight)
    with torch.no_grad():
        h = data.x.mean(1, keepdim=True)
        norms = [float(h.square().sum())]
        for _ in range(LAYERS):
            h = identity(h, data.edge_index)
            norms.append(float(h.square().sum()))
    return [2 / conv.in_channels * norms[i] / norms[i + 1] for i, conv in enumerate(model.convs)]


def epoch(data: Data) -> None:
    model = make_model(data)
    logits = model(data.x, data.edge_index)
    functional.cross_entropy(logits, data.y).backward()


def spectral_cost(name: str, data: Data, layers: int, rounds: int) -> dict:
    """Spectral weights and latches of a deep plain GCN, in its training steps; least of rounds."""
    model = GCN(data.num_features, WIDTH, layers, int(data.y.max()) + 1)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.001)

    def plan(data: Data) -> None:
        virgo.plan(model, data, "virgo+spectral")

    def init(data: Data) -> None:
        virgo.init_(model, data, "virgo+spectral")

    def latch(data: Data) -> None:
        virgo.latch_(model, data)
        virgo.fit_last_(model, data)

    def step(data: Data) -> None:
        optimiser.zero_grad()
        functional.cross_entropy(model(data.x, data.edge_index), data.y).backward()
        optimiser.step()

    functions = (plan, init, latch, step)
    seconds: dict[str, list[float]] = {function.__name__: [] for function in functions}
    for turn in range(rounds + 1):
        for function in functions:
            taken = timed(function, data)
            if turn:  # the first one compiles
                seconds[function.__name__].append(taken)
    least = {key: min(values) for key, values in seconds.items()}
    ratios = {key: round(least[key] / least["step"], 2) for key in ("plan", "init", "latch")}
    words = ", ".join(f"{key} x{ratio}" for key, ratio in ratios.items())
    print(f"  {name}, {layers} layers, in training steps: {words}", flush=True)
    return {
        "graph": name,
        "nodes": data.num_nodes,
        "edges": data.num_edges,
        "layers": layers,
        "threads": torch.get_num_threads(),
        "seconds": {key: round(value, 4) for key, value in least.items()},
        **{f"{key}_over_step": ratio for key, ratio in ratios.items()},
    }


def spectral_costs(rounds: int) -> list[dict]:
    """On the citation graphs that are at hand, by depth."""
    costs = []
    for name in ("cora", "pubmed"):
        try:
            data = virgo.data.load(name).data
        except virgo.VirgoError as error:
            print(f"  {name} left out: {error}")
            continue
        costs += [spectral_cost(name, data, layers, rounds) for layers in (8, 16, 64)]
    return costs


def timed(function: Callable[[Data], object], data: Data) -> float:
    start = time.perf_counter()
    function(data)
    return time.perf_counter() - start


def compare(name: str, data: Data, rounds: int) -> dict:
    first = {f.__name__: timed(f, data) for f in (through_virgo, through_gcnconv)}
    ours, theirs = through_virgo(data), through_gcnconv(data)
    worst = max(abs(a / b - 1) for a, b in zip(ours, theirs, strict=True))
    assert worst < 1e-3, f"the two routes disagree: {ours} {theirs}"  # theirs sums in float32
    seconds: dict[str, list[float]] = {"virgo": [], "gcnconv": [], "epoch": []}
    for _ in range(rounds):
        for key, function in zip(seconds, (through_virgo, through_gcnconv, epoch), strict=True):
            seconds[key].append(timed(function, data))
    median = {key: statistics.median(values) for key, values in seconds.items()}
    result = {
        "nodes": data.num_nodes,
        "edges": data.num_edges,
        "seconds": {key: round(value, 4) for key, value in median.items()},
        "first_call_seconds": {key: round(value, 3) for key, value in first.items()},
        "gcnconv_over_virgo": round(median["gcnconv"] / median["virgo"], 2),
        "virgo_over_epoch": round(median["virgo"] / median["epoch"], 3),
        "largest_difference": worst,
    }
    print(f"{name}: {data.num_nodes:,} nodes, {data.num_edges:,} edges")
    print(f"  GCNConv route / Virgo plan: x{result['gcnconv_over_virgo']}")
    print(f"  Virgo plan / training epoch: x{result['virgo_over_epoch']}")
    return result


def _resident() -> int:
    """Peak resident bytes so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _memory(which: str, nodes: int, edges: int, queue: multiprocessing.Queue) -> None:
    functions = {"virgo": through_virgo, "gcnconv": through_gcnconv}
    small = power_law(1000, 5000)
    functions[which](small)  # libraries and compiled code are not the plan's memory
    data = power_law(nodes, edges)
    ballast = _resident()  # generating took more than the data: hold that much, so peaks count
    held = bytearray(0)
    current = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    held = bytearray(max(0, ballast - current))
    before = _resident()
    functions[which](data)
    queue.put(_resident() - before)
    del held


def extra_memory(which: str, nodes: int, edges: int) -> int:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_memory, args=(which, nodes, edges, queue))
    process.start()
    value: int = queue.get()
    process.join()
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=12_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--spectral", action="store_true", help="only spectral weights; the rest stays as it is"
    )
    args = parser.parse_args()
    if args.spectral:
        results = json.loads((ROOT / "results" / "init_cost.json").read_text(encoding="utf-8"))
        SUMMARY.write_text(
            json.dumps({**results, "spectral": spectral_costs(args.rounds)}, indent=1) + "\n"
        )
        return
    small, description = virgo.data.demo_graph()
    results = {"command": "python benchmarks/init_cost.py", "threads": torch.get_num_threads()}
    results["small"] = {"graph": description, **compare("small", small, 5 * args.rounds)}
    results["spectral"] = spectral_costs(args.rounds)
    results["large"] = compare("large (generated)", power_law(args.nodes, args.edges), args.rounds)
    edge_bytes = 16 * args.edges
    memory = {}
    for which in ("virgo", "gcnconv"):
        memory[which] = round(extra_memory(which, args.nodes, args.edges) / edge_bytes, 2)
        print(f"  extra memory of the {which} route / edge index: x{memory[which]}")
    results["large"]["extra_memory_over_edge_index"] = memory
    SUMMARY.parent.mkdir(exist_ok=True)
    SUMMARY.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

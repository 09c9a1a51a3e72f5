"""What does virgo.Monitor cost a training step? Prints the ratios; rewrites results/monitor_cost.json.

    python benchmarks/monitor_cost.py           # two to four minutes
    python benchmarks/monitor_cost.py --rounds 5

Two copies of one GCN train on one graph in turns, one of them with a monitor (every=20). A round
is 20 steps of each, one of which is recorded; what goes first alternates, so that a machine that
slows down slows both. The cost is the median over rounds of the ratio of their times, less one.
Beside it, two copies without any monitor: how far a ratio strays by itself. One thread.

cora-like: the generated citation graph at Cora's size, 2 layers of width 64, dense features.
large: random edges and features, 200,000 nodes, 2,000,000 edges, 3 layers of width 128.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GCN

import virgo
from virgo.diagnostics.monitor import Monitor

ROOT = Path(__file__).resolve().parent.parent
SUMMARY = ROOT / "results" / "monitor_cost.json"
EVERY, LIMIT = 20, 0.05


def cora_like() -> tuple[Data, GCN]:
    data = virgo.data.citation_like(seed=0)
    return data, GCN(data.num_features, 64, 2, 7, dropout=0.5, cached=True)


def large() -> tuple[Data, GCN]:
    generator = torch.Generator().manual_seed(0)
    nodes, edges, width = 200_000, 2_000_000, 128
    data = Data(
        x=torch.randn(nodes, width, generator=generator),
        edge_index=torch.randint(nodes, (2, edges), generator=generator),
        y=torch.randint(10, (nodes,), generator=generator),
        train_mask=torch.rand(nodes, generator=generator) < 0.1,
    )
    return data, GCN(width, width, 3, 10, cached=True)


GRAPHS = {"cora-like": (cora_like, 40), "large": (large, 4)}  # and rounds


def sparse(data: Data) -> torch.Tensor:
    """The adjacency as a CSR matrix: the fastest step there is, so the hardest to stay below."""
    n = data.num_nodes
    edges, ones = data.edge_index, torch.ones(data.edge_index.size(1))
    coo = torch.sparse_coo_tensor(edges.flip(0), ones, (n, n), check_invariants=False)
    return coo.to_sparse_csr()


class Run:
    """A model in training that can be asked for ``EVERY`` more steps."""

    def __init__(self, model: GCN, data: Data, adj: torch.Tensor, watched: bool) -> None:
        self.model, self.data, self.adj = copy.deepcopy(model), data, adj
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.monitor = Monitor(self.model, every=EVERY) if watched else None

    def seconds(self) -> float:
        mask, monitor = self.data.train_mask, self.monitor
        start = time.perf_counter()
        with monitor or nullcontext():
            for _ in range(EVERY):
                self.optimiser.zero_grad()
                logits = self.model(self.data.x, self.adj)
                functional.cross_entropy(logits[mask], self.data.y[mask]).backward()
                self.optimiser.step()
                if monitor:
                    monitor.step()
        return time.perf_counter() - start


def measure(name: str, rounds: int) -> dict:
    make, _ = GRAPHS[name]
    torch.manual_seed(0)
    data, model = make()
    adj = sparse(data)
    runs = {"plain": Run(model, data, adj, False), "watched": Run(model, data, adj, True),
            "control": Run(model, data, adj, False)}  # fmt: skip
    times: dict[str, list[float]] = {key: [] for key in runs}
    for number in range(rounds + 1):
        order = list(runs)[number % 3 :] + list(runs)[: number % 3]
        for key in order:
            seconds = runs[key].seconds()
            if number:  # the first fills caches
                times[key].append(seconds)
        print(f"\r{name} {number}/{rounds}   ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    assert len(runs["watched"].monitor.records) == rounds + 1
    ratios = {key: [a / b for a, b in zip(times[key], times["plain"], strict=True)] for key in runs}
    return {
        "nodes": data.num_nodes,
        "edges": data.num_edges,
        "layers": model.num_layers,
        "step_ms": round(1000 * statistics.median(times["plain"]) / EVERY, 3),
        "cost": round(statistics.median(ratios["watched"]) - 1, 4),
        "cost_quartiles": quartiles(ratios["watched"]),
        "control": round(statistics.median(ratios["control"]) - 1, 4),
        "control_quartiles": quartiles(ratios["control"]),
        "rounds": rounds,
    }


def quartiles(ratios: list[float]) -> list[float]:
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return [round(low - 1, 4), round(high - 1, 4)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, help="of 20 steps each; by default 40 and 4")
    parser.add_argument("--graphs", nargs="*", choices=GRAPHS, default=list(GRAPHS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = {name: measure(name, args.rounds or GRAPHS[name][1]) for name in args.graphs}
    for name, cell in found.items():
        low, high = cell["cost_quartiles"]
        print(f"{name}: step {cell['step_ms']:.1f} ms, monitor {cell['cost']:+.2%} "
              f"({low:+.2%} to {high:+.2%}), without one {cell['control']:+.2%}")  # fmt: skip
    if set(found) == set(GRAPHS):
        SUMMARY.parent.mkdir(exist_ok=True)
        facts = {"command": "python benchmarks/monitor_cost.py", "every": EVERY, "limit": LIMIT,
                 "threads": 1, "torch": torch.__version__, "machine": platform.machine()}  # fmt: skip
        SUMMARY.write_text(json.dumps({**facts, "graphs": found}, indent=1) + "\n")
    if any(cell["cost"] > LIMIT for cell in found.values()):
        sys.exit(f"expected a cost of at most {LIMIT:.0%} of a step")


if __name__ == "__main__":
    main()

"""What virgo.Monitor costs a training step. Prints it; rewrites results/monitor_cost.json.

    python benchmarks/monitor_cost.py           # about two minutes

Three copies of one GCN train on one graph in turns: one recorded at every step, two without a
monitor. What goes first changes from round to round, so a machine that slows down slows all.
``recorded`` is the median over rounds of the ratio of a recorded step's time to a plain one's, less
one; ``control`` the same of the two plain ones, that is how far a ratio strays by itself.
A step that is not recorded has no hooks and costs one method call, so at k=20 the monitor costs
``recorded / 20`` of a step. On the small graph, where it is quick, that is checked by rounds of 20
steps with every=20 (``direct``). One thread, and its processor time: neighbours on the machine do
not count.

cora-like: the generated citation graph at Cora's size, 2 layers of width 64, dense features.
large: random edges and features, 200,000 nodes, 2,000,000 edges, 3 layers of width 128.
Without ``--publish`` the file goes to out/, and the published one stays as it is.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from publishing import output_file
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GCN

import virgo
from virgo.diagnostics.monitor import Monitor

ROOT = Path(__file__).resolve().parent.parent
SUMMARY = output_file("monitor_cost.json")
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


ROUNDS = {"cora-like": 100, "large": 8}
DIRECT = {"cora-like": 20}
GRAPHS = {"cora-like": cora_like, "large": large}


def sparse(data: Data) -> torch.Tensor:
    """The adjacency as a CSR matrix: the fastest step there is, so the hardest to stay below."""
    n = data.num_nodes
    edges, ones = data.edge_index, torch.ones(data.edge_index.size(1))
    coo = torch.sparse_coo_tensor(edges.flip(0), ones, (n, n), check_invariants=False)
    return coo.to_sparse_csr()


class Run:
    """A model in training that can be asked for more steps."""

    def __init__(self, model: GCN, data: Data, adj: torch.Tensor, every: int | None) -> None:
        self.model, self.data, self.adj = copy.deepcopy(model), data, adj
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.monitor = Monitor(self.model, every=every) if every else None

    def seconds(self, steps: int) -> float:
        mask, monitor = self.data.train_mask, self.monitor
        start = time.process_time()
        with monitor or nullcontext():
            for _ in range(steps):
                self.optimiser.zero_grad()
                logits = self.model(self.data.x, self.adj)
                functional.cross_entropy(logits[mask], self.data.y[mask]).backward()
                self.optimiser.step()
                if monitor:
                    monitor.step()
        return time.process_time() - start


def in_turns(label: str, runs: dict[str, Run], steps: int, rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {key: [] for key in runs}
    for number in range(rounds + 1):
        shift = number % len(runs)
        for key in [*list(runs)[shift:], *list(runs)[:shift]]:
            seconds = runs[key].seconds(steps)
            if number:  # the first round fills caches
                times[key].append(seconds)
        print(f"\r{label} {number}/{rounds}   ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return times


def compare(label: str, make: Callable[[int | None], Run], every: int, rounds: int) -> dict:
    runs = {"plain": make(None), "watched": make(every), "control": make(None)}
    times = in_turns(label, runs, every, rounds)
    assert len(runs["watched"].monitor.records) == rounds + 1
    found = {"step_ms": round(1000 * statistics.median(times["plain"]) / every, 3)}
    for key in ("watched", "control"):
        ratios = [a / b - 1 for a, b in zip(times[key], times["plain"], strict=True)]
        quarters = statistics.quantiles(ratios, n=4, method="inclusive")
        found[key] = round(quarters[1], 4)
        found[f"{key}_quartiles"] = [round(quarters[0], 4), round(quarters[2], 4)]
    return found | {"rounds": rounds}


def measure(name: str) -> dict:
    torch.manual_seed(0)
    data, model = GRAPHS[name]()
    adj = sparse(data)

    def make(every: int | None) -> Run:
        return Run(model, data, adj, every)

    cell = {"nodes": data.num_nodes, "edges": data.num_edges, "layers": model.num_layers}
    recorded = compare(f"{name}, every step", make, 1, ROUNDS[name])
    cell |= {"cost": round(recorded["watched"] / EVERY, 4), "recorded": recorded}
    if name in DIRECT:
        cell["direct"] = compare(f"{name}, every {EVERY}", make, EVERY, DIRECT[name])
    return cell


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", nargs="*", choices=GRAPHS, default=list(GRAPHS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    found = {name: measure(name) for name in args.graphs}
    for name, cell in found.items():
        recorded = cell["recorded"]
        line = (
            f"{name}: step {recorded['step_ms']:.1f} ms, a recorded one "
            f"{recorded['watched']:+.0%} (two plain ones {recorded['control']:+.0%}), "
            f"at k={EVERY} {cell['cost']:+.2%}"
        )
        if "direct" in cell:
            line += f", directly {cell['direct']['watched']:+.2%}"
        print(line)
    if set(found) == set(GRAPHS):
        SUMMARY.parent.mkdir(exist_ok=True)
        facts = {"command": "python benchmarks/monitor_cost.py", "every": EVERY, "limit": LIMIT}
        facts |= {"threads": 1, "torch": torch.__version__, "machine": platform.machine()}
        SUMMARY.write_text(json.dumps({**facts, "graphs": found}, indent=1) + "\n")
    if any(cell["cost"] > LIMIT for cell in found.values()):
        sys.exit(f"expected a cost of at most {LIMIT:.0%} of a step")


if __name__ == "__main__":
    main()

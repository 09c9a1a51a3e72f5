"""Trials an hour: Virgo's engine beside a plain PyG loop. Rewrites results/sweep_throughput.json.

    python benchmarks/sweep_throughput.py                     # cora and pubmed, some minutes
    python benchmarks/sweep_throughput.py --datasets cora --configurations 4 --seeds 2

Both run the same trials of the paper's grid (configurations drawn at random, the same initial
weights by seed), one thread a process and one process a core, in turns: first one of them all seeds
of a configuration, then the other. The plain loop is what the released scripts do: dense features,
``GCNConv`` on the edge index, and after every step three passes over the whole graph for training,
validation and test accuracy, with the same early stopping. A last part runs one configuration with
many seeds in both and asks whether a test can tell their accuracies apart. Without the datasets it
runs on generated stand-ins and says so; those accuracies mean nothing.
Without ``--publish`` the file goes to out/, and the published one stays as it is.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import torch
from publishing import output_file
from torch.nn import functional
from torch_geometric.nn import GCN

import virgo
from virgo.experiments.tasks import Seeds, Settings, run, task_of

RESULT = output_file("sweep_throughput.json")
GRID = {
    "hidden_channels": (32, 64, 128),
    "num_layers": (2, 3, 4),
    "lr": (1e-3, 5e-3, 1e-2, 5e-2),
    "dropout": (0.0, 0.5),
    "weight_decay": (0.0, 5e-6),
}
COMPARED = {
    "hidden_channels": 64,
    "num_layers": 2,
    "lr": 0.01,
    "dropout": 0.5,
    "weight_decay": 5e-6,
}
PROTOCOL = {"epochs": 1000, "patience": 20}
INIT = "virgo-backward"
ENGINES = ("virgo", "plain")
_dataset: Any = None


def prepare(name: str) -> None:
    """In each process: one thread, and the dataset loaded before any time is taken."""
    global _dataset
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    _dataset = load(name)
    for engine in ENGINES:  # compiles
        trial(engine, dict(COMPARED, epochs=2, patience=None), 0)


def load(name: str) -> Any:
    try:
        return virgo.data.load(name)
    except virgo.DataError:
        return virgo.data.load(f"like:{name}")


def trial(engine: str, config: dict[str, Any], seed: int) -> tuple[float, float, int]:
    if engine == "virgo":
        outcome = run(_dataset, "gcn", INIT, config, seed)
        return outcome.valid, outcome.test, outcome.epochs
    return plain(config, seed)


def plain(config: dict[str, Any], seed: int) -> tuple[float, float, int]:
    settings, data = Settings.of(config), _dataset.data
    seeds = Seeds.of(seed)
    start = task_of(_dataset).start("gcn", INIT, settings, seeds)
    model = GCN(
        data.num_features,
        settings.hidden_channels,
        settings.num_layers,
        _dataset.num_classes,
        dropout=settings.dropout,
    )
    model.load_state_dict(start.state_dict())
    torch.manual_seed(seeds.training)
    optimiser = torch.optim.Adam(
        model.parameters(), settings.lr, weight_decay=settings.weight_decay
    )
    parts = {"train": data.train_mask, "valid": data.val_mask, "test": data.test_mask}
    best = {"valid": -1.0, "test": 0.0, "epoch": 0}
    for epoch in range(1, settings.epochs + 1):
        model.train()
        optimiser.zero_grad()
        output = model(data.x, data.edge_index)
        functional.cross_entropy(output[data.train_mask], data.y[data.train_mask]).backward()
        optimiser.step()
        model.eval()
        score = {}
        for name, mask in parts.items():
            with torch.no_grad():
                right = model(data.x, data.edge_index).argmax(1) == data.y
            score[name] = right[mask].float().mean().item()
        if score["valid"] >= best["valid"]:
            best = {"valid": score["valid"], "test": score["test"], "epoch": epoch}
        if settings.patience and epoch - best["epoch"] >= settings.patience:
            break
    return best["valid"], best["test"], epoch


def timed(pool: ProcessPoolExecutor, engine: str, config: dict[str, Any], seeds: range) -> Any:
    began = time.perf_counter()
    found = list(pool.map(trial, itertools.repeat(engine), itertools.repeat(config), seeds))
    return time.perf_counter() - began, found


def compare(found: dict[str, list[tuple[float, float, int]]]) -> dict[str, Any]:
    """Two-sample tests of validation and test accuracy, and of the number of epochs."""
    from scipy.stats import ks_2samp, ttest_ind

    result = {}
    for index, name in enumerate(("valid", "test", "epochs")):
        ours, theirs = ([row[index] for row in found[engine]] for engine in ENGINES)
        result[name] = {
            "virgo": statistics.mean(ours),
            "plain": statistics.mean(theirs),
            "sd": statistics.stdev(theirs),
            "p_mean": float(ttest_ind(ours, theirs, equal_var=False).pvalue),
            "p_distribution": float(ks_2samp(ours, theirs).pvalue),
        }
    return result


def measure(name: str, configurations: int, seeds: int, compared: int, jobs: int) -> dict[str, Any]:
    dataset = load(name)
    grid = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]
    drawn = np.random.default_rng(0).choice(len(grid), configurations, replace=False)
    seconds, epochs = dict.fromkeys(ENGINES, 0.0), dict.fromkeys(ENGINES, 0)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), prepare, (name,)) as pool:
        timed(pool, "virgo", dict(COMPARED, epochs=1), range(4 * jobs))  # starts the processes
        for index in sorted(drawn):
            for engine in ENGINES:
                took, found = timed(pool, engine, grid[index] | PROTOCOL, range(seeds))
                seconds[engine] += took
                epochs[engine] += sum(row[2] for row in found)
            print(
                f"  {name} {grid[index]}: x{seconds['plain'] / seconds['virgo']:.1f} so far",
                flush=True,
            )
        many = {e: timed(pool, e, COMPARED | PROTOCOL, range(compared))[1] for e in ENGINES}
    trials = configurations * seeds
    return {
        "dataset": dataset.name,
        "generated": dataset.generated,
        "trials": trials,
        "jobs": jobs,
        "ratio": seconds["plain"] / seconds["virgo"],
        "ratio_per_epoch": seconds["plain"] / seconds["virgo"] * epochs["virgo"] / epochs["plain"],
        "trials_per_hour": {engine: trials / seconds[engine] * 3600 for engine in ENGINES},
        "same_results": {"seeds": compared, **compare(many)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", nargs="+", default=["cora", "pubmed"])
    parser.add_argument("--configurations", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=4, help="of each configuration")
    parser.add_argument("--compared", type=int, default=40, help="seeds of the comparison")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    found = {}
    for name in args.datasets:
        row = measure(name, args.configurations, args.seeds, args.compared, args.jobs)
        found[name] = row
        said = f" ({row['generated']})" if row["generated"] else ""
        print(
            f"{row['dataset']}{said}: x{row['ratio']:.1f} the trials an hour of a plain PyG loop "
            f"(x{row['ratio_per_epoch']:.1f} an epoch), {row['trials']} trials each"
        )
        for part in ("valid", "test"):
            same = row["same_results"][part]
            print(
                f"  {part}: {100 * same['virgo']:.2f} and {100 * same['plain']:.2f} %, p = "
                f"{same['p_mean']:.2f} (means), {same['p_distribution']:.2f} (distributions)"
            )
    kept = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    RESULT.write_text(json.dumps(kept | found, indent=1) + "\n")


if __name__ == "__main__":
    main()

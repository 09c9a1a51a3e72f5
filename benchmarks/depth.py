"""How deep can a plain GCN be, by initialisation? Rewrites results/depth_benchmark.json.

    python benchmarks/depth.py                # resumes where it stopped
    python benchmarks/depth.py --table        # only prints what is there

A GCN of width 64 on Cora's public split, without residuals or norms, row-normalised features (as
the files have them, 0 and 1, in the row that says so), Adam, weight decay 5e-4, dropout 0.5 up to
8 layers and 0 above (dropout alone breaks a 64-layer network). The learning rate, of three
(smaller ones for deep networks), is chosen per cell by the mean validation accuracy over seeds; the
epoch by validation accuracy (at most 200, patience 60); tested once there. Without Cora it refuses:
an accuracy on a generated graph would mean nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional
from torch_geometric.nn import GCN

import virgo

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "results" / "depth_benchmark.jsonl"
SUMMARY = RECORDS.with_suffix(".json")
DEPTHS = (2, 4, 8, 16, 32, 64)
SHALLOW = 8
RATES = {True: (0.01, 0.003, 0.001), False: (0.001, 0.0003, 0.0001)}  # shallow, deep
METHODS = {
    "mirrored, raw features": ("virgo-backward", {"distribution": "mirrored"}),
    "mirrored": ("virgo-backward", {"distribution": "mirrored"}),
    "measured": ("virgo-backward", {"estimate": "measured"}),
    "Virgo": ("virgo-backward", {}),
    "Kaiming": ("kaiming-backward", {}),
    "Xavier": ("xavier", {}),
}
WIDTH, EPOCHS, PATIENCE, WEIGHT_DECAY = 64, 200, 60, 5e-4


def sparse(data: object) -> torch.Tensor:
    """The adjacency as a CSR matrix: PyG's spmm is several times faster than its scatter."""
    edges, n = data.edge_index, data.num_nodes
    ones = torch.ones(edges.size(1))
    return torch.sparse_coo_tensor(
        edges.flip(0), ones, (n, n), check_invariants=False
    ).to_sparse_csr()


def trial(data: object, adj: torch.Tensor, name: str, depth: int, rate: float, seed: int) -> dict:
    method, options = METHODS[name]
    dropout = 0.5 if depth <= SHALLOW else 0.0
    model = GCN(
        data.num_features, WIDTH, depth, int(data.y.max()) + 1, dropout=dropout, cached=True
    )
    start = time.perf_counter()
    virgo.init_(model, data, method, seed=seed, **options)
    init_seconds = time.perf_counter() - start
    torch.manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=WEIGHT_DECAY)
    best = {"val": -1.0, "test": 0.0, "epoch": 0}
    for epoch in range(EPOCHS):
        model.train()
        optimiser.zero_grad()
        logits = model(data.x, adj)
        loss = functional.cross_entropy(logits[data.train_mask], data.y[data.train_mask])
        if dropout:  # otherwise the training pass is the evaluation pass
            model.eval()
            with torch.no_grad():
                logits = model(data.x, adj)
        right = logits.detach().argmax(1) == data.y
        val = right[data.val_mask].float().mean().item()
        if val > best["val"]:
            test = right[data.test_mask].float().mean().item()
            best = {"val": val, "test": test, "epoch": epoch}
        if epoch - best["epoch"] >= PATIENCE or not torch.isfinite(loss):
            break
        loss.backward()
        optimiser.step()
    return {
        "name": name,
        "depth": depth,
        "rate": rate,
        "seed": seed,
        **best,
        "init_seconds": round(init_seconds, 3),
    }


def summarise(records: list[dict]) -> dict:
    cells: dict[str, dict] = {}
    for name in METHODS:
        for depth in DEPTHS:
            by_rate: dict[float, list[dict]] = {}
            for record in records:
                if (record["name"], record["depth"]) == (name, depth):
                    by_rate.setdefault(record["rate"], []).append(record)
            if not by_rate:
                continue
            rate, chosen = max(
                by_rate.items(), key=lambda item: statistics.mean(r["val"] for r in item[1])
            )
            tests = [100 * r["test"] for r in chosen]
            cells[f"{name}/{depth}"] = {
                "test_mean": round(statistics.mean(tests), 2),
                "test_sd": round(statistics.stdev(tests), 2) if len(tests) > 1 else None,
                "seeds": len(tests),
                "rate": rate,
            }
    return cells


def show(cells: dict) -> str:
    lines = ["| init | " + " | ".join(map(str, DEPTHS)) + " |", "|---" * (len(DEPTHS) + 1) + "|"]
    for name in reversed(METHODS):
        row = []
        for depth in DEPTHS:
            cell = cells.get(f"{name}/{depth}")
            spread = f" ± {cell['test_sd']:.1f}" if cell and cell["test_sd"] is not None else ""
            row.append(f"{cell['test_mean']:.1f}{spread}" if cell else "-")
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--depths", type=int, nargs="*", default=DEPTHS)
    parser.add_argument("--inits", nargs="*", choices=METHODS, default=list(METHODS))
    parser.add_argument("--table", action="store_true", help="print what is there and stop")
    args = parser.parse_args()
    records = (
        [json.loads(line) for line in RECORDS.read_text().splitlines()] if RECORDS.exists() else []
    )
    if not args.table:
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)  # vanished gradients are denormal, and denormals are slow
        try:
            data = virgo.data.load_citation("cora")
        except virgo.DataError as error:
            print(f"skipped: {error}")
            return
        raw = data.clone()
        data.x = data.x / data.x.sum(1, keepdim=True).clamp(min=1.0)
        adj = sparse(data)
        done = {(r["name"], r["depth"], r["rate"], r["seed"]) for r in records}
        wanted = [
            (name, depth, rate, seed)
            for depth in sorted(args.depths, reverse=True)
            for name in args.inits
            for rate in RATES[depth <= SHALLOW]
            for seed in range(args.seeds)
        ]
        todo = [key for key in wanted if key not in done]
        RECORDS.parent.mkdir(exist_ok=True)
        for i, key in enumerate(todo, 1):
            record = trial(raw if "raw" in key[0] else data, adj, *key)
            records.append(record)
            with RECORDS.open("a") as out:
                out.write(json.dumps(record) + "\n")
            print(
                f"\r{i}/{len(todo)} {key} val {record['val']:.3f} test {record['test']:.3f}   ",
                end="",
                file=sys.stderr,
                flush=True,
            )
        print(file=sys.stderr)
    cells = summarise(records)
    SUMMARY.write_text(
        json.dumps({"command": "python benchmarks/depth.py", "cells": cells}, indent=1)
    )
    print(show(cells))


if __name__ == "__main__":
    main()

"""Refill the tables of README.md and docs/*.md from results/: python docs/refresh.py

A table stands between ``<!-- name -->`` and ``<!-- end name -->``; what is between is never written
by hand. With --check nothing is written, and a stale table is an error.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from virgo.diagnostics.tables import refresh as with_assumptions
from virgo.sweep import records
from virgo.sweep.tables import build

ROOT = Path(__file__).resolve().parent.parent
GRAPHS = ("cora", "cora-all-nodes", "citeseer", "pubmed", "ogbn-arxiv")
DEPTHS = (2, 4, 8, 16, 32, 64)
INITS = ("Xavier", "Kaiming", "Virgo", "measured", "mirrored", "mirrored, raw features")


def results(name: str) -> dict[str, Any] | None:
    path = ROOT / "results" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] + ["--:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def depth() -> str:
    cells = (results("depth_benchmark") or {"cells": {}})["cells"]
    rows = []
    for name in INITS:
        row = [name]
        for layers in DEPTHS:
            cell = cells.get(f"{name}/{layers}")
            if cell is None:
                row.append("not run")
                continue
            spread = "" if cell["test_sd"] is None else f" ± {cell['test_sd']:.1f}"
            few = "" if cell["seeds"] >= 5 else f" ({cell['seeds']} seeds)"
            row.append(f"{cell['test_mean']:.1f}{spread}{few}")
        rows.append(row)
    return table(["initialisation", *(f"{layers} layers" for layers in DEPTHS)], rows)


def cost() -> str:
    found = results("init_cost")
    if found is None:
        return "not run"
    small, large = found["small"], found["large"]
    memory = large["extra_memory_over_edge_index"]
    rows = [
        ["the same numbers through PyG's `GCNConv`, over Virgo's plan (time)",
         f"x{small['gcnconv_over_virgo']:.1f}", f"x{large['gcnconv_over_virgo']:.1f}"],
        ["Virgo's plan over one training epoch (time)",
         f"x{small['virgo_over_epoch']:.2f}", f"x{large['virgo_over_epoch']:.2f}"],
        ["extra memory over the edge index, Virgo / `GCNConv`", "",
         f"x{memory['virgo']:.2f} / x{memory['gcnconv']:.2f}"],
    ]  # fmt: skip
    return table(
        ["3 layers", f"{small['nodes']:,} nodes, {small['edges']:,} edges",
         f"generated, {large['nodes']:,} nodes, {large['edges']:,} edges"], rows,
    )  # fmt: skip


def number(value: float | str | None) -> str:
    return f"x{value:.3g}" if isinstance(value, float) else str(value)


def compare() -> str:
    rows = []
    for graph in GRAPHS:
        found = results(f"compare-{graph}")
        if found is None:
            continue
        panels: dict[tuple[int, str], dict[str, Any]] = {}
        for curve in found["curves"]:
            key = (curve["depth"], curve["method"])
            panels.setdefault(key, {})[curve["direction"]] = curve
        for (layers, method), pair in panels.items():
            cells = []
            for direction in ("forward", "backward"):
                leaves = pair[direction]["leaves"]
                cells += [number(pair[direction]["stability"]), str(leaves or "never")]
            rows.append([graph, str(layers), method, *cells])
    return table(
        ["graph", "layers", "method", "forward max/min", "leaves x10 at", "backward max/min",
         "leaves x10 at"], rows,
    )  # fmt: skip


def claims() -> str:
    rows = []
    for graph in GRAPHS:
        found = results(f"compare-{graph}")
        for claim in found["claims"] if found else []:
            classic = f"{claim['classic']} {number(claim['classic_range'])}"
            rows.append([
                graph, str(claim["depth"]), claim["direction"], claim["virgo"],
                number(claim["virgo_range"]), classic,
                "confirmed" if claim["confirmed"] else "**not confirmed**",
            ])  # fmt: skip
    return table(
        ["graph", "layers", "direction", "method", "max/min", "best classic", "claim"], rows
    )


def monitor() -> str:
    found = results("monitor_cost")
    if found is None:
        return "not run"
    rows = [
        [name, f"{graph['nodes']:,}", f"{graph['edges']:,}",
         f"+{100 * graph['recorded']['watched']:.0f} %", f"+{100 * graph['cost']:.1f} %"]
        for name, graph in found["graphs"].items()
    ]  # fmt: skip
    header = ["graph", "nodes", "edges", "a recorded step", f"a step at every={found['every']}"]
    return table(header, rows)


def swept(name: str) -> str:
    """A table of ``virgo sweep`` from its records, as ``virgo table`` prints it."""
    path = ROOT / "results" / f"{name}.jsonl"
    return build(name, records.read(path) if path.is_file() else []).to_markdown()


def throughput() -> str:
    rows = []
    for row in (results("sweep_throughput") or {}).values():
        same = row["same_results"]
        name = f"{row['dataset']} (generated)" if row["generated"] else row["dataset"]
        rows.append(
            [name, f"x{row['ratio']:.1f}", f"x{row['ratio_per_epoch']:.1f}", str(row["trials"])]
            + [
                f"{100 * same[part]['virgo']:.2f} / {100 * same[part]['plain']:.2f} "
                f"(p = {same[part]['p_mean']:.2f})"
                for part in ("valid", "test")
            ]
        )
    header = ["graph", "trials an hour", "epochs an hour", "trials each",
              "validation, ours / plain", "test, ours / plain"]  # fmt: skip
    return table(header, rows) if rows else "not run"


def storage() -> str:
    found = results("storage_share")
    if found is None:
        return "not run"
    return (
        f"The storage takes {100 * found['storage_share']:.2f} % of a worker's time on SQLite with "
        f"{found['workers']} workers on {found['cores']} cores and seeds of "
        f"{found['seed_seconds']:.2f} s ({found['seeds']} seeds; "
        f"`python benchmarks/storage_share.py`)."
    )


TABLES: dict[str, Callable[[], str]] = {
    "depth": depth,
    "cost": cost,
    "compare": compare,
    "claims": claims,
    "monitor": monitor,
    "throughput": throughput,
    "storage": storage,
    "table1": lambda: swept("table1"),
    "table2": lambda: swept("table2"),
    "table3": lambda: swept("table3"),
    "depth-study": lambda: swept("depth"),
}


def refreshed(text: str) -> str:
    """``text`` with every table that is ours filled anew."""
    for name, make in TABLES.items():
        block = re.compile(f"<!-- {name} -->\n.*?<!-- end {name} -->", re.DOTALL)
        if block.search(text):
            fresh = f"<!-- {name} -->\n{make()}\n<!-- end {name} -->"
            text = block.sub(lambda _, fresh=fresh: fresh, text)
    verified = results("verify")  # tables A1 to A5, as `virgo verify --refresh` writes them
    return with_assumptions(text, verified) if verified else text


def main() -> int:
    stale = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        fresh = refreshed(text)
        if fresh != text:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(fresh, encoding="utf-8")
    if stale:
        print(("stale: " if "--check" in sys.argv else "refreshed: ") + ", ".join(stale))
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())

"""Virgo on large graphs, beside what else could do it: python benchmarks/scale.py, or make bench

    python benchmarks/scale.py                          # 10 M to 300 M edges, about half an hour
    python benchmarks/scale.py --edges 10e6 1.616e9     # these sizes
    python benchmarks/scale.py --table                  # prints what is there, measures nothing

On generated power-law graphs (benchmarks/rmat.py) with the average degree of ogbn-papers100M:

build    from an edge list to a graph on disk, over the time of reading the list once
hop      GCN's operator on one number per node, in turns with the bare look-up of one number per
         edge (the machine's limit), scipy's and torch's sparse product, PyG's GCNConv with its
         cache filled
plan     three layers' variances from the graph on disk, memory-mapped and in memory: time, peak
         resident memory
route    from edge_index to variances, over the released code's route through PyG's layer
engines  the same plan by joins in DuckDB and Spark

Every step runs in a process of its own and is written to results/benchmarks.json when it is done;
a step that is there with the same size is not run again unless --again. Ratios are medians of
turns in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import rmat

ROOT = Path(__file__).resolve().parent.parent
SUMMARY = ROOT / "results" / "benchmarks.json"
PICTURES = ROOT / "docs" / "images"
SIZES = (10_000_000, 30_000_000, 100_000_000, 300_000_000)
FORMATS = {"parquet": 100_000_000, "csv": 30_000_000}
RIVALS = 100_000_000  # the largest size whose rivals fit in memory beside each other
ROUTE = 30_000_000
ENGINES = {"duckdb": 30_000_000, "spark": 10_000_000}


def read() -> dict[str, Any]:
    return json.loads(SUMMARY.read_text()) if SUMMARY.is_file() else {"machine": {}, "steps": {}}


def write(found: dict[str, Any]) -> None:
    aside = SUMMARY.with_suffix(".part")
    aside.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    aside.rename(SUMMARY)


class Bench:
    """The steps that are asked for, one after another, resumable."""

    def __init__(self, work: Path, again: bool) -> None:
        self.work, self.again = work, again
        self.found = read()
        self.found["machine"] = {"cores": os.cpu_count(), "processor": platform.processor(),
                                 "python": platform.python_version()}  # fmt: skip

    def step(self, name: str, size: int, task: str, **options: Any) -> None:
        key = f"{name}/{size}"
        if key in self.found["steps"] and not self.again:
            return
        print(f"{name}, {size / 1e6:,.0f} M edges ...", end=" ", flush=True)
        start = time.perf_counter()
        result = self.run(task, **options)
        if result is None:
            print("failed")
            return
        self.found["steps"][key] = result
        write(self.found)
        print(f"{time.perf_counter() - start:.0f} s")

    def run(self, task: str, **options: Any) -> dict[str, Any] | None:
        """A task in a process of its own."""
        given = {k: str(v) if isinstance(v, Path) else v for k, v in options.items()}
        script = Path(__file__).with_name("scale_tasks.py")
        command = [sys.executable, "-W", "ignore", str(script), json.dumps({"task": task, **given})]
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        return None if done.returncode else json.loads(done.stdout.splitlines()[-1])

    def size(self, edges: int, memory: str, keep: bool) -> None:
        """Everything that is measured at one size."""
        self.work.mkdir(parents=True, exist_ok=True)
        listed, graph = self.work / f"{edges}.npy", self.work / f"graph-{edges}"
        mean = self.work / f"mean-{edges}.npy"
        nodes = rmat.nodes_for(edges)
        if not listed.exists():
            print(f"drawing {edges / 1e6:,.0f} M edges on {nodes / 1e6:,.1f} M nodes")
            rmat.write(listed, edges)
        if not mean.exists():
            np.save(mean, np.random.default_rng(0).random(nodes, dtype=np.float32))
        if not graph.exists():
            self.found["steps"].pop(f"build/{edges}", None)
        self.step("build", edges, "build", edges=listed, graph=graph, memory=memory, nodes=nodes)
        self.formats(edges, memory)
        rounds = 9 if edges <= RIVALS else 3
        self.step("hop", edges, "hop", graph=graph, rounds=rounds, rivals=edges <= RIVALS)
        for name, inside in (("mapped", False), ("in memory", True)):
            self.step(f"plan, {name}", edges, "plan", graph=graph, mean_features=mean,
                      in_memory=inside)  # fmt: skip
        if edges <= ROUTE:
            self.step("route", edges, "end_to_end", edges=listed, rounds=3)
        for engine, most in ENGINES.items():
            if edges <= most:
                table = listed.with_suffix(".parquet")
                self.step(engine, edges, "engines", edges=table, graph=graph, mean_features=mean,
                          which=engine)  # fmt: skip
        if not keep:
            for suffix in (".npy", *(f".{kind}" for kind in FORMATS)):
                listed.with_suffix(suffix).unlink(missing_ok=True)

    def formats(self, edges: int, memory: str) -> None:
        """The same graph from formats that have to be decoded."""
        for kind, most in FORMATS.items():
            there = self.work / f"{edges}.{kind}"
            if edges <= most and not there.exists():
                self.run("converted", edges=self.work / f"{edges}.npy", out=there)
            if edges <= most:
                out = self.work / "again"
                self.step(f"build, {kind}", edges, "build", edges=there, graph=out, memory=memory,
                          nodes=rmat.nodes_for(edges))  # fmt: skip
                shutil.rmtree(out, ignore_errors=True)


# --- showing ------------------------------------------------------------------------------------


def by_size(found: dict[str, Any], name: str) -> dict[int, Any]:
    """The results of one step, smallest graph first."""
    steps = {int(key.rpartition("/")[2]): value for key, value in found["steps"].items()
             if key.rpartition("/")[0] == name}  # fmt: skip
    return dict(sorted(steps.items()))


def slope(found: dict[str, Any]) -> float | None:
    """Of log seconds a hop against log edges; 1 where the cost is in proportion."""
    hops = {e: s["seconds"]["virgo"] for e, s in by_size(found, "hop").items()}
    if len(hops) < 2:
        return None
    return float(np.polyfit(np.log(list(hops)), np.log(list(hops.values())), 1)[0])


def lines(found: dict[str, Any]) -> list[str]:
    """Every ratio in words."""
    out = []
    for edges, one in by_size(found, "hop").items():
        ratios = ", ".join(f"{name.removesuffix('_over_virgo')} x{value:.2f}"
                           for name, value in one["ratios"].items())  # fmt: skip
        rate = one["edges"] / one["seconds"]["virgo"] / 1e6
        out.append(
            f"hop, {edges / 1e6:,.0f} M edges: {rate:,.0f} M edges/s; times Virgo's: {ratios}"
        )
    if (found_slope := slope(found)) is not None:
        out.append(f"hop: cost grows as edges to the power {found_slope:.2f}")
    kinds = ("build", *(f"build, {kind}" for kind in FORMATS))
    for kind, edges, one in ((k, e, o) for k in kinds for e, o in by_size(found, k).items()):
        out.append(f"{kind}, {edges / 1e6:,.0f} M edges: x{one['over_reading']:.1f} of reading "
                   f"once, {one['seconds']:.0f} s, {one['peak_bytes'] / 1e9:.2f} GB")  # fmt: skip
    for name in ("plan, mapped", "plan, in memory"):
        for edges, one in by_size(found, name).items():
            out.append(f"{name}, {edges / 1e6:,.0f} M edges: {one['seconds']:.1f} s for 3 layers, "
                       f"{one['peak_bytes'] / 1e9:.2f} GB resident at most")  # fmt: skip
    for edges, one in by_size(found, "route").items():
        out.append(f"route, {edges / 1e6:,.0f} M edges: the released one takes x{one['ratio']:.1f}")
    for engine in ENGINES:
        for edges, one in by_size(found, engine).items():
            out.append(f"{engine}, {edges / 1e6:,.0f} M edges: {one['seconds']:.1f} s, "
                       f"x{one['over_stored']:.0f} of the graph on disk")  # fmt: skip
    return out


def pictures(found: dict[str, Any], folder: Path) -> None:
    """Cost of a hop and peak memory against edges."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    hops, folder = by_size(found, "hop"), Path(folder)
    names = {"gather": "bare look-up (limit)", "virgo": "Virgo", "scipy": "scipy CSR",
             "torch": "torch CSR", "pyg": "PyG GCNConv"}  # fmt: skip
    colours = {"gather": "0.6", "virgo": "#c2410c", "scipy": "#1d4ed8", "torch": "#7c3aed",
               "pyg": "#047857"}  # fmt: skip
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, label in names.items():
        points = {e: s["seconds"][name] for e, s in hops.items() if name in s["seconds"]}
        dashed = "--" if name == "gather" else "-"
        axes.loglog(list(points), list(points.values()), dashed, marker="o", markersize=4,
                    label=label, color=colours[name])  # fmt: skip
    axes.set(xlabel="directed edges", ylabel="seconds a hop", title="One hop, both cores")
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)
    figure.savefig(folder / "scale-hop.png", dpi=160)
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, colour in (("plan, mapped", "#c2410c"), ("plan, in memory", "#1d4ed8")):
        points = {e: s["peak_bytes"] / 1e9 for e, s in by_size(found, name).items()}
        axes.loglog(list(points), list(points.values()), marker="o", markersize=4, label=name,
                    color=colour)  # fmt: skip
    files = {e: 4e-9 * e for e in by_size(found, "plan, mapped")}
    axes.loglog(list(files), list(files.values()), "--", color="0.6", label="4 bytes an edge")
    axes.set(xlabel="directed edges", ylabel="peak resident GB", title="A plan of three layers")
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)
    figure.savefig(folder / "scale-memory.png", dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--edges", type=float, nargs="+", default=SIZES, help="directed edges")
    parser.add_argument("--work", type=Path, default=ROOT / "out" / "bench", help="for the graphs")
    parser.add_argument("--memory", default="2GB", help="for building (default %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the edge lists")
    parser.add_argument("--again", action="store_true", help="measure anew what is there")
    parser.add_argument("--table", action="store_true", help="print only")
    args = parser.parse_args()
    if not args.table:
        bench = Bench(args.work, args.again)
        for edges in sorted(int(size) for size in args.edges):
            bench.size(edges, args.memory, args.keep)
        pictures(bench.found, PICTURES)
    print("\n".join(lines(read())))


if __name__ == "__main__":
    main()

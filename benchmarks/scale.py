"""Virgo on large graphs, beside what else could do it: python benchmarks/scale.py, or make bench

    python benchmarks/scale.py                          # 10 M to 1.6 billion edges
    python benchmarks/scale.py --edges 10e6 30e6        # these sizes
    python benchmarks/scale.py --table                  # prints what is there, measures nothing

On generated power-law graphs (benchmarks/rmat.py) with the average degree of ogbn-papers100M:

build    from an edge list to a graph on disk, over the time of reading the list once and that of
         copying it
hop      GCN's operator on one number per node, hop after hop, in turns with the bare look-up of
         one number per edge (the machine's limit), scipy's and torch's sparse product, PyG's
         GCNConv with its cache filled
plan     three layers' variances from the graph on disk, memory-mapped and in memory: time, peak
         resident memory
route    from edge_index to variances, over the released code's route through PyG's layer
engines  the same plan by joins in DuckDB and Spark

Every step runs in a process of its own and is written to results/benchmarks.json when it is done;
a step that is there with the same size is not run again unless --again. Ratios are medians of
turns in one process.
Without ``--publish`` the file goes to out/, and the published one stays as it is.
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
from publishing import output_file

from virgo.report.files import write_text_atomically

ROOT = Path(__file__).resolve().parent.parent
SUMMARY = output_file("benchmarks.json")
PICTURES = ROOT / "docs" / "images"
SIZES = (10_000_000, 30_000_000, 100_000_000, 300_000_000, rmat.PAPERS_EDGES)
_DISK = 34  # bytes per edge: the list, what a build spills, the graph
FORMATS = {"parquet": 100_000_000, "csv": 30_000_000}
RIVALS = 100_000_000  # the largest size whose rivals fit in memory beside each other
ROUTE = 30_000_000
ENGINES = {"duckdb": 30_000_000, "spark": 10_000_000}


def read() -> dict[str, Any]:
    return json.loads(SUMMARY.read_text()) if SUMMARY.is_file() else {"machine": {}, "steps": {}}


def write(found: dict[str, Any]) -> None:
    write_text_atomically(SUMMARY, json.dumps(found, indent=1, sort_keys=True) + "\n")


class Bench:
    """The steps that are asked for, one after another, resumable."""

    def __init__(self, work: Path, again: bool) -> None:
        self.work, self.again, self.failed = work, again, 0
        self.found = read()
        self.found["machine"] = {
            "cores": os.cpu_count(),
            "processor": platform.processor(),
            "python": platform.python_version(),
        }

    def step(self, name: str, size: int, task: str, **options: Any) -> None:
        key = f"{name}/{size}"
        if key in self.found["steps"] and not self.again:
            return
        print(f"{name}, {size / 1e6:,.0f} M edges ...", end=" ", flush=True)
        start = time.perf_counter()
        result = self.run(task, **options)
        if result is None:
            print("failed")
            self.failed += 1
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
        files = Files(self.work, edges)
        steps = plan_of(files, memory)
        if not self.again and all(f"{name}/{edges}" in self.found["steps"] for name, *_ in steps):
            return
        free = shutil.disk_usage(self.work).free
        if free < _DISK * edges and not files.graph.exists():
            print(
                f"{edges / 1e6:,.0f} M edges left out: expected {_DISK * edges / 1e9:,.0f} GB "
                f"of free disk, got {free / 1e9:,.0f}. Give another --work."
            )
            return
        if not files.graph.exists():
            self.found["steps"].pop(f"build/{edges}", None)
        files.draw()
        for name, task, options in steps:
            there = options.get("edges")
            if there is not None and not there.exists():
                self.run("converted", edges=files.listed, out=there)
            self.step(name, edges, task, **options)
        shutil.rmtree(files.again, ignore_errors=True)
        if not keep and not self.failed:
            files.drop()


class Files:
    """Where a size's edge list, graph and signal are."""

    def __init__(self, work: Path, edges: int) -> None:
        self.edges, self.nodes = edges, rmat.nodes_for(edges)
        self.listed, self.graph = work / f"{edges}.npy", work / f"graph-{edges}"
        self.mean, self.again = work / f"mean-{edges}.npy", work / f"again-{edges}"

    def draw(self) -> None:
        """What is not there."""
        if not self.listed.exists():
            print(f"drawing {self.edges / 1e6:,.0f} M edges on {self.nodes / 1e6:,.1f} M nodes")
            rmat.write(self.listed, self.edges)
        if not self.mean.exists():
            np.save(self.mean, np.random.default_rng(0).random(self.nodes, dtype=np.float32))

    def drop(self) -> None:
        self.mean.unlink(missing_ok=True)
        for kind in ("npy", *FORMATS):
            self.listed.with_suffix(f".{kind}").unlink(missing_ok=True)
        shutil.rmtree(self.graph, ignore_errors=True)


def plan_of(files: Files, memory: str) -> list[tuple[str, str, dict[str, Any]]]:
    """The steps of one size: what each is called, its task, its options."""
    edges, graph, mean = files.edges, files.graph, files.mean
    building = {"memory": memory, "nodes": files.nodes}
    steps: list[tuple[str, str, dict[str, Any]]] = [
        ("build", "build", {"edges": files.listed, "graph": graph, **building})
    ]
    for kind, most in FORMATS.items():
        if edges <= most:
            given = {"edges": files.listed.with_suffix(f".{kind}"), "graph": files.again}
            steps.append((f"build, {kind}", "build", {**given, **building}))
    rivals = edges <= RIVALS
    steps.append(("hop", "hop", {"graph": graph, "rounds": 9 if rivals else 3, "rivals": rivals}))
    for name, inside in (("mapped", False), ("in memory", True)):
        given = {"graph": graph, "mean_features": mean, "in_memory": inside}
        steps.append((f"plan, {name}", "plan", given))
    if edges <= ROUTE:
        steps.append(("route", "end_to_end", {"edges": files.listed, "rounds": 3}))
    for engine, most in ENGINES.items():
        if edges <= most:
            table = files.listed.with_suffix(".parquet")
            given = {"edges": table, "graph": graph, "mean_features": mean, "which": engine}
            steps.append((engine, "engines", given))
    return steps


# --- showing ------------------------------------------------------------------------------------


def by_size(found: dict[str, Any], name: str) -> dict[int, Any]:
    """The results of one step, smallest graph first."""
    steps = {
        int(key.rpartition("/")[2]): value
        for key, value in found["steps"].items()
        if key.rpartition("/")[0] == name
    }
    return dict(sorted(steps.items()))


def growth(found: dict[str, Any]) -> dict[str, float]:
    """Of log seconds per hop against log edges, the slope; 1 where the cost is in proportion."""
    hops = by_size(found, "hop")
    if len(hops) < 2:
        return {}
    times = {name: [one["seconds"][name] for one in hops.values()] for name in ("virgo", "gather")}
    edges = np.log(list(hops))
    return {name: float(np.polyfit(edges, np.log(t), 1)[0]) for name, t in times.items()}


def lines(found: dict[str, Any]) -> list[str]:
    """Every ratio in words."""
    out = []
    for edges, one in by_size(found, "hop").items():
        ratios = ", ".join(
            f"{name.removesuffix('_over_virgo')} x{value:.2f}"
            for name, value in one["ratios"].items()
        )
        rate = one["edges"] / one["seconds"]["virgo"] / 1e6
        out.append(
            f"hop, {edges / 1e6:,.0f} M edges: {rate:,.0f} M edges/s; times Virgo's: {ratios}"
        )
    if powers := found.get("growth"):
        out.append(
            f"hop: cost grows as edges to the power {powers['virgo']:.2f}, that of the bare "
            f"look-up to the power {powers['gather']:.2f}"
        )
    kinds = ("build", *(f"build, {kind}" for kind in FORMATS))
    for kind, edges, one in ((k, e, o) for k in kinds for e, o in by_size(found, k).items()):
        out.append(
            f"{kind}, {edges / 1e6:,.0f} M edges: x{one['over_reading']:.1f} of reading "
            f"once, x{one['over_copying']:.1f} of copying, {one['seconds']:.0f} s, "
            f"{one['peak_bytes'] / 1e9:.2f} GB"
        )
    for name in ("plan, mapped", "plan, in memory"):
        for edges, one in by_size(found, name).items():
            out.append(
                f"{name}, {edges / 1e6:,.0f} M edges: {one['seconds']:.1f} s for 3 layers, "
                f"{one['peak_bytes'] / 1e9:.2f} GB resident at most"
            )
    for edges, one in by_size(found, "route").items():
        out.append(f"route, {edges / 1e6:,.0f} M edges: the released one takes x{one['ratio']:.1f}")
    for engine in ENGINES:
        for edges, one in by_size(found, engine).items():
            out.append(
                f"{engine}, {edges / 1e6:,.0f} M edges: {one['seconds']:.1f} s, "
                f"x{one['over_stored']:.0f} of the graph on disk"
            )
    return out


def pictures(found: dict[str, Any], folder: Path) -> None:
    """Cost of a hop and peak memory against edges."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    hops, folder = by_size(found, "hop"), Path(folder)
    names = {
        "gather": "bare look-up (limit)",
        "virgo": "Virgo",
        "scipy": "scipy CSR",
        "torch": "torch CSR",
        "pyg": "PyG GCNConv",
    }
    colours = {
        "gather": "0.6",
        "virgo": "#c2410c",
        "scipy": "#1d4ed8",
        "torch": "#7c3aed",
        "pyg": "#047857",
    }
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, label in names.items():
        points = {e: s["seconds"][name] for e, s in hops.items() if name in s["seconds"]}
        dashed = "--" if name == "gather" else "-"
        axes.loglog(
            list(points),
            list(points.values()),
            dashed,
            marker="o",
            markersize=4,
            label=label,
            color=colours[name],
        )
    axes.set(xlabel="directed edges", ylabel="seconds per hop", title="One hop, both cores")
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)
    figure.savefig(folder / "scale-hop.png", dpi=160)
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, colour in (("plan, mapped", "#c2410c"), ("plan, in memory", "#1d4ed8")):
        points = {e: s["peak_bytes"] / 1e9 for e, s in by_size(found, name).items()}
        axes.loglog(
            list(points), list(points.values()), marker="o", markersize=4, label=name, color=colour
        )
    files = {e: 4e-9 * e for e in by_size(found, "plan, mapped")}
    axes.loglog(list(files), list(files.values()), "--", color="0.6", label="4 bytes per edge")
    axes.set(xlabel="directed edges", ylabel="peak resident GB", title="A plan of three layers")
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)
    figure.savefig(folder / "scale-memory.png", dpi=160)


def main() -> int:
    """0 if every step that was asked for could be measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--edges", type=float, nargs="+", default=SIZES, help="directed edges")
    parser.add_argument("--work", type=Path, default=ROOT / "out" / "bench", help="for the graphs")
    parser.add_argument("--memory", default="2GB", help="for building (default %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep lists and graphs")
    parser.add_argument("--again", action="store_true", help="measure anew what is there")
    parser.add_argument("--table", action="store_true", help="print only")
    args = parser.parse_args()
    failed = 0
    if not args.table:
        args.work.mkdir(parents=True, exist_ok=True)
        bench = Bench(args.work, args.again)
        for edges in sorted(int(size) for size in args.edges):
            bench.size(edges, args.memory, args.keep)
        bench.found["growth"] = growth(bench.found)
        write(bench.found)
        pictures(bench.found, PICTURES)
        failed = bench.failed
    print("\n".join(lines(read())))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

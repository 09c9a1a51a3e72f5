"""How many graphs do the planned variances need? Rewrites results/approximation_graph.json.

    python benchmarks/approximation_graph.py [--png approximation_graph.png]
    python benchmarks/approximation_graph.py --table        # only prints what is there

Virgo's variances for graph classification come from the paper's approximation graph: training
graphs merged into one, all of them or a uniform sample. Here samples of growing size are drawn
several times each, and every plan is compared with that of all training graphs. The error of a plan
is its worst weight's: the largest of ``|variance / variance from all graphs - 1|``. Widths cancel
in it, so the networks are narrow. On undirected graphs whose nodes start alike (one-hot degrees,
embedded atoms) both methods have the same ratios in opposite order, so their curves coincide.
Without ``--publish`` the file goes to out/, and the published one stays as it is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from publishing import output_file

import virgo
from virgo.experiments.tasks import Settings
from virgo.experiments.tasks.graph import GraphTask

ROOT = Path(__file__).resolve().parent.parent
SUMMARY = output_file("approximation_graph.json")
DATASETS = ("ogbg-molhiv", "collab")
SIZES = (1, 3, 10, 30, 100, 300, 1000, 3000, 10000)
METHODS = ("virgo-forward", "virgo-backward")
LAYERS, WIDTH, DRAWS = 5, 8, 20
#: An error that no draw of the weights would show: 5 % of a variance, 2.5 % of a weight.
SMALL = 0.05


def variances(task: GraphTask, name: str, ids: torch.Tensor) -> dict[str, list[float]]:
    """The planned variances of both methods on some graphs merged."""
    model = task.build(name, Settings(hidden_channels=WIDTH, num_layers=LAYERS))
    data = task.merged.take(ids)
    return {
        m: list(virgo.plan(model, data, m, num_classes=False).variances.values()) for m in METHODS
    }


def error(found: list[float], whole: list[float]) -> float:
    """The worst weight's relative error."""
    return max(abs(a / b - 1) for a, b in zip(found, whole, strict=True))


def study(task: GraphTask, name: str, sizes: list[int], draws: int) -> dict[str, Any]:
    """Errors of one network's plans, by method and number of graphs."""
    train = task.split_of(0)["train"]
    began = time.perf_counter()
    whole = variances(task, name, train)
    seconds = time.perf_counter() - began
    rows: dict[str, list[dict[str, Any]]] = {method: [] for method in METHODS}
    for size in sizes:
        errors: dict[str, list[float]] = {method: [] for method in METHODS}
        began = time.perf_counter()
        for draw in range(draws):
            rng = np.random.default_rng([size, draw])
            ids = train[torch.from_numpy(rng.choice(train.numel(), size, replace=False))]
            if not task.merged.num_edges(ids):
                continue  # single atoms: nothing to plan on
            for method, found in variances(task, name, ids).items():
                errors[method].append(error(found, whole[method]))
        each = (time.perf_counter() - began) / draws
        for method, values in errors.items():
            tenths = statistics.quantiles(values, n=10, method="inclusive")
            rows[method].append(
                {
                    "graphs": size,
                    "draws": len(values),
                    "median": round(statistics.median(values), 5),
                    "low": round(tenths[0], 5),
                    "high": round(tenths[-1], 5),
                    "seconds": round(each / len(METHODS), 4),
                }
            )
    return {"seconds_of_all_graphs": round(seconds / len(METHODS), 3), "errors": rows}


def enough(rows: list[dict[str, Any]]) -> int | None:
    """The fewest graphs from which on nine of ten draws have a small error."""
    good = None
    for row in reversed(rows):
        if row["high"] > SMALL:
            break
        good = int(row["graphs"])
    return good


def figure(results: dict[str, Any]) -> Any:
    """Error against the number of graphs, a panel a dataset, as a matplotlib figure."""
    from matplotlib.figure import Figure

    from virgo.report.looks import COLUMN_WIDTH
    from virgo.report.plots import style

    datasets = results["datasets"]
    made = Figure(figsize=(COLUMN_WIDTH * len(datasets), 2.8), layout="constrained")
    panels = made.subplots(1, len(datasets), squeeze=False, sharey=True)[0]
    for axes, (name, dataset) in zip(panels, datasets.items(), strict=True):
        curves = [
            (f"{model}, {method}", rows)
            for model, found in dataset["models"].items()
            for method, rows in found["errors"].items()
        ]
        for index, (label, rows) in enumerate(curves):
            x = [row["graphs"] for row in rows]
            axes.plot(x, [row["median"] for row in rows], label=label, **style(label, index))
            axes.fill_between(
                x,
                [row["low"] for row in rows],
                [row["high"] for row in rows],
                color=style(label, index)["color"],
                alpha=0.12,
                lw=0,
            )
        axes.axhline(SMALL, color="grey", linewidth=0.8, linestyle=":")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(f"{name} ({dataset['train_graphs']:,} training graphs)", fontsize=9)
        axes.set_xlabel("sampled graphs", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(visible=True, alpha=0.25, linewidth=0.5)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    panels[0].set_ylabel("error of the worst variance", fontsize=9)
    panels[0].legend(fontsize=7, frameon=False)
    return made


def show(results: dict[str, Any]) -> str:
    """The results as lines of text."""
    lines = []
    for name, dataset in results["datasets"].items():
        lines.append(f"{name}: {dataset['train_graphs']:,} training graphs")
        if dataset["generated"]:
            lines.append(f"  [{dataset['generated']}]")
        for model, found in dataset["models"].items():
            for method, rows in found["errors"].items():
                errors = ", ".join(f"{row['graphs']}: {row['median']:.1%}" for row in rows)
                needed = found["enough"][method]
                word = f"{needed:,} graphs" if needed else "more than were sampled"
                lines.append(f"  {model} {method}: {errors}; below {SMALL:.0%} from {word}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--out", type=Path, default=SUMMARY)
    parser.add_argument("--png", type=Path, help="also draw the figure")
    parser.add_argument("--table", action="store_true", help="print what is there and stop")
    args = parser.parse_args()
    if args.table:
        results = json.loads(args.out.read_text())
    else:
        results = {
            "command": "python benchmarks/approximation_graph.py",
            "small": SMALL,
            "layers": LAYERS,
            "datasets": {},
        }
        for name in args.datasets:
            dataset = virgo.data.load(name)
            task = GraphTask(dataset)
            total = task.split_of(0)["train"].numel()
            sizes = [size for size in args.sizes if size < total]
            models = {model: study(task, model, sizes, args.draws) for model in ("gcn", "gin")}
            for found in models.values():
                found["enough"] = {m: enough(rows) for m, rows in found["errors"].items()}
            results["datasets"][name] = {
                "train_graphs": total,
                "generated": dataset.generated,
                "models": models,
            }
        args.out.parent.mkdir(exist_ok=True)
        args.out.write_text(json.dumps(results, indent=1))
    print(show(results))
    if args.png:
        figure(results).savefig(args.png, dpi=200)


if __name__ == "__main__":
    main()

"""Refill the tables of README.md and docs/*.md from results/: python docs/refresh.py

A table stands between ``<!-- name -->`` and ``<!-- end name -->``; what is between is never written
by hand. With --check nothing is written, and a stale table is an error.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import absent
import depth_tables
import reproduction

from virgo.experiments.assumptions.tables import refresh as with_assumptions

ROOT = Path(__file__).resolve().parent.parent
GRAPHS = ("cora", "cora-all-nodes", "citeseer", "pubmed", "ogbn-arxiv")
NETWORKS = {
    "ogbl-ddi": ("gcn", "sage", "ngnn-gcn", "ngnn-sage"),
    **dict.fromkeys(("imdb-b", "imdb-m", "collab", "ogbg-molhiv", "ogbg-molpcba"), ("gcn", "gin")),
}
VERDICT_METHODS = ("xavier", "kaiming-backward", "virgo-backward", "virgo-backward+mirrored")


def results(name: str) -> dict[str, Any] | None:
    path = ROOT / "results" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] + ["--:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cost() -> str:
    found = results("init_cost")
    if found is None:
        return "not run"
    small, large = found["small"], found["large"]
    memory = large["extra_memory_over_edge_index"]
    rows = [
        [
            "the same numbers through PyG's `GCNConv`, over Virgo's plan (time)",
            f"x{small['gcnconv_over_virgo']:.1f}",
            f"x{large['gcnconv_over_virgo']:.1f}",
        ],
        [
            "Virgo's plan over one training epoch (time)",
            f"x{small['virgo_over_epoch']:.2f}",
            f"x{large['virgo_over_epoch']:.2f}",
        ],
        [
            "extra memory over the edge index, Virgo / `GCNConv`",
            "",
            f"x{memory['virgo']:.2f} / x{memory['gcnconv']:.2f}",
        ],
    ]
    return table(
        [
            "3 layers",
            f"{small['nodes']:,} nodes, {small['edges']:,} edges",
            f"generated, {large['nodes']:,} nodes, {large['edges']:,} edges",
        ],
        rows,
    )


def spectral_cost() -> str:
    costs = (results("init_cost") or {}).get("spectral")
    if not costs:
        return "not run"
    rows = [
        [
            str(cost["graph"]),
            str(cost["layers"]),
            *(f"x{cost[f'{key}_over_step']:.1f}" for key in ("plan", "init", "latch")),
        ]
        for cost in costs
    ]
    header = ["graph", "layers", "`virgo.plan`", "`virgo.init_`", "`latch_` and `fit_last_`"]
    return table(header, rows)


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
        [
            "graph",
            "layers",
            "method",
            "forward max/min",
            "leaves x10 at",
            "backward max/min",
            "leaves x10 at",
        ],
        rows,
    )


def networks() -> str:
    """Links and graphs: a method a column, forward / backward max/min and the verdict."""
    methods: list[str] = []
    rows = []
    for dataset, models in NETWORKS.items():
        for model in models:
            for ending, ways in (("", ("all", "hidden")), ("-fresh", ("without BatchNorm",))):
                found = results(f"compare-{dataset}-{model}{ending}")
                if found is None:
                    continue
                methods = methods or list(dict.fromkeys(c["method"] for c in found["curves"]))
                facts = found["facts"]
                of = (
                    f" ({facts['graphs']:,} of {facts['training graphs']:,} graphs)"
                    if "graphs" in facts
                    else ""
                )
                of += " (one draw)" if found["seeds"] == 1 else ""
                for way in ways if "graphs" in facts else ("all",):
                    cells = [_ranges(found, method, way == "hidden") for method in methods]
                    rows.append([dataset + of, model, way, *cells])
    return table(["dataset", "model", "layers", *methods], rows) if rows else "not run"


def _ranges(found: dict[str, Any], method: str, hidden: bool) -> str:
    """``forward / backward`` of one method, and the verdict where it is not good."""
    curves = {c["direction"]: c for c in found["curves"] if c["method"] == method}
    if not curves:
        return "failed"
    ranges = []
    for direction in ("forward", "backward"):
        values = curves[direction]["values"][1:-1]
        inner = max(values) / min(values) if hidden else curves[direction]["stability"]
        ranges.append(number(inner))
    (level,) = (one["level"] for one in found["health"] if one["method"] == method)
    return " / ".join(ranges) + ("" if level == "good" else f" **{level}**")


def claims() -> str:
    rows = []
    for graph in GRAPHS:
        found = results(f"compare-{graph}")
        for claim in found["claims"] if found else []:
            classic = f"{claim['classic']} {number(claim['classic_range'])}"
            rows.append(
                [
                    graph,
                    str(claim["depth"]),
                    claim["direction"],
                    claim["virgo"],
                    number(claim["virgo_range"]),
                    classic,
                    "confirmed" if claim["confirmed"] else "**not confirmed**",
                ]
            )
    return table(
        ["graph", "layers", "direction", "method", "max/min", "best classic", "claim"], rows
    )


def _judged() -> list[dict[str, Any]]:
    path = ROOT / "results" / "verdict.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines]


def verdicts() -> str:
    """What check said of the networks of benchmarks/verdict.py, and how they trained."""
    found, rows = _judged(), []
    for kind in dict.fromkeys((r["dataset"], r["network"], r["depth"]) for r in found):
        mine = [r for r in found if (r["dataset"], r["network"], r["depth"]) == kind]
        by_method = {r["method"]: r for r in mine}
        cells = [_outcome(by_method.get(method)) for method in VERDICT_METHODS]
        rows.append([f"{kind[0]}, {kind[1]}", str(kind[2]), *cells])
    return table(["network", "layers", *VERDICT_METHODS], rows) if rows else "not run"


def _outcome(record: dict[str, Any] | None) -> str:
    """The verdict and the accuracy, bold where the two disagree."""
    if record is None:
        return "-"
    mark = " (set)" if record["half"] == "set" else ""
    mark += " unfinished" if record["unfinished"] else ""
    words = f"{record['verdict']}, {100 * record['test']:.1f}"
    return f"**{words}**{mark}" if record["right"] is False else f"{words}{mark}"


def verdict_share() -> str:
    """How often the verdict was right, on each half."""
    found, rows = _judged(), []
    for part in ("set", "held out"):
        everyone = [r for r in found if r["half"] == part]
        finished = [r for r in everyone if not r["unfinished"]]
        levels = {
            level: [r["trained"] for r in finished if r["verdict"] == level]
            for level in ("good", "bad", "watch")
        }
        rows.append(
            [
                part,
                str(len(everyone)),
                f"{sum(levels['good'])} of {len(levels['good'])}",
                f"{levels['bad'].count(False)} of {len(levels['bad'])}",
                str(len(levels["watch"])),
                _share(finished),
                _share(everyone),
            ]
        )
    header = [
        *("half", "networks", "good and trained", "bad and did not", "watch", "right"),
        "right, unfinished as not trained",
    ]
    return table(header, rows) if found else "not run"


def _share(judged: list[dict[str, Any]]) -> str:
    """Of good and bad verdicts, those that training confirmed."""
    answers = [(r["verdict"] == "good") == r["trained"] for r in judged if r["verdict"] != "watch"]
    return f"{sum(answers)} of {len(answers)} ({100 * sum(answers) / max(1, len(answers)):.0f} %)"


def monitor() -> str:
    found = results("monitor_cost")
    if found is None:
        return "not run"
    rows = [
        [
            name,
            f"{graph['nodes']:,}",
            f"{graph['edges']:,}",
            f"+{100 * graph['recorded']['watched']:.0f} %",
            f"+{100 * graph['cost']:.1f} %",
        ]
        for name, graph in found["graphs"].items()
    ]
    header = ["graph", "nodes", "edges", "a recorded step", f"a step at every={found['every']}"]
    return table(header, rows)


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
    header = [
        "graph",
        "trials an hour",
        "epochs an hour",
        "trials each",
        "validation, ours / plain",
        "test, ours / plain",
    ]
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


def graph_batches() -> str:
    found, rows = results("graph_batches") or {"datasets": {}}, []
    for dataset, cell in found["datasets"].items():
        for model in ("gcn", "gin"):
            one = cell[model]
            rows.append(
                [
                    f"{dataset}, {model}",
                    f"{cell['graphs']:,}",
                    str(cell["hidden_channels"]),
                    f"x{one['epoch']['pyg']['cpu_ratio']:.2f}",
                    f"x{one['batches']['pyg']['cpu_ratio']:.2f}",
                    f"{one['loss']['ours']:.4f} / {one['loss']['pyg']:.4f}",
                ]
            )
    header = [
        "PyG over ours",
        "graphs",
        "width",
        "an epoch",
        "its batches alone",
        "first epoch's loss, ours / PyG",
    ]
    return table(header, rows) if rows else "not run"


def ddi_step() -> str:
    found = results("ddi_step")
    if found is None:
        return "not run"
    names = {
        "pyg": "PyG's layers on `edge_index`",
        "sparse": "one CSR matrix: what `virgo train` does",
        "dense": "one dense matrix",
        "blocked": "dense blocks and a sparse rest (removed)",
        "auto": "chosen by density: the blocks (removed)",
    }
    rows = [
        [
            words,
            *(
                f"x{found[model][what][form]['cpu_ratio']:.2f}"
                for what in ("step", "encoder")
                for model in ("gcn", "sage")
            ),
        ]
        for form, words in names.items()
    ]
    return table(
        ["product", "GCN, step", "GraphSAGE, step", "GCN, encoder", "GraphSAGE, encoder"], rows
    )


def device_step() -> str:
    found = results("device_step")
    if found is None:
        return "not run"
    rows = [
        [
            f"{name}, {cell['model']}",
            f"{cell['num_layers']} x {cell['hidden_channels']}",
            f"x{cell['cpu_ratio']:.2f}",
        ]
        for name, cell in found["steps"].items()
    ]
    return table(["training on the CPU", "layers x width", "now over before"], rows)


def approximation() -> str:
    found, rows = results("approximation_graph") or {"datasets": {}}, []
    sizes = (1, 10, 100, 1000, 3000)
    for dataset, cell in found["datasets"].items():
        for model, one in cell["models"].items():
            errors = {row["graphs"]: row for row in one["errors"]["virgo-backward"]}
            needed = one["enough"]["virgo-backward"]
            rows.append(
                [
                    f"{dataset}, {model}",
                    *(
                        f"{100 * errors[size]['median']:.1f} %" if size in errors else "-"
                        for size in sizes
                    ),
                    f"{needed:,}" if needed else "more",
                ]
            )
    header = [
        "virgo-backward",
        *(f"{size:,} graphs" for size in sizes),
        "graphs for 5 % in nine of ten samples",
    ]
    return table(header, rows) if rows else "not run"


def scale(name: str) -> dict[int, Any]:
    """One step of benchmarks/scale.py by the number of edges."""
    steps = (results("benchmarks") or {"steps": {}})["steps"]
    found = {
        int(key.rpartition("/")[2]): value
        for key, value in steps.items()
        if key.rpartition("/")[0] == name
    }
    return dict(sorted(found.items()))


def millions(edges: int) -> str:
    return f"{edges / 1e6:,.0f} M"


def pictured(header: list[str], rows: list[list[str]], picture: str, words: str) -> str:
    """A table and the picture of it, once there is something to show."""
    return f"{table(header, rows)}\n\n![{words}](images/{picture}.png)" if rows else "not run"


def scale_hop() -> str:
    rows = []
    for edges, one in scale("hop").items():
        others = ("gather", "scipy", "torch", "pyg")
        ratios = [one["ratios"].get(f"{name}_over_virgo") for name in others]
        rows.append(
            [
                millions(edges),
                f"{one['edges'] / one['seconds']['virgo'] / 1e6:,.0f} M",
                f"{100 * ratios[0]:.0f} %",
                *("not run" if r is None else f"x{r:.2f}" for r in ratios[1:]),
            ]
        )
    header = ["edges", "edges a second", "of the limit", "scipy", "torch", "PyG"]
    shown = pictured(header, rows, "scale-hop", "Seconds per hop against edges")
    return f"{shown}\n\n{growth()}" if len(rows) > 1 else shown


def growth() -> str:
    """How the cost of a hop grows with the edges, beside how the machine's limit does."""
    powers = (results("benchmarks") or {})["growth"]
    return (
        f"Seconds per hop grow as the edges to the power {powers['virgo']:.2f}; those of the bare "
        f"loop, which does the same for every edge, to the power {powers['gather']:.2f}. What "
        f"exceeds 1 is the processor's cache: the larger the vector, the more look-ups go to "
        f"memory."
    )


def scale_plan() -> str:
    inside, rows = scale("plan, in memory"), []
    for edges, one in scale("plan, mapped").items():
        other = inside.get(edges)
        rows.append(
            [
                millions(edges),
                f"{one['nodes'] / 1e6:,.1f} M",
                f"{one['seconds']:.1f} s",
                f"{one['peak_bytes'] / 1e9:.2f} GB",
                *(
                    ["not run"] * 2
                    if other is None
                    else [f"{other['seconds']:.1f} s", f"{other['peak_bytes'] / 1e9:.2f} GB"]
                ),
            ]
        )
    header = ["edges", "nodes", "mapped", "resident", "in memory", "resident"]
    return pictured(header, rows, "scale-memory", "Peak memory against edges")


def scale_build() -> str:
    rows = [
        [
            kind,
            millions(edges),
            f"x{one['over_reading']:.1f}",
            f"x{one['over_copying']:.1f}",
            f"{one['seconds']:.0f} s",
            f"{one['peak_bytes'] / 1e9:.2f} GB",
            one["memory_option"],
        ]
        for kind, step in ((".npy", "build"), ("Parquet", "build, parquet"), ("CSV", "build, csv"))
        for edges, one in scale(step).items()
    ]
    header = [
        "from",
        "edges",
        "over reading once",
        "over copying once",
        "time",
        "resident",
        "`--memory`",
    ]
    return table(header, rows) if rows else "not run"


def scale_largest() -> str:
    """What the largest graph took, in one sentence."""
    mapped, inside, built = (scale(step) for step in ("plan, mapped", "plan, in memory", "build"))
    whole = [edges for edges in mapped if edges in inside and edges in built]
    if not whole:
        return "not run"
    edges = max(whole)
    one, other, build = mapped[edges], inside[edges], built[edges]
    cores = (results("benchmarks") or {})["machine"]["cores"]
    return (
        f"The largest graph run has {edges:,} directed edges on {one['nodes']:,} nodes. On "
        f"{cores} cores `virgo graph build` took {build['seconds']:.0f} s and "
        f"{build['peak_bytes'] / 1e9:.1f} GB of memory, and a plan of three layers "
        f"{one['seconds']:.0f} s and {one['peak_bytes'] / 1e9:.1f} GB, memory-mapped; with all "
        f"edges in memory {other['seconds']:.0f} s, reading them included, and "
        f"{other['peak_bytes'] / 1e9:.1f} GB."
    )


def scale_route() -> str:
    rows = [
        [millions(edges), f"x{one['ratio']:.1f}", f"{one['largest_difference']:.1e}"]
        for edges, one in scale("route").items()
    ]
    header = ["edges", "released route over Virgo", "largest difference (float32 against float64)"]
    return table(header, rows) if rows else "not run"


def scale_engines() -> str:
    rows = [
        [
            engine,
            millions(edges),
            f"{one['seconds']:.1f} s",
            f"x{one['over_stored']:.0f}",
            f"{one['largest_difference']:.0e}",
        ]
        for engine in ("duckdb", "spark")
        for edges, one in scale(engine).items()
    ]
    header = ["engine", "edges", "plan", "over the graph on disk", "largest difference"]
    return table(header, rows) if rows else "not run"


def _median(entries: list[dict[str, float | None]]) -> float:
    values = [math.inf if entry["wider"] is None else entry["wider"] for entry in entries]
    return statistics.median(values) if values else math.nan


def zoo() -> str:
    """Served, refused, crashed, worse and ranges by kind of network."""
    found = results("zoo")
    if found is None:
        return "not run"
    columns = {
        "networks": "networks",
        "served": "served",
        "refused": "refused",
        "crashed": "crashed",
        "worse": "left worse",
        "check_ran": "check ran",
        "median_wider_before": "median range before",
        "median_wider_after": "after",
    }
    kinds = {**found["kinds"], "all": found["summary"]}
    rows = [[kind, *(str(numbers[key]) for key in columns)] for kind, numbers in kinds.items()]
    seeds = found["seeds"]
    words = f"\n\n{seeds} seeds each; written by `{found['command']}`."
    return table(["kind", *columns.values()], rows) + words


def zoo_layers() -> str:
    """Every network of one convolution: what was chosen, and its range before and after."""
    found = results("zoo")
    if found is None:
        return "not run"
    rows = [
        [
            network["name"],
            network["method"] or network["error"],
            f"x{_median(network['before']):.3g}",
            f"x{_median(network['after']):.3g}" if network["after"] else "",
        ]
        for network in found["networks"]
        if network["kind"] == "conv"
    ]
    absent = "; ".join(f"{name}: {why}" for name, why in found["unavailable"].items())
    return table(["layer", "chosen", "range before", "after"], rows) + f"\n\nNot run: {absent}."


def reliability() -> str:
    """What was tried to break it, from results/reliability.json."""
    rows = [
        [name, f"{entry['tried']:,}", str(entry["failed"]), entry["guarantee"]]
        for name, entry in (results("reliability") or {}).items()
    ]
    return table(["fault", "tried", "failed", "what is guaranteed"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "reliability": reliability,
    "verdict": verdicts,
    "verdict-share": verdict_share,
    "zoo": zoo,
    "zoo-layers": zoo_layers,
    **depth_tables.TABLES,
    "cost": cost,
    "spectral-cost": spectral_cost,
    "compare": compare,
    "claims": claims,
    "networks": networks,
    "monitor": monitor,
    "throughput": throughput,
    "storage": storage,
    "graph-batches": graph_batches,
    "ddi-step": ddi_step,
    "device-step": device_step,
    "approximation": approximation,
    "scale-largest": scale_largest,
    "scale-hop": scale_hop,
    "scale-plan": scale_plan,
    "scale-build": scale_build,
    "scale-route": scale_route,
    "scale-engines": scale_engines,
    **reproduction.TABLES,
    **absent.TABLES,
}


#: Whole pages of docs/results/.
PAGES: dict[str, Callable[[], str]] = {
    **{name: partial(reproduction.page, name) for name in reproduction.DETAILS},
    "depth": depth_tables.page,
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
    for name, make in PAGES.items():
        path = ROOT / "docs" / "results" / f"{name}.md"
        fresh = make()
        if fresh and (not path.is_file() or path.read_text(encoding="utf-8") != fresh):
            stale.append(f"results/{name}.md")
            if "--check" not in sys.argv:
                path.parent.mkdir(exist_ok=True)
                path.write_text(fresh, encoding="utf-8")
    if stale:
        print(("stale: " if "--check" in sys.argv else "refreshed: ") + ", ".join(stale))
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())

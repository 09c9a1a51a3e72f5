"""The tables of docs/depth.md, from the records of `python benchmarks/depth.py --publish`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from virgo.experiments.sweep import records
from virgo.experiments.sweep.records import Record
from virgo.experiments.sweep.selection import Chosen, select
from virgo.experiments.sweep.statistics import holm, paired

RECORDS = Path(__file__).resolve().parent.parent / "results" / "depth_study.jsonl"
LIMITS = RECORDS.parent / "depth_limit.json"
DATASETS = ("cora", "citeseer", "pubmed", "photo", "computers", "cs")
#: Rows, in order: ours, the classics, the related work's, and the ceiling.
METHODS = (
    "spectral", "latched", "spectral, fitted", "latched, fitted",
    "mirrored", "virgo-backward", "virgo-forward", "measured", "auto",
    "PyG's default", "xavier", "kaiming-backward",
    "orthogonal", "lsuv", "g-init", "isometric", "identity", "random-walk", "spog",
)  # fmt: skip
OURS = "spectral"
#: What a reader would choose from by validation, and what of it uses training labels at the start.
CANDIDATES = ("spectral", "latched", "spectral, fitted", "latched, fitted")
RELATED = ("orthogonal", "lsuv", "g-init", "isometric", "identity", "random-walk", "spog")
#: What was aimed at: test accuracy of a plain GCN, 64 wide.
TARGETS = {
    "cora": {2: 82.0, 8: 81.0, 16: 80.5, 32: 79.5, 64: 79.0},
    "citeseer": {2: 71.5, 8: 68.0, 16: 67.0, 32: 66.0, 64: 65.0},
    "pubmed": {2: 79.0, 8: 78.0, 16: 77.5, 32: 77.0, 64: 76.0},
    "cs": {2: 91.0, 8: 90.0, 16: 89.0, 32: 88.0, 64: 86.0},
}
FEW = 5  # seeds below which a cell is not shown


@cache
def cells() -> dict[tuple[str, str, str, int], tuple[Chosen, list[Record]]]:
    """(dataset, network, method, layers) -> the configuration that validation chose."""
    grouped: dict[tuple[str, str, str, int], list[Record]] = {}
    for record in records.read(RECORDS) if RECORDS.is_file() else []:
        key = (record.dataset, record.model, record.init, int(record.config["num_layers"]))
        grouped.setdefault(key, []).append(record)
    chosen = {key: (select(mine), mine) for key, mine in grouped.items()}
    return {k: (c, mine) for k, (c, mine) in chosen.items() if c and len(c.tests) >= FEW}


def _order(values: Iterable[str], order: tuple[str, ...]) -> list[str]:
    present = set(values)
    return [name for name in order if name in present] + sorted(present - set(order))


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] + ["--:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def accuracies(network: str = "gcn", only: str | None = None) -> str:
    """One table per dataset: methods by depth; the best of a column in bold."""
    parts = []
    for dataset in _order({k[0] for k in cells() if k[1] == network}, DATASETS):
        if only and dataset != only:
            continue
        mine = {(k[2], k[3]): c for k, (c, _) in cells().items() if k[:2] == (dataset, network)}
        depths = sorted({layers for _, layers in mine})
        best = {
            d: max(statistics.mean(c.tests.values()) for (_, e), c in mine.items() if e == d)
            for d in depths
        }
        rows = []
        for method in _order({method for method, _ in mine}, METHODS):
            row = [f"**{method}**" if method in CANDIDATES else method]
            for d in depths:
                cell = mine.get((method, d))
                row.append(_number(cell, best[d]) if cell else "")
            rows.append(row)
        title = "" if only else f"**{dataset}**\n\n"
        parts.append(title + _table(["", *(f"{d} layers" for d in depths)], rows))
    return "\n\n".join(parts) or "Nothing has been run with five seeds."


def targets() -> str:
    """What was aimed at beside the one of our methods that validation prefers, per cell."""
    rows, reached, total = [], 0, 0
    for dataset, wanted in TARGETS.items():
        row = [dataset]
        for depth in (2, 8, 16, 32, 64):
            mine = {m: cells().get((dataset, "gcn", m, depth)) for m in CANDIDATES}
            found = {method: cell[0] for method, cell in mine.items() if cell}
            if not found:
                row.append("")
                continue
            method = max(found, key=lambda m: found[m].valid)
            mean = statistics.mean(found[method].tests.values())
            total += 1
            reached += (is_reached := round(mean, 1) >= wanted[depth])
            text = f"**{mean:.1f}**" if is_reached else f"{mean:.1f}"
            row.append(f"{text} ({wanted[depth]:g})<br>{method}, {len(found[method].tests)} seeds")
        rows.append(row)
    table = _table(["", *(f"{d} layers" for d in (2, 8, 16, 32, 64))], rows)
    return f"{table}\n\nReached: {reached} of the {total} cells that were run."


def _number(cell: Chosen, best: float) -> str:
    values = list(cell.tests.values())
    mean = statistics.mean(values)
    text = f"{mean:.1f} ± {statistics.stdev(values):.1f}"
    return f"**{text}**" if mean == best else text


def speed(network: str = "gcn") -> str:
    """Epochs until the validation accuracy is 95 % of its best, mean over seeds."""
    rows = []
    depths = sorted({k[3] for k in cells() if k[1] == network})
    for dataset in _order({k[0] for k in cells() if k[1] == network}, DATASETS):
        for method in _order({k[2] for k in cells() if k[:2] == (dataset, network)}, METHODS):
            row = [f"{dataset}, {method}"]
            for d in depths:
                found = cells().get((dataset, network, method, d))
                epochs = _epochs(*found) if found else None
                row.append("" if epochs is None else f"{epochs:.0f}")
            rows.append(row)
    table = _table(["", *(f"{d} layers" for d in depths)], rows)
    return f"{table}\n\n{_ratios(network)}"


def _ratios(network: str) -> str:
    """In words: every method's epochs over those of spectral weights, the median over cells."""
    ratios: dict[str, list[float]] = {}
    for (dataset, model, method, layers), found in cells().items():
        ours = cells().get((dataset, network, OURS, layers))
        if model == network and method != OURS and ours:
            theirs, mine = _epochs(*found), _epochs(*ours)
            if theirs is not None and mine:
                ratios.setdefault(method, []).append(theirs / mine)
    parts = [
        f"{method} x{statistics.median(ratios[method]):.1f} ({len(ratios[method])})"
        for method in _order(ratios, METHODS)
    ]
    words = ", ".join(parts) or "nothing to compare"
    return f"Epochs over those of spectral weights, the median over cells (how many): {words}."


def _epochs(chosen: Chosen, mine: list[Record]) -> float | None:
    reached = [
        seed["curve"][0][0]
        for record in mine
        if record.config == chosen.config
        for seed in record.seeds
        if seed.get("curve")
    ]
    return statistics.mean(reached) if reached else None


def comparisons(network: str = "gcn") -> str:
    """Spectral weights minus every other method, paired by seed, Holm over the whole table."""
    pairs = []
    for (dataset, model, method, layers), (chosen, _) in sorted(cells().items()):
        ours = cells().get((dataset, model, OURS, layers))
        if model == network and method != OURS and ours:
            common = sorted(set(chosen.tests) & set(ours[0].tests))
            first, second = ({s: c.tests[s] for s in common} for c in (ours[0], chosen))
            pairs.append((dataset, layers, method, paired(first, second)))
    corrected = holm([pair[3].p for pair in pairs])
    counts: dict[str, list[int]] = {}
    for (_, _, method, test), p in zip(pairs, corrected, strict=True):
        row = counts.setdefault(method, [0, 0, 0, 0])
        row[0] += 1
        row[1 if p <= 0.05 and test.difference > 0 else 2 if p <= 0.05 else 3] += 1
    losses = [
        f"{method} on {dataset} with {layers} layers ({-test.difference:.1f} points)"
        for (dataset, layers, method, test), p in zip(pairs, corrected, strict=True)
        if test.difference < 0 and p <= 0.05
    ]
    rows = [[m, *map(str, counts[m])] for m in _order(counts, METHODS)]
    table = _table(["against", "cells", "spectral better", "worse", "no difference shown"], rows)
    ahead = [
        f"{method} on {dataset} with {layers} layers ({-test.difference:.1f} points)"
        for dataset, layers, method, test in pairs
        if method in RELATED
        and -test.difference
        > statistics.stdev(cells()[dataset, network, OURS, layers][0].tests.values())
    ]
    return (
        f"{table}\n\nCells in which another method is better by this test: "
        f"{'; '.join(losses) or 'none'}. Cells in which a method of the related work is ahead by "
        f"more than a standard deviation of ours: {'; '.join(ahead) or 'none'}."
    )


def limits() -> str:
    """What a linear classifier finds without training, from benchmarks/depth_limit.py."""
    rows = json.loads(LIMITS.read_text()) if LIMITS.is_file() else []
    if not rows:
        return "Not run."
    depths = sorted({row["layers"] for row in rows})
    names = {
        "linear": "all of P^L X",
        "spectral, fitted": "spectral weights",
        "latched, fitted": "latches",
    }
    lines = []
    for dataset in _order({row["dataset"] for row in rows}, DATASETS):
        for kind, name in names.items():
            mine = {
                r["layers"]: r["test"] for r in rows if (r["dataset"], r["kind"]) == (dataset, kind)
            }
            means = [f"{100 * statistics.mean(mine[d]):.1f}" if d in mine else "" for d in depths]
            lines.append([f"{dataset}, {name}", *means])
    seeds = sorted({len(row["test"]) for row in rows})
    table = _table(["", *(f"{d} layers" for d in depths)], lines)
    return f"{table}\n\nMean over {' to '.join(map(str, seeds))} seeds; nothing is trained."


TABLES: dict[str, Callable[[], str]] = {
    "depth-accuracy": accuracies,
    "depth-targets": targets,
    "depth-limits": limits,
    "depth-cora": lambda: accuracies(only="cora"),
    "depth-speed": speed,
    "depth-tests": comparisons,
    **{f"depth-{n}": (lambda n=n: accuracies(n)) for n in ("sage", "gin", "gat", "gcnii")},
}

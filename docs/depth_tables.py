"""The tables of docs/depth.md, from the records of `python benchmarks/depth.py --publish`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Collection, Iterable
from functools import cache, partial
from pathlib import Path

from scipy.stats import wilcoxon

from virgo.experiments.sweep import records
from virgo.experiments.sweep.records import Record
from virgo.experiments.sweep.selection import Chosen, select
from virgo.experiments.sweep.statistics import Paired, holm, paired

RECORDS = Path(__file__).resolve().parent.parent / "results" / "depth_study.jsonl"
LIMITS = RECORDS.parent / "depth_limit.json"
DATASETS = ("cora", "citeseer", "pubmed", "photo", "computers", "cs")
NETWORKS = ("gcn", "sage", "gin", "gat", "gcnii")
#: Ours, in the order of rows: what a reader would choose from by validation.
CANDIDATES = (
    "spectral", "spectral, unit logits", "latched", "spectral, fitted", "latched, fitted",
    "classes held", "mirrored", "virgo-backward", "virgo-forward", "measured", "auto",
)  # fmt: skip
#: What others are compared with: without labels at the start, and with them.
OURS = ("spectral", "classes held")
RELATED = (
    "orthogonal", "lsuv", "g-init", "isometric", "identity", "random-walk", "spog", "gat-balanced",
)  # fmt: skip
#: All rows: ours, the classics, the related work's.
METHODS = (*CANDIDATES, "PyG's default", "xavier", "kaiming-backward", *RELATED)
#: What was aimed at: test accuracy of a plain GCN, 64 wide.
TARGETS = {
    "cora": {2: 82.0, 8: 81.0, 16: 80.5, 32: 79.5, 64: 79.0},
    "citeseer": {2: 71.5, 8: 68.0, 16: 67.0, 32: 66.0, 64: 65.0},
    "pubmed": {2: 79.0, 8: 78.0, 16: 77.5, 32: 77.0, 64: 76.0},
    "cs": {2: 91.0, 8: 90.0, 16: 89.0, 32: 88.0, 64: 86.0},
}
#: Kinds of benchmarks/depth_limit.py that the table of limits shows -> the names of their rows.
FITTED = {
    "linear": "all of P^L X",
    "spectral, fitted": "spectral weights",
    "latched, fitted": "latches",
    "classes held": "classes held",
}
TRAINED = 10.0  # points of validation below spectral weights that count as trained
FEW = 5  # seeds below which a cell is not shown
SCREENED = {2: 5}  # layers -> seeds that screen a configuration, where it is not two
LEVEL = 0.05  # of every test
FEWEST_CELLS = 6  # with fewer a signed-rank test cannot reach its level


Place = tuple[str, str, str, int]


@cache
def by_cell() -> dict[Place, list[Record]]:
    """(dataset, network, method, layers) -> what was run."""
    grouped: dict[Place, list[Record]] = {}
    for record in records.read(RECORDS) if RECORDS.is_file() else []:
        key = (record.dataset, record.model, record.init, int(record.config["num_layers"]))
        grouped.setdefault(key, []).append(record)
    return grouped


@cache
def cells() -> dict[Place, tuple[Chosen, list[Record]]]:
    """The cells to be shown, with the configuration that validation chose."""
    chosen = {key: (select(mine), mine) for key, mine in by_cell().items()}
    return {k: (c, mine) for k, (c, mine) in chosen.items() if c and len(c.tests) >= FEW}


def without_result() -> dict[Place, str]:
    """Cells of which no seed has a result -> why: "refused", "diverged"."""
    seen = {k: {s["status"] for r in mine for s in r.seeds} for k, mine in by_cell().items()}
    return {key: " or ".join(sorted(s)) for key, s in seen.items() if s and "ok" not in s}


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
        ended = {k[2:]: why for k, why in without_result().items() if k[:2] == (dataset, network)}
        rows = []
        for method in _order({method for method, _ in [*mine, *ended]}, METHODS):
            row = [f"**{method}**" if method in CANDIDATES else method]
            for d in depths:
                cell = mine.get((method, d))
                row.append(_number(cell, best[d]) if cell else ended.get((method, d), ""))
            rows.append(row)
        title = "" if only else f"**{dataset}**\n\n"
        parts.append(title + _table(["", *(f"{d} layers" for d in depths)], rows))
    return "\n\n".join(parts) or "Nothing has been run with five seeds."


def gaps() -> str:
    """In words: the cells that were screened over a part of their grid, or with fewer seeds."""

    def searched(mine: Iterable[Record]) -> set[tuple[float, float]]:
        return {(record.config["lr"], record.config["dropout"]) for record in mine}

    grids: dict[tuple[str, int], set[tuple[float, float]]] = {}
    for (_, network, _, layers), (_, mine) in cells().items():
        grids.setdefault((network, layers), set()).update(searched(mine))
    parts: dict[str, list[str]] = {}
    few: dict[str, None] = {}
    for (dataset, network, method, layers), (_, mine) in sorted(cells().items()):
        place = dataset if network == NETWORKS[0] else f"{network} on {dataset}"
        count, whole = len(searched(mine)), len(grids[network, layers])
        if count < whole:
            parts.setdefault(f"{place} with {layers} layers, {count} of {whole}", []).append(method)
        if any(len(record.seeds) < SCREENED.get(layers, 1) for record in mine):
            few[f"{place} with {layers} layers"] = None
    words = "; ".join(f"{place} ({', '.join(methods)})" for place, methods in parts.items())
    return (
        f"Cells screened over fewer configurations than the grid has now: {words or 'none'}. With "
        f"two seeds in place of five: {', '.join(few) or 'none'}."
    )


def targets() -> str:
    """What was aimed at beside one of our methods per depth, by mean validation over datasets."""
    depths = (2, 8, 16, 32, 64)
    by_depth = {depth: _preferred(depth, TARGETS) for depth in depths}
    rows: list[list[str]] = []
    reached: list[bool] = []
    missed: list[str] = []  # by the method of each cell's own validation
    for dataset, wanted in TARGETS.items():
        row = [dataset]
        for depth in depths:
            method = by_depth[depth]
            cell = cells().get((dataset, "gcn", method or "", depth))
            if not cell:
                row.append("")
                continue
            reached.append(is_reached := _mean(cell[0]) >= wanted[depth])
            text = f"**{_number(cell[0])}**" if is_reached else _number(cell[0])
            row.append(f"{text} ({wanted[depth]:g})<br>{len(cell[0].tests)} seeds")
            own = _preferred(depth, [dataset])
            cell = cells()[dataset, "gcn", own or "", depth]
            if _mean(cell[0]) < wanted[depth]:
                missed.append(f"{dataset} at {depth} ({own})")
        rows.append(row)
    header = ["", *(f"{d} layers<br>{by_depth[d] or 'not run'}" for d in depths)]
    return (
        f"{_table(header, rows)}\n\nReached: {sum(reached)} of the {len(reached)} cells that were "
        f"run. With a method per cell, by its own validation, {len(reached) - len(missed)}: all "
        f"but {', '.join(missed) or 'none'}."
    )


def _mean(chosen: Chosen) -> float:
    """As the tables print it."""
    return round(statistics.mean(chosen.tests.values()), 1)


def _preferred(depth: int, datasets: Collection[str]) -> str | None:
    """The method with the best mean validation over datasets, of those that ran on all of them."""
    means = {}
    for method in CANDIDATES:
        found = [cells().get((dataset, "gcn", method, depth)) for dataset in datasets]
        if all(found):
            means[method] = statistics.mean(cell[0].valid for cell in found if cell)
    return max(means, key=lambda method: means[method]) if means else None


def ceiling() -> str:
    """GCNII, which has residuals, beside the plain network whose classes are held."""
    depths = sorted({layers for _, network, _, layers in cells() if network == "gcnii"})
    if not depths:
        return "Nothing has been run with five seeds."
    rows = []
    for dataset in _order({key[0] for key in cells() if key[1] == "gcnii"}, DATASETS):
        for title, place in (("GCNII", ("gcnii", "PyG's default")), (OURS[1], ("gcn", OURS[1]))):
            found = [cells().get((dataset, *place, layers)) for layers in depths]
            rows.append([f"{dataset}, {title}", *(_number(c[0]) if c else "" for c in found)])
    return _table(["", *(f"{d} layers" for d in depths)], rows)


def _number(cell: Chosen, best: float | None = None) -> str:
    values = list(cell.tests.values())
    mean = statistics.mean(values)
    text = f"{mean:.1f} ± {statistics.stdev(values):.1f}"
    return f"**{text}**" if mean == best else text


def speed(network: str = "gcn") -> str:
    """Epochs until validation is 95 % of its best over those of spectral weights, by depth.

    A network that does not train has its best epoch early, so cells count only where its
    validation is within :data:`TRAINED` points of spectral weights'.
    """
    ratios: dict[tuple[str, int], list[float]] = {}
    for (dataset, model, method, layers), found in cells().items():
        ours = cells().get((dataset, network, OURS[0], layers))
        if model == network and method != OURS[0] and ours:
            if found[0].valid < ours[0].valid - TRAINED:
                continue
            theirs, mine = _epochs(*found), _epochs(*ours)
            if theirs is not None and mine:
                ratios.setdefault((method, layers), []).append(theirs / mine)
    depths = sorted({layers for _, layers in ratios})
    rows = []
    for method in _order({method for method, _ in ratios}, METHODS):
        found = [ratios.get((method, d)) for d in depths]
        rows.append(
            [method, *(f"x{statistics.median(r):.1f} ({len(r)})" if r else "" for r in found)]
        )
    return _table(["", *(f"{d} layers" for d in depths)], rows)


def _epochs(chosen: Chosen, mine: list[Record]) -> float | None:
    reached = [
        seed["curve"][0][0]
        for record in mine
        if record.config == chosen.config
        for seed in record.seeds
        if seed.get("curve")
    ]
    return statistics.mean(reached) if reached else None


Pair = tuple[str, int, str, Paired]


def _pairs(network: str, mine: str) -> list[Pair]:
    """One of our methods minus every other in the same cell, paired by seed."""
    pairs = []
    for (dataset, model, method, layers), (chosen, _) in sorted(cells().items()):
        ours = cells().get((dataset, model, mine, layers))
        if model == network and method != mine and ours:
            common = sorted(set(chosen.tests) & set(ours[0].tests))
            first, second = ({s: c.tests[s] for s in common} for c in (ours[0], chosen))
            pairs.append((dataset, layers, method, paired(first, second)))
    return pairs


def comparisons(mine: str = OURS[0]) -> str:
    """One of our methods minus every other, for GCN: in each cell, and over cells.

    In a cell by the t test paired by seed, Holm over all cells of the table. Over cells by the
    signed-rank test of their mean differences, Holm over methods.
    """
    pairs = _pairs(NETWORKS[0], mine)
    if not pairs:
        return "Nothing has been run with five seeds."
    corrected = holm([pair[3].p for pair in pairs])
    against: dict[str, list[tuple[float, float]]] = {}  # difference and corrected p per cell
    for (_, _, method, test), p in zip(pairs, corrected, strict=True):
        against.setdefault(method, []).append((test.difference, p))
    losses = _places(
        (pair for pair, p in zip(pairs, corrected, strict=True) if p <= LEVEL),
        by_more_than=lambda _: 0,
    )
    return (
        f"{_against(against)}\n\nCells in which another method is better by this test: {losses}. "
        f"{behind(NETWORKS[0], mine)}"
    )


def behind(network: str, mine: str) -> str:
    """In words: where the related work is ahead by more than a standard deviation of ours."""

    def deviation(pair: Pair) -> float:
        return statistics.stdev(cells()[pair[0], network, mine, pair[1]][0].tests.values())

    pairs = (pair for pair in _pairs(network, mine) if pair[2] in RELATED)
    return (
        f"Cells in which a method of the related work is ahead of {mine} by more than a standard "
        f"deviation of ours: {_places(pairs, by_more_than=deviation)}."
    )


def network_table(network: str) -> str:
    """The accuracies of another network than GCN, and where ours are behind."""
    words = " ".join(behind(network, mine) for mine in OURS if _pairs(network, mine))
    return f"{accuracies(network)}\n\n{words}"


def _against(against: dict[str, list[tuple[float, float]]]) -> str:
    """One line per method: over its cells, and how many cells their own seeds decide."""
    gaps = {method: [gap for gap, _ in cells] for method, cells in against.items()}
    ranked = {m: wilcoxon(gap).pvalue for m, gap in gaps.items() if len(gap) >= FEWEST_CELLS}
    over_cells = dict(zip(ranked, holm(list(ranked.values())), strict=True))
    rows = []
    for method in _order(gaps, METHODS):
        differences = gaps[method]
        decided = [gap > 0 for gap, p in against[method] if p <= LEVEL]
        p = over_cells.get(method)
        numbers = [
            len(differences),
            sum(gap > 0 for gap in differences),
            f"{statistics.median(differences):+.1f}",
            "" if p is None else f"{p:.3f}" if p >= 0.001 else "< 0.001",
            decided.count(True),
            decided.count(False),
        ]
        rows.append([method, *map(str, numbers)])
    over = ["cells", "mean ahead in", "median, points", "p over cells"]
    return _table(["against", *over, "better by its seeds", "worse"], rows)


def _places(pairs: Iterable[Pair], by_more_than: Callable[[Pair], float]) -> str:
    """The cells in which ours is behind, in words."""
    found = [
        f"{method} on {dataset} with {layers} layers ({-test.difference:.1f} points)"
        for dataset, layers, method, test in pairs
        if -test.difference > by_more_than((dataset, layers, method, test))
    ]
    return "; ".join(found) or "none"


def limits() -> str:
    """What a linear classifier finds without training, from benchmarks/depth_limit.py."""
    rows = json.loads(LIMITS.read_text()) if LIMITS.is_file() else []
    if not rows:
        return "Not run."
    depths = sorted({row["layers"] for row in rows})
    lines = []
    for dataset in _order({row["dataset"] for row in rows}, DATASETS):
        for kind, name in FITTED.items():
            mine = {
                r["layers"]: r["test"] for r in rows if (r["dataset"], r["kind"]) == (dataset, kind)
            }
            if not mine:
                continue
            means = [f"{100 * statistics.mean(mine[d]):.1f}" if d in mine else "" for d in depths]
            lines.append([f"{dataset}, {name}", *means])
    seeds = sorted({len(row["test"]) for row in rows})
    table = _table(["", *(f"{d} layers" for d in depths)], lines)
    return f"{table}\n\nMean over {' to '.join(map(str, seeds))} seeds; nothing is trained."


def choices() -> str:
    """Held classes with other numbers, untrained: mean validation and test over datasets."""
    rows = json.loads(LIMITS.read_text()) if LIMITS.is_file() else []
    found = {(r["dataset"], r["layers"], r["kind"]): r for r in rows if "valid" in r}
    kinds = [kind for kind in dict.fromkeys(k for _, _, k in found) if kind not in FITTED]
    if not kinds:
        return "Not run."
    depths = (8, 64)
    datasets = [d for d in DATASETS if all((d, n, k) in found for n in depths for k in kinds)]
    own = "gain 6 after layer 2, `latch_`'s own"
    lines = []
    for kind in ("classes held", *kinds):
        line = [own if kind == "classes held" else kind]
        for depth in depths:
            for part in ("valid", "test"):
                means = [statistics.mean(found[d, depth, kind][part]) for d in datasets]
                line.append(f"{100 * statistics.mean(means):.1f}")
        lines.append(line)
    header = ["", *(f"{n} layers, {part}" for n in depths for part in ("validation", "test"))]
    seeds = min(len(found[d, n, k]["test"]) for d in datasets for n in depths for k in kinds)
    return f"{_table(header, lines)}\n\nMeans over {', '.join(datasets)}, {seeds} seeds each."


def page() -> str:
    """Every cell: what validation chose, and how it went."""
    parts = [
        "# depth: all details\n\n"
        "Made by `python docs/refresh.py` from `results/`; [depth](../depth.md) says how to read "
        "it. *Epoch*: the mean one at which validation first is 95 % of its best."
    ]
    header = ["layers, method", "lr", "dropout", "validation", "test", "seeds", "epoch"]
    places = {key[:2] for key in cells()}
    for network in _order({network for _, network in places}, NETWORKS):
        for dataset in _order({d for d, other in places if other == network}, DATASETS):
            mine = {k[2:]: found for k, found in cells().items() if k[:2] == (dataset, network)}
            rows = []
            for layers in sorted({layers for _, layers in mine}):
                for method in _order({m for m, depth in mine if depth == layers}, METHODS):
                    chosen, runs = mine[method, layers]
                    epoch = _epochs(chosen, runs)
                    rows.append(
                        [
                            f"{layers}, {method}",
                            f"{chosen.config['lr']:g}",
                            f"{chosen.config['dropout']:g}",
                            f"{chosen.valid:.1f}",
                            _number(chosen),
                            str(len(chosen.tests)),
                            "" if epoch is None else f"{epoch:.0f}",
                        ]
                    )
            parts.append(f"## {network}, {dataset}\n\n{_table(header, rows)}")
    return "\n\n".join(parts) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "depth-accuracy": accuracies,
    "depth-gaps": gaps,
    "depth-targets": targets,
    "depth-limits": limits,
    "depth-choices": choices,
    "depth-cora": lambda: accuracies(only="cora"),
    "depth-speed": speed,
    "depth-tests": comparisons,
    "depth-tests-held": lambda: comparisons(mine=OURS[1]),
    "depth-ceiling": ceiling,
    **{f"depth-{n}": partial(network_table, n) for n in ("sage", "gin", "gat")},
}

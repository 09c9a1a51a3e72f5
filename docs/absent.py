"""What was not run: one line each, with the command and the estimated hours.

Called by ``docs/refresh.py``; hours are from ``sweep/costs.json``.
"""

from __future__ import annotations

import statistics

from reproduction import built, read

from virgo.experiments.sweep import grids
from virgo.experiments.sweep.estimates import costs
from virgo.experiments.sweep.paper import printed
from virgo.experiments.sweep.records import Record

FOLDS = ("imdb-b", "imdb-m", "collab")
#: Smaller pieces that would answer the same question: what is run, epochs, methods, seeds.
PIECES = {
    ("table2", "ogbl-ddi"): (
        "--where batch_size=32768 dropout=0.4 lr=0.005 --epochs 100 --seeds 2 --curves",
        {"gcn": 100, "sage": 100, "ngnn-gcn": 50, "ngnn-sage": 50},
        5,
        2,
    ),
    ("table3", "collab"): ("--limit 1 --epochs 50 --init {four}", {"gcn": 50, "gin": 50}, 4, 10),
    ("table3", "ogbg-molhiv"): (
        "--where lr=0.001 dropout=0.5 weight_decay=0 --epochs 15 --seeds 3 --init {four}",
        {"gcn": 15, "gin": 15},
        4,
        3,
    ),
    ("table3", "ogbg-molpcba"): (
        "--model gcn --where lr=0.001 dropout=0.5 weight_decay=0 --epochs 3 --seeds 1 "
        "--init xavier virgo-backward",
        {"gcn": 3},
        2,
        1,
    ),
}
FOUR = "lecun xavier virgo-forward virgo-backward"


def absent(table: str) -> str:
    """What was not run: one line per dataset, with the command and the hours if known."""
    ran = {(r.dataset, r.model) for r in read(table)}
    by_dataset: dict[str, list[str]] = {}
    for dataset, model in dict.fromkeys((d, m) for d, m, _ in printed(table)):
        if (dataset, model) not in ran or _cut_short(table, dataset, model):
            by_dataset.setdefault(dataset, []).append(model)
    lines = []
    for dataset, models in by_dataset.items():
        trainings, hours = 0, [_hours(table, dataset, model) for model in models]
        for model in models:
            space = grids.grid(table, dataset, model).configurations()
            trainings += len(space) * len(grids.inits(table)) * 10
        known = [value for value in hours if value is not None]
        cost = f"about {sum(known):,.0f} processor hours" if known else "hours not measured"
        cost += " without what was not measured" if known and None in hours else ""
        what = "cut short" if any((dataset, model) in ran for model in models) else "not run"
        lines.append(
            f"- {dataset} ({', '.join(models)}), {what}: `virgo sweep {table} --dataset "
            f"{dataset}`, the whole grid, {trainings:,} trainings, {cost}.{_piece(table, dataset)}"
        )
    return "\n".join(lines) or "Everything was run."


def _piece(table: str, dataset: str) -> str:
    """A smaller run of one dataset, and its hours."""
    if (table, dataset) not in PIECES:
        return ""
    options, epochs, methods, seeds = PIECES[table, dataset]
    each = {model: costs().get(f"{table}/{dataset}/{model}") for model in epochs}
    seconds = sum(cost["seconds_per_epoch"] * epochs[model] for model, cost in each.items() if cost)
    return (
        f" One configuration, {methods} methods, {seeds} seed{'s' if seeds > 1 else ''}, "
        f"{' or '.join(str(n) for n in dict.fromkeys(epochs.values()))} epochs: about "
        f"{seconds * methods * seeds / 3600:,.0f} (`{options.format(four=FOUR)}`)."
    )


def absent_released() -> str:
    """What was not run by the released protocol, of the datasets that have folds."""
    ran: dict[tuple[str, str], list[Record]] = {}
    for record in read("table3"):
        if record.protocol == "released":
            ran.setdefault((record.dataset, record.model), []).append(record)
    # an epoch of this protocol over one of the validation protocol: smaller batches, more graphs;
    # by the fastest fold, because others were run beside other programs
    ratios = [
        min(s["seconds"] / s["epochs"] for r in own for s in r.seeds)
        / costs()[f"table3/{dataset}/{model}"]["seconds_per_epoch"]
        for (dataset, model), own in ran.items()
    ]
    factor, lines = statistics.median(ratios) if ratios else 1.0, []
    for dataset in FOLDS:
        for model in ("gcn", "gin"):
            cost = costs().get(f"table3/{dataset}/{model}")
            if (dataset, model) not in ran and cost:
                hours = cost["seconds_per_epoch"] * factor * 350 * 4 * 10 / 3600
                lines.append(
                    f"- {dataset} ({model}), released protocol, not run: `virgo sweep table3 "
                    f"--protocol released --dataset {dataset} --model {model} --init {FOUR}`, 40 "
                    f"trainings, about {hours:,.1f} processor hours."
                )
    return "\n".join(lines) or "Everything was run by the released protocol."


def _hours(table: str, dataset: str, model: str) -> float | None:
    cost = costs().get(f"{table}/{dataset}/{model}")
    if cost is None:
        return None
    space = grids.grid(table, dataset, model).configurations()
    epochs = sum(float(config.get("epochs") or 0) for config in space)
    return epochs * len(grids.inits(table)) * 10 * cost["seconds_per_epoch"] / 3600


def _cut_short(table: str, dataset: str, model: str) -> bool:
    cells = [c for c in built(table).cells if (c.place.dataset, c.place.model) == (dataset, model)]
    return any(c.chosen and c.chosen.partial for c in cells)


TABLES = {
    "absent-table1": lambda: absent("table1"),
    "absent-table2": lambda: absent("table2"),
    "absent-table3": lambda: absent("table3"),
    "absent-released": absent_released,
}

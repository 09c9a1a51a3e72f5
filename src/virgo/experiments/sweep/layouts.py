"""A table as the paper lays it out: blocks of shown cells and sections below, not yet in a format.

:mod:`virgo.experiments.sweep.rendering` turns this into text, markdown, LaTeX or HTML.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from virgo.experiments.sweep.provenance import Provenance
from virgo.experiments.sweep.verdicts import LEVEL, NOT_RUN, Cell, Place, Verdict

Places = Mapping[Place, Sequence[Cell]]
USUAL_SEEDS = 10


@dataclass(frozen=True)
class Shown:
    """A cell as it is shown: its number, whether it is first or second, and small print."""

    text: str
    rank: int | None = None
    small: tuple[str, ...] = ()
    hint: str = ""


@dataclass(frozen=True)
class Block:
    """A rectangle of cells; ``heads`` stand above the labels, ``small`` under a column's name."""

    title: str
    heads: tuple[str, ...]
    columns: tuple[str, ...]
    small: tuple[str, ...]
    rows: tuple[tuple[tuple[str, ...], tuple[Shown, ...]], ...]


@dataclass(frozen=True)
class Section:
    """A plain table under the blocks; its first ``left`` columns are words, the rest numbers."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int
    note: str = ""
    folded: bool = False


@dataclass(frozen=True)
class View:
    """All that is shown."""

    name: str
    title: str
    legend: str
    blocks: tuple[Block, ...]
    sections: tuple[Section, ...]
    remarks: tuple[str, ...]


def view(
    name: str,
    title: str,
    methods: Sequence[str],
    places: Places,
    verdicts: Sequence[Verdict],
    remarks: Sequence[str],
    provenance: Provenance,
    *,
    details: bool,
) -> View:
    """Lay the cells out: methods as rows, datasets (or depths) as columns.

    Args:
        details: also the chosen configurations and where the records come from.
    """
    if name == "depth":
        blocks = _by_depth(methods, places)
    elif name == "table1":
        blocks = (_by_dataset(methods, places),)
    else:
        blocks = (_by_model(methods, places),)
    sections = [_tests(verdicts)]
    if details:
        sections += [_configurations(places), _runs(provenance)]
    papers = any(cell.paper for cells in places.values() for cell in cells)
    legend = (
        f"Mean ± standard deviation (n - 1) over {USUAL_SEEDS} seeds unless said, of the "
        "configuration with the best mean validation; first and second are marked among cells "
        "that were searched alike."
    )
    if papers:
        legend += " Beneath: the paper's cell, and ours minus it."
    shown = tuple(section for section in sections if section.rows)
    return View(name, title, legend, blocks, shown, tuple(remarks))


def _by_dataset(methods: Sequence[str], places: Places) -> Block:
    columns = list(places)
    usual = columns[0].model
    names = [p.dataset if p.model == usual else f"{p.dataset} ({p.model})" for p in columns]
    rows = [((init,), [_at(places, place, init) for place in columns]) for init in methods]
    return _block("", ("method",), names, rows)


def _by_model(methods: Sequence[str], places: Places) -> Block:
    datasets = list(dict.fromkeys(place.dataset for place in places))
    rows = []
    for model in dict.fromkeys(place.model for place in places):
        for init in methods:
            line = [_at(places, Place(dataset, model), init) for dataset in datasets]
            rows.append(((model, init), line))
    return _block("", ("model", "method"), datasets, rows)


def _by_depth(methods: Sequence[str], places: Places) -> tuple[Block, ...]:
    blocks = []
    for dataset, model in dict.fromkeys((p.dataset, p.model) for p in places):
        columns = sorted(p for p in places if (p.dataset, p.model) == (dataset, model))
        rows = [((init,), [_at(places, place, init) for place in columns]) for init in methods]
        names = [f"{place.layers} layers" for place in columns]
        blocks.append(_block(f"{dataset}, {model}", ("method",), names, rows))
    return tuple(blocks)


def _at(places: Places, place: Place, init: str) -> Cell | None:
    return next((cell for cell in places.get(place, ()) if cell.init == init), None)


def _block(
    title: str,
    heads: tuple[str, ...],
    columns: Sequence[str],
    rows: Sequence[tuple[tuple[str, ...], Sequence[Cell | None]]],
) -> Block:
    """What all cells of a column would say in small print is said once, under its name."""
    small = []
    for i in range(len(columns)):
        ran = [c.chosen for _, cells in rows if (c := cells[i]) and c.chosen]
        labels = {chosen.label for chosen in ran}
        words = list(labels) if len(labels) == 1 and len(ran) > 1 else []
        if any(chosen.generated for chosen in ran):
            words.append("generated")
        small.append(", ".join(word for word in words if word))
    shown = tuple(
        (labels, tuple(show(c, said) for c, said in zip(cells, small, strict=True)))
        for labels, cells in rows
    )
    return Block(title, heads, tuple(columns), tuple(small), shown)


def show(cell: Cell | None, said: str = "") -> Shown:
    """A cell's text and small print, without what was ``said`` above it."""
    if cell is None:
        return Shown("")
    small = []
    if cell.paper:
        theirs = number(cell.paper.mean, cell.paper.sd)
        ours = "" if cell.difference is None else f" ({signed(cell.difference)})"
        small.append(f"paper {theirs}{ours}")
    if cell.chosen is None:
        return Shown(NOT_RUN, None, tuple(small))
    label = cell.chosen.label
    if label and label not in said:
        small.append(label)
    if 0 < cell.n != USUAL_SEEDS and "seeds" not in label:
        small.append(f"n = {cell.n}")
    hint = f"{settings(cell.chosen.config)}; {search(cell)}; n = {cell.n}"
    if not cell.n:
        text = " or ".join(sorted(set(cell.chosen.failed.values())))
        return Shown(text, None, tuple(small), hint)
    return Shown(number(cell.mean, cell.sd), cell.rank, tuple(small), hint)


def _tests(verdicts: Sequence[Verdict]) -> Section:
    rows = []
    for verdict in verdicts:
        place = f"{verdict.place}, {verdict.family}" if verdict.family else str(verdict.place)
        row = [place, verdict.virgo or "", verdict.classic or ""]
        found = verdict.paired
        if found is None:
            if verdict.answer != NOT_RUN:  # the table itself says that
                rows.append((*row, "", "", "", "", "", "", "", verdict.answer))
            continue
        rows.append(
            (
                *row,
                signed(found.difference),
                f"{signed(found.low)} to {signed(found.high)}",
                signed(found.effect),
                p_value(found.p),
                p_value(found.exact),
                p_value(verdict.holm),
                str(found.n),
                verdict.answer,
            )
        )
    header = (
        "where",
        "best Virgo",
        "best classic",
        "difference",
        "95 % interval",
        "d_z",
        "p (t)",
        "p (sign flips)",
        "p (Holm)",
        "n",
        "Virgo better?",
    )
    note = (
        "Both are chosen by validation. Differences of test values in points, paired by seed; p of "
        "the paired t test, of all sign flips, and of the t test corrected by Holm over this "
        f"table, which decides at {LEVEL:g}. The interval is not corrected."
    )
    if any(verdict.paired and verdict.paired.overlap for verdict in verdicts):
        note += (
            " Where seeds are folds, the t test and the interval allow for the training data that "
            "folds share, and there is no test by sign flips."
        )
    title = "Does the best Virgo method beat the best classic one?"
    return Section(title, header, tuple(rows), 3, note)


def _configurations(places: Places) -> Section:
    rows = []
    for place, cells in places.items():
        for cell in cells:
            if cell.chosen:
                rows.append(
                    (
                        str(place),
                        cell.init,
                        settings(cell.chosen.config),
                        search(cell),
                        str(cell.n),
                        f"{cell.chosen.valid:.2f}",
                    )
                )
    header = ("where", "method", "configuration", "searched", "n", "validation")
    return Section("Chosen configurations", header, tuple(rows), 4, folded=True)


def _runs(provenance: Provenance) -> Section:
    rows = tuple(tuple(row) for row in provenance.rows)
    return Section("What was run", tuple(provenance.header), rows, 2, provenance.sentence)


def search(cell: Cell) -> str:
    """How much of the grid a cell's choice was made from."""
    chosen = cell.chosen
    if chosen is None:
        return NOT_RUN
    if "configurations" in chosen.label:
        return chosen.label
    of = "" if chosen.total is None else f" of {chosen.total}"
    many = chosen.searched if chosen.screened else chosen.competing
    return f"{many}{of}" + (f", {chosen.label}" if chosen.label else "")


def settings(config: Mapping[str, Any]) -> str:
    """A configuration in one line.

    >>> settings({"lr": 0.01, "weight_decay": 5e-06, "patience": None})
    'lr 0.01, weight_decay 5e-06, patience none'
    """
    return ", ".join(
        f"{name} {'none' if value is None else value}" for name, value in config.items()
    )


def number(mean: float, sd: float) -> str:
    """``81.50 ± 0.20``; one value alone has no deviation."""
    return f"{mean:.2f}" if math.isnan(sd) else f"{mean:.2f} ± {sd:.2f}"


def signed(value: float) -> str:
    """With its sign, two digits; never a minus before a zero.

    >>> signed(0.104), signed(-0.001), signed(float("inf"))
    ('+0.10', '+0.00', '+inf')
    """
    return f"{value:+.2f}" if abs(value) >= 0.005 else "+0.00"


def p_value(p: float | None) -> str:
    """Three digits, and no zero that is none.

    >>> p_value(0.0312), p_value(0.00001), p_value(None)
    ('0.031', '< 0.001', '')
    """
    if p is None:
        return ""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"

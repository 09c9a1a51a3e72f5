"""A table as the paper lays it out: blocks of shown cells and sections below, not yet in a format.

:mod:`virgo.experiments.sweep.rendering` turns this into text, markdown, LaTeX or HTML.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from virgo.experiments.sweep.provenance import Provenance
from virgo.experiments.sweep.records import Config
from virgo.experiments.sweep.verdicts import LEVEL, NOT_RUN, Place, ResultCell, Verdict

if TYPE_CHECKING:
    from virgo.experiments.sweep.contrasts import Contrast
    from virgo.experiments.sweep.tables import ResultsTable

Places = Mapping[Place, Sequence[ResultCell]]
Labels = tuple[str, ...]
USUAL_SEEDS = 10


@dataclass(frozen=True)
class Shown:
    """A cell as it is shown: its number, its rank if it is first or second, and small print."""

    text: str
    rank: int | None = None
    small: tuple[str, ...] = ()
    hint: str = ""


@dataclass(frozen=True)
class TableBlock:
    """A rectangle of cells; ``heads`` are above the labels, ``small`` below a column's name."""

    title: str
    heads: Labels
    columns: Labels
    small: Labels
    rows: tuple[tuple[Labels, tuple[Shown, ...]], ...]


@dataclass(frozen=True)
class Section:
    """A plain table below the blocks; its first ``left`` columns are words, the rest numbers."""

    title: str
    header: Labels
    rows: tuple[Labels, ...]
    left: int
    note: str = ""
    folded: bool = False


@dataclass(frozen=True)
class View:
    """Everything that is shown of a table."""

    title: str
    legend: str
    blocks: tuple[TableBlock, ...]
    sections: tuple[Section, ...]
    remarks: tuple[str, ...]


def view(table: ResultsTable, *, details: bool) -> View:
    """Lay out a table: methods as rows, datasets (or depths) as columns.

    Args:
        table: the table.
        details: also show the chosen configurations and where the records come from.

    Returns:
        The layout.
    """
    layout = {"depth": _by_depth, "table1": _by_dataset}.get(table.name, _by_model)
    if any(place.layers is not None for place in table.places):
        layout = _by_depth
    sections = [_tests(table.verdicts), _contrasts(table.contrasts)]
    if details:
        sections += [_configurations(table.cells), _runs(table.provenance)]
    counts = {cell.n for cell in table.cells if cell.n}
    said = f"over {USUAL_SEEDS} seeds unless said" if USUAL_SEEDS in counts else "over n seeds"
    legend = (
        f"Mean ± standard deviation (n - 1) {said}, of the "
        "configuration with the best mean validation; first and second are marked among cells "
        "that were searched alike."
    )
    if any(cell.paper for cell in table.cells):
        legend += " Beneath: the paper's cell, and ours minus it."
    blocks = layout(table.methods, table.places)
    return View(
        table.title,
        legend,
        tuple(_without_absent(block) if table.only_ran else block for block in blocks),
        tuple(section for section in sections if section.rows),
        table.remarks,
    )


def _without_absent(block: TableBlock) -> TableBlock:
    """The block with empty cells for what was not run, and without rows of nothing else."""
    rows = [
        (labels, tuple(Shown("") if cell.text == NOT_RUN else cell for cell in cells))
        for labels, cells in block.rows
    ]
    return replace(block, rows=tuple(row for row in rows if any(cell.text for cell in row[1])))


def _by_dataset(methods: Sequence[str], places: Places) -> list[TableBlock]:
    usual = next(iter(places)).model
    names = [p.dataset if p.model == usual else f"{p.dataset} ({p.model})" for p in places]
    return [_by_method("", methods, places, list(places), names)]


def _by_model(methods: Sequence[str], places: Places) -> list[TableBlock]:
    blocks = []
    for model in dict.fromkeys(place.model for place in places):
        columns = [place for place in places if place.model == model]
        names = [place.dataset for place in columns]
        blocks.append(_by_method(model, methods, places, columns, names))
    return blocks


def _by_depth(methods: Sequence[str], places: Places) -> list[TableBlock]:
    blocks = []
    for dataset, model in dict.fromkeys((p.dataset, p.model) for p in places):
        columns = [p for p in places if (p.dataset, p.model) == (dataset, model)]
        if all(isinstance(place.layers, int) for place in columns):
            columns.sort()
        names = [place.fixed for place in columns]
        blocks.append(_by_method(f"{dataset}, {model}", methods, places, columns, names))
    return blocks


def _by_method(
    title: str,
    methods: Sequence[str],
    places: Places,
    columns: Sequence[Place],
    names: Sequence[str],
) -> TableBlock:
    rows = [((init,), [_at(places, place, init) for place in columns]) for init in methods]
    return _block(title, ("method",), names, rows)


def _at(places: Places, place: Place, init: str) -> ResultCell | None:
    return next((cell for cell in places.get(place, ()) if cell.init == init), None)


def _block(
    title: str,
    heads: Labels,
    columns: Sequence[str],
    rows: Sequence[tuple[Labels, Sequence[ResultCell | None]]],
) -> TableBlock:
    """A block; small print that all cells of a column share goes once below the column's name."""
    small = []
    for i in range(len(columns)):
        ran = [c.chosen for _, cells in rows if (c := cells[i]) and c.chosen]
        labels = {chosen.label for chosen in ran}
        words = list(labels) if len(labels) == 1 and len(ran) > 1 else []
        if any(chosen.generated for chosen in ran):
            words.append("generated")
        small.append(", ".join(word for word in words if word))
    shown = tuple(
        (labels, tuple(_show(c, said) for c, said in zip(cells, small, strict=True)))
        for labels, cells in rows
    )
    return TableBlock(title, heads, tuple(columns), tuple(small), shown)


def _show(cell: ResultCell | None, said: str) -> Shown:
    """A cell's text and small print, without what was ``said`` above it."""
    if cell is None:
        return Shown("")
    small = []
    if cell.paper:
        ours = "" if cell.difference is None else f" ({signed(cell.difference)})"
        small.append(f"paper {_number(cell.paper.mean, cell.paper.sd)}{ours}")
    if cell.chosen is None:
        return Shown(NOT_RUN, None, tuple(small))
    label = cell.chosen.label
    if label and label not in said:
        small.append(label)
    if 0 < cell.n != USUAL_SEEDS and "seeds" not in label:
        small.append(f"n = {cell.n}")
    hint = f"{settings(cell.chosen.config)}; {_search(cell)}; n = {cell.n}"
    if not cell.n:
        text = " or ".join(sorted(set(cell.chosen.failed.values())))
        return Shown(text, None, tuple(small), hint)
    return Shown(_number(cell.mean, cell.sd), cell.rank, tuple(small), hint)


def _tests(verdicts: Sequence[Verdict]) -> Section:
    rows = []
    for verdict in verdicts:
        place = f"{verdict.place}, {verdict.family}" if verdict.family else str(verdict.place)
        names = (place, verdict.virgo or "", verdict.classic or "")
        test = verdict.paired
        if test is not None:
            numbers: Labels = (
                signed(test.difference),
                f"{signed(test.low)} to {signed(test.high)}",
                signed(test.effect),
                p_value(test.p),
                p_value(test.exact),
                p_value(verdict.holm),
                str(test.n),
            )
        elif verdict.answer == NOT_RUN:  # the table itself says that
            continue
        else:
            numbers = ("",) * 7
        rows.append((*names, *numbers, verdict.answer))
    names_of = ("where", "best Virgo", "best classic", "difference", "95 % interval", "d_z")
    header = (*names_of, "p (t)", "p (sign flips)", "p (Holm)", "n", "Virgo better?")
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


def _contrasts(contrasts: Sequence[Contrast]) -> Section:
    rows = []
    for row in contrasts:
        test, numbers = row.paired, ("",) * 5
        if test is not None:
            numbers = (
                signed(test.difference),
                f"{signed(test.low)} to {signed(test.high)}",
                p_value(test.p),
                p_value(row.holm),
                str(test.n),
            )
        rows.append((str(row.place), row.init, *numbers, row.answer))
    base = contrasts[0].baseline if contrasts else ""
    header = ("where", "method", "difference", "95 % interval", "p (t)", "p (Holm)", "n", "verdict")
    note = (
        "Each with the configuration that validation chose; differences of test values in points, "
        f"paired by seed; the t test corrected by Holm over this table decides at {LEVEL:g}. The "
        "interval is not corrected."
    )
    return Section(f"Each method minus {base}", header, tuple(rows), 2, note)


def _configurations(cells: Sequence[ResultCell]) -> Section:
    rows = tuple(
        (
            str(cell.place),
            cell.init,
            settings(cell.chosen.config),
            _search(cell),
            str(cell.n),
            f"{cell.chosen.valid:.2f}",
        )
        for cell in cells
        if cell.chosen
    )
    header = ("where", "method", "configuration", "searched", "n", "validation")
    return Section("Chosen configurations", header, rows, 4, folded=True)


def _runs(provenance: Provenance) -> Section:
    return Section("What was run", provenance.header, provenance.rows, 2, provenance.sentence)


def _search(cell: ResultCell) -> str:
    """How much of the grid a cell's choice was made from."""
    chosen = cell.chosen
    assert chosen is not None
    if "configurations" in chosen.label:
        return chosen.label
    of = "" if chosen.total is None else f" of {chosen.total}"
    many = chosen.searched if chosen.screened else chosen.competing
    return f"{many}{of}" + (f", {chosen.label}" if chosen.label else "")


def settings(config: Config) -> str:
    """Return a configuration in one line.

    >>> settings({"lr": 0.01, "weight_decay": 5e-06, "patience": None})
    'lr 0.01, weight_decay 5e-06, patience none'
    """
    return ", ".join(
        f"{name} {'none' if value is None else value}" for name, value in config.items()
    )


def _number(mean: float, sd: float) -> str:
    """``81.50 ± 0.20``; a single value has no deviation."""
    return f"{mean:.2f}" if math.isnan(sd) else f"{mean:.2f} ± {sd:.2f}"


def signed(value: float) -> str:
    """Return a number with its sign and two digits, never a minus before a zero.

    >>> signed(0.104), signed(-0.001), signed(float("inf"))
    ('+0.10', '+0.00', '+inf')
    """
    return f"{value:+.2f}" if abs(value) >= 0.005 else "+0.00"


def p_value(p: float | None) -> str:
    """Return a p value with three digits, never as 0; empty for None.

    >>> p_value(0.0312), p_value(0.00001), p_value(None)
    ('0.031', '< 0.001', '')
    """
    if p is None:
        return ""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"

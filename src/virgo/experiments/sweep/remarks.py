"""The remarks below a table: Virgo against the best classic method, and against the paper.

Every sentence is made from the numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from virgo.experiments.data.datasets import FOLDS
from virgo.experiments.sweep.verdicts import LEVEL, NEITHER, NO, YES, Place, ResultCell, Verdict

#: "Reproduced", or not, is said only of cells with at least so many seeds.
ENOUGH = 5


def listed(places: Iterable[Place]) -> str:
    """Return places in words, those that differ only in depth together.

    >>> listed([Place("cora", "gcn", 2), Place("cora", "gcn", 4), Place("pubmed", "gcn")])
    'cora, gcn (2, 4 layers); pubmed, gcn'
    """
    depths: dict[tuple[str, str], list[object]] = {}
    for place in places:
        layers = depths.setdefault(place[:2], [])
        if place.layers is not None:
            layers.append(place.layers)
    return "; ".join(
        f"{dataset}, {model}" + (f" ({', '.join(map(str, layers))} layers)" if layers else "")
        for (dataset, model), layers in depths.items()
    )


def remarks(
    places: Mapping[Place, Sequence[ResultCell]], verdicts: Sequence[Verdict], name: str
) -> list[str]:
    """The lines below a table."""
    lines = [*_summary(verdicts, name), *_folded(verdicts), *_missing(places)]
    by_place = {verdict.place: verdict for verdict in verdicts}
    for place, cells in places.items():
        lines += _claim(place, cells, by_place[place])
    for place, cells in places.items():
        lines += incomparable(place, cells)
    generated = [
        f"{place.dataset} is generated data: {cell.chosen.generated}."
        for place, cells in places.items()
        for cell in cells
        if cell.chosen and cell.chosen.generated
    ]
    return [*lines, *dict.fromkeys(generated)]


def _summary(verdicts: Sequence[Verdict], name: str) -> list[str]:
    """Wins, losses and neither, counted in each family."""
    words = {
        YES: "beats the best classic method in",
        NO: "is beaten by it in",
        NEITHER: "shows no difference in",
    }
    lines = []
    for family in dict.fromkeys(v.family for v in verdicts if v.paired):
        tested = [v for v in verdicts if v.paired and v.family == family]
        parts = []
        for answer, what in words.items():
            places = [v.place for v in tested if v.answer == answer]
            where = f" ({listed(places)})" if places else ""
            parts.append(f"{what} {len(places)} of {len(tested)}{where}")
        columns = f"{family} column" if family else "column"
        lines.append(
            f"By the paired t test over seeds, Holm-corrected over the {len(tested)} tested "
            f"{columns}{'s' * (len(tested) > 1)} of {name} at {LEVEL:g}, the best Virgo method "
            f"{', '.join(parts)}."
        )
    return lines


def _folded(verdicts: Sequence[Verdict]) -> list[str]:
    """Where the test was corrected, because the plain one would be too sure."""
    folded = [v.place for v in verdicts if v.paired and v.paired.overlap]
    if not folded:
        return []
    return [
        f"{listed(folded)}: seed s is fold s; the t test and its interval are "
        f"corrected for folds that share training data (Nadeau and Bengio: variance factor 1/n + "
        f"1/{FOLDS - 2} in place of 1/n), and sign flips, which ask for independent seeds, are "
        f"left out."
    ]


def _missing(places: Mapping[Place, Sequence[ResultCell]]) -> list[str]:
    absent = [p for p, cells in places.items() if not any(c.chosen for c in cells)]
    return [f"Not run: {listed(absent)}."] if absent else []


def _claim(place: Place, cells: Sequence[ResultCell], verdict: Verdict) -> list[str]:
    """Whether the paper's order, Virgo or a classic method first, is reproduced."""
    theirs = [c for c in cells if c.paper]
    if not theirs or not any(c.chosen for c in theirs):
        return []
    lacking = [c.init for c in theirs if not c.comparable]
    if lacking:
        why = "not run, or not searched like the others"
        return [f"{place}: the paper's claim cannot be judged; {', '.join(lacking)}: {why}."]
    paper_first = max(theirs, key=lambda c: c.paper.mean if c.paper else -1.0)
    best = max(map(_rounded, theirs))
    ties = [cell for cell in theirs if _rounded(cell) == best]
    # of those that share first place one of the paper's kind, which is then reproduced
    first = max(ties, key=lambda cell: cell.virgo == paper_first.virgo)
    line = _compared(paper_first, first, theirs)
    overall = [c for c in cells if c.rank == 1]
    if overall and not any(c.paper for c in overall):
        line += f"; of all methods {overall[0].init} is first ({overall[0].mean:.2f})"
    outcome = {
        YES: "finds the first better",
        NO: "finds the second better",
        NEITHER: "shows no difference",
    }.get(verdict.answer)
    if outcome:
        line += f"; the paired test of {verdict.virgo} against {verdict.classic} {outcome}"
    label = f", {first.chosen.label}" if first.chosen and first.chosen.label else ""
    if not _counts(first):
        line = "indicative only, " + line.removeprefix("NOT reproduced: ").removeprefix(
            "reproduced: "
        )
    return [f"{place}{label}: {line}."]


def _counts(cell: ResultCell) -> bool:
    """Whether a cell has the grid's epochs and enough seeds to be called reproduced or not."""
    cut_short = cell.chosen and any(words.startswith("epochs") for words in cell.chosen.partial)
    return cell.n >= ENOUGH and not cut_short


def _rounded(cell: ResultCell) -> float:
    return round(cell.mean, 9)


def _compared(paper_first: ResultCell, first: ResultCell, theirs: Sequence[ResultCell]) -> str:
    """Which method is first in the paper and here, and its rival if the kinds differ."""
    assert paper_first.paper is not None
    kinds = {True: "a Virgo method", False: "a classic method"}
    printed = f"{paper_first.init}, {paper_first.paper.mean:.2f}"
    there = f"the paper has {kinds[paper_first.virgo]} first ({printed})"
    shared = [c.init for c in theirs if c is not first and _rounded(c) == _rounded(first)]
    verb = "shares first place here with " + ", ".join(shared) if shared else "is first here"
    here = f"of the same methods {first.init} {verb} ({first.mean:.2f})"
    if first.virgo == paper_first.virgo:
        return f"reproduced: {there}, and {here}"
    rival = max((c for c in theirs if c.virgo != first.virgo), key=_rounded)
    kind = "Virgo" if rival.virgo else "classic"
    return (
        f"NOT reproduced: {there}, but {here}, before the best {kind} method ({rival.init}, "
        f"{rival.mean:.2f})"
    )


def incomparable(place: Place, cells: Sequence[ResultCell]) -> Iterable[str]:
    """Why cells are left out of the ranking; a single cell has no ranking."""
    if sum(cell.chosen is not None for cell in cells) < 2:
        return
    for cell in cells:
        if cell.chosen and not cell.comparable:
            label = cell.chosen.label or "its search differs from the others'"
            yield f"{place}: {cell.init} is not ranked: {label}."

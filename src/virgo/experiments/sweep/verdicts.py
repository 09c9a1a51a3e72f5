"""The verdicts of a table in words: Virgo against the best classic method, and against the paper.

Every sentence is made from the numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from virgo.experiments.data.catalogue import CATALOGUE
from virgo.experiments.data.datasets import FOLDS
from virgo.experiments.sweep.grids import base_name
from virgo.experiments.sweep.paper import Printed
from virgo.experiments.sweep.selection import Chosen
from virgo.experiments.sweep.statistics import Paired, deviation, holm, mean, paired

LEVEL = 0.05
YES, NO, NEITHER = "yes", "no", "no difference shown"
NOT_RUN = "not run"


class Place(NamedTuple):
    """A column in which methods compete: a dataset, a model, and a depth if that is fixed."""

    dataset: str
    model: str
    layers: int | None = None

    def __str__(self) -> str:
        depth = "" if self.layers is None else f", {self.layers} layers"
        return f"{self.dataset}, {self.model}{depth}"


def listed(places: Iterable[Place]) -> str:
    """Places in words, those that differ only in depth together.

    Args:
        places: the places.

    Returns:
        Their text.

    >>> listed([Place("cora", "gcn", 2), Place("cora", "gcn", 4), Place("pubmed", "gcn")])
    'cora, gcn (2, 4 layers); pubmed, gcn'
    """
    depths: dict[tuple[str, str], list[int]] = {}
    for place in places:
        layers = depths.setdefault(place[:2], [])
        if place.layers is not None:
            layers.append(place.layers)
    return "; ".join(
        f"{dataset}, {model}" + (f" ({', '.join(map(str, layers))} layers)" if layers else "")
        for (dataset, model), layers in depths.items()
    )


def overlap_of(dataset: str) -> float:
    """Test over training examples where a dataset's seeds are folds; 0 where they share no data.

    Of ten folds one is tested, one validated and eight are trained on
    (``virgo.experiments.tasks.graph``), so two seeds have most of their training data in common.

    Args:
        dataset: a dataset's name.

    Returns:
        The overlap that :func:`virgo.experiments.sweep.statistics.paired` takes.

    >>> overlap_of("imdb-b"), overlap_of("like:collab@0.1"), overlap_of("ogbg-molhiv")
    (0.125, 0.125, 0.0)
    """
    entry = CATALOGUE.get(base_name(dataset))
    is_folded = entry is not None and entry.task == "graph" and not entry.split
    return 1 / (FOLDS - 2) if is_folded else 0.0


@dataclass(frozen=True)
class ResultCell:
    """One method at one place: the chosen configuration, and the paper's cell."""

    place: Place
    init: str
    chosen: Chosen | None
    paper: Printed | None
    rank: int | None = None
    comparable: bool = False

    @property
    def mean(self) -> float:
        """Mean test value in percent; NaN where there is none."""
        return mean(list(self.chosen.tests.values())) if self.chosen else mean([])

    @property
    def sd(self) -> float:
        """Its standard deviation over seeds (ddof 1)."""
        return deviation(list(self.chosen.tests.values()) if self.chosen else [])

    @property
    def n(self) -> int:
        """Seeds in the mean."""
        return len(self.chosen.tests) if self.chosen else 0

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, in points."""
        return self.mean - self.paper.mean if self.n and self.paper else None

    @property
    def virgo(self) -> bool:
        """Whether the method is one of Virgo's."""
        return self.init.startswith("virgo")


@dataclass(frozen=True)
class Verdict:
    """Whether the best Virgo method beats the best classic one at a place.

    Attributes:
        place: the place.
        answer: "yes", "no" (the classic method is better), "no difference shown", or why there is
            no answer.
        virgo, classic: the methods, each chosen by validation among its kind.
        paired: their test values compared, in points; corrected where the seeds are folds.
        holm: the p value of the t test, corrected for all places of the table of the same family.
        family: "" for a complete search on real data, else "partial", "generated" or both: these
            are corrected and counted on their own.
    """

    place: Place
    answer: str
    virgo: str | None = None
    classic: str | None = None
    paired: Paired | None = None
    holm: float | None = None
    family: str = ""


def ranked(cells: Sequence[ResultCell]) -> list[ResultCell]:
    """Rank the cells of one place; only those that were searched alike compete.

    Complete searches go before partial ones, then the kind of search that most cells share.

    Args:
        cells: the cells of one place.

    Returns:
        The cells with their ranks.
    """
    alike: dict[object, list[int]] = {}
    for i, cell in enumerate(cells):
        if cell.chosen and cell.chosen.tests and not cell.chosen.failed:
            alike.setdefault(cell.chosen.protocol, []).append(i)

    def strength(members: list[int]) -> tuple[bool, int, int]:
        first = cells[members[0]].chosen
        return (first is not None and not first.partial, len(members), -members[0])

    best = max(alike.values(), key=strength, default=[])
    if len(best) < 2:
        return list(cells)
    # means that are equal on paper may differ in their last digits
    means = {i: round(cells[i].mean, 9) for i in best}
    return [
        replace(cell, rank=1 + sum(other > means[i] for other in means.values()), comparable=True)
        if i in means
        else cell
        for i, cell in enumerate(cells)
    ]


def judged(places: Mapping[Place, Sequence[ResultCell]]) -> list[Verdict]:
    """One verdict per place, corrected by Holm over all tests of its family."""
    verdicts = [_judge(place, cells) for place, cells in places.items()]
    families: dict[str, list[int]] = {}
    for i, verdict in enumerate(verdicts):
        if verdict.paired:
            families.setdefault(verdict.family, []).append(i)
    for members in families.values():
        tests = [test for i in members if (test := verdicts[i].paired)]
        for i, test, p in zip(members, tests, holm([t.p for t in tests]), strict=True):
            better = YES if test.difference > 0 else NO
            verdicts[i] = replace(verdicts[i], holm=p, answer=better if p <= LEVEL else NEITHER)
    return verdicts


def _judge(place: Place, cells: Sequence[ResultCell]) -> Verdict:
    """Choose the two methods by validation and compare their tests, seed by seed."""
    if not any(cell.chosen for cell in cells):
        return Verdict(place, NOT_RUN)
    best: dict[bool, ResultCell] = {}
    for virgo in (True, False):
        kind = [c for c in cells if c.virgo == virgo and c.comparable and c.chosen]
        if not kind:
            ran = any(c.chosen for c in cells if c.virgo == virgo)
            name = "Virgo" if virgo else "classic"
            why = "searched like the others" if ran else "run"
            return Verdict(place, f"no {name} method was {why}")
        # max keeps the first of equals: the order of the table's rows
        best[virgo] = max(kind, key=lambda c: round(c.chosen.valid, 9) if c.chosen else -1.0)
    first, second = best[True].chosen, best[False].chosen
    assert first is not None
    assert second is not None
    family = ["partial"] * bool(first.partial) + ["generated"] * bool(first.generated)
    named = Verdict(
        place, "one seed is no test", best[True].init, best[False].init, family=", ".join(family)
    )
    if len(first.tests) < 2:
        return named
    test = paired(first.tests, second.tests, overlap=overlap_of(place.dataset))
    return replace(named, paired=test)


# --- sentences ----------------------------------------------------------------------------------


def remarks(
    places: Mapping[Place, Sequence[ResultCell]], verdicts: Sequence[Verdict], name: str
) -> list[str]:
    """The lines below a table."""
    lines = [*_summary(verdicts, name), *_folded(verdicts), *_missing(places)]
    by_place = {verdict.place: verdict for verdict in verdicts}
    for place, cells in places.items():
        lines += _claim(place, cells, by_place[place])
    for place, cells in places.items():
        lines += _incomparable(place, cells)
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
    first = max(theirs, key=_rounded)
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
    return [f"{place}{label}: {line}."]


def _rounded(cell: ResultCell) -> float:
    return round(cell.mean, 9)


def _compared(paper_first: ResultCell, first: ResultCell, theirs: Sequence[ResultCell]) -> str:
    """Which method is first in the paper and here, and its rival if the kinds differ."""
    assert paper_first.paper is not None
    kinds = {True: "a Virgo method", False: "a classic method"}
    printed = f"{paper_first.init}, {paper_first.paper.mean:.2f}"
    there = f"the paper has {kinds[paper_first.virgo]} first ({printed})"
    here = f"of the same methods {first.init} is first here ({first.mean:.2f})"
    if first.virgo == paper_first.virgo:
        return f"reproduced: {there}, and {here}"
    rival = max((c for c in theirs if c.virgo != first.virgo), key=_rounded)
    kind = "Virgo" if rival.virgo else "classic"
    return (
        f"NOT reproduced: {there}, but {here}, before the best {kind} method ({rival.init}, "
        f"{rival.mean:.2f})"
    )


def _incomparable(place: Place, cells: Sequence[ResultCell]) -> Iterable[str]:
    """Why cells are left out of the ranking; a single cell has no ranking."""
    if sum(cell.chosen is not None for cell in cells) < 2:
        return
    for cell in cells:
        if cell.chosen and not cell.comparable:
            label = cell.chosen.label or "its search differs from the others'"
            yield f"{place}: {cell.init} is not ranked: {label}."

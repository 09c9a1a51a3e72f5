"""Ranks and paired tests of a table: the best Virgo method against the best classic one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """A column in which methods compete: a dataset, a model, and a depth if that is fixed.

    In a study of a user's own, other keys may be fixed: ``layers`` is then text, ``"lr=0.1"``.
    """

    dataset: str
    model: str
    layers: int | str | None = None

    @property
    def fixed(self) -> str:
        """The depth, or what else is fixed, in words."""
        return f"{self.layers} layers" if isinstance(self.layers, int) else self.layers or ""

    def __str__(self) -> str:
        return ", ".join(word for word in (self.dataset, self.model, self.fixed) if word)


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

"""Every method of a study against one baseline, in pairs of seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from virgo.experiments.sweep.statistics import Paired, holm, paired
from virgo.experiments.sweep.verdicts import LEVEL, Place, ResultCell, overlap_of

BETTER, WORSE, ALIKE = "better", "worse", "no difference shown"


@dataclass(frozen=True)
class Contrast:
    """A method minus the baseline at one place, each with the configuration validation chose.

    Attributes:
        place: the column.
        init, baseline: the methods.
        paired: their test values compared, in points; None with fewer than two seeds in common.
        holm: the p value of the t test, corrected for all contrasts of the study.
        answer: "better", "worse", "no difference shown", or why there is none.
    """

    place: Place
    init: str
    baseline: str
    paired: Paired | None
    holm: float | None
    answer: str


def contrasts(places: Mapping[Place, Sequence[ResultCell]], baseline: str) -> list[Contrast]:
    """Compare all methods with the baseline, corrected by Holm over all of them."""
    rows = [
        _contrast(cell, base)
        for cells in places.values()
        for base in cells
        if base.init == baseline and base.chosen
        for cell in cells
        if cell.init != baseline and cell.chosen
    ]
    tested = [i for i, row in enumerate(rows) if row.paired]
    corrected = holm([test.p for i in tested if (test := rows[i].paired)])
    for i, p in zip(tested, corrected, strict=True):
        test = rows[i].paired
        assert test is not None
        answer = ALIKE if p > LEVEL else BETTER if test.difference > 0 else WORSE
        rows[i] = replace(rows[i], holm=p, answer=answer)
    return rows


def _contrast(cell: ResultCell, base: ResultCell) -> Contrast:
    assert cell.chosen is not None
    assert base.chosen is not None
    common = sorted(set(cell.chosen.tests) & set(base.chosen.tests))
    row = Contrast(cell.place, cell.init, base.init, None, None, "fewer than two seeds in common")
    if len(common) < 2:
        return row
    first, second = ({s: c.chosen.tests[s] for s in common} for c in (cell, base) if c.chosen)
    return replace(row, paired=paired(first, second, overlap=overlap_of(cell.place.dataset)))

"""Methods compared over depth: the paper's Figure 1 as curves, verdicts and claims."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from virgo.errors import OptionError, shown
from virgo.report.notebook import NotebookView, plots
from virgo.report.page import Document, variance_chart
from virgo.report.saving import save, versions
from virgo.report.text import plain_numbers, show, text_table
from virgo.vocabulary import CLASSIC

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Panels = dict[str, dict[str, Sequence[float]]]
_HEADER = (
    "method",
    "forward max/min",
    "leaves x10 at",
    "backward max/min",
    "leaves x10 at",
    "verdict",
)
#: Two ranges closer than this factor are level: no claim rests on the last digit.
LEVEL = 1.01


@dataclass(frozen=True)
class Curve:
    """One method at one depth: variances of h^0 .. h^L, their spread over draws, and two summaries.

    ``stability`` is max/min over all layers; ``leaves`` the number of layers after which the
    variance has left a factor of ten of where it began (the input forward, the output backward).
    """

    method: str
    depth: int
    direction: str
    values: tuple[float, ...]
    spread: tuple[float, ...]

    @property
    def stability(self) -> float:
        if not all(v > 0 for v in self.values):
            return math.inf
        return max(self.values) / min(self.values)

    @property
    def leaves(self) -> int | None:
        path = self.values if self.direction == "forward" else self.values[::-1]
        for steps, value in enumerate(path):
            if not (path[0] / 10 <= value <= path[0] * 10):
                return steps
        return None


@dataclass(frozen=True)
class Health:
    """The verdict on one method at one depth: :func:`virgo.check`'s, with its default limits."""

    method: str
    depth: int
    level: str  # "good", "watch" or "bad"
    findings: tuple[str, ...] = ()  # what is wrong, a sentence each


@dataclass(frozen=True)
class Claim:
    """The paper's claim for one direction and depth, with the two numbers it rests on."""

    depth: int
    direction: str
    virgo: str
    virgo_range: float
    classic: str
    classic_range: float

    @property
    def confirmed(self) -> bool:
        return self.virgo_range * LEVEL < self.classic_range

    @property
    def is_level(self) -> bool:
        """Whether the two differ by less than :data:`LEVEL`, as behind a norm they often do."""
        low, high = sorted([self.virgo_range, self.classic_range])
        return math.isfinite(high) and high <= low * LEVEL

    def __str__(self) -> str:
        word = "confirmed" if self.confirmed else "level" if self.is_level else "not confirmed"
        return (
            f"{self.depth} layers, {self.direction}: {word}: {self.virgo} changes by "
            f"x{self.virgo_range:.3g} over the layers, the best classic method ({self.classic}) "
            f"by x{self.classic_range:.3g}"
        )


@dataclass(frozen=True)
class Comparison(NotebookView):
    """The curves, verdicts and failures of all methods side by side.

    Attributes:
        curves: one per method, depth and direction.
        seeds: how many draws each curve is the mean of.
        title: of the page.
        failures: the methods that could not be run, and why.
        facts: about the model and the data.
        notes: in words, what one should know.
        health: the verdict per method and depth.
    """

    curves: tuple[Curve, ...]
    seeds: int
    title: str = "model"
    failures: dict[str, str] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    health: tuple[Health, ...] = ()

    @property
    def depths(self) -> list[int]:
        """The numbers of layers that were compared."""
        return sorted({curve.depth for curve in self.curves})

    def at(self, depth: int, direction: str) -> dict[str, Curve]:
        """The curves of one panel, by method.

        Args:
            depth: the number of layers.
            direction: ``"forward"`` or ``"backward"``.

        Returns:
            Method -> curve.
        """
        return {c.method: c for c in self.curves if (c.depth, c.direction) == (depth, direction)}

    def claims(self) -> list[Claim]:
        """Whether Virgo declines less steeply than the classic methods.

        Returns:
            One claim per depth and direction, for the closed form and, where it was run, for the
            measured estimate.
        """
        claims = []
        for depth in self.depths:
            for direction in ("forward", "backward"):
                panel = self.at(depth, direction)
                classic = {n: c.stability for n, c in panel.items() if n in CLASSIC}
                if not classic:
                    continue
                best = min(classic, key=lambda n: classic[n])
                claims += [
                    Claim(depth, direction, name, panel[name].stability, best, classic[best])
                    for name in (f"virgo-{direction}", f"virgo-{direction}+measured")
                    if name in panel
                ]
        return claims

    def to_json(self, indent: int | None = None) -> str:
        """Curves, claims and verdicts as JSON.

        Args:
            indent: spaces per level; ``None`` for one line.

        Returns:
            The text.
        """
        raw = asdict(self)
        for curve, record in zip(self.curves, raw["curves"], strict=True):
            record |= {"stability": curve.stability, "leaves": curve.leaves}
        raw["claims"] = [{**asdict(c), "confirmed": c.confirmed} for c in self.claims()]
        return json.dumps(plain_numbers(raw), indent=indent)

    def table(self, depth: int) -> list[tuple[str, ...]]:
        """Method, stability and depth of leaving a factor of ten both ways, and the verdict.

        Args:
            depth: the number of layers.

        Returns:
            One row per method.
        """
        forward, backward = self.at(depth, "forward"), self.at(depth, "backward")
        levels = {health.method: health.level for health in self.health if health.depth == depth}
        return [
            (name, *_cells(curve), *_cells(backward.get(name)), levels.get(name, "-"))
            for name, curve in forward.items()
        ]

    def records(self) -> list[dict[str, Any]]:
        """One dictionary per method, depth, direction and layer: the rows of :meth:`to_frame`."""
        levels = {(health.method, health.depth): health.level for health in self.health}
        return [
            {
                "method": curve.method,
                "depth": curve.depth,
                "direction": curve.direction,
                "layer": layer,
                "variance": value,
                "spread": spread,
                "verdict": levels.get((curve.method, curve.depth)),
            }
            for curve in self.curves
            for layer, (value, spread) in enumerate(zip(curve.values, curve.spread, strict=True))
        ]

    def __repr__(self) -> str:
        methods = len({curve.method for curve in self.curves})
        depths = ", ".join(map(str, self.depths))
        return f"Comparison({self.title}, {methods} methods, layers {depths}, {self.seeds} draws)"

    def __str__(self) -> str:
        lines = [f"{self.title}, mean of {self.seeds} draws"]
        for depth in self.depths:
            lines += ["", f"{depth} layers", *text_table(_HEADER, self.table(depth))]
        lines += ["", "Does Virgo decline less steeply than the classic methods?"]
        lines += [f"  {claim}" for claim in self.claims()]
        lines += [f"failed: {name}: {why}" for name, why in self.failures.items()]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def figure(self, depth: int | None = None) -> Figure:
        """One depth, or a row of panels for each of all, as a matplotlib figure.

        Args:
            depth: the number of layers; all by default.

        Returns:
            The figure.

        Raises:
            OptionError: that depth was not compared.
        """
        if depth is not None and (not isinstance(depth, int) or depth not in self.depths):
            known = ", ".join(map(str, self.depths))
            raise OptionError(f"depth: expected one of {known}, got {shown(depth)}. Choose one.")
        depths = self.depths if depth is None else [depth]
        draw = plots("comparison.plot")
        drawn: Figure
        if len(depths) == 1:
            title = f"{self.title}, {depths[0]} layers"
            drawn = draw.variance_over_depth(*self._panels(depths[0]), title=title)
        else:
            rows = {f"{depth} layers": self._panels(depth) for depth in depths}
            drawn = draw.variances_over_depths(rows, title=self.title)
        return drawn

    def _panels(self, depth: int) -> tuple[Panels, Panels]:
        """The curves of one depth and their spreads, by method and direction."""
        values: Panels = {}
        spreads: Panels = {}
        for direction in ("forward", "backward"):
            for name, curve in self.at(depth, direction).items():
                values.setdefault(name, {})[direction] = curve.values
                spreads.setdefault(name, {})[direction] = curve.spread
        return values, spreads

    def plot(self, depth: int | None = None) -> list[Axes]:
        """Matplotlib axes, forward and backward.

        Args:
            depth: the number of layers; all by default.

        Returns:
            The axes.
        """
        return self.figure(depth).axes

    def document(self) -> Document:
        """The comparison as :func:`virgo.report.page.page` takes it."""
        claims = self.claims()
        confirmed = sum(claim.confirmed for claim in claims)
        note = "max/min over all layers; layers until the variance has left a factor of ten"
        sizes = [f"{v:,} {k}" for k, v in self.facts.items() if isinstance(v, int)]
        return {
            "title": f"Virgo compare: {self.title}",
            "subtitle": ", ".join(sizes),
            "verdict": {
                "level": "none",
                "details": [str(claim) for claim in claims],
                "headline": f"The paper's methods change less over the layers than every classic "
                f"one in {confirmed} of {len(claims)} comparisons.",
            },
            "charts": [
                variance_chart(
                    f"{'Signal' if direction == 'forward' else 'Gradient'}, {depth} layers",
                    f"{direction} variance",
                    {name: curve.values for name, curve in self.at(depth, direction).items()},
                    {name: curve.spread for name, curve in self.at(depth, direction).items()},
                    dashed=CLASSIC,
                )
                for depth in self.depths
                for direction in ("forward", "backward")
            ],
            "tables": [
                {
                    "title": f"Stability, {depth} layers",
                    "note": note,
                    "header": _HEADER,
                    "rows": self.table(depth),
                }
                for depth in self.depths
            ],
            "config": {**self.facts, "draws": self.seeds, "failures": self.failures},
            "versions": versions(),
            "notes": list(self.notes),
        }

    def save(self, path: str | Path) -> Path:
        """Write ``.html``, ``.json`` or a picture, by the file's ending.

        Args:
            path: the file; missing folders are made.

        Returns:
            The path.
        """
        return save(self, path)


def _cells(curve: Curve | None) -> tuple[str, str]:
    """Stability and depth of leaving a factor of ten, as a table shows them."""
    if curve is None:
        return "-", "-"
    return f"x{show(curve.stability)}", "never" if curve.leaves is None else str(curve.leaves)


def joined(studies: Sequence[Comparison]) -> Comparison:
    """Comparisons of one title at several depths as one; facts and title are the first one's."""
    first = studies[0]
    return replace(
        first,
        curves=tuple(curve for study in studies for curve in study.curves),
        health=tuple(health for study in studies for health in study.health),
        failures={name: why for study in studies for name, why in study.failures.items()},
        notes=tuple(dict.fromkeys(note for study in studies for note in study.notes)),
    )

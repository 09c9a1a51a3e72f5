"""The five assumption tables as data, as text and as markdown."""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from virgo.errors import OptionError
from virgo.experiments.assumptions.paper import Printed
from virgo.graph.operators import Vector
from virgo.report.saving import save, versions
from virgo.report.text import plain_numbers, text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Plain: TypeAlias = Mapping[str, Any]
"""What JSON can hold, by name."""

PRINTED = "as printed"
_TABLES = ("message_paths", "weight_paths", "delta_and_weight_path", "delta", "softmax")


@dataclass(frozen=True)
class AssumptionCell:
    """A mean over observations, their standard deviation (the paper's ``±``), and their number.

    ``between`` is the standard deviation of the mean from one draw of weights and paths to the
    next, which is what two papers' means may differ by; ``low`` to ``high`` is the range that holds
    95 % of these means. Where the observations of a draw are a matrix, ``sd`` is that within a row,
    averaged over rows. Correlations with a constant vector (a path
    that is shut at every neuron, a node without features) do not exist: they are left out of the
    mean and counted as ``undefined``.
    """

    mean: float
    sd: float
    between: float
    count: int
    undefined: int
    low: float = math.nan
    high: float = math.nan

    @classmethod
    def of(cls, draws: Sequence[Vector]) -> AssumptionCell:
        """From the observations of each draw: a vector, or a matrix with a row per group."""
        matrices = [values for values in draws if values.ndim == 2]
        defined = [values[np.isfinite(values)] for values in draws]
        count = sum(values.size for values in defined)
        undefined = sum(values.size for values in draws) - count
        defined = [values for values in defined if values.size]
        if not defined:
            return cls(math.nan, math.nan, math.nan, 0, undefined)
        means = np.array([values.mean() for values in defined])
        spread = math.sqrt(float(np.mean([_variance(values) for values in defined])))
        if matrices:
            spread = float(np.nanmean([values.std(axis=1, ddof=1) for values in matrices]))
        low, high = (float(value) for value in np.quantile(means, [0.025, 0.975]))
        between = math.sqrt(_variance(means))
        return cls(float(means.mean()), spread, between, count, undefined, low, high)


def _variance(values: Vector) -> float:
    return float(values.var(ddof=1)) if values.size > 1 else math.nan


@dataclass(frozen=True)
class AssumptionRow:
    """One reading of an assumption: one cell per path length (or ``None``), and the paper's."""

    reading: str
    cells: tuple[AssumptionCell | None, ...]
    paper: tuple[Printed, ...] = ()


@dataclass(frozen=True)
class AssumptionTable:
    """One assumption: what it expects, and what each reading of it gives."""

    key: str
    title: str
    columns: tuple[str, ...]
    expected: tuple[float, ...]
    rows: tuple[AssumptionRow, ...]
    digits: int = 2

    def row(self, reading: str = PRINTED) -> AssumptionRow:
        """The row of this reading."""
        for row in self.rows:
            if row.reading == reading:
                return row
        raise OptionError(
            f"reading: expected one of {', '.join(r.reading for r in self.rows)}, got {reading!r}. "
            f"Choose one."
        )


class Rendered(ABC):
    """The tables of some graphs as markdown, as a page and as a picture."""

    @property
    @abstractmethod
    def datasets(self) -> Plain:
        """The tables of each graph in plain types, as :meth:`Assumptions.to_dict` gives them."""

    @abstractmethod
    def to_json(self, indent: int | None = None) -> str:
        """Everything as JSON."""

    def to_markdown(self, key: str | None = None) -> str:
        """Markdown of one table (``"A1"`` to ``"A5"``) or of all, one block of rows per graph."""
        parts = []
        for name in _TABLES:
            tables = {dataset: result[name] for dataset, result in self.datasets.items()}
            first = next(iter(tables.values()))
            if key not in (None, first["key"]):
                continue
            lines = [] if key else [f"### {first['key']}: {first['title']}", ""]
            header = ["dataset", *_grid(first)[0]]
            lines += [_markdown(header), "|---|---" + "|--:" * (len(header) - 2) + "|"]
            for dataset, table in tables.items():
                for i, line in enumerate(_grid(table)[1]):
                    lines.append(_markdown(["" if i else dataset, *line]))
            parts.append("\n".join(lines))
        return "\n\n".join(parts)

    def document(self) -> dict[str, Any]:
        """Tables of all graphs, charts of A1-A4, as :func:`virgo.report.page.page` takes them."""
        charts, tables = [], []
        for name, dataset in self.datasets.items():
            for table in (dataset[key] for key in _TABLES):
                header, rows = _grid(table)
                title = f"{name}, {table['key']}: {table['title']}"
                note = "; ".join(_undefined(table))
                cells = {"header": list(header), "rows": [list(row) for row in rows]}
                tables.append({"title": title, "note": note, **cells})
                if len(table["columns"]) > 1:
                    axes = {"x_label": "path length - 1", "y_label": "mean ± sd", "log": False}
                    charts.append({"title": title, **axes, "series": _series(table)})
        headline = (
            "What each assumption expects and what is there: a curve that lies on 'expected' holds."
        )
        return {
            "title": f"Virgo verify: {', '.join(self.datasets)}",
            "subtitle": "the paper's five assumptions, ours beside its",
            "verdict": {"level": "none", "headline": headline, "details": []},
            "charts": charts,
            "tables": tables,
            "config": dict(next(iter(self.datasets.values()))["settings"]),
            "versions": versions(),
            "notes": [],
        }

    def figure(self) -> Figure:
        """Ours, the paper's and the expected value of A1 to A4 over path lengths."""
        from virgo.report.plots import panels

        return panels(self.document()["charts"])

    def save(self, path: str | Path) -> Path:
        """Write ``.html``, ``.json`` or a picture, by the file's ending."""
        return save(self, path)


@dataclass(frozen=True)
class Assumptions(Rendered):
    """The five tables of the paper's appendix A for one graph."""

    name: str | None
    message_paths: AssumptionTable
    weight_paths: AssumptionTable
    delta_and_weight_path: AssumptionTable
    delta: AssumptionTable
    softmax: AssumptionTable
    settings: Plain = field(default_factory=dict)

    @property
    def tables(self) -> tuple[AssumptionTable, ...]:
        """A1 to A5."""
        return tuple(getattr(self, name) for name in _TABLES)

    @property
    def datasets(self) -> Plain:
        """These tables under the graph's name."""
        return {self.name or "this graph": self.to_dict()}

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain types; undefined numbers are None."""
        plain: dict[str, Any] = plain_numbers(asdict(self))
        return plain

    def to_json(self, indent: int | None = None) -> str:
        """Everything as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        settings = self.settings
        lines = [
            f"assumptions on {self.name or 'this graph'}: {settings['num_layers']}-layer GCN of "
            f"width {settings['width']}, Xavier, {settings['paths']} message paths, "
            f"{settings['neurons']} neurons, {settings['seeds']} draws; mean ± sd over observations"
        ]
        plain = self.to_dict()
        for table in (plain[name] for name in _TABLES):
            lines += ["", f"{table['key']}: {table['title']}", *text_table(*_grid(table))]
            lines += [f"note: {line}" for line in _undefined(table)]
        return "\n".join(lines)


@dataclass(frozen=True)
class Verified(Rendered):
    """The tables of several graphs, as ``verify_all`` returns them or its JSON holds them."""

    results: Plain

    @property
    def datasets(self) -> Plain:
        """The tables by the name of the graph."""
        datasets: Plain = self.results["datasets"]
        return datasets

    def to_json(self, indent: int | None = None) -> str:
        """Everything as JSON, ending in a line break as files do."""
        return json.dumps(self.results, indent=indent) + "\n"


def refresh(document: str, results: Plain) -> str:
    """A document with every table from ``<!-- A1 -->`` to ``<!-- end A1 -->`` written anew.

    Args:
        document: markdown.
        results: what ``verify_all`` returned, or its JSON.

    Returns:
        The document with the tables of these results.
    """

    def table(match: re.Match[str]) -> str:
        key = match[1]
        return f"<!-- {key} -->\n{Verified(results).to_markdown(key)}\n<!-- end {key} -->"

    return re.sub(r"<!-- (A\d) -->.*?<!-- end \1 -->", table, document, flags=re.DOTALL)


def _markdown(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _series(table: Plain) -> list[dict[str, Any]]:
    """The reading as printed, the paper's cells where it has them, and what is expected."""
    first = table["rows"][0]
    cells = [cell or {"mean": None, "sd": None} for cell in first["cells"]]
    curves = [(first["reading"], [(cell["mean"], cell["sd"]) for cell in cells])]
    if first["paper"]:
        curves.append(("paper", first["paper"]))
    series: list[dict[str, Any]] = []
    for name, points in curves:
        means, sds = map(list, zip(*points, strict=True))
        series.append({"name": name, "values": means, "spread": sds, "dashed": False})
    expected = list(table["expected"])
    return [*series, {"name": "expected", "values": expected, "spread": None, "dashed": True}]


def _grid(table: Plain) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows: for each column ours beside the paper's, and last what is expected."""
    digits = table["digits"]
    header = ["reading"]
    for column in table["columns"]:
        header += [column, "paper"]
    body = []
    for row in table["rows"]:
        line = [row["reading"]]
        for i, cell in enumerate(row["cells"]):
            ours = (cell["mean"], cell["sd"]) if cell else (None, None)
            theirs = row["paper"][i] if i < len(row["paper"]) else (None, None)
            line += [_number(ours, digits), _number(theirs, digits)]
        body.append(tuple(line))
    last = ["expected"]
    for value in table["expected"]:
        last += [f"{value:.4g}" if digits == 2 else f"{value:.{digits}f}", ""]
    return tuple(header), [*body, tuple(last)]


def _number(cell: tuple[float | None, float | None], digits: int) -> str:
    mean, sd = cell
    if mean is None:
        return ""
    shown = f"{mean:.{digits}f}" if sd is None else f"{mean:.{digits}f} ± {sd:.{digits}f}"
    return re.sub(r"^-(0\.0+)(?!\d)", r"\1", shown)  # no minus before a zero


def _undefined(table: Plain) -> list[str]:
    """One line per row that leaves out correlations."""
    lines = []
    for row in table["rows"]:
        cells = [cell for cell in row["cells"] if cell]
        missing = sum(cell["undefined"] for cell in cells)
        if missing:
            total = missing + sum(cell["count"] for cell in cells)
            lines.append(
                f"{row['reading']}: {missing:,} of {total:,} correlations are of a constant "
                f"vector, hence undefined and left out"
            )
    return lines

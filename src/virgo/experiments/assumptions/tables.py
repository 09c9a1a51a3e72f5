"""The five assumption tables as data, as text and as markdown."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from virgo.errors import OptionError
from virgo.experiments.assumptions.paper import Printed
from virgo.graph.operators import Vector
from virgo.report.saving import save, versions
from virgo.report.text import plain_numbers, text_table

PRINTED = "as printed"


@dataclass(frozen=True)
class Cell:
    """A mean over observations, its spread over them (the paper's ``±``), and what it rests on.

    ``between`` is the spread of the mean from one draw of weights and paths to the next, which is
    what two papers' means may differ by. Correlations with a vector that is constant (a path that
    is shut at every neuron, a node without features) do not exist: they are left out of the mean
    and counted as ``undefined``.
    """

    mean: float
    sd: float
    between: float
    count: int
    undefined: int

    @classmethod
    def of(cls, draws: Sequence[Vector]) -> Cell:
        """From the observations of each draw."""
        kept = [values[np.isfinite(values)] for values in draws]
        undefined = sum(values.size for values in draws) - sum(values.size for values in kept)
        kept = [values for values in kept if values.size]
        if not kept:
            return cls(math.nan, math.nan, math.nan, 0, undefined)
        means = np.array([values.mean() for values in kept])
        spread = math.sqrt(float(np.mean([_variance(values) for values in kept])))
        between = float(means.std(ddof=1)) if means.size > 1 else math.nan
        return cls(float(means.mean()), spread, between, sum(v.size for v in kept), undefined)


def _variance(values: Vector) -> float:
    return float(values.var(ddof=1)) if values.size > 1 else math.nan


@dataclass(frozen=True)
class Row:
    """One reading of an assumption: a cell for each path length, and the paper's if it is theirs.

    A cell that a reading does not have is ``None``.
    """

    reading: str
    cells: tuple[Cell | None, ...]
    paper: tuple[Printed, ...] = ()


@dataclass(frozen=True)
class Table:
    """One assumption: what it expects, and what each reading of it gives."""

    key: str
    title: str
    columns: tuple[str, ...]
    expected: tuple[float, ...]
    rows: tuple[Row, ...]
    digits: int = 2

    def row(self, reading: str = PRINTED) -> Row:
        """The row of this reading."""
        for row in self.rows:
            if row.reading == reading:
                return row
        raise OptionError(
            f"reading: expected one of {', '.join(r.reading for r in self.rows)}, got {reading!r}. "
            f"Choose one."
        )


@dataclass(frozen=True)
class Assumptions:
    """The five tables of the paper's appendix A for one graph."""

    name: str | None
    message_paths: Table
    weight_paths: Table
    delta_and_weight_path: Table
    delta: Table
    softmax: Table
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tables(self) -> tuple[Table, ...]:
        """A1 to A5."""
        return (
            self.message_paths,
            self.weight_paths,
            self.delta_and_weight_path,
            self.delta,
            self.softmax,
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain types; undefined numbers are None."""
        plain: dict[str, Any] = plain_numbers(asdict(self))
        return plain

    def to_json(self, indent: int | None = None) -> str:
        """Everything as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def _alone(self) -> Verified:
        return Verified({"datasets": {self.name or "this graph": self.to_dict()}})

    def to_markdown(self) -> str:
        """The five tables in markdown."""
        return self._alone().to_markdown()

    def document(self) -> dict[str, Any]:
        """The tables as :func:`virgo.report.page.page` takes them."""
        return self._alone().document()

    def figure(self) -> Any:
        """Ours, the paper's and the expected value of A1 to A4 over path lengths."""
        return self._alone().figure()

    def save(self, path: str | Path) -> Path:
        """Write ``.html``, ``.json`` or a picture, by the file's ending."""
        return save(self, path)

    def __str__(self) -> str:
        settings = self.settings
        lines = [
            f"assumptions on {self.name or 'this graph'}: {settings['num_layers']}-layer GCN of "
            f"width {settings['width']}, Xavier, {settings['paths']} message paths, "
            f"{settings['neurons']} neurons, {settings['seeds']} draws; mean ± sd over observations"
        ]
        for raw in (self.to_dict()[name] for name in _TABLES):
            header, body = _grid(raw)
            lines += ["", f"{raw['key']}: {raw['title']}", *text_table(header, body)]
            lines += [f"note: {line}" for line in _undefined(raw)]
        return "\n".join(lines)


@dataclass(frozen=True)
class Verified:
    """The tables of several graphs, as ``verify_all`` returns them, to be shown and saved."""

    results: Mapping[str, Any]

    def to_json(self, indent: int | None = None) -> str:
        """Everything as JSON, ending in a line break as files do."""
        return json.dumps(self.results, indent=indent) + "\n"

    def to_markdown(self) -> str:
        """The tables in markdown, a block of rows a graph."""
        return to_markdown(self.results)

    def document(self) -> dict[str, Any]:
        """The tables as :func:`virgo.report.page.page` takes them."""
        return document(self.results)

    def figure(self) -> Any:
        """Ours, the paper's and the expected value of A1 to A4 over path lengths."""
        from virgo.report.plots import panels

        return panels(self.document()["charts"])

    def save(self, path: str | Path) -> Path:
        """Write ``.html``, ``.json`` or a picture, by the file's ending."""
        return save(self, path)


_TABLES = ("message_paths", "weight_paths", "delta_and_weight_path", "delta", "softmax")


def to_markdown(results: Mapping[str, Any], key: str | None = None) -> str:
    """Markdown tables of one assumption (``"A1"`` to ``"A5"``) or all, a block of rows a dataset.

    Args:
        results: what ``verify_all`` returned, or its JSON.
    """
    parts = []
    for name in _TABLES:
        tables = {dataset: found[name] for dataset, found in results["datasets"].items()}
        first = next(iter(tables.values()))
        if key not in (None, first["key"]):
            continue
        lines = [] if key else [f"### {first['key']}: {first['title']}", ""]
        header = ("dataset", *_grid(first)[0])
        lines += ["| " + " | ".join(header) + " |", "|---|---" + "|--:" * (len(header) - 2) + "|"]
        for dataset, table in tables.items():
            for i, line in enumerate(_grid(table)[1]):
                lines.append("| " + " | ".join((dataset if i == 0 else "", *line)) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def document(results: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of all graphs and charts of A1-A4, as :func:`virgo.report.page.page` takes them."""
    charts, tables = [], []
    for name, dataset in results["datasets"].items():
        for raw in (dataset[table] for table in _TABLES):
            header, body = _grid(raw)
            title = f"{name}, {raw['key']}: {raw['title']}"
            note, rows = "; ".join(_undefined(raw)), [list(line) for line in body]
            tables.append({"title": title, "note": note, "header": list(header), "rows": rows})
            if len(raw["columns"]) > 1:
                charts.append(
                    {
                        "title": title,
                        "x_label": "path length - 1",
                        "y_label": "mean ± sd",
                        "log": False,
                        "series": _series(raw),
                    }
                )
    settings = next(iter(results["datasets"].values()))["settings"]
    return {
        "title": f"Virgo verify: {', '.join(results['datasets'])}",
        "subtitle": "the paper's five assumptions, ours beside its",
        "verdict": {
            "level": "none",
            "headline": "What each assumption expects and what is there: "
            "a curve that lies on 'expected' holds.",
            "details": [],
        },
        "charts": charts,
        "tables": tables,
        "config": dict(settings),
        "versions": versions(),
        "notes": [],
    }


def _series(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The reading as printed, the paper's cells where it has them, and what is expected."""
    first = table["rows"][0]
    ours = [cell or {"mean": None, "sd": None} for cell in first["cells"]]
    series = [
        {
            "name": first["reading"],
            "values": [cell["mean"] for cell in ours],
            "spread": [cell["sd"] for cell in ours],
            "dashed": False,
        }
    ]
    if first["paper"]:
        means, sds = zip(*first["paper"], strict=True)
        series.append(
            {"name": "paper", "values": list(means), "spread": list(sds), "dashed": False}
        )
    series.append(
        {"name": "expected", "values": list(table["expected"]), "spread": None, "dashed": True}
    )
    return series


def refresh(document: str, results: Mapping[str, Any]) -> str:
    """The document with every table between ``<!-- A1 -->`` and ``<!-- end A1 -->`` made anew."""

    def table(match: re.Match[str]) -> str:
        key = match[1]
        return f"<!-- {key} -->\n{to_markdown(results, key)}\n<!-- end {key} -->"

    return re.sub(r"<!-- (A\d) -->.*?<!-- end \1 -->", table, document, flags=re.DOTALL)


def _grid(table: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows: for each column ours beside the paper's, and last what is expected."""
    digits = table["digits"]
    header: list[str] = ["reading"]
    for column in table["columns"]:
        header += [column, "paper"]
    body = []
    for row in table["rows"]:
        line: list[str] = [row["reading"]]
        for i, cell in enumerate(row["cells"]):
            mean, sd = (cell["mean"], cell["sd"]) if cell else (None, None)
            their_mean, their_sd = row["paper"][i] if i < len(row["paper"]) else (None, None)
            line += [_number(mean, sd, digits), _number(their_mean, their_sd, digits)]
        body.append(tuple(line))
    last = ["expected"]
    for value in table["expected"]:
        last += [f"{value:.4g}" if digits == 2 else f"{value:.{digits}f}", ""]
    return tuple(header), [*body, tuple(last)]


def _number(mean: float | None, sd: float | None, digits: int) -> str:
    if mean is None:
        return ""
    shown = f"{mean:.{digits}f}" if sd is None else f"{mean:.{digits}f} ± {sd:.{digits}f}"
    return re.sub(r"^-(0\.0+)(?!\d)", r"\1", shown)  # no minus before a zero


def _undefined(table: Mapping[str, Any]) -> list[str]:
    """What was left out, where that is worth a line."""
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

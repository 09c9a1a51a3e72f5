"""One HTML file that opens offline: verdict, interactive charts, tables, configuration.

``page.html`` beside this module holds the markup, the style and the script that draws the charts.
Here a document becomes the text that goes into it. Nothing a user wrote reaches the page raw:
text is escaped as HTML, and what the charts need goes in as JSON that no parser can take for
markup; the script puts it on the screen by ``textContent`` only.
"""

from __future__ import annotations

import html
import json
import math
import os
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from importlib import resources
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from virgo.errors import OptionError
from virgo.report.files import write_text_atomically
from virgo.report.looks import SEATS, first_shown

# What a verdict is called, and the stroke of its icon in a box of 24: never colour alone.
VERDICTS = {
    "good": ("Good", "M6.5 12.5l3.8 3.8 7.2-8"),
    "watch": ("Watch", "M12 6.5v7M12 17.4v.1"),
    "bad": ("Bad", "M8 8l8 8M16 8l-8 8"),
    "none": ("No verdict", "M7.5 12h9"),
}
MISSING, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
# "0.12 ± 0.03", "< 1e-4", "12 %", "–": written as text, yet set as numbers.
NUMERIC = re.compile(
    r"[\s\d.,eE+\-±%<>=≈~()\[\]/∞\N{EN DASH}\N{MINUS SIGN}\N{MULTIPLICATION SIGN}]*"
)


Document = Mapping[str, Any]
"""What :func:`page` takes: see there."""


def variance_chart(
    title: str,
    y_label: str,
    curves: Mapping[str, Sequence[float]],
    spreads: Mapping[str, Sequence[float]] | None = None,
    dashed: Container[str] = (),
) -> Document:
    """A chart of variances over layers for a page's ``charts``: one series per curve.

    Args:
        title: of the chart.
        y_label: of its vertical axis, which is logarithmic.
        curves: name -> variance of h^0 .. h^L.
        spreads: the same shape, one standard deviation over draws.
        dashed: names of the curves to dash.

    Returns:
        The chart.
    """
    shown = first_shown(list(curves))
    series = [
        {
            "name": name,
            "seat": SEATS.get(name),
            "hidden": name not in shown,
            "values": list(values),
            "spread": list(spreads[name]) if spreads else None,
            "dashed": name in dashed,
        }
        for name, values in curves.items()
    ]
    x_label = "layer (0 is the input)"
    return {"title": title, "x_label": x_label, "y_label": y_label, "log": True, "series": series}


def page(document: Document) -> str:
    """The document as one self-contained HTML page.

    Args:
        document: ``title``, ``subtitle``, ``verdict`` (``level``, ``headline``, ``details`` and
            ``code`` to copy), ``reading`` (how to read the charts), ``charts``, ``tables``,
            ``config``, ``versions`` and ``notes``; what is absent is left out.
            Numbers may be ``None``, NaN or infinite: a chart has a gap there or a mark at its
            edge, a table shows "–" or "∞".

    Returns:
        The page.

    Raises:
        OptionError: if the verdict's level is unknown.

    >>> text = page({"title": "a < b", "verdict": {"level": "good", "headline": "Stable."}})
    >>> "<h1>a &lt; b</h1>" in text
    True
    """
    verdict = document.get("verdict") or {"level": "none"}
    level = verdict.get("level", "none")
    if level not in VERDICTS:
        raise OptionError(
            f"page: verdict level one of {', '.join(VERDICTS)} expected, got {level!r}. "
            "Use 'none' where nothing was judged."
        )
    word, icon = VERDICTS[level]
    if level == "none" and verdict.get("headline"):
        word = ""  # what the headline says is not judged, and it is no verdict that is missing
    parts = {
        "title": escaped(document.get("title", "")),
        "subtitle": _paragraphs([document.get("subtitle", "")], "subtitle"),
        "level": level,
        "word": _paragraphs([word], "word"),
        "icon": icon,
        "headline": escaped(verdict.get("headline", "")),
        "details": _list(verdict.get("details", ())) + _code(verdict.get("code", "")),
        "reading": _paragraphs([document.get("reading", "")], "note reading"),
        "charts": _embedded([_chart(chart) for chart in document.get("charts", ())]),
        "tables": "\n".join(_table(table) for table in document.get("tables", ())),
        "notes": _section("Notes", _list(document.get("notes", ()))),
        "config": _pairs("Configuration", document.get("config", {})),
        "versions": _pairs("Versions", document.get("versions", {})),
    }
    template = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    # One pass, so that a user's "{{charts}}" stays what it is.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def save_page(document: Document, path: str | os.PathLike[str]) -> Path:
    """Write :func:`page` to ``path`` atomically: never half a page."""
    write_text_atomically(Path(path), page(document))
    return Path(path)


def escaped(value: object) -> str:
    """A value's text as HTML."""
    # A path may hold bytes that are no text (lone surrogates), which no file can be written with.
    return html.escape(str(value).encode("utf-8", "replace").decode("utf-8"))


def _embedded(value: object) -> str:
    """JSON that is safe inside ``<script>``: ASCII only (so U+2028 and U+2029 too), no markup.

    Args:
        value: what JSON can hold, without NaN.

    Returns:
        The text of the JSON.

    >>> _embedded("</script>&")
    '"\\\\u003c/script\\\\u003e\\\\u0026"'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _chart(chart: Document) -> Document:
    return {
        "title": str(chart.get("title", "")),
        "x": str(chart.get("x_label", "")),
        "y": str(chart.get("y_label", "")),
        "log": bool(chart.get("log", False)),
        "series": [
            {
                "name": str(series["name"]),
                "values": [_number(value) for value in series["values"]],
                "spread": [_number(value) for value in series.get("spread") or ()],
                "dashed": bool(series.get("dashed", False)),
                "hidden": bool(series.get("hidden", False)),
                "seat": series.get("seat"),
            }
            for series in chart.get("series", ())
        ],
    }


def _number(value: float | None) -> float | str | None:
    """What JSON can hold: JavaScript's ``Number`` reads "Infinity" back, ``null`` is a gap."""
    if value is None or math.isnan(value):
        return None
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return float(value)


def cell(value: object) -> str:
    """A table's cell as text, numbers to four digits.

    Args:
        value: a number, text or None.

    Returns:
        The text; a dash for None and NaN.

    >>> [cell(x) for x in (12, 0.5, 1 / 3e5, float("inf"), float("nan"), None, "cora")]
    ['12', '0.5000', '3.333e-06', '∞', '–', '–', 'cora']
    """
    if value is None:
        return MISSING
    if isinstance(value, bool) or not isinstance(value, Real):
        return str(value)
    if isinstance(value, Integral):
        return str(int(value))
    number = float(value)
    if math.isnan(number):
        return MISSING
    if math.isinf(number):
        return "∞" if number > 0 else f"{MINUS}∞"
    if number == 0:
        return "0"
    return f"{number:#.4g}" if 1e-3 <= abs(number) < 9999.5 else f"{number:.3e}"


def _kind(column: Sequence[str]) -> str:
    """Numbers are set flush right; a column with long text may wrap, any other does not."""
    if all(map(NUMERIC.fullmatch, column)):
        return ' class="number"'
    return ' class="long"' if max(map(len, column)) > 48 else ""


def _table(table: Document) -> str:
    header = [str(name) for name in table["header"]]
    rows = [[cell(value) for value in row] for row in table["rows"]]
    kinds = [_kind(column) for column in zip(*rows, strict=True)] or [""] * len(header)

    def line(cells: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{kind}>{escaped(text)}</{tag}>" for text, kind in zip(cells, kinds, strict=True)
        )

    title = escaped(table.get("title", ""))
    body = "\n".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return (
        f"<section><h2>{title}</h2>\n{_paragraphs([table.get('note', '')], 'note')}"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}"><table>\n'
        f"<thead><tr>{line(header, 'th')}</tr></thead>\n<tbody>{body}</tbody>\n"
        "</table></div></section>"
    )


def _paragraphs(texts: Iterable[object], kind: str) -> str:
    return "".join(f'<p class="{kind}">{escaped(text)}</p>\n' for text in texts if text)


def _code(text: str) -> str:
    """Code with a button that copies it."""
    if not text:
        return ""
    return (
        f'<div class="code"><pre><code>{escaped(text)}</code></pre>'
        '<button class="copy" type="button">Copy</button></div>'
    )


def _list(items: Iterable[object]) -> str:
    lines = "".join(f"<li>{escaped(item)}</li>" for item in items)
    return f"<ul>{lines}</ul>" if lines else ""


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>{body}</section>" if body else ""


def _pairs(title: str, values: Mapping[str, object]) -> str:
    """Names and values, folded away; what is not text is written as JSON."""
    lines = "".join(
        f"<dt>{escaped(name)}</dt><dd>{escaped(value)}</dd>" for name, value in _flat(values)
    )
    return f"<details><summary>{title}</summary><dl>{lines}</dl></details>" if lines else ""


def _flat(values: Mapping[str, object], prefix: str = "") -> Iterable[tuple[str, str]]:
    """Nested settings as flat pairs, in order.

    Args:
        values: names and values; a value may be such a mapping itself.
        prefix: of every name.

    Yields:
        ``("outer.inner", text of the value)``.

    >>> list(_flat({"model": {"kind": "GCN", "hidden": [64, 64]}, "seed": None}))
    [('model.kind', 'GCN'), ('model.hidden', '[64, 64]'), ('seed', 'null')]
    """
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            plain = json.dumps(value, ensure_ascii=False, default=str)
            yield f"{prefix}{name}", value if isinstance(value, str) else plain

"""Results in a notebook: a foldable summary, a data frame and a picture.

Markup only, no style sheet and no script: notebooks bring their own looks, light and dark, and
remove scripts from a notebook that is not trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from virgo.errors import needed
from virgo.report.page import VERDICTS, Document, cell, escaped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: A first table of at most so many rows is shown unfolded.
SHORT = 12


class NotebookView:
    """A base of results that a notebook shows as a summary, a frame or a picture."""

    def document(self) -> Document:
        """The result as :func:`virgo.report.page.page` takes it."""
        raise NotImplementedError

    def records(self) -> list[dict[str, Any]]:
        """The rows of :meth:`to_frame`, each a dictionary."""
        raise NotImplementedError

    def figure(self) -> Figure:
        """The result as a matplotlib figure."""
        raise NotImplementedError

    def to_frame(self) -> Any:
        """The numbers as a ``pandas.DataFrame``; ``pip install 'virgo-gnn[notebook]'``."""
        pandas = needed("pandas", f"{type(self).__name__}.to_frame", "notebook")
        return pandas.DataFrame.from_records(self.records())

    def plot(self) -> list[Axes]:
        """Matplotlib axes of :meth:`figure`; ``pip install 'virgo-gnn[plot]'``."""
        return self.figure().axes

    def _repr_html_(self) -> str:
        return folded(self.document())


def plots(where: str) -> Any:
    """:mod:`virgo.report.plots`, which needs matplotlib, or an error that says so."""
    needed("matplotlib.figure", where, "plot")
    from virgo.report import plots

    return plots


def folded(document: Document) -> str:
    """A document as markup for a notebook: a title and a verdict, tables and notes to unfold.

    Args:
        document: as :func:`virgo.report.page.page` takes it; charts are left out.

    Returns:
        The markup. All text is escaped.

    >>> folded({"title": "a < b", "subtitle": "10 nodes"})
    '<div><p><b>a &lt; b</b><br>10 nodes</p></div>'
    """
    verdict = document.get("verdict") or {}
    parts = [f"<b>{escaped(document.get('title', ''))}</b>"]
    parts += [escaped(document["subtitle"])] if document.get("subtitle") else []
    if verdict.get("headline"):
        level = verdict.get("level", "none")
        word = "" if level == "none" else f"<b>{VERDICTS[level][0]}:</b> "
        parts.append(word + escaped(verdict["headline"]))
    tables: Sequence[Document] = document.get("tables", ())
    body = [
        _details(str(table.get("title", "")), _table(table), not i and len(table["rows"]) <= SHORT)
        for i, table in enumerate(tables)
    ]
    for title, lines in (
        ("Details", verdict.get("details", ())),
        ("Notes", document.get("notes", ())),
    ):
        if lines:
            items = "".join(f"<li>{escaped(line)}</li>" for line in lines)
            body.append(_details(title, f"<ul>{items}</ul>"))
    return f"<div><p>{'<br>'.join(parts)}</p>{''.join(body)}</div>"


def _details(title: str, body: str, is_open: bool = False) -> str:
    opened = " open" if is_open else ""
    return f"<details{opened}><summary>{escaped(title)}</summary>{body}</details>"


def _table(table: Mapping[str, Any]) -> str:
    def line(cells: Sequence[object], tag: str) -> str:
        inner = "".join(f"<{tag}>{escaped(cell(value))}</{tag}>" for value in cells)
        return f"<tr>{inner}</tr>"

    body = "".join(line(row, "td") for row in table["rows"])
    return f"<table><thead>{line(table['header'], 'th')}</thead><tbody>{body}</tbody></table>"

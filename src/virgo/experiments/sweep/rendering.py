"""A laid-out table as text, markdown, LaTeX or HTML, and its cells as CSV and JSON.

Written by hand rather than with pandas, whose writers have no marks and small print within a cell
and no attributes of a single HTML cell.
"""

from __future__ import annotations

import csv
import html
import io
import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from virgo.experiments.sweep.layouts import Shown, TableBlock, View
from virgo.experiments.sweep.verdicts import NOT_RUN, ResultCell
from virgo.report.text import plain_numbers, text_table

#: How first and second are marked in each format.
_MARKS: dict[str, dict[int | None, str]] = {
    "markdown": {1: "**{}**", 2: "<u>{}</u>"},
    "text": {None: "{}  ", 1: "{} ¹", 2: "{} ²"},
    "latex": {1: r"\textbf{{{}}}", 2: r"\underline{{{}}}"},
    "html": {1: "<strong>{}</strong>", 2: "<u>{}</u>"},
}


def _marked(text: str, shown: Shown, form: str) -> str:
    rank = shown.rank if shown.rank in (1, 2) else None
    return _MARKS[form].get(rank, "{}").format(text)


# --- markdown -----------------------------------------------------------------------------------

_MARKDOWN = str.maketrans({sign: f"\\{sign}" for sign in "\\`*_|[]"} | {"<": "&lt;", ">": "&gt;"})


def to_markdown(view: View) -> str:
    """Markdown: first in bold, second underlined, small print after a line break in its cell."""
    parts = [view.legend]
    for block in view.blocks:
        if block.title:
            parts.append(f"**{_md(block.title)}**")
        names = zip(block.columns, block.small, strict=True)
        head = [*block.heads, *("<br>".join(_md(line) for line in pair if line) for pair in names)]
        body = [[*map(_md, labels), *map(_md_cell, cells)] for labels, cells in block.rows]
        parts.append(_md_table(head, body, len(block.heads)))
    if view.remarks:
        parts.append("\n".join(f"- {_md(line)}" for line in view.remarks))
    for section in view.sections:
        body = [list(map(_md, row)) for row in section.rows]
        grid = _md_table(list(map(_md, section.header)), body, section.left)
        if section.folded:
            title = f"<details><summary>{_md(section.title)}</summary>"
            parts += [title, grid, "</details>"]
            continue
        parts += [f"**{_md(section.title)}**", *([_md(section.note)] if section.note else []), grid]
    return "\n\n".join(parts)


def _md_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    rule = ["---"] * left + ["--:"] * (len(header) - left)
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, rule, *rows])


def _md(text: str) -> str:
    return text.translate(_MARKDOWN)


def _md_cell(shown: Shown) -> str:
    return "<br>".join([_marked(shown.text, shown, "markdown"), *map(_md, shown.small)])


# --- plain text ---------------------------------------------------------------------------------


def to_text(view: View) -> str:
    """Text for a terminal: first and second have a small 1 and 2."""
    lines = [*_wrapped(view.title), "", *_wrapped(view.legend)]
    for block in view.blocks:
        head = (*block.heads, *block.columns)
        body: list[tuple[str, ...]] = []
        if any(block.small):
            body.append((*[""] * len(block.heads), *block.small))
        for labels, cells in block.rows:
            body.append((*labels, *(_marked(cell.text, cell, "text") for cell in cells)))
            for i in range(max(len(cell.small) for cell in cells)):
                small = (cell.small[i] if i < len(cell.small) else "" for cell in cells)
                body.append((*[""] * len(labels), *small))
        lines += ["", block.title] if block.title else [""]
        lines += text_table(head, body, left=len(block.heads))
    for section in view.sections:
        lines += ["", section.title, *text_table(section.header, section.rows, left=section.left)]
        lines += _wrapped(section.note)
    for remark in view.remarks:
        lines += ["", *_wrapped(remark)]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 100)


# --- LaTeX --------------------------------------------------------------------------------------

_LATEX = str.maketrans(
    {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {sign: f"${sign}$" for sign in "<>|"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
    }
)


def to_latex(view: View) -> str:
    """LaTeX: one ``tabular`` per block; the remarks are comments for the caption."""
    lines = [
        f"% {view.title}",
        r"% needs \usepackage{booktabs}; bold: first, underlined: second",
        *(f"% {line}" for line in view.remarks),
    ]
    for block in view.blocks:
        lines += _tex_block(block)
    return "\n".join(lines) + "\n"


def _tex_block(block: TableBlock) -> list[str]:
    kinds = "l" * len(block.heads) + "c" * len(block.columns)
    columns = [
        _tex_stack([_tex(name), *([rf"\scriptsize {_tex(small)}"] if small else [])])
        for name, small in zip(block.columns, block.small, strict=True)
    ]
    title = rf"\multicolumn{{{len(kinds)}}}{{l}}{{{_tex(block.title)}}} \\ \midrule"
    lines = [
        rf"\begin{{tabular}}{{{kinds}}}",
        r"\toprule",
        *([title] if block.title else []),
        " & ".join([*map(_tex, block.heads), *columns]) + r" \\",
        r"\midrule",
    ]
    for labels, cells in block.rows:
        lines.append(" & ".join([*map(_tex, labels), *map(_tex_cell, cells)]) + r" \\")
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _tex(text: str) -> str:
    return text.translate(_LATEX)


def _tex_cell(shown: Shown) -> str:
    text = _marked(_tex(shown.text), shown, "latex")
    return _tex_stack([text, *(rf"\scriptsize {_tex(line)}" for line in shown.small)])


def _tex_stack(lines: Sequence[str]) -> str:
    if len(lines) == 1:
        return lines[0]
    return r"\begin{tabular}[t]{@{}c@{}}" + r" \\ ".join(lines) + r"\end{tabular}"


# --- HTML ---------------------------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --page: #fff; --soft: #5b6470; --line: #d6dbe1; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e7eaee; --page: #14171a; --soft: #a3adb8; --line: #363d45; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 80rem; margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th.label, td.label, tbody th { text-align: left; font-weight: 500; white-space: nowrap; }
td small { white-space: nowrap; }
small { display: block; color: var(--soft); font-weight: normal; }
td strong, td u { white-space: nowrap; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
p.note { color: var(--soft); max-width: 60rem; }
"""


def to_html(view: View) -> str:
    """One HTML page without scripts or other files; a cell's configuration is its tooltip."""
    parts = [f"<h1>{_h(view.title)}</h1>", f'<p class="note">{_h(view.legend)}</p>']
    for block in view.blocks:
        if block.title:
            parts.append(f"<h2>{_h(block.title)}</h2>")
        head = [f'<th class="label" scope="col">{_h(name)}</th>' for name in block.heads]
        for name, small in zip(block.columns, block.small, strict=True):
            more = f"<small>{_h(small)}</small>" if small else ""
            head.append(f'<th scope="col">{_h(name)}{more}</th>')
        body = [
            "".join(
                [*(f'<th scope="row">{_h(label)}</th>' for label in labels), *map(_h_cell, cells)]
            )
            for labels, cells in block.rows
        ]
        parts.append(_h_table("".join(head), body))
    parts.append("<ul>" + "".join(f"<li>{_h(line)}</li>" for line in view.remarks) + "</ul>")
    for section in view.sections:
        parts.append(f"<h2>{_h(section.title)}</h2>")
        if section.note:
            parts.append(f'<p class="note">{_h(section.note)}</p>')
        head = [f'<th class="label" scope="col">{_h(name)}</th>' for name in section.header]
        body = [
            "".join(f'<td class="label">{_h(value)}</td>' for value in row) for row in section.rows
        ]
        parts.append(_h_table("".join(head), body))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_h(view.title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _h(text: str) -> str:
    return html.escape(text, quote=True)


def _h_table(head: str, body: Sequence[str]) -> str:
    rows = "\n".join(f"<tr>{row}</tr>" for row in body)
    return (
        f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n'
        "</table></div>"
    )


def _h_cell(shown: Shown) -> str:
    text = _marked(_h(shown.text), shown, "html")
    small = "".join(f"<small>{_h(line)}</small>" for line in shown.small)
    hint = f' title="{_h(shown.hint)}"' if shown.hint else ""
    return f"<td{hint}>{text}{small}</td>"


# --- cells as data ------------------------------------------------------------------------------


def flat(cell: ResultCell) -> dict[str, Any]:
    """A cell in plain types, flat except for its configuration and its seeds."""
    chosen, paper = cell.chosen, cell.paper
    return {
        "dataset": cell.place.dataset,
        "model": cell.place.model,
        "num_layers": cell.place.layers,
        "init": cell.init,
        "state": NOT_RUN if chosen is None else ("ok" if cell.n else "failed"),
        "test_mean": _or_none(cell.mean),
        "test_sd": _or_none(cell.sd),
        "n": cell.n,
        "valid_mean": _or_none(chosen.valid) if chosen else None,
        "paper_mean": paper.mean if paper else None,
        "paper_sd": paper.sd if paper else None,
        "difference": cell.difference,
        "rank": cell.rank,
        "comparable": cell.comparable,
        "label": chosen.label if chosen else "",
        "configurations": chosen.competing if chosen else 0,
        "grid": chosen.total if chosen else None,
        "generated": chosen.generated if chosen else None,
        "config": dict(chosen.config) if chosen else None,
        "tests": {str(seed): value for seed, value in chosen.tests.items()} if chosen else {},
    }


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """CSV with one line per cell; the values of single seeds are in the JSON only."""
    out = io.StringIO()
    names = [name for name in rows[0] if name != "tests"]
    writer = csv.DictWriter(out, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        config = json.dumps(row["config"]) if row["config"] else ""
        numbers = {k: f"{v:.4f}" for k, v in row.items() if isinstance(v, float)}
        writer.writerow({**row, **numbers, "config": config})
    return out.getvalue()


def to_json(document: Mapping[str, Any], indent: int | None) -> str:
    """JSON with infinity in words, ending in a line break."""
    return json.dumps(plain_numbers(dict(document)), indent=indent, allow_nan=False) + "\n"

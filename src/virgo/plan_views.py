"""A plan as text, as a table, as a document and as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from virgo.report.notebook import plots
from virgo.report.page import Document
from virgo.report.text import text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from virgo.plans import Plan

_HEADER = ("layer", "weight", "fan in", "fan out", "graph ratio", "variance", "std")


def coverage(plan: Plan) -> str:
    """How many weights a plan sets and how, and which it leaves alone, in one line."""
    rows, left = len(plan.rows), [(n, r) for n, r in plan.left_alone if not n.endswith("bias")]
    how = "measured" if plan.estimate == "measured" else "in closed form"
    line = f"{rows} of {rows + len(left)} weights set"
    if rows:
        line += f": {rows} {how}"
    reasons: dict[str, list[str]] = {}
    for name, reason in left:
        reasons.setdefault(reason, []).append(name)
    if left:
        which = "; ".join(
            f"{reason} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
            for reason, names in reasons.items()
        )
        line += f"{', ' if rows else ': '}{len(left)} left alone: {which}"
    return line


def text(plan: Plan) -> str:
    """The plan as tables, for ``print``."""
    lines = [_title(plan)]
    if plan.rows:
        lines += text_table(_HEADER, _cells(plan), left=2)
    if plan.choice is not None:
        lines += _choice_lines(plan, plan.choice)
        return "\n".join([*lines, *(f"note: {note}" for note in plan.notes)])
    if plan.measured is not None:
        for direction, facts in plan.measured["achieved"].items():
            lines.append(
                f"measured {direction}: max/min over layers {_range(facts['range'])} "
                f"after {plan.measured['passes']} passes"
            )
    if plan.left_alone:
        lines.append("left alone:")
        lines += [f"  {name}: {reason}" for name, reason in plan.left_alone]
    lines += [f"note: {note}" for note in plan.notes]
    return "\n".join(lines)


def one_line(plan: Plan) -> str:
    """The plan as ``repr`` shows it."""
    chosen = f", chose {plan.choice['chosen']}" if plan.choice is not None else ""
    return (
        f"Plan({plan.method}{chosen}, {plan.estimate}, {plan.distribution}, {len(plan.rows)} "
        f"weights, {len(plan.left_alone)} left alone, seed={plan.seed})"
    )


def records(plan: Plan) -> list[dict[str, Any]]:
    """One dictionary per weight."""
    return [
        {
            "layer": row.layer,
            "weight": row.weight,
            "shape": row.shape,
            "fan_in": row.fan_in,
            "fan_out": row.fan_out,
            "ratio": row.ratio,
            "variance": row.variance,
            "std": row.std,
            "uses": row.uses,
            "distribution": row.distribution or plan.distribution,
        }
        for row in plan.rows
    ]


def document(plan: Plan) -> Document:
    """The plan as :func:`virgo.report.page.page` takes it."""
    tables: list[Document] = [{"title": "Weights", "header": _HEADER, "rows": _cells(plan)}]
    if plan.choice is not None:
        for title, (header, body) in zip(
            ("Candidates", "Before and after"), _choice_tables(plan.choice), strict=True
        ):
            tables.append({"title": title, "header": header, "rows": body})
    if plan.left_alone:
        tables.append(
            {"title": "Left alone", "header": ("parameter", "reason"), "rows": plan.left_alone}
        )
    return {
        "title": f"Virgo plan: {_title(plan)}",
        "subtitle": coverage(plan),
        "tables": tables,
        "notes": list(plan.notes),
    }


def figure(plan: Plan) -> Figure:
    """The standard deviation of every weight, beside the same method without a graph."""
    planned: Figure = plots("plan.plot").weight_scales(
        {
            "planned": [row.std for row in plan.rows],
            "without a graph": [
                math.sqrt(row.variance / row.ratio) if row.ratio > 0 else math.nan
                for row in plan.rows
            ],
        },
        [row.weight for row in plan.rows],
        _title(plan),
    )
    return planned


def _title(plan: Plan) -> str:
    title = f"{plan.method} ({plan.variant}, {plan.estimate}, {plan.distribution})"
    size = ", ".join(
        f"{value:,} {key}" for key, value in plan.graph.items() if key in ("nodes", "edges")
    )
    return f"{title} on {size}" if size else title


def _cells(plan: Plan) -> list[tuple[str, ...]]:
    return [
        (
            row.layer or "(model)",
            row.weight.removeprefix(f"{row.layer}.") + (f" x{row.uses}" if row.uses > 1 else ""),
            str(row.fan_in),
            str(row.fan_out),
            f"{row.ratio:.4g}",
            f"{row.variance:.4g}",
            f"{row.std:.4g}",
        )
        for row in plan.rows
    ]


_Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def _choice_tables(choice: Mapping[str, Any]) -> tuple[_Table, _Table]:
    """The candidates with their scores, and every layer before and after."""
    tried: list[tuple[str, ...]] = [
        (
            t["name"],
            "infinite" if t["score"] is None else f"{t['score']:.2f}",
            _range(t["forward"]),
            _range(t["backward"]),
        )
        for t in choice["tried"]
    ]
    body: list[tuple[str, ...]] = [
        (b["layer"] or "(model)", *(_short(x) for x in _pairs(b, a)))
        for b, a in zip(choice["before"], choice["after"], strict=False)
    ]
    return (
        (("tried", "score", "signal range", "gradient range"), tried),
        (("layer", "signal before", "after", "gradient before", "after"), body),
    )


def _choice_lines(plan: Plan, choice: Mapping[str, Any]) -> list[str]:
    """What was chosen of what, and every layer before and after."""
    lines = [f"auto chose: {choice['chosen']} (loss: {choice['loss']})"]
    for header, body in _choice_tables(choice):
        lines += text_table(header, body)
    return [*lines, coverage(plan)]


def _pairs(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[float | None, ...]:
    return before["signal"], after["signal"], before["gradient"], after["gradient"]


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _range(value: float | None) -> str:
    return "infinite" if value is None else f"x{value:.3g}"

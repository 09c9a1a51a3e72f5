"""A report as annotations of GitHub Actions: workflow commands, one per finding.

The format is ``::error file=...,line=...,title=...::message``, where a line break, a percent sign
and, in front of the second ``::``, a colon and a comma are written as ``%0A`` and so on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from virgo.diagnostics import Report

_COMMANDS = {"bad": "error", "watch": "warning", "good": "notice"}


def of_report(report: Report, model: Callable[..., object] | None = None) -> list[str]:
    """The findings as annotations, and the report in a group to unfold.

    Args:
        report: what was found.
        model: the user's function that made the model, which the annotations point at.

    Returns:
        The lines to print.
    """
    place = {} if model is None else _place(model)
    lines = [
        command(
            _COMMANDS[finding.level],
            f"{finding.sentence} {report.advice}".strip(),
            **place,
            title=f"virgo check: {finding.cause} at {finding.layer}",
        )
        for finding in report.findings
    ]
    if not lines:
        lines = [command("notice", report.verdict, **place, title="virgo check: good")]
    return [*lines, f"::group::{_escaped(report.title)}", str(report), "::endgroup::"]


def command(name: str, message: str, **properties: str) -> str:
    """One workflow command.

    Args:
        name: ``error``, ``warning`` or ``notice``.
        message: may have several lines.
        properties: ``file``, ``line``, ``title``.

    Returns:
        The line.

    >>> command("error", "50 % lost", file="a,b.py", title="x: y")
    '::error file=a%2Cb.py,title=x%3A y::50 %25 lost'
    """
    given = ",".join(
        f"{key}={_escaped(value).replace(':', '%3A').replace(',', '%2C')}"
        for key, value in properties.items()
    )
    return f"::{name} {given}::{_escaped(message)}" if given else f"::{name}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _place(model: Callable[..., object]) -> dict[str, str]:
    """The file and the line of a function, the file as the repository names it."""
    try:
        file = Path(inspect.getsourcefile(model) or "").resolve()
        line = inspect.getsourcelines(model)[1]
        return {"file": file.relative_to(Path.cwd().resolve()).as_posix(), "line": str(line)}
    except (OSError, TypeError, ValueError):  # made at run time, or outside of the folder
        return {}

"""Docstrings as Markdown: roles become links or code, doctests become blocks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe

API = Path(__file__).resolve().parents[1] / "api"
ROLE = re.compile(r":(?P<role>func|mod|class|meth|attr|data|exc|math|doc):`(?P<name>[^`]+)`")


def documented() -> set[str]:
    """The names that have an entry in the reference."""
    return {
        name
        for page in API.glob("*.md")
        for name in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.M)
    }


def as_markdown(text: str, known: set[str]) -> str:
    """A docstring with its roles and doctests as Markdown."""

    def role(hit: re.Match[str]) -> str:
        name = " ".join(hit["name"].split())
        if hit["role"] == "math":
            return f"${name}$"
        return f"[`{name}`][{name}]" if name in known else f"`{name}`"

    return _fenced(ROLE.sub(role, text))


def _fenced(text: str) -> str:
    lines: list[str] = []
    inside = False
    for line in text.split("\n"):
        if not inside and line.lstrip().startswith(">>> "):
            inside, indent = True, line[: len(line) - len(line.lstrip())]
            lines += ["", f"{indent}```pycon"]
        elif inside and not line.strip():
            lines.append(f"{indent}```")
            inside = False
        lines.append(line)
    if inside:
        lines.append(f"{indent}```")
    return "\n".join(lines)


class Docstrings(griffe.Extension):
    """Rewrites every docstring that is loaded, before it is parsed."""

    def __init__(self) -> None:
        self.known = documented()

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value, self.known)

"""Results as files: a page, JSON or a picture by the file's ending, and atomic writes."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
import torch_geometric

from virgo.errors import OptionError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from virgo.report.page import Document


class Saveable(Protocol):
    """A result that can be shown as a page, as JSON and as a picture."""

    def document(self) -> Document: ...

    def to_json(self, indent: int | None = None) -> str: ...

    def figure(self) -> Figure: ...


def save(result: Saveable, path: str | Path) -> Path:
    """Write a result as ``.html`` (one page), ``.json`` or a picture, by the file's ending.

    Args:
        result: what to write.
        path: where to; missing folders are made.

    Returns:
        The path.

    Raises:
        OptionError: if the file has another ending.
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in (".html", ".json", ".png", ".pdf", ".svg"):
        raise OptionError(
            f"save: expected a path that ends in .html, .json, .png, .pdf or .svg, got "
            f"{path.name!r}. Choose one."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == ".html":
        from virgo.report.page import save_page

        return save_page(result.document(), path)
    if kind == ".json":
        return write_atomically(path, result.to_json(indent=1))
    result.figure().savefig(path, dpi=200)
    return path


def write_atomically(path: str | os.PathLike[str], text: str) -> Path:
    """Write a temporary file beside ``path`` and rename it, so that no reader sees half of it."""
    final = Path(path)
    temporary = final.with_name(f".{final.name}.{os.getpid()}.part")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)
    return final


def versions() -> dict[str, str]:
    """The versions of Virgo and of what it runs on, for a page or a file of results."""
    from virgo import __version__

    return {
        "virgo": __version__,
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        "python": platform.python_version(),
    }

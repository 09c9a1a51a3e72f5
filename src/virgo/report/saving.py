"""Results as files: a page, JSON or a picture, by the file's ending."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
import torch_geometric

from virgo.errors import OptionError
from virgo.report.files import as_path, write_text_atomically

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
        OptionError: if it is no path, has another ending, or cannot be written.
    """
    path = as_path(path)
    kind = path.suffix.lower()
    if kind not in (".html", ".json", ".png", ".pdf", ".svg"):
        raise OptionError(
            f"save: expected a path that ends in .html, .json, .png, .pdf or .svg, got "
            f"{path.name!r}. Choose one."
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return _written(result, path, kind)
    except OSError as error:
        raise OptionError(
            f"save: expected a file that can be written, got {error.strerror} for {path}. Name "
            f"another, or free some space."
        ) from error


def _written(result: Saveable, path: Path, kind: str) -> Path:
    if kind == ".html":
        from virgo.report.page import save_page

        return save_page(result.document(), path)
    if kind == ".json":
        write_text_atomically(path, result.to_json(indent=1))
        return path
    result.figure().savefig(path, dpi=200)
    return path


def versions() -> dict[str, str]:
    """The versions of Virgo and of what it runs on, for a page or a file of results."""
    from virgo import __version__

    return {
        "virgo": __version__,
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        "python": platform.python_version(),
    }

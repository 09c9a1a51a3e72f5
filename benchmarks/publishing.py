"""Where a benchmark writes: out/, or results/, which the documents quote, with --publish."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def output_file(name: str) -> Path:
    """The file to write; ``--publish`` is taken out of the command line.

    Args:
        name: of the file.

    Returns:
        Its path; the folder exists.
    """
    publish = "--publish" in sys.argv
    if publish:
        sys.argv.remove("--publish")
    folder = ROOT / ("results" if publish else "out")
    folder.mkdir(exist_ok=True)
    return folder / name

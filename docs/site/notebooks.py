"""The tutorials: executed by ``make notebooks``, shown on the site as Markdown.

    python docs/site/notebooks.py [--check] [NAME ...]

runs them in place, offline and in a folder of their own; with --check nothing is written. The
conversion is by hand, as the plugins for it bring scripts and styles that they fetch from other
hosts when a page is read.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1]
FOLDER = DOCS / "tutorials"
WIDE = 110
BLOCK = re.compile(r"<!-- scale-largest -->\n.*?<!-- end scale-largest -->", re.S)


def to_markdown(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as a page, and the pictures in it by file name."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    parts, pictures = [], {}
    for cell in notebook["cells"]:
        text = _joined(cell["source"]).strip("\n")
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        if cell["cell_type"] != "code" or not text:
            continue
        parts.append(_fenced(text, "bash" if text.startswith("%%bash") else "python"))
        for output in cell["outputs"]:
            part, picture = _output(output, f"{path.stem}-{len(pictures) + 1}.png")
            parts.append(part)
            pictures.update(picture)
    note = f"*[This page as a notebook]({path.name}); its outputs are those of `make notebooks`.*"
    return "\n\n".join([parts[0], note, *parts[1:]]) + "\n", pictures


def _output(output: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    if output["output_type"] == "stream":
        return _fenced(_joined(output["text"]), "text", "output"), {}
    if output["output_type"] == "error":
        raise ValueError(f"{name}: expected a notebook that ran, got {output['ename']}.")
    data = output["data"]
    if "text/html" in data:
        # on one line, so that no blank line ends the block
        html = re.sub(r"\s*\n\s*", " ", _joined(data["text/html"]).strip())
        return f'<div class="output">{html}</div>', {}
    if "image/png" in data:
        picture = base64.b64decode(_joined(data["image/png"]))
        return f"![What the cell above draws]({name})", {name: picture}
    return _fenced(_joined(data["text/plain"]), "text", "output"), {}


def _fenced(text: str, language: str, kind: str = "") -> str:
    text = text.removeprefix("%%bash\n").rstrip("\n")
    if kind and max(map(len, text.splitlines()), default=0) > WIDE:
        kind += " .prose"  # sentences wrap, tables scroll
    header = f"{{ .{language} .{kind} }}" if kind else language
    return f"````{header}\n{text}\n````"


def _joined(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)


def with_figures(text: str) -> str:
    """A text whose published figures are those of docs/benchmarks.md."""
    published = BLOCK.search((DOCS / "benchmarks.md").read_text(encoding="utf-8"))
    assert published is not None, "docs/benchmarks.md has no block scale-largest"
    return BLOCK.sub(lambda _: published[0], text)


def printed(outputs: list[Any]) -> list[Any]:
    """Outputs without warnings, which name paths of a machine, and with what is printed as one."""
    kept: list[Any] = []
    for output in outputs:
        if output.get("name") == "stderr":
            continue
        if kept and output["output_type"] == kept[-1]["output_type"] == "stream":
            kept[-1]["text"] += output["text"]
        else:
            kept.append(output)
    return kept


def execute(path: Path, write: bool = True) -> float:
    """Run a notebook and write its outputs into it; returns the seconds it took."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    # the commands of this environment come first
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook, timeout=600, record_timing=False, resources={"metadata": {"path": folder}}
        ).execute()
    seconds = time.perf_counter() - started
    for index, cell in enumerate(notebook.cells):
        cell.id = f"cell-{index}"
        cell.metadata = nbformat.NotebookNode()
        if cell.cell_type == "markdown":
            cell.source = with_figures(cell.source)
        else:
            cell.outputs = printed(cell.outputs)
    notebook.metadata = nbformat.NotebookNode(
        kernelspec={"display_name": "Python 3", "language": "python", "name": "python3"}
    )
    if write:
        nbformat.write(notebook, path)
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="tutorials without .ipynb; all by default")
    parser.add_argument("--check", action="store_true", help="run them and write nothing")
    asked = parser.parse_args()
    paths = [FOLDER / f"{name}.ipynb" for name in asked.names] or sorted(FOLDER.glob("*.ipynb"))
    for path in paths:
        print(f"{path.name} ...", end=" ", flush=True)
        print(f"{execute(path, write=not asked.check):.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The examples in README.md and docs/ run as written and print what they say they print."""

from __future__ import annotations

import contextlib
import io
import pkgutil
import re
from pathlib import Path
from typing import NamedTuple

import pytest

import virgo

CHECKOUT = Path(__file__).resolve().parents[1]
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,}) *(?P<language>[\w+-]*)[^`\n]*$")


class Block(NamedTuple):
    """A fenced block: its language, its text, the line it starts on and where it ends."""

    language: str
    text: str
    start: int
    end: int


def blocks(markdown: str) -> list[Block]:
    """Every fenced block of a page, indented or not."""
    found: list[Block] = []
    opened: tuple[str, str, str, int] | None = None
    lines: list[str] = []
    for number, line in enumerate(markdown.splitlines(), 1):
        if opened is None:
            match = FENCE.match(line)
            if match:
                opened = match["indent"], match["fence"], match["language"].lower(), number
                lines = []
            continue
        indent, fence, language, start = opened
        if line.strip() == fence:
            found.append(Block(language, "\n".join(lines) + "\n", start, number))
            opened = None
        else:
            lines.append(line.removeprefix(indent))
    assert opened is None, f"line {opened[3] if opened else 0}: a block that is never closed"
    return found


def examples(markdown: str) -> list[tuple[Block, str | None]]:
    """The Python blocks to run, each with the output printed right below it, if any."""
    page, lines = blocks(markdown), markdown.splitlines()
    found = []
    for index, block in enumerate(page):
        first = block.text.splitlines()[0] if block.text.strip() else ""
        if block.language not in ("python", "py") or "# not run" in first:
            continue
        expected = None
        if index + 1 < len(page) and page[index + 1].language == "text":
            between = lines[block.end : page[index + 1].start - 1]
            if not any(line.strip() for line in between):
                expected = page[index + 1].text
        found.append((block, expected))
    return found


def run(markdown: str, name: str) -> int:
    """Run a page's blocks in one namespace, in order; returns how many outputs were compared."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    compared = 0
    for block, expected in examples(markdown):
        printed = io.StringIO()
        # empty lines first, so that a traceback shows the line of the page
        code = compile("\n" * block.start + block.text, name, "exec", dont_inherit=True)
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        if expected is not None:
            compared += 1
            shown, wanted = (
                [line.rstrip() for line in text.strip("\n").split("\n")]
                for text in (printed.getvalue(), expected)
            )
            assert shown == wanted, f"{name}, line {block.start}: printed something else"
    return compared


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_the_examples_of_a_page(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(page.read_text(encoding="utf-8"), str(page))


def test_the_readme_has_an_example_with_its_output() -> None:
    found = examples((CHECKOUT / "README.md").read_text(encoding="utf-8"))
    assert found, "README.md has no python block to run"
    assert any(expected for _, expected in found), "README.md shows no output below its example"
    assert any("virgo.init_(" in block.text for block, _ in found)


def test_extending_adds_a_layer_and_a_method() -> None:
    text = "".join(
        block.text
        for block, _ in examples((CHECKOUT / "docs" / "extending.md").read_text(encoding="utf-8"))
    )
    assert "register_layer" in text
    assert "register_method" in text


# --- names of modules and files ---------------------------------------------------------------

NAMED = [*PAGES, CHECKOUT / "CONTRIBUTING.md", CHECKOUT / "CHANGELOG.md"]
#: Rooms whose functions the pages name without "virgo."; "data" is also everybody's variable.
ROOMS = {info.name for info in pkgutil.iter_modules(virgo.__path__)} - {"data"}


def missing_names(markdown: str) -> list[str]:
    """Modules, functions and files that a page names in backticks and that are not there."""
    missing = []
    for code in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", markdown):
        name = re.match(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+(?=\(|$)", code)
        if name and name[0].split(".")[0] in ROOMS | {"virgo"}:
            try:
                pkgutil.resolve_name(f"virgo.{name[0].removeprefix('virgo.')}")
            except (ImportError, AttributeError):
                missing.append(name[0])
        for path in re.findall(r"(?:src|tests|docs|benchmarks)/[\w./-]*\w", code):
            if not (CHECKOUT / path).exists():
                missing.append(path)
        missing += re.findall(r"(?<![\w/])test_\w+\.py", code)  # a test is named with its folder
    return missing


@pytest.mark.parametrize("page", NAMED, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    assert missing_names(page.read_text(encoding="utf-8")) == []


def test_a_name_that_is_not_there_is_seen() -> None:
    text = "`theory.gain`, `theory.lost(x)`, `virgo.nothing.at_all`, `python benchmarks/depth.py`, "
    text += "`tests/test_gone.py`, `test_plan.py`, `data.y`, `model.x`"
    gone = ["theory.lost", "virgo.nothing.at_all", "tests/test_gone.py", "test_plan.py"]
    assert missing_names(text) == gone


PAGE = """
```python
a = 1
```
```python
print(a + 1)
```

```text
2
```
```python  title="x"
# not run: needs a GPU
raise SystemExit
```
~~~bash
rm -rf everything
~~~
"""


def test_this_test_runs_and_compares() -> None:
    assert len(examples(PAGE)) == 2
    assert run(PAGE, "page") == 1


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [("2\n```\n", "3\n```\n", AssertionError), ("a = 1", "a = b", NameError)],
)
def test_this_test_can_fail(old: str, new: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        run(PAGE.replace(old, new, 1), "page")


def test_the_tables_are_those_of_the_results() -> None:
    """Every number in a table between markers comes from a file in results/."""
    import subprocess
    import sys

    script = CHECKOUT / "docs" / "refresh.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

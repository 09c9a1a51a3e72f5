"""The site: every page is in its menu, every public name in its reference, with its parameters."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import virgo
import virgo.data
import virgo.theory

CHECKOUT = Path(__file__).resolve().parents[1]
DOCS = CHECKOUT / "docs"
MENU = (CHECKOUT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
LISTED = re.findall(r"([\w./-]+\.(?:md|ipynb))$", MENU, re.M)
#: Pages that are made of files in the root.
OF_THE_ROOT = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "releasing.md": "RELEASING.md",
    "security.md": "SECURITY.md",
}
ENTRIES = {
    name
    for page in (DOCS / "api").glob("*.md")
    for name in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.M)
}
EXPERIMENTS = ("experiments.StudyResult", "experiments.study")


def module(path: str) -> ModuleType:
    """A script of the checkout as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, CHECKOUT / path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


# --- the menu ---------------------------------------------------------------------------------


def test_every_page_of_the_menu_exists_once() -> None:
    assert len(LISTED) == len(set(LISTED)) > 30
    for page in LISTED:
        assert (CHECKOUT / OF_THE_ROOT[page] if page in OF_THE_ROOT else DOCS / page).is_file()


def test_every_page_is_in_the_menu() -> None:
    pages = [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]
    assert {str(page.relative_to(DOCS)) for page in pages} | set(OF_THE_ROOT) == set(LISTED)


def test_every_picture_is_in_the_gallery_with_its_command() -> None:
    sections = (DOCS / "gallery.md").read_text(encoding="utf-8").split("\n## ")[1:]
    shown = {}
    for section in sections:
        picture = re.search(r"\(images/([\w.-]+)\)", section)
        assert picture is not None
        shown[picture[1]] = re.search(r"```\n(virgo|python|make) ", section)
    assert set(shown) == {path.name for path in (DOCS / "images").iterdir()}
    assert all(shown.values())


# --- the reference ----------------------------------------------------------------------------


def public() -> Iterator[tuple[str, Any]]:
    """Every public name and what it is."""
    for name in virgo.__all__:
        if name != "data":
            yield f"virgo.{name}", getattr(virgo, name)
    for name in virgo.data.__all__:
        yield f"virgo.data.{name}", getattr(virgo.data, name)
    for name, thing in vars(virgo.theory).items():
        if getattr(thing, "__module__", "") == "virgo.theory" and not name.startswith("_"):
            yield f"virgo.theory.{name}", thing


def documented(text: str) -> set[str]:
    """The names in the sections of arguments and attributes of a docstring."""
    found: set[str] = set()
    for section in re.findall(r"^(?:Args|Attributes):\n((?: .*\n|\n)*)", text + "\n", re.M):
        for names in re.findall(r"^ {4}([\w*, ]+):", section, re.M):
            found |= {name.strip(" *") for name in names.split(",")}
    return found


def undocumented(thing: Any) -> set[str]:
    """The parameters of a function or class that its docstring does not explain."""
    if not (inspect.isfunction(thing) or inspect.isclass(thing)):
        return set()
    text = inspect.getdoc(thing) or ""
    if inspect.isclass(thing):
        start = thing.__init__ if "__init__" in vars(thing) else thing
        text += "\n" + (inspect.getdoc(thing.__init__) or "")
        if issubclass(thing, Exception) and "__init__" not in vars(thing):
            return set()  # that of its base
    else:
        start = thing
    return set(inspect.signature(start).parameters) - {"self", "cls"} - documented(text)


@pytest.mark.parametrize("name", [name for name, _ in public()])
def test_every_public_name_has_an_entry(name: str) -> None:
    assert name in ENTRIES


def test_the_experiments_have_entries() -> None:
    assert {f"virgo.{name}" for name in EXPERIMENTS} <= ENTRIES


def test_every_entry_is_a_name() -> None:
    import pkgutil

    for name in sorted(ENTRIES - {name for name, _ in public()}):
        if not name.startswith(("virgo.graphgym", "virgo.experiments")):  # need their extras
            pkgutil.resolve_name(name)


@pytest.mark.parametrize(
    ("name", "thing"), list(public()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_every_parameter_is_documented(name: str, thing: Any) -> None:
    assert undocumented(thing) == set(), name
    for method, function in vars(thing).items() if inspect.isclass(thing) else ():
        function = getattr(function, "__func__", function)
        if not method.startswith("_") and inspect.isfunction(function) and function.__doc__:
            assert undocumented(function) == set(), f"{name}.{method}"


def test_init_and_plan_say_the_same_of_their_options() -> None:
    sections = [
        re.search(r"Args:\n(?:.+\n)+", inspect.getdoc(function) or "")
        for function in (virgo.init_, virgo.plan)
    ]
    assert sections[0] is not None
    assert sections[1] is not None
    assert sections[0][0] == sections[1][0]


def test_a_parameter_that_is_not_documented_is_seen() -> None:
    def half(a: int, b: int, *rest: int) -> None:
        """Does nothing.

        Args:
            a: a number.
            rest: more of them.
        """

    assert undocumented(half) == {"b"}


# --- tutorials, links, PyPI -------------------------------------------------------------------

NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_was_run_to_its_end(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert outputs
    assert not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]
    assert "site-packages" not in path.read_text(encoding="utf-8")  # no path of a machine
    page, pictures = module("docs/site/notebooks.py").to_markdown(path)
    assert page.startswith("# ")
    assert all(f"({name})" in page for name in pictures)


def test_the_figures_of_a_tutorial_are_the_published_ones() -> None:
    path = DOCS / "tutorials" / "a-billion-edges.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    text = "".join(cells[0]["source"])
    assert "directed edges" in text
    assert module("docs/site/notebooks.py").with_figures(text) == text


def test_links_between_the_root_and_docs_work_on_the_site() -> None:
    pytest.importorskip("mkdocs", reason="needs virgo-gnn[docs]")
    pytest.importorskip("latex2mathml", reason="needs virgo-gnn[docs]")
    relinked = module("docs/site/hooks.py").relinked
    text = "[a](docs/depth.md#x) ![b](docs/images/b.png) [c](CITATION.cff) [d](src/virgo) [e](https://e.org)"
    assert relinked(text, "README.md", "index.md") == (
        "[a](depth.md#x) ![b](images/b.png) [c](cite.md) d [e](https://e.org)"
    )
    assert relinked("[a](../README.md#x)", "docs/theory.md", "theory.md") == "[a](index.md#x)"
    assert relinked("[a](../theory.md)", "docs/api/x.md", "api/x.md") == "[a](../theory.md)"
    assert relinked("```\n[a](README.md)\n```", "README.md", "index.md").count("README.md") == 1


README = """# Title

![A picture](docs/images/a.png)

*Its caption, [linked](docs/a.md),
on two lines.*

Text with [a page](docs/depth.md) and [a site](https://example.org).
"""


def test_the_readme_of_pypi_has_no_dead_links() -> None:
    pytest.importorskip("hatchling", reason="needs virgo-gnn[release]")
    convert = module("hatch_build.py").pypi_readme
    assert convert(README, "") == (
        "# Title\n\nText with a page and [a site](https://example.org).\n"
    )
    linked = convert(README, "https://example.org/virgo/")
    assert "![A picture](https://example.org/virgo/raw/HEAD/docs/images/a.png)" in linked
    assert "[a page](https://example.org/virgo/blob/HEAD/docs/depth.md)" in linked
    real = convert((CHECKOUT / "README.md").read_text(encoding="utf-8"), "")
    assert re.findall(r"\]\((?!https?:|#)", real) == []


def test_docstrings_become_markdown() -> None:
    pytest.importorskip("griffe", reason="needs virgo-gnn[docs]")
    as_markdown = module("docs/site/docstrings.py").as_markdown
    text = "See :func:`virgo.plan`, :meth:`other` and :math:`x^2`.\n\n>>> 1 + 1\n2\n"
    assert as_markdown(text, {"virgo.plan"}) == (
        "See [`virgo.plan`][virgo.plan], `other` and $x^2$.\n\n\n```pycon\n>>> 1 + 1\n2\n```\n"
    )


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings", reason="needs virgo-gnn[docs]")
    pytest.importorskip("material", reason="needs virgo-gnn[docs]")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "api" / "initialise.html").read_text(encoding="utf-8")
    assert 'id="virgo.init_"' in page
    fetched = re.findall(r'(?:src|href)="(https?://[^"]+\.(?:js|css|woff2?))"', page)
    assert fetched == []

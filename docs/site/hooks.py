"""What MkDocs does not do by itself: the checkout's own pages, notebooks, formulas.

README.md, CHANGELOG.md, CONTRIBUTING.md and SECURITY.md stand in the root, where people look for
them, and are pages of the site, too. A link from one to the other works in both places: it is
rewritten here. What is only in the checkout (a script, a licence) is named, not linked.
"""

from __future__ import annotations

import posixpath
import re
import sys
from html import unescape
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
import notebooks

ROOT = Path(__file__).resolve().parents[2]
#: Files of the root, and the pages that they become.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "RELEASING.md": "releasing.md",
    "SECURITY.md": "security.md",
}
#: Files of the root that a page of the site stands for.
STANDS_FOR = {**PAGES, "CITATION.cff": "cite.md", "LICENSE": "cite.md"}
LINK = re.compile(r"(?P<text>!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>[^()\s]+)\)")
FENCE = re.compile(r"^ *(```|~~~)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages of the root, and for each notebook its page and its pictures."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=relinked(text, source, page)))
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        page = notebook.src_uri.removesuffix(".ipynb") + ".md"
        text, pictures = notebooks.to_markdown(Path(str(notebook.abs_src_path)))
        files.append(File.generated(config, page, content=text))
        folder = posixpath.dirname(page)
        for name, picture in pictures.items():
            files.append(File.generated(config, f"{folder}/{name}", content=picture))
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation names notebooks; their pages are Markdown."""
    config.nav = _with_pages(config.nav)
    return config


def _with_pages(nav: object) -> object:
    if isinstance(nav, list):
        return [_with_pages(entry) for entry in nav]
    if isinstance(nav, dict):
        return {title: _with_pages(entry) for title, entry in nav.items()}
    return re.sub(r"\.ipynb$", ".md", nav) if isinstance(nav, str) else nav


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links from a page in docs/ to the root lead to the root's pages."""
    if page.file.src_uri in PAGES.values():
        return markdown
    return relinked(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas as MathML, which browsers draw without a script."""
    pattern = r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>'
    return re.sub(pattern, _formula, html, flags=re.S)


def _formula(hit: re.Match[str]) -> str:
    return convert(unescape(hit[2]), display="block" if hit[1] == "div" else "inline")


def relinked(text: str, source: str, page: str) -> str:
    """The text of a file, with its relative links as the site needs them.

    ``source`` is the file's path in the checkout, ``page`` its path on the site.
    """
    lines, fenced = [], False
    for line in text.split("\n"):
        if FENCE.match(line):
            fenced = not fenced
        lines.append(line if fenced else LINK.sub(lambda hit: _link(hit, source, page), line))
    return "\n".join(lines)


def _link(hit: re.Match[str], source: str, page: str) -> str:
    target, _, anchor = hit["target"].partition("#")
    if not target or re.match(r"[a-z]+:", target):
        return hit[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if path in STANDS_FOR:
        there = STANDS_FOR[path]
    elif path.startswith("docs/"):
        there = path.removeprefix("docs/")
    elif (ROOT / path).exists():
        return hit["text"].strip("[]")
    else:
        return hit[0]
    there = posixpath.relpath(there, posixpath.dirname(page) or ".")
    return f"{hit['text']}({there}{'#' + anchor if anchor else ''})"

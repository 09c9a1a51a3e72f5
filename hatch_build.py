"""What PyPI shows: README.md with links that work there.

PyPI has no folder beside the text, so a relative link is dead and a picture broken. With the
repository's address (``repository`` in pyproject.toml, empty until there is one) links become
absolute; without it they become plain text, and pictures are left out with their captions. By hand,
since plugins for it replace text by patterns and cannot do the second.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(
    r"^!\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)\n+"
    r"(?P<caption>\*[^\n](?:.|\n(?!\n))*\*\n+)?",
    re.M,
)
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)")


def pypi_readme(text: str, repository: str) -> str:
    """README.md as PyPI can show it; ``repository`` is an address such as https://host/owner/name."""
    repository = repository.rstrip("/")

    def picture(hit: re.Match[str]) -> str:
        if not repository or _is_absolute(hit["target"]):
            return hit[0] if _is_absolute(hit["target"]) else ""
        return hit[0].replace(f"({hit['target']})", f"({repository}/raw/HEAD/{hit['target']})", 1)

    def link(hit: re.Match[str]) -> str:
        if _is_absolute(hit["target"]):
            return hit[0]
        if not repository:
            return hit["text"]
        return f"[{hit['text']}]({repository}/blob/HEAD/{hit['target']})"

    return LINK.sub(link, PICTURE.sub(picture, text))


def _is_absolute(target: str) -> bool:
    return bool(re.match(r"[a-z]+:|#", target))


class Metadata(MetadataHookInterface):
    """The long description, and the project's addresses where there is one."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository = str(self.config.get("repository", ""))
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": pypi_readme(text, repository),
        }
        if repository:
            metadata["urls"] = {
                "Source": repository,
                "Changelog": f"{repository}/blob/HEAD/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }

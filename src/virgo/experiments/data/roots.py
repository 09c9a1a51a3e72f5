"""Where datasets are: data roots, which are only read, and the cache, which is written to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from virgo.errors import DataError
from virgo.experiments.data.catalogue import ENTRIES, Entry

CITATION = {entry.name: entry.folder for entry in ENTRIES if entry.kind == "planetoid"}
"""The three citation graphs, and the folders that PyG's loader expects."""

Root = str | os.PathLike[str] | None
"""What ``root=`` takes."""


def user_cache() -> Path:
    """The folder that Virgo may write to.

    Returns:
        ``VIRGO_CACHE``, else ``virgo`` in the user's cache.
    """
    if chosen := os.environ.get("VIRGO_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "virgo"


def find_root(root: Root = None) -> Path | None:
    """The data root to read from.

    In this order: ``root``, the environment variable ``VIRGO_DATA``, ``../shared/data`` beside a
    checkout of this project, the user's cache. The first two were asked for and are taken as they
    are, so that a misspelt folder is an error at loading and not another folder; the last two are
    taken if they exist.

    Args:
        root: The folder that holds ``Cora/raw/``, ``ogbn_arxiv/raw/`` and so on.

    Returns:
        The folder, or ``None`` where there is none.
    """
    return next(iter(_roots(root)), None)


def _roots(root: Root) -> list[Path]:
    """The one root that was asked for, otherwise all that exist, to be searched in turn."""
    if root is not None:
        return [Path(root).expanduser()]
    if chosen := os.environ.get("VIRGO_DATA"):
        return [Path(chosen).expanduser()]
    candidates = [*(path.parent / "shared" / "data" for path in _checkouts()), user_cache()]
    return [path for path in candidates if path.is_dir()]


def _checkouts() -> Iterator[Path]:
    # Raw files are pickles, so a folder counts only beside this project's own checkout: the one
    # this module runs from, or the current folder if it is one.
    for path in (Path(__file__).resolve().parents[4], Path.cwd()):
        project = path / "pyproject.toml"
        if project.is_file() and 'name = "virgo-gnn"' in project.read_text(encoding="utf-8"):
            yield path


@dataclass(frozen=True)
class DataSource:
    """A dataset's files in one data root.

    Attributes:
        entry: the dataset.
        folder: its folder in the root.
        files: its required files that are there, as paths below ``folder``.
        missing: its required files that are not.
        archive: the zip file that holds ``files``, where they are not unpacked.
    """

    entry: Entry
    folder: Path
    files: tuple[str, ...]
    missing: tuple[str, ...]
    archive: Path | None = None

    @property
    def complete(self) -> bool:
        """Whether the dataset can be loaded."""
        return not self.missing

    @property
    def absent(self) -> bool:
        """Whether none of its files is there."""
        return not self.files and self.archive is None

    def path(self, file: str) -> Path:
        """The path of a file, present or missing."""
        return self.folder / file

    def require(self) -> None:
        """Check that the dataset can be loaded.

        Raises:
            DataError: files are missing; says which, and where they go.
        """
        if self.complete:
            return
        entry = self.entry
        all_raw = all(file.startswith("raw/") for file in entry.files)
        where = self.folder / "raw" if all_raw else self.folder
        lack = ", ".join(
            file.removeprefix("raw/") if all_raw else file.replace("|", " or ")
            for file in self.missing
        )
        packed = f" (or {entry.archive} in {self.folder})" if entry.archive else ""
        hint = ""
        if self.missing == ("raw/node-feat.csv.gz",) and entry.name == "ogbn-arxiv":
            hint = (
                " virgo.data.load_arxiv reads structure and labels without it and generates "
                "features, for variances and never for an accuracy."
            )
        raise DataError(
            f"{entry.name}: expected the raw files of {entry.folder} in {where}{packed}, got no "
            f"{lack}. Put them there, or name another root with root=, --root or VIRGO_DATA, or "
            f"fetch them with `virgo data get {entry.name} --download`.{hint}"
        )


def locate(entry: Entry, root: Root = None) -> DataSource:
    """Find a dataset's files: in the first root that has them all, else the first with some.

    Args:
        entry: the dataset.
        root: see :func:`find_root`.

    Returns:
        The files there are, and those that are missing.
    """
    sources = [_source_in(entry, path / entry.folder) for path in _roots(root) or [user_cache()]]
    complete = (source for source in sources if source.complete)
    partial = (source for source in sources if not source.absent)
    return next(complete, None) or next(partial, sources[0])


def _source_in(entry: Entry, folder: Path) -> DataSource:
    files, missing = [], []
    for wanted in entry.files:
        present = [file for file in wanted.split("|") if (folder / file).is_file()]
        files += present[:1]
        missing += [] if present else [wanted]
    archive = folder / entry.archive if entry.archive else None
    if missing and archive is not None and archive.is_file():
        return DataSource(entry, folder, tuple(entry.files), (), archive)
    return DataSource(entry, folder, tuple(files), tuple(missing))

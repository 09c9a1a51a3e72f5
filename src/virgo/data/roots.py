"""Where datasets lie, and how the citation graphs are read from there.

A data root is only read: raw files are copied to the cache and processed there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch_geometric
from torch_geometric.data import Data
from torch_geometric.datasets import Planetoid

from virgo.data.generators import citation_like
from virgo.errors import DataError

CITATION = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}
"""The names we take, and the folders that PyG's loader expects."""

PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
"""The endings of a Planetoid dataset's eight raw files."""


def user_cache() -> Path:
    """The folder that Virgo may write to: ``VIRGO_CACHE``, else ``virgo`` in the user's cache."""
    if chosen := os.environ.get("VIRGO_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "virgo"


def find_root(root: str | os.PathLike[str] | None = None) -> Path | None:
    """The data root to read from, or ``None`` where there is none.

    In this order: ``root``, the environment variable ``VIRGO_DATA``, ``../shared/data`` beside a
    checkout of this project, the user's cache. The first two are what somebody asked for and are
    taken as they are, so that a misspelt folder is an error at loading and not another folder; the
    last two are taken if they exist.

    Args:
        root: The folder that holds ``Cora/raw/``, ``PubMed/raw/`` and so on.
    """
    if root is not None:
        return Path(root).expanduser()
    if chosen := os.environ.get("VIRGO_DATA"):
        return Path(chosen).expanduser()
    candidates = [*(path.parent / "shared" / "data" for path in _checkouts()), user_cache()]
    return next((path for path in candidates if path.is_dir()), None)


def _checkouts() -> Iterator[Path]:
    # Raw files are pickles, so a folder counts only beside this project's own checkout: the one
    # this module runs from, or the current folder if it is one.
    for path in (Path(__file__).resolve().parents[3], Path.cwd()):
        project = path / "pyproject.toml"
        if project.is_file() and 'name = "virgo-gnn"' in project.read_text(encoding="utf-8"):
            yield path


def load_citation(name: str = "cora", root: str | os.PathLike[str] | None = None) -> Data:
    """Cora, CiteSeer or PubMed with the public split, from raw files at hand.

    The files are read by ``torch_geometric.datasets.Planetoid``, which writes beside what it reads.
    They are therefore copied to the cache first, under a name that depends on their content, so
    that changed files are never answered from an older copy. The copy is made aside and renamed
    when it is complete: two processes at once are safe. The network is never used.

    Args:
        name: ``"cora"``, ``"citeseer"`` or ``"pubmed"``, in any case.
        root: The data root; see :func:`find_root`.

    Raises:
        DataError: The name is unknown, files are absent or damaged, or the cache is not writable.
    """
    if name.lower() not in CITATION:
        choices = ", ".join(CITATION)
        raise DataError(f"load_citation: name must be one of {choices}, got {name!r}. Choose one.")
    folder = CITATION[name.lower()]
    found = find_root(root)
    source = (found if found is not None else user_cache()) / folder / "raw"
    absent = [path.name for path in _raw_files(source, folder) if not path.is_file()]
    if absent:
        raise DataError(
            f"load_citation: expected the raw files of {folder} in {source}, got no "
            f"{', '.join(absent)}. Put them there, or name another root with root= or VIRGO_DATA."
        )
    return _read(_cached(source, folder), folder)


def demo_graph() -> tuple[Data, str]:
    """Cora where a data root has it, otherwise a generated graph; and a line that says which."""
    root = find_root()
    if root is not None and all(
        path.is_file() for path in _raw_files(root / "Cora" / "raw", "Cora")
    ):
        data = load_citation("cora", root)
        kind = "Cora, public split"
    else:
        data = citation_like()
        kind = "a generated citation-like graph (no data root has Cora)"
    return (
        data,
        f"{kind}: {data.num_nodes} nodes, {data.num_edges} edges, {data.num_features} words",
    )


def _raw_files(raw: Path, folder: str) -> list[Path]:
    return [raw / f"ind.{folder.lower()}.{part}" for part in PARTS]


class _Offline(Planetoid):  # type: ignore[misc]  # torch_geometric is untyped
    """PyG's loader without its download and without its progress lines."""

    log = property(lambda self: False, lambda self, value: None)

    def download(self) -> None:
        raise DataError(
            f"load_citation: expected raw files in {self.raw_dir}, got an empty folder."
        )


def _read(root: Path, folder: str) -> Data:
    try:
        return _Offline(str(root), folder)[0]
    except ImportError as error:
        raise DataError(
            f"load_citation: {folder} needs scipy, got {error}. Install virgo-gnn[data]."
        ) from error


def _cached(source: Path, folder: str) -> Path:
    """The folder in the cache with the processed copy of ``source``, made if it is not there."""
    digest = hashlib.sha256(torch_geometric.__version__.encode())
    for path in _raw_files(source, folder):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    final = user_cache() / "processed" / f"{folder}-{digest.hexdigest()[:16]}"
    if final.is_dir():
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder}-", dir=final.parent))
    except OSError as error:
        raise DataError(
            f"load_citation: expected a writable cache, got {error}. Set VIRGO_CACHE to a folder "
            f"that can be written to."
        ) from error
    try:
        raw = aside / folder / "raw"
        raw.mkdir(parents=True)
        for path in _raw_files(source, folder):
            shutil.copyfile(path, raw / path.name)  # contents only: the source may be read-only
        _process(aside, folder, source)
        _publish(aside, final)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return final


def _process(aside: Path, folder: str, source: Path) -> None:
    try:
        _read(aside, folder)
    except DataError:
        raise
    except Exception as error:  # unpickling a damaged file may raise anything
        raise DataError(
            f"load_citation: expected intact raw files of {folder} in {source}, got "
            f"{type(error).__name__}: {error}. Fetch them again."
        ) from error


def _publish(aside: Path, final: Path) -> None:
    try:
        aside.rename(final)
    except OSError:
        if not final.is_dir():
            raise
        # Another process was first; its copy has the same content.

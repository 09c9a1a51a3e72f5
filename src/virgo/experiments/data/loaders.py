"""PyG's and OGB's own dataset classes: offline and quiet, or online to download raw files."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shutil
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from torch_geometric.datasets import Amazon, Coauthor, Planetoid, TUDataset

from virgo.errors import DataError
from virgo.experiments.data.catalogue import Entry
from virgo.experiments.data.ogb_files import ogb, readable
from virgo.experiments.data.roots import DataSource, Root, find_root, locate, user_cache

TIMEOUT = 60.0
"""Seconds without an answer after which a network counts as absent."""


class Offline:
    """Mixed into a dataset class, makes it load what is there: no download, no progress lines.

    Raw files need not be there either once they are processed.
    """

    log = property(lambda self: False, lambda self, value: None)

    def _download(self) -> None:
        """Nothing: :func:`virgo.experiments.data.roots.locate` has found the files."""


class OfflinePlanetoid(Offline, Planetoid):  # type: ignore[misc]  # torch_geometric is untyped
    """Cora, CiteSeer, PubMed."""


class OfflineTUDataset(Offline, TUDataset):  # type: ignore[misc]
    """IMDB-BINARY, IMDB-MULTI, COLLAB."""


class OfflineAmazon(Offline, Amazon):  # type: ignore[misc]
    """Photo, Computers."""


class OfflineCoauthor(Offline, Coauthor):  # type: ignore[misc]
    """CS."""


_PYG_CLASSES = {
    "planetoid": OfflinePlanetoid,
    "tu": OfflineTUDataset,
    "amazon": OfflineAmazon,
    "coauthor": OfflineCoauthor,
}
_OGB_CLASSES = {f"OfflineOgb{task}": task for task in ("Node", "Link", "Graph")}


@functools.cache
def __getattr__(name: str) -> type:
    """OGB's three dataset classes, made on first use: importing ogb is slow, and it is an extra."""
    if name not in _OGB_CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    task = _OGB_CLASSES[name]
    base = getattr(ogb(f"{task.lower()}proppred"), f"Pyg{task}PropPredDataset")
    return type(name, (Offline, base), {"__module__": __name__})


def loader_class(entry: Entry) -> type:
    """The dataset class that reads ``entry``, without a network."""
    return _PYG_CLASSES.get(entry.kind) or __getattr__(f"OfflineOgb{entry.task.title()}")


def open_loader(entry: Entry, root: Path, **options: Any) -> Any:
    """The loader of ``entry`` on a folder of the cache, which it processes if need be.

    Args:
        entry: the dataset.
        root: the folder that holds ``entry.folder``.
        options: for the loader, such as ``pre_transform``.

    Returns:
        The loader: a sequence of ``Data``.
    """
    with quiet(), readable():
        return loader_class(entry)(name=_loader_name(entry), root=str(root), **options)


def _loader_name(entry: Entry) -> str:
    return entry.name if entry.kind == "ogb" else entry.folder


class _Muted:
    """A stream that drops this thread's output, and not that of others, such as a progress bar."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._thread = stream, threading.get_ident()

    def write(self, text: str) -> int:
        if threading.get_ident() != self._thread:
            self._stream.write(text)
        return len(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within, this thread prints nothing: no lines, progress bars or old warnings of OGB's."""
    with (
        contextlib.redirect_stdout(cast(TextIO, _Muted(sys.stdout))),
        contextlib.redirect_stderr(cast(TextIO, _Muted(sys.stderr))),
        warnings.catch_warnings(),
    ):
        # pandas returns read-only arrays since version 3; OGB only reads them
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        yield


# --- downloads, only ever on request: virgo data get NAME --download -----------------------------


class _Downloaded(Exception):
    """Raised to leave a loader's constructor when its files are there."""


def download(entry: Entry, root: Root = None) -> DataSource:
    """Download the missing files of a dataset into the data root, by its loader's own code.

    Files go to ``root`` or ``VIRGO_DATA`` where one of them is set, otherwise to the user's cache.
    They are downloaded to a temporary folder and moved into place when all are there.

    Args:
        entry: the dataset.
        root: the data root.

    Returns:
        The dataset's files in the data root.

    Raises:
        DataError: the network, the server or the folder fails.
    """
    source = locate(entry, root)
    if source.complete:
        return source
    asked = root is not None or bool(os.environ.get("VIRGO_DATA"))
    target = (find_root(root) if asked else None) or user_cache()
    try:
        target.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{entry.folder}-", dir=target))
    except OSError as error:
        raise DataError(
            f"{entry.name}: expected a data root that can be written to, got {error}. Name one "
            f"with --root or VIRGO_DATA."
        ) from error
    try:
        _run_download(entry, temporary)
        _move(entry, temporary / entry.folder, target / entry.folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return locate(entry, target)


def _run_download(entry: Entry, folder: Path) -> None:
    def _download(self: Any) -> None:
        # past Offline, to PyG's own: makes the folder and calls the class's download
        super(Offline, self)._download()

    def _process(self: Any) -> None:
        raise _Downloaded

    online = type("Online", (loader_class(entry),), {"_download": _download, "_process": _process})
    try:
        with quiet(), _timeout(), _confirmed():
            online(name=_loader_name(entry), root=str(folder))
    except _Downloaded:
        return
    except (Exception, SystemExit) as error:  # urllib, fsspec and OGB raise what they like
        raise DataError(
            f"{entry.name}: expected a download, got {type(error).__name__}: {error}. Check the "
            f"network, or put the files in place by hand: `virgo data get {entry.name}` says where."
        ) from error


def _move(entry: Entry, downloaded: Path, folder: Path) -> None:
    for wanted in entry.files:
        file = next((file for file in wanted.split("|") if (downloaded / file).is_file()), None)
        if file is None:
            raise DataError(
                f"{entry.name}: expected {wanted} in the download, got none. "
                f"Put the files in {folder} by hand."
            )
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        os.replace(downloaded / file, folder / file)


@contextlib.contextmanager
def _timeout() -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


@contextlib.contextmanager
def _confirmed() -> Iterator[None]:
    """OGB asks before it downloads more than a gigabyte; ``--download`` is the answer."""
    before = sys.stdin
    sys.stdin = io.StringIO("y\n" * 10)
    try:
        yield
    finally:
        sys.stdin = before

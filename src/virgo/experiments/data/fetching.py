"""Downloads by the loaders' own code, only ever on request: ``virgo data get NAME --download``."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from virgo.errors import DataError
from virgo.experiments.data.catalogue import Entry
from virgo.experiments.data.loaders import Offline, loader_class, quiet
from virgo.experiments.data.roots import Root, Source, find_root, locate, user_cache

PATIENCE = 60.0
"""Seconds without an answer after which a network counts as absent."""


class _Fetched(Exception):
    """Raised to leave a loader's constructor when its files are there."""


def fetch(row: Entry, root: Root = None) -> Source:
    """Download what is missing of a dataset into the data root, by its loader's own code.

    Files go to ``root`` or ``VIRGO_DATA`` where one of them is set, otherwise to the user's cache.
    They are downloaded aside, and moved in place when all are there.

    Args:
        row: which dataset.
        root: the data root.

    Raises:
        DataError: the network, the server or the folder does not play along.
    """
    source = locate(row, root)
    if source.complete:
        return source
    asked = root is not None or bool(os.environ.get("VIRGO_DATA"))
    target = (find_root(root) if asked else None) or user_cache()
    try:
        target.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{row.folder}-", dir=target))
    except OSError as error:
        raise DataError(
            f"{row.name}: expected a data root that can be written to, got {error}. Name one with "
            f"--root or VIRGO_DATA."
        ) from error
    try:
        _download(row, aside)
        _move(row, aside / row.folder, target / row.folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return locate(row, target)


def _download(row: Entry, aside: Path) -> None:
    def download(self: Any) -> None:
        # past Offline, to PyG's own: makes the folder and calls the class's download
        super(Offline, self)._download()

    def stop(self: Any) -> None:
        raise _Fetched

    online = type("Online", (loader_class(row),), {"_download": download, "_process": stop})
    name = row.name if row.kind == "ogb" else row.folder
    try:
        with quiet(), _patience(), _yes():
            online(name=name, root=str(aside))
    except _Fetched:
        return
    except (Exception, SystemExit) as error:  # urllib, fsspec and OGB raise what they like
        raise DataError(
            f"{row.name}: expected a download, got {type(error).__name__}: {error}. Check the "
            f"network, or put the files in place by hand: `virgo data get {row.name}` says where."
        ) from error


def _move(row: Entry, found: Path, folder: Path) -> None:
    for wanted in row.files:
        there = [file for file in wanted.split("|") if (found / file).is_file()]
        if not there:
            raise DataError(
                f"{row.name}: expected {wanted} in what was downloaded, got none. "
                f"Put the files in {folder} by hand."
            )
        (folder / there[0]).parent.mkdir(parents=True, exist_ok=True)
        os.replace(found / there[0], folder / there[0])


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(PATIENCE)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


@contextlib.contextmanager
def _yes() -> Iterator[None]:
    """OGB asks before it downloads more than a gigabyte; who says --download has answered."""
    before: Any = sys.stdin
    sys.stdin = io.StringIO("y\n" * 10)
    try:
        yield
    finally:
        sys.stdin = before

"""PyG's and OGB's own dataset classes, kept from the network, the terminal and their raw files."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_geometric.datasets import Planetoid, TUDataset

from virgo.experiments.data.catalogue import Entry
from virgo.experiments.data.ogb_files import ogb, readable


class Offline:
    """Put before a dataset class, makes it load what is there: no download, no progress lines.

    Its raw files need not be there either, once they are processed.
    """

    log = property(lambda self: False, lambda self, value: None)

    def _download(self) -> None:
        """Nothing: :func:`virgo.experiments.data.roots.locate` has seen to the files."""


class OfflinePlanetoid(Offline, Planetoid):  # type: ignore[misc]  # torch_geometric is untyped
    """Cora, CiteSeer, PubMed."""


class OfflineTUDataset(Offline, TUDataset):  # type: ignore[misc]
    """IMDB-BINARY, IMDB-MULTI, COLLAB."""


def loader_class(entry: Entry) -> Any:
    """The dataset class that reads ``entry``, without a network."""
    if entry.kind == "planetoid":
        return OfflinePlanetoid
    if entry.kind == "tu":
        return OfflineTUDataset
    ogb("nodeproppred")  # says it if there is none
    from virgo.experiments.data import ogb_classes

    return {
        "node": ogb_classes.OfflineNodes,
        "link": ogb_classes.OfflineLinks,
        "graph": ogb_classes.OfflineGraphs,
    }[entry.task]


def open_loader(entry: Entry, root: Path, **options: Any) -> Any:
    """The loader of ``entry`` on a folder of the cache, processing it if that is not done.

    Args:
        entry: which dataset.
        root: the folder that holds ``entry.folder``.
        options: for the loader, such as ``pre_transform``.
    """
    name = entry.name if entry.kind == "ogb" else entry.folder
    loader = loader_class(entry)
    with quiet(), readable():
        return loader(name=name, root=str(root), **options)


class _Muted:
    """A stream that this thread's words do not reach; others', such as a progress bar's, do."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._thread = stream, threading.get_ident()

    def write(self, text: str) -> int:
        if threading.get_ident() != self._thread:
            self._stream.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """OGB's lines, its bars and the warnings of its age are not the user's."""
    out: Any = _Muted(sys.stdout)
    err: Any = _Muted(sys.stderr)
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        # pandas hands out read-only arrays since version 3; OGB only reads them
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        yield

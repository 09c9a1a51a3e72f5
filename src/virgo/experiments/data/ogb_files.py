"""OGB's library and files: imported without a network, read without running what is in them."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import GlobalStorage

from virgo.errors import DataError


def ogb(module: str) -> Any:
    """``ogb.<module>``, imported without its look for a newer version.

    ``ogb`` asks the package index for its newest version in a thread that keeps the interpreter
    from ending while it waits. It does so only if it can import ``outdated``.

    Raises:
        DataError: ``ogb`` is not installed.
    """
    kept = {"outdated": sys.modules["outdated"]} if "outdated" in sys.modules else {}
    if "ogb" not in sys.modules:
        sys.modules["outdated"] = None  # type: ignore[assignment]  # makes its import fail
    try:
        return importlib.import_module(f"ogb.{module}")
    except ImportError as error:
        raise DataError(
            f"ogb.{module}: expected the library ogb, got {error}. Install virgo-gnn[data]."
        ) from error
    finally:
        if sys.modules.get("outdated", ...) is None:
            del sys.modules["outdated"]
        sys.modules.update(kept)


def evaluator(name: str) -> Any:
    """OGB's own evaluator of a dataset, by its name: ``"ogbn-arxiv"``, ``"ogbl-ddi"``."""
    kind = {"ogbn": "node", "ogbl": "link", "ogbg": "graph"}.get(name.split("-")[0])
    if kind is None:
        raise DataError(f"{name}: expected a dataset of OGB's, got another. Name one.")
    return ogb(f"{kind}proppred").Evaluator(name)


_lock = threading.RLock()


def _rebuild_under(module: str) -> Any:
    """numpy's function that makes an array for a pickle to fill, under a name that it has had."""
    rebuild: Any = np.empty(0).__reduce__()[0]

    def _reconstruct(*args: Any) -> Any:
        return rebuild(*args)

    _reconstruct.__module__ = module
    _reconstruct.__qualname__ = "_reconstruct"  # what the safe unpickler knows it by
    return _reconstruct


# OGB's files are older than numpy 2, our miniatures and rebuilt files may be younger
_REBUILD = tuple(map(_rebuild_under, ("numpy.core.multiarray", "numpy._core.multiarray")))
_NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "bool", "float16", "float32", "float64")


def _names() -> list[Any]:
    """What OGB's files name beside tensors: PyG's ``Data``, and numpy's arrays of numbers."""
    kinds = {type(np.dtype(kind)) for kind in _NUMBERS}
    return [
        Data,
        DataEdgeAttr,
        DataTensorAttr,
        GlobalStorage,
        np.ndarray,
        np.dtype,
        *kinds,
        *_REBUILD,
    ]


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """Within, ``torch.load`` reads OGB's files with its safe loading left on.

    Only what is not allowed already is allowed, as PyTorch's context manager takes away all that it
    was given, also what others had allowed before.
    """
    with _lock:
        have = torch.serialization.get_safe_globals()
        with torch.serialization.safe_globals([name for name in _names() if name not in have]):
            yield

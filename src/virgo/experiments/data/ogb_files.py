"""OGB's library and files: imported without a network, read without running pickled code."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import GlobalStorage

from virgo.errors import DataError, MissingExtra

_lock = threading.RLock()  # what is changed below is changed for all threads


def ogb(module: str) -> Any:
    """Import ``ogb.<module>`` without its check for a newer version.

    ``ogb`` asks the package index for its newest version in a thread that keeps the interpreter
    from exiting while it waits. It does so only if it can import ``outdated``.

    Args:
        module: name of the submodule.

    Returns:
        The module.

    Raises:
        MissingExtra: ``ogb`` is not installed.
    """
    with _lock:
        kept = {"outdated": sys.modules["outdated"]} if "outdated" in sys.modules else {}
        if "ogb" not in sys.modules:
            sys.modules["outdated"] = None  # type: ignore[assignment]  # makes its import fail
        try:
            return importlib.import_module(f"ogb.{module}")
        except ImportError as error:
            raise MissingExtra("Loading an OGB dataset", "ogb", "data") from error
        finally:
            if sys.modules.get("outdated", ...) is None:
                del sys.modules["outdated"]
            sys.modules.update(kept)


def evaluator(name: str) -> Any:
    """OGB's own evaluator of a dataset.

    Args:
        name: ``"ogbn-arxiv"``, ``"ogbl-ddi"`` and so on.

    Returns:
        OGB's ``Evaluator``.

    Raises:
        DataError: the dataset is not one of OGB's, or ``ogb`` is not installed.
    """
    task = {"ogbn": "node", "ogbl": "link", "ogbg": "graph"}.get(name.split("-")[0])
    if task is None:
        raise DataError(f"{name}: expected a dataset of OGB's, got another. Name one.")
    return ogb(f"{task}proppred").Evaluator(name)


def _reconstruct_as(module: str) -> Callable[..., object]:
    """numpy's function that makes an array for a pickle to fill, under a given module name."""
    rebuild: Any = np.empty(0).__reduce__()[0]

    def _reconstruct(*args: object) -> object:
        return rebuild(*args)

    _reconstruct.__module__ = module
    _reconstruct.__qualname__ = "_reconstruct"  # the name that the safe unpickler looks up
    return _reconstruct


_NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "bool", "float16", "float32", "float64")
_SAFE: list[Any] = [  # what OGB's files name beside tensors: PyG's Data and numeric arrays
    *(Data, DataEdgeAttr, DataTensorAttr, GlobalStorage, np.ndarray, np.dtype),
    *{type(np.dtype(kind)) for kind in _NUMBERS},
    # OGB's files are older than numpy 2, rebuilt ones may be younger
    *map(_reconstruct_as, ("numpy.core.multiarray", "numpy._core.multiarray")),
]


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """Within, ``torch.load`` reads OGB's files with its safe loading left on.

    Only what is not allowed yet is added: PyTorch's context manager removes everything it was
    given when it ends, including what others had allowed before.
    """
    with _lock:
        allowed = torch.serialization.get_safe_globals()
        with torch.serialization.safe_globals([item for item in _SAFE if item not in allowed]):
            yield

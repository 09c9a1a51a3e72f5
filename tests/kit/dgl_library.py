"""DGL where it can be imported. It is hardly maintained, so it is not part of ``[dev]``."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from typing import Any

import pytest


def load_dgl() -> Any:
    """DGL, or a skip of the whole module that asks for it."""
    os.environ.setdefault("DGLBACKEND", "pytorch")  # without it DGL writes into the home folder
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own imports
            return import_module("dgl")
    except Exception as error:  # 2.x raises FileNotFoundError beside a torch it was not built for
        pytest.skip(f"no DGL: {error}; pip install '.[dgl]'", allow_module_level=True)

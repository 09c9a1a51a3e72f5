"""Datasets: the paper's fifteen from local files, and generated graphs.

Names are imported when they are used: the loaders import PyG, which takes seconds, and a command
line asks only for the catalogue before it knows what to do.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from virgo.experiments.data.catalogue import names
    from virgo.experiments.data.datasets import Dataset
    from virgo.experiments.data.generators import citation_like
    from virgo.experiments.data.loading import demo_graph, load, load_arxiv, load_citation
    from virgo.experiments.data.roots import find_root, user_cache

__all__ = [
    "Dataset",
    "citation_like",
    "demo_graph",
    "find_root",
    "load",
    "load_arxiv",
    "load_citation",
    "names",
    "user_cache",
]

_HOME_OF = {
    "Dataset": "datasets",
    "citation_like": "generators",
    "demo_graph": "loading",
    "find_root": "roots",
    "load": "loading",
    "load_arxiv": "loading",
    "load_citation": "loading",
    "names": "catalogue",
    "user_cache": "roots",
}


def __getattr__(name: str) -> Any:
    """A public name from its module."""
    if name in _HOME_OF:
        return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

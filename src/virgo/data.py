"""Datasets and generated graphs; the public name of :mod:`virgo.experiments.data`."""

from types import ModuleType

from virgo.experiments.data import (
    Dataset,
    citation_like,
    demo_graph,
    find_root,
    load,
    load_arxiv,
    load_citation,
    names,
    user_cache,
)

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


def __getattr__(name: str) -> ModuleType:
    """The compiled neighbour sampler, which is imported when it is used."""
    if name == "neighbours":
        from virgo.experiments.data import neighbours

        return neighbours
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

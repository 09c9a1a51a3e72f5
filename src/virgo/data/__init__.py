"""Graphs to work on: the paper's fifteen datasets from files at hand, and generated ones."""

from virgo.data.arxiv import load_arxiv
from virgo.data.catalogue import names
from virgo.data.citation import demo_graph, load_citation
from virgo.data.datasets import Dataset
from virgo.data.generators import citation_like
from virgo.data.loading import load
from virgo.data.roots import find_root, user_cache

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

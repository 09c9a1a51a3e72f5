"""Datasets: the paper's fifteen from local files, and generated graphs."""

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

"""Graphs to work on: generated ones, and the citation graphs from files at hand."""

from virgo.data.arxiv import load_arxiv
from virgo.data.generators import citation_like
from virgo.data.roots import demo_graph, find_root, load_citation, user_cache

__all__ = [
    "citation_like",
    "demo_graph",
    "find_root",
    "load_arxiv",
    "load_citation",
    "user_cache",
]

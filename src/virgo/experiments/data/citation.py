"""Cora, CiteSeer and PubMed as PyG gives them, and a graph for demonstrations."""

from __future__ import annotations

from torch_geometric.data import Data

from virgo.errors import DataError
from virgo.experiments.data.catalogue import CATALOGUE
from virgo.experiments.data.generators import citation_like
from virgo.experiments.data.loading import open_stored
from virgo.experiments.data.roots import CITATION, Root, locate


def load_citation(name: str = "cora", root: Root = None) -> Data:
    """Cora, CiteSeer or PubMed with the public split and features as they are in the files.

    :func:`virgo.data.load` gives them as the paper's experiments use them.

    Args:
        name: ``"cora"``, ``"citeseer"`` or ``"pubmed"``, in any case.
        root: The data root; see :func:`virgo.data.find_root`.

    Raises:
        DataError: The name is unknown, files are absent or damaged, or the cache is not writable.
    """
    if name.lower() not in CITATION:
        choices = ", ".join(CITATION)
        raise DataError(f"load_citation: name must be one of {choices}, got {name!r}. Choose one.")
    return open_stored(CATALOGUE[name.lower()], root)[0]


def demo_graph() -> tuple[Data, str]:
    """Cora where a data root has it, otherwise a generated graph; and a line that says which."""
    if locate(CATALOGUE["cora"]).complete:
        data = load_citation("cora")
        kind = "Cora, public split"
    else:
        data = citation_like()
        kind = "a generated citation-like graph (no data root has Cora)"
    return (
        data,
        f"{kind}: {data.num_nodes} nodes, {data.num_edges} edges, {data.num_features} words",
    )

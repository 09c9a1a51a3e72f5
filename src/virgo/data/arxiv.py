"""ogbn-arxiv's structure and labels from OGB's raw files, with generated features.

The paper's backward panel needs only structure and labels. The 128-dimensional features are not
always at hand; where they are generated, everything made from them says so, and no accuracy may
be stated.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from virgo.data.roots import find_root, user_cache
from virgo.errors import DataError

GENERATED = "ogbn-arxiv's structure and labels are real, its features are generated"


def load_arxiv_structure(
    root: str | os.PathLike[str] | None = None, num_features: int = 128, seed: int = 0
) -> Data:
    """ogbn-arxiv made undirected, with its labels and time split, and uniform random features.

    Args:
        root: the data root that holds ``ogbn_arxiv/raw``; see :func:`virgo.data.find_root`.
    """
    found = find_root(root)
    folder = (found if found is not None else user_cache()) / "ogbn_arxiv"
    edges = _read(folder / "raw" / "edge.csv.gz")
    labels = _read(folder / "raw" / "node-label.csv.gz").reshape(-1)
    train = _read(folder / "split" / "time" / "train.csv.gz").reshape(-1)
    edge_index = to_undirected(torch.from_numpy(edges.T.copy()), num_nodes=labels.size)
    mask = torch.zeros(labels.size, dtype=torch.bool)
    mask[torch.from_numpy(train)] = True
    x = np.random.default_rng(seed).random((labels.size, num_features), dtype=np.float32)
    return Data(
        x=torch.from_numpy(x), edge_index=edge_index, y=torch.from_numpy(labels), train_mask=mask
    )


def _read(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    if not path.is_file():
        raise DataError(
            f"load_arxiv_structure: expected {path.name} in {path.parent}, got none. Put OGB's "
            f"files there, or name another root with root= or VIRGO_DATA."
        )
    try:
        with gzip.open(path, "rt") as lines:
            return np.loadtxt(lines, delimiter=",", dtype=np.int64, ndmin=2)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(
            f"load_arxiv_structure: expected an intact {path}, got {error}. Fetch it again."
        ) from error

"""ogbn-arxiv from OGB's raw files, with generated features where the real ones are not at hand.

The paper's backward panel needs only structure and labels. Where the 128 features of a node are
generated, everything made from them says so, and no accuracy may be stated.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from virgo.data.roots import find_root, user_cache
from virgo.errors import DataError

GENERATED = "ogbn-arxiv's structure and labels are real, its features are generated"


def load_arxiv(
    root: str | os.PathLike[str] | None = None, num_features: int = 128, seed: int = 0
) -> tuple[Data, str | None]:
    """ogbn-arxiv made undirected, with labels and time split; and what must be said about it.

    Args:
        root: the data root that holds ``ogbn_arxiv/raw``; see :func:`virgo.data.find_root`.
        num_features: how many features to generate for a node if there are none.
        seed: of the generated features, which are uniform on [0, 1).
    """
    found = find_root(root)
    folder = (found if found is not None else user_cache()) / "ogbn_arxiv"
    edges = _read(folder / "raw" / "edge.csv.gz", np.int64)
    labels = _read(folder / "raw" / "node-label.csv.gz", np.int64).reshape(-1)
    train = _read(folder / "split" / "time" / "train.csv.gz", np.int64).reshape(-1)
    edge_index = to_undirected(torch.from_numpy(edges.T.copy()), num_nodes=labels.size)
    mask = torch.zeros(labels.size, dtype=torch.bool)
    mask[torch.from_numpy(train)] = True
    real = folder / "raw" / "node-feat.csv.gz"
    generated = not real.is_file()
    if generated:
        x = np.random.default_rng(seed).random((labels.size, num_features), dtype=np.float32)
    else:
        x = _read(real, np.float32)
    data = Data(
        x=torch.from_numpy(x), edge_index=edge_index, y=torch.from_numpy(labels), train_mask=mask
    )
    return data, GENERATED if generated else None


def _read(path: Path, dtype: type[np.generic]) -> npt.NDArray[Any]:
    if not path.is_file():
        raise DataError(
            f"load_arxiv: expected {path.name} in {path.parent}, got none. Put OGB's "
            f"files there, or name another root with root= or VIRGO_DATA."
        )
    try:
        with gzip.open(path, "rt") as lines:
            return np.loadtxt(lines, delimiter=",", dtype=dtype, ndmin=2)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(
            f"load_arxiv: expected an intact {path}, got {error}. Fetch it again."
        ) from error

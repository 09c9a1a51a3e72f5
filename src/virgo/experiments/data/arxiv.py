"""ogbn-arxiv from OGB's raw files, with generated features where the real ones are not at hand.

The paper's backward panel needs only structure and labels. Where the 128 features of a node are
generated, everything made from them says so, and no accuracy may be stated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from virgo.errors import DataError
from virgo.experiments.data.catalogue import CATALOGUE
from virgo.experiments.data.damage import TABLE_ERRORS, damaged, read_table
from virgo.experiments.data.loading import load
from virgo.experiments.data.roots import Root, Source, locate

GENERATED = "ogbn-arxiv's structure and labels are real, its features are generated"

FEATURES = "raw/node-feat.csv.gz"


def load_arxiv(
    root: Root = None, num_features: int = 128, seed: int = 0
) -> tuple[Data, str | None]:
    """ogbn-arxiv made undirected, with labels and time split; and what must be said about it.

    With all of OGB's files at hand it is what :func:`virgo.data.load` gives. Otherwise edges,
    labels and training nodes suffice.

    Args:
        root: the data root that holds ``ogbn_arxiv/raw``; see :func:`virgo.data.find_root`.
        num_features: how many features to generate for a node if there are none.
        seed: of the generated features, which are uniform on [0, 1).
    """
    source = locate(CATALOGUE["ogbn-arxiv"], root)
    if source.complete:
        return load("ogbn-arxiv", root).data, None
    edges = _read(source, "raw/edge.csv.gz", np.int64)
    labels = _read(source, "raw/node-label.csv.gz", np.int64).reshape(-1)
    train = _read(source, "split/time/train.csv.gz", np.int64).reshape(-1)
    edge_index = to_undirected(torch.from_numpy(edges.T.copy()), num_nodes=labels.size)
    mask = torch.zeros(labels.size, dtype=torch.bool)
    mask[torch.from_numpy(train)] = True
    generated = FEATURES in source.missing
    if generated:
        x = np.random.default_rng(seed).random((labels.size, num_features), dtype=np.float32)
    else:
        x = _read(source, FEATURES, np.float32)
    data = Data(
        x=torch.from_numpy(x), edge_index=edge_index, y=torch.from_numpy(labels), train_mask=mask
    )
    return data, GENERATED if generated else None


def _read(source: Source, file: str, dtype: type[np.generic]) -> Any:
    path = source.path(file)
    if file in source.missing:
        raise DataError(
            f"load_arxiv: expected {path.name} in {path.parent}, got none. Put OGB's "
            f"files there, or name another root with root= or VIRGO_DATA."
        )
    try:
        return read_table(path, dtype)
    except TABLE_ERRORS as error:
        raise damaged(source, file, error) from error

"""Files of ``torch.save``, read without running code that a pickle may hold."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any


def load_saved(path: Path, **options: Any) -> Any:
    """Load tensors, dictionaries of them, or a ``Data``; PyTorch refuses anything else.

    Args:
        path: the file.
        options: for ``torch.load``.

    Returns:
        The content of the file.
    """
    import torch

    try:
        return torch.load(path, weights_only=True, **options)
    except pickle.UnpicklingError:  # perhaps a Data: only then is PyG worth its import
        pass
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    # added for good, as PyG does: the context manager would remove PyG's own when it ends
    torch.serialization.add_safe_globals([Data, DataEdgeAttr, DataTensorAttr, GlobalStorage])
    return torch.load(path, weights_only=True, **options)

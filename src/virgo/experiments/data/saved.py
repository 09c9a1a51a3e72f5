"""What ``torch.save`` wrote, read without running code that a pickle may hold."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any


def load_saved(path: Path, **options: Any) -> Any:
    """Tensors, dictionaries of them, or a ``Data``; anything else is refused by PyTorch."""
    import torch

    try:
        return torch.load(path, weights_only=True, **options)
    except pickle.UnpicklingError:  # a Data, perhaps: only then PyG is worth its import
        pass
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    # added for good, as PyG does: the context manager would take PyG's own away when it ends
    torch.serialization.add_safe_globals([Data, DataEdgeAttr, DataTensorAttr, GlobalStorage])
    return torch.load(path, weights_only=True, **options)

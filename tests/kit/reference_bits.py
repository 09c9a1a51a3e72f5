"""Plans and weights of a few models, to compare with those saved before a change of the code.

``python tests/kit/reference_bits.py FILE`` writes them; ``tests/test_reference_bits.py`` compares.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GAT, GCN, GIN, GraphConv, GraphSAGE, SGConv

import virgo


class Mixed(nn.Module):
    """Two kinds of layers, under the names that they were saved with."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.module_0 = SGConv(width, 16, K=2)
        self.module_2 = GraphConv(16, 7)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.module_2(self.module_0(x, edge_index).relu(), edge_index)


METHODS = (
    "lecun",
    "xavier",
    "kaiming-forward",
    "kaiming-backward",
    "virgo-forward",
    "virgo-backward",
    "virgo",
)
MODELS: dict[str, Callable[[int], nn.Module]] = {
    "gcn": lambda width: GCN(width, 32, num_layers=4, out_channels=7),
    "sage": lambda width: GraphSAGE(width, 24, num_layers=3, out_channels=7, project=True),
    "gin": lambda width: GIN(width, 16, num_layers=3, out_channels=7),
    "sgc": lambda width: Mixed(width),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "": {},
    "normal": {"distribution": "normal"},
    "truncated": {"distribution": "truncated"},
    "orthogonal": {"distribution": "orthogonal"},
    "mirrored": {"distribution": "mirrored"},
    "rms": {"signal": "rms"},
    "released": {"variant": "released"},
    "tanh": {"nonlinearity": "tanh"},
    "measured": {"estimate": "measured"},
}


def bits(model: nn.Module) -> str:
    """A checksum of every parameter of a model."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(name.encode())
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def cases() -> dict[str, dict[str, Any]]:
    """Case name -> variances of the plan, and a checksum of the weights drawn from it."""
    data = virgo.data.citation_like(num_nodes=200, seed=0)
    found: dict[str, dict[str, Any]] = {}
    for kind, build in MODELS.items():
        for method in METHODS:
            for word, options in OPTIONS.items():
                if options.get("estimate") == "measured" and not method.startswith("virgo"):
                    continue
                torch.manual_seed(0)
                model = build(data.num_features)
                plan = virgo.init_(model, data, method, seed=3, **options)
                found[f"{kind}/{method}/{word}"] = {
                    "variances": plan.variances,
                    "weights": bits(model),
                }
    torch.manual_seed(0)
    model = GAT(data.num_features, 16, num_layers=3, out_channels=7, heads=2)
    plan = virgo.init_(model, data, "virgo-forward", estimate="measured", seed=3)
    found["gat/virgo-forward/measured"] = {"variances": plan.variances, "weights": bits(model)}
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    Path(sys.argv[1]).write_text(json.dumps(cases(), indent=0, sort_keys=True), encoding="utf-8")

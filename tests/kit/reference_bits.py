"""Plans and weights of a few models, to compare with those saved before a change of the code.

``python tests/kit/reference_bits.py FILE`` writes them; ``tests/test_reference_bits.py`` compares.

Weights are saved as a sketch, a few numbers of every parameter that can be compared within a bound.
Those that are drawn entry by entry also have a checksum; a QR decomposition or a measured pass
rounds as the machine's linear algebra does.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
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
#: Options whose weights go through LAPACK or a measured pass.
ROUNDED = ("orthogonal", "mirrored", "measured")
_WAVES = (0.7, 1.9, 2.6)


def bits(model: nn.Module) -> str:
    """A checksum of every parameter of a model."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(name.encode())
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def sketch(model: nn.Module) -> dict[str, list[float]]:
    """Of every parameter its root mean square, and its products with a few waves.

    The waves have a mean square near 1/2 and are divided by the root of their length: a product is
    as large as an entry, and moves by as much as the entries do.
    """
    found = {}
    for name, parameter in model.named_parameters():
        values = parameter.detach().double().numpy().ravel()
        steps = np.arange(values.size)
        waves = [np.cos(wave * steps) / np.sqrt(values.size) for wave in _WAVES]
        rms = float(np.sqrt(np.square(values).mean()))
        found[name] = [rms, *(float((values * wave).sum()) for wave in waves)]
    return found


def saved(plan: virgo.Plan, model: nn.Module, word: str) -> dict[str, Any]:
    """What is kept of a case."""
    checksum = {} if word in ROUNDED else {"weights": bits(model)}
    return {"variances": plan.variances, "sketch": sketch(model), **checksum}


def cases() -> dict[str, dict[str, Any]]:
    """Case name -> variances of the plan, and a sketch of the weights drawn, maybe a checksum."""
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
                found[f"{kind}/{method}/{word}"] = saved(plan, model, word)
    torch.manual_seed(0)
    model = GAT(data.num_features, 16, num_layers=3, out_channels=7, heads=2)
    plan = virgo.init_(model, data, "virgo-forward", estimate="measured", seed=3)
    found["gat/virgo-forward/measured"] = saved(plan, model, "measured")
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    Path(sys.argv[1]).write_text(json.dumps(cases(), indent=0, sort_keys=True), encoding="utf-8")

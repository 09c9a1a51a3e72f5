"""The networks of ``benchmarks/depth.py``: its products with constant matrices are PyG's layers."""

from __future__ import annotations

import depth
import pytest
import torch
from torch.nn import functional

import virgo

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("mode", ["training", "evaluation"])
@pytest.mark.parametrize("name", depth.MODELS)
def test_constant_matrices_compute_what_the_network_does(name: str, mode: str) -> None:
    """Outputs and gradients on a directed graph with a node that nothing points to, twice."""
    data = virgo.data.citation_like(num_nodes=120, seed=0)
    kept = (torch.arange(data.num_edges) % 3 > 0) & (data.edge_index[1] != 5)
    data.edge_index = data.edge_index[:, kept]
    depth.with_constants(data)
    torch.manual_seed(0)
    model = depth.MODELS[name](data.num_features, 64, 4, 7, 0.0 if mode == "training" else 0.5)
    model.train(mode == "training")
    found = []
    for compute in (
        lambda: model(data.x, data.edge_index),
        *[lambda: depth.output(model, data)] * 2,
    ):
        model.zero_grad()
        logits = compute()
        functional.cross_entropy(logits, data.y).backward()
        found.append([logits.detach(), *(p.grad.clone() for p in model.parameters())])
    # sums of at most a few hundred float32 numbers in another order
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(found[2], found[1], rtol=0, atol=0)

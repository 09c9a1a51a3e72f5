"""The networks of ``benchmarks/depth.py``: its products with constant matrices are PyG's layers."""

from __future__ import annotations

import sys

import depth
import pytest
import torch
from gat_layer import gat
from torch.nn import functional
from torch_geometric.nn import GATConv

import virgo
from virgo.experiments.tasks.fused import Constant

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


def test_dropped_attention_is_that_of_dense_matrices() -> None:
    """With a given mask of edges and heads, against a softmax over a dense matrix per head."""
    generator = torch.Generator().manual_seed(0)
    dense = (torch.rand(12, 12, generator=generator) < 0.3) | torch.eye(12, dtype=torch.bool)
    row, col = dense.nonzero().t()
    graph = Constant.sparse(row, col, torch.ones(row.numel()), (12, 12))
    mask = 2.0 * (torch.rand(row.numel(), 2, generator=generator) < 0.5)
    conv = GATConv(5, 3, heads=2, bias=False, dropout=0.5)
    x = torch.randn(12, 6, generator=generator)
    results = []
    for by_hand in (True, False):
        leaf = x.clone().requires_grad_()
        conv.zero_grad()
        if by_hand:
            out = gat(conv, leaf, graph, lambda ones, p: ones * mask.t())
        else:
            h = leaf.view(12, 2, 3)
            scores = (h * conv.att_dst).sum(-1)[:, None] + (h * conv.att_src).sum(-1)[None]
            scores = functional.leaky_relu(scores, conv.negative_slope)
            alpha = scores.masked_fill(~dense[..., None], -torch.inf).softmax(1)
            kept = torch.zeros(12, 12, 2).index_put((row, col), mask)
            out = torch.einsum("ijh,jhc->ihc", alpha * kept, h).reshape(12, 6)
        (out * torch.linspace(-1, 1, 6)).sum().backward()
        results.append([out.detach(), leaf.grad, conv.att_src.grad, conv.att_dst.grad])
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize(("seeds", "at_two"), [("5", None), ("10", (5, 1))])
def test_fewer_seeds_screen_than_run(
    seeds: str, at_two: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At two layers five seeds screen; where no more are asked for, all configurations have all."""
    screens = []
    monkeypatch.setattr(depth, "study", lambda *_, screen, **__: screens.append(screen))
    monkeypatch.setattr(sys, "argv", ["depth.py", "--depths", "2", "8", "--seeds", seeds])
    threads = torch.get_num_threads()
    depth.main()
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)
    assert screens == [at_two, (2, 1)]

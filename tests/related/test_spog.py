"""The search for signal, gradient and diversity."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.nn import GCN, GIN, GraphSAGE
from torch_geometric.utils import get_laplacian, to_dense_adj

import virgo
from virgo.related import spog

DATA = virgo.data.citation_like(num_nodes=80, seed=0)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spog, "STEPS", 12)


def test_the_variation_is_the_rayleigh_quotient_of_the_laplacian() -> None:
    """PyG's Laplacian of the graph with self-loops, dense, column by column."""
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(80, 5, generator=generator, dtype=torch.float64)
    h[:, 2] = 0
    loops = torch.arange(80).repeat(2, 1)
    edges = torch.cat([DATA.edge_index, loops], 1)
    # PyG drops self-loops and adds them again, so A + I is built by hand
    dense = to_dense_adj(edges, max_num_nodes=80)[0].double().clamp(max=1)
    root = dense.sum(1).rsqrt()
    laplacian = torch.eye(80).double() - root[:, None] * dense * root
    wanted = [0.0 if not bool(c.any()) else float(c @ laplacian @ c / (c @ c)) / 2 for c in h.T]
    operator = virgo.Graph(DATA.edge_index, 80).gcn()
    assert spog.graph_embedding_variation(h.numpy(), operator) == pytest.approx(np.mean(wanted))
    assert get_laplacian(edges, normalization="sym")[1].numel()  # the edges are symmetric


def objective(model: GCN) -> float:
    """The three terms, by hand, for a GCN."""
    outputs = []
    handles = [c.register_forward_hook(lambda m, a, out: outputs.append(out)) for c in model.convs]
    logits = model.eval()(DATA.x, DATA.edge_index)
    for handle in handles:
        handle.remove()
    mask = DATA.train_mask
    loss = torch.nn.functional.cross_entropy(logits[mask], DATA.y[mask])
    grads = torch.autograd.grad(loss, [conv.lin.weight for conv in model.convs])

    def rms(t: torch.Tensor) -> float:
        return float(t.detach().double().square().mean().sqrt())

    operator = virgo.Graph(DATA.edge_index, 80).gcn()
    variation = [
        spog.graph_embedding_variation(t.detach().double().numpy(), operator)
        for t in (DATA.x, logits)
    ]
    forward = (rms(outputs[0]) / rms(outputs[-1]) - 1) ** 2
    backward = (rms(grads[1]) / rms(grads[-2]) - 1) ** 2
    return forward + 10 * backward + (variation[0] - variation[1]) ** 2


def test_what_was_found_is_better_than_xavier_and_is_what_the_plan_says() -> None:
    model = GCN(DATA.num_features, 16, 6, 7)
    plan = virgo.init_(model, DATA, "spog", seed=1)
    assert plan.measured is not None
    said = plan.measured["objective"]
    assert objective(model) == pytest.approx(said["best"], rel=1e-3)
    xavier = virgo.plan(model, DATA, "xavier", seed=1)
    xavier.apply_(model)
    assert objective(model) == pytest.approx(said["start"], rel=1e-3)
    assert said["best"] < 0.5 * said["start"]


def test_it_is_the_same_for_a_seed_and_touches_nothing() -> None:
    model = GraphSAGE(DATA.num_features, 8, 3, 7)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    plans = [virgo.plan(model, DATA, "spog", seed=seed) for seed in (0, 0, 1)]
    assert plans[0] == plans[1] != plans[2]
    assert virgo.Plan.from_json(plans[0].to_json()).rows == plans[0].rows
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_one_layer_and_no_features_are_refused() -> None:
    with pytest.raises(virgo.LayerError, match="at least two layers"):
        virgo.plan(GCN(DATA.num_features, 16, 1, 7), DATA, "spog")
    with pytest.raises(virgo.GraphError, match="spog: expected features"):
        virgo.plan(GCN(8, 16, 2, 7), virgo.Graph(DATA.edge_index, 80), "spog")


def test_a_start_that_overflows_is_refused() -> None:
    data = DATA.clone()
    data.x = data.x * 1e37
    with pytest.raises(virgo.LayerError, match="spog: expected a finite signal"):
        virgo.plan(GIN(DATA.num_features, 16, 8, 7), data, "spog")

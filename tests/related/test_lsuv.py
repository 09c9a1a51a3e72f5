"""Layer-sequential unit variance, against a second implementation that knows one network."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GAT, GCN, GIN, GCNConv, GraphSAGE
from torch_geometric.utils import to_dense_adj

import virgo
from virgo.draws import generator_for
from virgo.network.modules import float_tensors

DATA = virgo.data.citation_like(num_nodes=150, seed=0)


def outputs(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> list[Tensor]:
    """What every module of some kinds returns, in the order they run."""
    seen: list[Tensor] = []
    handles = [
        module.register_forward_hook(lambda m, a, out: seen.append(float_tensors(out)[0]))
        for module in model.modules()
        if isinstance(module, kinds)
    ]
    with torch.no_grad():
        model.eval()(DATA.x, DATA.edge_index)
    for handle in handles:
        handle.remove()
    return seen


def test_a_gcn_is_what_the_papers_loop_makes_of_it() -> None:
    """Algorithm 1 on dense matrices: draw, multiply, divide by the deviation, next layer."""
    model = GCN(DATA.num_features, 24, 5, 7)
    plan = virgo.init_(model, DATA, "lsuv", seed=3)
    adjacency = to_dense_adj(DATA.edge_index, max_num_nodes=150)[0].double().clamp(max=1).T
    adjacency = adjacency + torch.eye(150)
    root = adjacency.sum(1).rsqrt()
    operator, h = root[:, None] * adjacency * root, DATA.x.double()
    for index, row in enumerate(plan.rows):
        normal = torch.randn(
            max(row.shape),
            min(row.shape),
            generator=generator_for(3, row.weight),
            dtype=torch.float64,
        )
        q, r = torch.linalg.qr(normal)
        q = q * torch.sign(torch.diagonal(r))
        weight = q if row.shape[0] >= row.shape[1] else q.T
        blob = operator @ h @ weight.T
        while abs(float(blob.var(unbiased=False)) - 1) >= 0.1:
            weight = weight / blob.var(unbiased=False).sqrt()
            blob = operator @ h @ weight.T
        ours = model.get_parameter(row.weight).detach().double()
        # the loop here may stop anywhere within the tolerance; both directions are the same
        scale = float((ours * weight).sum() / weight.square().sum())
        assert torch.allclose(ours, scale * weight, atol=1e-5)
        assert scale == pytest.approx(1, abs=0.06)
        weight = weight * scale
        h = torch.relu(operator @ h @ weight.T) if index < 4 else h


@pytest.mark.parametrize("kind", [GCN, GraphSAGE, GAT, GIN])
@pytest.mark.parametrize("depth", [1, 2, 12])
def test_every_layer_returns_unit_variance(kind: type[nn.Module], depth: int) -> None:
    model = kind(DATA.num_features, 17, depth, 7)
    virgo.init_(model, DATA, "lsuv")
    layers = tuple({type(conv) for conv in model.convs})
    found = [float(h.double().var(unbiased=False)) for h in outputs(model, layers)]
    assert len(found) == depth
    assert all(abs(variance - 1) < 0.1 for variance in found)


def test_linear_maps_inside_gin_have_unit_variance_too() -> None:
    model = GIN(DATA.num_features, 16, 3, 7)
    virgo.init_(model, DATA, "lsuv")
    linears = tuple({type(module) for module in model.modules() if hasattr(module, "in_channels")})
    found = [float(h.double().var(unbiased=False)) for h in outputs(model, linears)]
    assert len(found) >= 6
    assert all(abs(variance - 1) < 0.1 for variance in found)


def test_a_layer_used_twice_is_settled_once() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.again = GCNConv(DATA.num_features, 16), GCNConv(16, 16)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = torch.relu(self.first(x, edge_index))
            x = torch.relu(self.again(x, edge_index))
            return self.again(x, edge_index)

    model = Recurrent()
    plan = virgo.init_(model, DATA, "lsuv")
    assert len(plan.rows) == 2
    found = [float(h.double().var(unbiased=False)) for h in outputs(model, (GCNConv,))]
    assert all(abs(variance - 1) < 0.1 for variance in found[:2])


def test_a_layer_that_ends_in_a_norm_stays_orthonormal_and_is_named() -> None:
    class Normed(GCNConv):
        def forward(self, *args: Any, **kwargs: Any) -> Tensor:
            out = super().forward(*args, **kwargs)
            return 3 * out / out.std()

    model = GCN(DATA.num_features, 16, 2, 7)
    model.convs[0] = Normed(DATA.num_features, 16)
    plan = virgo.plan(model, DATA, "lsuv")
    assert any("convs.0: its output's variance is 9" in note for note in plan.notes)
    assert all(math.isfinite(row.variance) for row in plan.rows)


def test_the_plan_draws_the_same_bits_again_and_leaves_the_model_alone() -> None:
    model = GCN(DATA.num_features, 16, 3, 7)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    plan = virgo.plan(model, DATA, "lsuv")
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
    twice = [virgo.Plan.from_json(plan.to_json()).apply_(model).state_dict() for _ in range(2)]
    first = {k: v.clone() for k, v in twice[0].items()}
    virgo.init_(model, DATA, "lsuv")
    assert all(torch.equal(first[k], v) for k, v in model.state_dict().items())


def test_without_features_there_is_nothing_to_run() -> None:
    graph = virgo.Graph(DATA.edge_index, 150)
    with pytest.raises(virgo.GraphError, match="lsuv: expected features"):
        virgo.plan(GCN(8, 16, 2, 7), graph, "lsuv")
    assert virgo.plan(GCN(8, 16, 2, 7), graph, "orthogonal").rows


def test_zero_features_are_refused() -> None:
    data = DATA.clone()
    data.x = torch.zeros_like(data.x)
    with pytest.raises(virgo.GraphError, match="got only zeros"):
        virgo.plan(GCN(DATA.num_features, 16, 2, 7), data, "lsuv")

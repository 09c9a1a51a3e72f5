"""The last layer in closed form: against dense algebra, brute-force leave-one-out, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import (
    GAT,
    GCN,
    GIN,
    GCNConv,
    GraphSAGE,
    global_mean_pool,
)

import virgo
from virgo.ridge import PENALTIES, ridge

pytestmark = pytest.mark.usefixtures("one_thread")


def labelled(nodes: int = 60, features: int = 8, classes: int = 3, seed: int = 0) -> Data:
    """Two thirds of the edges join nodes of one class, whose features have a mean of their own."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (nodes,), generator=rng)
    x = torch.randn(nodes, features, generator=rng) + 2 * torch.eye(classes, features)[y]
    ends = torch.randint(0, nodes, (2, 6 * nodes), generator=rng)
    keep = (y[ends[0]] == y[ends[1]]) | (torch.rand(ends.size(1), generator=rng) < 0.2)
    mask = torch.rand(nodes, generator=rng) < 0.5
    index = torch.cat([ends[:, keep], ends[:, keep].flip(0)], 1)
    return Data(x=x, y=y, edge_index=index, train_mask=mask)


def accuracy(model: nn.Module, data: Data, mask: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        right = model(data.x, data.edge_index).argmax(1) == data.y
    return float(right[mask].double().mean())


def test_gcn_last_layer_is_ridge_regression_on_propagated_features() -> None:
    data = labelled()
    model = GCN(8, 16, 3, 3)
    virgo.init_(model, data, "virgo-backward", seed=1)
    untouched = [p.detach().clone() for p in model.convs[:2].parameters()]
    fit = virgo.fit_last_(model, data, penalty=0.7)
    assert fit.layer == "convs.2"
    assert fit.penalty == 0.7
    for before, after in zip(untouched, model.convs[:2].parameters(), strict=True):
        assert torch.equal(before, after)
    with torch.no_grad():
        hidden = model.convs[0](data.x, data.edge_index).relu()
        hidden = model.convs[1](hidden, data.edge_index).relu()
        propagate = GCNConv(16, 16, bias=False)
        propagate.lin.weight.copy_(torch.eye(16))
        z = propagate(hidden, data.edge_index)[data.train_mask].double().numpy()
    targets = np.eye(3)[data.y[data.train_mask].numpy()]
    centred, wanted = z - z.mean(0), targets - targets.mean(0)
    weight = np.linalg.solve(centred.T @ centred + 0.7 * np.eye(16), centred.T @ wanted)
    found = model.convs[2].lin.weight.detach().double().numpy() / fit.scale
    np.testing.assert_allclose(found, weight.T, rtol=1e-3, atol=1e-5)
    bias = targets.mean(0) - z.mean(0) @ weight
    found_bias = model.convs[2].bias.detach().double().numpy() / fit.scale
    np.testing.assert_allclose(found_bias, bias, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("with_bias", [True, False])
def test_penalty_has_the_least_leave_one_out_error(with_bias: bool) -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((20, 6)))
    y = x[:, :2] + torch.from_numpy(rng.standard_normal((20, 2)))
    _, _, chosen = ridge(x, y, with_bias=with_bias)
    largest = float(torch.linalg.matrix_norm(x - x.mean(0) * with_bias, 2)) ** 2

    def left_out(penalty: float) -> float:
        errors = []
        for i in range(20):
            rest = [j for j in range(20) if j != i]
            weight, bias, _ = ridge(x[rest], y[rest], penalty, with_bias=with_bias)
            errors.append(float((x[i] @ weight + bias - y[i]).square().mean()))
        return float(np.mean(errors))

    errors = {float(p) * largest: left_out(float(p) * largest) for p in PENALTIES}
    best = min(errors, key=lambda penalty: errors[penalty])
    if not with_bias:
        assert chosen == pytest.approx(best)
    # with a bias the penalised means differ slightly between the two computations
    assert errors[min(errors, key=lambda p: abs(p - chosen))] <= 1.01 * errors[best]


@pytest.mark.parametrize("kind", [GCN, GraphSAGE, GIN])
@pytest.mark.parametrize("options", [{}, {"jk": "cat"}, {"norm": "batch"}])
def test_a_fitted_network_knows_its_training_nodes_and_others(
    kind: Any, options: dict[str, Any]
) -> None:
    data = labelled(200)
    torch.manual_seed(0)
    model = kind(8, 32, 3, 3, **options)
    before = accuracy(model, data, data.train_mask)
    fit = virgo.fit_last_(model, data)
    after = accuracy(model, data, data.train_mask)
    assert fit.before == pytest.approx(before, abs=0.02)
    assert fit.after == pytest.approx(after, abs=0.02)
    assert after > max(0.65, before)
    assert accuracy(model, data, ~data.train_mask) > 0.6


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = GCNConv(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        pooled = global_mean_pool(self.conv(x, edge_index).relu(), batch)
        return self.head(pooled).log_softmax(-1)


def test_graph_classification_with_a_softmax_and_regression() -> None:
    graphs = []
    for seed in range(40):
        graph = labelled(12, seed=seed)
        target = seed % 3
        graph.x = graph.x + 3 * torch.eye(3, 8)[target]
        graphs.append(Data(x=graph.x, edge_index=graph.edge_index, y=torch.tensor([target])))
    batch = Batch.from_data_list(graphs)
    model = Pooled()
    fit = virgo.fit_last_(model, batch)
    assert fit.layer == "head"
    assert fit.after == 1.0
    numbers = labelled()
    numbers.y = numbers.x[:, :2].sum(1, keepdim=True)
    regression = GCN(8, 16, 2, 1)
    fit = virgo.fit_last_(regression, numbers)
    assert fit.scale == 1.0
    assert fit.after < 0.5 * fit.before


def test_what_cannot_be_fitted_is_refused_and_nothing_changes() -> None:
    data = labelled()
    attention = GAT(8, 16, 2, 3)

    class Followed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gcn, self.scale = GCN(8, 16, 2, 3), nn.Parameter(torch.tensor(2.0))

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.gcn(x, edge_index) * self.scale

    without = Data(x=data.x, edge_index=data.edge_index)
    cases = [
        (attention, data, virgo.LayerError, "linear in the layer's weights"),
        (Followed(), data, virgo.LayerError, "something after it"),
        (GCN(8, 16, 2, 3), without, virgo.GraphError, "data.y"),
        (GCN(8, 16, 2, 2), data, virgo.GraphError, "data.y"),
    ]
    for model, given, error, words in cases:
        saved = {k: v.clone() for k, v in model.state_dict().items()}
        model.train()
        with pytest.raises(error, match=words):
            virgo.fit_last_(model, given)
        assert model.training
        for key, value in model.state_dict().items():
            assert torch.equal(value, saved[key])
    with pytest.raises(virgo.OptionError, match="penalty"):
        virgo.fit_last_(GCN(8, 16, 2, 3), data, penalty=-1.0)


def test_labels_outside_the_training_rows_have_no_say() -> None:
    data = labelled()
    weights = []
    for y in (data.y, torch.where(data.train_mask, data.y, -1)):
        model = GCN(8, 16, 2, 3)
        virgo.init_(model, data, "virgo-backward", seed=0)
        virgo.fit_last_(model, Data(**{**data.to_dict(), "y": y}))
        weights.append(model.convs[1].lin.weight)
    assert torch.equal(*weights)


@pytest.mark.parametrize("verb", [virgo.fit_last_, virgo.warm_start])
@pytest.mark.parametrize("form", ["several splits", "bytes", "empty"])
def test_a_mask_that_would_let_test_labels_in_is_refused(verb: Any, form: str) -> None:
    data = labelled()
    mask = data.train_mask
    data.train_mask = {
        "several splits": torch.stack([mask, ~mask], 1),
        "bytes": mask.to(torch.uint8),
        "empty": torch.zeros_like(mask),
    }[form]
    model = GCN(8, 16, 2, 3)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(virgo.GraphError, match=r"data\.train_mask: expected True or False"):
        verb(model, data)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_labels_of_zero_and_one_are_met_around_zero() -> None:
    data = labelled(nodes=200)
    data.y = torch.stack([data.y == 0, data.y > 0, data.y == 2], 1).float()
    model = GCN(8, 32, 2, 3)
    virgo.init_(model, data, "virgo-backward", seed=0)
    fit = virgo.fit_last_(model, data)
    model.eval()
    with torch.no_grad():
        logits = model(data.x, data.edge_index)
    met = (logits > 0) == (data.y > 0)
    assert fit.after == pytest.approx(float(met[data.train_mask].double().mean()))
    # a third of all labels are ones: numbers met as 0 and 1 would nearly all be above 0
    assert fit.after > 0.8


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_classes_of_any_whole_numbers_are_classes(dtype: torch.dtype) -> None:
    data = labelled()
    data.y = data.y.to(dtype)[:, None]
    model = GCN(8, 16, 2, 3)
    virgo.init_(model, data, "virgo-backward", seed=0)
    assert virgo.fit_last_(model, data).after > 0.6


def test_a_layer_in_half_precision_is_linear_too() -> None:
    data = labelled()
    model = GCN(8, 16, 2, 3).bfloat16()
    virgo.init_(model, data, "virgo-backward", seed=0)
    assert virgo.fit_last_(model, data).after > 0.6


def test_frozen_and_shared_weights_are_refused_and_kept() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.again = GCNConv(8, 3), GCNConv(3, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            hidden: Tensor = self.again(self.first(x, edge_index).relu(), edge_index)
            return self.again(hidden.relu(), edge_index)  # type: ignore[no-any-return]

    frozen = GCN(8, 16, 2, 3)
    frozen.convs[1].lin.weight.requires_grad_(False)
    tied = GCN(8, 3, 3, 3)
    tied.convs[2].lin.weight = tied.convs[1].lin.weight
    for model, words in (
        (frozen, r"convs\.1: .* got a frozen lin\.weight"),
        (tied, r"convs\.2: .* one whose weight is convs\.1\.lin\.weight too"),
        (Loop(), "again: .* one that runs 2 times"),
    ):
        before = [p.detach().clone() for p in model.parameters()]
        with pytest.raises(virgo.LayerError, match=words):
            virgo.fit_last_(model, labelled())
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_network_that_overflows_is_named_as_such() -> None:
    model = GCN(8, 16, 2, 3)
    nn.init.constant_(model.convs[0].lin.weight, float("inf"))
    with pytest.raises(virgo.GraphError, match="expected a finite output, got NaN or infinity"):
        virgo.fit_last_(model, labelled())

"""``check()`` on what has no chain of message-passing layers, and on any labels."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCN, GCNConv, global_mean_pool

import virgo
from virgo.diagnostics.measurement import read_subject
from virgo.diagnostics.units import measure_units
from virgo.network.losses import InferredLoss
from virgo.network.probe import node_variance


@pytest.fixture(scope="module")
def data() -> Data:
    return virgo.data.citation_like(num_nodes=120, num_features=40, seed=0)


class Perceptron(nn.Module):
    def __init__(self, inputs: int, depth: int = 2) -> None:
        super().__init__()
        widths = [inputs, *[16] * (depth - 1), 7]
        self.lins = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        for lin in self.lins[:-1]:
            x = lin(x).relu()
        return self.lins[-1](x)  # type: ignore[no-any-return]


class Checkpointed(nn.Module):
    """Layers that run a second time in the backward pass."""

    def __init__(self, inputs: int, use_reentrant: bool) -> None:
        super().__init__()
        self.convs = nn.ModuleList([GCNConv(inputs, 16), GCNConv(16, 16), GCNConv(16, 7)])
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.convs[0](x, edge_index).relu()
        x = checkpoint(self.convs[1], x, edge_index, use_reentrant=self.use_reentrant).relu()
        return self.convs[2](x, edge_index)  # type: ignore[no-any-return]


def test_a_model_without_message_passing_is_measured_by_its_linears(data: Data) -> None:
    torch.manual_seed(0)
    model = Perceptron(data.num_features)
    report = virgo.check(model, data)
    assert [layer.name for layer in report.measurement.layers] == ["input", "lins.0", "lins.1"]
    hidden = model.lins[0](data.x)
    expected = [node_variance([t]) for t in (data.x, hidden, model.lins[1](hidden.relu()))]
    assert report.measurement.forward == pytest.approx(expected, rel=1e-4)
    loss = nn.functional.cross_entropy(model(data.x)[data.train_mask], data.y[data.train_mask])
    loss.backward()
    for name, parameter in model.named_parameters():
        norm = float(parameter.grad.norm())  # type: ignore[union-attr]
        assert report.measurement.weight_gradients[name] == pytest.approx(norm, rel=1e-4)
        ratio = norm / float(parameter.detach().norm())
        assert report.measurement.update_ratios[name] == pytest.approx(ratio, rel=1e-4)
    assert "without a prediction" in str(report)
    assert virgo.check(Perceptron(data.num_features, 1), data).level == "good"


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing(use_reentrant: bool, data: Data) -> None:
    torch.manual_seed(0)
    model = Checkpointed(data.num_features, use_reentrant)
    plain = GCN(data.num_features, 16, 3, 7)
    plain.load_state_dict(model.state_dict(), strict=False)
    found = virgo.check(model, data, advice=False).measurement
    subject = read_subject(plain, data, None, None, 0)
    expected = measure_units(subject, None, InferredLoss())
    assert found.weight_gradients == pytest.approx(expected.weight_gradients, rel=1e-4)
    assert all(parameter.grad is None for parameter in model.parameters())


class Pooled(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv, self.head = GCNConv(inputs, 16), nn.Linear(16, outputs)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.head(global_mean_pool(self.conv(x, edge_index).relu(), batch))


@pytest.mark.parametrize(
    ("y", "outputs", "name"),
    [
        (torch.tensor([1]), 3, "cross-entropy"),
        (torch.tensor([[0.0, 1.0]]), 2, "binary cross-entropy"),
        (torch.tensor([[0.7]]), 1, "squared error"),
        (None, 3, "a random linear probe of the output"),
    ],
)
def test_the_loss_is_inferred_and_said(
    y: Tensor | None, outputs: int, name: str, data: Data
) -> None:
    graphs = [Data(x=data.x, edge_index=data.edge_index, y=y) for _ in range(4)]
    report = virgo.check(Pooled(data.num_features, outputs), DataLoader(graphs, batch_size=4))
    assert report.measurement.loss_name == name
    assert f"loss: {name}" in str(report)
    assert math.isfinite(report.measurement.loss)
    assert report.measurement.has_head


def test_tuples_and_spare_layers_are_checked(data: Data) -> None:
    class Tuple(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.spare = GCNConv(40, 16), GCNConv(16, 5)
            self.head = GCNConv(16, 7)

        def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Any]:
            x = self.body(x, edge_index).relu()
            self.spare(x, edge_index)
            return self.head(x, edge_index), {"hidden": x}

    report = virgo.check(Tuple(), data)
    assert report.measurement.loss_name == "cross-entropy"
    assert len(report.measurement.layers) == 4


def test_without_backward_no_gradient_is_measured(data: Data) -> None:
    report = virgo.check(GCN(data.num_features, 16, 3, 7), data, backward=False)
    assert all(math.isnan(value) for value in report.measurement.backward)
    assert report.measurement.loss_name == "none"
    assert report.advice == ""


def test_a_norm_is_judged_as_it_trains(data: Data) -> None:
    """A fresh BatchNorm changes nothing in evaluation mode, and everything in training."""
    torch.manual_seed(0)
    model = GCN(data.num_features, 32, 10, 7, norm="batch_norm")
    with torch.no_grad():
        for conv in model.convs:
            conv.lin.weight.mul_(1e-2)
    report = virgo.check(model, data, advice=False)
    assert not any(finding.cause == "vanishing" for finding in report.findings), report.verdict
    assert virgo.measure(model, data).forward[5] < 1e-6 * report.measurement.forward[5]


def test_lazy_layers_are_checked_on_a_copy(data: Data) -> None:
    model = GCN(-1, 16, 2, 7)
    state = torch.get_rng_state()
    assert virgo.check(model, data).ok
    assert torch.equal(torch.get_rng_state(), state)
    assert isinstance(model.convs[0].lin.weight, nn.UninitializedParameter)


def test_heterogeneous_data_without_labels() -> None:
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["paper"].x = torch.rand(30, 12, generator=generator)
    edges = torch.randint(30, (2, 90), generator=generator)
    data["paper", "cites", "paper"].edge_index = edges

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = GCNConv(12, 8), nn.Linear(8, 3)

        def forward(self, x_dict: Any, edge_index_dict: Any) -> dict[str, Tensor]:
            x = self.conv(x_dict["paper"], edge_index_dict["paper", "cites", "paper"]).relu()
            return {"paper": self.head(x)}

    report = virgo.check(Net(), data)
    assert report.measurement.loss_name == "a random linear probe of the output"


def test_a_model_without_weights_is_refused_with_a_reason(data: Data) -> None:
    with pytest.raises(virgo.LayerError, match="nothing to check"):
        virgo.check(nn.Identity(), data, forward=lambda m, d: m(d.x))


def test_one_advice_is_given_and_it_was_tried(data: Data) -> None:
    torch.manual_seed(0)
    model = Perceptron(data.num_features, 8)
    with torch.no_grad():
        for lin in model.lins:
            lin.weight.mul_(0.1)
            lin.bias.zero_()
    before = {name: p.clone() for name, p in model.named_parameters()}
    report = virgo.check(model, data)
    assert report.level == "bad"
    assert report.verdict.count("Try ") == 1
    assert "narrows the" in report.advice
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
    virgo.init_(model, data)
    assert f"then {virgo.check(model, data, advice=False).level}" in report.advice


def test_a_loader_leaves_the_random_state_alone(data: Data) -> None:
    """Its first batch draws a seed for workers, and a shuffled one an order."""
    graphs = [Data(x=data.x, edge_index=data.edge_index, y=torch.tensor([1])) for _ in range(4)]
    model, state = Pooled(data.num_features, 3), torch.get_rng_state()
    virgo.check(model, DataLoader(graphs, batch_size=2, shuffle=True), advice=False)
    assert torch.equal(torch.get_rng_state(), state)

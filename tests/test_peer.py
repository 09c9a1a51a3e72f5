"""``virgo.warm_start``: a peer MLP trained without the graph."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from kit.networks import hetero
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN, GIN, GATConv, GraphSAGE
from torch_geometric.nn.conv.gcn_conv import gcn_norm

import virgo
from virgo.network import reading
from virgo.peer import without_edges

DATA = virgo.data.citation_like(num_nodes=120, seed=0)


def trained(weights: list[tuple[Tensor, ...]], lr: float, epochs: int) -> list[tuple[Tensor, ...]]:
    """An MLP by hand: each layer a sum of linear maps and a bias, ReLU between, Adam."""
    layers = [tuple(t.detach().clone().requires_grad_() for t in layer) for layer in weights]
    optimizer = torch.optim.Adam([t for layer in layers for t in layer], lr=lr)
    mask = DATA.train_mask
    for _ in range(epochs):
        h = DATA.x
        for index, (*maps, bias) in enumerate(layers):
            h = sum((h @ w.T for w in maps), bias)
            h = torch.relu(h) if index < len(layers) - 1 else h
        loss = torch.nn.functional.cross_entropy(h[mask], DATA.y[mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return layers


@pytest.mark.parametrize("kind", [GCN, GraphSAGE])
def test_the_weights_are_those_of_an_mlp_trained_by_hand(kind: Any) -> None:
    model = kind(DATA.num_features, 16, 3, 7)
    virgo.init_(model, DATA, "kaiming-forward")

    def weights() -> list[tuple[Tensor, ...]]:
        if kind is GCN:
            return [(conv.lin.weight, conv.bias) for conv in model.convs]
        return [(conv.lin_l.weight, conv.lin_r.weight, conv.lin_l.bias) for conv in model.convs]

    wanted = trained(weights(), lr=0.01, epochs=15)
    virgo.warm_start(model, DATA, epochs=15, lr=0.01)
    for mine, others in zip(weights(), wanted, strict=True):
        for a, b in zip(mine, others, strict=True):
            assert torch.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("kind", [GCN, GraphSAGE, GIN, GAT])
def test_the_peer_fits_and_everything_else_is_as_it_was(kind: Any) -> None:
    model = kind(DATA.num_features, 16, 3, 7, dropout=0.2, norm="batch_norm").eval()
    virgo.init_(model, DATA, "lsuv")
    buffers = {k: v.clone() for k, v in model.named_buffers()}
    state = torch.get_rng_state()
    other = copy.deepcopy(model)
    result = virgo.warm_start(model, DATA, epochs=20, lr=0.01)
    assert result.after < result.before
    assert str(result).startswith("peer MLP trained for 20 epochs: cross-entropy")
    assert torch.equal(state, torch.get_rng_state())
    assert not model.training
    assert all(torch.equal(buffers[k], v) for k, v in model.named_buffers())
    assert all(p.grad is None for p in model.parameters())
    virgo.warm_start(other, DATA, epochs=20, lr=0.01)
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_edges_of_every_form_are_taken_away() -> None:
    """A sparse adjacency and edge weights: the same peer as with ``edge_index``."""
    model = GCN(DATA.num_features, 8, 2, 7)
    edges, weights = gcn_norm(DATA.edge_index, None, 120)
    adjacency = torch.sparse_coo_tensor(
        edges.flip(0), weights, (120, 120), check_invariants=True
    ).coalesce()
    forms = [
        DATA,
        Data(x=DATA.x, y=DATA.y, train_mask=DATA.train_mask, adj_t=adjacency.to_sparse_csr()),
        Data(
            x=DATA.x,
            y=DATA.y,
            train_mask=DATA.train_mask,
            edge_index=DATA.edge_index,
            edge_weight=torch.rand(DATA.num_edges),
        ),
    ]
    found = []
    for data in forms:
        peer = copy.deepcopy(model)
        virgo.warm_start(peer, data, epochs=5, lr=0.01)
        found.append(peer.convs[0].lin.weight.detach())
    assert torch.allclose(found[0], found[1], atol=1e-5)
    assert torch.allclose(found[0], found[2], atol=1e-5)


def test_edge_features_and_a_compiled_wrapper_are_fine() -> None:
    class Attentive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GATConv(DATA.num_features, 7, edge_dim=3)

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            return self.conv(x, edge_index, edge_attr)

    data = DATA.clone()
    data.edge_attr = torch.rand(data.num_edges, 3)
    result = virgo.warm_start(torch.compile(Attentive(), backend="eager"), data, epochs=5, lr=0.01)
    assert result.after < result.before


def test_without_labels_it_is_refused_and_nothing_changes() -> None:
    model = GCN(DATA.num_features, 8, 2, 7)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    graph = virgo.Graph(DATA.edge_index, 120)
    for data, said in (
        (Data(x=DATA.x, edge_index=DATA.edge_index), "expected labels in data.y"),
        (Data(x=DATA.x, edge_index=DATA.edge_index, y=torch.arange(120)), "expected labels"),
        (graph, "expected data with features and labels"),
        (hetero(), "expected one kind of node"),
    ):
        with pytest.raises(virgo.GraphError, match=said):
            virgo.warm_start(model, data)
    for epochs in (0, 10**30):
        with pytest.raises(virgo.OptionError, match="epochs: expected a whole number from 1 to"):
            virgo.warm_start(model, DATA, epochs=epochs)
    with pytest.raises(virgo.OptionError, match="lr: expected a positive number"):
        virgo.warm_start(model, DATA, lr=-1.0)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_a_loss_that_fails_half_way_leaves_the_weights() -> None:
    model = GCN(DATA.num_features, 8, 2, 7)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    calls = []

    def loss(output: Tensor, data: Data) -> Tensor:
        calls.append(1)
        return output.sum() * (float("nan") if len(calls) == 4 else 1.0)

    with pytest.raises(virgo.GraphError, match="expected a finite loss, got nan in epoch 3"):
        virgo.warm_start(model, DATA, loss=loss)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_edge_weights_are_one_and_pairs_to_predict_stay() -> None:
    nodes = torch.arange(5)
    data = Data(
        x=torch.ones(5, 2),
        edge_index=torch.stack([nodes, (nodes + 1) % 5]),  # as many edges as nodes
        edge_weight=torch.full((5,), 3.0),
        edge_label=torch.tensor([1.0, 0, 1, 0, 1]),
        edge_label_index=torch.stack([nodes, (nodes + 2) % 5]),
    )
    alone = without_edges(reading.read(data)).data
    assert alone.edge_index.tolist() == [[0, 1, 2, 3, 4]] * 2
    assert alone.edge_weight.tolist() == [1.0] * 5
    assert torch.equal(alone.edge_label, data.edge_label)
    assert torch.equal(alone.edge_label_index, data.edge_label_index)

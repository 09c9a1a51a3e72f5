"""The paper's networks: PyG's own layers, the same numbers by any way of computing them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GCN as PygGCN
from torch_geometric.nn import GraphSAGE as PygSAGE
from torch_geometric.nn import Linear

import virgo
from virgo.experiments.models import MODELS, NGNN_TYPES, build
from virgo.experiments.models.convolutions import operator_entries
from virgo.experiments.tasks.encoding import Encoding, OperatorCache
from virgo.experiments.tasks.fused import csr
from virgo.experiments.tasks.sampled import layerwise

CONFIG = {"hidden_channels": 8, "num_layers": 3, "ngnn_type": "all", "num_ngnn_layers": 2}


def rough_graph(seed: int = 0, sparse: bool = True) -> Data:
    """Directed, with a loop, a repeated edge, a node without edges and one without in-edges."""
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(0, 28, (2, 90), generator=generator)
    edges = edges[:, edges[1] != 27]  # 27 has no in-edges, 28 and 29 no edges at all
    edges = torch.cat([edges, torch.tensor([[3, 5, 5, 27], [3, 6, 6, 1]])], dim=1)
    x = torch.rand(30, 40, generator=generator)
    if sparse:
        x = x * (torch.rand(30, 40, generator=generator) < 0.06)
    return Data(x=x, edge_index=edges, num_nodes=30)


def network(name: str, layers: int = 3, **more: Any) -> Any:
    torch.manual_seed(1)
    return build(name, 40, 5, CONFIG | {"num_layers": layers} | more)


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("layers", [1, 2, 3, 7])
@pytest.mark.parametrize("name", MODELS)
def test_a_pass_to_some_nodes_is_the_network_there(name: str, layers: int, sparse: bool) -> None:
    data, model = rough_graph(sparse=sparse), network(name, layers)
    nodes = torch.tensor([11, 2, 29, 27, 3])
    whole = model(data.x, data.edge_index)[nodes]
    graph = OperatorCache(data, model.operators)
    assert graph.is_sparse == sparse
    part = Encoding.at_nodes(graph, layers, nodes)(model)
    torch.testing.assert_close(part, whole, rtol=1e-4, atol=1e-5)
    weight = torch.linspace(-1, 1, whole.numel()).view_as(whole)
    for output in (whole, part):
        model.zero_grad()
        (output * weight).sum().backward()
        found = [p.grad.clone() for p in model.parameters()]
        if output is whole:
            expected = found
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert any(gradient.abs().max() > 1e-3 for gradient in expected)


def test_a_pass_holds_only_what_its_nodes_see() -> None:
    line = torch.stack([torch.arange(99), torch.arange(1, 100)])  # 0 -> 1 -> ... -> 99
    data = Data(x=torch.rand(100, 4), edge_index=line, num_nodes=100)
    model = network("gcn", 3)
    found = Encoding.at_nodes(OperatorCache(data, model.operators), 3, torch.tensor([50]))
    assert [tuple(hop["gcn"].matrix.shape) for hop in found.hops] == [(2, 3), (1, 2)]
    assert found.first["gcn"][0].matrix.shape == (3, 4)


def test_blocks_of_a_closed_set_are_shared() -> None:
    data, model = rough_graph(), network("gcn", 64)
    found = Encoding.at_nodes(OperatorCache(data, model.operators), 64, torch.arange(30))
    assert len({id(hop["gcn"]) for hop in found.hops}) == 1


@pytest.mark.parametrize("rows", [1, 7, 1000])
@pytest.mark.parametrize("name", MODELS)
def test_layer_by_layer_is_the_whole_network(name: str, rows: int) -> None:
    data, model = rough_graph(sparse=False), network(name).eval()
    operators = {
        key: csr(*operator_entries(key, data.edge_index, 30), (30, 30)) for key in model.operators
    }
    with torch.no_grad():
        found = layerwise(model, operators, data.x, rows)
        torch.testing.assert_close(found, model(data.x, data.edge_index), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "theirs"), [("gcn", PygGCN), ("sage", PygSAGE)])
def test_weights_load_into_pygs_own_model(name: str, theirs: Any) -> None:
    data, ours = rough_graph(), network(name, 3)
    other = theirs(40, 8, 3, 5)
    other.load_state_dict(ours.state_dict())
    torch.testing.assert_close(
        other(data.x, data.edge_index), ours(data.x, data.edge_index), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("ngnn_type", "layers"),
    [("input", {0}), ("hidden", {1, 2}), ("output", {3}), ("all", {0, 1, 2, 3})],
)
def test_ngnn_inserts_where_it_says(ngnn_type: str, layers: set[int]) -> None:
    model = network("ngnn-gcn", 4, ngnn_type=ngnn_type)
    assert {i for i, inserted in enumerate(model.inserted) if len(inserted)} == layers
    assert all(len(inserted) in (0, 2) for inserted in model.inserted)
    data = rough_graph()

    def by_hand(x: Tensor) -> Tensor:
        for i, conv in enumerate(model.convs):
            x = conv(x, data.edge_index)
            if i in layers:
                first, second = model.inserted[i]
                x = second(torch.relu(first(torch.relu(x))))
            if i < 3:
                x = torch.relu(x)
        return x

    torch.testing.assert_close(model(data.x, data.edge_index), by_hand(data.x))


def test_dropout_is_between_layers_only_when_training() -> None:
    data, model = rough_graph(), network("gcn", 2, dropout=0.5)
    model.eval()
    assert torch.equal(model(data.x, data.edge_index), model(data.x, data.edge_index))
    model.train()
    torch.manual_seed(0)
    assert not torch.equal(model(data.x, data.edge_index), model(data.x, data.edge_index))
    single = network("gcn", 1, dropout=0.5).train()
    assert torch.equal(single(data.x, data.edge_index), single(data.x, data.edge_index))


@pytest.mark.parametrize("init", ["xavier", "virgo-forward", "virgo-backward"])
@pytest.mark.parametrize("name", MODELS)
def test_init_plans_every_weight_of_every_network(name: str, init: str) -> None:
    data = virgo.data.citation_like(num_nodes=300, num_features=60, seed=0)
    model = build(name, 60, 7, CONFIG | {"hidden_channels": 32})
    plan = virgo.init_(model, data, init, seed=0)
    weights = {n: p for n, p in model.named_parameters() if p.dim() == 2}
    # the paper applies its methods to the message-passing layers and leaves inserted ones alone
    assert {key for key in weights if not key.startswith("inserted")} == set(plan.variances)
    assert {key for key, _ in plan.left_alone} >= set(weights) - set(plan.variances)
    for key in plan.variances:
        weight = weights[key]
        # the variance of n uniform draws is off by sqrt(0.8 / n) of itself; five of those
        bound = 5 * (0.8 / weight.numel()) ** 0.5
        assert weight.var(unbiased=False).item() / plan.variances[key] == pytest.approx(
            1, abs=bound
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "num_layers: expected a whole number of at least 1, got 0"),
        ({"hidden_channels": 1.5}, "hidden_channels: expected a whole number"),
        ({"dropout": 1.0}, "dropout: expected at least 0 and below 1, got 1.0"),
        ({"ngnn_type": "middle"}, f"ngnn_type: expected one of {', '.join(NGNN_TYPES)}"),
    ],
)
def test_bad_sizes_are_errors(change: dict[str, Any], message: str) -> None:
    with pytest.raises(virgo.OptionError, match=message):
        build("ngnn-gcn", 4, 2, CONFIG | change)


def test_an_unknown_network_is_an_error() -> None:
    with pytest.raises(virgo.OptionError, match="model: expected one of gcn, sage, gin"):
        build("gat", 4, 2, CONFIG)


def test_networks_have_no_lazy_parts() -> None:
    for name in MODELS:
        assert not any(
            isinstance(m, Linear) and m.in_channels == -1 for m in network(name).modules()
        )

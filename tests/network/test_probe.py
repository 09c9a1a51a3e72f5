"""The one hook recorder: it sees every call, changes nothing, and leaves no hook behind."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCN

import virgo
from virgo.network.inputs import Inputs
from virgo.network.probe import LayerHooks, observe, with_gradients


@pytest.fixture
def data() -> Data:
    return virgo.data.citation_like(num_nodes=40, num_features=40, seed=0)


def network() -> GCN:
    torch.manual_seed(0)
    return GCN(40, 8, num_layers=3, out_channels=7)


def hooks_on(model: nn.Module, *tensors: Tensor) -> int:
    on_layers = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    return on_layers + sum(len(t._backward_hooks or ()) for t in tensors)


def test_hooks_leave_with_the_block_also_when_it_raises(data: Data) -> None:
    model = network()
    inputs = with_gradients(Inputs(copy.copy(data)))

    def fails(output: Tensor, data: Data) -> Tensor:
        assert hooks_on(model, data.x) == 2 * 3 + 1  # a pair per layer, one on the features
        raise ValueError("no loss today")

    with pytest.raises(virgo.LayerError, match="no loss today"):
        observe(model, inputs, loss=fails)
    assert hooks_on(model, inputs.data.x) == 0
    seen = observe(model, inputs, loss=lambda output, data: output.square().sum())
    assert hooks_on(model, inputs.data.x) == 0
    assert all(value > 0 for value in [*seen.received, *seen.grad_received])


def test_gradients_arrive_by_position_and_are_not_changed() -> None:
    model = network()
    tensors = [torch.ones(2, 3, requires_grad=True), torch.ones(2, 3, requires_grad=True)]
    arrived: list[tuple[int, float]] = []
    with LayerHooks(model, lambda *call: None, lambda *call: None) as hooks:
        hooks.on_gradients(tensors, lambda i, g: arrived.append((i, float(g.sum()))))
        (tensors[0] + 3 * tensors[1]).sum().backward()
    assert sorted(arrived) == [(0, 6.0), (1, 18.0)]
    assert float(tensors[1].grad.sum()) == 18.0
    assert hooks_on(model, *tensors) == 0


def test_enter_may_replace_what_a_layer_receives(data: Data) -> None:
    model = network().eval()
    plain = model(data.x, data.edge_index)

    def zeroed(layer: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        return (torch.zeros_like(args[0]), *args[1:]), kwargs

    with LayerHooks(model, zeroed, lambda *call: None):
        assert not torch.equal(model(data.x, data.edge_index), plain)
    assert torch.equal(model(data.x, data.edge_index), plain)


def test_a_copy_of_a_watched_model_has_idle_hooks(data: Data) -> None:
    model, calls = network(), []
    with LayerHooks(model, lambda *call: calls.append(call), lambda *call: None):
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            twin(data.x, data.edge_index)
        assert calls == []
        model(data.x, data.edge_index)
        assert len(calls) == 3

"""A ``forward=`` that does more than call the model is said to do so."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCN, GCNConv

import virgo
from virgo.errors import VirgoWarning


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)


def _data() -> Data:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(30, (2, 90), generator=generator)
    return Data(x=torch.rand(30, 6, generator=generator), edge_index=edges)


def _weights(model: nn.Module) -> None:
    with torch.no_grad():
        next(model.parameters()).add_(1)


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "weights": _weights,
    "hooks": lambda model: model.register_forward_hook(lambda *_: None),
    "torch's number of threads": lambda model: torch.set_num_threads(torch.get_num_threads() + 1),
    "torch's default dtype": lambda model: torch.set_default_dtype(torch.bfloat16),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("call", [virgo.plan, virgo.check])
def test_what_a_forward_changes_is_said(call: Callable[..., Any], what: str) -> None:
    def forward(model: nn.Module, data: Data) -> Any:
        CHANGES[what](model)
        return model(data.x, data.edge_index)

    options = {"method": "xavier"} if call is virgo.plan else {"advice": False, "backward": False}
    with pytest.warns(VirgoWarning, match=f"forward: expected .* changes {what}"):
        call(GCN(6, 4, 2, 3), _data(), forward=forward, **options)


@pytest.mark.parametrize("method", ["virgo-forward", "virgo-forward+measured", "lsuv", "auto"])
def test_a_forward_that_only_calls_the_model_is_fine(method: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        virgo.init_(
            GCN(6, 4, 2, 3), _data(), method, forward=lambda model, d: model(d.x, d.edge_index)
        )


class Expanded(nn.Module):
    """A weight whose rows are one row in memory, which PyTorch does not write to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(6, 8), GCNConv(8, 3)
        self.second.lin.weight = nn.Parameter(torch.randn(1, 8).expand(3, 8))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


class Wordy(Expanded):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        raise RuntimeError("a word\n" * 5000)


@pytest.mark.parametrize("method", ["auto", "xavier", "virgo-backward"])
def test_an_expanded_weight_is_refused_before_anything_is_changed(method: str) -> None:
    data = _data()
    model = Expanded()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(virgo.VirgoError, match=r"second\.lin\.weight: expected .* own, got an exp"):
        virgo.init_(model, data, method)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    model.second.lin.weight = nn.Parameter(model.second.lin.weight.detach().clone())  # as it says
    virgo.init_(model, data, method)


@pytest.mark.parametrize("call", [virgo.init_, virgo.check, virgo.measure])
def test_a_traced_module_is_refused_and_keeps_its_mode(call: Callable[..., Any]) -> None:
    data = _data()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.jit.trace(Expanded(), (data.x, data.edge_index), check_trace=False)
    for module in (model, nn.ModuleList([model])):
        with pytest.raises(virgo.LayerError, match=r"TorchScript compiled\. Initialise .* before"):
            call(module, data)
    assert all(module.training for module in model.modules())


def test_a_long_message_of_a_model_is_cut() -> None:
    data = _data()
    with pytest.raises(virgo.VirgoError) as caught:
        virgo.measure(Wordy(), data)
    assert len(str(caught.value)) < 900


class InPlace(nn.Module):
    """Scales its own input where it lies."""

    def __init__(self) -> None:
        super().__init__()
        self.gcn = GCN(6, 4, 2, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.gcn(x.mul_(0.5), edge_index)


def test_a_model_that_writes_into_its_input_is_said_to() -> None:
    with pytest.warns(VirgoWarning, match=r"InPlace: expected .* writes into data\.x, .* x\.clone"):
        virgo.check(InPlace(), _data(), advice=False, backward=False)

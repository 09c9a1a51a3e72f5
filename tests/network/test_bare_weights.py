"""Weights that no layer holds are seen, scaled and judged like layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GCN

import virgo
from virgo.network import reading
from virgo.network.losses import InferredLoss
from virgo.network.profile import Profile, as_in_training, profile, units_of

pytestmark = pytest.mark.usefixtures("one_thread")
LAYERS, WIDTH, CLASSES = 8, 24, 5


@pytest.fixture
def data() -> Data:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 80, (2, 320), generator=generator)
    return Data(
        x=torch.rand(80, 16, generator=generator),
        edge_index=torch.cat([edges, edges.flip(0)], 1),
        y=torch.randint(0, CLASSES, (80,), generator=generator),
    )


def _adjacency(edge_index: Tensor) -> Tensor:
    dense = torch.zeros(80, 80)
    dense[edge_index[1], edge_index[0]] = 1.0
    return dense


def _matrices(scale: float = 0.02) -> list[nn.Parameter]:
    widths = [16, *[WIDTH] * (LAYERS - 1), CLASSES]
    generator = torch.Generator().manual_seed(1)
    return [
        nn.Parameter(scale * torch.randn(widths[i : i + 2], generator=generator))
        for i in range(LAYERS)
    ]


class _Listed(nn.Module):
    """A sum over neighbours and a matrix of a ``ParameterList``, ``LAYERS`` times."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(_matrices())

    def matrices(self) -> list[Tensor]:
        return list(self.weights)

    def multiply(self, h: Tensor, weight: Tensor) -> Tensor:
        return h @ weight

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        adjacency, weights = _adjacency(edge_index), self.matrices()
        for weight in weights[:-1]:
            x = (adjacency @ self.multiply(x, weight)).relu()
        return adjacency @ self.multiply(x, weights[-1])


class _Named(_Listed):
    """The same as parameters of the model itself, multiplied with by ``einsum``."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        for i, weight in enumerate(_matrices()):
            self.register_parameter(f"w{i}", weight)

    def matrices(self) -> list[Tensor]:
        return [self.get_parameter(f"w{i}") for i in range(LAYERS)]

    def multiply(self, h: Tensor, weight: Tensor) -> Tensor:
        return torch.einsum("nf,fd->nd", h, weight)


class _Transposed(_Listed):
    """The same as ``[out, in]`` in a ``ParameterDict``, multiplied with by ``linear``."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        pairs = {str(i): nn.Parameter(w.detach().t().clone()) for i, w in enumerate(_matrices())}
        self.weights = nn.ParameterDict(pairs)

    def matrices(self) -> list[Tensor]:
        return list(self.weights.values())

    def multiply(self, h: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(h, weight)


class _Linears(_Listed):
    """The same with a module for each matrix: what the others are compared with."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.lins = nn.ModuleList()
        for weight in _matrices():
            lin = nn.Linear(*weight.shape, bias=False)
            lin.weight = nn.Parameter(weight.detach().t().clone())
            self.lins.append(lin)

    def matrices(self) -> list[Any]:
        return list(self.lins)

    def multiply(self, h: Tensor, weight: Any) -> Tensor:
        product: Tensor = weight(h)
        return product


KINDS: list[type[_Listed]] = [_Listed, _Named, _Transposed]


def _profile(model: nn.Module, data: Data) -> Profile:
    with as_in_training(model):
        inputs = reading.read(data).prepared_for(model)
        return profile(model, inputs, None, InferredLoss(0))


@pytest.mark.parametrize("kind", KINDS)
def test_each_product_is_seen_as_a_layer_would_be(kind: type[_Listed], data: Data) -> None:
    seen, expected = _profile(kind(), data), _profile(_Linears(), data)
    assert len(seen.calls) == LAYERS
    assert [call.path for call in seen.calls] == list(units_of(kind()))
    assert seen.forward == pytest.approx(expected.forward, rel=1e-4)
    assert seen.backward == pytest.approx(expected.backward, rel=1e-4)
    assert [list(call.parents) for call in seen.calls] == [
        [i] if i >= 0 else [] for i in range(-1, 7)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_init_makes_signal_and_gradient_survive(kind: type[_Listed], data: Data) -> None:
    model = kind()
    before = _profile(model, data)
    virgo.init_(model, data)
    after = _profile(model, data)
    assert before.wider > 1000
    assert after.wider < 20


@pytest.mark.parametrize("kind", KINDS)
def test_the_check_sees_where_the_signal_vanishes(kind: type[_Listed], data: Data) -> None:
    model = kind()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = virgo.check(model, data)
    assert len(report.measurement.layers) == 1 + LAYERS
    assert report.level == "bad"
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
def test_lsuv_settles_every_matrix(kind: type[_Listed], data: Data) -> None:
    plan = virgo.plan(kind(), data, "lsuv")
    assert plan.measured is not None
    assert list(plan.measured["variances"]) == list(units_of(kind()))
    assert list(plan.measured["variances"].values()) == pytest.approx([1.0] * LAYERS, abs=0.1)


def test_spog_compares_the_matrices(data: Data) -> None:
    plan = virgo.plan(_Listed(), data, "spog")
    objective = (plan.measured or {})["objective"]
    assert objective["best"] <= objective["start"]
    assert len(plan.rows) == LAYERS


def test_fans_of_a_list_are_those_of_a_product_from_the_right(data: Data) -> None:
    plan = virgo.plan(_Listed(), data, "orthogonal")
    assert (plan.rows[0].fan_in, plan.rows[0].fan_out) == (16, WIDTH)


class _Stacked(nn.Module):
    """One tensor holds the matrices of all layers; a vector token hides nodes."""

    def __init__(self, pick: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.all = nn.Parameter(torch.randn(4, WIDTH, WIDTH) / WIDTH**0.5)
        self.token = nn.Parameter(torch.zeros(1, 16))
        self.pick = pick

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        hidden = (torch.arange(x.size(0)) % 3 == 0)[:, None]
        x = self.first(torch.where(hidden, self.token, x)).relu()
        for weight in self.pick(self.all):
            x = (_adjacency(edge_index) @ (x @ weight)).relu()
        return self.last(x)


@pytest.mark.parametrize(
    "pick",
    [list, iter, torch.unbind, lambda w: [w[i] for i in range(4)], lambda w: (w / w.norm()).mT],
    ids=["list", "iter", "unbind", "rows", "normalised"],
)
def test_parts_of_a_weight_are_that_weight(pick: Callable[[Tensor], Any], data: Data) -> None:
    seen = _profile(_Stacked(pick), data)
    assert [call.path for call in seen.calls] == ["first", *["all"] * 4, "last"]


class _Table(nn.Module):
    """Features of its own for every node, as for ogbl-ddi: data, though they are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(80, WIDTH))
        self.gcn = GCN(WIDTH, WIDTH, 3, CLASSES)

    def forward(self, edge_index: Tensor) -> Tensor:
        return self.gcn(self.table, edge_index)


def test_a_table_of_features_is_no_layer(data: Data) -> None:
    assert [call.path for call in _profile(_Table(), data).calls] == [
        f"gcn.convs.{i}" for i in range(3)
    ]

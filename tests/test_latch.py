"""Latches: against the clipped dynamics written out, on communities, and refusals."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN, GIN, GraphConv, GraphSAGE
from torch_geometric.nn.conv.gcn_conv import gcn_norm

import virgo
from virgo.class_codes import balanced_codes
from virgo.draws import generator_for
from virgo.errors import VirgoWarning
from virgo.latched_layers import LAST_GAIN
from virgo.ridge import ridge

pytestmark = pytest.mark.usefixtures("one_thread")
LINEAR, HELD, PAIRS, GAIN = 4, 11, 16, 3.0  # of 32 units with latch_'s own options


def communities(nodes: int = 240, groups: int = 4, seed: int = 0) -> Data:
    """A connected graph of groups; nine of ten edges stay inside one, features are noisy."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(nodes) % groups
    centres = torch.randn(groups, 40, generator=rng)
    x = centres[y] + 2 * torch.randn(nodes, 40, generator=rng)
    ends = torch.randint(0, nodes, (2, 20 * nodes), generator=rng)
    keep = (y[ends[0]] == y[ends[1]]) | (torch.rand(ends.size(1), generator=rng) < 0.03)
    edges = torch.cat([ends[:, keep], ends[:, keep].flip(0)], 1)
    mask = torch.rand(nodes, generator=rng) < 0.2
    return Data(x=x, y=y, edge_index=edges, train_mask=mask, test_mask=~mask)


def dense_operator(data: Data) -> Tensor:
    index, weight = gcn_norm(data.edge_index, num_nodes=data.num_nodes, dtype=torch.float64)
    dense = torch.zeros(data.num_nodes, data.num_nodes, dtype=torch.float64)
    return dense.index_put_((index[1], index[0]), weight, accumulate=True)


def accuracy(model: nn.Module, data: Data) -> float:
    model.eval()
    with torch.no_grad():
        right = model(data.x, data.edge_index).argmax(1) == data.y
    return float(right[data.test_mask].double().mean())


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_held_channels_follow_the_clipped_dynamics() -> None:
    """Units u and v of a latch: u - v - 1 is clip(g P x) of the layer before, layer after layer."""
    data = communities()
    model = GCN(40, 32, 9, 4).double()
    data.x = data.x.double()
    made = virgo.latch_(model, data)
    assert (made.first, made.layers, made.held, made.linear) == ("convs.1", 7, HELD, LINEAR)
    propagate = dense_operator(data)
    hidden, held = data.x, []
    with torch.no_grad():
        for conv in model.convs[:-1]:
            hidden = conv(hidden, data.edge_index).relu()
            pairs = hidden[:, :PAIRS] - hidden[:, PAIRS:]
            held.append(pairs[:, LINEAR : LINEAR + HELD] - 1)
    expected = held[1]
    assert expected.abs().max() <= 1 + 1e-9
    for layer in range(2, 8):
        gain = LAST_GAIN if layer == 7 else GAIN
        expected = (gain * propagate @ expected).clamp(-1, 1)
        torch.testing.assert_close(held[layer], expected, atol=1e-9, rtol=0)


def test_each_latch_begins_in_the_middle_of_its_channel() -> None:
    data = communities()
    model = GCN(40, 32, 6, 4)
    virgo.latch_(model, data)
    with torch.no_grad():
        hidden = model.convs[0](data.x, data.edge_index).relu()
        hidden = model.convs[1](hidden, data.edge_index).relu()
    held = (hidden[:, :PAIRS] - hidden[:, PAIRS:])[:, LINEAR : LINEAR + HELD] - 1
    above = (held > 0).double().mean(0)
    assert torch.allclose(above, torch.full_like(above, 0.5), atol=1 / data.num_nodes + 1e-9)


def test_communities_outlive_64_layers() -> None:
    """What a classic network of the same depth has lost, latches hold."""
    data = communities()
    kept, classic = GCN(40, 64, 64, 4), GCN(40, 64, 64, 4)
    virgo.latch_(kept, data)
    virgo.fit_last_(kept, data)
    virgo.init_(classic, data, "xavier")
    virgo.fit_last_(classic, data)
    assert accuracy(kept, data) > 0.9
    assert accuracy(kept, data) > accuracy(classic, data) + 0.2


class Convs(nn.Module):
    """A chain of any layers."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = layer(x, edge_index).relu()
        out: Tensor = self.layers[-1](x, edge_index)
        return out


def test_classes_are_decided_once_and_held() -> None:
    """The first latches are the signs of codes of ridge regression's scores; then they vote."""
    data = communities(groups=5)
    data.x = data.x.double()
    model = GCN(40, 32, 9, 5).double()
    made = virgo.latch_(model, data, hold="classes")
    assert (made.first, made.layers, made.held, made.linear) == ("convs.1", 7, 15, 0)
    assert made.classes == 5
    propagate = dense_operator(data)
    hidden, held = data.x, []
    with torch.no_grad():
        for conv in model.convs[:-1]:
            hidden = conv(hidden, data.edge_index).relu()
            held.append((hidden[:, :PAIRS] - hidden[:, PAIRS:])[:, :15])
        first = model.convs[0](data.x, data.edge_index)
    scores, bias, _ = ridge(
        (propagate @ first[:, :15])[data.train_mask],
        nn.functional.one_hot(data.y[data.train_mask]).double(),
    )
    scores = propagate @ first[:, :15] @ scores + bias
    codes = balanced_codes(5, 15, generator_for(0, "codes"))
    signal = scores @ codes.T
    expected = (6 * signal / signal.abs().mean(0)).clamp(-1, 1)
    torch.testing.assert_close(held[1] - 1, expected, atol=1e-6, rtol=0)
    for layer in range(2, 8):
        expected = ((LAST_GAIN if layer == 7 else 6) * propagate @ expected).clamp(-1, 1)
        torch.testing.assert_close(held[layer] - 1, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("groups", [2, 3, 4, 9])
@pytest.mark.parametrize("features", [2, 40])
def test_held_classes_outlive_64_layers(groups: int, features: int) -> None:
    """Few classes have few codes, few features few directions: the rest of the width is no harm."""
    data = communities(nodes=400, groups=groups)
    if features < 40:  # two columns that tell the classes, as points on a circle
        angle = 2 * torch.pi * data.y / groups
        data.x = torch.stack([angle.cos(), angle.sin()], 1) + 0.1 * data.x[:, :2]
    held = GCN(features, 64, 64, groups)
    virgo.latch_(held, data, hold="classes")
    virgo.fit_last_(held, data)
    assert accuracy(held, data) > 0.9
    shuffled = copy.copy(data)  # the negative control: labels that mean nothing teach nothing
    shuffled.y = data.y[torch.randperm(400, generator=torch.Generator().manual_seed(0))]
    virgo.latch_(held, shuffled, hold="classes")
    virgo.fit_last_(held, shuffled)
    assert accuracy(held, data) < 0.75


def test_neighbours_of_other_classes_are_warned_of() -> None:
    """Edges between classes only: the vote talks nodes out of theirs. Inside them: it does not."""
    data = communities(groups=2)
    made = virgo.latch_(model := GCN(40, 32, 8, 2), data, hold="classes")
    virgo.fit_last_(model, data)
    assert made.kept > 0.9
    assert not made.is_outvoted
    assert str(made).endswith(f"{made.kept:.0%} of the signs of training rows are kept")
    alike = data.y[data.edge_index[0]] == data.y[data.edge_index[1]]
    partner = data.edge_index[1] ^ 1  # the next node, of the other class
    data.edge_index = torch.stack(
        [data.edge_index[0], torch.where(alike, partner, data.edge_index[1])]
    )
    with pytest.warns(VirgoWarning, match="training rows outlive the vote of neighbours"):
        made = virgo.latch_(GCN(40, 32, 8, 2), data, hold="classes")
    assert made.is_outvoted


def test_classes_are_read_in_training_rows_only() -> None:
    data = communities()
    model = GCN(40, 32, 6, 4)
    virgo.latch_(model, data, hold="classes")
    first = weights(model)
    other = copy.copy(data)
    other.y = torch.where(data.train_mask, data.y, (data.y + 1) % 4)
    virgo.latch_(model, other, hold="classes")
    assert all(map(torch.equal, first, weights(model)))
    other.y = (data.y * 3 + 1) % 4
    virgo.latch_(model, other, hold="classes")
    assert not all(map(torch.equal, first, weights(model)))


@pytest.mark.parametrize(
    ("change", "width", "message"),
    [
        ({"y": None}, 32, r"data\.y: expected a class"),
        ({"y": torch.rand(240, 4)}, 32, "expected one class per row to hold, got numbers"),
        ({"y": torch.full((240,), 7)}, 32, r"data\.y: expected a class or 4 numbers"),
        ({"train_mask": torch.zeros(240, dtype=torch.bool)}, 32, "train_mask"),
        ({}, 4, "expected room for 2 latches, which 4 classes take, got 1"),
    ],
)
def test_classes_that_cannot_be_held(change: dict[str, object], width: int, message: str) -> None:
    data, model = communities(), GCN(40, width, 5, 4)
    for name, value in change.items():
        data[name] = value
    before = weights(model)
    with pytest.raises(virgo.VirgoError, match=message):
        virgo.latch_(model, data, hold="classes")
    assert all(map(torch.equal, before, weights(model)))


@pytest.mark.parametrize("classes", [2, 3, 4, 5, 7, 15, 47])
def test_codes_are_balanced_and_tell_all_classes_apart(classes: int) -> None:
    codes = balanced_codes(classes, 31, torch.Generator().manual_seed(1))
    assert codes.sum(1).eq(0).all()
    assert (codes == 0).sum(1).eq(classes % 2).all()
    assert (codes @ codes.T).fill_diagonal_(0).abs().max() < 2 * (classes // 2)  # no row twice
    assert len({tuple(column) for column in codes.T.tolist()}) == classes


def test_layers_of_several_terms_and_own_modules() -> None:
    data = communities()
    virgo.latch_(sage := GraphSAGE(40, 32, 8, 4), data)
    virgo.fit_last_(sage, data)
    assert accuracy(sage, data) > 0.9
    virgo.latch_(sage, data, hold="classes")
    virgo.fit_last_(sage, data)
    assert accuracy(sage, data) > 0.9
    model = Convs(
        GraphConv(40, 32, aggr="mean"),
        *(GraphConv(32, 32, aggr="mean") for _ in range(6)),
        GraphConv(32, 4, aggr="mean"),
    )
    made = virgo.latch_(model, data)
    assert (made.first, made.layers) == ("layers.1", 6)
    virgo.fit_last_(model, data)
    assert accuracy(model, data) > 0.8


class ByName(Convs):
    """The same chain, its layers called by keyword."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = layer(edge_index=edge_index, x=x).relu()
        out: Tensor = self.layers[-1](edge_index=edge_index, x=x)
        return out


@pytest.mark.parametrize("hold", ["directions", "classes"])
def test_layers_called_by_keyword(hold: str) -> None:
    """The same bits as by position."""
    data = communities()
    named, plain = (kind(*GCN(40, 32, 6, 4).convs) for kind in (ByName, Convs))
    for model in (named, plain):
        virgo.latch_(model, data, hold=hold)
    assert all(map(torch.equal, weights(named), weights(plain)))


@pytest.mark.parametrize("layers", [2, 3, 16])
def test_gin_tells_classes_in_its_last_mlp(layers: int) -> None:
    """As PyG builds it, the last MLP is as narrow inside as there are outputs."""
    data = communities(groups=5)
    model = GIN(40, 32, layers, 5)
    made = virgo.latch_(model, data, hold="classes")
    assert (made.first, made.layers) == ("convs.0", 2 * (layers - 1) - 1)
    assert accuracy(model, data) > 0.9  # codes are read before anything is fitted
    virgo.fit_last_(model, data)
    assert accuracy(model, data) > 0.9
    with pytest.raises(virgo.LayerError, match="hidden ones of one width"):
        virgo.latch_(model, data)


@pytest.mark.parametrize("aggr", ["mean", "add"])
@pytest.mark.parametrize("hold", ["directions", "classes"])
def test_neighbours_and_the_node_itself_vote_alike(aggr: str, hold: str) -> None:
    """A mean or a sum beside the node: a vote each; nothing grows, and no node outvotes all."""
    data = communities()
    layers = [GraphConv(40 if at == 0 else 32, 32, aggr=aggr) for at in range(31)]
    model = Convs(*layers, GraphConv(32, 4, aggr=aggr))
    virgo.latch_(model, data, hold=hold)
    degree = data.num_edges / data.num_nodes
    neighbours = model.layers[9].lin_rel.weight[LINEAR, LINEAR]
    itself = model.layers[9].lin_root.weight[LINEAR, LINEAR]
    votes = degree if aggr == "mean" else 1.0  # a sum has a vote per neighbour already
    torch.testing.assert_close(neighbours / itself, torch.tensor(votes), rtol=1e-5, atol=0)
    with torch.no_grad():
        hidden = data.x
        for layer in model.layers[:-1]:
            hidden = layer(hidden, data.edge_index).relu()
    linear = (hidden[:, :PAIRS] - hidden[:, PAIRS:])[:, :LINEAR]
    assert linear.abs().max() < 100 * data.x.abs().max()
    virgo.fit_last_(model, data)
    assert accuracy(model, data) > 0.9


def test_a_seed_decides_labels_and_global_state_do_not() -> None:
    data = communities()
    other = copy.copy(data)
    other.y = data.y.flip(0)
    model = GCN(40, 33, 6, 4)
    state = torch.get_rng_state()
    virgo.latch_(model, data, seed=3)
    first = weights(model)
    assert torch.equal(torch.get_rng_state(), state)
    virgo.latch_(model, other, seed=3)
    assert all(map(torch.equal, first, weights(model)))
    virgo.latch_(model, data, seed=4)
    assert not torch.equal(first[-1], weights(model)[-1])
    generator = torch.Generator().manual_seed(3)
    virgo.latch_(model, data, generator=generator)
    assert not generator.get_state().equal(torch.Generator().manual_seed(3).get_state())


@pytest.mark.parametrize("width", [8, 33, 128])
def test_odd_narrow_and_wide(width: int) -> None:
    """More units than the features have directions: the rest hears a little and is not read."""
    data = communities()
    model = GCN(40, width, 5, 4)
    made = virgo.latch_(model, data)
    assert made.held + made.linear <= min(width // 2 - 1, 2 * 40)
    assert all(torch.isfinite(weight).all() for weight in weights(model))


def test_a_lazy_model_gets_its_sizes() -> None:
    virgo.latch_(lazy := GCN(-1, 32, 5, 4), communities())
    assert lazy.convs[0].lin.weight.shape == (32, 40)


def frozen() -> nn.Module:
    model = GCN(40, 32, 5, 4)
    model.convs[2].lin.weight.requires_grad_(False)
    return model


class Residual(Convs):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.layers[0](x, edge_index).relu()
        for layer in self.layers[1:-1]:
            x = x + layer(x, edge_index).relu()
        out: Tensor = self.layers[-1](x, edge_index)
        return out


REFUSED = {
    "one layer": (lambda: GCN(40, 4, 1), {"hold": "classes"}, "at least 3 layers"),
    "two layers": (lambda: GCN(40, 32, 2, 4), {}, "at least 3 layers"),
    "another activation": (lambda: GCN(40, 32, 5, 4, act="tanh"), {}, "expected ReLU"),
    "no bias": (lambda: GCN(40, 32, 5, 4, bias=False), {}, "expected a bias"),
    "a norm": (lambda: GCN(40, 32, 5, 4, norm="batch"), {}, "expected no norms"),
    "a head": (lambda: GCN(40, 32, 5, 4, jk="cat"), {}, "got a head behind it"),
    "residuals": (
        lambda: Residual(*GCN(40, 32, 5, 4).convs), {}, r"expected (a chain|the next layer)",
    ),
    "heads": (lambda: GAT(40, 32, 5, 4, heads=4), {}, r"latch_: .*heads.*Use virgo\.init_"),
    "frozen": (frozen, {}, "one weight of its own"),
    "two widths": (lambda: GIN(40, 32, 5, 4), {}, "hidden ones of one width"),
    "too narrow": (lambda: GCN(40, 3, 5, 4), {}, "room for a latch"),
    "hold": (lambda: GCN(40, 32, 5, 4), {"hold": "labels"}, 'hold: expected "directions" or'),
    "gain": (lambda: GCN(40, 32, 5, 4), {"gain": 1.0}, "gain: expected a finite number above 1"),
    "linear": (lambda: GCN(40, 32, 5, 4), {"linear": 1.0}, "linear: expected a share"),
    "after": (lambda: GCN(40, 32, 5, 4), {"after": 0}, "after: expected a number of layers"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_and_nothing_changes(case: str) -> None:
    make, options, message = REFUSED[case]
    model = make()
    before = weights(model)
    with pytest.raises(virgo.VirgoError, match=message):
        virgo.latch_(model, communities(), **options)
    assert all(map(torch.equal, before, weights(model)))


@pytest.mark.parametrize(("x", "message"), [(None, "expected features of"), (1, "that differ")])
def test_features_that_tell_nothing_are_refused(x: int | None, message: str) -> None:
    data = communities()
    data.num_nodes = data.num_nodes
    data.x = None if x is None else torch.full_like(data.x, x)
    with pytest.raises(virgo.GraphError, match=message):
        virgo.latch_(GCN(40, 32, 5, 4), data)

"""``virgo.init_(model, data)``: any model, one line, never worse.

Ranges are measured here by hooks of the zoo (``benchmarks/zoo_measure.py``), which share no code
with the package.
"""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any

import pytest
import torch
import zoo_measure
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import APPNP, GAT, GCN, ARMAConv, BatchNorm, GCNConv, GINConv, SAGEConv
from torch_geometric.nn.dense import HeteroLinear

import virgo
from virgo import auto
from virgo.network.profile import Profile, UnitCall


@pytest.fixture(scope="module")
def data() -> Data:
    return virgo.data.citation_like(num_nodes=200, num_features=64, seed=0)


def ranges(model: nn.Module, data: Any) -> zoo_measure.Ranges:
    return zoo_measure.measure(model, data, None, 0)


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


class Residual(nn.Module):
    """``x + relu(conv(x))`` over and over."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(64, 32)
        self.convs = nn.ModuleList(GCNConv(32, 32) for _ in range(blocks))
        self.head = nn.Linear(32, 7)
        self.stream: list[Tensor] = []

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.encoder(x)
        self.stream = [x]
        for conv in self.convs:
            x = x + conv(x, edge_index).relu()
            self.stream.append(x)
        return self.head(x)


def test_a_deep_network_becomes_stable_and_the_plan_says_how(data: Data) -> None:
    torch.manual_seed(0)
    model = GCN(64, 32, num_layers=8, out_channels=7)
    before = ranges(model, data)
    plan = virgo.init_(model, data)
    after = ranges(model, data)
    assert before.wider > 1e3
    assert after.wider < 15
    text = str(plan)
    assert "auto chose:" in text
    assert "signal before" in text
    assert f"{len(plan.rows)} of {len(plan.rows)} weights set" in text


def test_what_the_plan_claims_is_what_other_hooks_measure(data: Data) -> None:
    torch.manual_seed(0)
    model = GAT(64, 16, num_layers=3, out_channels=7, heads=2)
    plan = virgo.init_(model, data)
    measured = ranges(model, data)
    assert plan.choice is not None
    claimed = plan.choice["after"]
    forward = [layer["signal"] for layer in claimed]
    backward = [layer["gradient"] for layer in claimed]
    # float32 passes over the same numbers in the same order
    assert max(forward) / min(forward) == pytest.approx(measured.forward, rel=1e-3)
    assert max(backward) / min(backward) == pytest.approx(measured.gradient, rel=1e-3)


def test_the_same_seed_gives_the_same_bits_and_json_too(data: Data) -> None:
    models = []
    for _ in range(3):
        torch.manual_seed(0)
        models.append(GCN(64, 32, num_layers=8, out_channels=7))
    plan = virgo.init_(models[0], data, seed=5)
    virgo.init_(models[1], data, seed=5)
    virgo.Plan.from_json(plan.to_json()).apply_(models[2])
    first, second, third = map(weights, models)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, third, strict=True))


def test_a_stable_model_is_left_as_it_was(data: Data) -> None:
    torch.manual_seed(0)
    model = GCN(64, 32, num_layers=3, out_channels=7)
    virgo.init_(model, data)
    settled = weights(model)
    plan = virgo.init_(model, data)
    assert plan.rows == ()
    assert "already stable: nothing to gain" in str(plan)
    assert all(torch.equal(a, b) for a, b in zip(settled, weights(model), strict=True))


def test_the_model_is_untouched_but_for_its_weights(data: Data) -> None:
    model = nn.ModuleDict({"conv": GCNConv(64, 7), "norm": BatchNorm(7)})
    model.forward = lambda x, edge_index: model["norm"](model["conv"](x, edge_index))  # type: ignore[method-assign]
    model.train()
    model["conv"].lin.weight.grad = torch.ones_like(model["conv"].lin.weight)
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    state = torch.get_rng_state()
    virgo.init_(model, data, forward=lambda m, d: m.forward(d.x, d.edge_index))
    assert model.training
    assert torch.equal(model["conv"].lin.weight.grad, torch.ones_like(model["conv"].lin.weight))
    assert all(torch.equal(b, buffers[name]) for name, b in model.named_buffers())
    assert torch.equal(torch.get_rng_state(), state)
    assert not model["conv"]._forward_hooks


@pytest.mark.parametrize("blocks", [4, 16])
def test_a_residual_stream_stays_small(data: Data, blocks: int) -> None:
    torch.manual_seed(0)
    model = Residual(blocks)
    model(data.x, data.edge_index)

    def growth() -> float:
        with torch.no_grad():
            model(data.x, data.edge_index)
        sizes = [float(x.square().mean()) for x in model.stream]
        return max(sizes) / sizes[0]

    before, wide = growth(), ranges(model, data).wider
    virgo.init_(model, data)
    assert ranges(model, data).wider < wide
    assert growth() < max(4.0, before / 100)


def test_batch_norm_is_judged_as_it_trains(data: Data) -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = [64, 32, 32, 32, 7]
            pairs = itertools.pairwise(widths)
            self.convs = nn.ModuleList(GCNConv(a, b) for a, b in pairs)
            self.norms = nn.ModuleList(BatchNorm(32) for _ in range(3))

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            for conv, norm in zip(self.convs, self.norms, strict=False):
                x = functional.dropout(norm(conv(x, edge_index)).relu(), 0.5, self.training)
            return self.convs[-1](x, edge_index)

    torch.manual_seed(0)
    model = Normed()
    before = ranges(model, data)
    virgo.init_(model, data)
    assert ranges(model, data).wider <= before.wider


def test_a_bias_of_any_shape_is_a_bias(data: Data) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = ARMAConv(64, 32, num_stacks=3), HeteroLinear(32, 7, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            kind = torch.arange(x.size(0)) % 3
            return self.second(self.first(x, edge_index).relu(), kind)

    torch.manual_seed(0)
    model = Odd()
    plan = virgo.init_(model, data)
    assert not any(row.weight.endswith("bias") for row in plan.rows)
    assert float(model.first.bias.detach().abs().max()) == 0.0
    assert float(model.second.bias.detach().abs().max()) < 1.0


def test_networks_without_a_layer_of_weights_have_their_linears_counted(data: Data) -> None:
    class Predict(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last, self.hops = nn.Linear(64, 32), nn.Linear(32, 7), APPNP(10, 0.1)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.hops(self.last(self.first(x).relu()), edge_index)

    torch.manual_seed(0)
    model = Predict()
    before = ranges(model, data)
    plan = virgo.init_(model, data)
    assert {row.weight for row in plan.rows} == {"first.weight", "last.weight"}
    assert ranges(model, data).wider < before.wider


def test_nothing_to_do_is_said(data: Data) -> None:
    model = APPNP(3, 0.1)
    plan = virgo.init_(model, data)
    assert "nothing to do: no unit has a weight to scale" in str(plan)


@pytest.mark.parametrize("kind", ["tuple", "dict", "regression", "multi-label", "unlabelled"])
def test_any_output_and_any_labels(data: Data, kind: str) -> None:
    class Task(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList([SAGEConv(64, 32), SAGEConv(32, 32), SAGEConv(32, 7)])

        def forward(self, x: Tensor, edge_index: Tensor) -> Any:
            for conv in self.convs[:-1]:
                x = conv(x, edge_index).relu()
            out = self.convs[-1](x, edge_index)
            return {"tuple": (out, x), "dict": {"logits": out, "hidden": x}}.get(kind, out)

    given = data.clone()
    names = {"regression": "squared error", "multi-label": "binary cross-entropy"}
    if kind == "regression":
        given.y = torch.randn(200, 7, generator=torch.Generator().manual_seed(0))
    elif kind == "multi-label":
        given.y = torch.nn.functional.one_hot(data.y, 7).float()
    elif kind == "unlabelled":
        del given.y
    torch.manual_seed(0)
    plan = virgo.init_(Task(), given)
    assert plan.choice is not None
    expected = {**names, "unlabelled": "a random linear probe of the output"}
    assert plan.choice["loss"] == expected.get(kind, "cross-entropy")


def test_heterogeneous_labels_are_found() -> None:
    from torch_geometric.nn import HeteroConv

    graph = HeteroData()
    graph["paper"].x, graph["author"].x = torch.rand(40, 16), torch.rand(30, 16)
    graph["paper"].y = torch.arange(40) % 4
    both = torch.stack([torch.arange(60) % 30, torch.arange(60) % 40])
    graph["author", "writes", "paper"].edge_index = both
    graph["paper", "by", "author"].edge_index = both.flip(0)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = [(16, 16), (16, 4)]
            self.convs = nn.ModuleList(
                HeteroConv({kind: SAGEConv(a, b) for kind in graph.edge_types}) for a, b in sizes
            )

        def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
            hidden = self.convs[0](x_dict, edge_index_dict)
            hidden = {key: x.relu() for key, x in hidden.items()}
            return self.convs[1](hidden, edge_index_dict)

    torch.manual_seed(0)
    plan = virgo.init_(Two(), graph)
    assert plan.choice is not None
    assert plan.choice["loss"] == "cross-entropy"


def test_a_loader_gives_its_first_batch() -> None:
    from torch_geometric.loader import DataLoader

    graphs = [virgo.data.citation_like(num_nodes=40, num_features=64, seed=s) for s in range(4)]
    torch.manual_seed(0)
    model = GCN(64, 16, num_layers=4, out_channels=7)
    plan = virgo.init_(model, DataLoader(graphs, batch_size=4))
    assert plan.graph["nodes"] == 160


def test_weights_of_units_that_decide_where_to_look_are_left_alone(data: Data) -> None:
    from torch_geometric.nn import TransformerConv

    class Look(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList([TransformerConv(64, 32), TransformerConv(32, 7)])

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.convs[1](self.convs[0](x, edge_index).relu(), edge_index)

    torch.manual_seed(0)
    model = Look()
    plan = virgo.plan(model, data)
    if plan.rows and plan.estimate == "measured":
        assert dict(plan.left_alone)["convs.0.lin_key.weight"].startswith("decides where to look")


def test_a_named_closed_form_that_makes_it_worse_says_so(data: Data) -> None:
    torch.manual_seed(0)
    model = GCN(64, 32, num_layers=6, out_channels=7)
    virgo.init_(model, data)
    with pytest.warns(virgo.errors.VirgoWarning, match=r"lecun: .* grew from x[\d.]+ to x"):
        virgo.init_(model, data, "lecun")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        virgo.init_(model, data, "virgo-backward", estimate="measured")


def call(signal: float, gradient: float, **more: Any) -> UnitCall:
    return UnitCall("", signal, 10, 4, gradient=gradient, variance=signal, rank=4.0, **more)


def test_the_score_sees_each_of_its_parts() -> None:
    level = Profile([call(1.0, 1.0), call(1.0, 1.0), call(1.0, 1.0)])
    assert auto.score(level) == pytest.approx(0.0)
    steep = Profile([call(1.0, 100.0), call(1.0, 1.0)])
    assert auto.score(steep) == pytest.approx(2.0)
    dead = Profile([call(1.0, 1.0, dead=0.5), call(1.0, 1.0)])
    assert auto.score(dead) == pytest.approx(0.5)
    silent = Profile([call(0.0, 1.0), call(1.0, 1.0)])
    assert math.isinf(auto.score(silent))


def test_a_candidate_that_widens_a_range_is_never_picked() -> None:
    own = auto.Candidate("as it is", Profile([call(1.0, 4.0, dead=0.9), call(1.0, 1.0)]))
    wider = auto.Candidate("x", Profile([call(1.0, 5.0), call(1.0, 1.0)]))
    narrower = auto.Candidate("y", Profile([call(1.0, 2.0, dead=0.9), call(1.0, 1.0)]))
    assert auto.pick([own, wider]) is own
    assert auto.pick([own, wider, narrower]) is narrower


def test_the_activation_is_read_from_the_model(data: Data) -> None:
    for act, gain in (("tanh", 2.5361754), ("relu", 2.0), ("elu", 1.5505)):
        model = GCN(64, 16, num_layers=3, out_channels=7, act=act)
        plan = virgo.plan(model, data, "virgo-forward")
        assert plan.nonlinearity == act
        assert plan.gain == pytest.approx(gain, rel=1e-4)
    leaky = GCN(64, 16, 3, 7, act=nn.LeakyReLU(0.3))
    assert virgo.plan(leaky, data, "virgo-forward").gain == pytest.approx(2 / (1 + 0.3**2))


def test_a_misspelt_option_gets_a_suggestion(data: Data) -> None:
    with pytest.raises(virgo.OptionError, match=r"got 'distribtion'. Did you mean distribution\?"):
        virgo.init_(GCN(64, 8, 2, 7), data, distribtion="normal")  # type: ignore[call-arg]
    with pytest.raises(virgo.OptionError, match=r"Did you mean mirrored\?"):
        virgo.plan(GCN(64, 8, 2, 7), data, "virgo", distribution="miror")


def test_the_short_form_is_the_long_one(data: Data) -> None:
    model = GCN(64, 8, 3, 7)
    short = virgo.plan(model, data, "virgo-backward+mirrored", seed=1)
    assert short == virgo.plan(model, data, "virgo-backward", distribution="mirrored", seed=1)
    with pytest.raises(virgo.OptionError, match="expected one value, got 'normal' and 'mirrored'"):
        virgo.plan(model, data, "virgo+mirrored", distribution="normal")


def test_a_gin_whose_units_hold_two_weights_each_settles(data: Data) -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(
                GINConv(nn.Sequential(nn.Linear(a, 32), nn.ReLU(), nn.Linear(32, b)))
                for a, b in [(64, 32), (32, 32), (32, 32), (32, 32), (32, 7)]
            )

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            for conv in self.convs[:-1]:
                x = conv(x, edge_index).relu()
            return self.convs[-1](x, edge_index)

    torch.manual_seed(0)
    model = Deep()
    assert ranges(model, data).wider > 50
    virgo.init_(model, data)
    assert ranges(model, data).wider < 20


def test_what_is_no_model_is_refused(data: Data) -> None:
    with torch.inference_mode():
        frozen = GCN(64, 8, 2, 7)
    wrong: dict[str, Any] = {
        "expected a torch.nn.Module, got None": None,
        "expected a torch.nn.Module, got <class": GCN,
        "made under torch.inference_mode": frozen,
    }
    for message, model in wrong.items():
        with pytest.raises(virgo.LayerError, match=message):
            virgo.init_(model, data)


@pytest.mark.parametrize(("value", "message"), [(math.nan, "got NaN"), (0.0, "got only zeros")])
def test_features_that_say_nothing_are_refused(data: Data, value: float, message: str) -> None:
    spoiled = data.clone()
    spoiled.x = torch.full_like(data.x, value)
    model = GCN(64, 8, 2, 7)
    before = weights(model)
    with pytest.raises(virgo.GraphError, match=message):
        virgo.init_(model, spoiled)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))


def test_a_width_that_does_not_fit_is_named(data: Data) -> None:
    with pytest.raises(virgo.LayerError, match=r"in_channels=63 features, but data\.x has 64"):
        virgo.init_(GCN(63, 8, 2, 7), data)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_every_precision_is_served(data: Data, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = GCN(64, 32, 4, 7).to(dtype)
    plan = virgo.init_(model, data)
    assert plan.rows
    assert all(p.dtype == dtype and bool(p.isfinite().all()) for p in model.parameters())


def test_overflowing_and_vanishing_weights_are_mended(data: Data) -> None:
    for std in (50.0, 1e-8):
        torch.manual_seed(0)
        model = GCN(64, 32, 20, 7)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=std)
        virgo.init_(model, data)
        assert ranges(model, data).wider < 100

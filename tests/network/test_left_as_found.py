"""What our passes leave behind: nothing in data, leaves, optimisers, attributes, lazy layers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import is_lazy
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCNConv, HeteroConv, LGConv, SAGEConv

import virgo

pytestmark = pytest.mark.usefixtures("one_thread")


class Plain(nn.Module):
    """GCN layers with ReLU between them."""

    def __init__(self, first: int = 32, layers: int = 3) -> None:
        super().__init__()
        widths = [first, *[16] * (layers - 1)]
        outs = [*[16] * (layers - 1), 5]
        self.convs = nn.ModuleList(map(GCNConv, widths, outs))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x, edge_index).relu() if conv is not self.convs[-1] else conv(x, edge_index)
        return x


@pytest.fixture
def data() -> Data:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 60, (2, 240), generator=generator)
    return Data(
        x=torch.rand(60, 32, generator=generator),
        edge_index=torch.cat([edges, edges.flip(0)], 1),
        y=torch.randint(0, 5, (60,), generator=generator),
        train_mask=torch.arange(60) < 30,
    )


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


CALLS: dict[str, Callable[..., Any]] = {
    "plan": virgo.plan,
    "init_": virgo.init_,
    "check": virgo.check,
    "warm_start": virgo.warm_start,
    "spog": lambda model, data, **options: virgo.plan(model, data, "spog", **options),
}


def test_data_of_a_model_without_numbers_stays_as_it_is(data: Data) -> None:
    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(LGConv() for _ in range(3))

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            for conv in self.convs:
                x = conv(x, edge_index)
            return x

    x = data.x
    virgo.check(Three(), data)
    assert data.x is x
    assert not x.requires_grad


@pytest.mark.parametrize("call", CALLS)
def test_gradients_of_leaves_outside_of_the_model_are_the_users(call: str, data: Data) -> None:
    embedding, head = nn.Embedding(60, 32), nn.Linear(5, 5)
    data.x.requires_grad_()
    kept = torch.ones(60, 32)
    embedding.weight.grad = kept
    CALLS[call](
        Plain(),
        data,
        forward=lambda model, data: model(embedding.weight + data.x, data.edge_index),
        loss=lambda output, data: functional.cross_entropy(head(output), data.y),
    ) if call != "spog" else CALLS[call](
        Plain(),
        data,
        forward=lambda model, data: head(model(embedding.weight + data.x, data.edge_index)),
    )
    assert embedding.weight.grad is kept
    assert bool((kept == 1).all())
    assert data.x.grad is None
    assert head.weight.grad is None


@pytest.mark.parametrize("call", CALLS)
def test_an_optimiser_in_a_hook_takes_no_step(call: str, data: Data) -> None:
    model, steps = Plain(), []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: steps.append(p))
    CALLS[call](model, data)
    assert not steps
    functional.cross_entropy(model(data.x, data.edge_index), data.y).backward()
    assert len(steps) == 6  # the hooks are there again


def test_edges_keep_their_class(data: Data) -> None:
    kinds = []

    class Asks(Plain):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            kinds.append(type(edge_index))
            return super().forward(x, edge_index)

    data.edge_index = EdgeIndex(data.edge_index, sparse_size=(60, 60))
    virgo.init_(Asks(), data)
    assert EdgeIndex in kinds  # only samples have plain tensors


def test_attributes_that_passes_change_in_place_are_put_back(data: Data) -> None:
    class Remembers(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.history: list[int] = []
            self.seen: set[int] = set()
            self.memory, self.generator = torch.zeros(60, 5), torch.Generator()

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            out = super().forward(x, edge_index)
            self.history.append(1)
            self.seen.add(len(self.history))
            if len(out) == 60:
                self.memory.add_(out.detach())
            torch.rand(1, generator=self.generator)
            return out

    model = Remembers()
    model.history.append(7)
    state, version = model.generator.get_state(), model.memory._version
    for call in (virgo.plan, virgo.init_, virgo.check, virgo.warm_start):
        call(model, data)
        assert model.history == [7]
        assert not model.seen
        assert not model.memory.any()
        assert torch.equal(model.generator.get_state(), state)
    assert model.memory._version > version  # the passes did change it


def test_lazy_layers_draw_from_the_seed(data: Data) -> None:
    class Tanh(Plain):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            for conv in self.convs:
                x = conv(x, edge_index).tanh()
            return x

    def made(seed: int) -> Tensor:
        model = Tanh()
        model.convs = nn.ModuleList(GCNConv(-1, 16, bias=False) for _ in range(3))
        torch.rand(seed)  # the global state is nothing to it
        virgo.init_(model, data, seed=seed)
        return flat(model)

    assert torch.equal(made(1), made(1))
    assert not torch.equal(made(1), made(2))


@pytest.mark.parametrize(
    ("name", "options"), [("latch_", {}), ("warm_start", {"lr": 1e30}), ("warm_start", {})]
)
def test_lazy_layers_stay_lazy_after_an_error(
    name: str, options: dict[str, float], data: Data
) -> None:
    model = Plain(-1, layers=2)
    if not options and name == "warm_start":
        del data.y
    with pytest.raises(virgo.VirgoError):
        getattr(virgo, name)(model, data, **options)
    assert is_lazy(model.convs[0].lin.weight)
    if "y" in data:
        model(data.x, data.edge_index)  # and still learn their shapes


def test_lazy_layers_are_latched_and_warmed(data: Data) -> None:
    model = Plain(-1, layers=6)
    virgo.latch_(model, data)
    assert model.convs[0].lin.weight.shape == (16, 32)
    model = Plain(-1)
    result = virgo.warm_start(model, data, epochs=5)
    assert result.after < result.before


def test_weights_that_are_not_finite_are_replaced(data: Data) -> None:
    for spoil in ("weight", "bias"):
        model = Plain()
        layer = model.convs[1]
        (layer.lin.weight if spoil == "weight" else layer.bias).data[:] = float("nan")
        plan = virgo.init_(model, data)
        assert plan.rows
        assert bool(model(data.x, data.edge_index).isfinite().all())


def test_what_nothing_helps_is_not_called_stable(data: Data) -> None:
    data.edge_weight = torch.full((data.num_edges,), -1.0)

    class Weighted(Plain):
        def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
            for conv in self.convs:
                x = conv(x, edge_index, edge_weight).relu()
            return x

    words = str(virgo.plan(Weighted(), data))
    assert "already stable" not in words
    assert "nothing better was found" in words
    assert "convs.0 returns" in words


@pytest.mark.parametrize(("value", "match"), [(float("nan"), "NaN or infinity"), (0.0, "zeros")])
def test_features_of_several_kinds_of_node_are_looked_at(value: float, match: str) -> None:
    data = HeteroData()
    data["a"].x, data["b"].x = torch.full((9, 4), value), torch.full((7, 4), 0.0)
    data["a", "to", "b"].edge_index = torch.randint(0, 7, (2, 20))
    data["b", "to", "a"].edge_index = torch.randint(0, 7, (2, 20))

    class Hetero(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = HeteroConv({kind: SAGEConv(4, 3) for kind in data.edge_types})

        def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
            return self.conv(x_dict, edge_index_dict)

    with pytest.raises(virgo.GraphError, match=match):
        virgo.init_(Hetero(), data)


def test_a_model_without_message_passing_hears_its_own_error(data: Data) -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(31, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x)

    with pytest.raises(virgo.LayerError, match="shapes cannot be multiplied"):
        virgo.init_(Wrong(), data)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_compressed_sparse_features_are_measured(data: Data) -> None:
    dense = copy.copy(data)
    dense.x = data.x * (data.x > 0.8)
    data.x = dense.x.to_sparse_csr()
    torch.manual_seed(0)
    model = Plain()
    twin = copy.deepcopy(model)
    ranges = []
    for network, graph in ((model, data), (twin, dense)):
        plan = virgo.init_(network, graph)
        assert plan.choice is not None
        ranges.append(plan.choice["tried"][0]["forward"])
    assert ranges[0] == pytest.approx(ranges[1], rel=1e-4)


def test_a_full_backward_hook_changes_no_plan(data: Data) -> None:
    model = Plain()
    before, verdict = virgo.plan(model, data, "virgo-backward"), virgo.check(model, data)
    for conv in model.convs:
        conv.register_full_backward_hook(lambda *_: None)
    after, again = virgo.plan(model, data, "virgo-backward"), virgo.check(model, data)
    assert after.num_classes == before.num_classes == 5
    assert after.variances == before.variances
    assert again.level == verdict.level


@pytest.mark.slow  # Dynamo alone takes ten seconds to import
def test_parts_that_are_compiled_run_as_they_are(data: Data) -> None:
    compiled: list[object] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    model = Plain()
    model.compile(backend=backend)
    virgo.init_(model, data)
    assert not compiled
    with torch.no_grad():
        model(data.x, data.edge_index)
    assert compiled  # by the user's own call


def test_complex_weights_are_left_alone(data: Data) -> None:
    model = Plain()
    model.phase = nn.Parameter(torch.ones(3, 3, dtype=torch.cfloat))
    plan = virgo.init_(model, data)
    assert "phase" not in plan.variances
    assert virgo.check(model, data).level in ("good", "watch", "bad")


@pytest.mark.parametrize("penalty", [float("inf"), float("nan"), "a", -1])
def test_a_penalty_is_a_positive_number(penalty: Any, data: Data) -> None:
    with pytest.raises(virgo.OptionError, match="penalty: expected a positive finite number"):
        virgo.fit_last_(Plain(), data, penalty=penalty)


@pytest.mark.parametrize("every", [None, 0, 1.5, float("nan"), True])
def test_a_monitor_takes_whole_numbers_of_steps(every: Any) -> None:
    with pytest.raises(virgo.OptionError, match="every: expected at least 1"):
        virgo.Monitor(Plain(), every=every)


def test_a_comparison_needs_a_method(data: Data) -> None:
    with pytest.raises(virgo.OptionError, match="methods: expected at least one"):
        virgo.compare(Plain, data, [])


class WritesIntoData(Plain):
    """As layers of GraphGym: what a layer returns takes the place of the features."""

    def forward(self, data: Data) -> Tensor:
        for conv in self.convs:
            data.x = conv(data.x, data.edge_index).relu()
        return data.x


@pytest.mark.parametrize("given", [None, lambda model, data: model(data)])
@pytest.mark.parametrize("call", [name for name in CALLS if name != "warm_start"])
def test_a_model_may_write_into_the_data_it_gets(call: str, given: Any, data: Data) -> None:
    x, keys = data.x.clone(), list(data.keys())
    CALLS[call](WritesIntoData(), data, forward=given)
    assert torch.equal(data.x, x)
    assert list(data.keys()) == keys

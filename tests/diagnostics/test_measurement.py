"""``measure()``, against a loop over the layers and dense formulas of our own.

Nothing here uses Virgo's hooks: models are run layer by layer, gradients come from
``torch.autograd.grad``, graph quantities from dense matrices in float64.
"""

from __future__ import annotations

import importlib
import io
import json
import math
import statistics
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from kit.checks import over_nodes, strict_json
from kit.networks import HeteroNet, hetero
from kit.snapshots import untouched, unusual
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCN, GCNConv

import virgo
from virgo.report.text import plain_numbers

CLASSES = 7
#: The library sums in float64 what a float32 network passes on; only that network's rounding and
#: the order of its sums differ between two passes.
CLOSE = 1e-5


@pytest.fixture(scope="module")
def data() -> Data:
    return virgo.data.citation_like(num_nodes=150, num_features=48, seed=0)


class Chain(nn.Module):
    """GCN layers of the given widths with ReLU between them."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(GCNConv(a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for index, conv in enumerate(self.convs):
            x = conv(x, edge_index)
            if index < len(self.convs) - 1:
                x = x.relu()
        return x


def chain(*widths: int, seed: int = 0) -> Chain:
    torch.manual_seed(seed)
    return Chain(list(widths))


def cross_entropy(output: Tensor, data: Data) -> Tensor:
    """Written out, on the training nodes only."""
    chosen = output[data.train_mask]
    picked = chosen[torch.arange(len(chosen)), data.y[data.train_mask]]
    return (chosen.logsumexp(1) - picked).mean()


def by_hand(
    model: Any, data: Data, loss: Callable[[Tensor, Data], Tensor] = cross_entropy
) -> tuple[list[Tensor], tuple[Tensor, ...], float]:
    """``h^0 .. h^L`` and the loss's gradients there, by a plain loop over the layers."""
    h = [data.x.clone().requires_grad_()]
    convs = list(model.convs)
    for index, conv in enumerate(convs):
        out = conv(h[-1], data.edge_index)
        h.append(out.relu() if index < len(convs) - 1 else out)
    value = loss(h[-1], data)
    return h, torch.autograd.grad(value, h), float(value.detach())


# --- the two variances ----------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_both_variances_are_those_of_a_plain_loop(depth: int, data: Data) -> None:
    model = chain(data.num_features, *[16] * (depth - 1), CLASSES)
    h, gradients, value = by_hand(model, data)
    trace = virgo.measure(model, data)
    assert len(trace.layers) == len(trace.forward) == len(trace.backward) == depth + 1
    assert trace.forward == pytest.approx([over_nodes(t) for t in h], rel=CLOSE)
    assert trace.backward == pytest.approx([over_nodes(g) for g in gradients], rel=1e-4)
    assert trace.loss == pytest.approx(value, rel=CLOSE)
    assert trace.draws == 1
    assert [layer.width for layer in trace.layers] == [t.size(1) for t in h]
    assert [layer.index for layer in trace.layers] == list(range(depth + 1))
    names = [f"into convs.{i}" for i in range(1, depth)]
    assert [layer.name for layer in trace.layers] == ["input", *names, "output"]


def test_only_the_training_nodes_count(data: Data) -> None:
    """Negative control: the loss over all nodes, and the other way to average, are elsewhere."""
    model = chain(data.num_features, 16, 16, CLASSES)
    trace = virgo.measure(model, data)
    everywhere = data.clone()
    everywhere.train_mask = torch.ones_like(data.train_mask)
    _, gradients, value = by_hand(model, everywhere)
    assert trace.loss != pytest.approx(value, rel=1e-3)
    assert trace.backward != pytest.approx([over_nodes(g) for g in gradients], rel=0.05)
    del everywhere.train_mask
    other = virgo.measure(model, everywhere)
    assert other.backward == pytest.approx([over_nodes(g) for g in gradients], rel=1e-4)
    pooled = [float(t.detach().var()) for t in by_hand(model, data)[0]]
    assert trace.forward != pytest.approx(pooled, rel=0.01)


def test_an_empty_mask_is_no_mask(data: Data) -> None:
    model = chain(data.num_features, 16, CLASSES)
    empty = data.clone()
    empty.train_mask = torch.zeros_like(data.train_mask)
    full = data.clone()
    full.train_mask = torch.ones_like(data.train_mask)
    assert virgo.measure(model, empty).backward == virgo.measure(model, full).backward


def test_a_loss_by_argument(data: Data) -> None:
    def squares(output: Tensor, data: Data) -> Tensor:
        return (output[:, 0] ** 2).mean()

    model = chain(data.num_features, 16, 16, 3)
    unlabelled = Data(x=data.x, edge_index=data.edge_index)
    _, gradients, value = by_hand(model, data, squares)
    trace = virgo.measure(model, unlabelled, loss=squares)
    assert trace.loss == pytest.approx(value, rel=CLOSE)
    assert trace.backward == pytest.approx([over_nodes(g) for g in gradients], rel=1e-4)


def test_after_activation_and_norm_and_without_dropout(data: Data) -> None:
    """``h^l`` is what the next layer receives, in eval mode."""
    torch.manual_seed(0)
    model = GCN(data.num_features, 16, 3, CLASSES, dropout=0.5, norm="layer_norm").train()
    x, h = data.x, [data.x]
    for index, conv in enumerate(model.convs):
        x = conv(x, data.edge_index)
        if index < 2:
            x = model.norms[index](x).relu()
        h.append(x)
    assert virgo.measure(model, data).forward == pytest.approx(
        [over_nodes(t) for t in h], rel=CLOSE
    )


def test_without_backward(data: Data) -> None:
    model = chain(data.num_features, 16, CLASSES)
    trace = virgo.measure(model, Data(x=data.x, edge_index=data.edge_index), backward=False)
    assert trace.forward == pytest.approx(virgo.measure(model, data).forward, rel=CLOSE)
    assert all(map(math.isnan, trace.backward))
    assert math.isnan(trace.loss)
    assert trace.weight_gradients == {}
    assert json.loads(trace.to_json())["layers"][0]["backward"] is None


class Twice(nn.Module):
    def __init__(self, data: Data) -> None:
        super().__init__()
        self.first = GCNConv(data.num_features, 16)
        self.shared = GCNConv(16, 16)
        self.last = GCNConv(16, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(x, edge_index).relu()
        for _ in range(3):
            x = self.shared(x, edge_index).relu()
        return self.last(x, edge_index)

    @property
    def convs(self) -> list[nn.Module]:
        return [self.first, *[self.shared] * 3, self.last]


def test_every_call_of_a_reused_module_is_a_row(data: Data) -> None:
    torch.manual_seed(0)
    model = Twice(data)
    h, gradients, _ = by_hand(model, data)
    trace = virgo.measure(model, data)
    assert [layer.name for layer in trace.layers] == [
        "input",
        "into shared",
        "into shared",
        "into shared",
        "into last",
        "output",
    ]
    assert trace.forward == pytest.approx([over_nodes(t) for t in h], rel=CLOSE)
    assert trace.backward == pytest.approx([over_nodes(g) for g in gradients], rel=1e-4)
    assert len(set(trace.forward[1:4])) == 3


# --- what stands beside them ----------------------------------------------------------------------


def laplacians(data: Data) -> tuple[Tensor, Tensor]:
    """``I - D~^-1/2 (A+I) D~^-1/2`` and ``D - A``, dense."""
    n = data.num_nodes
    a = torch.zeros(n, n, dtype=torch.float64)
    a[data.edge_index[0], data.edge_index[1]] = 1.0
    loops = a + torch.eye(n, dtype=torch.float64)
    root = loops.sum(1).rsqrt()
    normalized = torch.eye(n, dtype=torch.float64) - root[:, None] * loops * root
    return normalized, torch.diag(a.sum(1)) - a


def all_pairs_distance(h: Tensor) -> float:
    distances = [
        1.0 - float(a @ b) / (math.sqrt(float(a @ a)) * math.sqrt(float(b @ b)))
        for i, a in enumerate(h)
        for j, b in enumerate(h)
        if i != j and a.any() and b.any()
    ]
    return statistics.fmean(distances)


def test_every_number_beside_them() -> None:
    data = virgo.data.citation_like(num_nodes=60, num_features=24, words_per_node=6, seed=1)
    model = chain(24, 12, 12, CLASSES)
    with torch.no_grad():
        model.convs[0].bias[:3] = -100.0  # three of twelve units are dead
    trace = virgo.measure(model, data)
    h = [t.detach().double() for t in by_hand(model, data)[0]]
    normalized, plain = laplacians(data)
    for layer, t in zip(trace.layers, h, strict=True):
        energy = float((t * t).sum())
        assert layer.mean == pytest.approx(float(t.sum()) / t.numel(), rel=1e-4)
        assert layer.second_moment == pytest.approx(energy / t.numel(), rel=CLOSE)
        dead = sum(bool((t[:, k] == 0).all()) for k in range(t.size(1))) / t.size(1)
        assert layer.dead == dead
        assert layer.dirichlet_normalized == pytest.approx(
            float(torch.trace(t.T @ normalized @ t)) / energy, rel=1e-4
        )
        assert layer.dirichlet_plain == pytest.approx(
            float(torch.trace(t.T @ plain @ t)) / energy, rel=1e-4
        )
        assert layer.dirichlet_plain > 2 * layer.dirichlet_normalized  # they are not the same
        assert layer.mean_average_distance == pytest.approx(all_pairs_distance(t), rel=1e-4)
    assert trace.layers[1].dead >= 3 / 12
    for layer, following in pairwise(trace.layers):
        assert layer.ratio_to_next == pytest.approx(following.forward / layer.forward)
    assert math.isnan(trace.layers[-1].ratio_to_next)


def test_alike_is_a_matter_of_direction_not_of_size() -> None:
    """Numbers whose squares vanish in float32 still have directions."""
    data = virgo.data.citation_like(num_nodes=60, num_features=24, words_per_node=6, seed=1)
    model = chain(24, 12, 12, CLASSES)
    before = virgo.measure(model, data)
    with torch.no_grad():
        model.convs[0].lin.weight.mul_(1e-30)
    after = virgo.measure(model, data)
    assert 0 < after.layers[1].forward < 1e-55
    for a, b in zip(before.layers[1:], after.layers[1:], strict=True):
        assert a.mean_average_distance > 1e-3
        assert b.mean_average_distance == pytest.approx(a.mean_average_distance, rel=1e-4)
        assert b.dirichlet_plain == pytest.approx(a.dirichlet_plain, rel=1e-4)
        assert b.dirichlet_normalized == pytest.approx(a.dirichlet_normalized, rel=1e-4)


def test_the_gradient_norm_of_every_weight(data: Data) -> None:
    model = chain(data.num_features, 16, CLASSES)
    named = dict(model.named_parameters())
    value = cross_entropy(model(data.x, data.edge_index), data)
    expected = {
        name: float(g.double().square().sum().sqrt())
        for name, g in zip(named, torch.autograd.grad(value, list(named.values())), strict=True)
    }
    trace = virgo.measure(model, data)
    assert trace.weight_gradients == pytest.approx(expected, rel=1e-4)
    assert len({round(g, 9) for g in expected.values()}) == 4  # the norms tell weights apart
    assert all(p.grad is None for p in named.values())


# --- draws ---------------------------------------------------------------------------------------


def test_draws_of_a_plan_are_mean_and_spread(data: Data) -> None:
    model = chain(data.num_features, 16, 16, CLASSES)
    plan = virgo.plan(model, data, "xavier", seed=5)
    drawn, other, said = [], chain(data.num_features, 16, 16, CLASSES), []
    for seed in (5, 6, 7):
        plan.apply_(other, seed=seed)
        h, gradients, value = by_hand(other, data)
        moments = [float(t.detach().double().square().mean()) for t in h]
        first = float(
            torch.autograd.grad(
                cross_entropy(other(data.x, data.edge_index), data), [other.convs[0].lin.weight]
            )[0].norm()
        )
        drawn.append(
            ([over_nodes(t) for t in h], [over_nodes(g) for g in gradients], moments, value, first)
        )
    with untouched(model):
        trace = virgo.measure(
            model, data, plan=plan, seeds=3, progress=lambda done, total: said.append((done, total))
        )
    assert trace.draws == 3
    assert said == [(1, 3), (2, 3), (3, 3)]
    for i, layer in enumerate(trace.layers):
        forward, backward, moments = ([d[k][i] for d in drawn] for k in range(3))
        assert layer.forward == pytest.approx(statistics.fmean(forward), rel=1e-4)
        assert layer.backward == pytest.approx(statistics.fmean(backward), rel=1e-4)
        assert layer.second_moment == pytest.approx(statistics.fmean(moments), rel=1e-4)
        assert layer.backward_sd == pytest.approx(statistics.stdev(backward), rel=1e-2)
        if i:
            assert layer.forward_sd == pytest.approx(statistics.stdev(forward), rel=1e-2)
            assert layer.forward_sd > 0
    assert trace.layers[0].forward_sd == pytest.approx(0.0, abs=1e-12)
    assert trace.loss == pytest.approx(statistics.fmean(d[3] for d in drawn), rel=1e-4)
    assert trace.weight_gradients["convs.0.lin.weight"] == pytest.approx(
        statistics.fmean(d[4] for d in drawn), rel=1e-4
    )
    assert "±" in str(trace)


def test_one_draw_of_a_plan_is_what_it_applies(data: Data) -> None:
    model, other = (chain(data.num_features, 16, CLASSES) for _ in range(2))
    plan = virgo.plan(model, data, "virgo-backward", seed=3)
    plan.apply_(other)
    theirs, own = virgo.measure(model, data, plan=plan), virgo.measure(model, data)
    assert theirs.forward == virgo.measure(other, data).forward
    assert theirs.forward[1:] != own.forward[1:]
    assert [layer.forward_sd for layer in theirs.layers] == [0.0] * 3


def test_several_plans_are_a_draw_each(data: Data) -> None:
    model = chain(data.num_features, 16, CLASSES)
    plans = [virgo.plan(model, data, "virgo-forward", estimate="measured", seed=s) for s in (0, 1)]
    single = [virgo.measure(model, data, plan=p) for p in plans]
    both = virgo.measure(model, data, plan=plans)
    assert both.draws == 2
    for way in ("forward", "backward"):
        columns = list(zip(*(getattr(t, way) for t in single), strict=True))
        assert getattr(both, way) == pytest.approx([statistics.fmean(c) for c in columns])
        spreads = [getattr(layer, f"{way}_sd") for layer in both.layers]
        assert spreads == pytest.approx([statistics.stdev(c) for c in columns], abs=1e-15)
    # a measured plan per draw meets its target in every draw
    assert max(both.forward) / min(both.forward) < 1.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 3}, "seeds: expected 1 without a plan, got 3.*plan="),
        ({"seeds": 0}, "seeds: expected at least 1, got 0"),
        ({"seeds": 10**30}, "seeds: expected at most 100,000"),
        ({"plan": []}, "plan: expected at least one plan, got an empty list"),
    ],
)
def test_bad_draws(options: dict[str, Any], message: str, data: Data) -> None:
    with pytest.raises(virgo.OptionError, match=message):
        virgo.measure(chain(data.num_features, 16, CLASSES), data, **options)


# --- large graphs ---------------------------------------------------------------------------------


def test_a_sample_of_nodes_is_said(data: Data) -> None:
    model = chain(data.num_features, 16, CLASSES)
    trace = virgo.measure(model, data, nodes=40)
    assert trace.facts["nodes"] == 40
    assert trace.facts["edges"] < data.num_edges
    assert any("sample of 40 of 150 nodes" in note for note in trace.notes)
    assert "note: measured on a sample" in str(trace)
    assert trace.forward == virgo.measure(model, data, nodes=40).forward
    assert trace.forward != virgo.measure(model, data, nodes=40, seed=1).forward
    whole = virgo.measure(model, data, nodes=150)
    assert whole.notes == ()
    assert whole.facts == {"nodes": 150, "edges": data.num_edges}
    assert whole.forward == virgo.measure(model, data).forward


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.filterwarnings("ignore:Converting sparse tensor to CSR")
def test_a_sample_of_a_sparse_adjacency_is_that_of_its_edges(
    layout: torch.layout, data: Data
) -> None:
    model = chain(48, 16, CLASSES)
    ones = torch.ones(data.num_edges)
    adj_t = torch.sparse_coo_tensor(data.edge_index.flip(0), ones, (150, 150)).coalesce()
    sparse = Data(x=data.x, y=data.y, train_mask=data.train_mask)
    sparse.adj_t = adj_t if layout == torch.sparse_coo else adj_t.to_sparse(layout=layout)
    trace = virgo.measure(model, sparse, nodes=40)
    assert trace.forward == pytest.approx(virgo.measure(model, data, nodes=40).forward, rel=CLOSE)
    assert tuple(sparse.adj_t.shape) == (150, 150)


@pytest.mark.parametrize("nodes", [-1, 0, 1])
def test_a_sample_of_fewer_than_two_nodes_is_refused(nodes: int, data: Data) -> None:
    with pytest.raises(virgo.OptionError, match=f"nodes: expected at least 2, got {nodes}"):
        virgo.measure(chain(48, 16, CLASSES), data, nodes=nodes)


def test_the_data_is_left_without_marks() -> None:
    """PyG keeps answers in a ``Data`` it is asked about, and cannot read them back safely."""
    data = virgo.data.citation_like(num_nodes=60, num_features=24, words_per_node=6, seed=1)
    before = set(vars(data._store))
    virgo.check(chain(24, 8, CLASSES), data, nodes=40)
    assert set(vars(data._store)) == before


def memory(monkeypatch: pytest.MonkeyPatch, kilobytes: int) -> None:
    import sys

    text = f"MemTotal: 99999999 kB\nMemAvailable: {kilobytes} kB\n"
    module = sys.modules["virgo.diagnostics.measurement"]
    monkeypatch.setattr(module, "open", lambda *a, **k: io.StringIO(text), raising=False)


def test_a_graph_too_large_says_how_to_sample(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    model = chain(data.num_features, 64, CLASSES)
    memory(monkeypatch, 100)
    with untouched(model), pytest.raises(virgo.GraphError, match=r"150 nodes\. Sample it: nodes="):
        virgo.measure(model, data)
    memory(monkeypatch, 100_000)
    assert len(virgo.measure(model, data).forward) == 3


def test_without_a_reading_of_memory_all_of_it_counts(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    module = sys.modules["virgo.diagnostics.measurement"]

    def absent(*args: Any, **options: Any) -> Any:
        raise FileNotFoundError

    monkeypatch.setattr(module, "open", absent, raising=False)
    model = chain(data.num_features, 64, CLASSES)
    assert len(virgo.measure(model, data).forward) == 3
    monkeypatch.setattr(module.os, "sysconf", lambda name: 100)
    with pytest.raises(virgo.GraphError, match="Sample it"):
        virgo.measure(model, data)


# --- what is left alone ---------------------------------------------------------------------------


class Busy(nn.Module):
    """Dropout, batch norm, a cache, randomness, an attribute of its own; fails when asked to."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            [GCNConv(in_channels, 16, cached=True), GCNConv(16, 16), GCNConv(16, CLASSES)]
        )
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.5)
        self.passes = 0

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.passes += 1
        x = x + 1e-9 * torch.rand_like(x)
        for conv in list(self.convs)[:-1]:
            x = self.drop(self.norm(conv(x, edge_index)).relu())
        return self.convs[-1](x, edge_index)


@pytest.mark.parametrize("drawn", [False, True], ids=["own", "plan"])
@pytest.mark.parametrize("backward", [True, False], ids=["backward", "forward-only"])
def test_nothing_of_the_model_changes(drawn: bool, backward: bool, data: Data) -> None:
    model = unusual(Busy(data.num_features))
    plan = virgo.plan(model, data, "xavier") if drawn else None
    x = data.x.clone()
    with untouched(model):
        virgo.measure(model, data, plan=plan, backward=backward)
        virgo.check(model, data, plan)
    assert model.passes == 0
    assert torch.equal(data.x, x)
    assert not data.x.requires_grad


@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize("where", ["forward", "loss"])
def test_nothing_changes_when_a_pass_raises(after: int, where: str, data: Data) -> None:
    """While watching, in the first draw, in the second, with weights redrawn."""
    model, count = unusual(Busy(data.num_features)), 0
    plan = virgo.plan(model, data, "xavier")

    def accident(value: Any) -> Any:
        nonlocal count
        count += 1
        if count >= after:
            raise ZeroDivisionError("an accident")
        return value

    options: dict[str, Any] = (
        {"forward": lambda m, d: accident(m(d.x, d.edge_index))}
        if where == "forward"
        else {"loss": lambda out, d: accident(out.sum())}
    )
    with untouched(model), pytest.raises(virgo.LayerError, match="ZeroDivisionError: an accident"):
        virgo.measure(model, data, plan=plan, seeds=3, **options)
    assert count >= after


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "got"), [(None, "got none"), (torch.rand(150), "got floating numbers")]
)
def test_labels_missing(y: Tensor | None, got: str, data: Data) -> None:
    given = Data(x=data.x, edge_index=data.edge_index, y=y)
    with pytest.raises(virgo.GraphError, match=rf"data\.y: expected class labels.*{got}.*loss="):
        virgo.measure(chain(data.num_features, 16, CLASSES), given)


def test_labels_that_do_not_fit_the_output(data: Data) -> None:
    with pytest.raises(virgo.LayerError, match=r"7 classes, got an output of \[150, 3\]"):
        virgo.measure(chain(data.num_features, 16, 3), data)


class Pair(nn.Module):
    def __init__(self, data: Data) -> None:
        super().__init__()
        self.inner = chain(data.num_features, 16, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, str]:
        return self.inner(x, edge_index), "and something else"


def test_a_model_that_returns_a_tuple(data: Data) -> None:
    model = Pair(data)
    with untouched(model), pytest.raises(virgo.LayerError, match=r"got a tuple.*loss=.*forward="):
        virgo.measure(model, data)
    expected = virgo.measure(model.inner, data)
    for options in (
        {"loss": lambda out, d: cross_entropy(out[0], d)},
        {"forward": lambda m, d: m(d.x, d.edge_index)[0]},
    ):
        found = virgo.measure(model, data, **options)  # type: ignore[arg-type]
        assert found.backward == pytest.approx(expected.backward, rel=1e-4)
    assert virgo.measure(model, data, backward=False).forward == expected.forward


class TwoHeads(nn.Module):
    def __init__(self, data: Data) -> None:
        super().__init__()
        self.body = GCNConv(data.num_features, 16)
        self.spare = GCNConv(16, 5)
        self.head = GCNConv(16, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.body(x, edge_index).relu()
        self.spare(x, edge_index)
        return self.head(x, edge_index)


def test_a_loss_that_misses_a_layer_names_it(data: Data) -> None:
    model = TwoHeads(data)
    with pytest.raises(virgo.LayerError, match=r"depends on every layer, got none from spare\. "):
        virgo.measure(model, data)
    assert len(virgo.measure(model, data, backward=False).layers) == 4

    def detached(model: TwoHeads, data: Data) -> Tensor:
        x = model.body(data.x, data.edge_index).relu()
        return model.head((x + model.spare(x, data.edge_index).sum()).detach(), data.edge_index)

    with pytest.raises(virgo.LayerError, match="got none from body, spare"):
        virgo.measure(model, data, forward=detached)


def test_an_exploding_pass_is_reported_as_infinite(data: Data) -> None:
    model = chain(data.num_features, *[16] * 5, CLASSES)
    with torch.no_grad():
        for conv in model.convs:
            conv.lin.weight.mul_(1e12)
    with untouched(model):
        trace = virgo.measure(model, data)
    assert math.isfinite(trace.forward[0])
    assert math.isfinite(trace.forward[2])
    assert trace.forward[-1] == math.inf
    assert math.inf in trace.backward
    assert any("NaN or infinite" in note and "6" in note for note in trace.notes)
    assert "inf" in str(trace)
    assert strict_json(trace.to_json())["layers"][-1]["forward"] == "infinity"
    plan = virgo.plan(model, data, "xavier")
    twice = virgo.measure(model, data, plan=[plan, plan])
    assert not any("NaN or infinite" in note for note in twice.notes)


def test_draws_that_explode_are_averaged_too(data: Data) -> None:
    model = chain(data.num_features, *[16] * 5, CLASSES)
    plan = virgo.plan(model, data, "xavier")
    from dataclasses import replace

    big = replace(plan, rows=tuple(replace(row, variance=1e24) for row in plan.rows))
    trace = virgo.measure(model, data, plan=big, seeds=3)
    assert trace.forward[-1] == math.inf
    assert math.isnan(trace.layers[-1].forward_sd)
    strict_json(trace.to_json())


def test_the_strict_reader_can_fail() -> None:
    with pytest.raises(AssertionError, match="NaN is not JSON"):
        strict_json(json.dumps({"a": math.nan}))
    numbers = {"a": [math.inf, -math.inf], "b": (math.nan, 1.5), "c": "x"}
    assert strict_json(json.dumps(plain_numbers(numbers))) == {
        "a": ["infinity", "-infinity"],
        "b": [None, 1.5],
        "c": "x",
    }


def test_one_neuron_has_no_variance(data: Data) -> None:
    model = chain(data.num_features, 16, 1, 16, CLASSES)
    trace = virgo.measure(model, data)
    assert [math.isnan(v) for v in trace.forward] == [False, False, True, False, False]
    assert [math.isnan(v) for v in trace.backward] == [False, False, True, False, False]
    assert trace.notes == ("layer 2 has one neuron: its variance is undefined",)
    assert math.isfinite(trace.layers[2].second_moment)
    assert "-" in str(trace)
    one = virgo.measure(chain(data.num_features, 16, 1), data, loss=lambda out, d: out.mean())
    assert one.notes == ("layer 2 has one neuron: its variance is undefined",)


def test_a_lazy_model_must_run_first(data: Data) -> None:
    model = GCN(-1, 16, 2, CLASSES)
    with untouched(model), pytest.raises(virgo.LayerError, match=r"got lazy ones.*init_"):
        virgo.measure(model, data)
    virgo.init_(model, data, "virgo-backward")
    assert len(virgo.measure(model, data).forward) == 3


# --- other data -----------------------------------------------------------------------------------


def together(tensors: list[Tensor]) -> float:
    """Over the nodes of all kinds."""
    return sum(over_nodes(t) * len(t) for t in tensors) / sum(len(t) for t in tensors)


def test_heterogeneous_graphs() -> None:
    torch.manual_seed(0)
    data = hetero()
    model = HeteroNet(data, depth=2, width=8)
    x = {kind: data[kind].x.clone().requires_grad_() for kind in data.node_types}
    hidden = {k: h.relu() for k, h in model.convs[0](x, data.edge_index_dict).items()}
    out = model.convs[1](hidden, data.edge_index_dict)

    def loss(output: dict[str, Tensor], data: HeteroData) -> Tensor:
        return sum((v**3).mean() for v in output.values())  # type: ignore[return-value]

    groups = [list(group.values()) for group in (x, hidden, out)]
    gradients = [torch.autograd.grad(loss(out, data), g, retain_graph=True) for g in groups]
    with pytest.raises(virgo.GraphError, match=r"data\.y.*backward=False"):
        virgo.measure(model, data)
    with untouched(model):
        trace = virgo.measure(model, data, loss=loss)
    assert trace.forward == pytest.approx([together(g) for g in groups], rel=CLOSE)
    assert trace.backward == pytest.approx([together(list(g)) for g in gradients], rel=1e-4)
    assert virgo.measure(model, data, backward=False).forward == trace.forward
    assert math.isnan(trace.layers[0].dirichlet_plain)
    strict_json(trace.to_json())
    with pytest.raises(virgo.GraphError, match="nodes: expected one kind of node"):
        virgo.measure(model, data, nodes=10)


def test_an_adjacency_instead_of_edges(data: Data) -> None:
    """The same graph stored as a sparse matrix gives the same numbers."""
    import warnings

    n = data.num_nodes
    ones = torch.ones(data.num_edges)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adj_t = torch.sparse_coo_tensor(data.edge_index.flip(0), ones, (n, n)).to_sparse_csr()
        given = Data(x=data.x, adj_t=adj_t, y=data.y, train_mask=data.train_mask)
        model = chain(data.num_features, 16, CLASSES)
        found = virgo.measure(model, given, forward=lambda m, d: m(d.x, d.adj_t))
    expected = virgo.measure(model, data)
    assert found.forward == pytest.approx(expected.forward, rel=1e-4)
    assert found.backward == pytest.approx(expected.backward, rel=1e-4)
    for a, b in zip(found.layers, expected.layers, strict=True):
        assert a.dirichlet_normalized == pytest.approx(b.dirichlet_normalized, rel=1e-4)


def test_the_table_has_a_line_a_layer(data: Data) -> None:
    text = str(virgo.measure(chain(data.num_features, 16, CLASSES), data)).splitlines()
    assert len(text) == 2 + 3
    assert "Dirichlet (norm.)" in text[0]
    assert "Dirichlet (plain)" in text[0]
    assert "into convs.1" in text[3]


def test_dirichlet_energies_of_many_edges_are_estimated_and_said(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample of the edges, drawn with replacement, scaled to all of them."""
    model = GCN(data.num_features, 16, num_layers=2, out_channels=7)
    exact = virgo.measure(model, data).layers[1]
    room = importlib.import_module("virgo.diagnostics.layer_statistics")
    monkeypatch.setattr(room, "SAMPLED_EDGES", 300)
    assert data.num_edges > 300
    trace = virgo.measure(model, data)
    assert any("estimated from 300 edges" in note for note in trace.notes)
    for name in ("dirichlet_normalized", "dirichlet_plain"):
        estimate, whole = getattr(trace.layers[1], name), getattr(exact, name)
        assert estimate != whole
        # the terms' spread is of the size of their mean, so 300 of them err by about 1/sqrt(300)
        assert estimate == pytest.approx(whole, rel=5 / 300**0.5)

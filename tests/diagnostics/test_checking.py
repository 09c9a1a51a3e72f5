"""``check()``: its predictions against dense formulas, its verdicts against built failures."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.checks import strict_json
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN, GIN, GCNConv, GraphSAGE

import virgo
from virgo.diagnostics.layer_statistics import Layer
from virgo.diagnostics.measurement import Measurement
from virgo.diagnostics.verdict import judge

#: A network without a closed form.
MAX_SAGE = partial(GraphSAGE, aggr="max")

CLASSES = 7


@pytest.fixture(scope="module")
def data() -> Data:
    return virgo.data.citation_like(num_nodes=200, num_features=64, seed=0)


def ready(kind: Any, data: Data, depth: int, width: int = 32, seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    return kind(data.num_features, width, depth, int(data.y.max()) + 1, **options)


def healthy(data: Data) -> Any:
    """A GCN whose signal and gradient survive, to be damaged in one place."""
    model = ready(GCN, data, 6, 128)
    virgo.init_(model, data, "virgo-backward", estimate="measured")
    return model


def causes(report: virgo.Report) -> set[tuple[str, str]]:
    return {(finding.cause, finding.layer) for finding in report.findings}


# --- calibration ----------------------------------------------------------------------------------

GRAPHS = [
    "cora",
    "generated",
    pytest.param("citeseer", marks=pytest.mark.slow),
    pytest.param("pubmed", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def graph(request: pytest.FixtureRequest) -> Data:
    name: str = request.param
    if name == "generated":
        return virgo.data.citation_like(num_nodes=1000, seed=0)
    if name == "cora":
        return request.getfixturevalue("cora")  # type: ignore[no-any-return]
    root: Path = request.getfixturevalue("data_root")
    if not (root / {"citeseer": "CiteSeer", "pubmed": "PubMed"}[name] / "raw").is_dir():
        pytest.skip(f"no real data: {root} has no {name}")
    return virgo.data.load_citation(name, root)


@pytest.mark.parametrize("graph", GRAPHS, indirect=True)
def test_sixteen_layers_are_bad_with_xavier_and_good_as_advised(graph: Data) -> None:
    model = ready(GCN, graph, 16, 64)
    virgo.plan(model, graph, "xavier").apply_(model)
    bad = virgo.check(model, graph)
    assert bad.level == "bad"
    assert {finding.cause for finding in bad.findings} == {"vanishing"}
    assert "vanishes by a factor of" in bad.verdict
    assert "Try virgo.init_(model, data): tried here, it narrows the gradient's range" in bad.advice
    virgo.init_(model, graph)  # what was advised does what was said
    assert f"the verdict is then {virgo.check(model, graph, advice=False).level}" in bad.advice


@pytest.mark.parametrize("graph", GRAPHS, indirect=True)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_two_layers_with_their_defaults_are_good(graph: Data, seed: int) -> None:
    report = virgo.check(ready(GCN, graph, 2, 128, seed), graph)
    assert report.level == "good", report.verdict
    assert report.verdict == "Signal and gradient survive all hidden layers."


@pytest.mark.parametrize("kind", [GCN, GraphSAGE, GIN, GAT])
@pytest.mark.parametrize("width", [16, 64])
def test_shallow_defaults_of_any_kind_are_good(kind: Any, width: int) -> None:
    small = virgo.data.citation_like(num_nodes=300, num_features=200, seed=1)
    for depth in (1, 2):
        assert virgo.check(ready(kind, small, depth, width), small).ok


# --- causes, one construction each ----------------------------------------------------------------


def test_the_healthy_network_is_healthy(data: Data) -> None:
    report = virgo.check(healthy(data), data)
    assert report.level == "good", report.verdict
    assert report.findings == ()


@pytest.mark.parametrize("index", [2, 4])
def test_one_weak_layer_is_named(index: int, data: Data) -> None:
    model = healthy(data)
    with torch.no_grad():
        model.convs[index].lin.weight.mul_(1e-3)
    report = virgo.check(model, data)
    assert not report.ok
    assert causes(report) == {
        ("vanishing", f"into convs.{index + 1}"),  # the signal, after it
        ("vanishing", f"into convs.{index}"),  # the gradient, before it
    }
    assert "signal vanishes" in report.verdict
    assert "gradient vanishes" in report.verdict
    assert f"layer {index + 1} (into convs.{index + 1})" in report.verdict
    assert "virgo.init_(" in report.verdict


def test_one_strong_layer_is_named(data: Data) -> None:
    model = healthy(data)
    with torch.no_grad():
        model.convs[3].lin.weight.mul_(1e3)
    report = virgo.check(model, data)
    assert not report.ok
    assert causes(report) == {("exploding", "into convs.4"), ("exploding", "into convs.3")}
    assert "signal explodes" in report.verdict


def test_a_gradient_that_vanishes_alone(data: Data) -> None:
    """Forward is exact for these weights; a layer that scales the gradient only is to blame."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            return 1e-4 * grad

    model = healthy(data)

    def forward(model: Any, data: Data) -> Tensor:
        x = data.x
        for i, conv in enumerate(model.convs):
            x = conv(x, data.edge_index)
            x = x if i == 5 else x.relu()
            x = Scaled.apply(x) if i == 3 else x
        return x

    report = virgo.check(model, data, forward=forward)
    assert not report.ok
    (finding,) = (f for f in report.findings if f.level == "bad")
    assert (finding.cause, finding.layer) == ("vanishing", "into convs.3")
    assert finding.sentence.startswith("The gradient vanishes")
    assert report.verdict.count("virgo.init_(") == 1


def test_overflow_is_exploding(data: Data) -> None:
    model = healthy(data)
    with torch.no_grad():
        for conv in model.convs:
            conv.lin.weight.mul_(1e10)
    report = virgo.check(model, data)
    assert not report.ok
    (finding,) = report.findings
    assert finding.cause == "exploding"
    assert "overflow" in finding.sentence
    at = [layer.name for layer in report.measurement.layers if math.isinf(layer.forward)]
    assert math.inf in report.measurement.forward
    assert at
    strict_json(report.to_json())
    assert finding.layer == at[0]
    assert "BAD: The signal is NaN or infinite from layer" in str(report)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_weight_that_is_not_finite_is_found_where_it_acts(value: float, data: Data) -> None:
    """Behind the second of the layers, though the gradient is undefined at every layer."""
    model = healthy(data)
    with torch.no_grad():
        model.convs[1].lin.weight[0, 0] = value
    (finding,) = virgo.check(model, data).findings
    assert finding.layer == "into convs.2"
    assert "weights are not finite" in finding.sentence


def test_dead_units_through_large_negative_biases(data: Data) -> None:
    model = healthy(data)
    with torch.no_grad():
        model.convs[2].bias[:100] = -1e6
    report = virgo.check(model, data)
    assert not report.ok
    assert ("dead units", "into convs.3") in causes(report)
    dead = report.measurement.layers[3].dead
    assert dead >= 100 / 128
    assert f"{dead:.0%} of the units that reach layer 3" in report.verdict


def test_a_few_dead_units_are_not_blamed(data: Data) -> None:
    model = healthy(data)
    with torch.no_grad():
        model.convs[2].bias[:13] = -1e6
    report = virgo.check(model, data)
    assert report.measurement.layers[3].dead >= 13 / 128
    assert report.ok, report.verdict


def test_all_units_dead_is_a_signal_of_zero(data: Data) -> None:
    model = healthy(data)
    with torch.no_grad():
        model.convs[2].bias.fill_(-1e6)
    report = virgo.check(model, data)
    assert not report.ok
    assert ("vanishing", "into convs.3") in causes(report)
    assert "zero at layer 3" in str(report)
    assert ("dead units", "into convs.3") in causes(report)


def test_all_nodes_alike_is_oversmoothing() -> None:
    """On a complete graph one hop makes every node the same."""
    n = 24
    edges = torch.tensor([(i, j) for i in range(n) for j in range(n) if i != j]).T
    generator = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.rand(n, 32, generator=generator),
        edge_index=edges,
        y=torch.arange(n) % 3,
        train_mask=torch.arange(n) == 0,
    )
    model = ready(GCN, data, 2, 64)
    with torch.no_grad():  # or half of the units are dead: where all nodes agree, a sign decides
        for conv in model.convs:
            conv.bias.fill_(3.0)
    report = virgo.check(model, data)
    assert not report.ok
    assert causes(report) == {("oversmoothing", "into convs.1")}
    assert "All nodes look alike from layer 1 on" in report.verdict
    assert report.measurement.layers[0].mean_average_distance > 0.1


def test_no_signal_at_the_first_hop(data: Data) -> None:
    model = healthy(data)
    with torch.no_grad():
        model.convs[0].lin.weight.mul_(1e-4)
    report = virgo.check(model, data)
    assert not report.ok
    assert causes(report) == {("no signal at the first hop", "into convs.1")}
    assert "The first layer lets almost nothing through" in report.verdict


def test_the_first_and_the_last_jump_are_shown_not_blamed(data: Data) -> None:
    model = healthy(data)
    with torch.no_grad():
        model.convs[0].lin.weight.mul_(100.0)
        model.convs[-1].lin.weight.div_(1e4)
    report = virgo.check(model, data)
    assert report.level == "good", report.verdict
    changes = [row[5] for row in report.rows("forward")]
    assert changes[1] > 1000
    assert changes[-1] < 1e-6
    assert all(0.1 < change < 10 for change in changes[2:-1])
    assert report.rows("backward")[-2][5] < 1e-5


# --- the judge on hand-made layers ----------------------------------------------------------------


def made(
    forward: Sequence[float],
    backward: Sequence[float] | None = None,
    *,
    distance: float = 0.5,
    dead: float = 0.0,
    width: int = 8,
) -> Measurement:
    backward = backward or [1.0] * len(forward)
    layers = tuple(
        Layer(i, f"h{i}", width, f, b, 0.0, f, dead, 0.1, 0.1, distance)
        for i, (f, b) in enumerate(zip(forward, backward, strict=True))
    )
    return Measurement(layers, {}, 0.0)


def levels(measured: Measurement, **limits: float) -> list[tuple[str, str, str]]:
    found = judge(measured, virgo.Thresholds(**limits))
    return [(f.level, f.cause, f.layer) for f in found]


def test_thresholds_decide() -> None:
    falling = made([1, 1, 0.5, 0.03, 0.02, 1])
    assert levels(falling) == [("watch", "vanishing", "h3")]
    assert levels(falling, change=40) == [("bad", "vanishing", "h3")]
    assert levels(falling, watch=60) == []
    assert levels(falling, change=40, watch=300) == [("bad", "vanishing", "h3")]
    rising = made([1, 1, 2, 40, 50, 1])
    assert levels(rising) == [("watch", "exploding", "h3")]
    assert levels(rising, change=50) == [("bad", "exploding", "h3")]
    assert levels(made([1, 1, 1, 1], dead=0.4)) == []
    assert levels(made([1, 1, 1, 1], dead=0.4), dead=0.3) == [("bad", "dead units", "h1")]
    assert levels(made([1, 1, 1, 1], distance=1e-3)) == []
    assert levels(made([1, 1, 1, 1], distance=1e-3), alike=0.01) == [("bad", "oversmoothing", "h1")]
    assert levels(made([1, 1e-3, 1e-3, 1])) == []
    assert levels(made([1, 1e-3, 1e-3, 1]), first_hop=0.01) == [
        ("bad", "no signal at the first hop", "h1")
    ]


def test_backward_is_read_from_the_end() -> None:
    # from h4 back to h1 the gradient falls; the largest step down is into h2
    falling = made([1] * 6, [1, 1e-4, 2e-4, 0.5, 1, 1])
    assert levels(falling) == [("bad", "vanishing", "h2")]
    growing = made([1] * 6, [1, 1e4, 5e3, 2, 1, 1])
    assert levels(growing) == [("bad", "exploding", "h2")]


def test_a_mention_does_not_hide_what_is_bad() -> None:
    found = levels(made([1, 1, 0.5, 0.02, 1], distance=1e-6))
    assert found == [("bad", "oversmoothing", "h1"), ("watch", "vanishing", "h3")]


def test_a_layer_of_one_neuron_does_not_hide_the_others() -> None:
    measured = made([1, 1, 0.1, 1e-4, 1e-5, 1])
    layers = list(measured.layers)
    layers[2] = replace(layers[2], width=1, forward=math.nan, backward=math.nan)
    assert levels(replace(measured, layers=tuple(layers))) == [("bad", "vanishing", "h3")]


def test_undefined_and_infinite_values() -> None:
    assert levels(made([1, 1, math.inf, math.inf, 1])) == [("bad", "exploding", "h2")]
    assert levels(made([1, 1, 1, 1], [1, math.inf, 1, 1])) == [("bad", "exploding", "h1")]
    assert levels(made([1, math.nan, math.nan, 1], width=1)) == []
    assert levels(made([1, 1])) == []


def ranked(*ranks: float, backward: Sequence[float] | None = None) -> Measurement:
    measured = made([1.0] * len(ranks), backward)
    layers = zip(measured.layers, ranks, strict=True)
    return replace(measured, layers=tuple(replace(a, effective_rank=r) for a, r in layers))


def test_a_collapse_of_the_rank_is_bad() -> None:
    assert levels(ranked(99, 9, 5, 2.1, 1)) == [("bad", "rank collapse", "h3")]  # 1.1 / 8
    assert levels(ranked(99, 9, 5, 2.5, 1)) == [("watch", "rank collapse", "h3")]
    assert levels(ranked(99, 9, 5, 2.7, 1)) == []
    assert levels(ranked(99, 9, 5, 2.5, 1), rank=0.19) == [("bad", "rank collapse", "h3")]
    assert levels(ranked(99, 9, 5, 2.5, 1), rank_watch=0.16) == []
    assert levels(ranked(99, 1.9, 1.0, 1.0, 1)) == []  # there was one direction all along
    assert levels(ranked(99, 1.1, 1)) == []  # a single hidden layer


def test_a_small_gradient_and_a_low_rank_are_one_cause() -> None:
    weak = ranked(99, 9, 3, 1.1, 1, backward=[1, 0.02, 0.1, 1, 1])
    (finding,) = judge(weak, virgo.Thresholds())
    assert (finding.level, finding.cause) == ("bad", "rank collapse")
    assert "an effective rank of 9 at layer 1, 1.1 is left at layer 3" in finding.sentence
    assert "The gradient weakens by a factor of 50" in finding.sentence
    lost = ranked(99, 9, 3, 1.1, 1, backward=[1, 1e-5, 0.1, 1, 1])
    (finding,) = judge(lost, virgo.Thresholds())
    assert (finding.level, finding.cause) == ("bad", "vanishing")
    assert "The nodes collapse towards one direction" in finding.sentence


def test_what_the_last_layer_returns_is_hidden_where_a_head_follows() -> None:
    measured = made([1, 1, 1, 1e-4])
    assert levels(measured) == []
    assert levels(replace(measured, has_head=True)) == [("bad", "vanishing", "h3")]


def test_a_mean_over_rows_is_no_decay() -> None:
    measured = made([1, 1, 1e-4, 1e-4, 1])
    layers = [replace(a, rows=100 if a.index < 2 else 1) for a in measured.layers]
    assert levels(measured) == [("bad", "vanishing", "h2")]
    assert levels(replace(measured, layers=tuple(layers))) == []


# --- predictions ----------------------------------------------------------------------------------


def directed(seed: int = 0) -> Data:
    """A graph whose operators are not symmetric, so that a missing transpose shows."""
    data = virgo.data.citation_like(num_nodes=80, num_features=40, seed=seed)
    keep = torch.rand(data.num_edges, generator=torch.Generator().manual_seed(1)) < 0.6
    data.edge_index = data.edge_index[:, keep]
    return data


def gcn_operators(data: Data) -> list[Tensor]:
    n = data.num_nodes
    a = torch.eye(n, dtype=torch.float64)
    a[data.edge_index[1], data.edge_index[0]] += 1.0
    root = a.sum(1).rsqrt()
    return [root[:, None] * a * root]


def sage_operators(data: Data) -> list[Tensor]:
    n = data.num_nodes
    a = torch.zeros(n, n, dtype=torch.float64)
    a[data.edge_index[1], data.edge_index[0]] += 1.0
    return [a / a.sum(1, keepdim=True).clamp(min=1), torch.eye(n, dtype=torch.float64)]


KINDS: dict[str, tuple[Any, Callable[[Data], list[Tensor]], list[str]]] = {
    "gcn": (GCN, gcn_operators, ["lin"]),
    "sage": (GraphSAGE, sage_operators, ["lin_l", "lin_r"]),
}


def theorem_1(
    data: Data, operators: list[Tensor], fans: list[int], variances: list[list[float]]
) -> list[float]:
    """Squared amplitudes per node, hop by hop; independent terms add."""
    squares = data.x.double().mean(1) ** 2
    out = [float(squares.mean())]
    for fan, layer in zip(fans, variances, strict=True):
        amplitude = squares.sqrt()
        squares = sum(  # type: ignore[assignment]
            fan * v / 2 * (p @ amplitude) ** 2 for p, v in zip(operators, layer, strict=True)
        )
        out.append(float(squares.mean()))
    return out


def theorem_2(
    data: Data, operators: list[Tensor], fans: list[int], variances: list[list[float]]
) -> list[float]:
    """The proof's form: Lemma 1 with softmax = 1/C at the labelled nodes, then hop by hop."""
    count, n, classes = int(data.train_mask.sum()), data.num_nodes, fans[-1]
    # one (of C) entries of the gradient is off by one over the number of labelled nodes
    squares = data.train_mask.double() / (count**2 * classes)
    out = [float(squares.sum()) / n]
    for index in reversed(range(len(fans))):
        last = index == len(fans) - 1
        factor = (classes - 1) if last else fans[index] / 2
        amplitude = squares.sqrt()
        squares = sum(  # type: ignore[assignment]
            factor * v * (p.T @ amplitude) ** 2
            for p, v in zip(operators, variances[index], strict=True)
        )
        out.append(float(squares.sum()) / n)
    return out[::-1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["xavier", "virgo-backward"])
def test_predictions_are_theorems_1_and_2(kind: str, method: str) -> None:
    data = directed()
    make, operators, names = KINDS[kind]
    model = ready(make, data, 4, 24)
    plan = virgo.plan(model, data, method)
    variances = [[plan.variances[f"convs.{i}.{n}.weight"] for n in names] for i in range(4)]
    report = virgo.check(model, data, plan)
    widths = [data.num_features, 24, 24, 24, CLASSES]
    forward = theorem_1(data, operators(data), widths[:-1], variances)
    backward = theorem_2(data, operators(data), widths[1:], variances)
    assert report.predicted_forward == pytest.approx(forward, rel=1e-6)
    assert report.predicted_backward == pytest.approx(backward, rel=1e-6)
    assert report.notes == ()


def test_the_oracle_would_see_a_missing_transpose() -> None:
    data = directed()
    model = ready(GCN, data, 3, 24)
    plan = virgo.plan(model, data, "xavier")
    variances = [[plan.variances[f"convs.{i}.lin.weight"]] for i in range(3)]
    wrong = [p.T for p in gcn_operators(data)]
    backward = theorem_2(data, wrong, [24, 24, CLASSES], variances)
    found = virgo.check(model, data, plan).predicted_backward
    assert found[:-1] != pytest.approx(backward[:-1], rel=1e-3)


class InFirst(nn.Module):
    """GCN's operator with a weight that is stored as ``[in, out]``."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inner = GCNConv(inputs, inputs, bias=False).requires_grad_(False)
        self.inner.lin.weight.data.copy_(torch.eye(inputs))
        self.weight = nn.Parameter(torch.randn(inputs, outputs))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.inner(x, edge_index) @ self.weight
        return out


@virgo.register_layer(InFirst)
def _in_first(layer: InFirst, view: virgo.LayerView) -> list[virgo.Stage]:
    return [(virgo.Term(view.graph.gcn(), "weight", in_first=True),)]


class TwoInFirst(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.first, self.last = InFirst(inputs, 24), InFirst(24, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(x, edge_index).relu(), edge_index)
        return out


def test_a_weight_stored_in_first_has_its_own_fans(data: Data) -> None:
    model = TwoInFirst(data.num_features)
    plan = virgo.plan(model, data, "xavier")
    report = virgo.check(model, data, plan)
    variances = [[plan.variances["first.weight"]], [plan.variances["last.weight"]]]
    operators = gcn_operators(data)[:2]
    forward = theorem_1(data, operators, [data.num_features, 24], variances)
    assert report.predicted_forward == pytest.approx(forward, rel=1e-5)
    backward = theorem_2(data, operators, [24, CLASSES], variances)
    assert report.predicted_backward == pytest.approx(backward, rel=1e-5)


def test_a_check_reads_and_traces_once(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    room = importlib.import_module("virgo.diagnostics.measurement")
    counts = Counter[str]()

    def counted(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            counts[name] += 1
            return real(*args, **options)

        monkeypatch.setattr(owner, name, call)

    counted(room.reading, "read")
    counted(room.Inputs, "neighbourhood")
    counted(room, "watch")
    counted(room, "observe")
    report = virgo.check(ready(GCN, data, 3, 24), data, nodes=60)
    assert not any(map(math.isnan, report.predicted_forward))
    assert counts == {"read": 1, "neighbourhood": 1, "watch": 1, "observe": 1}


def test_own_weights_are_predicted_from_what_is_there(data: Data) -> None:
    model = ready(GCN, data, 3, 24)
    with torch.no_grad():
        model.convs[1].lin.weight.mul_(3.0)
    variances = [[float(c.lin.weight.detach().double().square().mean())] for c in model.convs]
    report = virgo.check(model, data)
    forward = theorem_1(data, gcn_operators(data), [data.num_features, 24, 24], variances)
    assert report.predicted_forward == pytest.approx(forward, rel=1e-5)


def test_predictions_are_of_the_right_size(data: Data) -> None:
    """Wide layers on regular-sized numbers: theory and measurement meet within a factor."""
    model = ready(GCN, data, 4, 256)
    report = virgo.check(model, data, virgo.plan(model, data, "virgo-forward"))
    for row in report.rows("forward")[1:-1]:
        assert 1 / 4 < row[4] < 4
    for row in report.rows("backward")[1:]:
        assert 1 / 4 < row[4] < 4


def test_no_training_nodes_means_all_nodes(data: Data) -> None:
    model = ready(GCN, data, 3)
    empty, full = data.clone(), data.clone()
    empty.train_mask = torch.zeros_like(data.train_mask)
    full.train_mask = torch.ones_like(data.train_mask)
    reports = [virgo.check(model, given) for given in (empty, full)]
    assert reports[0].predicted_backward == reports[1].predicted_backward
    assert all(math.isfinite(v) for v in reports[0].predicted_backward)


def test_another_loss_is_predicted_from_the_gradient_that_was_seen(data: Data) -> None:
    model = ready(GCN, data, 3)
    report = virgo.check(model, data, loss=lambda out, d: 1e3 * (out**2).mean())
    assert report.predicted_backward[-1] == report.measurement.backward[-1]
    assert virgo.check(model, data).predicted_backward[-1] != report.predicted_backward[-1]


def nothing_predicted(report: virgo.Report) -> bool:
    return all(map(math.isnan, (*report.predicted_forward, *report.predicted_backward)))


def test_unregistered_layers_give_a_note(data: Data) -> None:
    report = virgo.check(ready(MAX_SAGE, data, 3), data)
    assert nothing_predicted(report)
    assert len(report.predicted_forward) == 4
    assert any("no prediction: convs.0" in note and "SAGEConv" in note for note in report.notes)
    assert all(math.isfinite(v) for v in report.measurement.forward)
    assert "note: no prediction" in str(report)


class Residual(nn.Module):
    def __init__(self, data: Data) -> None:
        super().__init__()
        widths = [data.num_features, 16, 16, CLASSES]
        self.convs = nn.ModuleList(GCNConv(a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.convs[0](x, edge_index).relu()
        x = x + self.convs[1](x, edge_index).relu()
        return self.convs[2](x, edge_index)


def test_branches_give_a_note(data: Data) -> None:
    report = virgo.check(Residual(data), data)
    assert nothing_predicted(report)
    assert report.notes == ("no prediction: the layers are not one chain",)


def test_features_without_a_mean_give_a_note(data: Data) -> None:
    given = data.clone()
    given.x = torch.cat([data.x, -data.x], 1)
    report = virgo.check(ready(GCN, given, 3), given)
    assert nothing_predicted(report)
    assert any("mean feature of every node is zero" in note for note in report.notes)


def test_a_sample_is_predicted_and_measured_alike(data: Data) -> None:
    model = ready(GCN, data, 3)
    report = virgo.check(model, data, nodes=60)
    assert report.measurement.facts["nodes"] == 60
    assert any("sample of 60 of 200" in note for note in report.measurement.notes)
    assert report.predicted_forward[0] != virgo.check(model, data).predicted_forward[0]


# --- what a report gives --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report(data: Data) -> virgo.Report:
    return virgo.check(ready(GCN, data, 3), data)


def test_json(report: virgo.Report, data: Data) -> None:
    read = strict_json(report.to_json(indent=1))
    assert read["ok"] is report.ok
    assert read["level"] == report.level
    assert read["verdict"] == report.verdict
    assert read["predicted_forward"] == list(report.predicted_forward)
    assert [layer["forward"] for layer in read["measurement"]["layers"]] == (
        report.measurement.forward
    )
    assert read["thresholds"]["change"] == 100
    assert read["measurement"]["loss_name"] == "cross-entropy"
    assert read["measurement"]["update_ratios"].keys() == {
        name for name in read["measurement"]["weight_gradients"] if name.endswith("weight")
    }  # biases are zero
    unknown = strict_json(virgo.check(ready(MAX_SAGE, data, 2), data).to_json())
    assert unknown["predicted_forward"] == [None] * 3


def test_rows_and_text(report: virgo.Report) -> None:
    measured = report.measurement
    for way in ("forward", "backward"):
        rows = report.rows(way)
        values = getattr(measured, way)
        predicted = getattr(report, f"predicted_{way}")
        assert [row[3] for row in rows] == values
        assert [row[4] for row in rows] == [v / p for v, p in zip(values, predicted, strict=True)]
    forward, backward = measured.forward, measured.backward
    assert [r[5] for r in report.rows("forward")[1:]] == [b / a for a, b in pairwise(forward)]
    assert [r[5] for r in report.rows("backward")[:-1]] == [a / b for a, b in pairwise(backward)]
    assert math.isnan(report.rows("forward")[0][5])
    assert math.isnan(report.rows("backward")[-1][5])
    text = str(report)
    assert text.startswith("GOOD: Signal and gradient survive")
    assert "forward variance" in text
    assert "backward variance" in text


def test_save_by_ending(report: virgo.Report, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page = report.save(tmp_path / "new" / "report.html")
    text = page.read_text(encoding="utf-8")
    assert text.lstrip().lower().startswith("<!doctype html")
    assert report.verdict in text
    assert strict_json(report.save(tmp_path / "r.json").read_text(encoding="utf-8"))["ok"]
    assert report.save(str(tmp_path / "r.PNG")).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert report.save(tmp_path / "r.pdf").read_bytes()[:4] == b"%PDF"
    for name in ("r.txt", "report", "r.html.gz"):
        with pytest.raises(virgo.OptionError, match=r"ends in \.html, \.json, \.png"):
            report.save(tmp_path / name)
        assert not (tmp_path / name).exists()


def test_plot(report: virgo.Report) -> None:
    pytest.importorskip("matplotlib")
    forward, backward = report.plot()
    for axes, way in ((forward, "forward"), (backward, "backward")):
        assert axes.get_yscale() == "log"
        assert axes.get_xlabel() == "layer"
        assert way in axes.get_title()
        assert [line.get_label() for line in axes.lines] == ["measured", "predicted"]
        assert list(axes.lines[0].get_ydata()) == getattr(report.measurement, way)
        assert tuple(axes.lines[1].get_ydata()) == getattr(report, f"predicted_{way}")
        # readable in grey: no two curves share dashes or marker
        assert len({line.get_linestyle() for line in axes.lines}) == 2
        assert len({line.get_marker() for line in axes.lines}) == 2
    assert forward.get_ylabel() == "variance"
    (legend,) = forward.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["measured", "predicted"]


def test_a_report_without_prediction_or_with_infinity_is_drawn_too(
    data: Data, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    model = ready(MAX_SAGE, data, 3)
    with torch.no_grad():
        for conv in model.convs:
            conv.lin_l.weight.mul_(1e15)
    report = virgo.check(model, data)
    assert not report.ok
    for name in ("r.html", "r.json", "r.png"):
        assert report.save(tmp_path / name).stat().st_size > 0


def test_a_name_with_markup_is_text(report: virgo.Report, tmp_path: Path) -> None:
    titled = replace(report, title="<script>alert(1)</script>")
    assert "<script>alert(1)" not in titled.save(tmp_path / "r.html").read_text(encoding="utf-8")

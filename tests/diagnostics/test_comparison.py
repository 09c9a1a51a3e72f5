"""``compare()``: its curves against ``measure()``, its sums and claims on curves made by hand."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.snapshots import untouched
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCN, MLP, GraphSAGE

import virgo
from virgo.diagnostics.comparison import Claim, Curve, joined
from virgo.rules import parse_method
from virgo.vocabulary import CLASSIC, COMPARED

#: A network without a closed form.
MAX_SAGE = partial(GraphSAGE, aggr="max")

CLASSES = 7


@pytest.fixture(scope="module")
def data() -> Data:
    return virgo.data.citation_like(num_nodes=120, num_features=48, seed=0)


def maker(data: Data, kind: Any = GCN) -> Any:
    def make(depth: int) -> nn.Module:
        torch.manual_seed(0)
        return kind(data.num_features, 16, depth, CLASSES)  # type: ignore[no-any-return]

    return make


# --- curves ---------------------------------------------------------------------------------------


def test_curves_are_what_measure_finds_for_the_same_plans(data: Data) -> None:
    make, names = maker(data), ["xavier", "virgo-forward+measured", "virgo-backward+mirrored"]
    said: list[tuple[int, int, str]] = []
    study = virgo.compare(
        make, data, names, [2, 4], seeds=3, progress=lambda *step: said.append(step)
    )
    options: dict[str, dict[str, Any]] = {
        "xavier": {},
        "virgo-forward+measured": {"estimate": "measured"},
        "virgo-backward+mirrored": {"distribution": "mirrored"},
    }
    assert study.depths == [2, 4]
    assert len(study.curves) == 3 * 2 * 2
    for depth in (2, 4):
        for name in names:
            model = make(depth)
            plans = [
                virgo.plan(model, data, name.split("+")[0], seed=s, **options[name])
                for s in range(3)
            ]
            trace = virgo.measure(model, data, plan=plans)
            for way in ("forward", "backward"):
                curve = study.at(depth, way)[name]
                assert list(curve.values) == pytest.approx(getattr(trace, way), rel=1e-6)
                spreads = [getattr(layer, f"{way}_sd") for layer in trace.layers]
                assert list(curve.spread) == pytest.approx(spreads, rel=1e-3, abs=1e-12)
                assert len(curve.values) == depth + 1
    # every draw is another one, all the way to the input
    assert all(s > 0 for s in study.at(4, "backward")["xavier"].spread)
    assert said == [(i + 1, 6, [*names, *names][i]) for i in range(6)]
    assert study.failures == {}
    assert study.facts == {"nodes": 120, "edges": data.num_edges}


def test_measured_virgo_is_flat_and_xavier_is_not(data: Data) -> None:
    study = virgo.compare(maker(data), data, ["xavier", "virgo-forward+measured"], [8], seeds=2)
    panel = study.at(8, "forward")
    assert panel["virgo-forward+measured"].stability < 1.05
    assert panel["virgo-forward+measured"].leaves is None
    assert panel["xavier"].stability > 10
    (claim,) = (c for c in study.claims() if c.direction == "forward")
    assert claim.confirmed
    assert "8 layers, forward: confirmed" in str(study)


def test_the_verdict_is_that_of_check(data: Data) -> None:
    study = virgo.compare(maker(data), data, ["lecun", "virgo-forward+measured"], [3, 12], seeds=1)
    for one in study.health:
        method, options = parse_method(one.method)
        made = virgo.plan(maker(data)(one.depth), data, method, seed=0, **options)
        report = virgo.check(maker(data)(one.depth), data, made)
        assert one.level == report.level
        assert one.findings == tuple(finding.sentence for finding in report.findings)
    levels = {(one.method, one.depth): one.level for one in study.health}
    assert levels["lecun", 12] == "bad"
    assert levels["virgo-forward+measured", 12] == "watch"  # of its gradient
    assert levels["virgo-forward+measured", 3] == "good"
    assert [row[-1] for row in study.table(12)] == ["bad", "watch"]


def test_joined() -> None:
    first, second = (
        virgo.Comparison(
            (curve([1.0, 2.0], depth=depth),),
            1,
            notes=("same", str(depth)),
            failures={f"virgo, {depth} layers": "why"},
        )
        for depth in (2, 3)
    )
    both = joined([first, second])
    assert both.depths == [2, 3]
    assert both.notes == ("same", "2", "3")
    assert set(both.failures) == {"virgo, 2 layers", "virgo, 3 layers"}


def test_defaults(data: Data) -> None:
    study = virgo.compare(maker(data), data, seeds=1)
    assert study.depths == [5]
    assert list(study.at(5, "forward")) == list(COMPARED)
    assert set(CLASSIC) < set(COMPARED)
    assert study.title == "GCN"
    assert {(c.direction, c.virgo) for c in study.claims()} == {
        (way, f"virgo-{way}{end}") for way in ("forward", "backward") for end in ("", "+measured")
    }


def test_the_model_that_was_made_is_left_alone(data: Data) -> None:
    model = maker(data)(3)
    with untouched(model):
        virgo.compare(lambda: model, data, ["xavier", "virgo+measured"], seeds=2)


def test_a_maker_without_an_argument(data: Data) -> None:
    study = virgo.compare(lambda: maker(data)(3), data, ["lecun"], seeds=1)
    assert study.depths == [3]
    with pytest.raises(virgo.OptionError, match="depths: expected a make_model that takes the"):
        virgo.compare(lambda: maker(data)(3), data, ["lecun"], depths=[2, 3])


def test_a_sample_is_said(data: Data) -> None:
    study = virgo.compare(
        maker(data), data, ["lecun", "xavier"], [2, 3], seeds=1, nodes=50, notes=["from here"]
    )
    assert study.facts["nodes"] == 50
    assert study.notes[0] == "from here"
    assert sum("sample of 50 of 120 nodes" in note for note in study.notes) == 1


def test_a_loss_by_argument(data: Data) -> None:
    unlabelled = Data(x=data.x, edge_index=data.edge_index)

    def loss(output: Tensor, data: Data) -> Tensor:
        return (output**2).mean()

    study = virgo.compare(maker(data), unlabelled, ["xavier"], [3], seeds=1, loss=loss)
    model = maker(data)(3)
    trace = virgo.measure(model, data, plan=virgo.plan(model, data, "xavier"), loss=loss)
    assert list(study.at(3, "backward")["xavier"].values) == trace.backward


# --- failures -------------------------------------------------------------------------------------


def test_a_method_that_fails_is_listed_and_others_go_on(data: Data) -> None:
    """A maximum has no constant coefficients: only the measured estimate serves it."""
    study = virgo.compare(
        maker(data, MAX_SAGE), data, ["virgo-forward", "virgo-forward+measured"], [2, 3], seeds=1
    )
    assert set(study.failures) == {"virgo-forward, 2 layers", "virgo-forward, 3 layers"}
    assert all("SAGEConv" in why for why in study.failures.values())
    assert list(study.at(3, "forward")) == ["virgo-forward+measured"]
    assert "failed: virgo-forward, 2 layers: convs.0" in str(study)
    assert json.loads(study.to_json())["failures"] == study.failures
    fixed = virgo.compare(
        lambda: maker(data, MAX_SAGE)(2), data, ["virgo", "virgo-forward+measured"], seeds=1
    )
    assert set(fixed.failures) == {"virgo"}


def test_all_failing_is_an_error(data: Data) -> None:
    with pytest.raises(virgo.OptionError, match=r"every method failed: virgo-forward, 2 layers"):
        virgo.compare(maker(data, MAX_SAGE), data, ["virgo-forward"], [2], seeds=1)


def test_a_mistake_in_the_users_maker_is_not_swallowed(data: Data) -> None:
    def broken(depth: int) -> nn.Module:
        raise KeyError("mine")

    with pytest.raises(virgo.VirgoError, match="KeyError: 'mine'") as raised:
        virgo.compare(broken, data, ["xavier"], [2])
    assert isinstance(raised.value.__cause__, KeyError)


def test_bad_options(data: Data) -> None:
    with pytest.raises(virgo.OptionError, match=r"methods: expected one of measured.*got 'fast'"):
        virgo.compare(maker(data), data, ["xavier+fast"], [2])
    with pytest.raises(virgo.OptionError, match="nonsense"):
        virgo.compare(maker(data), data, ["nonsense"], [2])
    for seeds, message in ((0, "at least 1, got 0"), (10**30, "at most 100,000, got 10")):
        with pytest.raises(virgo.OptionError, match=f"seeds: expected {message}"):
            virgo.compare(maker(data), data, ["xavier"], [2], seeds=seeds)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("xavier", ("xavier", {})),
        ("VirgoFor", ("virgo-forward", {})),
        ("virgo-forward+measured", ("virgo-forward", {"estimate": "measured"})),
        ("virgo+released", ("virgo", {"variant": "released"})),
        ("virgo-forward+rms", ("virgo-forward", {"signal": "rms"})),
        (
            "virgo-backward+measured+orthogonal",
            ("virgo-backward", {"estimate": "measured", "distribution": "orthogonal"}),
        ),
    ],
)
def test_parse_method(text: str, expected: tuple[str, dict[str, str]]) -> None:
    assert parse_method(text) == expected


def test_an_alias_is_called_by_its_name(data: Data) -> None:
    study = virgo.compare(maker(data), data, ["VirgoFor+rms"], [2], seeds=1)
    assert list(study.at(2, "forward")) == ["virgo-forward+rms"]


# --- sums of a curve ------------------------------------------------------------------------------


def curve(
    values: list[float], direction: str = "forward", method: str = "xavier", depth: int = 0
) -> Curve:
    return Curve(
        method, depth or len(values) - 1, direction, tuple(values), tuple([0.0] * len(values))
    )


@pytest.mark.parametrize(
    ("values", "stability"),
    [
        ([1, 1, 1], 1),
        ([1, 4, 2], 4),
        ([8, 4, 2], 4),
        ([1, 0, 1], math.inf),
        ([1, math.nan, 1], math.inf),
        ([1, math.inf, 1], math.inf),
    ],
)
def test_stability_is_max_over_min(values: list[float], stability: float) -> None:
    assert curve(values).stability == stability
    assert curve(values, "backward").stability == stability


@pytest.mark.parametrize(
    ("values", "forward", "backward"),
    [
        ([1, 2, 9, 1], None, None),
        ([1, 2, 11, 1], 2, 1),
        ([1, 0.5, 0.05, 0.01], 2, 2),
        ([100, 1, 1, 1], 1, 3),
        ([1, 1, 1, math.inf], 3, 1),
        ([1, math.nan, 1, 1], 1, 2),
    ],
)
def test_leaves_counts_from_where_the_signal_begins(
    values: list[float], forward: int | None, backward: int | None
) -> None:
    assert curve(values).leaves == forward
    assert curve(values, "backward").leaves == backward


def test_an_undefined_beginning_is_not_never() -> None:
    study = virgo.Comparison((curve([math.nan, 1.0]), curve([1.0, 1.0], "backward")), 1)
    assert study.table(1) == [("xavier", "xinf", "0", "x1", "never", "-")]


# --- claims ---------------------------------------------------------------------------------------


def panel(**ranges: float) -> virgo.Comparison:
    """Two layers, each method with the given max/min."""
    names = {name.replace("_", "-").replace("--", "+"): value for name, value in ranges.items()}
    curves = [
        curve([value, 1.0], way, name)
        for name, value in names.items()
        for way in ("forward", "backward")
    ]
    return virgo.Comparison(tuple(curves), 1)


def test_a_claim_is_against_the_best_classic_method() -> None:
    study = panel(xavier=100, lecun=20, virgo_forward=10, virgo_backward=50, virgo=1)
    assert study.claims() == [
        Claim(1, "forward", "virgo-forward", 10, "lecun", 20),
        Claim(1, "backward", "virgo-backward", 50, "lecun", 20),
    ]
    assert [claim.confirmed for claim in study.claims()] == [True, False]
    text = str(study)
    assert "1 layers, forward: confirmed: virgo-forward changes by x10" in text
    assert "1 layers, backward: not confirmed: virgo-backward changes by x50" in text
    assert "(lecun) by x20" in text
    document = study.document()
    assert "in 1 of 2 comparisons" in document["verdict"]["headline"]
    read = json.loads(study.to_json())["claims"]
    assert [claim["confirmed"] for claim in read] == [True, False]


def test_a_draw_is_not_confirmed() -> None:
    assert not Claim(1, "forward", "virgo-forward", 5.0, "xavier", 5.0).confirmed
    assert not Claim(1, "forward", "virgo-forward", math.inf, "xavier", math.inf).confirmed
    assert Claim(1, "forward", "virgo-forward", 5.0, "xavier", math.inf).confirmed


@pytest.mark.parametrize(
    ("virgo_range", "classic_range", "word"),
    [
        (44.79, 44.80, "level"),
        (44.80, 44.79, "level"),
        (44.0, 44.8, "confirmed"),
        (44.8, 44.0, "not confirmed"),
        (math.inf, math.inf, "not confirmed"),
    ],
)
def test_no_claim_rests_on_the_last_digit(
    virgo_range: float, classic_range: float, word: str
) -> None:
    claim = Claim(5, "forward", "virgo-forward", virgo_range, "lecun", classic_range)
    assert str(claim).startswith(f"5 layers, forward: {word}: ")
    assert claim.confirmed == (word == "confirmed")
    assert claim.is_level == (word == "level")


def test_measured_has_a_claim_of_its_own() -> None:
    study = panel(xavier=9, virgo_forward=10, virgo_forward__measured=2)
    assert [(c.virgo, c.confirmed) for c in study.claims()] == [
        ("virgo-forward", False),
        ("virgo-forward+measured", True),
    ]


def test_no_claim_without_both_sides() -> None:
    assert panel(virgo_forward=2).claims() == []
    assert panel(xavier=2, virgo=1).claims() == []


# --- what a comparison gives ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def study(data: Data) -> virgo.Comparison:
    return virgo.compare(
        maker(data), data, ["xavier", "virgo-forward"], [2, 3], seeds=2, title="mine"
    )


def test_text_and_table(study: virgo.Comparison) -> None:
    text = str(study)
    assert text.startswith("mine, mean of 2 draws")
    assert "2 layers" in text
    assert "3 layers" in text
    assert "leaves x10 at" in text
    assert [row[0] for row in study.table(2)] == ["xavier", "virgo-forward"]


def test_save(study: virgo.Comparison, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    text = study.save(tmp_path / "c.html").read_text(encoding="utf-8")
    assert "Virgo compare: mine" in text
    read = json.loads(study.save(tmp_path / "c.json").read_text(encoding="utf-8"))
    assert len(read["curves"]) == 8
    first = study.curves[0]
    assert read["curves"][0]["values"] == list(first.values)
    assert read["curves"][0]["stability"] == first.stability
    assert read["curves"][0]["leaves"] == first.leaves
    assert study.save(tmp_path / "c.png").read_bytes()[1:4] == b"PNG"
    with pytest.raises(virgo.OptionError, match="save: expected a path that ends in"):
        study.save(tmp_path / "c.csv")


def test_a_loss_is_inferred_and_a_reason_said_once() -> None:
    class Pair(GCN):  # type: ignore[misc]
        def forward(self, x: Any, edge_index: Any) -> Any:
            out = super().forward(x, edge_index)
            return out, x

    data = virgo.data.citation_like(num_nodes=120, num_features=40, seed=0)
    assert not virgo.compare(lambda: Pair(40, 8, 2, 7), data, ["xavier"], seeds=1).failures
    del data.y
    assert not virgo.compare(lambda: GCN(40, 8, 2, 7), data, ["xavier"], seeds=1).failures
    with pytest.raises(virgo.OptionError, match="every method failed: xavier, virgo: MLP: ") as met:
        virgo.compare(lambda: MLP([40, 8, 7]), data, ["xavier", "virgo"], seeds=1)
    assert str(met.value).count("expected at least one message-passing layer") == 1


def test_plot(study: virgo.Comparison) -> None:
    pytest.importorskip("matplotlib")
    for depth in (2, 3):
        panels = study.plot(depth)
        for axes, way in zip(panels, ("forward", "backward"), strict=True):
            assert axes.get_yscale() == "log"
            names = [line.get_label() for line in axes.lines]
            assert names == ["xavier", "virgo-forward"]
            for line in axes.lines:
                values = study.at(depth, way)[str(line.get_label())].values
                assert tuple(line.get_ydata()) == values
            assert len(axes.collections) == 2  # a band each
    (legend,) = study.plot()[0].figure.legends
    assert [t.get_text() for t in legend.get_texts()] == ["xavier", "virgo-forward"]
    assert "3 layers" in study.figure(3).get_suptitle()
    every = study.figure()  # all depths, a row each
    assert [axes.get_title().rpartition(", ")[2] for axes in every.axes] == [
        f"{depth} layers" for depth in study.depths for _ in ("forward", "backward")
    ]

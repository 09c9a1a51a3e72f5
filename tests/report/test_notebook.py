"""Plans, measurements, reports and comparisons in a notebook."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch_geometric.nn import GCN

import virgo
from virgo.plans import Row
from virgo.report.notebook import folded

VOID = {"br"}


class Balanced(HTMLParser):
    """Fails on a tag that is not closed where it should be, and keeps the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(html: str) -> Balanced:
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    return parser


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    data = virgo.data.citation_like(num_nodes=120, num_features=20, words_per_node=5, seed=0)
    torch.manual_seed(0)

    def make(depth: int) -> GCN:
        return GCN(20, 8, num_layers=depth, out_channels=7)

    model = make(4)
    plan = virgo.plan(model, data, "virgo-forward")
    return {
        "Plan": plan,
        "Measurement": virgo.measure(model, data),
        "Report": virgo.check(model, data, plan, advice=False),
        "Comparison": virgo.compare(make, data, ["xavier", "virgo-forward"], [3], 1),
    }


KINDS = ("Plan", "Measurement", "Report", "Comparison")


@pytest.mark.parametrize("kind", KINDS)
def test_a_repr_is_one_short_line(results: dict[str, Any], kind: str) -> None:
    shown = repr(results[kind])
    assert shown.startswith(f"{kind}(")
    assert "\n" not in shown
    assert len(shown) < 150
    assert str(results[kind]) != shown
    assert "\n" in str(results[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_html_is_balanced_and_folded(results: dict[str, Any], kind: str) -> None:
    html = results[kind]._repr_html_()
    parser = parsed(html)
    assert {"details", "summary", "table"} <= set(parser.seen)
    assert not {"script", "style"} & set(parser.seen)
    assert len(html) < 20_000


def test_html_escapes_what_a_user_named() -> None:
    name = "<script>alert('x')</script>"
    row = Row(name, f"{name}.weight", (2, 2), 2, 2, 1.0, 0.5)
    plan = virgo.Plan("mine", (row,), notes=(name,), left_alone=((name, name),))
    html = plan._repr_html_()
    assert "<script" not in html
    # twice in the line on coverage, once as a layer, twice as left alone, once in a note
    assert parsed(html).text.count(name) == 6
    assert "<b>a &amp; b</b>" in folded({"title": "a & b"})


def test_frames(results: dict[str, Any]) -> None:
    pytest.importorskip("pandas", reason="the notebook extra is not installed")
    plan = results["Plan"].to_frame()
    assert list(plan["variance"]) == [row.variance for row in results["Plan"].rows]
    assert list(plan["std"]) == [row.std for row in results["Plan"].rows]
    measured = results["Measurement"].to_frame()
    assert list(measured["forward"]) == results["Measurement"].forward
    report = results["Report"].to_frame()
    assert list(report["predicted_backward"]) == list(results["Report"].predicted_backward)
    assert list(report["backward"]) == results["Report"].measurement.backward
    compared = results["Comparison"].to_frame()
    assert set(compared["method"]) == {"xavier", "virgo-forward"}
    assert len(compared) == 2 * 2 * 4  # methods, directions, h^0 .. h^3
    assert set(compared["verdict"]) <= {"good", "watch", "bad"}


@pytest.mark.parametrize("kind", KINDS)
def test_plots(results: dict[str, Any], kind: str) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    axes = results[kind].plot()
    assert len(axes) == (1 if kind == "Plan" else 2)
    assert all(panel.get_yscale() == "log" and panel.lines for panel in axes)
    if kind == "Plan":
        drawn = list(axes[0].lines[0].get_ydata())
        assert drawn == [row.std for row in results["Plan"].rows]
    if kind == "Measurement":
        assert list(axes[0].lines[0].get_ydata()) == results["Measurement"].forward


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_missing_is_named(
    results: dict[str, Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=rf"{kind}\.to_frame requires pandas.*\[notebook\]"):
        results[kind].to_frame()
    with pytest.raises(ImportError, match=r"plot requires matplotlib.*virgo-gnn\[plot\]"):
        results[kind].plot()

"""Colours of methods: the same in every picture, and different within the picture of depth."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from virgo.report.plots import style
from virgo.report.results import accuracy_over_depth

BENCHMARK = Path(__file__).parent.parent.parent / "benchmarks" / "depth.py"


@pytest.fixture(scope="module")
def shown() -> tuple[str, ...]:
    """The methods that the study of depth draws."""
    names: tuple[str, ...] = runpy.run_path(str(BENCHMARK))["SHOWN"]
    return names


def test_a_method_looks_the_same_beside_any_other(shown: tuple[str, ...]) -> None:
    for name in shown:
        assert style(name, 0) == style(name, 5)
    assert style("another", 0) != style("another", 5)  # negative control


def test_the_lines_over_depth_differ_in_colour(shown: tuple[str, ...]) -> None:
    cells = [
        {
            "dataset": "cora", "model": "gcn", "init": init, "num_layers": layers,
            "test_mean": 70.0 + layers, "test_sd": 1.0, "generated": False,
        }
        for init in shown
        for layers in (2, 16)
    ]  # fmt: skip
    figure = accuracy_over_depth({"table": "depth", "cells": cells})
    (axes,) = figure.axes
    lines = {line.get_color(): list(line.get_xdata()) for line in axes.lines}
    assert len(lines) == len(shown)
    assert all(depths == [2, 16] for depths in lines.values())

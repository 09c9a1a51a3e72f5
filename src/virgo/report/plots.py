"""Pictures for a paper at one column width: labelled, log scale, readable in grey.

What they look like is in :mod:`virgo.report.looks`.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from virgo.report.looks import (
    COLOURS,
    COLUMN_WIDTH,
    DASHES,
    LABEL_SIZE,
    MARKERS,
    SEATS,
    TICK_SIZE,
)
from virgo.report.page import Document

TITLES = {"forward": "Signal (forward)", "backward": "Gradient (backward)"}


def style(name: str, index: int = 0) -> dict[str, Any]:
    """Looks of a method's curve; a second lap of colours differs in marker and dashes.

    Args:
        name: the method, or whatever else the curve shows.
        index: of the curve, for one that is no method with a colour of its own.

    Returns:
        Keywords for matplotlib.
    """
    seat = SEATS.get(name, len(SEATS) + index)
    lap = seat // len(COLOURS)
    return {
        "color": COLOURS[seat % len(COLOURS)],
        "marker": MARKERS[(seat + lap) % len(MARKERS)],
        "linestyle": DASHES[(seat + 3 * lap) % len(DASHES)],
        "markersize": 3.5,
        "linewidth": 1.3,
        "markeredgewidth": 0,
    }


def draw_variances(
    axes: Axes,
    curves: Mapping[str, Sequence[float]],
    direction: str,
    spreads: Mapping[str, Sequence[float]] | None = None,
) -> None:
    """Variance over layers, one curve each, with a band of one standard deviation."""
    for index, (name, values) in enumerate(curves.items()):
        layers = [i for i, v in enumerate(values) if math.isfinite(v) and v > 0]
        heights = [values[i] for i in layers]
        every = max(1, len(layers) // 8)
        axes.plot(layers, heights, label=name, markevery=every, **style(name, index))
        if spreads and name in spreads:
            low = [max(values[i] - spreads[name][i], values[i] / 10) for i in layers]
            high = [values[i] + spreads[name][i] for i in layers]
            axes.fill_between(
                layers, low, high, color=style(name, index)["color"], alpha=0.15, lw=0
            )
    axes.set_yscale("log")
    _dress(axes, direction)


def _dress(axes: Axes, direction: str) -> None:
    """Title, ticks and grid of a panel of variances over layers."""
    axes.set_xlabel("layer", fontsize=LABEL_SIZE)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(TITLES.get(direction, direction), fontsize=LABEL_SIZE)
    axes.tick_params(labelsize=TICK_SIZE, which="both")
    axes.grid(visible=True, which="major", alpha=0.25, linewidth=0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


Curves = Mapping[str, Mapping[str, Sequence[float]]]
"""Method -> direction -> variance of h^0 .. h^L."""


def variance_over_depth(
    curves: Curves, spreads: Curves | None = None, title: str | None = None
) -> Figure:
    """Forward and backward variance side by side, one curve per method: the paper's Figure 1.

    Args:
        curves: method -> direction -> variance of h^0 .. h^L.
        spreads: the same shape, one standard deviation over draws.
        title: of the figure.

    Returns:
        The figure, with a panel for each direction that all methods have.
    """
    return variances_over_depths({"": (curves, spreads)}, title)


def variances_over_depths(
    rows: Mapping[str, tuple[Curves, Curves | None]], title: str | None = None
) -> Figure:
    """The same for several networks, one row of panels each, with one legend.

    Args:
        rows: title of the row -> curves and spreads as :func:`variance_over_depth` takes them.
        title: of the figure.

    Returns:
        The figure.
    """
    every = [curve for curves, _ in rows.values() for curve in curves.values()]
    directions = [d for d in TITLES if all(d in curve for curve in every)]
    size = (COLUMN_WIDTH * len(directions), 2.6 + 2.0 * (len(rows) - 1))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(rows), len(directions), squeeze=False)
    handles: dict[str, Any] = {}
    for line, (words, (curves, spreads)) in zip(panels, rows.items(), strict=True):
        for axes, direction in zip(line, directions, strict=True):
            draw_variances(
                axes,
                {name: curve[direction] for name, curve in curves.items()},
                direction,
                {n: s[direction] for n, s in spreads.items()} if spreads else None,
            )
            if words:
                axes.set_title(f"{TITLES[direction]}, {words}", fontsize=LABEL_SIZE)
        line[0].set_ylabel("variance", fontsize=LABEL_SIZE)
        drawn = line[0].get_legend_handles_labels()
        handles |= {label: handle for handle, label in zip(*drawn, strict=True)}
    # a figure of two columns has room for about 95 letters, a line and its gap taking eight
    room = 48 * len(directions) // (max(map(len, handles)) + 8)
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=max(1, min(room, len(handles))),
        fontsize=TICK_SIZE,
        frameon=False,
    )
    if title:
        figure.suptitle(title, fontsize=LABEL_SIZE)
    return figure


def weight_scales(
    curves: Mapping[str, Sequence[float]], names: Sequence[str], title: str
) -> Figure:
    """The standard deviation of every weight, one curve per way to choose it.

    Args:
        curves: what to call the way -> standard deviations.
        names: of the weights; more than 24 are numbered instead.
        title: of the figure.

    Returns:
        The figure, on a logarithmic axis.
    """
    figure = Figure(figsize=(1.5 * COLUMN_WIDTH, 2.8), layout="constrained")
    axes = figure.subplots()
    draw_variances(axes, curves, textwrap.fill(title, 60))
    axes.set_xlabel("weight", fontsize=LABEL_SIZE)
    axes.set_ylabel("standard deviation", fontsize=LABEL_SIZE)
    if len(names) <= 24:
        axes.set_xticks(range(len(names)), names, rotation=40, ha="right", fontsize=6)
    axes.legend(fontsize=TICK_SIZE, frameon=False)
    return figure


def variance_over_steps(records: Mapping[int, Mapping[str, Sequence[float]]]) -> Figure:
    """Variance over layers, forward and backward: one line per record, coloured by its step.

    Args:
        records: training step -> direction -> variance of h^0 .. h^L, in order of steps.

    Returns:
        The figure, with a bar that tells the colours of the steps.
    """
    figure = Figure(figsize=(2 * COLUMN_WIDTH, 2.8), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True)
    steps = list(records)
    scale = Normalize(steps[0], max(steps[-1], steps[0] + 1))
    # light is early, so that the picture reads in grey too; the palest eighth is lost on paper
    palette = ListedColormap(colormaps["cividis_r"](np.linspace(1 / 8, 1, 256)))
    for axes, direction in zip(panels, TITLES, strict=True):
        infinite = finite = 0
        for step, record in records.items():
            heights = [v if math.isfinite(v) and v > 0 else math.nan for v in record[direction]]
            infinite += sum(map(math.isinf, record[direction]))
            finite += sum(map(math.isfinite, heights))
            line = {"color": palette(scale(step)), "linewidth": 1.2, "marker": "o"}
            axes.plot(heights, markersize=2.5, **line)
        if finite:
            axes.set_yscale("log")
        note = f"{infinite} infinite" if infinite else "" if finite else "nothing recorded"
        axes.text(0.98, 0.02, note, transform=axes.transAxes, ha="right", fontsize=TICK_SIZE)
        axes.set_ylabel("variance", fontsize=LABEL_SIZE)
        _dress(axes, direction)
    figure.colorbar(ScalarMappable(scale, cmap=palette), ax=panels, label="step", pad=0.02)
    return figure


def panels(charts: Sequence[Document]) -> Figure:
    """A page's charts as small panels, two per row, on linear axes with bars of one deviation."""
    rows = (len(charts) + 1) // 2
    figure = Figure(figsize=(2 * COLUMN_WIDTH, 2.2 * rows), layout="constrained")
    grid = figure.subplots(rows, 2, squeeze=False).ravel()
    for axes, chart in zip(grid, charts, strict=False):
        for index, series in enumerate(chart["series"]):
            defined = [i for i, value in enumerate(series["values"]) if value is not None]
            values = [series["values"][i] for i in defined]
            spread = [series["spread"][i] or 0.0 for i in defined] if series["spread"] else None
            lengths = [i + 1 + 0.06 * index for i in defined]  # bars beside each other
            axes.errorbar(
                lengths,
                values,
                yerr=spread,
                label=series["name"],
                capsize=2,
                **style(series["name"], index),
            )
        axes.set_title(textwrap.fill(chart["title"], 46), fontsize=TICK_SIZE)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("path length", fontsize=TICK_SIZE)
        axes.tick_params(labelsize=7)
        axes.legend(fontsize=7, frameon=False)
    for axes in grid[len(charts) :]:
        axes.set_visible(False)
    return figure


def training_figure(epochs: Sequence[Any], best: int, title: str) -> Figure:
    """Training loss and validation score over epochs, the epoch whose weights are kept marked."""
    figure = Figure(figsize=(2 * COLUMN_WIDTH, 2.2), layout="constrained")
    loss, score = figure.subplots(1, 2)
    loss.plot([e.number for e in epochs], [e.loss for e in epochs], color=COLOURS[0], linewidth=1.3)
    loss.set_title("Training loss", fontsize=LABEL_SIZE)
    scored = [e for e in epochs if e.valid is not None]
    score.plot(
        [e.number for e in scored], [100 * e.valid for e in scored], color=COLOURS[5], linewidth=1.3
    )
    score.set_title("Validation, %", fontsize=LABEL_SIZE)
    for axes in (loss, score):
        axes.axvline(best, color="#999999", linewidth=0.8, linestyle="--")
        axes.set_xlabel("epoch", fontsize=LABEL_SIZE)
        axes.tick_params(labelsize=TICK_SIZE)
        axes.grid(visible=True, alpha=0.25, linewidth=0.5)
    figure.suptitle(title, fontsize=LABEL_SIZE)
    return figure

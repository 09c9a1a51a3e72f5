"""Figures of finished tables, from their plain form (``ResultsTable.to_dict()``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from virgo.report.looks import COLUMN_WIDTH
from virgo.report.plots import style

BASE = "xavier"
Plain = Mapping[str, Any]  # a table, cell or history in plain types


def _groups(table: Plain) -> dict[tuple[str, str], list[Plain]]:
    """The cells with numbers by dataset and model, in the table's order."""
    groups: dict[tuple[str, str], list[Plain]] = {}
    for cell in table["cells"]:
        if cell["test_mean"] is not None:
            groups.setdefault((cell["dataset"], cell["model"]), []).append(cell)
    return groups


def _methods(table: Plain) -> list[str]:
    return list(dict.fromkeys(cell["init"] for cell in table["cells"]))


def differences(table: Plain) -> Figure:
    """One panel per dataset and model: each method's test value minus Xavier's, paired by seed.

    Methods that were not searched like the others are left out, as are panels without Xavier.

    Args:
        table: the table in plain types.

    Returns:
        The figure.
    """
    groups = {
        place: cells
        for place, cells in _groups(table).items()
        if any(cell["init"] == BASE and cell["comparable"] for cell in cells)
    }
    if not groups:
        return _empty(f"{table['table']}: no column has {BASE} beside another method")
    methods = _methods(table)
    across = min(3, len(groups))
    down = math.ceil(len(groups) / across)
    size = (max(COLUMN_WIDTH, 2.2 * across + 1.2), 0.6 + (0.5 + 0.2 * len(methods)) * down)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
    for axes, ((dataset, model), cells) in zip(grid, groups.items(), strict=False):
        base = next(cell for cell in cells if cell["init"] == BASE)
        for cell in cells:
            index = methods.index(cell["init"])
            over = cell["over_xavier"]
            if over and cell is not base:
                reach = over["high"] - over["difference"]
                looks = {**style(cell["init"], index), "linestyle": "none"}
                axes.errorbar(over["difference"], index, xerr=reach, capsize=2, **looks)
        axes.axvline(0, color="0.4", linewidth=0.8)
        axes.set_yticks(range(len(methods)), methods)
        _label(axes, f"{dataset}, {model}", base["generated"], f"points over {BASE}")
    grid[0].invert_yaxis()  # shared by all: the table's first row on top
    for axes in grid[len(groups) :]:
        axes.set_visible(False)
    return figure


def accuracy_over_depth(table: Plain) -> Figure:
    """One panel per dataset, one line per method: test mean against depth, with a band of one sd.

    Args:
        table: the table in plain types.

    Returns:
        The figure.
    """
    groups = _groups(table)
    if not groups:
        return _empty(f"{table['table']}: nothing has finished")
    methods = _methods(table)
    figure = Figure(figsize=(max(COLUMN_WIDTH, 2.5 * len(groups)), 3.2), layout="constrained")
    panels = figure.subplots(1, len(groups), squeeze=False, sharey=True)[0]
    handles: dict[str, Artist] = {}
    for axes, ((dataset, model), cells) in zip(panels, groups.items(), strict=True):
        for index, init in enumerate(methods):
            line = sorted((c for c in cells if c["init"] == init), key=lambda c: c["num_layers"])
            if line:
                handles.setdefault(init, _band(axes, line, index))
        depths = sorted({cell["num_layers"] for cell in cells})
        axes.set_xscale("log", base=2)
        axes.set_xticks(depths, [str(depth) for depth in depths])
        axes.minorticks_off()
        generated = any(cell["generated"] for cell in cells)
        _label(axes, f"{dataset}, {model}", generated, "layers")
    panels[0].set_ylabel("test accuracy, %", fontsize=8)
    _legend(figure, methods, handles, min(3, len(groups)))
    return figure


def _band(axes: Axes, line: Sequence[Plain], index: int) -> Artist:
    depths = [cell["num_layers"] for cell in line]
    means = [cell["test_mean"] for cell in line]
    spreads = [cell["test_sd"] or 0.0 for cell in line]
    looks = style(line[0]["init"], index)
    (drawn,) = axes.plot(depths, means, **looks)
    low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
    high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
    axes.fill_between(depths, low, high, color=looks["color"], alpha=0.15, lw=0)
    return drawn


def validation_curves(table: Plain) -> Figure:
    """One panel per dataset and model, one line per method: best mean validation so far by epoch.

    The validation of each epoch is a thin line behind it, and a dotted line marks the epoch since
    which the order of methods has not changed. Where several configurations kept curves, the one
    with the best validation over methods is shown.

    Args:
        table: the table in plain types.

    Returns:
        The figure.
    """
    panels: dict[tuple[str, str, int | None], Plain] = {}
    for history in table["curves"]:
        key = (history["dataset"], history["model"], history["num_layers"])
        if key not in panels or _height(history) > _height(panels[key]):
            panels[key] = history
    if not panels:
        return _empty(f"{table['table']}: no two methods kept curves (virgo sweep --curves)")
    methods = _methods(table)
    across = min(4 if len(panels) == 4 else 3, len(panels))
    down = math.ceil(len(panels) / across)
    size = (max(COLUMN_WIDTH, 2.3 * across + 0.4), 0.7 + 2.1 * down)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(down, across, squeeze=False).ravel()
    handles: dict[str, Artist] = {}
    for axes, (key, history) in zip(grid, panels.items(), strict=False):
        for init, line in history["methods"].items():
            handles.setdefault(init, _history(axes, line, init, methods.index(init)))
        _annotate(axes, history, ", ".join(str(k) for k in key if k is not None))
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[::across]:
        axes.set_ylabel("best validation so far, %", fontsize=8)
    _legend(figure, methods, handles, 2 if across == 1 else len(handles))
    return figure


def _height(history: Plain) -> float:
    """The mean over methods of their last score."""
    last = [float(line["best"][-1]) for line in history["methods"].values()]
    return sum(last) / len(last)


def _history(axes: Axes, line: Plain, name: str, index: int) -> Artist:
    """One method: its best so far, and thin the validation of each epoch."""
    looks = style(name, index)
    axes.plot(line["epochs"], line["valid"], color=looks["color"], linewidth=0.6, alpha=0.35)
    every = max(1, len(line["epochs"]) // 8)
    (drawn,) = axes.plot(line["epochs"], line["best"], markevery=(index % every, every), **looks)
    return drawn


def _annotate(axes: Axes, history: Plain, title: str) -> None:
    """A panel's title, labels, and the epoch since which the order has not changed."""
    seeds = len(history["seeds"])
    _label(axes, f"{title} ({seeds} seed{'s' * (seeds > 1)})", False, "epoch")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if history["order_since"] < history["last"]:
        axes.axvline(history["order_since"], color="0.4", linewidth=0.9, linestyle=":", zorder=0)
        axes.annotate(
            "same order from here",
            (history["order_since"], 0.02),
            (2, 0),
            fontsize=6,
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            color="0.35",
            rotation=90,
        )


def _legend(figure: Figure, methods: list[str], handles: Mapping[str, Artist], ncols: int) -> None:
    shown = [init for init in methods if init in handles]
    figure.legend(
        [handles[init] for init in shown],
        shown,
        loc="outside lower center",
        ncols=ncols,
        fontsize=7,
        frameon=False,
    )


def _label(axes: Axes, title: str, generated: bool, xlabel: str) -> None:
    axes.set_title(f"{title}, generated" if generated else title, fontsize=8)
    axes.set_xlabel(xlabel, fontsize=8)
    axes.tick_params(labelsize=7)
    axes.grid(visible=True, which="major", alpha=0.25, linewidth=0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _empty(reason: str) -> Figure:
    """A figure that says why it is empty."""
    figure = Figure(figsize=(COLUMN_WIDTH, 1))
    figure.text(0.5, 0.5, reason, ha="center", va="center", fontsize=8, wrap=True)
    return figure

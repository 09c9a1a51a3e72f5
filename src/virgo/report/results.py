"""Pictures of finished tables, from their plain form (``Table.to_dict()``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from virgo.report.plots import COLUMN_WIDTH, style

BASE = "xavier"
Cells = Sequence[Mapping[str, Any]]


def _groups(cells: Cells, *names: str) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    """The cells with numbers, by these keys, in the table's order."""
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for cell in cells:
        if cell["test_mean"] is not None:
            found.setdefault(tuple(cell[name] for name in names), []).append(cell)
    return found


def differences(table: Mapping[str, Any]) -> Figure:
    """A panel a dataset and model: every method's test value minus Xavier's, paired by seed.

    Methods that were not searched like the others are left out, as is a panel without Xavier.
    """
    groups = {
        place: cells
        for place, cells in _groups(table["cells"], "dataset", "model").items()
        if any(cell["init"] == BASE and cell["comparable"] for cell in cells)
    }
    if not groups:
        return _empty(f"{table['table']}: no column has {BASE} beside another method")
    methods = list(dict.fromkeys(cell["init"] for cell in table["cells"]))
    across = min(3, len(groups))
    down = math.ceil(len(groups) / across)
    size = (max(COLUMN_WIDTH, 2.2 * across + 1.2), 0.6 + (0.5 + 0.2 * len(methods)) * down)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
    for axes, ((dataset, model), cells) in zip(grid, groups.items(), strict=False):
        base = next(cell for cell in cells if cell["init"] == BASE)
        for cell in cells:
            index = methods.index(cell["init"])
            found = cell["over_xavier"]
            if found and cell is not base:
                reach = found["high"] - found["difference"]
                looks = {**style(index), "linestyle": "none"}
                axes.errorbar(found["difference"], index, xerr=reach, capsize=2, **looks)
        axes.axvline(0, color="0.4", linewidth=0.8)
        said = ", generated" if base["generated"] else ""
        axes.set_title(f"{dataset}, {model}{said}", fontsize=8)
        axes.set_xlabel(f"points over {BASE}", fontsize=8)
        axes.set_yticks(range(len(methods)), methods)
        _tidy(axes)
    grid[0].invert_yaxis()  # shared by all: the table's first row on top
    for axes in grid[len(groups) :]:
        axes.set_visible(False)
    return figure


def accuracy_over_depth(table: Mapping[str, Any]) -> Figure:
    """A panel a dataset, a line a method: test mean against depth, with a band of one sd."""
    groups = _groups(table["cells"], "dataset", "model")
    if not groups:
        return _empty(f"{table['table']}: nothing has finished")
    methods = list(dict.fromkeys(cell["init"] for cell in table["cells"]))
    figure = Figure(figsize=(max(COLUMN_WIDTH, 2.5 * len(groups)), 3.2), layout="constrained")
    panels = figure.subplots(1, len(groups), squeeze=False, sharey=True)[0]
    handles: dict[str, Any] = {}
    for axes, ((dataset, model), cells) in zip(panels, groups.items(), strict=True):
        for index, init in enumerate(methods):
            line = sorted((c for c in cells if c["init"] == init), key=lambda c: c["num_layers"])
            if line:
                handles.setdefault(init, _band(axes, line, index))
        depths = sorted({cell["num_layers"] for cell in cells})
        axes.set_xscale("log", base=2)
        axes.set_xticks(depths, [str(depth) for depth in depths])
        axes.minorticks_off()
        said = ", generated" if any(cell["generated"] for cell in cells) else ""
        axes.set_title(f"{dataset}, {model}{said}", fontsize=8)
        axes.set_xlabel("layers", fontsize=8)
        _tidy(axes)
    panels[0].set_ylabel("test accuracy, %", fontsize=8)
    shown = [init for init in methods if init in handles]
    figure.legend(
        [handles[init] for init in shown],
        shown,
        loc="outside lower center",
        ncols=min(3, len(groups)),
        fontsize=7,
        frameon=False,
    )
    return figure


def _band(axes: Axes, line: Cells, index: int) -> Any:
    depths = [cell["num_layers"] for cell in line]
    means = [cell["test_mean"] for cell in line]
    spreads = [cell["test_sd"] or 0.0 for cell in line]
    (drawn,) = axes.plot(depths, means, **style(index))
    low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
    high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
    axes.fill_between(depths, low, high, color=style(index)["color"], alpha=0.15, lw=0)
    return drawn


def validation_curves(table: Mapping[str, Any]) -> Figure:
    """A panel a dataset and model, a line a method: the best mean validation so far by epoch.

    The validation of each epoch is drawn thin behind it, and a dotted line stands where the order
    of methods came to be that of the end. Where several configurations kept curves, the one with
    the best validation over methods is shown.
    """
    panels: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for found in table["curves"]:
        key = (found["dataset"], found["model"], found["num_layers"])
        if key not in panels or _height(found) > _height(panels[key]):
            panels[key] = found
    if not panels:
        return _empty(f"{table['table']}: no two methods kept curves (virgo sweep --curves)")
    methods = list(dict.fromkeys(cell["init"] for cell in table["cells"]))
    across = min(4 if len(panels) == 4 else 3, len(panels))
    down = math.ceil(len(panels) / across)
    size = (max(COLUMN_WIDTH, 2.3 * across + 0.4), 0.7 + 2.1 * down)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(down, across, squeeze=False).ravel()
    handles: dict[str, Any] = {}
    for axes, (key, found) in zip(grid, panels.items(), strict=False):
        for init, line in found["methods"].items():
            handles.setdefault(init, _history(axes, line, methods.index(init)))
        _dress(axes, found, ", ".join(str(k) for k in key if k is not None))
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[::across]:
        axes.set_ylabel("best validation so far, %", fontsize=8)
    shown = [init for init in methods if init in handles]
    figure.legend(
        [handles[init] for init in shown],
        shown,
        loc="outside lower center",
        ncols=2 if across == 1 else len(shown),
        fontsize=7,
        frameon=False,
    )
    return figure


def _height(found: Mapping[str, Any]) -> float:
    last = [float(line["best"][-1]) for line in found["methods"].values()]
    return sum(last) / len(last)


def _history(axes: Axes, line: Mapping[str, Any], index: int) -> Any:
    """One method: its best so far, and thin what it was each time."""
    looks = style(index)
    axes.plot(line["epochs"], line["valid"], color=looks["color"], linewidth=0.6, alpha=0.35)
    every = max(1, len(line["epochs"]) // 8)
    (drawn,) = axes.plot(line["epochs"], line["best"], markevery=(index % every, every), **looks)
    return drawn


def _dress(axes: Axes, found: Mapping[str, Any], title: str) -> None:
    """A panel's title, labels, and the epoch since which the order stands."""
    seeds = len(found["seeds"])
    axes.set_title(f"{title} ({seeds} seed{'s' * (seeds > 1)})", fontsize=8)
    axes.set_xlabel("epoch", fontsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if found["order_since"] < found["last"]:
        axes.axvline(found["order_since"], color="0.4", linewidth=0.9, linestyle=":", zorder=0)
        axes.annotate(
            "same order from here",
            (found["order_since"], 0.02),
            (2, 0),
            fontsize=6,
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            color="0.35",
            rotation=90,
        )
    _tidy(axes)


def _tidy(axes: Axes) -> None:
    axes.tick_params(labelsize=7)
    axes.grid(visible=True, which="major", alpha=0.25, linewidth=0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _empty(reason: str) -> Figure:
    """A picture that says why it is empty."""
    figure = Figure(figsize=(COLUMN_WIDTH, 1))
    figure.text(0.5, 0.5, reason, ha="center", va="center", fontsize=8, wrap=True)
    return figure

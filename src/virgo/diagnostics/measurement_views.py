"""A measurement as text, as tables of a page and as a picture."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from virgo.report.notebook import plots
from virgo.report.page import Document
from virgo.report.text import show, text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from virgo.diagnostics.measurement import Measurement

_TEXT_COLUMNS = (
    *("layer", "name", "width", "forward", "to next", "backward", "mean", "dead"),
    *("Dirichlet (norm.)", "Dirichlet (plain)", "MAD"),
)
_LAYER_COLUMNS = {
    "layer": "index",
    "what": "name",
    "width": "width",
    "mean": "mean",
    "second moment": "second_moment",
    "dead units": "dead",
    "Dirichlet (norm.)": "dirichlet_normalized",
    "Dirichlet (plain)": "dirichlet_plain",
    "MAD": "mean_average_distance",
    "effective rank": "effective_rank",
    "near zero": "near_zero",
    "not finite": "non_finite",
}


def text(measured: Measurement) -> str:
    """One row per layer, for ``print``."""
    body = [
        (
            str(layer.index),
            layer.name,
            str(layer.width),
            show(layer.forward, layer.forward_sd),
            show(layer.ratio_to_next),
            show(layer.backward, layer.backward_sd),
            show(layer.mean),
            f"{layer.dead:.0%}",
            show(layer.dirichlet_normalized),
            show(layer.dirichlet_plain),
            show(layer.mean_average_distance),
        )
        for layer in measured.layers
    ]
    return "\n".join(
        [*text_table(_TEXT_COLUMNS, body, left=2), *(f"note: {n}" for n in measured.notes)]
    )


def one_line(measured: Measurement) -> str:
    """The measurement as ``repr`` shows it, with max/min over the hidden layers."""
    hidden = measured.hidden
    ranges = [
        f"{what} {_range([getattr(layer, direction) for layer in hidden])}"
        for what, direction in (("signal", "forward"), ("gradient", "backward"))
    ]
    layers = len(measured.layers) - 1
    return f"Measurement({layers} layers, {', '.join(ranges)}, loss={measured.loss:.4g})"


def _range(values: list[float]) -> str:
    """``x3.2``: the largest over the smallest of what is defined."""
    defined = [value for value in values if not math.isnan(value)]
    if not defined:
        return "-"
    return f"x{max(defined) / min(defined):.3g}" if min(defined) > 0 else "xinf"


def document(measured: Measurement) -> Document:
    """The measurement as :func:`virgo.report.page.page` takes it."""
    variances = {
        "title": "Variances",
        "header": ("layer", "what", "forward", "to next", "backward"),
        "rows": [
            (layer.index, layer.name, layer.forward, layer.ratio_to_next, layer.backward)
            for layer in measured.layers
        ],
    }
    return {
        "title": f"Virgo measurement: {len(measured.layers) - 1} layers",
        "subtitle": ", ".join(f"{v:,} {k}" for k, v in measured.facts.items()),
        "tables": [variances, *tables(measured)],
        "notes": list(measured.notes),
    }


def figure(measured: Measurement) -> Figure:
    """Forward and backward variance over layers, with the spread over draws."""
    curves = {"forward": measured.forward, "backward": measured.backward}
    spreads = {
        direction: [getattr(layer, f"{direction}_sd") for layer in measured.layers]
        for direction in curves
    }
    drawn: Figure = plots("measurement.plot").variance_over_depth(
        {"measured": curves}, {"measured": spreads} if measured.draws > 1 else None
    )
    return drawn


def tables(measured: Measurement) -> list[Document]:
    """What each layer receives, and the gradient of every weight, as a page shows them."""
    return [
        {
            "title": "What each layer receives",
            "note": "Dirichlet energies with the normalised and the plain Laplacian, divided by "
            "the squared norm; MAD is the mean average distance (one minus cosine) between nodes.",
            "header": list(_LAYER_COLUMNS),
            "rows": [
                [getattr(layer, name) for name in _LAYER_COLUMNS.values()]
                for layer in measured.layers
            ],
        },
        {
            "title": "Gradient norm of every weight",
            "note": f"loss {measured.loss:.4g} ({measured.loss_name}); the ratio is that of the "
            f"gradient's norm to the weight's",
            "header": ["parameter", "gradient norm", "ratio"],
            "rows": [
                (name, norm, measured.update_ratios.get(name, math.nan))
                for name, norm in measured.weight_gradients.items()
            ],
        },
    ]

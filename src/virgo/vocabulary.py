"""The words that options take, where a command line can read them without importing PyTorch."""

from __future__ import annotations

#: How the entries of a weight are drawn (:mod:`virgo.draws`).
DISTRIBUTIONS = ("uniform", "normal", "truncated", "orthogonal", "mirrored", "spectral", "own")

#: Words after a plus in the name of an initialisation, and the options they stand for.
OPTIONS = {
    "measured": {"estimate": "measured"},
    "released": {"variant": "released"},
    "rms": {"signal": "rms"},
    "keep-bias": {"bias": "keep"},
    **{name: {"distribution": name} for name in DISTRIBUTIONS if name != "uniform"},
}

#: The methods that know a layer's width and nothing of the graph.
CLASSIC = ("lecun", "xavier", "kaiming-forward", "kaiming-backward")
#: What `compare` runs by default: the paper's methods and ours.
COMPARED = (
    *CLASSIC,
    "virgo-forward",
    "virgo-backward",
    "virgo",
    "virgo-forward+measured",
    "virgo-backward+measured",
)

#: The factors over all hidden layers that `check` calls bad, and that it mentions.
CHANGE, WATCHED = 100.0, 30.0

#: The networks that commands and studies know by name.
MODELS = ("gcn", "sage", "gin", "ngnn-gcn", "ngnn-sage")
#: Where NGNN inserts linear layers: after the first, the inner, the last, or every layer.
NGNN_TYPES = ("input", "hidden", "output", "all")

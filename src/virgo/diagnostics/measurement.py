r"""``measure()``: what passes through each layer of a model, forward and backward.

The paper's definitions: the *forward variance* of layer :math:`l` is the mean over nodes of the
variance over neurons of :math:`h_i^l`; the *backward variance* the same of
:math:`\partial \mathrm{Loss} / \partial h_i^l`. :math:`h^l` is what layer :math:`l+1` receives, for
the last layer what it returns; :math:`h^0` is what the first layer receives.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from virgo.errors import GraphError, LayerError, OptionError
from virgo.network import reading
from virgo.network.inputs import Forward, Inputs, node_signal
from virgo.network.modules import is_uninitialised, preserved, unwrap
from virgo.network.probe import (
    DefaultLoss,
    Loss,
    Pass,
    fits_classes,
    observe,
    variance,
    with_gradients,
)
from virgo.network.trace import Call, watch
from virgo.plans import Plan
from virgo.report.text import plain_numbers, show, text_table

_AT_A_TIME = 1 << 20  # numbers converted to float64, so that memory stays that of a training step
#: Of more edges than this, Dirichlet energies are estimated from so many drawn at random.
_SAMPLED_EDGES = 1 << 17


@dataclass(frozen=True)
class Layer:
    """``h^l``: where it was taken, and what it looks like. Index 0 is the input.

    ``dirichlet_normalized`` is :math:`\\mathrm{tr}(H^\\top (I - \\hat A) H)` with
    :math:`\\hat A = \\tilde D^{-1/2}(A+I)\\tilde D^{-1/2}`; ``dirichlet_plain`` is
    :math:`\\mathrm{tr}(H^\\top (D - A) H)`; both divided by :math:`\\|H\\|_F^2`, so that they tell
    how alike neighbours are and not how large the numbers are. ``mean_average_distance`` is the
    mean of one minus the cosine over all pairs of nodes.
    """

    index: int
    name: str
    width: int
    forward: float
    backward: float
    mean: float
    second_moment: float
    dead: float  # share of units that are zero at every node
    dirichlet_normalized: float
    dirichlet_plain: float
    mean_average_distance: float
    ratio_to_next: float = math.nan  # forward variance of the next layer over this one
    forward_sd: float = 0.0  # over draws
    backward_sd: float = 0.0


@dataclass(frozen=True)
class Measurement:
    """The layers of a model as one pass, or the mean of several draws, showed them."""

    layers: tuple[Layer, ...]
    weight_gradients: dict[str, float]
    loss: float
    draws: int = 1
    notes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def forward(self) -> list[float]:
        """Forward variance of h^0 .. h^L."""
        return [layer.forward for layer in self.layers]

    @property
    def backward(self) -> list[float]:
        """Backward variance of h^0 .. h^L."""
        return [layer.backward for layer in self.layers]

    def to_json(self, indent: int | None = None) -> str:
        """Everything as JSON (infinite and undefined values as strings)."""
        return json.dumps(plain_numbers(asdict(self)), indent=indent)

    def __str__(self) -> str:
        header = (
            "layer",
            "name",
            "width",
            "forward",
            "to next",
            "backward",
            "mean",
            "dead",
            "Dirichlet (norm.)",
            "Dirichlet (plain)",
            "MAD",
        )
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
            for layer in self.layers
        ]
        return "\n".join([*text_table(header, body, left=2), *(f"note: {n}" for n in self.notes)])


def measure(
    model: nn.Module,
    data: Any,
    *,
    loss: Loss | None = None,
    backward: bool = True,
    plan: Plan | Sequence[Plan] | None = None,
    seeds: int = 1,
    nodes: int | None = None,
    forward: Forward | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Measurement:
    """What passes through each layer of ``model`` on ``data``, in eval mode, as it is.

    Nothing of the model changes, also when the pass raises: weights, buffers, mode, random
    state, hooks and gradients are as before. It takes the memory of one training step.

    Args:
        loss: ``lambda output, data: ...``; cross-entropy on ``data.y[data.train_mask]`` by default.
        backward: whether to run backward at all.
        plan: measure the weights this plan draws instead of the model's own; of several plans,
            one draw each.
        seeds: with one plan, the number of draws; the result is their mean and spread.
        nodes: measure on a connected sample of about this many nodes, for graphs too large.
        forward: ``lambda model, data: ...`` for models called in an unusual way.
        progress: called with (draws done, draws in all).

    >>> import virgo
    >>> from torch_geometric.nn import GCN
    >>> data = virgo.data.citation_like(num_nodes=200, seed=0)
    >>> trace = virgo.measure(GCN(data.num_features, 16, num_layers=3, out_channels=7), data)
    >>> len(trace.forward), len(trace.backward)
    (4, 4)
    """
    draws = _draws(plan, seeds)
    bare = unwrap(model)
    if is_uninitialised(bare):
        raise LayerError(
            f"{type(bare).__name__}: expected initialised parameters, got lazy ones. "
            f"Run it once on a batch, or virgo.init_(model, data), before measuring."
        )
    read = reading.read(data)
    notes: list[str] = []
    if nodes is not None and nodes < read.num_nodes:
        whole = read.num_nodes
        read = read.neighbourhood(nodes, seed)
        notes.append(
            f"measured on a sample of {read.num_nodes:,} of {whole:,} nodes and the edges among "
            f"them; nodes at its border have lost neighbours"
        )
    if not read.is_hetero and read.edges()[0].size(1) > _SAMPLED_EDGES:
        notes.append(f"Dirichlet energies are estimated from {_SAMPLED_EDGES:,} edges")
    if not read.is_hetero:
        node_signal(read, "mean")  # says so if features are NaN or infinite
    calls = watch(bare, read, forward).calls
    _check_memory(read, calls)
    prepared = read.prepared_for(bare)
    chosen = (loss or _classification_loss(prepared)) if backward else None
    drawn: list[_Probe] = []
    with preserved(bare, weights=plan is not None):
        for done, (each, draw_seed) in enumerate(draws, 1):
            if each is not None:
                each.apply_(bare, seed=draw_seed)
            # new leaves: hooks on the features of an earlier draw would hear this one too
            probe = _Probe(with_gradients(prepared), calls)
            probe.seen = observe(bare, prepared, forward, chosen, statistic=variance, probe=probe)
            drawn.append(probe)
            if progress is not None:
                progress(done, len(draws))
    if backward:
        _check_gradients(drawn[0].seen, calls)
    layers = [_average([probe.layer(i) for probe in drawn]) for i in range(len(calls) + 1)]
    layers = [
        _with_ratio(layer, layers[i + 1] if i + 1 < len(layers) else None)
        for i, layer in enumerate(layers)
    ]
    notes += _remarks(layers)
    return Measurement(
        tuple(layers),
        {
            name: _mean([probe.seen.grad_weights[name] for probe in drawn])
            for name in drawn[0].seen.grad_weights
        },
        _mean([probe.seen.loss for probe in drawn]),
        len(draws),
        tuple(notes),
        {"nodes": read.num_nodes, "edges": int(prepared.data.num_edges)},
    )


def _draws(plan: Plan | Sequence[Plan] | None, seeds: int) -> list[tuple[Plan | None, int]]:
    """Which plan to draw from with which seed, a draw each."""
    if seeds < 1:
        raise OptionError(f"seeds: expected at least 1, got {seeds}.")
    if plan is None:
        if seeds > 1:
            raise OptionError(
                f"seeds: expected 1 without a plan, got {seeds}. The model's own weights are one "
                f"draw; pass plan=virgo.plan(model, data, ...) to draw {seeds} times."
            )
        return [(None, 0)]
    if isinstance(plan, Plan):
        return [(plan, plan.seed + draw) for draw in range(seeds)]
    if not plan:
        raise OptionError("plan: expected at least one plan, got an empty list. Pass some.")
    if seeds > 1:
        raise OptionError(
            f"seeds: expected 1 with several plans, which are one draw each, got {seeds}."
        )
    return [(each, each.seed) for each in plan]


class _Probe:
    """Takes each layer's numbers as its tensors pass, so that none of them is kept."""

    def __init__(self, inputs: Inputs, calls: list[Call]) -> None:
        self.inputs, self.calls = inputs, calls
        self.last = len(calls) - 1
        self.found: dict[int, dict[str, Any]] = {}
        self.seen = Pass()

    def __call__(self, index: int, kind: str, tensors: list[Tensor]) -> None:
        if kind == "received":
            self.found[index] = self._look(tensors)
        elif kind == "returned" and index == self.last:
            self.found[index + 1] = self._look(tensors)

    def _look(self, tensors: list[Tensor]) -> dict[str, Any]:
        if len(tensors) != 1 or tensors[0].dim() != 2:
            flat = torch.cat([t.detach().reshape(-1).double() for t in tensors])
            return {
                "width": tensors[0].size(-1),
                "mean": float(flat.mean()),
                "second_moment": float(flat.square().mean()),
                "dead": 0.0,
                "dirichlet_normalized": math.nan,
                "dirichlet_plain": math.nan,
                "mean_average_distance": math.nan,
            }
        h = tensors[0].detach()
        total = energy = 0.0
        for rows in _in_pieces(h):
            total += float(rows.sum())
            energy += float(rows.square().sum())
        normalized, plain = _dirichlet(h, self.inputs)
        return {
            "width": h.size(1),
            "mean": total / h.numel(),
            "second_moment": energy / h.numel(),
            "dead": float((h == 0).all(0).double().mean()),
            "dirichlet_normalized": normalized / energy if energy > 0 else math.nan,
            "dirichlet_plain": plain / energy if energy > 0 else math.nan,
            "mean_average_distance": _mean_average_distance(h),
        }

    def layer(self, index: int) -> Layer:
        is_output = index > self.last
        seen = self.seen
        name = (
            "output" if is_output else "input" if index == 0 else f"into {self.calls[index].path}"
        )
        return Layer(
            index=index,
            name=name,
            forward=seen.returned[-1] if is_output else seen.received[index],
            backward=seen.grad_returned[-1] if is_output else seen.grad_received[index],
            **self.found[index],
        )


def _in_pieces(h: Tensor) -> Iterator[Tensor]:
    """A matrix in float64, some rows at a time: a second copy of it would be a large one."""
    for rows in h.split(max(1, _AT_A_TIME // max(1, h.size(1)))):
        yield rows.double()


def _dirichlet(h: Tensor, inputs: Inputs) -> tuple[float, float]:
    """Both Dirichlet energies, over the edges a few at a time, or over a sample of very many."""
    if inputs.is_hetero or h.size(0) != inputs.num_nodes:
        return math.nan, math.nan
    edges = inputs.edges()[0]
    degree = torch.bincount(edges[1], minlength=h.size(0)).add(1).to(h.dtype)
    scale = degree.rsqrt()[:, None]
    total = edges.size(1)
    if total > _SAMPLED_EDGES:
        generator = torch.Generator().manual_seed(0)
        edges = edges[:, torch.randint(total, (_SAMPLED_EDGES,), generator=generator)]
    normalized = plain = 0.0
    for part in edges.split(max(1, _AT_A_TIME // max(1, h.size(1))), dim=1):
        a, b = h[part[0]], h[part[1]]
        plain += float((a - b).double().square().sum())
        normalized += float((a * scale[part[0]] - b * scale[part[1]]).double().square().sum())
    # both ends of an undirected edge are stored, hence the half
    half = 0.5 * total / edges.size(1)
    return half * normalized, half * plain


def _mean_average_distance(h: Tensor) -> float:
    r"""Mean of ``1 - cos`` over all pairs, through :math:`\|\sum_i u_i\|^2`: linear in nodes."""
    total, count = torch.zeros(h.size(1), dtype=torch.float64, device=h.device), 0
    for rows in _in_pieces(h):  # the squares of small numbers vanish in a narrower type
        norms = rows.norm(dim=1)
        alive = norms > 0
        count += int(alive.sum())
        total += (rows[alive] / norms[alive, None]).sum(0)
    if count < 2:
        return 0.0
    return (count**2 - float(total @ total)) / (count * (count - 1))


def _classification_loss(inputs: Inputs) -> Loss:
    """The default loss, or an error that says what is missing."""
    y = None if inputs.is_hetero else inputs.data.get("y")
    if not isinstance(y, Tensor) or y.is_floating_point():
        raise GraphError(
            "data.y: expected class labels for the default cross-entropy, got "
            f"{'none' if y is None else 'floating numbers'}. Pass loss=lambda output, data: ..., "
            "or backward=False."
        )
    usual = DefaultLoss()

    def loss(output: Any, data: Any) -> Tensor:
        if not isinstance(output, Tensor):
            raise LayerError(
                f"model: expected a tensor of logits, got a {type(output).__name__}. "
                f"Pass loss=lambda output, data: ... that picks the logits, or "
                f"forward=lambda model, data: model(...)[0]."
            )
        if not fits_classes(output, y):
            raise LayerError(
                f"model: expected logits for {y.numel()} labels in {int(y.max()) + 1} classes, got "
                f"an output of {list(output.shape)}. Pass loss=lambda output, data: ..."
            )
        return usual(output, data)

    return loss


def _check_gradients(seen: Pass, calls: list[Call]) -> None:
    deaf = [call.path for call, g in zip(calls, seen.grad_returned, strict=True) if g != g]
    narrow = [call.path for call, v in zip(calls, seen.returned, strict=True) if v != v]
    deaf = [path for path in deaf if path not in narrow]
    if deaf:
        raise LayerError(
            f"loss: expected a loss that depends on every layer, got none from "
            f"{', '.join(dict.fromkeys(deaf))}. Pass another loss=, or backward=False."
        )


def _check_memory(inputs: Inputs, calls: list[Call]) -> None:
    """Refuse what cannot fit, before the machine does so less kindly."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            available = next(
                int(line.split()[1]) * 1024 for line in lines if "MemAvailable" in line
            )
    except (OSError, StopIteration):
        if not hasattr(os, "sysconf"):  # Windows does not say
            return
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    widths = [call.width or 0 for call in calls]
    edges = int(inputs.data.num_edges)
    # activations and their gradients of every layer, messages of the widest
    needed = 4 * (2 * inputs.num_nodes * sum(widths) + edges * max(widths[1:], default=0))
    if needed > available:
        raise GraphError(
            f"data: expected a pass to fit in {available / 1e9:.0f} GB, got about "
            f"{needed / 1e9:.0f} GB for {inputs.num_nodes:,} nodes. Sample it: nodes=100_000."
        )


def _average(draws: list[Layer]) -> Layer:
    if len(draws) == 1:
        return draws[0]
    values: dict[str, Any] = {}
    for name, first in asdict(draws[0]).items():
        column = [getattr(layer, name) for layer in draws]
        values[name] = _mean(column) if isinstance(first, float) else first
    for name in ("forward", "backward"):
        column = [getattr(layer, name) for layer in draws]
        finite = all(map(math.isfinite, column))
        values[f"{name}_sd"] = statistics.stdev(column) if finite else math.nan
    return Layer(**values)


def _mean(column: list[float]) -> float:
    return sum(column) / len(column)  # fmean refuses infinities of both signs


def _with_ratio(layer: Layer, following: Layer | None) -> Layer:
    ratio = following.forward / layer.forward if following and layer.forward > 0 else math.nan
    return Layer(**{**asdict(layer), "ratio_to_next": ratio})


def _remarks(layers: list[Layer]) -> list[str]:
    narrow = [str(layer.index) for layer in layers if layer.width < 2]
    infinite = [str(layer.index) for layer in layers if not _finite(layer) and layer.width > 1]
    notes = []
    if narrow:
        notes.append(f"layer {', '.join(narrow)} has one neuron: its variance is undefined")
    if infinite:
        notes.append(f"infinite or undefined values in layer {', '.join(infinite)}: it overflows")
    return notes


def _finite(layer: Layer) -> bool:
    return math.isfinite(layer.forward) and not math.isinf(layer.backward)

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from virgo.diagnostics import layer_statistics, measurement_views
from virgo.diagnostics.layer_statistics import Layer, LayerProbe
from virgo.errors import GraphError, LayerError, OptionError, named_options
from virgo.network import reading
from virgo.network.inputs import Forward, Inputs, node_signal
from virgo.network.modules import is_uninitialised, preserved, unwrap
from virgo.network.probe import (
    DefaultLoss,
    Loss,
    Pass,
    fits_classes,
    gradient_norm,
    observe,
    variance,
    with_gradients,
)
from virgo.network.profile import as_in_training
from virgo.network.replicas import needs_replica, replica_of
from virgo.network.trace import Call, Trace, watch
from virgo.plans import Plan
from virgo.report.notebook import NotebookView
from virgo.report.page import Document
from virgo.report.text import plain_numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = tuple[Plan | None, int]
"""A plan to draw from, or None for the model's own weights, and the seed of the draw."""
#: More is a mistake: a few draws show what hundreds do, and each is a pass over the graph.
MOST_DRAWS = 100_000


@dataclass(frozen=True)
class Measurement(NotebookView):
    """The layers of a model in one pass, or their mean over several draws.

    Attributes:
        layers: statistics of h^0 .. h^L, the input first.
        weight_gradients: the norm of each weight's gradient, by the weight's name.
        loss: the value that the gradients are of.
        draws: how many initialisations it is the mean of.
        notes: in words, what one should know.
        facts: numbers of nodes, edges and their like.
        update_ratios: the norm of each weight's gradient over that of the weight.
        loss_name: which loss it was.
        has_head: whether more follows the last message-passing layer.
    """

    layers: tuple[Layer, ...]
    weight_gradients: dict[str, float]
    loss: float
    draws: int = 1
    notes: tuple[str, ...] = ()
    facts: dict[str, int] = field(default_factory=dict)
    update_ratios: dict[str, float] = field(default_factory=dict)
    loss_name: str = "given"
    has_head: bool = False

    @property
    def hidden(self) -> tuple[Layer, ...]:
        """The layers that decay is judged by: without the input, and without the output.

        What the last layer returns counts as hidden where a head follows it.
        """
        return self.layers[1:] if self.has_head else self.layers[1:-1]

    @property
    def forward(self) -> list[float]:
        """Forward variance of h^0 .. h^L."""
        return [layer.forward for layer in self.layers]

    @property
    def backward(self) -> list[float]:
        """Backward variance of h^0 .. h^L."""
        return [layer.backward for layer in self.layers]

    def to_json(self, indent: int | None = None) -> str:
        """Everything as JSON (infinite and undefined values as strings).

        Args:
            indent: spaces per level; ``None`` for one line.

        Returns:
            The text.
        """
        return json.dumps(plain_numbers(asdict(self)), indent=indent)

    def __str__(self) -> str:
        return measurement_views.text(self)

    def __repr__(self) -> str:
        return measurement_views.one_line(self)

    def records(self) -> list[dict[str, Any]]:
        """One dictionary per layer: the rows of :meth:`to_frame`."""
        return [asdict(layer) for layer in self.layers]

    def document(self) -> Document:
        """The measurement as :func:`virgo.report.page.page` takes it."""
        return measurement_views.document(self)

    def figure(self) -> Figure:
        """Forward and backward variance over layers, as a matplotlib figure."""
        return measurement_views.figure(self)


@named_options
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
        model: any model with message-passing layers in it.
        data: as for :func:`virgo.plan`.
        loss: ``lambda output, data: ...``; cross-entropy on ``data.y[data.train_mask]`` by default.
        backward: whether to run backward at all.
        plan: measure the weights this plan draws instead of the model's own; of several plans,
            one draw each.
        seeds: with one plan, the number of draws; the result is their mean and spread.
        nodes: measure on a connected sample of about this many nodes, for graphs too large.
        forward: ``lambda model, data: ...`` for models called in an unusual way.
        seed: of the sample.
        progress: called with (draws done, draws in all).

    Returns:
        The numbers of ``h^0 .. h^L``, and the gradient norm of every parameter.

    >>> import virgo
    >>> from torch_geometric.nn import GCN
    >>> data = virgo.data.citation_like(num_nodes=200, seed=0)
    >>> trace = virgo.measure(GCN(data.num_features, 16, num_layers=3, out_channels=7), data)
    >>> len(trace.forward), len(trace.backward)
    (4, 4)
    """
    draws = draws_of(plan, seeds)
    return measure_draws(
        trace_subject(read_subject(model, data, nodes, forward, seed)),
        draws,
        loss,
        backward,
        progress,
    )


@dataclass(frozen=True)
class PreparedModel:
    """A model and its data, read and sampled once for all that looks at them."""

    model: nn.Module
    inputs: Inputs
    forward: Forward | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class TracedModel(PreparedModel):
    """A subject whose message-passing layers were watched in one pass over a few nodes."""

    trace: Trace


def read_subject(
    model: nn.Module, data: Any, nodes: int | None, forward: Forward | None, seed: int
) -> PreparedModel:
    """Read the data, and sample it if ``nodes`` says so."""
    bare = unwrap(model)
    if needs_replica(bare):  # sharded: measured on all of it
        bare = replica_of(bare, reading.device_of(data), seed)
    if is_uninitialised(bare):
        raise LayerError(
            f"{type(bare).__name__}: expected initialised parameters, got lazy ones. "
            f"Run it once on a batch, or virgo.init_(model, data), before measuring."
        )
    with torch.random.fork_rng(devices=[]):  # a loader's first batch draws from the global state
        inputs = reading.read(data)
    notes: list[str] = []
    if nodes is not None and nodes < inputs.num_nodes:
        whole = inputs.num_nodes
        inputs = inputs.neighbourhood(nodes, seed)
        notes.append(
            f"measured on a sample of {inputs.num_nodes:,} of {whole:,} nodes and the edges among "
            f"them; nodes at its border have lost neighbours"
        )
    if not inputs.is_hetero:
        limit = layer_statistics.SAMPLED_EDGES
        if inputs.num_edges > limit:
            notes.append(f"Dirichlet energies are estimated from {limit:,} edges")
        node_signal(inputs, "mean")  # raises if features are NaN or infinite
    return PreparedModel(bare, inputs, forward, tuple(notes))


def trace_subject(subject: PreparedModel) -> TracedModel:
    """Watch the model run on a few nodes."""
    trace = watch(subject.model, subject.inputs, subject.forward)
    return TracedModel(subject.model, subject.inputs, subject.forward, subject.notes, trace)


def measure_draws(
    traced: TracedModel,
    draws: Sequence[Draw],
    loss: Loss | None,
    backward: bool = True,
    progress: Callable[[int, int], None] | None = None,
    *,
    training: bool = False,
) -> Measurement:
    """One pass per draw, averaged; the model comes out as it went in.

    Args:
        traced: the model on its data, watched.
        draws: a plan and a seed each; without a plan the weights that are there.
        loss: what to run backward from; inferred by default.
        backward: whether to run backward at all.
        progress: called with (draws done, draws in all).
        training: whether norms use the statistics of the batch, as when the network trains.

    Returns:
        The mean over draws.
    """
    model, calls = traced.model, traced.trace.calls
    _check_memory(traced.inputs, calls)
    prepared = traced.inputs.prepared_for(model)
    chosen = (loss or _classification_loss(prepared)) if backward else None
    passes: list[Pass] = []
    norms: list[dict[str, float]] = []
    layers_per_draw: list[list[Layer]] = []
    mode = as_in_training if training else preserved
    with mode(model, weights=draws[0][0] is not None):
        for done, (plan, seed) in enumerate(draws, 1):
            if plan is not None:
                plan.apply_(model, seed=seed)
            # new leaves: hooks on the features of an earlier draw would run in this one too
            probe = LayerProbe(with_gradients(prepared), [call.path for call in calls])
            passes.append(
                observe(model, prepared, traced.forward, chosen, statistic=variance, probe=probe)
            )
            norms.append(weight_norms(model))
            layers_per_draw.append(probe.layers(passes[-1]))
            if progress is not None:
                progress(done, len(draws))
    if backward:
        _check_gradients(passes[0], calls)
    layers = [layer_statistics.average(same) for same in zip(*layers_per_draw, strict=True)]
    mean = layer_statistics.mean
    gradients = [seen.grad_weights for seen in passes]
    ratios = [update_ratios(*pair) for pair in zip(gradients, norms, strict=True)]
    return Measurement(
        layers=tuple(with_ratios(layers)),
        weight_gradients={n: mean([draw[n] for draw in gradients]) for n in gradients[0]},
        loss=mean([seen.loss for seen in passes]),
        draws=len(draws),
        notes=(*traced.notes, *remarks(layers)),
        facts={"nodes": traced.inputs.num_nodes, "edges": int(prepared.data.num_edges)},
        update_ratios={
            n: mean([draw[n] for draw in ratios]) for n in ratios[0] if all(n in r for r in ratios)
        },
        loss_name=loss_name(chosen),
        has_head=not traced.trace.logits,
    )


def loss_name(loss: Loss | None) -> str:
    """What a loss is called; "none" without one."""
    return "none" if loss is None else str(getattr(loss, "name", "given"))


def weight_norms(model: nn.Module) -> dict[str, float]:
    """The Euclidean norm of every parameter that is not zero."""
    norms = {name: float(gradient_norm(p)) for name, p in model.named_parameters()}
    return {name: norm for name, norm in norms.items() if norm > 0}


def update_ratios(gradients: Mapping[str, float], norms: Mapping[str, float]) -> dict[str, float]:
    """Gradient norm over weight norm, by parameter: how much a step of rate 1 changes it."""
    return {n: gradient / norms[n] for n, gradient in gradients.items() if n in norms}


def with_ratios(layers: Sequence[Layer]) -> list[Layer]:
    """Layers that know the forward variance of the next one over their own."""
    changes = [b.forward / a.forward if a.forward > 0 else math.nan for a, b in pairwise(layers)]
    return [replace(a, ratio_to_next=r) for a, r in zip(layers[:-1], changes, strict=True)] + [
        layers[-1]
    ]


def check_draws(seeds: int) -> None:
    """Raises an error unless so many draws can be made in a lifetime."""
    if seeds < 1:
        raise OptionError(f"seeds: expected at least 1, got {seeds}.")
    if seeds > MOST_DRAWS:
        raise OptionError(f"seeds: expected at most {MOST_DRAWS:,}, got {seeds}. Try 5.")


def draws_of(plan: Plan | Sequence[Plan] | None, seeds: int = 1) -> list[Draw]:
    """Which plan to draw from with which seed, once per draw."""
    check_draws(seeds)
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

    def loss(output: object, data: object) -> Tensor:
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

    loss.name = "cross-entropy"  # type: ignore[attr-defined]
    return loss


def _check_gradients(seen: Pass, calls: list[Call]) -> None:
    """Refuse a loss that gives some layer no gradient, unless one neuron is the reason."""
    narrow = {c.path for c, value in zip(calls, seen.returned, strict=True) if math.isnan(value)}
    gradients = zip(calls, seen.grad_returned, strict=True)
    missing = [c.path for c, g in gradients if math.isnan(g) and c.path not in narrow]
    if missing:
        raise LayerError(
            f"loss: expected a loss that depends on every layer, got none from "
            f"{', '.join(dict.fromkeys(missing))}. Pass another loss=, or backward=False."
        )


def _check_memory(inputs: Inputs, calls: list[Call]) -> None:
    """Refuse a pass that cannot fit, before the system ends the process."""
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


def remarks(layers: list[Layer]) -> list[str]:
    """Layers whose variance is undefined or infinite."""
    narrow = [str(layer.index) for layer in layers if layer.width < 2]
    infinite = [
        str(layer.index)
        for layer in layers
        if layer.width > 1 and (not math.isfinite(layer.forward) or math.isinf(layer.backward))
    ]
    notes = []
    if narrow:
        notes.append(f"layer {', '.join(narrow)} has one neuron: its variance is undefined")
    if infinite:
        notes.append(f"NaN or infinite values in layer {', '.join(infinite)}")
    return notes

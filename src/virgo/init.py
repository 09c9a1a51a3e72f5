"""``plan()``: from a model and its graph to a table of variances. ``init_()``: and draw from it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from virgo import analytic, calibrate_samples, released, rules, theory
from virgo import calibrate as measuring
from virgo.draws import DISTRIBUTIONS
from virgo.errors import OptionError
from virgo.graph.neighbourhoods import sample
from virgo.leftovers import complete
from virgo.network import reading
from virgo.network.graph_inputs import GraphInputs, is_graph
from virgo.network.inputs import Forward, Inputs
from virgo.network.modules import is_uninitialised, layers_of, materialise, unwrap
from virgo.network.trace import watch
from virgo.plans import Plan, choose_seed
from virgo.study import Study

Activation = str | Callable[[Tensor], Tensor]
_CHOICES = {
    "variant": ("theorem", "released"),
    "distribution": DISTRIBUTIONS,
    "signal": ("mean", "rms"),
    "estimate": ("analytic", "measured"),
    "bias": ("zero", "keep"),
}


def init_(
    model: nn.Module,
    data: Any,
    method: str = "virgo-backward",
    **options: Any,
) -> Plan:
    """Initialise ``model`` in place for the graph in ``data``; returns the plan it applied.

    The same as ``virgo.plan(model, data, method, **options).apply_(model)``; see :func:`plan` for
    the options. If anything is wrong, one error says what, and the model is untouched.

    >>> import torch, virgo
    >>> from torch_geometric.nn import GCN
    >>> data = virgo.data.citation_like(num_nodes=200, seed=0)
    >>> model = GCN(data.num_features, 32, num_layers=3, out_channels=7)
    >>> plan = virgo.init_(model, data, "virgo-forward", seed=0)
    >>> abs(model.convs[1].lin.weight.var().item() / plan.variances["convs.1.lin.weight"] - 1) < 0.1
    True
    """
    made = plan(model, data, method, **options)
    bare = unwrap(model)
    if is_uninitialised(bare):
        forward = options.get("forward")
        if is_graph(data):
            given = options.get("mean_features"), options.get("features")
            read: Inputs = GraphInputs.of(data, bare, *given, forward)
        else:
            read = reading.read(data, max_graphs=options.get("max_graphs"), seed=made.seed)
        materialise(bare, read, forward)
    made.apply_(bare)
    return made


def plan(
    model: nn.Module,
    data: Any,
    method: str = "virgo-backward",
    *,
    variant: str = "theorem",
    distribution: str = "uniform",
    signal: str = "mean",
    estimate: str = "analytic",
    num_classes: int | bool | None = None,
    nonlinearity: Activation = "relu",
    bias: str | None = None,
    seed: int = 0,
    generator: torch.Generator | None = None,
    forward: Forward | None = None,
    max_graphs: int | None = None,
    mean_features: Any = None,
    features: Any = None,
    nodes: int = calibrate_samples.NODES,
    loss: Callable[[Any, Any], Tensor] | None = None,
    tolerance: float = 1.02,
) -> Plan:
    r"""The variance of every weight of ``model`` on the graph in ``data``. Nothing is touched.

    Args:
        model: any model with PyG message-passing layers in it.
        data: a ``Data``, ``Batch`` or ``HeteroData``; a list or dataset of graphs (merged into
            the paper's approximation graph); ``(x, edge_index[, edge_weight])``; a sparse matrix;
            a graph without features, such as ``virgo.Graph.open(path)`` or one in a lake.
        method: one of :func:`virgo.methods`, in any spelling.
        variant: ``"theorem"``, or ``"released"`` for what the authors' code computes.
        distribution: ``"uniform"``, ``"normal"``, ``"truncated"``, ``"orthogonal"`` or
            ``"mirrored"`` (see :mod:`virgo.draws`).
        signal: the features as one number per node, ``"mean"`` (the paper) or ``"rms"``.
        estimate: ``"analytic"`` (the theorems) or ``"measured"`` (what the network really does;
            for layers the theorems do not cover and for exact stability).
        num_classes: of the softmax cross-entropy on the last layer's own output, for Theorem 4's
            last-layer rule. Inferred where the last layer's output is the model's and ``data.y``
            holds classes; ``False`` says there is no such softmax.
        nonlinearity: the activation, by name or as a function; sets the gain.
        bias: ``"zero"`` (default) or ``"keep"`` (default of the released variant).
        seed: of the draw, and of everything random on the way to it.
        generator: take the seed from this generator instead.
        forward: ``lambda model, data: ...`` for models called in an unusual way.
        max_graphs: sample this many graphs of a dataset, uniformly with the seed.
        mean_features: for a graph without features, one number per node: an array or the path of
            a ``.npy`` file. Without it every node starts with amplitude 1.
        features: in its place the feature matrix, which may be memory-mapped; a measured estimate
            on such a graph needs it.
        nodes: of each neighbourhood that a measured estimate on such a graph samples.
        loss: ``lambda output, data: ...`` for a measured gradient; cross-entropy on
            ``data.y[data.train_mask]`` where there are classes.
        tolerance: how far from equal two layers may be, as a factor, before a measured estimate
            stops refining.
    """
    chosen = rules.find(method)
    bias = bias if bias is not None else ("keep" if variant == "released" else "zero")
    given = {
        "variant": variant,
        "distribution": distribution,
        "signal": signal,
        "estimate": estimate,
        "bias": bias,
    }
    for name, value in given.items():
        if value not in _CHOICES[name]:
            raise OptionError(
                f"{name}: expected one of {', '.join(_CHOICES[name])}, got {value!r}. Choose one."
            )
    if not isinstance(tolerance, (int, float)) or not tolerance > 1:
        raise OptionError(f"tolerance: expected a factor above 1, got {tolerance!r}. Try 1.02.")
    if loss is not None and not callable(loss):
        raise OptionError(
            f"loss: expected lambda output, data: ..., got {loss!r}. Pass a function."
        )
    activation, gain = _resolve_gain(nonlinearity)
    seed = choose_seed(seed, generator)
    model = unwrap(model)
    layers_of(model)  # says so if there are none
    if is_graph(data):
        read: Inputs = GraphInputs.of(data, model, mean_features, features, forward)
        _refuse_for_graphs(distribution)
        if estimate == "measured":
            return _measured_on_samples(
                model,
                read,
                method,
                nodes,
                num_classes=num_classes,
                nonlinearity=nonlinearity,
                forward=forward,
                loss=loss,
                tolerance=tolerance,
                seed=seed,
                **given,
            )
    else:
        _refuse_beside_data(mean_features, features)
        read = reading.read(data, max_graphs=max_graphs, seed=seed)
    if is_uninitialised(model):
        model = copy.deepcopy(model)
        materialise(model, read, forward)
    trace = watch(model, read, forward)
    strict = estimate == "analytic"
    study = Study(model, read, trace, gain, signal, distribution, seed, strict)
    study.check_features()
    study.num_classes = study.infer_classes(num_classes)
    if distribution == "mirrored" and abs(gain - theory.RELU_GAIN) > 1e-9:
        study.notes.append("mirrored weights make a ReLU network linear, not one with another gain")
    base = Plan(
        method=chosen.name,
        rows=(),
        variant=variant,
        estimate=estimate,
        distribution=distribution,
        signal=signal,
        nonlinearity=activation,
        gain=gain,
        bias=bias,
        seed=seed,
        num_classes=study.num_classes,
        graph=_graph_facts(read),
    )
    if estimate == "measured":
        made = measuring.measure(base, chosen, study, forward, loss, tolerance)
    elif variant == "released" and chosen.directions:
        made = replace(base, rows=tuple(released.rows(study, chosen)))
    else:
        made = replace(base, rows=tuple(analytic.rows(study, chosen)))
    return complete(made, study)


def _refuse_for_graphs(distribution: str) -> None:
    if distribution == "mirrored":
        raise OptionError(
            "distribution: 'mirrored' follows every feature through the graph, expected another "
            "for a graph without features. Choose uniform, normal, truncated or orthogonal."
        )


def _refuse_beside_data(mean_features: Any, features: Any) -> None:
    for name, value in (("mean_features", mean_features), ("features", features)):
        if value is not None:
            raise OptionError(
                f"{name}: expected it beside a graph without features (virgo.Graph), got data "
                f"that has its own. Leave it out, or set data.x."
            )


def _measured_on_samples(
    model: nn.Module, read: Any, method: str, nodes: int, **options: Any
) -> Plan:
    """The measured estimate on a few neighbourhoods of a graph that is not run as a whole."""
    if read.features is None or not hasattr(read.home, "by_target"):
        raise OptionError(
            "estimate='measured': expected features= (a matrix or the path of a .npy file) and a "
            "graph in memory or on disk, got a graph alone. Pass them, or use "
            "estimate='analytic'."
        )

    def on_samples(size: int) -> list[Plan]:
        places = range(options["seed"], options["seed"] + calibrate_samples.SAMPLES)
        samples = (sample(read.home, read.features, size, p) for p in places)
        return [plan(model, one, method, **options) for one in samples]

    whole, half = on_samples(nodes), on_samples(max(2, nodes // 2))
    return calibrate_samples.combined(whole, half, _graph_facts(read))


def _graph_facts(read: Inputs) -> dict[str, Any]:
    facts: dict[str, Any] = {"nodes": read.num_nodes, "edges": read.num_edges}
    if read.sampled is not None:
        facts["sampled"] = read.sampled
    return facts


def _resolve_gain(nonlinearity: Activation) -> tuple[str, float]:
    if callable(nonlinearity):
        phi, name = nonlinearity, getattr(nonlinearity, "__name__", type(nonlinearity).__name__)
    else:
        name = str(nonlinearity).lower().replace("-", "_")
        found = (
            (lambda z: z)
            if name in ("linear", "identity", "none")
            else getattr(torch.nn.functional, name, None)
        )
        if not callable(found):
            raise OptionError(
                f"nonlinearity: expected a function or a name in torch.nn.functional such as "
                f"relu, tanh, gelu, leaky_relu or linear, got {nonlinearity!r}. Choose one."
            )
        phi = found
    try:
        value = theory.gain(phi)
    except Exception as error:
        raise OptionError(
            f"nonlinearity: expected a function of one tensor, got {nonlinearity!r} "
            f"({error}). Pass lambda z: ..."
        ) from error
    if not math.isfinite(value) or value <= 0:
        raise OptionError(
            f"nonlinearity: expected an activation that lets a signal through, "
            f"got {nonlinearity!r}. Choose another."
        )
    return name, value

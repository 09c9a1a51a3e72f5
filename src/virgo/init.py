"""``plan()``: a model and its graph -> a table of variances. ``init_()``: and draw from it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn

from virgo import auto, planning
from virgo.calibrate_samples import NODES, measured_on_samples
from virgo.draws import SPECTRAL_POWER
from virgo.errors import OptionError, named_options
from virgo.network import reading
from virgo.network.graph_inputs import GraphInputs, is_graph
from virgo.network.inputs import Forward, Inputs
from virgo.network.modules import copied, is_uninitialised, materialise, unwrap
from virgo.network.probe import Loss
from virgo.network.replicas import needs_replica, put_back, replica_of
from virgo.planning import Activation, Options
from virgo.plans import Plan, choose_seed
from virgo.rules import parse_method


@named_options
def init_(
    model: nn.Module,
    data: Any,
    method: str = "auto",
    *,
    variant: str = "theorem",
    distribution: str = "uniform",
    signal: str = "mean",
    estimate: str = "analytic",
    num_classes: int | bool | None = None,
    nonlinearity: Activation | None = None,
    bias: str | None = None,
    seed: int = 0,
    generator: torch.Generator | None = None,
    forward: Forward | None = None,
    max_graphs: int | None = None,
    mean_features: Any = None,
    features: Any = None,
    nodes: int = NODES,
    loss: Loss | None = None,
    tolerance: float = 1.02,
    power: float = SPECTRAL_POWER,
) -> Plan:
    """Initialise ``model`` in place for the graph in ``data``; returns the plan it applied.

    The same as ``virgo.plan(model, data, method, ...).apply_(model)``. If anything is wrong, one
    error says what, and the model is untouched.

    Model and data may be on any device, the model also on the meta device, where it gets memory
    (on the data's device) and numbers, or sharded by ``fully_shard``. Processes that train
    together get the same bits if they pass the same data and seed.

    Args:
        model: any model with message-passing layers of PyG or DGL in it.
        data: a ``Data``, ``Batch`` or ``HeteroData``; a ``DGLGraph``; a list or dataset of graphs
            (merged into the paper's approximation graph); ``(x, edge_index[, edge_weight])``; a
            sparse matrix; a graph without features, such as ``virgo.Graph.open(path)`` or one in a
            database.
        method: one of :func:`virgo.methods`, in any spelling; options may follow a plus, as in
            ``"virgo-backward+mirrored"``.
        variant: ``"theorem"``, or ``"released"`` for what the authors' code computes.
        distribution: ``"uniform"``, ``"normal"``, ``"truncated"``, ``"orthogonal"``,
            ``"mirrored"`` or ``"spectral"`` (see :mod:`virgo.draws`).
        signal: the features as one number per node, ``"mean"`` (the paper) or ``"rms"``.
        estimate: ``"analytic"`` (the theorems) or ``"measured"`` (what the network really does;
            for layers the theorems do not cover and for exact stability).
        num_classes: of the softmax cross-entropy on the last layer's own output, for Theorem 4's
            last-layer rule. Inferred where the last layer's output is the model's and ``data.y``
            holds classes; ``False`` says there is no such softmax.
        nonlinearity: the activation, by name or as a function; sets the gain. By default the one
            that a pass shows between layers, ReLU where there is none.
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
        power: of the singular values by which spectral directions are scaled, from -1 (all alike
            at the far end) to 0.

    Returns:
        The plan; ``print`` shows it as a table.

    >>> import torch, virgo
    >>> from torch_geometric.nn import GCN
    >>> data = virgo.data.citation_like(num_nodes=200, seed=0)
    >>> model = GCN(data.num_features, 32, num_layers=3, out_channels=7)
    >>> plan = virgo.init_(model, data, "virgo-forward", seed=0)
    >>> abs(model.convs[1].lin.weight.var().item() / plan.variances["convs.1.lin.weight"] - 1) < 0.1
    True
    """
    given = dict(locals())
    name, options = _options(method, given)
    given_model = unwrap(model, allow_meta=True)
    bare = _replica(given_model, data, options.seed)
    inputs = _read(bare, data, options, max_graphs, mean_features, features)
    plan = _plan(bare, inputs, name, options, nodes)
    if is_uninitialised(bare):
        materialise(bare, inputs, forward, options.seed)
    watched = name != "auto" and options.estimate == "analytic"
    before = auto.try_profile(bare, inputs, options) if watched else None
    plan.apply_(bare)
    if before is not None:
        auto.warn_if_worse(method, before, auto.try_profile(bare, inputs, options))
    if bare is not given_model:
        put_back(bare, given_model)
    return plan


@named_options
def plan(
    model: nn.Module,
    data: Any,
    method: str = "auto",
    *,
    variant: str = "theorem",
    distribution: str = "uniform",
    signal: str = "mean",
    estimate: str = "analytic",
    num_classes: int | bool | None = None,
    nonlinearity: Activation | None = None,
    bias: str | None = None,
    seed: int = 0,
    generator: torch.Generator | None = None,
    forward: Forward | None = None,
    max_graphs: int | None = None,
    mean_features: Any = None,
    features: Any = None,
    nodes: int = NODES,
    loss: Loss | None = None,
    tolerance: float = 1.02,
    power: float = SPECTRAL_POWER,
) -> Plan:
    """The variance of every weight of ``model`` on the graph in ``data``. Nothing is touched.

    Args:
        model: any model with message-passing layers of PyG or DGL in it.
        data: a ``Data``, ``Batch`` or ``HeteroData``; a ``DGLGraph``; a list or dataset of graphs
            (merged into the paper's approximation graph); ``(x, edge_index[, edge_weight])``; a
            sparse matrix; a graph without features, such as ``virgo.Graph.open(path)`` or one in a
            database.
        method: one of :func:`virgo.methods`, in any spelling; options may follow a plus, as in
            ``"virgo-backward+mirrored"``.
        variant: ``"theorem"``, or ``"released"`` for what the authors' code computes.
        distribution: ``"uniform"``, ``"normal"``, ``"truncated"``, ``"orthogonal"``,
            ``"mirrored"`` or ``"spectral"`` (see :mod:`virgo.draws`).
        signal: the features as one number per node, ``"mean"`` (the paper) or ``"rms"``.
        estimate: ``"analytic"`` (the theorems) or ``"measured"`` (what the network really does;
            for layers the theorems do not cover and for exact stability).
        num_classes: of the softmax cross-entropy on the last layer's own output, for Theorem 4's
            last-layer rule. Inferred where the last layer's output is the model's and ``data.y``
            holds classes; ``False`` says there is no such softmax.
        nonlinearity: the activation, by name or as a function; sets the gain. By default the one
            that a pass shows between layers, ReLU where there is none.
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
        power: of the singular values by which spectral directions are scaled, from -1 (all alike
            at the far end) to 0.

    Returns:
        The plan, which :meth:`Plan.apply_` draws from.
    """
    given = dict(locals())
    name, options = _options(method, given)
    model = _replica(unwrap(model, allow_meta=True), data, options.seed)
    inputs = _read(model, data, options, max_graphs, mean_features, features)
    return _plan(model, inputs, name, options, nodes)


def _replica(model: nn.Module, data: Any, seed: int) -> nn.Module:
    """The model, or where its numbers are elsewhere a plain one that has them."""
    return replica_of(model, reading.device_of(data), seed) if needs_replica(model) else model


def _options(method: str, given: dict[str, Any]) -> tuple[str, Options]:
    """The method's name, and the options given beside it and after its plus signs."""
    name, words = parse_method(method)
    known = {field.name: field.default for field in fields(Options)}
    values = {key: value for key, value in given.items() if key in known}
    for key, value in words.items():
        if values[key] not in (known[key], value):
            raise OptionError(
                f"{key}: expected one value, got {values[key]!r} and {value!r} from {method!r}. "
                f"Leave one of them out."
            )
        values[key] = value
    values["seed"] = choose_seed(given["seed"], given["generator"])
    return name, Options(**values)


def _read(
    model: nn.Module,
    data: Any,
    options: Options,
    max_graphs: int | None,
    mean_features: Any,
    features: Any,
) -> Inputs:
    if is_graph(data):
        return GraphInputs.of(data, model, mean_features, features, options.forward)
    for name, value in (("mean_features", mean_features), ("features", features)):
        if value is not None:
            raise OptionError(
                f"{name}: expected it beside a graph without features (virgo.Graph), got data "
                f"that has its own. Leave it out, or set data.x."
            )
    return reading.read(data, max_graphs=max_graphs, seed=options.seed)


def _plan(model: nn.Module, inputs: Inputs, name: str, options: Options, nodes: int) -> Plan:
    if isinstance(inputs, GraphInputs):
        inputs.check_distribution(options.distribution, options.estimate)
        if options.estimate == "measured":
            return measured_on_samples(
                lambda sample: planning.named_plan(model, reading.read(sample), name, options),
                inputs,
                nodes,
                options.seed,
            )
        if name == "auto":
            plan = planning.named_plan(model, inputs, "virgo-backward", options)
            note = "a graph without features cannot be run: the closed form of virgo-backward"
            return replace(plan, notes=(*plan.notes, note))
    if is_uninitialised(model):
        model = copied(model)
        materialise(model, inputs, options.forward, options.seed)
    if name == "auto":
        return auto.choose(model, inputs, options)
    return planning.named_plan(model, inputs, name, options)

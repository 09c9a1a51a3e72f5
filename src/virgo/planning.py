"""A plan by a named method: a model and its inputs -> graph ratios -> a table of variances."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from virgo import calibrate, related, released, rules, theory
from virgo.draws import PAIRED, SPECTRAL_POWER
from virgo.errors import LayerError, OptionError, shown, suggestion
from virgo.layers import Term, is_layer
from virgo.network.inputs import Forward, Inputs
from virgo.network.modules import is_linear, owner
from virgo.network.probe import Loss
from virgo.network.trace import Trace, watch
from virgo.plans import Plan, Row
from virgo.study import Study, looks_up_features
from virgo.vocabulary import DISTRIBUTIONS

Activation = str | Callable[[Tensor], Tensor]
_CHOICES = {
    "variant": ("theorem", "released"),
    "distribution": DISTRIBUTIONS,
    "signal": ("mean", "rms"),
    "estimate": ("analytic", "measured"),
    "bias": ("zero", "keep"),
}


@dataclass(frozen=True)
class Options:
    """What a plan may be asked for beside its method; :func:`virgo.plan` documents each."""

    variant: str = "theorem"
    distribution: str = "uniform"
    signal: str = "mean"
    estimate: str = "analytic"
    num_classes: int | bool | None = None
    nonlinearity: Activation | None = None
    bias: str | None = None
    seed: int = 0
    forward: Forward | None = None
    loss: Loss | None = None
    tolerance: float = 1.02
    power: float = SPECTRAL_POWER

    def __post_init__(self) -> None:
        if self.bias is None:
            object.__setattr__(self, "bias", "keep" if self.variant == "released" else "zero")
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if not isinstance(value, str) or value not in choices:
                raise OptionError(
                    f"{name}: expected one of {', '.join(choices)}, got {shown(value)}."
                    f"{suggestion(value, choices)} Choose one."
                )
        number: object = self.tolerance
        if not isinstance(number, (int, float)) or not number > 1:
            raise OptionError(
                f"tolerance: expected a factor above 1, got {shown(self.tolerance)}. Try 1.02."
            )
        power: object = self.power
        if not isinstance(power, (int, float)) or not -2 <= power <= 2:
            raise OptionError(
                f"power: expected a number between -2 and 2, got {power!r}. Try 0 or -0.5."
            )
        if power != SPECTRAL_POWER and self.distribution != "spectral":
            raise OptionError(
                f"power: expected it beside distribution='spectral', got {self.distribution!r}. "
                f"Leave it out."
            )
        calls: tuple[tuple[str, str, object], ...] = (
            ("loss", "output, data", self.loss),
            ("forward", "model, data", self.forward),
        )
        for name, arguments, call in calls:
            if call is not None and not callable(call):
                raise OptionError(
                    f"{name}: expected lambda {arguments}: ..., got {shown(call)}. Pass a function."
                )


def named_plan(model: nn.Module, inputs: Inputs, method: str, options: Options) -> Plan:
    """The plan of one named method for a model whose parameters have their shapes.

    Args:
        model: unwrapped, not lazy.
        inputs: the graph it runs on.
        method: a name of :func:`virgo.methods`.
        options: everything else.

    Returns:
        A plan that accounts for every parameter; nothing is touched.
    """
    rule = rules.find(method)
    if options.nonlinearity is not None:
        resolve_gain(options.nonlinearity)  # before anything runs
    if rule.name in related.PLANNERS:
        return _related_plan(model, inputs, rule, options)
    return plan_of(studied(model, inputs, options), rule, options)


def studied(model: nn.Module, inputs: Inputs, options: Options) -> Study:
    """What the graph does in each layer of a model, as one pass shows which layers those are."""
    trace = watch(model, inputs, options.forward)
    activation, gain = resolve_gain(options.nonlinearity or seen_activation(trace))
    study = Study(
        model,
        inputs,
        trace,
        gain,
        options.signal,
        options.distribution,
        options.seed,
        options.power,
        strict=options.estimate == "analytic",
        activation=activation,
    )
    study.notes += inputs.check_signal(study.looks_up_features)
    study.num_classes = study.infer_classes(options.num_classes)
    if options.distribution in PAIRED and abs(gain - theory.RELU_GAIN) > 1e-9:
        study.notes.append(
            f"{options.distribution} weights make a ReLU network linear, not one with another gain"
        )
    return study


def plan_of(study: Study, rule: rules.Method, options: Options) -> Plan:
    """The plan of a rule of the theorems for what was studied."""
    base = Plan(
        method=rule.name,
        rows=(),
        variant=options.variant,
        estimate=options.estimate,
        distribution=options.distribution,
        signal=options.signal,
        nonlinearity=study.activation,
        gain=study.gain,
        bias=str(options.bias),
        seed=options.seed,
        num_classes=study.num_classes,
        graph=study.inputs.facts(),
        basis=study.basis if options.distribution == "spectral" else None,
    )
    if options.estimate == "measured":
        plan = calibrate.measure(
            base, rule, study, options.forward, options.loss, options.tolerance
        )
    elif options.variant == "released" and rule.directions:
        plan = replace(base, rows=tuple(released.rows(study, rule)))
    else:
        plan = replace(base, rows=tuple(closed_form(study, rule)))
    return account(plan, study)


def _related_plan(model: nn.Module, inputs: Inputs, rule: rules.Method, options: Options) -> Plan:
    """The plan of a method of :mod:`virgo.related`, which needs no description of any layer."""
    for name, default in (("distribution", "uniform"), ("estimate", "analytic")):
        value = getattr(options, name)
        if value not in (default, rule.distribution):
            raise OptionError(
                f"{name}: expected none beside {rule.name!r}, which brings its own, got "
                f"{value!r}. Leave it out."
            )
    notes = inputs.check_signal(looks_up_features(model, inputs))
    seen: Activation = "relu"
    if any(is_layer(module) for module in model.modules()):
        seen = seen_activation(watch(model, inputs, options.forward))
    activation, gain = resolve_gain(options.nonlinearity or seen)
    base = Plan(
        method=rule.name,
        rows=(),
        variant=options.variant,
        distribution=rule.distribution or options.distribution,
        nonlinearity=activation,
        gain=gain,
        bias=str(options.bias),
        seed=options.seed,
        graph=inputs.facts(),
        notes=tuple(notes),
    )
    request = related.PlanRequest(model, inputs, rule, options.forward, options.loss)
    return related.PLANNERS[rule.name](base, request)


def closed_form(study: Study, method: rules.Method) -> list[Row]:
    """One row per weight: the method's rule on the weight's fans and graph ratios.

    A weight used several times gets the geometric mean of what its uses ask for, which leaves the
    variance at the far end unchanged.

    Args:
        study: the model on its graph.
        method: the rule.

    Returns:
        The rows, in the order in which weights are first used.
    """
    rows = []
    for name, uses in study.uses.items():
        wanted = [_variance(method, _Use(study, call, stage, name)) for call, stage, _ in uses]
        variance = math.exp(sum(map(math.log, wanted)) / len(wanted))
        variance = wanted[0] if len(wanted) == 1 else variance
        without_graph = method.rule(rules.WithoutGraph(*study.fans(name), study.gain))
        rows.append(study.row(name, variance, variance / without_graph))
    return rows


@dataclass(frozen=True)
class _Use:
    """One use of one weight, as a method's rule sees it (:class:`virgo.rules.Weight`)."""

    study: Study
    call: int
    stage: int
    name: str

    @property
    def fan_in(self) -> int:
        return self.study.fans(self.name)[0]

    @property
    def fan_out(self) -> int:
        return self.study.fans(self.name)[1]

    @property
    def gain(self) -> float:
        return self.study.gain

    @property
    def forward_ratio(self) -> float:
        return self.study.forward_hops.ratios[self.call, self.stage]

    @property
    def backward_ratio(self) -> float:
        return self.study.backward_hops.ratios[self.call, self.stage]

    @property
    def softmax_variance(self) -> float | None:
        study = self.study
        if study.num_classes is None or not study.is_last(self.call, self.stage):
            return None
        nodes = study.inputs.num_nodes
        squared_norm = study.backward_hops.last_squared_norm * nodes
        return theory.virgo_backward_last(nodes, study.num_classes, squared_norm)

    @property
    def independent_ratio(self) -> float:
        """One over the sum of the terms' mean row sums of squares, neighbours being independent."""
        terms = self.study.stages[self.call][self.stage]
        shares = [1.0 if self._is_local(term) else 1 / self.study.mean_degree for term in terms]
        return 1 / sum(shares)

    @property
    def row_sum(self) -> float:
        """That of GCN's operator for a stage that walks edges, 1 for one that does not."""
        terms = self.study.stages[self.call][self.stage]
        return 1.0 if all(map(self._is_local, terms)) else self.study.gcn_row_sum

    def _is_local(self, term: Term) -> bool:
        """Whether a term walks no edges; one that sums over them is refused."""
        if term.operator.graph is None:
            return True
        if not self.study.is_average(term.operator):
            layer = self.study.trace.calls[self.call]
            raise LayerError(
                f"{layer.path}: expected a layer that averages over neighbours, as this method "
                f"assumes, got {type(layer.layer).__name__}, which sums. Use lsuv, or "
                f"virgo-backward, which takes its operator as it is."
            )
        return False


def _variance(method: rules.Method, use: _Use) -> float:
    variance = method.rule(use)
    if not (math.isfinite(variance) and variance > 0):
        raise LayerError(
            f"{use.name}: expected a positive finite variance from {method.name}, got {variance}. "
            f"Check the method, the edge weights and the features."
        )
    return variance


def account(plan: Plan, study: Study) -> Plan:
    """Account for every parameter: biases to zero, and what is left alone with the reason."""
    planned = {row.weight for row in plan.rows}
    layers = {row.layer for row in plan.rows}
    drawn = any(row.distribution != "own" for row in plan.rows)
    zeros = study.zero_scores if drawn else frozenset()
    biases: list[str] = []
    left_alone: list[tuple[str, str]] = []
    for name, parameter in study.model.named_parameters():
        if name in planned:
            continue
        layer = owner(name, layers)
        is_bias = layer is not None and name.endswith("bias") and _is_bias(name, planned, study)
        if not parameter.requires_grad:
            left_alone.append((name, "frozen (requires_grad=False)"))
        elif name in zeros or (is_bias and plan.bias == "zero"):
            biases.append(name)
        elif is_bias:
            left_alone.append((name, "bias='keep'"))
        else:
            left_alone.append((name, _reason(name, layer, study)))
    return replace(
        plan,
        biases=tuple(biases),
        left_alone=tuple(left_alone),
        notes=(*plan.notes, *study.notes),
    )


def _is_bias(name: str, planned: set[str], study: Study) -> bool:
    """Whether this is the bias of a layer or of a linear map inside it, and not of a norm."""
    module = name.rpartition(".")[0]
    return f"{module}.weight" in planned or is_layer(study.model.get_submodule(module))


def _reason(name: str, layer: str | None, study: Study) -> str:
    path = name.rpartition(".")[0]
    module = study.model.get_submodule(path)
    kind = type(module).__name__
    if layer is not None:
        return f"not a weight of the layer's message passing ({kind})"
    unplanned = owner(path, study.layers)
    if unplanned is not None:
        ran = any(call.path == unplanned for call in study.trace.calls)
        return "its layer has nothing to plan" if ran else "its layer did not run"
    if is_linear(module):
        return "a linear layer outside message passing"
    return f"{kind} is not a message-passing layer"


def seen_activation(trace: Trace) -> Activation:
    """The activation between layers, as one pass showed it; ReLU where there was none.

    A network of one layer, or one that is linear between its layers, has none to be read; of
    several kinds the first that ran counts, and PReLU, which learns its slope, counts as ReLU.

    Args:
        trace: of the pass.

    Returns:
        Its name, or a function where a number shapes it.
    """
    if not trace.activations:
        return "relu"
    name, number = trace.activations[0]
    if number is None:
        return name
    function = getattr(torch.nn.functional, name)

    def shaped(z: Tensor) -> Tensor:
        return cast(Tensor, function(z, number))

    shaped.__name__ = name
    return shaped


def resolve_gain(nonlinearity: Activation) -> tuple[str, float]:
    """The name and the gain of an activation given by name or as a function.

    Args:
        nonlinearity: as :func:`virgo.plan` takes it.

    Returns:
        The name and the gain.

    Raises:
        OptionError: if it is unknown, no function of one tensor, or lets nothing through.

    >>> resolve_gain("relu")
    ('relu', 2.0)
    """
    name, phi = _activation(nonlinearity)
    try:
        with torch.random.fork_rng(devices=[]):
            before = torch.get_rng_state()
            gain = theory.gain(phi)
            is_random = not torch.equal(before, torch.get_rng_state())
    except Exception as error:
        raise OptionError(
            f"nonlinearity: expected a function of one tensor, got {shown(nonlinearity)} "
            f"({error}). Pass lambda z: ..."
        ) from error
    if is_random:
        raise OptionError(
            f"nonlinearity: expected a function that draws nothing at random, got "
            f"{shown(nonlinearity)}. Name the activation before it."
        )
    if not math.isfinite(gain) or gain <= 0:
        raise OptionError(
            f"nonlinearity: expected an activation that lets a signal through, "
            f"got {shown(nonlinearity)}. Choose another."
        )
    return name, gain


def _activation(nonlinearity: Activation) -> tuple[str, Callable[[Tensor], Tensor]]:
    if callable(nonlinearity):
        return getattr(nonlinearity, "__name__", type(nonlinearity).__name__), nonlinearity
    name = str(nonlinearity).lower().replace("-", "_")
    if name in ("linear", "identity", "none"):
        return name, lambda z: z
    phi: Any = getattr(torch.nn.functional, name, None)
    if not callable(phi):
        raise OptionError(
            f"nonlinearity: expected a function or a name in torch.nn.functional such as "
            f"relu, tanh, gelu, leaky_relu or linear, got {shown(nonlinearity)}. Choose one."
        )
    return name, phi

"""The default: measure what is there, try what fits, keep the best, and never make it worse.

Candidates are the model as it is, the closed forms where every layer is described, spectral and
mirrored weights for deep plain ReLU stacks, and the model's own weights rescaled by measured passes
(:mod:`virgo.balance`), which fits any network. Each is judged by one real pass, in the mode in
which the network will train, and by one number, :func:`score`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from virgo.balance import Unit, balance, find_units, residual_branches
from virgo.devices import widest
from virgo.draws import PAIRED
from virgo.errors import LayerError, VirgoError, VirgoWarning
from virgo.layers import is_layer
from virgo.network.graph_inputs import GraphInputs
from virgo.network.inputs import Inputs
from virgo.network.losses import InferredLoss
from virgo.network.modules import fans_of
from virgo.network.probe import Loss
from virgo.network.profile import Profile, as_in_training, extent, profile
from virgo.network.trace import watch
from virgo.planning import Options, named_plan
from virgo.plans import Plan, Row
from virgo.study import looks_up_features
from virgo.vocabulary import CHANGE

#: A score must fall by this much to count: a range that is a fifth narrower.
NOISE = 0.1
#: A score up to which a model that nothing helps is called stable, as `check` does.
STABLE = math.log10(CHANGE)
#: No range may grow by more than this factor, however good the rest is.
WORSE = 1.1
#: Of more edges than this, candidates are tried on a connected sample of so many nodes.
MANY_EDGES, SAMPLE_NODES = 2_000_000, 20_000
#: Layers from which spectral and mirrored weights are worth trying.
DEEP = 6


def score(seen: Profile) -> float:
    r"""How far a network is from stable, as one number; 0 is perfect.

    .. math:: \log_{10} \max(\text{forward range}, \text{gradient range}) + \text{dead}
              + \tfrac12 \log_{10}^+ \frac{4}{\text{rank}} + \log_{10}^+ \frac{\text{growth}}{2}

    A range is the largest over the smallest mean square over all weighted parts; *dead* is the
    largest share of units that are zero for every node; *rank* is the effective rank of the last
    hidden output (all nodes alike: 1); *growth* is what residual branches add to their stream.
    Such branches are compared with each other: that they are fainter than the rest is their growth.

    Args:
        seen: one pass.

    Returns:
        The score; infinite where a signal is zero or overflows.
    """
    branches = set(residual_branches(seen))
    groups = [
        [call.signal for i, call in enumerate(seen.calls) if (i in branches) == inside]
        for inside in (True, False)
    ]
    wider = max(*map(extent, groups), extent(seen.backward))
    if not math.isfinite(wider):
        return math.inf
    hidden = seen.calls[:-1]
    dead = max((call.dead for call in hidden), default=0.0)
    ranks = [call.rank for call in hidden if call.rank > 0]
    alike = max(0.0, math.log10(4.0 / ranks[-1])) if ranks else 0.0
    return math.log10(wider) + dead + 0.5 * alike + max(0.0, math.log10(growth(seen) / 2.0))


def growth(seen: Profile) -> float:
    """By what factor residual branches together enlarge the stream that they are added to.

    The stream is what the calls that read it received, against what entered it.

    Args:
        seen: one pass.

    Returns:
        The factor; 1 without residual branches.
    """
    branches = set(residual_branches(seen))
    entries = [
        seen.calls[p].signal
        for b in branches
        for p in seen.calls[b].parents
        if p not in branches and seen.calls[p].is_sound
    ]
    readers = [
        call.received
        for call in seen.calls
        if any(p in branches and not link.normalised for p, link in call.parents.items())
    ]
    entry = min(entries) if entries else seen.entry
    return max(readers) / entry if readers and entry > 0 else 1.0


@dataclass(frozen=True)
class Candidate:
    """A way to initialise the model, and what one pass with it showed."""

    name: str
    seen: Profile
    plan: Plan | None = None  # None for the model as it is

    @property
    def score(self) -> float:
        return score(self.seen)


def choose(model: nn.Module, inputs: Inputs, options: Options) -> Plan:
    """The plan that ``virgo.init_(model, data)`` applies. The model is left as it was.

    Args:
        model: unwrapped, not lazy.
        inputs: the graph it runs on.
        options: the seed, ``forward`` and ``loss``; a distribution other than the default is kept.

    Returns:
        The best candidate's plan, or one without rows if nothing beats the model as it is.
    """
    loss = options.loss or InferredLoss(options.seed)
    sample = _sample(inputs, options.seed)
    units = find_units(model)
    if not looks_up_features(model, inputs):
        inputs.check_signal(looks_up=False)
    with as_in_training(model, weights=True):
        prepared = sample.prepared_for(model)

        def seen_with(plan: Plan) -> Profile:
            with _applied(plan, model):
                return profile(model, prepared, options.forward, loss)

        def balanced(name: str, start: Plan) -> list[Candidate]:
            """The weights that ``start`` draws, with their scales from measured passes."""
            with _applied(start, model):
                first = profile(model, prepared, options.forward, loss)
                found = [
                    balance(model, prepared, first, options.forward, loss, units, quiet=quiet)
                    for quiet in ((0.0, 1.0, 2.0) if residual_branches(own.seen) else (0.0,))
                ]
            title = f"{name}, scaled by measured passes"
            return [Candidate(title, seen, _scaled_by(start, factors)) for factors, seen in found]

        own = Candidate("as it is", _first_profile(model, prepared, options, loss))
        closed = [
            Candidate(_title(plan), seen_with(plan), plan)
            for plan in _closed_forms(model, inputs, options, own.seen)
        ]
        kept = _own_weights(model, units, options)
        starts = {
            f"{candidate.plan.distribution} weights": _joined(candidate.plan, kept)
            for candidate in closed
            if candidate.plan is not None and candidate.plan.distribution in PAIRED
        }
        starts["own weights"] = kept  # last: of equal scores, paired weights train better
        measured = [c for name, start in starts.items() for c in balanced(name, start)]
    candidates = [own, *closed, *measured]
    best = pick(candidates)
    return _explained(best, candidates, units, model, inputs, sample, options, loss)


def _first_profile(model: nn.Module, inputs: Inputs, options: Options, loss: Loss) -> Profile:
    try:
        return profile(model, inputs, options.forward, loss)
    except LayerError:
        if any(map(is_layer, model.modules())):
            watch(model, inputs, options.forward)  # which says what does not fit, where it can
        raise


def pick(candidates: list[Candidate]) -> Candidate:
    """The candidate to keep: the first, which is the model as it is, unless one is clearly better.

    None may make the wider of the two ranges wider than it was, unless the model as it is passes on
    nothing or no finite numbers; of those whose scores differ by no more than noise, the one that
    comes first (closed forms before measured scales).

    Args:
        candidates: the model as it is, then the others in order of preference.

    Returns:
        The one to keep.
    """
    own, *others = candidates
    allowed = [
        c
        for c in others
        if math.isfinite(c.score)
        and c.seen.wider <= WORSE * own.seen.wider
        and (math.isinf(own.seen.wider) or c.seen.wider_variance <= WORSE * own.seen.wider_variance)
    ]
    best = min(allowed, key=lambda c: c.score, default=own)
    if best is own or best.score > own.score - NOISE:
        return own
    return next(c for c in allowed if c.score <= best.score + NOISE)


def _sample(inputs: Inputs, seed: int) -> Inputs:
    """The whole graph, or a connected sample of a large one."""
    if inputs.is_hetero or inputs.num_edges <= MANY_EDGES:
        return inputs
    try:
        return inputs.neighbourhood(SAMPLE_NODES, seed)
    except VirgoError:
        return inputs


def _closed_forms(
    model: nn.Module, inputs: Inputs, options: Options, own: Profile
) -> Iterator[Plan]:
    """The plans of the theorems, where they describe every layer.

    Deep stacks also get the first kind of paired weights that fits: spectral where there are
    features to look at, else mirrored.

    Yields:
        Plans, those of deep stacks first.
    """
    options = replace(options, estimate="analytic")
    if options.distribution == "uniform" and len(own.calls) >= DEEP:
        for distribution in PAIRED:
            try:
                yield named_plan(
                    model, inputs, "virgo-backward", replace(options, distribution=distribution)
                )
                break
            except VirgoError:
                continue
    for method in ("virgo-backward", "virgo"):
        try:
            yield named_plan(model, inputs, method, options)
        except VirgoError:
            continue


def _title(plan: Plan) -> str:
    word = "" if plan.distribution == "uniform" else f"+{plan.distribution}"
    return f"{plan.method}{word}"


@contextmanager
def _applied(plan: Plan, model: nn.Module) -> Iterator[None]:
    saved = [(p, p.detach().clone()) for p in model.parameters()]
    plan.apply_(model)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in saved:
                parameter.copy_(value)


def _own_weights(model: nn.Module, units: list[Unit], options: Options) -> Plan:
    """The plan that keeps the model's own weights; biases of scaled units become zero."""
    parameters = dict(model.named_parameters())
    rows = []
    for unit in units:
        for name in unit.weights:
            weight = parameters[name].detach()
            shape = tuple(weight.shape)
            owner = model.get_submodule(name.rpartition(".")[0])
            fan_in, fan_out, in_first = fans_of(owner, shape)
            variance = float(weight.to(widest(weight)).square().mean())
            rows.append(
                Row(unit.path, name, shape, fan_in, fan_out, 1.0, variance, in_first=in_first)
            )
    return Plan(
        method="auto",
        rows=tuple(rows),
        biases=tuple(name for unit in units if unit.weights for name in unit.biases),
        estimate="measured",
        distribution="own",
        seed=options.seed,
    )


def _joined(drawn: Plan, own: Plan) -> Plan:
    """A plan's draws, and the model's own weights where it has none."""
    planned = {row.weight for row in drawn.rows}
    rest = [replace(row, distribution="own") for row in own.rows if row.weight not in planned]
    biases = dict.fromkeys((*drawn.biases, *own.biases))
    return replace(
        drawn, rows=(*drawn.rows, *rest), biases=tuple(biases), estimate="measured", left_alone=()
    )


def _scaled_by(plan: Plan, factors: dict[str, float]) -> Plan:
    """The plan with every unit's variances multiplied by its measured factor."""
    rows = []
    for row in plan.rows:
        factor = math.exp(2 * factors.get(row.layer, 0.0))
        rows.append(replace(row, ratio=row.ratio * factor, variance=row.variance * factor))
    return replace(plan, rows=tuple(rows))


def _explained(
    best: Candidate,
    candidates: list[Candidate],
    units: list[Unit],
    model: nn.Module,
    inputs: Inputs,
    sample: Inputs,
    options: Options,
    loss: Any,
) -> Plan:
    """The chosen plan, with what was tried, before and after, and every parameter accounted for."""
    own = candidates[0]
    plan = best.plan or Plan(method="auto", rows=(), distribution="own", seed=options.seed)
    planned = {row.weight for row in plan.rows} | set(plan.biases)
    reasons = {name: reason for unit in units for name, reason in unit.left_alone}
    reasons |= dict(plan.left_alone)
    why_kept = "already stable" if own.score <= STABLE else "nothing better was found"
    left_alone = [
        (name, why_kept if best is own else reasons.get(name, "outside of every unit"))
        for name, _ in model.named_parameters()
        if name not in planned
    ]
    notes = list(plan.notes)
    if not any(unit.weights for unit in units):
        notes.append("nothing to do: no unit has a weight to scale")
    elif best is own:
        notes.append("already stable: nothing to gain" if own.score <= STABLE else why_kept)
        notes += _unsound(model, own)
    if sample is not inputs:
        notes.append(f"tried on a connected sample of {sample.num_nodes:,} nodes")
    choice = {
        "chosen": best.name,
        "tried": [
            {"name": c.name, "score": _plain(c.score), **_ranges(c.seen)} for c in candidates
        ],
        "before": _layers(own.seen),
        "after": _layers(best.seen),
        "loss": getattr(loss, "name", "given"),
    }
    return replace(
        plan,
        method="auto",
        left_alone=tuple(left_alone),
        notes=tuple(notes),
        graph=inputs.facts(),
        choice=choice,
    )


def _unsound(model: nn.Module, own: Candidate) -> list[str]:
    """Where the signal of a model that nothing helps is lost: a parameter, or a unit."""
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter.detach()).all()):
            return [f"{name} has numbers that are not finite: draw it anew before"]
    for call in own.seen.calls:
        if not call.is_sound:
            lost = "only zeros" if call.signal == 0 else "numbers that are not finite"
            return [f"{call.path or 'the model'} returns {lost}, whatever was tried"]
    return []


def _ranges(seen: Profile) -> dict[str, float | None]:
    return {
        "forward": _plain(extent(seen.forward)),
        "backward": _plain(extent(seen.backward)),
    }


def _layers(seen: Profile) -> list[dict[str, Any]]:
    return [
        {"layer": call.path, "signal": _plain(call.signal), "gradient": _plain(call.gradient)}
        for call in seen.calls
    ]


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def try_profile(model: nn.Module, inputs: Inputs, options: Options) -> Profile | None:
    """One pass of the model as it is; None where it cannot be run (a graph without features)."""
    if isinstance(inputs, GraphInputs):
        return None
    loss = options.loss or InferredLoss(options.seed)
    try:
        with as_in_training(model):
            sample = _sample(inputs, options.seed).prepared_for(model)
            return profile(model, sample, options.forward, loss)
    except VirgoError:
        return None


def warn_if_worse(method: str, before: Profile, after: Profile | None) -> None:
    """Say so, with numbers, if a named method made the measured ranges worse."""
    if after is not None and after.wider > 1.5 * before.wider:
        warnings.warn(
            f"{method}: the measured range of signal and gradient over layers grew from "
            f"x{before.wider:.3g} to x{after.wider:.3g}. virgo.init_(model, data) without a "
            f"method measures before it keeps anything.",
            VirgoWarning,
            stacklevel=4,
        )

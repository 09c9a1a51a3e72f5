r"""Scales from real passes, for any network: signal and gradient made level together.

Scaling a unit's weights moves its signal and everything after it one way, and the gradient of
everything before it the same way. With :math:`t_u` the change of the log mean square that unit
:math:`u` causes at its own output, and calls :math:`i` in the order they run,

.. math::
    \log f_i = F_i + S_i, \quad S_i = t_{u(i)} + \sum_p w_{ip} S_p, \qquad
    \log g_i = G_i + T_i, \quad T_i = \sum_j v_{ij} (t_{u(j)} + T_j)

where :math:`F, G` are what one pass showed, :math:`p` runs over the calls that feed :math:`i`
(weighted by their share of its input) and :math:`j` over those that :math:`i` feeds. A norm on the
way undoes a scale: the signal's share is zero and the gradient's is :math:`-S_i`. The :math:`t`
that make both profiles as level as they can be are a small least-squares problem. For a plain
chain the solution has a closed form, :math:`S = (G - F)/2`: signal and gradient then follow the
same profile :math:`\tfrac12(F + G)`, whose range no scaling of layers can make narrower for both.

A bias-free ReLU network is positively homogeneous, so one pass gives the exact scales. Elsewhere
(attention, gates, residual streams, tanh) the step is repeated from the best state so far with what
was learned about each unit's response, and shortened where it did not help. The best pass is
kept, never the last, so the result is never worse than the start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from virgo.network.inputs import Forward, Inputs
from virgo.network.modules import is_linear
from virgo.network.probe import Loss
from virgo.network.profile import Profile, UnitCall, is_norm, profile, units_of

#: Real passes that a search may take.
PASSES = 6
_RIDGE = 1e-3
#: Names of maps that decide where a layer looks, not how much passes: scaling them changes a
#: softmax or a gate, and no scale of theirs makes a signal stable.
_SELECTORS = ("key", "query", "att", "gate", "lin_k", "lin_q", "temperature")

Matrix = npt.NDArray[np.float64]


@dataclass
class Unit:
    """The weights of one unit, scaled together."""

    path: str
    weights: list[str]
    biases: list[str]
    strength: float = 1.0  # by how many of its weights a signal is multiplied in turn
    left_alone: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class State:
    """Log amplitudes of weights by unit path, the profile they gave, and its cost."""

    factors: dict[str, float]
    seen: Profile
    cost: float


def find_units(model: nn.Module, *, redraw: bool = False) -> list[Unit]:
    """The units of a model with the weights to scale in each, and what is left alone and why.

    Args:
        model: unwrapped, not lazy.
        redraw: whether weights will be drawn anew, so that it does not matter what they hold.

    Returns:
        The units, in order of declaration.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    taken: set[str] = set()
    units = []
    all_units = units_of(model)
    for path, module in all_units.items():
        own = [p for p in all_units if p != path and (p.startswith(f"{path}.") or not path)]
        unit = Unit(path, [], [])
        recurse = not own  # a model that owns a matrix beside its units is not scaled as a whole
        for local, parameter in module.named_parameters(recurse=recurse):
            name = names[id(parameter)]
            if name in taken:
                continue
            taken.add(name)
            reason = _reason(module, local, parameter) or ("" if redraw else _content(parameter))
            if reason == "bias":
                unit.biases.append(name)
            elif reason:
                unit.left_alone.append((name, reason))
            else:
                unit.weights.append(name)
        units.append(unit)
    return units


def _reason(module: nn.Module, local: str, parameter: nn.Parameter) -> str:
    """Why a parameter is not scaled; empty for a weight that is."""
    owner_path, _, leaf = local.rpartition(".")
    owner = module.get_submodule(owner_path)
    if not parameter.requires_grad:
        return "frozen (requires_grad=False)"
    if is_norm(owner):
        return f"{type(owner).__name__} normalises by itself"
    named_bias = leaf.startswith("bias") or leaf.endswith("_bias")
    if leaf == "bias" or (named_bias and parameter.dim() < 2):
        return "bias"
    if isinstance(owner, nn.Embedding):
        return "an embedding"
    if any(word in local.lower() for word in _SELECTORS):
        return "decides where to look, not how much passes"
    if parameter.dim() < 2 or (parameter.size(0) == 1 and not is_linear(owner)):
        return "a vector"
    return ""


def _content(parameter: nn.Parameter) -> str:
    """Why what a weight holds cannot be scaled; empty if it can."""
    if not bool(parameter.detach().any()):
        return "all zeros, which no scale changes"
    if not bool(torch.isfinite(parameter.detach()).all()):
        return "holds NaN or infinity"
    return ""


def balance(
    model: nn.Module,
    inputs: Inputs,
    start: Profile,
    forward: Forward | None,
    loss: Loss,
    units: list[Unit],
    *,
    quiet: float = 0.0,
) -> tuple[dict[str, float], Profile]:
    """Search scales that make signal and gradient level; the weights are left as they were.

    Call it inside :func:`virgo.network.profile.as_in_training`.

    Args:
        model: with its own weights.
        inputs: prepared for the model.
        start: the profile of the model as it is.
        forward: how to call the model.
        loss: what to run backward from.
        units: of :func:`find_units`.
        quiet: how much fainter residual branches shall be than the rest, as a power of one over
            their number: 1 where what they add is independent, 2 where it adds up.

    Returns:
        The log of each unit's factor, and the best profile: that of ``start`` if none was better.
    """
    usable = {unit.path: unit for unit in units if unit.weights}
    best = State(dict.fromkeys(usable, 0.0), start, cost(start, quiet))
    step = 1.0
    for _ in range(PASSES):
        change = solve(best.seen, usable, quiet, pooled=not inputs.is_hetero)
        if max((abs(t) for t in change.values()), default=0.0) * step < 0.05:
            break
        factors = {
            path: best.factors[path] + step * t / (2 * usable[path].strength)
            for path, t in change.items()
        }
        with _scaled(model, usable, factors):
            seen = profile(model, inputs, forward, loss)
        trial = State(factors, seen, cost(seen, quiet))
        surprised = _learn_strengths(usable, best, trial)
        if trial.cost < best.cost:
            best, step = trial, min(1.0, 1.5 * step)
        elif not surprised:
            step *= 0.4
    return best.factors, best.seen


def cost(seen: Profile, quiet: float) -> float:
    """The log of the wider range, after residual branches got their discount."""
    logs = _logs([c.signal for c in seen.calls]) + quiet * _branch_discount(seen)
    gradients = _logs([c.gradient for c in seen.calls if not math.isnan(c.gradient)])
    return max(_range(logs), _range(gradients))


def _logs(values: list[float]) -> Matrix:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(np.array(values, dtype=np.float64))


def _range(logs: Matrix) -> float:
    if not logs.size:
        return 0.0
    return float(np.ptp(logs)) if np.isfinite(logs).all() else math.inf


def solve(
    seen: Profile, units: dict[str, Unit], quiet: float, *, pooled: bool = True
) -> dict[str, float]:
    """The change of each unit's log mean square that levels both profiles best.

    Args:
        seen: one pass.
        units: those with weights to scale, by path.
        quiet: see :func:`balance`.
        pooled: whether calls of other numbers of rows come from pooling, which changes a
            gradient's size whatever the weights are, and not from several types of nodes.

    Returns:
        The change by unit path.
    """
    paths = list(units)
    forward, backward = _responses(seen, paths)
    signals = _logs([c.signal for c in seen.calls]) + quiet * _branch_discount(seen)
    gradients = _logs([c.gradient for c in seen.calls])
    blocks = [_centred(forward, signals, np.isfinite(signals))]
    rows = np.array([call.rows if pooled else 0 for call in seen.calls])
    for count in np.unique(rows):
        blocks.append(_centred(backward, gradients, np.isfinite(gradients) & (rows == count)))
    system = np.concatenate([a for a, _ in blocks])
    target = np.concatenate([b for _, b in blocks])
    return dict(zip(paths, map(float, _level(system, target)), strict=True))


def _centred(response: Matrix, logs: Matrix, rows: npt.NDArray[np.bool_]) -> tuple[Matrix, Matrix]:
    kept, values = response[rows], logs[rows]
    if not values.size:
        return kept, values
    return kept - kept.mean(0), values.mean() - values


def _level(system: Matrix, target: Matrix) -> Matrix:
    """Least squares, reweighted towards the largest deviation: a range is set by its extremes."""
    weights: Matrix = np.ones(len(target))
    ridge = _RIDGE * np.eye(system.shape[1])
    solution: Matrix = np.zeros(system.shape[1])
    for _ in range(12):
        weighted = system * weights[:, None]
        normal = weighted.T @ system + ridge
        solution = np.asarray(np.linalg.solve(normal, weighted.T @ target), dtype=np.float64)
        deviation = np.abs(system @ solution - target)
        pull = deviation / max(float(deviation.max(initial=0.0)), 1e-9) + 0.05
        weights = np.asarray(np.sqrt(weights * pull), dtype=np.float64)
        weights /= max(float(weights.max(initial=0.0)), 1e-9)
    return solution


def _responses(seen: Profile, paths: list[str]) -> tuple[Matrix, Matrix]:
    """``d log f_i / d t_u`` and ``d log g_i / d t_u``, from who feeds whom."""
    calls, column = seen.calls, {path: k for k, path in enumerate(paths)}
    forward = np.zeros((len(calls), len(paths)))
    for i, call in enumerate(calls):
        if call.path in column:
            forward[i, column[call.path]] += 1.0
        for p, share in _shares(call, calls).items():
            if not call.parents[p].normalised:
                forward[i] += share * forward[p]
    backward = np.zeros_like(forward)
    children: list[list[int]] = [[] for _ in calls]
    for j, call in enumerate(calls):
        for p in call.parents:
            children[p].append(j)
    for i in reversed(range(len(calls))):
        ways = len(children[i]) + (i in seen.ends)
        for j in children[i]:
            through = backward[j].copy()
            if calls[j].path in column:
                through[column[calls[j].path]] += 1.0
            if calls[j].parents[i].normalised:
                through -= forward[i]
            backward[i] += through / ways
    return forward, backward


def _shares(call: UnitCall, calls: list[UnitCall]) -> dict[int, float]:
    """How much of a call's input each of the calls that feed it makes up."""
    sizes = {p: calls[p].signal for p in call.parents}
    total = sum(size for size in sizes.values() if math.isfinite(size))
    if not math.isfinite(total) or total <= 0:
        return {p: 1.0 / len(sizes) for p in sizes}
    return {p: (size if math.isfinite(size) else 0.0) / total for p, size in sizes.items()}


def residual_branches(seen: Profile) -> list[int]:
    """Calls whose output is added to a stream that they were computed from."""
    ancestors: list[set[int]] = []
    for call in seen.calls:
        direct = set(call.parents)
        ancestors.append(direct.union(*(ancestors[p] for p in direct)) if direct else set())
    branches: set[int] = set()
    for links in (*(call.parents for call in seen.calls), seen.ends):
        added = {p for p, link in links.items() if not link.joined}
        branches |= {p for p in added if ancestors[p] & added}
    return sorted(branches)


def _branch_discount(seen: Profile) -> Matrix:
    """What residual branches are louder than they should be: the log of their number."""
    branches = residual_branches(seen)
    discount = np.zeros(len(seen.calls))
    discount[branches] = math.log(len(branches)) if branches else 0.0
    return discount


def _learn_strengths(units: dict[str, Unit], before: State, after: State) -> bool:
    """Correct how strongly a unit's own output answers to its scale; whether that is news."""
    surprised = False
    for path, unit in units.items():
        moved = 2 * unit.strength * (after.factors[path] - before.factors[path])
        gains = [
            _gain(after.seen, i) - _gain(before.seen, i)
            for i, call in enumerate(before.seen.calls)
            if call.path == path and i < len(after.seen.calls)
        ]
        gains = [gain for gain in gains if math.isfinite(gain)]
        if abs(moved) > 0.2 and gains:
            answer = min(max(float(np.mean(gains)) / moved, 0.5), 2.0)
            corrected = min(max(unit.strength * answer, 0.5), 8.0)
            surprised = surprised or not 0.8 < corrected / unit.strength < 1.25
            unit.strength = corrected
    return surprised


def _gain(seen: Profile, index: int) -> float:
    """The log of what a call returns over what feeds it."""
    call = seen.calls[index]
    feeding = sum(
        share * seen.calls[p].signal
        for p, share in _shares(call, seen.calls).items()
        if not call.parents[p].normalised
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.log(call.signal) - (np.log(feeding) if feeding > 0 else 0.0))


class _scaled:
    """Weights multiplied by their unit's factor, and put back afterwards."""

    def __init__(self, model: nn.Module, units: dict[str, Unit], factors: dict[str, float]) -> None:
        parameters = dict(model.named_parameters())
        self.saved = [
            (parameters[name], parameters[name].detach().clone(), amplitude)
            for path, unit in units.items()
            for name in unit.weights
            if (amplitude := math.exp(factors[path])) != 1.0
        ]

    def __enter__(self) -> None:
        with torch.no_grad():
            for parameter, _, amplitude in self.saved:
                parameter.mul_(amplitude)

    def __exit__(self, *error: object) -> None:
        with torch.no_grad():
            for parameter, value, _ in self.saved:
                parameter.copy_(value)

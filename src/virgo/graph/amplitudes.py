r"""Amplitudes hop by hop: what the graph does to the signal in each stage of each layer.

A stage that sums several terms with independent weights adds variances, so with ``a`` the
amplitude of a node (``a = h0`` at the input)

.. math:: a' = \sqrt{\textstyle\sum_t (P_t a)^2}

which for a single term is the paper's :math:`\tilde A^l h^0`. Only the norms' ratios are reported,
and amplitudes are brought back to unit norm before they could overflow, whatever the depth.

Where a layer receives the sum of several earlier ones (residuals, parallel branches), Virgo's
own target, equal variance in every layer, says how to weigh them: equally.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from virgo.errors import GraphError
from virgo.graph.vectors import Extent, extent, magnitudes, root_of_squares, scaled, squared_norm
from virgo.layers import Stage
from virgo.network.trace import Trace

Direction = Literal["forward", "backward"]
#: Below this share of the squared norm left after cancellation, a mean signal says nothing.
CANCELLED = 1e-2


@dataclass(frozen=True)
class Hops:
    """Graph ratios by (call, stage), and the log of the squared norm that reaches each call.

    ``terms`` splits the inverse of a ratio into what each term of the stage contributes.
    """

    ratios: dict[tuple[int, int], float]
    terms: dict[tuple[int, int], tuple[float, ...]]
    last_squared_norm: float  # of the first hop taken from `start`, for the softmax rule
    log_norms: list[float]
    start: Extent | None = None  # of one number a node going forward: whether it can cancel


def hops(
    trace: Trace,
    stages: Sequence[Sequence[Stage]],
    start: Any,
    direction: Direction,
    *,
    consume: bool = False,
) -> Hops:
    """Carry ``start`` through the network, forward from its input or backward from its output.

    Args:
        start: one number per node, or several columns of them where signs matter (mirrored
            weights keep the network linear, so signals cancel as they really would).
        consume: whether the memory of ``start`` may be used.
    """
    calls = trace.calls
    if direction == "forward":
        order = list(range(len(calls)))
        sources = [sorted(call.parents) for call in calls]
        starts = [call.from_input for call in calls]
    else:
        order = list(range(len(calls)))[::-1]
        sources = trace.children
        starts = [call.to_output or trace.ends(i) for i, call in enumerate(calls)]
    waiting = Counter(j for group in sources for j in group)

    rng = np.random.default_rng(0)
    start_norm = squared_norm(start)
    is_mean = direction == "forward" and getattr(start, "ndim", 1) == 1
    seen = extent(start) if is_mean else None  # now, as it may be used up below
    starts_left = sum(starts)
    reached: dict[int, tuple[Any, float]] = {}  # by call: its vector, and the squared norm of it
    log_norms = [0.0] * len(calls)
    ratios: dict[tuple[int, int], float] = {}
    terms: dict[tuple[int, int], tuple[float, ...]] = {}
    last_squared_norm = math.nan
    spare = None  # a vector that is no longer needed, for the next result
    for i in order:
        incoming = [reached[j] for j in sources[i]] + ([(start, start_norm)] if starts[i] else [])
        logs = [log_norms[j] for j in sources[i]] + ([0.0] if starts[i] else [])
        log_norm = sum(logs) / len(logs)
        for j in sources[i]:
            waiting[j] -= 1
            if not waiting[j]:
                del reached[j]  # one vector a hop is all that is ever held
        starts_left -= starts[i]
        mine = len(incoming) > 1 or (
            not starts_left and consume if starts[i] else not waiting[sources[i][0]]
        )
        a, before = incoming[0] if len(incoming) == 1 else _blend(incoming, rng)
        del incoming
        if not starts_left:
            start = None  # nobody asks for it again: its memory is the next hop's
        chain = list(enumerate(stages[i]))
        for s, stage in chain if direction == "forward" else chain[::-1]:
            operators = [
                term.operator if direction == "forward" else term.operator.T for term in stage
            ]
            if mine and len(stage) == 1 and isinstance(a, np.ndarray):
                parts = [operators[0](a, overwrite=True, out=spare)]
                spare = a if a.ndim == 1 and parts[0] is not a else None
            else:
                spare = None
                parts = [operator(a) for operator in operators]
            norms = [squared_norm(part) for part in parts]
            after = sum(norms)
            if not (math.isfinite(after) and after > 0 and before > 0):
                raise GraphError(
                    f"{calls[i].path or 'layer'}: expected a signal to arrive, got a sum of "
                    f"squares of {after:g} ({direction}). Check edge weights and features, or "
                    f"use estimate='measured'."
                )
            ratios[i, s] = before / after
            terms[i, s] = tuple(norm / before for norm in norms)
            log_norm += math.log(after / before)
            if math.isnan(last_squared_norm):
                last_squared_norm = after / before
            # a node-wise operator may have handed its input through
            mine = mine or parts[0] is not a
            a, before = (parts[0], after) if len(parts) == 1 else _join(parts, rng)
            del parts
            a, before = _in_range(a, before)
        log_norms[i] = log_norm
        if waiting[i]:
            # what an operator handed through may be needed by others too, and would be overwritten
            shared = not mine and isinstance(a, np.ndarray)
            reached[i] = (a.copy() if shared else a), before
        del a
    return Hops(ratios, terms, last_squared_norm, log_norms, seen)


def _in_range(a: Any, norm: float) -> tuple[Any, float]:
    """Brought back to unit norm before its squares overflow or vanish; else as it is."""
    if 1e-100 < norm < 1e100:
        return a, norm
    return scaled(a, 1 / math.sqrt(norm)), 1.0


def _join(parts: list[Any], rng: np.random.Generator) -> tuple[Any, float]:
    """Independent terms: squares add. Columns keep their signs, and a random one keeps terms
    independent."""
    if getattr(parts[0], "ndim", 1) == 1:
        joined = root_of_squares(parts)
    else:
        signs = [rng.choice([-1.0, 1.0], size=part.shape[1]) for part in parts]
        joined = np.asarray(sum(part * sign for part, sign in zip(parts, signs, strict=True)))
    return joined, squared_norm(joined)


def _blend(branches: list[tuple[Any, float]], rng: np.random.Generator) -> tuple[Any, float]:
    """Branches that arrive together, each as strong as the others."""
    share = 1 / math.sqrt(len(branches))
    return _join([scaled(a, share / math.sqrt(norm)) for a, norm in branches], rng)


def check_cancellation(
    trace: Trace, stages: Sequence[Sequence[Stage]], start: Any, signed: Hops, rounding: float
) -> None:
    """Refuse a mean signal that cancels: the theorem would blow weights up to revive noise.

    Features of both signs average out over neighbours in a vector of means, but not in a ReLU
    network. The same hops on magnitudes tell how much was lost. ``rounding`` is the relative error
    of the features' own precision, below which a total of zero cannot be told from any other.
    A start without negative numbers cannot cancel and need not be asked about.
    """
    assert signed.start is not None
    _, total, magnitude = signed.start
    unsigned = hops(trace, stages, magnitudes(start), "forward", consume=True)
    worst = min(s - u for s, u in zip(signed.log_norms, unsigned.log_norms, strict=True))
    if abs(total) < max(1e-4, rounding) * magnitude or worst < math.log(CANCELLED):
        raise GraphError(
            "data.x: expected mean features that survive averaging over neighbours, got a signal "
            "that cancels (standardised features do this: their mean is zero). "
            "Use signal='rms' or estimate='measured'."
        )

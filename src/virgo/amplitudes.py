r"""Amplitudes hop by hop: what the graph does to the signal in each stage of each layer.

A stage that sums several terms with independent weights adds variances, so with ``a`` the
amplitude of a node (``a = h0`` at the input)

.. math:: a' = \sqrt{\textstyle\sum_t (P_t a)^2}

which for a single term is the paper's :math:`\tilde A^l h^0`. Amplitudes are kept at unit norm
and only the norms' ratios are reported, so no depth overflows.

Where a layer receives the sum of several earlier ones (residuals, parallel branches), Virgo's
own target, equal variance in every layer, says how to weigh them: equally.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .errors import GraphError
from .layers import Stage
from .propagation import Vector, squared_norm
from .tracing import Trace

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


def hops(
    trace: Trace, stages: Sequence[Sequence[Stage]], start: Vector, direction: Direction
) -> Hops:
    """Carry ``start`` through the network, forward from its input or backward from its output.

    Args:
        start: one number per node, or several columns of them where signs matter (mirrored
            weights keep the network linear, so signals cancel as they really would).
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
    first = start / math.sqrt(squared_norm(start))
    reached: dict[int, Vector] = {}
    log_norms = [0.0] * len(calls)
    ratios: dict[tuple[int, int], float] = {}
    terms: dict[tuple[int, int], tuple[float, ...]] = {}
    last_squared_norm = math.nan
    for i in order:
        incoming = [reached[j] for j in sources[i]] + ([first] if starts[i] else [])
        logs = [log_norms[j] for j in sources[i]] + ([0.0] if starts[i] else [])
        a = _blend(incoming, rng) if len(incoming) > 1 else incoming[0]
        log_norm = sum(logs) / len(logs)
        chain = list(enumerate(stages[i]))
        for s, stage in chain if direction == "forward" else chain[::-1]:
            before = squared_norm(a)
            parts = [
                term.operator(a) if direction == "forward" else term.operator.T(a) for term in stage
            ]
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
                last_squared_norm = after / squared_norm(first)
            a = (parts[0] if len(parts) == 1 else _join(parts, rng)) / math.sqrt(after)
        log_norms[i] = log_norm
        if waiting[i]:
            reached[i] = a
        for j in sources[i]:
            waiting[j] -= 1
            if not waiting[j]:
                del reached[j]  # one vector a hop is all that is ever held
    return Hops(ratios, terms, last_squared_norm, log_norms)


def _join(parts: list[Vector], rng: np.random.Generator) -> Vector:
    """Independent terms: squares add. Columns keep their signs, and a random one keeps terms
    independent."""
    if parts[0].ndim == 1:
        total = np.zeros_like(parts[0])
        for part in parts:
            total += part * part
        return np.sqrt(total)
    signs = [rng.choice([-1.0, 1.0], size=part.shape[1]) for part in parts]
    return np.asarray(sum(part * sign for part, sign in zip(parts, signs, strict=True)))


def _blend(branches: list[Vector], rng: np.random.Generator) -> Vector:
    return _join(branches, rng) / math.sqrt(len(branches))


def check_cancellation(
    trace: Trace, stages: Sequence[Sequence[Stage]], start: Vector, signed: Hops, rounding: float
) -> None:
    """Refuse a mean signal that cancels: the theorem would blow weights up to revive noise.

    Features of both signs average out over neighbours in a vector of means, but not in a ReLU
    network. The same hops on magnitudes tell how much was lost. ``rounding`` is the relative error
    of the features' own precision, below which a total of zero cannot be told from any other.
    """
    if start.min() >= 0:
        return
    total, magnitude = abs(float(start.sum())), float(np.abs(start).sum())
    unsigned = hops(trace, stages, np.abs(start), "forward")
    worst = min(s - u for s, u in zip(signed.log_norms, unsigned.log_norms, strict=True))
    if total < max(1e-4, rounding) * magnitude or worst < math.log(CANCELLED):
        raise GraphError(
            "data.x: expected mean features that survive averaging over neighbours, got a signal "
            "that cancels (standardised features do this: their mean is zero). "
            "Use signal='rms' or estimate='measured'."
        )

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
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np

from virgo.errors import GraphError
from virgo.graph.operators import NodeOperator
from virgo.graph.vectors import (
    AnyVector,
    Extent,
    Workspace,
    extent,
    magnitudes,
    root_of_squares,
    scaled,
    signed_sum,
    squared_norm,
)

Direction = Literal["forward", "backward"]
#: The operators of each term, of each stage, of each step of a network.
Stages = Sequence[Sequence[Sequence[NodeOperator]]]
#: Below this share of the squared norm left after cancellation, a mean signal says nothing.
CANCELLED = 1e-2


class Step(Protocol):
    """One call of a layer: its name, whose output it receives, where it begins and ends."""

    @property
    def path(self) -> str: ...

    @property
    def parents(self) -> Collection[int]: ...

    @property
    def from_input(self) -> bool: ...

    @property
    def to_output(self) -> bool: ...


@dataclass(frozen=True)
class Hops:
    """What a signal meets on its way through a network.

    Attributes:
        ratios: by (step, stage), the squared norm before over that after.
        terms: the inverse of a ratio as the sum of what each term of the stage contributes.
        last_squared_norm: of the first hop taken from the start, for the softmax rule.
        log_norms: the log of the squared norm that leaves each step, relative to the start.
        start: of one number per node going forward: whether it can cancel.
    """

    ratios: dict[tuple[int, int], float]
    terms: dict[tuple[int, int], tuple[float, ...]]
    last_squared_norm: float
    log_norms: list[float]
    start: Extent | None = None


def hops(
    steps: Sequence[Step],
    stages: Stages,
    start: AnyVector,
    direction: Direction,
    *,
    consume: bool = False,
) -> Hops:
    """Carry ``start`` through the network, forward from its input or backward from its output.

    Args:
        steps: the calls of layers, in order.
        stages: the operators of each step.
        start: one number per node, or several columns of them where signs matter (mirrored
            weights keep the network linear, so signals cancel as they really would).
        direction: ``"forward"`` or ``"backward"``.
        consume: whether the memory of ``start`` may be used.

    Returns:
        The ratios of squared norms, stage by stage.

    Raises:
        GraphError: nothing, or infinity, arrives at a step.
    """
    is_mean = direction == "forward" and getattr(start, "ndim", 1) == 1
    seen = extent(start) if is_mean else None  # now, as it may be used up below
    walk = _Walk(steps, start, direction, consume)
    del start
    order = range(len(steps))
    for i in order if direction == "forward" else order[::-1]:
        walk.take(i, stages[i])
    return Hops(walk.ratios, walk.terms, walk.last_squared_norm, walk.log_norms, seen)


@dataclass(frozen=True)
class _Amplitude:
    """A vector on its way.

    Attributes:
        vector: one number per node, or several.
        squares: its squared norm.
        log_norm: the log of the squared norm without any rescaling, relative to the start.
        owned: whether nobody else reads the vector, so that its memory may be used.
    """

    vector: AnyVector
    squares: float
    log_norm: float
    owned: bool


@dataclass
class _Walk:
    """The signals between steps. A vector is held only until its last reader has it."""

    steps: Sequence[Step]
    start: AnyVector
    direction: Direction
    consume: bool
    ratios: dict[tuple[int, int], float] = field(default_factory=dict)
    terms: dict[tuple[int, int], tuple[float, ...]] = field(default_factory=dict)
    last_squared_norm: float = math.nan

    def __post_init__(self) -> None:
        steps = self.steps
        parents = [sorted(step.parents) for step in steps]
        children: list[list[int]] = [[] for _ in steps]
        for i, group in enumerate(parents):
            for parent in group:
                children[parent].append(i)
        is_forward = self.direction == "forward"
        self._sources = parents if is_forward else children
        self._starts = [
            step.from_input if is_forward else step.to_output or not children[i]
            for i, step in enumerate(steps)
        ]
        #: How many steps have yet to read the output of each; ``_START`` is the start's.
        self._readers = Counter(j for group in self._sources for j in group)
        self._readers[_START] = sum(self._starts)
        first = _Amplitude(self.start, squared_norm(self.start), 0.0, self.consume)
        self.start = None
        self._held = {_START: first}
        self._workspace, self._rng = Workspace(), np.random.default_rng(0)
        self.log_norms = [0.0] * len(steps)

    def take(self, i: int, stages: Sequence[Sequence[NodeOperator]]) -> None:
        """Carry what arrives at step ``i`` through its stages."""
        signal = self._arriving(i)
        chain = list(enumerate(stages))
        for s, operators in chain if self.direction == "forward" else chain[::-1]:
            signal = self._through(signal, operators, i, s)
        self.log_norms[i] = signal.log_norm
        if self._readers[i]:
            # what an operator handed through may be read by others too, and would be overwritten
            vector = signal.vector if signal.owned else self._workspace.private(signal.vector)
            self._held[i] = replace(signal, vector=vector, owned=True)

    def _arriving(self, i: int) -> _Amplitude:
        """The sum of all that step ``i`` receives, each part as strong as the others."""
        signals = [self._read(j) for j in self._sources[i]]
        if self._starts[i]:
            signals.append(self._read(_START))
        if len(signals) == 1:
            return signals[0]
        share = 1 / math.sqrt(len(signals))
        log_norm = sum(signal.log_norm for signal in signals) / len(signals)
        parts = [scaled(signal.vector, share / math.sqrt(signal.squares)) for signal in signals]
        return _Amplitude(*self._joined(parts), log_norm, owned=True)

    def _read(self, j: int) -> _Amplitude:
        self._readers[j] -= 1
        if self._readers[j]:
            return replace(self._held[j], owned=False)
        return self._held.pop(j)  # one vector per hop is all that is ever held

    def _through(
        self, signal: _Amplitude, operators: Sequence[NodeOperator], i: int, s: int
    ) -> _Amplitude:
        """One stage: independent terms, whose squares add."""
        if self.direction == "backward":
            operators = [operator.T for operator in operators]
        if signal.owned and len(operators) == 1:
            parts = [self._workspace.apply(operators[0], signal.vector)]
        else:
            self._workspace.release()
            parts = [operator(signal.vector) for operator in operators]
        norms = [squared_norm(part) for part in parts]
        before, after = signal.squares, sum(norms)
        if not (math.isfinite(after) and after > 0 and before > 0):
            raise GraphError(
                f"{self.steps[i].path or 'layer'}: expected a signal to arrive, got a sum of "
                f"squares of {after:g} ({self.direction}). Check edge weights and features, or "
                f"use estimate='measured'."
            )
        self.ratios[i, s] = before / after
        self.terms[i, s] = tuple(norm / before for norm in norms)
        if math.isnan(self.last_squared_norm):
            self.last_squared_norm = after / before
        log_norm = signal.log_norm + math.log(after / before)
        # an operator that stays on the node may have handed its input through
        owned = signal.owned or len(parts) > 1 or parts[0] is not signal.vector
        vector, after = (parts[0], after) if len(parts) == 1 else self._joined(parts)
        if not 1e-100 < after < 1e100:  # back to unit norm before its squares overflow or vanish
            vector, after, owned = scaled(vector, 1 / math.sqrt(after)), 1.0, True
        return _Amplitude(vector, after, log_norm, owned)

    def _joined(self, parts: Sequence[AnyVector]) -> tuple[AnyVector, float]:
        """Independent parts: squares add. Columns keep their signs, and random ones keep parts
        independent.

        Returns:
            The joined vector and its squared norm.
        """
        if getattr(parts[0], "ndim", 1) == 1:
            joined = root_of_squares(parts)
        else:
            signs = [self._rng.choice([-1.0, 1.0], size=part.shape[1]) for part in parts]
            joined = signed_sum(parts, signs)
        return joined, squared_norm(joined)


#: Stands for the start among the numbers of steps.
_START = -1


def check_cancellation(
    steps: Sequence[Step], stages: Stages, start: AnyVector, signed: Hops, rounding: float
) -> None:
    """Refuse a mean signal that cancels: the theorem would blow weights up to revive noise.

    Features of both signs average out over neighbours in a vector of means, but not in a ReLU
    network. The same hops on magnitudes tell how much was lost. A start without negative numbers
    cannot cancel and need not be checked.

    Args:
        steps: the calls of layers, in order.
        stages: the operators of each step.
        start: the mean signal.
        signed: what :func:`hops` returned for it.
        rounding: the relative precision of the features, below which a total of zero cannot be
            told from any other.

    Raises:
        GraphError: the signal cancels.
    """
    assert signed.start is not None
    _, total, magnitude = signed.start
    unsigned = hops(steps, stages, magnitudes(start), "forward", consume=True)
    worst = min(s - u for s, u in zip(signed.log_norms, unsigned.log_norms, strict=True))
    if abs(total) < max(1e-4, rounding) * magnitude or worst < math.log(CANCELLED):
        raise GraphError(
            "data.x: expected mean features that survive averaging over neighbours, got a signal "
            "that cancels (standardised features do this: their mean is zero). "
            "Use signal='rms' or estimate='measured'."
        )

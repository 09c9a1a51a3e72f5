"""The seeds of a run, and its result."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Seeds(NamedTuple):
    """A run's number, and separate random streams made from it.

    Two initialisations of one number meet the same data, batches and dropout masks.
    """

    number: int
    data: int
    initialisation: int
    training: int

    @classmethod
    def of(cls, number: int) -> Seeds:
        """The streams of run ``number``.

        Args:
            number: of the run.

        Returns:
            Independent seeds.

        >>> Seeds.of(3) == Seeds.of(3), len({*Seeds.of(3)[1:], *Seeds.of(4)[1:]})
        (True, 6)
        """
        streams = np.random.SeedSequence(number).generate_state(3)
        return cls(number, *(int(stream) for stream in streams))


@dataclass(frozen=True)
class Outcome:
    """One finished run: the weights of the best validation epoch, tested once.

    Attributes:
        valid: the metric on the validation part, between 0 and 1.
        test: the metric on the test part.
        epoch: the epoch of the weights, counted from 1.
        epochs: how many were run.
        seconds: wall time, initialisation included.
        status: "ok", "diverged" (the loss became infinite or not a number) or "out of memory".
        curve: (epoch, validation) of every validation on the way.
    """

    valid: float
    test: float
    epoch: int
    epochs: int
    seconds: float
    status: str = "ok"
    curve: tuple[tuple[int, float], ...] = ()

    @classmethod
    def failed(cls, status: str, epochs: int, seconds: float) -> Outcome:
        """A run without a result."""
        return cls(math.nan, math.nan, 0, epochs, seconds, status)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is a lack of memory."""
    # PyTorch's CPU allocator only says so in its message, which differs between systems.
    words = ("not enough memory", "allocate memory", "out of memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    )

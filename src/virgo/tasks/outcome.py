"""What a run is made from and what comes out of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Seeds(NamedTuple):
    """Separate random streams, so that two initialisations meet the same data and batches."""

    data: int
    initialisation: int
    training: int

    @classmethod
    def of(cls, seed: int) -> Seeds:
        """The streams of run number ``seed``.

        >>> Seeds.of(3) == Seeds.of(3), len(set(Seeds.of(3)) | set(Seeds.of(4)))
        (True, 6)
        """
        return cls(*(int(part) for part in np.random.SeedSequence(seed).generate_state(3)))


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
    """

    valid: float
    test: float
    epoch: int
    epochs: int
    seconds: float
    status: str = "ok"

    @classmethod
    def failed(cls, status: str, epochs: int, seconds: float) -> Outcome:
        """A run without a result."""
        return cls(math.nan, math.nan, 0, epochs, seconds, status)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is memory that could not be had.

    PyTorch's CPU allocator says it in words only, and in other words on every system.
    """
    words = ("not enough memory", "allocate memory", "out of memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    )

"""What a plan does with one number per node, wherever these numbers live.

Carrying a signal through a network needs few things of a vector. They are functions here, so that
an array in memory and a table in a warehouse (:mod:`virgo.graph.sql`) go through the same hops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import singledispatch
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virgo.errors import GraphError

Vector = npt.NDArray[np.float64]
#: One number per node (an array may have several columns): a ``Vector``, or a database's table.
AnyVector = Any

#: Numbers summed at a time: few enough that BLAS uses one thread, so sums do not depend on threads.
_CHUNK = 8192


class Extent(NamedTuple):
    """What tells whether a signal can cancel."""

    least: float
    total: float
    magnitude: float


@singledispatch
def squared_norm(x: AnyVector) -> float:
    """The sum of squares; of several columns, over all of them.

    Raises:
        TypeError: ``x`` is no vector.

    >>> squared_norm(np.array([3.0, 4.0]))
    25.0
    """
    raise TypeError(f"no vector: {type(x).__name__}")


@singledispatch
def scaled(x: AnyVector, factor: float) -> AnyVector:
    """``factor * x``, as a new vector."""
    raise TypeError(f"no vector: {type(x).__name__}")


@singledispatch
def magnitudes(x: AnyVector) -> AnyVector:
    """``|x|``, number by number."""
    raise TypeError(f"no vector: {type(x).__name__}")


@singledispatch
def extent(x: AnyVector) -> Extent:
    """The least number, the sum, and the sum of magnitudes."""
    raise TypeError(f"no vector: {type(x).__name__}")


def root_of_squares(parts: Sequence[AnyVector]) -> AnyVector:
    """``sqrt(sum of squares)``, number by number: the amplitude of independent parts together.

    >>> root_of_squares([np.array([3.0, 0.0]), np.array([4.0, 2.0])])
    array([5., 2.])

    Returns:
        A new vector.
    """
    return _root_of_squares(parts[0], parts)


@singledispatch
def _root_of_squares(first: AnyVector, parts: Sequence[AnyVector]) -> AnyVector:
    """Dispatches on the first part; register a kind of vector here."""
    raise TypeError(f"no vector: {type(first).__name__}")


def signed_sum(parts: Sequence[AnyVector], signs: Sequence[Vector]) -> AnyVector:
    """The sum of blocks of columns, each column with its sign.

    Args:
        parts: blocks of one shape.
        signs: one number per column of each.

    Returns:
        A new block.
    """
    return _signed_sum(parts[0], parts, signs)


@singledispatch
def _signed_sum(first: AnyVector, parts: Sequence[AnyVector], signs: Sequence[Vector]) -> AnyVector:
    """Dispatches on the first part; register a kind of vector here."""
    raise TypeError(f"no vector: {type(first).__name__}")


@squared_norm.register
def _(x: np.ndarray) -> float:
    flat = x.reshape(-1)
    parts = (flat[i : i + _CHUNK] for i in range(0, flat.size, _CHUNK))
    return math.fsum(float(part @ part) for part in parts)


@scaled.register
def _(x: np.ndarray, factor: float) -> AnyVector:
    return x * factor


@magnitudes.register
def _(x: np.ndarray) -> AnyVector:
    return np.abs(x)


@extent.register
def _(x: np.ndarray) -> Extent:
    least = float(x.min())
    total = float(x.sum())
    return Extent(least, total, total if least >= 0 else float(np.abs(x).sum()))


@_root_of_squares.register
def _(first: np.ndarray, parts: Sequence[Vector]) -> Vector:
    total = np.zeros_like(first)
    for part in parts:
        total += part * part
    np.sqrt(total, out=total)
    return total


@_signed_sum.register
def _(first: np.ndarray, parts: Sequence[Vector], signs: Sequence[Vector]) -> Vector:
    return np.asarray(sum(part * sign for part, sign in zip(parts, signs, strict=True)))


class Workspace:
    """Memory for the results of a walk in which most vectors are read once.

    The last vector that nobody reads any more is the next result's memory, as the system would
    have to clear new memory first. Tables of a database are never overwritten.
    """

    def __init__(self) -> None:
        self._spare: Vector | None = None

    def apply(self, operator: Callable[..., AnyVector], x: AnyVector) -> AnyVector:
        """``operator(x)`` where nobody reads ``x`` again."""
        if not isinstance(x, np.ndarray):
            return operator(x)
        result = operator(x, overwrite=True, out=self._spare)
        self._spare = x if x.ndim == 1 and result is not x else None
        return result

    def release(self) -> None:
        """Give back what is not in use."""
        self._spare = None

    @staticmethod
    def private(x: AnyVector) -> AnyVector:
        """A vector that nobody else overwrites."""
        return x.copy() if isinstance(x, np.ndarray) else x


def column(given: object, size: int, where: str = "mean_features") -> Vector:
    """One number per node, from an array, a tensor or the path of a ``.npy`` file, in float64.

    >>> column([1, 2, 3], 3)
    array([1., 2., 3.])

    Returns:
        A new vector.

    Raises:
        GraphError: the values are no finite numbers, or not one per node.
    """
    values = unread_column(given, size, where)
    if values.dtype.kind not in "fiub":
        raise GraphError(f"{where}: expected numbers, got {values.dtype}. Convert them.")
    out = np.array(values, dtype=np.float64)
    for begin in range(0, size, 1 << 20):
        bad = np.flatnonzero(~np.isfinite(out[begin : begin + (1 << 20)]))
        if bad.size:
            raise GraphError(
                f"{where}: expected finite numbers, got NaN or infinity (first at node "
                f"{begin + int(bad[0])}). Clean the features."
            )
    return out


def unread_column(
    given: object, size: int, where: str = "mean_features"
) -> npt.NDArray[np.generic]:
    """What :func:`column` would read, of the right size; a file is mapped and not read yet."""
    values = load_array(given, where) if isinstance(given, (str, Path)) else np.asarray(given)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.shape != (size,):
        raise GraphError(
            f"{where}: expected {size:,} numbers, one per node, got shape {list(values.shape)}. "
            f"Pass the mean of each node's features."
        )
    return values


def load_array(path: str | Path, where: str) -> npt.NDArray[np.generic]:
    """An array in a ``.npy`` file, memory-mapped."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = str(error)
        if "pickle" in reason:  # numpy's advice is to trust the file
            reason = "which is something else"
        raise GraphError(
            f"{where}: expected a .npy file of numbers, got {path} ({reason}). "
            f"Write it with numpy.save."
        ) from error
    if not isinstance(array, np.ndarray):
        raise GraphError(f"{where}: expected one array in a .npy file, got {path}. Save one array.")
    return array

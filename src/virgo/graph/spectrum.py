r"""The directions of the features that survive a network: a randomised SVD without a matrix.

A mirrored network is linear at initialisation (:mod:`virgo.draws`), so what reaches its end is
:math:`K X M` times orthogonal blocks, with :math:`K = P_{L-1} \cdots P_0` the operators in the
order they run and :math:`M` the first layer's weight. The right singular vectors of :math:`K X`
with the largest singular values are the directions that :math:`M` should look in.

Subspace iteration on :math:`G = X^\top K^\top K X` (Halko, Martinsson and Tropp, 2011) needs
products with :math:`X` and the operators only. ``torch.svd_lowrank`` asks for the matrix itself,
and scipy's ``svds`` goes vector by vector; hence the few lines here. Everything is in float64.

A stage of several terms sums :math:`P_t H W_t` with independent weights, so squares add:
:math:`G = \sum_t P_t^\top G' P_t`. With independent random signs, :math:`(\sum_t s_t P_t)^\top G'
(\sum_t s_t P_t)` has that expectation; :data:`SIGN_DRAWS` draws of all signs are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from virgo.devices import has_csr, widest
from virgo.errors import GraphError
from virgo.graph.amplitudes import Stages, Step
from virgo.graph.device import vector_of
from virgo.graph.operators import NodeOperator
from virgo.graph.vectors import AnyVector, Vector, squared_norm

#: Columns beyond the wanted ones, and at most so many products with ``G``, of a subspace iteration.
OVERSAMPLE, ITERATIONS = 16, 5
#: A product that changed no singular value by more than this share was the last. On Cora and PubMed
#: the directions then lack less than half a per cent of the energy that as many can have.
SETTLED = 0.05
#: Draws of signs that are averaged where a stage has several terms.
SIGN_DRAWS = 4
#: Singular values below this share of the largest do not survive: float32 would round them away.
SURVIVES = 1e-6
#: A column of which less than this share is not in the span of those before it adds rounding only.
DEPENDENT = 1e-12
#: Features of which fewer than this share are not zero are multiplied as a sparse matrix.
SPARSE = 0.1
_CHUNK = 1 << 22  # numbers converted to float64 at a time
_BLOCK = 1 << 24  # numbers that a block of columns over all nodes may have


class Features:
    """A feature matrix as two products in float64; no second dense copy of it is made.

    Args:
        x: ``[nodes, features]``: a tensor, dense or sparse, or an array, which may be a file's.
    """

    def __init__(self, x: Any) -> None:
        self.shape = (int(x.shape[0]), int(x.shape[1]))
        self._dense: Any = x
        self._sparse: Tensor | None = None
        self._device, self._wide = torch.device("cpu"), torch.float64
        if isinstance(x, Tensor):
            self._dense = x = x.detach()
            self._device, self._wide = x.device, widest(x)
            is_dense = x.layout == torch.strided
            if not is_dense or (has_csr(x.device) and is_mostly_zero(x)):
                self._sparse = x.to_sparse_coo().to(self._wide).coalesce()

    @cached_property
    def _transposed(self) -> Tensor:
        assert self._sparse is not None
        transposed: Tensor = self._sparse.t().coalesce()
        return transposed

    @cached_property
    def squares(self) -> float:
        """The sum of squares."""
        if self._sparse is not None:
            return squared_norm(vector_of(self._sparse.values()))
        return math.fsum(squared_norm(vector_of(rows)) for _, rows in self._rows())

    def _rows(self) -> Iterator[tuple[slice, Tensor]]:
        step = max(1, _CHUNK // max(1, self.shape[1]))
        for begin in range(0, self.shape[0], step):
            rows = self._dense[begin : begin + step]
            if not isinstance(rows, Tensor):  # a copy: a file's rows are read-only
                rows = torch.from_numpy(np.array(rows, dtype=np.float64))
            yield slice(begin, begin + step), rows.to(self._wide)

    def times(self, block: Vector) -> AnyVector:
        """``X block``, where the features are."""
        given = torch.from_numpy(block).to(self._device, self._wide)
        if self._sparse is not None:
            return vector_of(torch.sparse.mm(self._sparse, given))
        out = torch.empty(self.shape[0], given.size(1), dtype=self._wide, device=self._device)
        for at, rows in self._rows():
            torch.mm(rows, given, out=out[at])
        return vector_of(out)

    def transposed_times(self, block: AnyVector) -> Vector:
        """``X^T block``, on the host: it has a row per feature and none per node."""
        on_host = isinstance(block, np.ndarray)
        given = torch.from_numpy(np.ascontiguousarray(block)) if on_host else block
        if self._sparse is not None:
            out = torch.sparse.mm(self._transposed, given)
        else:
            out = given.new_zeros(self.shape[1], given.size(1))
            for at, rows in self._rows():
                out.addmm_(rows.T, given[at])
        return np.asarray(out.cpu().double().numpy())


def is_mostly_zero(x: Tensor) -> bool:
    """Whether a dense matrix is better multiplied as a sparse one."""
    return int(x.count_nonzero()) < SPARSE * x.numel()


class LinearNetwork:
    """``K``: a network without its weights and activations, and its transpose.

    Where a layer receives several earlier ones they count equally, as in
    :mod:`virgo.graph.amplitudes`: every step's output is divided by its norm for ``probe``, which
    also keeps 64 sums over neighbours within range.

    Args:
        steps: the calls of layers, in order.
        stages: the operators of each step.
        probe: one column, ``[nodes, 1]``.
        rng: of the signs of terms.
    """

    def __init__(
        self, steps: Sequence[Step], stages: Stages, probe: Vector, rng: np.random.Generator
    ) -> None:
        self._steps = steps
        self._terms = [
            [[(float(rng.choice([-1.0, 1.0])), operator) for operator in stage] for stage in chain]
            if any(len(stage) > 1 for stage in chain)
            else [[(1.0, operator) for operator in stage] for stage in chain]
            for chain in stages
        ]
        fed = {parent for step in steps for parent in step.parents}
        self._ends = [step.to_output or i not in fed for i, step in enumerate(steps)]
        self._scales: list[float] = []
        self.forward(probe)

    def forward(self, x: Vector) -> Vector:
        """``K x``."""
        outputs: list[Vector] = []
        for i, step in enumerate(self._steps):
            arriving = [outputs[p] for p in step.parents] + [x] * step.from_input
            value = _total(arriving)
            for terms in self._terms[i]:
                value = _total([_apply(sign, operator, value) for sign, operator in terms])
            if len(self._scales) == i:
                self._scales.append(self._scale(step, value))
            outputs.append(_scaled(value, self._scales[i], arriving))
            self._drop_read(outputs, i)
        return _total([out for out, end in zip(outputs, self._ends, strict=True) if end])

    def backward(self, y: Vector) -> Vector:
        """``K^T y``."""
        gradients: dict[int, list[Vector]] = {i: [y] for i, end in enumerate(self._ends) if end}
        received: list[Vector] = []
        for i in reversed(range(len(self._steps))):
            arriving = gradients.pop(i)
            value = _total(arriving)
            for terms in reversed(self._terms[i]):
                value = _total([_apply(sign, operator.T, value) for sign, operator in terms])
            value = _scaled(value, self._scales[i], arriving)
            for parent in self._steps[i].parents:
                gradients.setdefault(parent, []).append(value)
            if self._steps[i].from_input:
                received.append(value)
        return _total(received)

    @cached_property
    def _last_reader(self) -> dict[int, int]:
        return {parent: i for i, step in enumerate(self._steps) for parent in step.parents}

    def _drop_read(self, outputs: list[Vector], i: int) -> None:
        """Let go of what no later step reads: a deep network holds a few blocks, not all."""
        for parent in self._steps[i].parents:
            if self._last_reader[parent] == i and not self._ends[parent]:
                outputs[parent] = _NOTHING

    @staticmethod
    def _scale(step: Step, value: Vector) -> float:
        squares = squared_norm(value)
        if not (math.isfinite(squares) and squares > 0):
            raise GraphError(
                f"{step.path or 'layer'}: expected features to arrive, got a sum of squares of "
                f"{squares:g}. Check edge weights and features, or use another distribution."
            )
        return 1.0 / math.sqrt(squares)


_NOTHING: Vector = np.empty(0)


def _apply(sign: float, operator: NodeOperator, x: Vector) -> Vector:
    value: Vector = operator(x)
    return value if sign > 0 else -value


def _scaled(value: Vector, scale: float, others: Sequence[Vector]) -> Vector:
    """``scale * value``, in place unless it is one of others, which operators may have returned."""
    if any(value is other for other in others):
        return value * scale
    value *= scale
    return value


def _total(parts: Sequence[Vector]) -> Vector:
    return parts[0] if len(parts) == 1 else sum(parts[1:], start=parts[0])


@dataclass(frozen=True)
class Spectrum:
    """The largest singular values of ``K X`` and their right singular vectors, as rows."""

    values: Vector
    vectors: Vector


def surviving_directions(
    steps: Sequence[Step], stages: Stages, features: Features, rank: int, seed: int
) -> Spectrum:
    """The directions of the features with the largest singular values after the whole network.

    Args:
        steps: the calls of layers, in order.
        stages: the operators of each step.
        features: the feature matrix.
        rank: how many are wanted.
        seed: of the iteration's start and of the signs of terms.

    Returns:
        At most ``rank`` of them, largest first: those that survive (:data:`SURVIVES`).
    """
    rng = np.random.default_rng(seed)
    probe = features.times(rng.standard_normal((features.shape[1], 1)))
    branched = any(len(stage) > 1 for chain in stages for stage in chain)
    draws = SIGN_DRAWS if branched else 1
    networks = [LinearNetwork(steps, stages, probe, rng) for _ in range(draws)]
    columns = max(1, _BLOCK // features.shape[0])

    def gram(block: Vector) -> Vector:
        parts = []
        for begin in range(0, block.shape[1], columns):
            start = features.times(np.ascontiguousarray(block[:, begin : begin + columns]))
            ends = [network.backward(network.forward(start)) for network in networks]
            parts.append(features.transposed_times(_total(ends) / draws))
        return np.concatenate(parts, axis=1)

    return right_singular(gram, features.shape[1], rank, rng)


def orthonormal(block: Vector) -> Vector:
    """An orthonormal basis of what the columns of a block span; zero where they depend.

    >>> orthonormal(np.array([[2.0, 1.0, 1.0], [0.0, 3.0, 1.0]])).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]

    Returns:
        A block of the same shape.
    """
    from virgo.graph import kernels

    rows = np.array(block.T, order="C")
    kernels.orthonormalise(rows, DEPENDENT)
    return rows.T


def _inner(basis: Vector, product: Vector) -> Vector:
    """``basis^T product``, made symmetric; by no BLAS, whose bits depend on the threads."""
    rows, others = np.ascontiguousarray(basis.T), np.ascontiguousarray(product.T)
    small: Vector = np.einsum("if,jf->ij", rows, others)
    return (small + small.T) / 2


def _settled(before: Vector, now: Vector) -> bool:
    """Whether the squares of singular values that survive, ascending, are what they were before."""
    survives = now > SURVIVES**2 * now[-1]
    return not (np.abs(now - before) > 2 * SETTLED * np.abs(now))[survives].any()


def _eigen(matrix: Vector) -> tuple[Vector, Vector]:
    """Of a small symmetric matrix, ascending. PyTorch's, as numpy's wakes all cores for it."""
    values, vectors = torch.linalg.eigh(torch.from_numpy(matrix))
    return values.numpy(), vectors.numpy()


def right_singular(
    gram: Callable[[Vector], Vector], size: int, rank: int, rng: np.random.Generator
) -> Spectrum:
    """The largest eigenvectors of ``gram``, a product with ``B^T B`` for some ``B``.

    Args:
        gram: multiplies a block of columns by ``B^T B``.
        size: the number of rows of such a block.
        rank: how many are wanted.
        rng: of the first block.

    Returns:
        The singular values of ``B`` that survive, and their right singular vectors as rows.

    >>> b = np.diag([3.0, 2.0, 1.0])
    >>> found = right_singular(lambda x: b.T @ (b @ x), 3, 2, np.random.default_rng(0))
    >>> found.values.round(6).tolist(), abs(found.vectors).round(6).tolist()
    ([3.0, 2.0], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    """
    basis = orthonormal(rng.standard_normal((size, min(size, rank + OVERSAMPLE))))
    squares = np.zeros(basis.shape[1])
    for i in range(ITERATIONS):
        product = gram(basis)
        before, (squares, rotation) = squares, _eigen(_inner(basis, product))
        if i == ITERATIONS - 1 or _settled(before[-rank:], squares[-rank:]):
            break
        basis = orthonormal(product)
    values = np.sqrt(np.maximum(squares[::-1], 0.0))[:rank]
    kept = int((values > SURVIVES * values[0]).sum())
    vectors = (basis @ rotation[:, ::-1]).T[:kept]
    largest = vectors[np.arange(kept), np.abs(vectors).argmax(1)]
    return Spectrum(values[:kept], vectors * np.sign(largest)[:, None])

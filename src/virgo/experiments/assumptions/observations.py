r"""The statistics of the paper's appendix A, for given weights and given message paths.

For a message path :math:`p = (i, j_1, \dots, j_l)` of a bias-free ReLU GCN the paper writes

.. math::
    [h_i^l]_{p} = \underbrace{\Bigl(\prod_k \delta(\hat h_{j_k}^{l-k-1})\Bigr)}_{\delta_p} \odot
        \underbrace{\Bigl(\prod_k d_{j_k j_{k+1}}\Bigr)}_{d_p}
        \underbrace{\Bigl(h_{j_l}^0 \prod_k W^k\Bigr)}_{z_p}

with :math:`\delta(x) = 1` where :math:`x > 0` and 0 elsewhere, neuron by neuron. Observations are
taken over the neurons :math:`t` of one draw of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from virgo.experiments.assumptions.paths import Paths, Walks, between_pairs
from virgo.experiments.assumptions.tables import PRINTED
from virgo.graph.operators import Vector

NO_DELTA = "without δ"
COSINE = "cosine of the sources' features"
BETWEEN = "all paths between random pairs of nodes"
INTO = "two paths into one node"
OUT_OF = "two paths out of one node"
ABSOLUTE = "absolute value"
SQUARES = "squares, as printed"
SQUARES_ABSOLUTE = "squares, absolute value"
ONE_WEIGHT_PATH = "with a single weight path"
PREDICTED = "predicted from the features"
CHANCE = "absolute value of independent neurons"
PER_PATH = "spread of the paths' own means"
ALL = "all neurons of the layer"
#: What depends on the number of neurons, and is therefore shown for all of them as well.
WIDTH_MATTERS = (("A2", ABSOLUTE), ("A3", ABSOLUTE), ("A3", SQUARES_ABSOLUTE), ("A4", PER_PATH))

Propagate = Callable[[Vector], Vector]
Observations = dict[tuple[str, str], Vector]  # (table, reading) -> one number per observation


@dataclass(frozen=True)
class ObservedNetwork:
    r"""What a forward pass leaves behind, one matrix ``[num_nodes, width]`` per layer.

    ``before`` are the pre-activations :math:`\hat h`; ``linear`` the features times the weights,
    without graph and activation.
    """

    x: Vector
    weights: tuple[Vector, ...]
    before: tuple[Vector, ...]
    linear: tuple[Vector, ...]

    @classmethod
    def run(cls, x: Vector, weights: Sequence[Vector], propagate: Propagate) -> ObservedNetwork:
        """``weights`` are ``[in, out]``, as in ``h W``; ``propagate`` multiplies by the graph."""
        h = z = x
        before, linear = [], []
        for weight in weights:
            first = h is z
            z = z @ weight
            hat = propagate(z if first else h @ weight)
            before.append(hat)
            linear.append(z)
            h = np.maximum(hat, 0.0)
        return cls(x, tuple(weights), tuple(before), tuple(linear))

    def delta(self, paths: Paths) -> Vector:
        r""":math:`\delta_p`, one row per path: 1 where every pre-activation is positive, else 0."""
        is_open = np.ones((len(paths), self.before[0].shape[1]), dtype=bool)
        for k in range(paths.length):
            is_open &= self.before[paths.length - k - 1][paths.nodes[:, k]] > 0
        return is_open.astype(np.float64)

    def source(self, paths: Paths) -> Vector:
        r""":math:`z_p`: the features where the path begins, times the weights of its layers."""
        rows: Vector = self.linear[paths.length - 1][paths.nodes[:, -1]]
        return rows

    def message(self, paths: Paths) -> Vector:
        r""":math:`[h]_p = \delta_p \odot d_p z_p`."""
        return self.delta(paths) * paths.scale[:, None] * self.source(paths)

    def weight_path(self, paths: Paths, rng: np.random.Generator) -> Vector:
        r""":math:`h_{j_l,t_0}^0 w_{t_0,t_1}^0 \cdots w_{t_{l-1},t}^{l-1}` over t, one row per path.

        :math:`t_0` is uniform among the features that are not zero, since the others carry
        nothing; the other neurons are uniform.

        Args:
            paths: the message paths.
            rng: of the neurons.

        Returns:
            One row per path; zeros for a node without features.
        """
        *inner, last = self.weights[: paths.length]
        out = np.zeros((len(paths), last.shape[1]))
        for row, source in enumerate(paths.nodes[:, -1]):
            there = np.flatnonzero(self.x[source])
            if not there.size:
                continue
            unit = int(rng.choice(there))
            factor = self.x[source, unit]
            for weight in inner:
                following = int(rng.integers(weight.shape[1]))
                factor = factor * weight[unit, following]
                unit = following
            out[row] = factor * last[unit]
        return out


def centred(rows: Vector) -> Vector:
    """Each row with mean 0 and length 1; NaN where it is constant and has no correlation."""
    means = rows.mean(axis=1, keepdims=True)
    # checked before: rounding may leave something of a constant row
    constant = rows.max(axis=1, keepdims=True) == rows.min(axis=1, keepdims=True)
    return _directions(np.where(constant, 0.0, rows - means))


def _directions(rows: Vector) -> Vector:
    """Each row with length 1; NaN where it is zero."""
    # by the largest entry first, so that the squares of tiny messages do not underflow
    largest = np.abs(rows).max(axis=1, keepdims=True)
    rows = rows / np.where(largest > 0, largest, np.nan)
    scaled: Vector = rows / np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
    return scaled


def over_pairs(first: Vector, second: Vector) -> Vector:
    """Products of row p of ``first`` with row q of ``second`` for all p < q."""
    products: Vector = (first @ second.T)[np.triu_indices(len(first), 1)]
    return products


def correlation(first: Vector, second: Vector) -> Vector:
    """Pearson's correlation, row by row.

    Args:
        first: one row per correlation.
        second: the same.

    Returns:
        One number per row; NaN where a row is constant.

    >>> correlation(np.array([[1.0, 2.0, 3.0], [1.0, 1.0, 1.0]]), np.array([[2.0, 4.0, 6.0]] * 2))
    array([ 1., nan])
    """
    products: Vector = (centred(first) * centred(second)).sum(axis=1)
    return products


def absolute_by_chance(neurons: int) -> tuple[float, float]:
    r"""Mean and sd of :math:`|r|` between n independent pairs of normal numbers.

    r has mean 0 and variance :math:`1/(n-1)` and is close to normal, so :math:`|r|` is close to
    half-normal: mean :math:`\sqrt{2/(\pi(n-1))}`, sd :math:`\sqrt{(1-2/\pi)/(n-1)}`. It is not 0,
    and says how many neurons were compared rather than how they are related.

    Args:
        neurons: the number n.

    Returns:
        Mean and standard deviation.

    >>> [round(value, 2) for value in absolute_by_chance(100)]
    [0.08, 0.06]
    """
    return math.sqrt(2 / (math.pi * (neurons - 1))), math.sqrt((1 - 2 / math.pi) / (neurons - 1))


def observe(
    network: ObservedNetwork, paths: Paths, neurons: npt.NDArray[np.int64], rng: np.random.Generator
) -> Observations:
    """A1 to A4 on these paths and neurons, in the readings that need nothing else."""
    delta, source = network.delta(paths)[:, neurons], network.source(paths)[:, neurons]
    message = network.message(paths)[:, neurons]
    half = neurons.size // 2
    # the neurons are in random order: the first half is a random half
    left, right = centred(message[:, :half]), centred(message[:, half : 2 * half])
    cosine = _directions(network.x[paths.nodes[:, -1]])
    halves = over_pairs(left, right)
    plain, squares = correlation(delta, source), correlation(delta**2, source**2)
    single = network.weight_path(paths, rng)[:, neurons]
    return {
        ("A1", PRINTED): over_pairs(centred(message), centred(message)),
        ("A1", NO_DELTA): over_pairs(centred(source), centred(source)),
        ("A1", COSINE): over_pairs(cosine, cosine),
        ("A2", PRINTED): halves,
        ("A2", ABSOLUTE): np.abs(halves),
        ("A3", PRINTED): plain,
        ("A3", SQUARES): squares,
        ("A3", ABSOLUTE): np.abs(plain),
        ("A3", SQUARES_ABSOLUTE): np.abs(squares),
        ("A3", ONE_WEIGHT_PATH): correlation(delta, single),
        ("A4", PRINTED): delta.ravel(),
        ("A4", PER_PATH): delta.mean(axis=1),
    }


def observe_clusters(
    network: ObservedNetwork,
    walks: Walks,
    paths: Paths,
    neurons: npt.NDArray[np.int64],
    rng: np.random.Generator,
) -> Observations:
    """A1 where paths have ends in common: the paper's sample, and two paths at a time."""
    clustered = between_pairs(walks, paths.length, len(paths), rng)
    message = network.message(clustered)[:, neurons]
    into = walks.sample_from(paths.nodes[:, 0], paths.length, rng)
    out_of = walks.T.sample_from(paths.nodes[:, -1], paths.length, rng).reversed
    return {
        ("A1", BETWEEN): over_pairs(centred(message), centred(message)),
        ("A1", INTO): _two(network, paths, into, neurons),
        ("A1", OUT_OF): _two(network, paths, out_of, neurons),
    }


def _two(
    network: ObservedNetwork, paths: Paths, others: Paths, neurons: npt.NDArray[np.int64]
) -> Vector:
    different = (paths.nodes != others.nodes).any(axis=1)
    first, second = network.message(paths[different]), network.message(others[different])
    return correlation(first[:, neurons], second[:, neurons])


def predicted_first(network: ObservedNetwork, walks: Walks, paths: Paths) -> Vector:
    r"""A3 for length 1 without sampling any weight: :math:`\sqrt{2/\pi}\,\cos(\tilde a_i, x_j)`.

    Over neurons, :math:`\hat h_i` and :math:`z_p` are the images of
    :math:`\tilde a_i = \sum_j \tilde A_{ij} x_j` and :math:`x_j` under the same random weights, so
    their correlation is the cosine of the two; and for jointly normal a, b of correlation c,
    :math:`\mathrm{corr}(1_{a>0}, b) = c\sqrt{2/\pi}`.

    Args:
        network: its features.
        walks: its operator.
        paths: of length 1.

    Returns:
        One number per path.
    """
    assert paths.length == 1
    assert walks.matrix.weights is not None
    gathered = np.zeros((len(paths), network.x.shape[1]))
    for row, node in enumerate(paths.nodes[:, 0]):
        span = slice(walks.matrix.pointer[node], walks.matrix.pointer[node + 1])
        gathered[row] = walks.matrix.weights[span] @ network.x[walks.matrix.columns[span]]
    sources = network.x[paths.nodes[:, 1]]
    cosine: Vector = (_directions(gathered) * _directions(sources)).sum(axis=1)
    return math.sqrt(2 / math.pi) * cosine


def softmax(logits: Vector) -> Vector:
    """Row by row."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    out: Vector = shifted / shifted.sum(axis=1, keepdims=True)
    return out

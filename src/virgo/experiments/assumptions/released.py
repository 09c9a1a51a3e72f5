r"""What the authors' scripts for appendix A compute (``tests/corr_*.py`` of their repository).

A "weight path" there is a product of *randomly picked entries* of the weight matrices, one entry
per layer and neuron, the same ones for every message path; features and degrees do not enter:

.. math::
    o_{p,t} = \delta_{p,t}\, \prod_k w^k_{\mathrm{random}(k, t)}

**A1** takes three message paths that start at *one node*, sums :math:`o_{p,t}` over a random half
of the neurons, a hundred times, correlates the three paths over these hundred sums, and averages
the whole 3 x 3 matrix, *its diagonal of ones included*. **A2** correlates one half of a path's
neurons with the other half, **A3** :math:`\delta_p` with the products; both average absolute
values over all neurons. Message paths are simple paths (no node twice, hence no self-loop).

As they stand the scripts multiply the features into :math:`\delta_p`, tensors of different widths,
and stop there. Here :math:`\delta_p` begins with the first hidden layer, which is what its use with
the weights of that layer asks for. The features are as the files have them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from virgo.experiments.assumptions.observations import (
    Observations,
    ObservedNetwork,
    centred,
    correlation,
)
from virgo.experiments.assumptions.paths import Ids, Walks
from virgo.graph.operators import Vector

RELEASED = "as released"
RELEASED_SQUARES = "squares, as released"
OFF_DIAGONAL = "as released, without the diagonal"
DIFFERENT_NODES = "as released, without the diagonal, paths of different nodes"
#: The scripts' defaults: nodes and paths of A1, sums per path, pairs of A2 and A3, their paths.
NODES, PER_NODE, SUMS, PAIRS, MOST = 10, 3, 100, 100, 2000
#: Starts with more walks than this are passed over, as are a few hubs: all would be listed.
LISTED = 2_000_000


def simple_paths(walks: Walks, start: int, length: int) -> Ids:
    """All simple paths of a length from a node, sorted by where they end.

    Args:
        walks: over the operator; self-loops never are part of a simple path.
        start: the first node.
        length: number of edges.

    Returns:
        One row of nodes per path, ``start`` first.
    """
    pointer, columns = walks.matrix.pointer, walks.matrix.columns
    rows = np.array([[start]], dtype=np.int64)
    for _ in range(length):
        here = rows[:, -1]
        widths = pointer[here + 1] - pointer[here]
        which = np.repeat(np.arange(len(rows)), widths)
        inside = np.arange(widths.sum()) - np.repeat(np.cumsum(widths) - widths, widths)
        following = columns[pointer[here][which] + inside].astype(np.int64)
        fresh = (rows[which] != following[:, None]).all(axis=1)
        rows = np.concatenate([rows[which[fresh]], following[fresh, None]], axis=1)
    return rows[np.argsort(rows[:, -1], kind="stable")]


def observe_released(
    network: ObservedNetwork, walks: Walks, rng: np.random.Generator
) -> dict[int, Observations]:
    """A1 to A3 as the scripts compute them, by path length.

    Args:
        network: all of its layers are hidden ones.
        walks: over the operator.
        rng: of nodes, entries and halves.

    Returns:
        Length -> (table, reading) -> observations.
    """
    depth = len(network.weights)
    groups, pairs = _paths_of_nodes(walks, depth + 1, rng), _paths_of_pairs(walks, depth + 1, rng)
    seen: dict[int, Observations] = {}
    products = np.ones(network.weights[0].shape[1])
    for layer, weight in enumerate(network.weights):
        entries = rng.choice(weight.size, size=products.size, replace=False)
        products = products * weight.ravel()[entries]
        found: Observations = {}
        if groups.size:
            sums = _half_sums(_delta(network, groups, layer + 1) * products, rng)
            found |= {
                ("A1", RELEASED): np.concatenate([_whole(rows) for rows in sums]),
                ("A1", OFF_DIAGONAL): np.concatenate([_upper(rows) for rows in sums]),
                ("A1", DIFFERENT_NODES): _upper(sums[:, 0]),
            }
        if pairs.size:
            delta = _delta(network, pairs, layer + 1)
            repeated = np.broadcast_to(products, delta.shape)
            found |= {
                ("A2", RELEASED): _halves(delta * products, rng),
                ("A3", RELEASED): np.abs(correlation(delta, repeated)),
                ("A3", RELEASED_SQUARES): np.abs(correlation(delta**2, repeated**2)),
            }
        seen[layer + 1] = found
    return seen


def _delta(network: ObservedNetwork, paths: Ids, length: int) -> Vector:
    """1 where the ``k``-th hidden layer is open at the ``k``-th node after the first, all k."""
    is_open = np.ones((*paths.shape[:-1], network.before[0].shape[1]), dtype=bool)
    for k in range(length):
        is_open &= network.before[k][paths[..., k + 1]] > 0
    return is_open.astype(np.float64)


def _half_sums(rows: Vector, rng: np.random.Generator) -> Vector:
    """Sums over random halves of the neurons: ``[..., SUMS]``."""
    neurons = rows.shape[-1]
    halves = [rng.permutation(neurons)[: neurons // 2] for _ in range(SUMS)]
    return np.stack([rows[..., half].sum(axis=-1) for half in halves], axis=-1)


def _whole(rows: Vector) -> Vector:
    """All correlations of rows, with the ones on the diagonal."""
    scaled = centred(rows)
    products: Vector = (scaled @ scaled.T).ravel()
    return products


def _upper(rows: Vector) -> Vector:
    scaled = centred(rows)
    products: Vector = (scaled @ scaled.T)[np.triu_indices(len(rows), 1)]
    return products


def _halves(rows: Vector, rng: np.random.Generator) -> Vector:
    """Absolute correlation of one half of each row with the other, ten times."""
    neurons = rows.shape[1]
    found = []
    for _ in range(10):
        order = rng.permutation(neurons)
        # the scripts sort the second half, which changes nothing for a random first one
        first, second = rows[:, order[: neurons // 2]], rows[:, np.sort(order[neurons // 2 :])]
        found.append(np.abs(correlation(first, second[:, : first.shape[1]])))
    return np.concatenate(found)


def _starts(walks: Walks, length: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    order = rng.permutation(walks.num_nodes)
    return order[walks.counts(length)[order] <= LISTED]


def _paths_of_nodes(walks: Walks, length: int, rng: np.random.Generator) -> Ids:
    """The first three simple paths of ten nodes: ``[nodes, 3, length + 1]``."""
    groups: list[Ids] = []
    for start in _starts(walks, length, rng).tolist():
        paths = simple_paths(walks, start, length)
        if len(paths) >= PER_NODE:
            groups.append(paths[:PER_NODE])
        if len(groups) == NODES:
            break
    return np.stack(groups) if groups else np.empty((0, PER_NODE, length + 1), dtype=np.int64)


def _paths_of_pairs(walks: Walks, length: int, rng: np.random.Generator) -> Ids:
    """All simple paths between a hundred pairs of nodes, at most about two thousand."""
    kept: list[Ids] = []
    for start in _starts(walks, length, rng).tolist():
        paths = simple_paths(walks, start, length)
        if len(paths):
            target = rng.choice(np.unique(paths[:, -1]))
            kept.append(paths[paths[:, -1] == target])
        if len(kept) == PAIRS or sum(map(len, kept)) > MOST:
            break
    return np.concatenate(kept) if kept else np.empty((0, length + 1), dtype=np.int64)

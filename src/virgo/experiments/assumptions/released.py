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

The script of A1, and no other, *reverses* its lists before it prints them: where a network has
three hidden layers, its first number is that of :math:`\delta_p` over all three. :data:`RELEASED`
has its numbers in this order, :data:`IN_ORDER` by the number of layers in :math:`\delta_p`. Its
``±`` is the standard deviation within a node's 3 x 3 matrix, averaged over nodes. The script reads
the first hidden layer at the path's second node, the next one a node further; the appendix's
:math:`\delta_p` has the last layer at the first node, which is :data:`APPENDIX_ORDER`.

As they stand the scripts multiply the features into :math:`\delta_p`, tensors of different widths,
and stop there. Here :math:`\delta_p` begins with the first hidden layer, which is what its use with
the weights of that layer asks for. The features are as the files have them.
"""

from __future__ import annotations

from collections.abc import Sequence

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
IN_ORDER = "as released, not in the order printed but by length"
APPENDIX_ORDER = "as released, layers in the appendix's order"
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
            sums = half_sums(delta_of(network, groups, layer + 1) * products, rng)
            nodes = range(depth - 1, -1, -1)
            turned = half_sums(delta_of(network, groups, layer + 1, nodes) * products, rng)
            found |= {
                ("A1", APPENDIX_ORDER): np.stack([whole(rows) for rows in turned]),
                ("A1", IN_ORDER): np.stack([whole(rows) for rows in sums]),
                ("A1", OFF_DIAGONAL): np.concatenate([_upper(rows) for rows in sums]),
                ("A1", DIFFERENT_NODES): _upper(sums[:, 0]),
            }
        if pairs.size:
            delta = delta_of(network, pairs, layer + 1)
            repeated = np.broadcast_to(products, delta.shape)
            found |= {
                ("A2", RELEASED): _halves(delta * products, rng),
                ("A3", RELEASED): np.abs(correlation(delta, repeated)),
                ("A3", RELEASED_SQUARES): np.abs(correlation(delta**2, repeated**2)),
            }
        seen[layer + 1] = found
    if groups.size:
        for layer in range(depth):
            seen[layer + 1]["A1", RELEASED] = seen[depth - layer]["A1", IN_ORDER]
    return seen


def delta_of(
    network: ObservedNetwork, paths: Ids, length: int, nodes: Sequence[int] | None = None
) -> Vector:
    """1 where the first ``length`` hidden layers are open, each at its node of the path.

    Args:
        network: its pre-activations.
        paths: ``[..., nodes]``.
        length: how many layers.
        nodes: where on the path each layer is read; the script's by default, 1, 2, ...

    Returns:
        ``[..., neurons]``, zeros and ones.
    """
    nodes = range(1, length + 1) if nodes is None else nodes
    is_open = np.ones((*paths.shape[:-1], network.before[0].shape[1]), dtype=bool)
    for before, node in zip(network.before[:length], nodes, strict=False):
        is_open &= before[paths[..., node]] > 0
    return is_open.astype(np.float64)


def half_sums(rows: Vector, rng: np.random.Generator) -> Vector:
    """Sums over random halves of the neurons: ``[..., SUMS]``."""
    neurons = rows.shape[-1]
    halves = [rng.permutation(neurons)[: neurons // 2] for _ in range(SUMS)]
    return np.stack([rows[..., half].sum(axis=-1) for half in halves], axis=-1)


def whole(rows: Vector) -> Vector:
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

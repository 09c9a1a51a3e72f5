"""Random simple graphs with given degrees, in time and memory linear in their edges.

Edges are held as sorted keys ``low * num_nodes + high``, one for each pair of nodes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DENSE = 0.02
"""Above this share of all pairs a graph is drawn cell by cell instead of by matching stubs."""

GROUPS = 64
"""Groups of nodes of about equal degree in a dense graph."""

ROUNDS = 60
"""Tries to match again what did not become a new edge, before random edges fill the gap."""


def random_edges(
    rng: np.random.Generator,
    degrees: Ints,
    labels: Ints | None = None,
    homophily: float = 0.0,
) -> Ints:
    """Keys of ``degrees.sum() / 2`` distinct edges without self-loops.

    A sparse graph is a configuration model: every node has as many stubs as its degree, stubs are
    matched at random, and those that form a loop or an edge that is there already are matched again
    together with as many others. Degrees come out as given, but for the few edges that
    :data:`ROUNDS` tries did not place. A dense graph is a block model of its degrees: expected
    degrees come out as given (:func:`_dense`); labels are ignored.

    Args:
        rng: of every draw.
        degrees: one number a node, an even sum.
        labels: one class a node.
        homophily: share of edges within a class.
    """
    num_nodes, num_edges = degrees.size, int(degrees.sum()) // 2
    if num_edges > DENSE * num_nodes * (num_nodes - 1) / 2:
        return _dense(rng, degrees, num_edges)
    inside = 0.0
    if labels is not None:
        volume = np.bincount(labels, weights=degrees) / degrees.sum()
        chance = float((volume**2).sum())  # stubs that meet at random share a class this often
        inside = max(0.0, (homophily - chance) / (1 - chance))
    loose = np.repeat(np.arange(num_nodes), degrees)
    keys = np.empty(0, dtype=np.int64)
    for attempt in range(ROUNDS):
        # Late tries match anyone with anyone: a class may be used up.
        pairs = _match(rng, loose, labels if attempt < ROUNDS // 4 else None, inside)
        keys, failed = _add(keys, pairs, num_nodes)
        if failed.size == 0:
            return keys
        if attempt < ROUNDS - 1:
            again = np.unique(rng.integers(0, max(keys.size, 1), failed.shape[1] + 8))
            again = again[again < keys.size]
            ends = np.divmod(keys[again], num_nodes)
            loose = np.concatenate([failed.reshape(-1), *ends])
            keys = np.delete(keys, again)
    return fill(rng, keys, num_nodes, num_edges)


def fill(rng: np.random.Generator, keys: Ints, num_nodes: int, num_edges: int) -> Ints:
    """Uniform new edges until there are ``num_edges``."""
    while keys.size < num_edges:
        pairs = rng.integers(0, num_nodes, (2, 2 * (num_edges - keys.size) + 8))
        grown, _ = _add(keys, pairs, num_nodes)
        drop = rng.permutation(np.flatnonzero(~contains(keys, grown)))[num_edges - keys.size :]
        keys = np.delete(grown, drop)
    return keys


def key_of(pairs: Ints, num_nodes: int) -> Ints:
    """The keys of pairs of nodes."""
    low, high = np.minimum(pairs[0], pairs[1]), np.maximum(pairs[0], pairs[1])
    return np.asarray(low * num_nodes + high)


def contains(keys: Ints, wanted: Ints) -> NDArray[np.bool_]:
    """Which of ``wanted`` are among the sorted ``keys``."""
    if keys.size == 0:
        return np.zeros(wanted.shape, dtype=np.bool_)
    at = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
    return np.asarray(keys[at] == wanted)


def both_directions(keys: Ints, num_nodes: int) -> Ints:
    """``edge_index`` of an undirected graph, sorted by source, then target."""
    low, high = np.divmod(keys, num_nodes)
    both = np.concatenate([keys, high * num_nodes + low])
    both.sort()
    return np.stack(np.divmod(both, num_nodes))


def _add(keys: Ints, pairs: Ints, num_nodes: int) -> tuple[Ints, Ints]:
    """The keys with those of new ``pairs``, and the pairs that are loops or not new."""
    made = key_of(pairs, num_nodes)
    fresh, first = np.unique(made, return_index=True)
    low, high = np.divmod(fresh, num_nodes)
    good = (low != high) & ~contains(keys, fresh)
    failed = np.ones(made.size, dtype=np.bool_)
    failed[first[good]] = False
    grown = np.sort(np.concatenate([keys, fresh[good]]), kind="stable")  # merges two sorted runs
    return grown, pairs[:, failed]


def _match(rng: np.random.Generator, stubs: Ints, labels: Ints | None, inside: float) -> Ints:
    """Pairs of all stubs, a share ``inside`` of them with stubs of their own class."""
    stubs = rng.permutation(stubs)
    if labels is None or inside <= 0:
        return stubs.reshape(-1, 2).T
    stay = rng.random(stubs.size) < inside
    own = stubs[stay]
    own = own[np.argsort(labels[own], kind="stable")]
    label = labels[own]
    first = np.searchsorted(label, label, "left")
    size = np.searchsorted(label, label, "right") - first
    odd = (np.arange(own.size) - first == size - 1) & (size % 2 == 1)
    rest = rng.permutation(np.concatenate([stubs[~stay], own[odd]]))
    return np.concatenate([own[~odd].reshape(-1, 2).T, rest.reshape(-1, 2).T], axis=1)


def _dense(rng: np.random.Generator, degrees: Ints, num_edges: int) -> Ints:
    r"""Edges of a graph in which hubs are tied to most nodes.

    Nodes are grouped by degree; two nodes of groups :math:`a, b` are tied with the probability
    :math:`x_a x_b / (1 + x_a x_b)`, the graph of largest entropy with these expected degrees. The
    number of edges of each pair of groups is fixed to its expectation, rounded.
    """
    num_nodes = degrees.size
    order = np.argsort(degrees, kind="stable")
    groups = min(GROUPS, num_nodes)
    first = np.linspace(0, num_nodes, groups + 1).astype(np.int64)
    size = np.diff(first)
    mean = np.add.reduceat(degrees[order], first[:-1]) / size
    others = size[None, :] - np.eye(groups)
    x = mean / np.sqrt(mean @ size)
    for _ in range(500):
        x = np.sqrt(x * mean / (others * x / (1 + x[:, None] * x)).sum(1))
    chance = x[:, None] * x / (1 + x[:, None] * x)
    a, b = np.triu_indices(groups)
    cells = np.where(a == b, size[a] * (size[a] - 1) // 2, size[a] * size[b])
    expected = np.cumsum(cells * chance[a, b])
    number = np.diff(np.rint(expected * num_edges / expected[-1]), prepend=0).astype(np.int64)
    number = np.minimum(number, cells)
    made = []
    for one, other, cell, wanted in zip(a, b, cells, number, strict=True):
        chosen = rng.choice(cell, wanted, replace=False, shuffle=False)
        row, column = triangle(chosen) if one == other else np.divmod(chosen, size[other])
        made.append(
            key_of(np.stack([order[first[one] + row], order[first[other] + column]]), num_nodes)
        )
    return fill(rng, np.sort(np.concatenate(made)), num_nodes, num_edges)


def triangle(index: Ints) -> tuple[Ints, Ints]:
    """The ``index``-th pair ``(row, column)`` with ``row > column``, counted row by row.

    >>> triangle(np.arange(6))
    (array([1, 2, 2, 3, 3, 3]), array([0, 0, 1, 0, 1, 2]))
    """
    row = ((1 + np.sqrt(1 + 8 * index.astype(np.float64))) / 2).astype(np.int64)
    # The root of a large number may be off by one.
    row -= row * (row - 1) // 2 > index
    row += row * (row + 1) // 2 <= index
    return row, index - row * (row - 1) // 2

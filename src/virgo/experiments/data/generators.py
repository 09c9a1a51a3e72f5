"""A generated citation graph, for demonstrations and tests without data."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from virgo.errors import DataError
from virgo.experiments.data.datasets import MASKS
from virgo.experiments.data.random_graphs import Floats, Ints, add_edges, both_directions

DEGREE_EXPONENT = 2.5
"""Power-law exponent of the degree propensities: between 2 and 3 in citation graphs."""

TOPIC_SHARE = 0.09
"""Share of a document's words that depend on its class; the rest is common vocabulary. Set so that
features alone do clearly worse than features and graph together (``test_generators.py``)."""


def citation_like(
    num_nodes: int = 2708,
    num_classes: int = 7,
    num_features: int = 1433,
    average_degree: float = 3.9,
    words_per_node: float = 18,
    homophily: float = 0.81,
    train_per_class: int = 20,
    num_val: int = 500,
    num_test: int = 1000,
    seed: int = 0,
) -> Data:
    r"""A citation-like graph: degree-corrected communities with sparse bag-of-words features.

    Edges follow a degree-corrected stochastic block model (Karrer and Newman, 2011): the other end
    of an edge lies in the same class with probability ``homophily`` and is node :math:`j` of that
    class with probability

    .. math:: \theta_j / \sum_{k : y_k = y_j} \theta_k, \qquad p(\theta) \propto \theta^{-2.5}.

    Every node starts one edge, as a paper cites at least one other, so none is isolated; the rest
    start at nodes drawn by :math:`\theta`. Words are drawn without repetition from a Zipf law
    over the vocabulary, mixed with a Zipf law over the words of the node's class.

    The defaults have Cora's shape, and a two-layer GCN does about as well as there. A block model
    mixes faster than a real citation graph and its words are less informative, so features alone
    and deep plain networks do worse than on Cora. The cost is :math:`O(E + \mathrm{nnz})` up to the
    logarithm of a sort, plus the dense ``x``. All draws come from ``seed``; global random state is
    neither read nor changed.

    Args:
        num_nodes: Number of documents.
        num_classes: Number of classes; their sizes differ by up to a factor of three.
        num_features: Size of the vocabulary.
        average_degree: Mean degree, at least 2; exact up to rounding to whole edges.
        words_per_node: Mean number of distinct words of a node, at most half the vocabulary
            (near that bound, somewhat fewer).
        homophily: Share of edges within a class.
        train_per_class: Training nodes per class. Where ``num_nodes`` does not suffice for
            the split, its three parts shrink in proportion.
        num_val: Validation nodes.
        num_test: Test nodes.
        seed: Seed of every draw.

    Returns:
        ``Data`` with ``x`` (0/1, float32), an undirected, coalesced ``edge_index`` without
        self-loops, ``y``, and the disjoint ``train_mask``, ``val_mask``, ``test_mask``.

    Example:
        >>> data = citation_like(num_nodes=2708, seed=0)
        >>> data.num_nodes, data.num_edges, data.is_undirected(), data.has_isolated_nodes()
        (2708, 10562, True, False)
        >>> int(data.train_mask.sum()), int(data.val_mask.sum()), int(data.test_mask.sum())
        (140, 500, 1000)
    """
    num_edges = round(num_nodes * average_degree / 2)
    _require(num_classes >= 2, "num_classes", "at least 2", num_classes)
    _require(num_features >= num_classes, "num_features", "at least num_classes", num_features)
    _require(num_nodes > 2 * num_classes, "num_nodes", "above twice num_classes", num_nodes)
    _require(2 <= average_degree <= num_nodes / 4, "average_degree", "in [2, N/4]", average_degree)
    _require(0 <= homophily <= 1, "homophily", "a share in [0, 1]", homophily)
    _require(
        1 <= words_per_node <= num_features / 2,
        "words_per_node",
        "between 1 and half of num_features",
        words_per_node,
    )

    # A small graph has a split in the same proportions, with a training node of every class.
    share = min(1.0, num_nodes / max(num_classes * train_per_class + num_val + num_test, 1))
    train_per_class = max(int(share * train_per_class), 1)
    num_val, num_test = int(share * num_val), int(share * num_test)

    # One stream per part: more features must not change the graph.
    streams = np.random.SeedSequence(seed).spawn(4)
    for_labels, for_edges, for_words, for_split = map(np.random.default_rng, streams)
    y = _labels(for_labels, num_nodes, num_classes, train_per_class)
    pairs = _edges(for_edges, y, num_classes, num_edges, homophily)
    node, word = _words(for_words, y, num_classes, num_features, words_per_node)

    x = torch.zeros(num_nodes, num_features)
    x[torch.from_numpy(node), torch.from_numpy(word)] = 1.0
    masks = _masks(for_split, y, num_classes, train_per_class, num_val, num_test)
    return Data(
        x=x,
        edge_index=torch.from_numpy(pairs),
        y=torch.from_numpy(y),
        **{name: torch.from_numpy(mask) for name, mask in masks.items()},
    )


def _require(holds: bool, name: str, expected: str, actual: object) -> None:
    if not holds:
        raise DataError(f"citation_like: {name} must be {expected}, got {actual}. Change it.")


def _labels(rng: np.random.Generator, num_nodes: int, num_classes: int, least: int) -> Ints:
    """Labels in random order; every class holds at least ``least`` nodes, and at least two."""
    floor = np.repeat(np.arange(num_classes), max(least, 2))[:num_nodes]
    size = rng.uniform(0.5, 1.5, num_classes)
    rest = rng.choice(num_classes, num_nodes - floor.size, p=size / size.sum())
    return rng.permutation(np.concatenate([floor, rest])).astype(np.int64)


class _ByClass:
    """Draws nodes of a given class in proportion to their weight, in O(log N) each."""

    def __init__(self, y: Ints, num_classes: int, weight: Floats) -> None:
        self.order = np.argsort(y, kind="stable")
        self.cumulative = np.concatenate([[0.0], np.cumsum(weight[self.order])])
        self.first = np.searchsorted(y[self.order], np.arange(num_classes + 1))

    def draw(self, rng: np.random.Generator, label: Ints) -> Ints:
        low, high = self.first[label], self.first[label + 1]
        start, stop = self.cumulative[low], self.cumulative[high]
        mark = start + rng.random(label.size) * (stop - start)
        at = np.searchsorted(self.cumulative, mark, "right")
        # Rounding may step over the end of a class by one.
        return np.asarray(self.order[np.clip(at - 1, low, high - 1)])


def _edges(
    rng: np.random.Generator, y: Ints, num_classes: int, num_edges: int, homophily: float
) -> Ints:
    """Both directions of ``num_edges`` distinct edges, sorted by source, then target."""
    num_nodes = y.size
    # The largest of N draws from this law is about N^(1/(exponent-1)): a bound for all nodes.
    largest = num_nodes ** (1 / (DEGREE_EXPONENT - 1))
    theta = np.minimum(1 + rng.pareto(DEGREE_EXPONENT - 1, num_nodes), largest)
    ends = _ByClass(y, num_classes, theta)
    starts = _ByClass(np.zeros_like(y), 1, theta)

    keys = np.empty(0, dtype=np.int64)
    source = np.arange(num_nodes)
    for _ in range(100):
        label = y[source]
        leave = rng.random(source.size) >= homophily
        label[leave] = (label[leave] + rng.integers(1, num_classes, leave.sum())) % num_classes
        target = ends.draw(rng, label)
        loop = target == source
        target[loop] = (source[loop] + rng.integers(1, num_nodes, loop.sum())) % num_nodes
        keys, _ = add_edges(keys, np.stack([source, target]), num_nodes)
        missing = num_edges - keys.size
        if missing <= 0:
            break
        source = starts.draw(rng, np.zeros(missing, dtype=np.int64))
    else:
        raise DataError(
            f"citation_like: average_degree is too high for communities of this size, got "
            f"{keys.size} of {num_edges} distinct edges. Lower it or take more nodes."
        )
    return both_directions(keys, num_nodes)


def _cumulative(weight: Floats) -> Floats:
    """Cumulative probabilities that end in exactly 1, so that no draw exceeds the last."""
    total = np.cumsum(weight)
    return np.asarray(total / total[-1])


def _words(
    rng: np.random.Generator, y: Ints, num_classes: int, num_features: int, words_per_node: float
) -> tuple[Ints, Ints]:
    """Row and column of every nonzero of the bag-of-words matrix."""
    zipf = 1 / np.arange(1, num_features + 1)
    common = _cumulative(zipf)
    # Every class has its own random part of the vocabulary.
    vocabulary = rng.permutation(num_features)
    topic_size = num_features // num_classes
    topic = _cumulative(zipf[:topic_size])

    # Twice as many as wanted are drawn; repeated words are dropped, then any surplus.
    wanted = np.clip(rng.poisson(words_per_node, y.size), 1, num_features // 2)
    node = np.repeat(np.arange(y.size), 2 * wanted)
    word = np.searchsorted(common, rng.random(node.size), "right")
    own = rng.random(node.size) < TOPIC_SHARE
    topic_rank = np.searchsorted(topic, rng.random(own.sum()), "right")
    word[own] = vocabulary[y[node[own]] * topic_size + topic_rank]

    _, first = np.unique(node * num_features + word, return_index=True)
    first.sort()
    node, word = node[first], word[first]
    rank = np.arange(node.size) - np.searchsorted(node, np.arange(y.size))[node]
    keep = rank < wanted[node]
    return node[keep], word[keep]


def _masks(
    rng: np.random.Generator,
    y: Ints,
    num_classes: int,
    train_per_class: int,
    num_val: int,
    num_test: int,
) -> dict[str, NDArray[np.bool_]]:
    """Planetoid's split: training nodes per class, then validation and test nodes."""
    order = rng.permutation(y.size)
    by_class = order[np.argsort(y[order], kind="stable")]
    first = np.searchsorted(y[by_class], np.arange(num_classes))
    train = by_class[first[:, None] + np.arange(train_per_class)].ravel()
    masks = {name: np.zeros(y.size, dtype=np.bool_) for name in MASKS}
    masks["train_mask"][train] = True
    rest = order[~masks["train_mask"][order]]
    masks["val_mask"][rest[:num_val]] = True
    masks["test_mask"][rest[num_val : num_val + num_test]] = True
    return masks

r"""Message paths: the walks over which a GCN carries a feature to a node, drawn uniformly.

A *message path* of length :math:`l` into node :math:`i` is a walk
:math:`p = (i, j_1, \dots, j_l)` over the non-zero entries of the layer's operator
:math:`\tilde A = D^{-1/2}(A+I)D^{-1/2}`, self-loops included, and
:math:`d_p = \prod_k \tilde A_{j_k j_{k+1}}`. With :math:`c_0 = 1` and :math:`c_k = B c_{k-1}` for
the 0/1 pattern :math:`B` of the operator, :math:`c_l(i)` counts the paths of length :math:`l` into
:math:`i`. Choosing the end with probability :math:`c_l(i) / \sum c_l`, then each next node
:math:`j` with probability :math:`c_{l-k}(j) / c_{l-k+1}(j_{k-1})`, telescopes to
:math:`1/\sum c_l`: every path is equally likely. Integers throughout, so it is exact.

The paper instead draws pairs of nodes and takes *all* paths between each pair. Since every pair is
equally likely and brings all its paths, every path is equally likely there too; but paths come in
clusters that share both ends. :func:`between_pairs` does that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from virgo.errors import GraphError, OptionError
from virgo.experiments.models.convolutions import nonzeros
from virgo.graph.operators import Compressed, Operator, Vector

Ids = npt.NDArray[np.int64]
_COUNTABLE = float(2**62)
_BATCH = 64  # walks drawn at a time where it is not known how many are needed


@dataclass(frozen=True)
class Paths:
    """``nodes`` is ``[n, l + 1]``, the end (where the message arrives) first; ``scale`` is d_p."""

    nodes: Ids
    scale: Vector

    def __len__(self) -> int:
        return int(self.nodes.shape[0])

    @property
    def length(self) -> int:
        return int(self.nodes.shape[1]) - 1

    def __getitem__(self, picks: npt.NDArray[np.bool_] | Ids | slice) -> Paths:
        return Paths(self.nodes[picks], self.scale[picks])

    @property
    def reversed(self) -> Paths:
        """The other end first, for walks over the transpose."""
        return Paths(self.nodes[:, ::-1], self.scale)


class Walks:
    """Uniform walks over the nonzeros of a matrix in CSR form."""

    def __init__(self, rows: Ids, columns: Ids, values: Vector, num_nodes: int) -> None:
        self.matrix = Compressed.build(rows, columns, num_nodes, values)
        self.num_nodes = num_nodes
        self._entries = (rows, columns, values)
        self._counts: list[Ids] = [np.ones(num_nodes, dtype=np.int64)]

    @classmethod
    def over(cls, operator: Operator) -> Walks:
        """Walks from the node where a message arrives, back to where it comes from."""
        assert operator.graph is not None
        num_nodes = operator.graph.num_nodes
        return cls(*nonzeros(operator, num_nodes), num_nodes)

    @cached_property
    def T(self) -> Walks:
        """Walks from where a message comes from to where it arrives."""
        rows, columns, values = self._entries
        return Walks(columns, rows, values, self.num_nodes)

    @cached_property
    def _sparse(self) -> Tensor:
        rows, columns, values = map(torch.from_numpy, self._entries)
        size = (self.num_nodes, self.num_nodes)
        matrix = torch.sparse_coo_tensor(
            torch.stack([rows, columns]), values, size, check_invariants=False
        )
        return matrix.coalesce()

    def propagate(self, h: Vector) -> Vector:
        """The operator on all columns at once; ``Operator`` itself goes one by one."""
        out: Vector = (self._sparse @ torch.from_numpy(h)).numpy()
        return out

    def counts(self, length: int) -> Ids:
        """How many walks of this length start at each node."""
        return self._up_to(length)[length]

    def _up_to(self, length: int) -> list[Ids]:
        """The counts of all lengths up to this one."""
        while len(self._counts) <= length:
            longer = self._before(self._counts[-1])
            if float(longer.sum(dtype=np.float64)) > _COUNTABLE:
                raise OptionError(
                    f"num_layers: expected paths that 64 bits can count, got over 2^62 of length "
                    f"{len(self._counts)}. Take fewer layers."
                )
            self._counts.append(longer)
        return self._counts

    def _before(self, counts: Ids) -> Ids:
        """One step further from the end: the sums of each row."""
        running = np.concatenate([[0], np.cumsum(counts[self.matrix.columns])])
        sums: Ids = running[self.matrix.pointer[1:]] - running[self.matrix.pointer[:-1]]
        return sums

    def sample(self, length: int, number: int, rng: np.random.Generator) -> Paths:
        """``number`` different walks, each set of them equally likely."""
        total = int(self.counts(length).sum())
        if total < number:
            raise GraphError(
                f"data: expected at least {number} message paths of length {length}, got {total}. "
                f"Pass paths={total} or fewer, or a larger graph."
            )
        return self._distinct(self.counts(length), length, number, rng, self._up_to(length))

    def _distinct(
        self, ends: Ids, length: int, number: int, rng: np.random.Generator, counts: list[Ids]
    ) -> Paths:
        kept: dict[tuple[int, ...], None] = {}
        while len(kept) < number:
            # throwing out what was drawn before is drawing without replacement
            drawn = self._walk(_choose(ends, number, rng), length, rng, counts)
            kept |= dict.fromkeys(map(tuple, drawn.tolist()))
        return self._paths(np.array(list(kept)[:number], dtype=np.int64))

    def sample_from(self, starts: Ids, length: int, rng: np.random.Generator) -> Paths:
        """One uniform walk from each start that has any."""
        starts = starts[self.counts(length)[starts] > 0]
        return self._paths(self._walk(starts, length, rng, self._up_to(length)))

    def sample_few(self, length: int, rng: np.random.Generator) -> Paths:
        """A batch of uniform walks, drawn with replacement."""
        starts = _choose(self.counts(length), _BATCH, rng)
        return self._paths(self._walk(starts, length, rng, self._up_to(length)))

    def _walk(self, starts: Ids, length: int, rng: np.random.Generator, counts: list[Ids]) -> Ids:
        """Start and indices of entries; with k steps to go, in proportion to ``counts[k]``."""
        # entries rather than nodes, so that double edges are two walks
        pointer, here = self.matrix.pointer, starts
        steps = [starts]
        for left in range(length - 1, -1, -1):
            running = np.concatenate([[0], np.cumsum(counts[left][self.matrix.columns])])
            low, high = running[pointer[here]], running[pointer[here + 1]]
            entry = np.searchsorted(running, rng.integers(low, high), side="right") - 1
            steps.append(entry)
            here = self.matrix.columns[entry].astype(np.int64)
        return np.stack(steps, axis=1)

    def _paths(self, steps: Ids) -> Paths:
        assert self.matrix.weights is not None
        nodes = self.matrix.columns[steps[:, 1:]].astype(np.int64)
        scale = self.matrix.weights[steps[:, 1:]].prod(axis=1)
        return Paths(np.concatenate([steps[:, :1], nodes], axis=1), scale)

    def number_between(self, end: int, start: int, length: int) -> int:
        """How many paths of this length lead from ``start`` to ``end``."""
        nodes, counts = np.array([start]), np.array([1])
        for _ in range(length - 1):  # who can reach `start` in so many steps, in how many ways
            which, entry = self.T._spread(nodes)
            reached, index = np.unique(self.T.matrix.columns[entry], return_inverse=True)
            sums = np.zeros(reached.size, dtype=np.int64)
            np.add.at(sums, index, counts[which])
            nodes, counts = reached.astype(np.int64), sums
        row = self.matrix.columns[self.matrix.pointer[end] : self.matrix.pointer[end + 1]]
        at = np.searchsorted(nodes, row).clip(max=nodes.size - 1)
        return int(counts[at[nodes[at] == row]].sum())

    def between(
        self, end: int, start: int, length: int, most: int, rng: np.random.Generator
    ) -> Paths:
        """All paths of this length from ``start`` to ``end``, or ``most`` of them at random."""
        only = np.zeros(self.num_nodes, dtype=np.int64)
        only[start] = 1
        counts = [only]
        for _ in range(length):
            counts.append(self._before(counts[-1]))
        ends = np.zeros_like(only)
        ends[end] = counts[length][end]
        return self._distinct(ends, length, min(most, int(ends[end])), rng, counts)

    def _spread(self, nodes: Ids) -> tuple[Ids, Ids]:
        """All entries in the rows of these nodes: which node, and where."""
        first = self.matrix.pointer[nodes]
        width = self.matrix.pointer[nodes + 1] - first
        which = np.repeat(np.arange(nodes.size), width)
        before = np.cumsum(width) - width
        return which, np.arange(which.size) + (first - before)[which]


def between_pairs(walks: Walks, length: int, number: int, rng: np.random.Generator) -> Paths:
    """The paper's sample: all paths between random pairs of nodes until there are ``number``.

    A pair is uniform among the pairs that have a path: the ends of a uniform path, kept with
    probability one over the number of paths between them.

    Args:
        walks: over the operator.
        length: of the paths.
        number: of paths.
        rng: of the pairs.

    Returns:
        The paths, pair by pair.
    """
    pairs: dict[tuple[int, int], Paths] = {}
    total = 0
    while total < number:  # it ends: all pairs together have all paths
        few = walks.sample_few(length, rng)
        for i, (end, start) in enumerate(few.nodes[:, [0, -1]].tolist()):
            if total >= number or (end, start) in pairs:
                continue
            count = walks.number_between(end, start, length)
            if rng.random() * count < 1.0:
                paths = few[i : i + 1]
                if count > 1:
                    paths = walks.between(end, start, length, number, rng)
                pairs[end, start] = paths
                total += len(paths)
    nodes = np.concatenate([paths.nodes for paths in pairs.values()])[:number]
    return Paths(nodes, np.concatenate([paths.scale for paths in pairs.values()])[:number])


def _choose(counts: Ids, number: int, rng: np.random.Generator) -> Ids:
    """Nodes drawn in proportion to their counts."""
    running = np.cumsum(counts)
    return np.searchsorted(running, rng.integers(running[-1], size=number), side="right")

"""Operators of graphs that are neither sparse nor dense, as dense blocks and a sparse rest.

A dense product computes a multiplication about six times as fast as a sparse one, so it loses on a
matrix that is 12 % full. But degrees are uneven: with the nodes in order of degree, most entries
of such a matrix lie in one corner that is far fuller than that, and the rest is nearly empty.
:class:`Blocks` multiplies the corner's rows as dense blocks and the rest as a sparse matrix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from virgo.experiments.tasks.fused import Constant, csr

#: Multiplications of a dense product in the time of one of a sparse product, at a width of 256
#: (``benchmarks/ddi_step.py`` measures it). A piece that is fuller than one in this many is dense.
ADVANTAGE = 6
#: Rows of a block, and columns by which its width is chosen: enough for a product at full speed.
ROWS, COLUMNS = 128, 64
#: Graphs below this share of nonzeros have no corner worth looking for.
MIN_DENSITY = 0.01


class Blocks:
    """A matrix of ``shape``: of every block of rows the leading columns dense, the rest sparse.

    Args:
        row: of the nonzeros, which may repeat.
        col: of the nonzeros.
        value: of the nonzeros.
        shape: rows and columns.
        advantage: how full a piece must be to be dense, as one in so many.
    """

    def __init__(
        self,
        row: Tensor,
        col: Tensor,
        value: Tensor,
        shape: tuple[int, int],
        advantage: float = ADVANTAGE,
    ) -> None:
        self.shape = shape
        widths = _widths(row, col, shape, advantage)
        dense = col < widths[row // ROWS]
        self.rest = csr(row[~dense], col[~dense], value[~dense], shape)
        order = torch.argsort(row[dense])
        row, col, value = (kept[dense][order] for kept in (row, col, value))
        begins = torch.arange(0, shape[0] + ROWS, ROWS)
        bounds = torch.searchsorted(row, begins).tolist()
        self.blocks: list[tuple[int, Tensor]] = []
        for number, width in enumerate(widths.tolist()):
            if width:
                begin, mine = number * ROWS, slice(bounds[number], bounds[number + 1])
                block = torch.zeros(min(ROWS, shape[0] - begin), width)
                at = (row[mine] - begin, col[mine])
                self.blocks.append((begin, block.index_put_(at, value[mine], accumulate=True)))

    @property
    def work(self) -> float:
        """Multiplications with a column, in units of a sparse product's."""
        area = sum(block.numel() for _, block in self.blocks)
        return self.rest.values().numel() + area / ADVANTAGE

    def __matmul__(self, other: Tensor) -> Tensor:
        if self.rest.values().numel():
            out = self.rest @ other
        else:
            out = other.new_zeros(self.shape[0], other.size(1))
        for begin, block in self.blocks:
            out[begin : begin + block.size(0)].addmm_(block, other[: block.size(1)])
        return out


def _widths(row: Tensor, col: Tensor, shape: tuple[int, int], advantage: float) -> Tensor:
    """Leading columns of each block of rows whose dense product saves most."""
    across, down = -(-shape[1] // COLUMNS), -(-shape[0] // ROWS)
    place = row // ROWS * across + col // COLUMNS
    entries = torch.bincount(place, minlength=down * across).view(down, across)
    heights = (shape[0] - torch.arange(down) * ROWS).clamp(max=ROWS)
    spans = (shape[1] - torch.arange(across) * COLUMNS).clamp(max=COLUMNS)
    saved = (entries - heights[:, None] * spans / advantage).cumsum(1)
    best, at = functional.pad(saved, (1, 0)).max(1)  # in front: no column at all
    return torch.where(best > 0, at * COLUMNS, 0).clamp(max=shape[1])


class Blocked(Constant):
    """A constant matrix as :class:`Blocks`, and its transpose."""

    def __init__(self, matrix: Any, transposed: Any) -> None:
        super().__init__(matrix, transposed)

    @property
    def work(self) -> float:
        """Multiplications with a column, in units of a sparse product's."""
        blocks: Any = self.matrix
        return float(blocks.work)


def by_degree(edge_index: Tensor, num_nodes: int) -> Tensor | None:
    """Nodes in order of falling degree where that may gather a graph's edges in a corner.

    None for graphs that are too sparse to have one.
    """
    if edge_index.size(1) < MIN_DENSITY * num_nodes**2:
        return None
    degree = torch.bincount(edge_index.reshape(-1), minlength=num_nodes)
    return torch.argsort(degree, descending=True, stable=True)


def constant(
    row: Tensor, col: Tensor, value: Tensor, shape: tuple[int, int], form: str = "auto"
) -> Constant:
    """A matrix in the form that is cheapest to multiply with.

    Args:
        row: of the nonzeros, in any order; repeated ones are summed.
        col: of the nonzeros.
        value: of the nonzeros.
        shape: rows and columns.
        form: ``"auto"`` by density, or ``"sparse"``, ``"dense"``, ``"blocked"``.
    """
    if form == "dense":
        return Constant.dense(csr(row, col, value, shape).to_dense())
    if form == "sparse" or (form == "auto" and row.numel() < MIN_DENSITY * shape[0] * shape[1]):
        return Constant.sparse(row, col, value, shape)
    blocks = Blocks(row, col, value, shape)
    if form == "auto" and not blocks.blocks:
        return Constant.sparse(row, col, value, shape)
    return Blocked(blocks, Blocks(col, row, value, (shape[1], shape[0])))

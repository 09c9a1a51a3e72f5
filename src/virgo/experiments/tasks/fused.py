"""ReLU and dropout in one pass over memory, products with constant matrices, CSR by arithmetic.

PyTorch draws dropout masks on the CPU from one serial generator, which takes forty times as long as
the rest of this operation and most of a small network's epoch. Here element ``i`` is kept or
dropped by a hash of ``i`` and two random words, so the loop has no state and can be vectorised.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from virgo.devices import has_csr, moved

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.uint32]
#: All that fast arithmetic may do but take it that every number is finite: a run that diverges
#: has to show it.
compiled_loop = numba.njit(
    cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz", "arcp", "afn"}
)


@compiled_loop
def _forward(
    x: Floats,
    out: Floats,
    word: np.uint32,
    other: np.uint32,
    threshold: np.uint32,
    scale: np.float32,
) -> None:
    # Two multiply-and-shift rounds, whose constants come from a search for low bias ("lowbias32"),
    # with the second word between them: two epochs' masks share no permutation.
    for i in range(x.size):
        z = np.uint32(i) + word
        z = np.uint32((z ^ (z >> np.uint32(16))) * np.uint32(0x7FEB352D)) ^ other
        z = np.uint32((z ^ (z >> np.uint32(15))) * np.uint32(0x846CA68B))
        z = np.uint32(z ^ (z >> np.uint32(16)))
        value = max(x[i], np.float32(0))
        out[i] = value * scale if z >= threshold else np.float32(0)


@compiled_loop
def _backward(grad: Floats, out: Floats, result: Floats, scale: np.float32) -> None:
    for i in range(grad.size):
        result[i] = grad[i] * scale if out[i] > 0 else np.float32(0)


class _ReluDropout(torch.autograd.Function):
    """Keeps only its output: where that is positive, the gradient passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, word: np.uint32, other: np.uint32) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        ctx.scale = np.float32(1 / (1 - p))
        threshold = np.uint32(min(round(p * 2**32), 2**32 - 1))
        flat = x.detach().numpy().reshape(-1), out.numpy().reshape(-1)
        _forward(*flat, word, other, threshold, ctx.scale)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (out,) = ctx.saved_tensors
        grad = grads[0].contiguous()
        result = torch.empty_like(grad)
        flat = [array.numpy().reshape(-1) for array in (grad, out, result)]
        _backward(flat[0], flat[1], flat[2], ctx.scale)
        return result, None, None, None


@compiled_loop
def _aggregate(
    pointer: Ids, column: Ids, value: Floats, x: Floats, start: Floats, out: Floats, relu: bool
) -> None:
    # A row of the result stays in the first cache until it is done. Four edges at a time, as every
    # pass over the row reads and writes it; indices are unsigned, as numba would otherwise look
    # whether one counts from the end.
    edge, repeated = pointer[0], start.shape[0] == 1
    for row in range(np.uint64(out.shape[0])):
        total, first = out[row], start[np.uint64(0) if repeated else row]
        stop = pointer[row + np.uint64(1)]
        for i in range(total.size):
            total[i] = first[i]
        while edge + np.uint32(4) <= stop:
            a, b = x[column[edge]], x[column[edge + np.uint32(1)]]
            c, d = x[column[edge + np.uint32(2)]], x[column[edge + np.uint32(3)]]
            p, q = value[edge], value[edge + np.uint32(1)]
            r, s = value[edge + np.uint32(2)], value[edge + np.uint32(3)]
            for i in range(total.size):
                total[i] += p * a[i] + q * b[i] + r * c[i] + s * d[i]
            edge += np.uint32(4)
        while edge < stop:
            a, p = x[column[edge]], value[edge]
            for i in range(total.size):
                total[i] += p * a[i]
            edge += np.uint32(1)
        if relu:
            for i in range(total.size):
                total[i] = max(total[i], np.float32(0))


class Kernels:
    """The one switch of the compiled loops: off, or elsewhere than on the CPU, PyTorch computes.

    The results are the same but for rounding, dropout masks included.
    """

    enabled = True

    @classmethod
    def fit(cls, x: Tensor) -> bool:
        """Whether the loops are for such a tensor."""
        return cls.enabled and x.device.type == "cpu" and x.dtype == torch.float32

    @classmethod
    @contextmanager
    def off(cls) -> Iterator[None]:
        """Inside, PyTorch computes what the loops would."""
        cls.enabled = False
        try:
            yield
        finally:
            cls.enabled = True


def relu_dropout(x: Tensor, p: float, rng: np.random.Generator) -> Tensor:
    """``dropout(relu(x), p)`` with two words drawn from ``rng``, the same mask on every device."""
    word, other = rng.integers(2**32, size=2, dtype=np.uint32)
    if Kernels.fit(x):
        result: Tensor = _ReluDropout.apply(x, p, word, other)  # type: ignore[no-untyped-call]
        return result
    kept = kept_mask(x.numel(), p, int(word), int(other), x.device).view(x.shape)
    return (x.relu() * (1 / (1 - p))).masked_fill(~kept, 0.0)


def kept_mask(size: int, p: float, word: int, other: int, device: torch.device) -> Tensor:
    """Which elements the loop above keeps, by PyTorch's arithmetic in signed 32-bit integers.

    Args:
        size: the number of elements.
        p: probability of a drop.
        word: the first random word.
        other: the second.
        device: of the mask.

    Returns:
        True where an element is kept.
    """
    z = torch.arange(size, dtype=torch.int32, device=device).add_(_signed(word))
    z ^= (z >> 16) & 0xFFFF  # a shift of a signed number repeats its sign
    z = z.mul_(_signed(0x7FEB352D)).bitwise_xor_(_signed(other))
    z ^= (z >> 15) & 0x1FFFF
    z = z.mul_(_signed(0x846CA68B))
    z ^= (z >> 16) & 0xFFFF
    threshold = min(round(p * 2**32), 2**32 - 1)
    top = 1 << 31  # flipping the highest bit orders signed numbers as unsigned ones
    return z.bitwise_xor_(_signed(top)) >= _signed(threshold ^ top)


def _signed(word: int) -> int:
    """The signed 32-bit integer of the same bits."""
    return word - (1 << 32) if word >= 1 << 31 else word


class Coordinates(NamedTuple):
    """A sparse matrix as coordinates, for devices on which PyTorch multiplies no CSR matrix."""

    row: Tensor
    col: Tensor
    value: Tensor
    shape: tuple[int, int]

    @classmethod
    def of(cls, matrix: Tensor, device: torch.device) -> Coordinates:
        """The entries of a CSR matrix on another device."""
        pointer = matrix.crow_indices().long()
        row = torch.repeat_interleave(torch.arange(matrix.size(0)), pointer.diff())
        parts = (row, matrix.col_indices().long(), matrix.values())
        row, col, value = (moved(part, device) for part in parts)
        return cls(row, col, value, (matrix.size(0), matrix.size(1)))

    def __matmul__(self, other: Tensor) -> Tensor:
        out = other.new_zeros(self.shape[0], other.size(1))
        return out.index_add_(0, self.row, self.value[:, None] * other[self.col])


Matrix = Tensor | Coordinates


def put_matrix(matrix: Tensor, device: torch.device) -> Matrix:
    """A dense or CSR matrix on a device, in a form that can be multiplied with there."""
    if matrix.layout == torch.strided or matrix.device == device:
        return moved(matrix, device)
    if not has_csr(device):
        return Coordinates.of(matrix, device)
    # part by part: PyTorch copies a sparse matrix from unpinned memory and waits
    parts = (matrix.crow_indices(), matrix.col_indices(), matrix.values())
    pointer, col, value = (moved(part, device) for part in parts)
    return _csr_of(pointer, col, value, matrix.shape)


def multiply(matrix: Matrix, other: Tensor) -> Tensor:
    """``matrix @ other`` in the matrix's own precision, whatever autocast says."""
    value = matrix.value if isinstance(matrix, Coordinates) else matrix
    if other.dtype == value.dtype and not torch.is_autocast_enabled(other.device.type):
        return matrix @ other
    with torch.autocast(other.device.type, enabled=False):
        return matrix @ other.to(value.dtype)


class Constant:
    """A constant matrix to multiply with from the left, dense or CSR, and its transpose.

    The transpose is kept because autograd would compute a sparse one in every backward pass.
    """

    def __init__(self, matrix: Matrix, transposed: Matrix) -> None:
        self.matrix, self.transposed = matrix, transposed

    def to(self, device: torch.device) -> Constant:
        """The same on a device."""
        if isinstance(self.matrix, Coordinates) or self.matrix.device == device:
            return self
        assert isinstance(self.transposed, Tensor)
        if self.matrix.layout == torch.strided:
            return Constant.dense(moved(self.matrix, device))
        matrix = put_matrix(self.matrix, device)
        same = self.transposed is self.matrix
        return Constant(matrix, matrix if same else put_matrix(self.transposed, device))

    @classmethod
    def dense(cls, matrix: Tensor) -> Constant:
        """A dense matrix."""
        return cls(matrix, matrix.t())

    @classmethod
    def sparse(cls, row: Tensor, col: Tensor, value: Tensor, shape: tuple[int, int]) -> Constant:
        """A sparse matrix from coordinates in any order; products sum repeated ones."""
        return cls(csr(row, col, value, shape), csr(col, row, value, (shape[1], shape[0])))

    @property
    def work(self) -> float:
        """Multiplications with a column, in units of a sparse product's."""
        if isinstance(self.matrix, Coordinates):
            return self.matrix.value.numel()
        if self.matrix.layout == torch.strided:
            return self.matrix.numel() / DENSE_ADVANTAGE
        return self.matrix.values().numel()

    def __matmul__(self, other: Tensor) -> Tensor:
        return self.propagate(other)

    def propagate(self, x: Tensor, start: Tensor | None = None, *, relu: bool = False) -> Tensor:
        """``start + matrix @ x``, after a ReLU if asked for: a layer's last steps in one pass.

        Args:
            x: what is multiplied.
            start: a bias, or a row for each row of the result.
            relu: whether negative numbers become zero.

        Returns:
            The result, which passes gradients on to ``x`` and ``start``.
        """
        result: Tensor = _Propagate.apply(x, start, self, relu)  # type: ignore[no-untyped-call]
        return result


#: How many multiplications of a dense product take the time of one of a sparse product (measured).
DENSE_ADVANTAGE = 8
#: Columns from which on the loop above is faster than PyTorch's sparse product (measured).
WIDE = 64


class _Propagate(torch.autograd.Function):
    """Keeps its output where there is a ReLU: where that is positive, the gradient passes."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, start: Tensor | None, constant: Constant, relu: bool
    ) -> Tensor:
        out = product(constant.matrix, x, start, relu=relu)
        ctx.constant, ctx.relu = constant, relu
        ctx.is_bias = start is not None and start.dim() == 1
        ctx.save_for_backward(*([out] if relu else []))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = grads[0].contiguous()
        if ctx.relu:
            grad = torch.ops.aten.threshold_backward(grad, *ctx.saved_tensors, 0)
        to_x = product(ctx.constant.transposed, grad) if ctx.needs_input_grad[0] else None
        to_start = grad.sum(0) if ctx.is_bias else grad
        return to_x, to_start if ctx.needs_input_grad[1] else None, None, None


def _has_loop(matrix: Matrix, x: Tensor) -> bool:
    """Whether the loop above is made for a product: wide, in one thread, of fitting parts."""
    return (
        isinstance(matrix, Tensor)
        and matrix.layout == torch.sparse_csr
        and matrix.crow_indices().dtype == torch.int32
        and matrix.dtype == torch.float32
        and Kernels.fit(x)
        and x.shape[0] == matrix.shape[1]
        and x.shape[1] >= WIDE
        and torch.get_num_threads() == 1
    )


def product(
    matrix: Matrix,
    x: Tensor,
    start: Tensor | None = None,
    *,
    relu: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """``start + matrix @ x``, after a ReLU if asked for; no gradient passes.

    Args:
        matrix: a constant one.
        x: what is multiplied.
        start: a bias, or a row for each row of the result.
        relu: whether negative numbers become zero.
        out: contiguous memory for the result.

    Returns:
        The result, ``out`` if it was given.
    """
    if isinstance(matrix, Tensor) and _has_loop(matrix, x):
        out = x.new_empty(matrix.size(0), x.size(1)) if out is None else out
        first = x.new_zeros(x.size(1)) if start is None else start
        _aggregate(
            matrix.crow_indices().numpy().view(np.uint32),
            matrix.col_indices().numpy().view(np.uint32),
            matrix.values().numpy(),
            x.detach().contiguous().numpy(),
            first.detach().contiguous().view(-1, x.size(1)).numpy(),
            out.detach().numpy(),
            relu,
        )
        return out
    result = multiply(matrix, x)
    result = result if start is None else result + start
    result = result.relu() if relu else result
    return result if out is None else out.copy_(result)


def csr(row: Tensor, col: Tensor, value: Tensor, shape: tuple[int, int]) -> Tensor:
    """A CSR matrix from coordinates in any order; products sum repeated ones."""
    order = torch.argsort(row * shape[1] + col)
    pointer = offsets(torch.bincount(row, minlength=shape[0])).int()
    return _csr_of(pointer, col[order].int(), value[order], shape)


def _csr_of(pointer: Tensor, col: Tensor, value: Tensor, shape: tuple[int, ...]) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        return torch.sparse_csr_tensor(pointer, col, value, shape, check_invariants=False)


def offsets(counts: Tensor) -> Tensor:
    """Where each group of items begins in an array of all, and where the last ends.

    Args:
        counts: items per group.

    Returns:
        One more number than groups.

    >>> offsets(torch.tensor([2, 0, 3])).tolist()
    [0, 2, 2, 5]
    """
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def ranges(start: Tensor, length: Tensor) -> Tensor:
    """The numbers ``start[i] .. start[i] + length[i] - 1`` of all ``i``, one after the other.

    Args:
        start: first numbers.
        length: how many numbers each range has.

    Returns:
        All ranges, concatenated.

    >>> ranges(torch.tensor([7, 0, 3]), torch.tensor([2, 0, 3])).tolist()
    [7, 8, 3, 4, 5]
    """
    end = torch.cumsum(length, 0)
    offset = torch.repeat_interleave(start - (end - length), length)
    return offset + torch.arange(offset.numel())


def members(pointer: Tensor, groups: Tensor) -> Tensor:
    """The indices of the items of some groups.

    Args:
        pointer: the :func:`offsets` of all groups.
        groups: which of them.

    Returns:
        The items of one group after the other.

    >>> members(torch.tensor([0, 2, 5, 6]), torch.tensor([2, 0])).tolist()
    [5, 0, 1]
    """
    return ranges(pointer[groups], pointer[groups + 1] - pointer[groups])

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
_jit = numba.njit(cache=True, nogil=True, fastmath=True)


@_jit
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


@_jit
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
        result: Tensor = _Multiply.apply(other, self)  # type: ignore[no-untyped-call]
        return result


#: How many multiplications of a dense product take the time of one of a sparse product (measured).
DENSE_ADVANTAGE = 8


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, other: Tensor, constant: Constant) -> Tensor:
        ctx.constant = constant
        return multiply(constant.matrix, other)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None]:
        return multiply(ctx.constant.transposed, grads[0].contiguous()), None


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

"""Scores of pairs of nodes, and their gradients, a piece of a batch at a time.

PyTorch gathers and multiplies two nodes' embeddings in three passes over memory, and computes the
gradient in a serial one for each end; here each is one pass. A batch goes through the predictor in
pieces that stay in the processor's cache, so memory does not grow with the size of a batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from virgo.errors import GraphError
from virgo.experiments.models.link import LinkModel, Predictor
from virgo.experiments.tasks.fused import Floats, Kernels, compiled_loop, relu_dropout

#: Pairs that go through the predictor at a time.
PIECE = 1 << 14

Ids = npt.NDArray[np.int64]


@compiled_loop
def _gather(h: Floats, left: Ids, right: Ids, out: Floats, begin: int, end: int) -> None:
    for pair in range(begin, end):
        a, b, row = h[left[pair]], h[right[pair]], out[pair]
        for k in range(row.size):
            row[k] = a[k] * b[k]


@compiled_loop
def _scatter(
    grad: Floats, h: Floats, left: Ids, right: Ids, out: Floats, begin: int, end: int
) -> None:
    # Threads have columns of their own, so sums are in the order of pairs whatever their number.
    for pair in range(left.size):
        row = grad[pair, begin:end]
        a, b = h[left[pair], begin:end], h[right[pair], begin:end]
        to_a, to_b = out[left[pair], begin:end], out[right[pair], begin:end]
        for k in range(row.size):
            to_a[k] += row[k] * b[k]
        for k in range(row.size):
            to_b[k] += row[k] * a[k]


class _Products(torch.autograd.Function):
    """Rows ``h[left] * h[right]``; keeps nothing but its arguments."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, left: Ids, right: Ids) -> Tensor:
        h = h.contiguous()
        ctx.save_for_backward(h)
        ctx.ends = left, right
        out = torch.empty(left.size, h.size(1))
        _in_threads(_gather, left.size, h.detach().numpy(), left, right, out.numpy())
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (h,) = ctx.saved_tensors
        out = torch.zeros_like(h)
        arrays = (grads[0].contiguous().numpy(), h.detach().numpy(), *ctx.ends, out.numpy())
        _in_threads(_scatter, h.size(1), *arrays)
        return out, None, None


def products(h: Tensor, pairs: Tensor) -> Tensor:
    """``h[pairs[0]] * h[pairs[1]]``."""
    if not Kernels.fit(h):
        return h[pairs[0]] * h[pairs[1]]
    low, high = pairs.aminmax() if pairs.numel() else (0, -1)
    if low < 0 or high >= h.size(0):  # the loops look up whatever they are told to
        raise GraphError(
            f"pairs: expected nodes from 0 to {h.size(0) - 1:,}, got {int(low)} to {int(high)}."
        )
    left, right = pairs.numpy()
    result: Tensor = _Products.apply(h, left, right)  # type: ignore[no-untyped-call]
    return result


def scores(
    predictor: Predictor, h: Tensor, pairs: Tensor, rng: np.random.Generator | None = None
) -> Tensor:
    """The logits of ``pairs`` (``[2, pairs]``); with dropout if ``rng`` is given."""
    inner, last = predictor.lins[:-1], predictor.lins[-1]
    x = products(h, pairs)
    for lin in inner:
        x = lin(x)
        x = relu_dropout(x, predictor.dropout, rng) if rng and predictor.dropout else x.relu()
    score: Tensor = last(x)
    return score.view(-1)


def piece_of(h: Tensor) -> int:
    """Pairs that go through the predictor at a time: a device works on many at once."""
    return PIECE if h.device.type == "cpu" else PIECE << 4


def backward(
    model: LinkModel, h: Tensor, positive: Tensor, negative: Tensor, rng: np.random.Generator
) -> float:
    """``link_loss(...).backward()``, piece by piece; without gradients if it is not finite.

    Args:
        model: whose predictor scores.
        h: every node's embedding, with its graph.
        positive: ``[2, pairs]`` with a link.
        negative: ``[2, pairs]`` without one.
        rng: of the dropout masks.

    Returns:
        The loss.
    """
    leaf = h.detach().requires_grad_()
    total = 0.0
    for pairs, sign in ((positive, -1.0), (negative, 1.0)):
        for piece in pairs.split(piece_of(h), dim=1):
            score = scores(model.predictor, leaf, piece, rng)
            loss = functional.softplus(sign * score).sum() / pairs.size(1)
            total += loss.item()
            if not np.isfinite(total):
                return total
            loss.backward()
    assert leaf.grad is not None
    h.backward(leaf.grad)
    return total


def _in_threads(kernel: Callable[..., None], size: int, *arrays: npt.NDArray[Any]) -> None:
    """The kernel on equal parts of ``range(size)``, on as many threads as PyTorch has."""
    threads = torch.get_num_threads()
    if threads == 1:
        kernel(*arrays, 0, size)
        return
    bounds = [size * part // threads for part in range(threads + 1)]
    spans = list(pairwise(bounds))
    list(_pool(threads, os.getpid()).map(lambda span: kernel(*arrays, *span), spans))


@lru_cache(maxsize=1)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    # threads do not survive a fork: every process has a pool of its own
    return ThreadPoolExecutor(threads)

"""GAT's attention over a whole graph in one pass over its edges, forward and backward.

PyG's layer makes a dozen arrays with a row per edge; here a node's incoming edges are scored,
normalised and summed while they are in the cache. The numbers are PyG's but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from virgo.experiments.tasks.fused import Constant

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.uint32]
_jit = numba.njit(cache=True, nogil=True, fastmath=True)


@_jit
def _attend(
    pointer: Ids, column: Ids, x: Floats, source: Floats, target: Floats, kept: Floats,
    slope: float, alpha: Floats, out: Floats,
) -> None:  # fmt: skip
    """``alpha``: a softmax per node and head; ``out``: the sum of ``alpha * kept * x``."""
    heads, width = source.shape[1], x.shape[1] // source.shape[1]
    for row in range(np.uint64(out.shape[0])):
        begin, stop = pointer[row], pointer[row + np.uint64(1)]
        total = out[row]
        total[:] = 0
        for head in range(heads):
            largest = np.float32(-np.inf)
            for edge in range(begin, stop):
                score = source[column[edge], head] + target[row, head]
                score = score if score > 0 else np.float32(slope) * score
                alpha[edge, head] = score
                largest = max(largest, score)
            summed = np.float32(0)
            for edge in range(begin, stop):
                alpha[edge, head] = np.exp(alpha[edge, head] - largest)
                summed += alpha[edge, head]
            for edge in range(begin, stop):
                alpha[edge, head] /= summed
        for edge in range(begin, stop):
            sent = x[column[edge]]
            for head in range(heads):
                weight = alpha[edge, head] * kept[edge, head]
                for i in range(head * width, (head + 1) * width):
                    total[i] += weight * sent[i]


@_jit
def _attend_backward(
    pointer: Ids, column: Ids, x: Floats, source: Floats, target: Floats, kept: Floats,
    slope: float, alpha: Floats, grad: Floats, to_x: Floats, to_source: Floats, to_target: Floats,
) -> None:  # fmt: skip
    heads, width = source.shape[1], x.shape[1] // source.shape[1]
    of_alpha = np.empty((pointer[-1] - pointer[0], heads), np.float32)
    for row in range(np.uint64(grad.shape[0])):
        begin, stop = pointer[row], pointer[row + np.uint64(1)]
        arrived = grad[row]
        for edge in range(begin, stop):
            sent, back = x[column[edge]], to_x[column[edge]]
            for head in range(heads):
                keep = kept[edge, head]
                weight = alpha[edge, head] * keep
                product = np.float32(0)
                for i in range(head * width, (head + 1) * width):
                    product += arrived[i] * sent[i]
                    back[i] += weight * arrived[i]
                of_alpha[edge, head] = product * keep
        for head in range(heads):
            mean = np.float32(0)
            for edge in range(begin, stop):
                mean += alpha[edge, head] * of_alpha[edge, head]
            for edge in range(begin, stop):
                of_score = alpha[edge, head] * (of_alpha[edge, head] - mean)
                if source[column[edge], head] + target[row, head] <= 0:
                    of_score *= np.float32(slope)
                to_source[column[edge], head] += of_score
                to_target[row, head] += of_score


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, source: Tensor, target: Tensor, kept: Tensor, graph: Constant,
        slope: float,
    ) -> Tensor:  # fmt: skip
        pointer, column = graph.matrix.crow_indices(), graph.matrix.col_indices()
        alpha = x.new_empty(column.numel(), source.size(1))
        out = torch.empty_like(x)
        ctx.fixed = pointer.numpy().view(np.uint32), column.numpy().view(np.uint32)
        ctx.slope = slope
        ctx.save_for_backward(x, source, target, kept, alpha)
        arrays = (tensor.detach().numpy() for tensor in (x, source, target, kept))
        _attend(*ctx.fixed, *arrays, slope, alpha.numpy(), out.numpy())
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *arrays, alpha = (tensor.detach().numpy() for tensor in ctx.saved_tensors)
        found = [torch.zeros_like(tensor) for tensor in ctx.saved_tensors[:3]]
        grad = grads[0].contiguous().numpy()
        _attend_backward(
            *ctx.fixed, *arrays, ctx.slope, alpha, grad, *(tensor.numpy() for tensor in found)
        )
        return *found, None, None, None


def gat(
    conv: nn.Module, x: Tensor, graph: Constant, drop: Callable[[Tensor, float], Tensor]
) -> Tensor:
    """The output of PyG's ``GATConv`` before its bias.

    Args:
        conv: the layer.
        x: features after its weight.
        graph: the edges, self-loops included; values do not matter.
        drop: dropout, if the model is in training.

    Returns:
        One row per node.
    """
    heads = x.view(-1, conv.heads, conv.out_channels)
    source, target = ((heads * weight).sum(-1) for weight in (conv.att_src, conv.att_dst))
    edges = graph.matrix.col_indices().numel()
    kept = drop(x.new_ones(edges, conv.heads), conv.dropout)
    out = _Attention.apply(x, source, target, kept, graph, conv.negative_slope)
    return out if conv.concat else out.view_as(heads).mean(1)

"""GAT's attention over a whole graph in a few passes over its edges, forward and backward.

PyG's layer makes a dozen arrays with a row of features per edge; here only coefficients have one.
The numbers are PyG's but for rounding. Heads are outside of edges in every loop, so that what the
innermost one works on are a few short rows, and edges come four at a time where a row is summed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from virgo.experiments.tasks.fused import Constant, Floats, Ids, compiled_loop


@compiled_loop
def _scores(
    pointer: Ids, column: Ids, source: Floats, target: Floats, slope: np.float32, out: Floats
) -> None:
    """The leaky scores of each node's edges, less their largest."""
    for head in range(np.uint64(out.shape[0])):
        theirs, scores = source[head], out[head]
        for row in range(np.uint64(target.shape[1])):
            own, largest = target[head, row], np.float32(-np.inf)
            begin, stop = pointer[row], pointer[row + np.uint64(1)]
            for edge in range(begin, stop):
                score = theirs[column[edge]] + own
                score = max(score, slope * score)
                scores[edge] = score
                largest = max(largest, score)
            for edge in range(begin, stop):
                scores[edge] -= largest


@compiled_loop
def _normalise(pointer: Ids, alpha: Floats) -> None:
    """Divide by the sum over each node's edges."""
    for head in range(np.uint64(alpha.shape[0])):
        weight = alpha[head]
        for row in range(np.uint64(pointer.size - 1)):
            begin, stop = pointer[row], pointer[row + np.uint64(1)]
            total = np.float32(0)
            for edge in range(begin, stop):
                total += weight[edge]
            for edge in range(begin, stop):
                weight[edge] /= total


@compiled_loop
def _weighted_sum(pointer: Ids, column: Ids, alpha: Floats, x: Floats, out: Floats) -> None:
    """``out_i = sum_j alpha_ij x_j``, head by head."""
    width, one, four = np.uint64(x.shape[1] // alpha.shape[0]), np.uint32(1), np.uint32(4)
    for row in range(np.uint64(out.shape[0])):
        for head in range(np.uint64(alpha.shape[0])):
            weight, first, last = alpha[head], head * width, (head + np.uint64(1)) * width
            edge, stop = pointer[row], pointer[row + np.uint64(1)]
            total = out[row, first:last]
            total[:] = 0
            while edge + four <= stop:
                f, g, h = edge + one, edge + np.uint32(2), edge + np.uint32(3)
                a, b = x[column[edge], first:last], x[column[f], first:last]
                c, d = x[column[g], first:last], x[column[h], first:last]
                p, q, r, s = weight[edge], weight[f], weight[g], weight[h]
                for i in range(total.size):
                    total[i] += p * a[i] + q * b[i] + r * c[i] + s * d[i]
                edge += four
            while edge < stop:
                a, p = x[column[edge], first:last], weight[edge]
                for i in range(total.size):
                    total[i] += p * a[i]
                edge += one


@compiled_loop
def _products(pointer: Ids, column: Ids, grad: Floats, x: Floats, out: Floats) -> None:
    """``out_ij = grad_i . x_j``, head by head: the gradient of the weights above."""
    width, one, four = np.uint64(x.shape[1] // out.shape[0]), np.uint32(1), np.uint32(4)
    for row in range(np.uint64(grad.shape[0])):
        for head in range(np.uint64(out.shape[0])):
            product, first, last = out[head], head * width, (head + np.uint64(1)) * width
            edge, stop = pointer[row], pointer[row + np.uint64(1)]
            arrived = grad[row, first:last]
            while edge + four <= stop:
                f, g, h = edge + one, edge + np.uint32(2), edge + np.uint32(3)
                a, b = x[column[edge], first:last], x[column[f], first:last]
                c, d = x[column[g], first:last], x[column[h], first:last]
                p = q = r = s = np.float32(0)
                for i in range(arrived.size):
                    p += arrived[i] * a[i]
                    q += arrived[i] * b[i]
                    r += arrived[i] * c[i]
                    s += arrived[i] * d[i]
                product[edge], product[f], product[g], product[h] = p, q, r, s
                edge += four
            while edge < stop:
                a, p = x[column[edge], first:last], np.float32(0)
                for i in range(arrived.size):
                    p += arrived[i] * a[i]
                product[edge] = p
                edge += one


@compiled_loop
def _send_back(pointer: Ids, column: Ids, alpha: Floats, grad: Floats, out: Floats) -> None:
    """``out_j += sum_i alpha_ij grad_i``: the gradient of the features above."""
    width = np.uint64(grad.shape[1] // alpha.shape[0])
    for row in range(np.uint64(grad.shape[0])):
        for head in range(np.uint64(alpha.shape[0])):
            weight, first, last = alpha[head], head * width, (head + np.uint64(1)) * width
            arrived = grad[row, first:last]
            for edge in range(pointer[row], pointer[row + np.uint64(1)]):
                back, scale = out[column[edge], first:last], weight[edge]
                for i in range(arrived.size):
                    back[i] += scale * arrived[i]


@compiled_loop
def _scores_backward(
    pointer: Ids, column: Ids, source: Floats, target: Floats, slope: np.float32, alpha: Floats,
    to_alpha: Floats, to_source: Floats, to_target: Floats,
) -> None:  # fmt: skip
    """Through the softmax and the leaky ReLU."""
    for head in range(np.uint64(alpha.shape[0])):
        theirs, back, weight, arrived = source[head], to_source[head], alpha[head], to_alpha[head]
        for row in range(np.uint64(target.shape[1])):
            begin, stop = pointer[row], pointer[row + np.uint64(1)]
            own, mean, total = target[head, row], np.float32(0), np.float32(0)
            for edge in range(begin, stop):
                mean += weight[edge] * arrived[edge]
            for edge in range(begin, stop):
                of_score = weight[edge] * (arrived[edge] - mean)
                of_score *= np.float32(1) if theirs[column[edge]] + own > 0 else slope
                back[column[edge]] += of_score
                total += of_score
            to_target[head, row] = total


class _Attention(torch.autograd.Function):
    """``out_i = sum_j kept_ij softmax_j(leaky(source_j + target_i)) x_j``."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, source: Tensor, target: Tensor, kept: Tensor | None, graph: Constant,
        slope: np.float32,
    ) -> Tensor:  # fmt: skip
        pointer, column = graph.matrix.crow_indices(), graph.matrix.col_indices()
        ctx.edges = pointer.numpy().view(np.uint32), column.numpy().view(np.uint32)
        ctx.slope = slope
        alpha = x.new_empty(source.size(0), column.numel())
        _scores(*ctx.edges, *_arrays(source, target), slope, alpha.numpy())
        _normalise(ctx.edges[0], alpha.exp_().numpy())
        weight = alpha if kept is None else alpha * kept
        out = torch.empty_like(x)
        _weighted_sum(*ctx.edges, *_arrays(weight, x, out))
        ctx.save_for_backward(x, source, target, kept, alpha, weight)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, source, target, kept, alpha, weight = ctx.saved_tensors
        to_x, to_source, to_target = (torch.zeros_like(tensor) for tensor in (x, source, target))
        grad, to_alpha = grads[0].contiguous(), torch.empty_like(alpha)
        _products(*ctx.edges, *_arrays(grad, x, to_alpha))
        _send_back(*ctx.edges, *_arrays(weight, grad, to_x))
        if kept is not None:
            to_alpha *= kept
        arrays = _arrays(alpha, to_alpha, to_source, to_target)
        _scores_backward(*ctx.edges, *_arrays(source, target), ctx.slope, *arrays)
        return to_x, to_source, to_target, None, None, None


def _arrays(*tensors: Tensor) -> list[Floats]:
    return [tensor.detach().numpy() for tensor in tensors]


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
    # both scores of all heads by one product with a matrix that is zero between heads
    own = torch.eye(conv.heads).repeat_interleave(conv.out_channels, 0)
    parts = [weight.reshape(-1, 1) * own for weight in (conv.att_src, conv.att_dst)]
    source, target = (x @ torch.cat(parts, 1)).t().contiguous().chunk(2)
    edges = graph.matrix.col_indices().numel()
    kept = drop(x.new_ones(conv.heads, edges), conv.dropout) if conv.dropout else None
    out = _Attention.apply(x, source, target, kept, graph, np.float32(conv.negative_slope))
    return out if conv.concat else out.view(-1, conv.heads, conv.out_channels).mean(1)

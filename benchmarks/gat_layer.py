"""GAT's attention over a whole graph in one pass over its edges, forward and backward.

PyG's layer makes a dozen arrays with a row per edge; here a node's incoming edges are scored,
normalised and summed while they are in the cache. The numbers are PyG's but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from virgo.experiments.tasks.fused import Constant, Floats, Ids, compiled_loop


@compiled_loop
def _attend(
    pointer: Ids, column: Ids, x: Floats, source: Floats, target: Floats, kept: Floats,
    slope: np.float32, alpha: Floats, out: Floats,
) -> None:  # fmt: skip
    """``alpha``: a softmax per node and head; ``out``: the sum of ``alpha * kept * x``."""
    heads, width = source.shape[1], x.shape[1] // source.shape[1]
    largest, summed = np.empty(heads, np.float32), np.empty(heads, np.float32)
    for row in range(np.uint64(out.shape[0])):
        begin, stop = pointer[row], pointer[row + np.uint64(1)]
        largest[:], summed[:], out[row] = -np.inf, 0, 0
        for edge in range(begin, stop):
            theirs, weight = source[column[edge]], alpha[edge]
            for head in range(heads):
                score = theirs[head] + target[row, head]
                weight[head] = max(score, slope * score)
                largest[head] = max(largest[head], weight[head])
        for edge in range(begin, stop):
            weight = alpha[edge]
            for head in range(heads):
                weight[head] = np.exp(weight[head] - largest[head])
                summed[head] += weight[head]
        for edge in range(begin, stop):
            sent, weight, keep = x[column[edge]], alpha[edge], kept[edge]
            for head in range(heads):
                weight[head] /= summed[head]
                scale, first = weight[head] * keep[head], head * width
                total, part = out[row, first : first + width], sent[first : first + width]
                for i in range(width):
                    total[i] += scale * part[i]


@compiled_loop
def _attend_backward(
    pointer: Ids, column: Ids, x: Floats, source: Floats, target: Floats, kept: Floats,
    slope: np.float32, alpha: Floats, grad: Floats,
    to_x: Floats, to_source: Floats, to_target: Floats,
) -> None:  # fmt: skip
    heads, width = source.shape[1], x.shape[1] // source.shape[1]
    of_alpha = np.empty(alpha.shape, np.float32)
    mean = np.empty(heads, np.float32)
    for row in range(np.uint64(grad.shape[0])):
        begin, stop = pointer[row], pointer[row + np.uint64(1)]
        mean[:] = 0
        for edge in range(begin, stop):
            sent, back = x[column[edge]], to_x[column[edge]]
            for head in range(heads):
                keep, first = kept[edge, head], head * width
                arrived = grad[row, first : first + width]
                part, scale = sent[first : first + width], alpha[edge, head] * keep
                to_part, product = back[first : first + width], np.float32(0)
                for i in range(width):
                    product += arrived[i] * part[i]
                    to_part[i] += scale * arrived[i]
                of_alpha[edge, head] = product * keep
                mean[head] += scale * product
        for edge in range(begin, stop):
            theirs, back = source[column[edge]], to_source[column[edge]]
            for head in range(heads):
                of_score = alpha[edge, head] * (of_alpha[edge, head] - mean[head])
                if theirs[head] + target[row, head] <= 0:
                    of_score *= slope
                back[head] += of_score
                to_target[row, head] += of_score


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, source: Tensor, target: Tensor, kept: Tensor, graph: Constant,
        slope: np.float32,
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
    # both scores of all heads by one product with a matrix that is zero between heads
    own = torch.eye(conv.heads).repeat_interleave(conv.out_channels, 0)
    parts = [weight.reshape(-1, 1) * own for weight in (conv.att_src, conv.att_dst)]
    source, target = (part.contiguous() for part in (x @ torch.cat(parts, 1)).chunk(2, 1))
    edges = graph.matrix.col_indices().numel()
    kept = drop(x.new_ones(edges, conv.heads), conv.dropout)
    out = _Attention.apply(x, source, target, kept, graph, np.float32(conv.negative_slope))
    return out if conv.concat else out.view(-1, conv.heads, conv.out_channels).mean(1)

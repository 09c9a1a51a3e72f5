"""A plain GCN's pass over a whole graph, forward and backward, in memory that is used again.

Deep networks on graphs of some ten thousand nodes spend half of a step on memory: every layer of
every step asks for five new matrices, which the system has to fill with zeros and the cache has
never seen. Here a step keeps one matrix per layer, its output, and shares three among all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from virgo.experiments.tasks.fused import Constant, product


class Workspace:
    """A graph's matrices, and the memory of one step on it.

    Args:
        operator: the graph's, with which every layer multiplies.
        features: the input.
    """

    def __init__(self, operator: Constant, features: Constant) -> None:
        self.operator, self.features = operator, features
        self._matrices: dict[tuple[str, int], Tensor] = {}

    def matrix(self, name: str, width: int) -> Tensor:
        """The matrix of a name and width, with what was in it."""
        key = name, width
        if key not in self._matrices:
            self._matrices[key] = torch.empty(self.operator.matrix.shape[0], width)
        return self._matrices[key]

    def logits(self, convs: Sequence[nn.Module]) -> Tensor:
        """The output of GCN layers with a ReLU between them, valid until the next call.

        Args:
            convs: PyG's layers.

        Returns:
            One row per node.
        """
        parameters = [p for conv in convs for p in (conv.lin.weight, conv.bias)]
        return _Network.apply(self, *parameters)


class _Network(torch.autograd.Function):
    """All layers at once: ``h_{l+1} = relu(P h_l W_l + b_l)``, the last without ReLU."""

    @staticmethod
    def forward(ctx: Any, space: Workspace, *parameters: Tensor) -> Tensor:
        weights, biases = parameters[::2], parameters[1::2]
        ctx.space = space
        ctx.save_for_backward(*weights)
        h = None
        for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            width = weight.size(0)
            sent = space.matrix("sent", width)
            if h is None:
                product(space.features.matrix, weight.t().contiguous(), out=sent)
            else:
                torch.mm(h, weight.t(), out=sent)
            h = space.matrix(f"output {layer}", width)
            product(space.operator.matrix, sent, bias, relu=layer < len(weights) - 1, out=h)
        return h.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        space, weights = ctx.space, ctx.saved_tensors
        grad = grads[0].contiguous()
        found: list[Tensor | None] = [None]
        for layer in reversed(range(len(weights))):
            width = grad.size(1)
            if layer < len(weights) - 1:
                h = space.matrix(f"output {layer}", width)
                torch.ops.aten.threshold_backward.grad_input(grad, h, 0, grad_input=grad)
            of_bias = grad.sum(0)
            sent = product(space.operator.transposed, grad, out=space.matrix("sent", width))
            if layer:
                h = space.matrix(f"output {layer - 1}", weights[layer].size(1))
                of_weight = sent.t() @ h
                grad = torch.mm(sent, weights[layer], out=space.matrix("grad", h.size(1)))
            else:
                of_weight = product(space.features.transposed, sent).t()
            found[1:1] = of_weight, of_bias
        return tuple(found)

"""GIN (Xu et al., 2019)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import GINConv

from virgo.experiments.models.network import Apply, Network


def mix_gin(conv: Any, apply: Apply) -> Tensor:
    """A GIN layer's output from the product of its one term, whatever follows in its MLP."""
    first, *rest = conv.nn
    x: Tensor = apply("sum", first.weight) + first.bias
    for module in rest:
        x = module(x)
    return x


class GIN(Network):
    r""":math:`H' = \mathrm{ReLU}((A + I) H W_1 + b_1) W_2 + b_2` in every layer (``eps = 0``)."""

    operators = ("sum",)

    @staticmethod
    def make_conv(in_channels: int, out_channels: int, hidden_channels: int) -> GINConv:
        return GINConv(
            nn.Sequential(
                nn.Linear(in_channels, hidden_channels),
                nn.ReLU(),
                nn.Linear(hidden_channels, out_channels),
            )
        )

    def mix(self, conv: Any, apply: Apply) -> Tensor:
        return mix_gin(conv, apply)

"""GCN (Kipf and Welling, 2017)."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric.nn import GCNConv

from virgo.experiments.models.network import Apply, Network


def mix_gcn(conv: Any, apply: Apply) -> Tensor:
    """A GCN layer's output from the product of its one term."""
    out: Tensor = apply("gcn", conv.lin.weight) + conv.bias
    return out


class GCN(Network):
    r""":math:`H' = \hat D^{-1/2} (A + I) \hat D^{-1/2} H W + b` in every layer.

    Its parameters have the names of ``torch_geometric.nn.GCN``'s.
    """

    operators = ("gcn",)

    @staticmethod
    def make_conv(in_channels: int, out_channels: int, hidden_channels: int) -> GCNConv:
        return GCNConv(in_channels, out_channels)

    def mix(self, conv: Any, apply: Apply) -> Tensor:
        return mix_gcn(conv, apply)

"""GraphSAGE with mean aggregation (Hamilton et al., 2017)."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric.nn import SAGEConv

from virgo.experiments.models.network import Apply, Network


class GraphSAGE(Network):
    r""":math:`H' = D^{-1} A H W_l + H W_r + b` in every layer.

    Its parameters have the names of ``torch_geometric.nn.GraphSAGE``'s.
    """

    operators = ("mean", "self")

    @staticmethod
    def make_conv(in_channels: int, out_channels: int, hidden_channels: int) -> SAGEConv:
        return SAGEConv(in_channels, out_channels)

    def mix(self, conv: Any, apply: Apply) -> Tensor:
        neighbours = apply("mean", conv.lin_l.weight) + conv.lin_l.bias
        out: Tensor = neighbours + apply("self", conv.lin_r.weight)
        return out

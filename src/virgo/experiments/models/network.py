"""What the paper's networks share: layers, activations, dropout, and inserted linear layers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.utils import trim_to_layer

from virgo.errors import OptionError
from virgo.experiments.models.convolutions import (
    Apply,
    GCNLayers,
    GINLayers,
    MessageLayers,
    SAGELayers,
)
from virgo.vocabulary import NGNN_TYPES

Config: TypeAlias = Mapping[str, Any]
"""Hyper-parameters by name."""


class Network(nn.Module, MessageLayers):
    r"""Message-passing layers with ReLU and dropout between them.

    ``forward`` runs PyG's own layers; :meth:`combine` computes the same from products
    :math:`P H W` that the caller provides: over sparse features, on the rows that are needed, or
    chunk by chunk.

    Args:
        in_channels: features per node.
        hidden_channels: width of every inner layer.
        num_layers: message-passing layers.
        out_channels: outputs per node.
        dropout: probability, after every activation between layers.
        ngnn_type: which layers get inserted linear layers (NGNN), of :data:`NGNN_TYPES`.
        num_ngnn_layers: linear layers inserted at each place, with a ReLU before each.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int = 64,
        num_layers: int = 2,
        out_channels: int = 2,
        dropout: float = 0.0,
        ngnn_type: str | None = None,
        num_ngnn_layers: int = 0,
    ) -> None:
        super().__init__()
        check_sizes(hidden_channels, num_layers, dropout)
        if ngnn_type is not None and ngnn_type not in NGNN_TYPES:
            raise OptionError(
                f"ngnn_type: expected one of {', '.join(NGNN_TYPES)}, got {ngnn_type!r}. "
                f"Choose one."
            )
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        self.num_layers = num_layers
        self.dropout = dropout
        self.convs = nn.ModuleList(
            self.make_conv(i, o, hidden_channels) for i, o in pairwise(widths)
        )
        #: The linear layers inserted after each layer; most have none.
        self.inserted = nn.ModuleList(
            nn.ModuleList(
                nn.Linear(width, width)
                for _ in range(num_ngnn_layers)
                if ngnn_type and _is_at(ngnn_type, layer, num_layers)
            )
            for layer, width in enumerate(widths[1:])
        )

    def combine(self, layer: int, apply: Apply) -> Tensor:
        """Layer ``layer`` with what is inserted after it, from the products of its terms."""
        return self._insert(layer, self.mix(self.convs[layer], apply))

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        num_sampled_nodes: list[int] | None = None,
        num_sampled_edges: list[int] | None = None,
        edge_weight: Tensor | None = None,
    ) -> Tensor:
        """All layers, on a graph or, with the two lists of PyG's loaders, on a sampled one."""
        weights = () if edge_weight is None else (edge_weight,)
        for layer, conv in enumerate(self.convs):
            if num_sampled_nodes is not None:
                x, edge_index, _ = trim_to_layer(
                    layer, num_sampled_nodes, num_sampled_edges or [], x, edge_index
                )
            x = self._insert(layer, conv(x, edge_index, *weights))
            if layer < self.num_layers - 1:
                x = functional.dropout(x.relu(), self.dropout, self.training)
        return x

    def _insert(self, layer: int, x: Tensor) -> Tensor:
        for linear in self.inserted[layer]:  # type: ignore[attr-defined]
            x = linear(x.relu())
        return x


class GCN(GCNLayers, Network):
    """GCN; its parameters have the names of ``torch_geometric.nn.GCN``'s."""


class GraphSAGE(SAGELayers, Network):
    """GraphSAGE; its parameters have the names of ``torch_geometric.nn.GraphSAGE``'s."""


class GIN(GINLayers, Network):
    """GIN."""


def check_sizes(hidden_channels: int, num_layers: int, dropout: float) -> None:
    """Raise unless widths and depths are positive integers and dropout is a probability."""
    for name, value in (("hidden_channels", hidden_channels), ("num_layers", num_layers)):
        if not isinstance(value, int) or value < 1:
            raise OptionError(f"{name}: expected a whole number of at least 1, got {value!r}.")
    if not 0 <= dropout < 1:
        raise OptionError(f"dropout: expected at least 0 and below 1, got {dropout!r}.")


def _is_at(ngnn_type: str, layer: int, num_layers: int) -> bool:
    last = num_layers - 1
    return {
        "input": layer == 0,
        "hidden": 0 < layer < last,
        "output": layer == last,
        "all": True,
    }[ngnn_type]


def sizes_in(config: Config) -> dict[str, Any]:
    """Those keys of a configuration that size a network of any form."""
    wanted = ("hidden_channels", "num_layers", "dropout")
    return {key: config[key] for key in wanted if key in config}

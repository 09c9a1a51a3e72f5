"""What the paper's networks share: layers, activations, dropout, and inserted linear layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from virgo.errors import OptionError

#: Where NGNN inserts linear layers: after the first, the inner, the last, or every layer.
NGNN_TYPES = ("input", "hidden", "output", "all")

Apply = Callable[[str, Tensor], Tensor]
"""``apply(operator, weight)`` is :math:`P H W^\\top` for an operator named in
:attr:`Network.operators`, computed in whatever way is cheapest for who calls."""


class Network(nn.Module, ABC):
    r"""Message-passing layers with ReLU and dropout between them.

    A layer is a sum of terms :math:`P_t H W_t` and a bias. ``forward`` runs PyG's own layers;
    :meth:`combine` says the same of one layer in terms of products that somebody else computes:
    over sparse features, on the rows that are needed, or chunk by chunk.

    Args:
        in_channels: features of a node.
        hidden_channels: width of every inner layer.
        num_layers: message-passing layers.
        out_channels: outputs of a node.
        dropout: probability, after every activation between layers.
        ngnn_type: which layers get inserted linear layers (NGNN), of :data:`NGNN_TYPES`.
        num_ngnn_layers: how many each, with a ReLU before each.
    """

    #: The operators of a layer's terms: "gcn", "mean", "sum" (with the node itself) or "self".
    operators: tuple[str, ...]

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

    @staticmethod
    @abstractmethod
    def make_conv(in_channels: int, out_channels: int, hidden_channels: int) -> nn.Module:
        """One message-passing layer; ``hidden_channels`` is for one with layers inside it."""

    @abstractmethod
    def mix(self, conv: Any, apply: Apply) -> Tensor:
        """One layer's output from the products of its terms."""

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
                x, edge_index, _ = _trim(
                    layer, num_sampled_nodes, num_sampled_edges or [], x, edge_index
                )
            x = self._insert(layer, conv(x, edge_index, *weights))
            if layer < self.num_layers - 1:
                x = functional.dropout(x.relu(), self.dropout, self.training)
        return x

    def _insert(self, layer: int, x: Tensor) -> Tensor:
        inserted: Any = self.inserted[layer]
        for linear in inserted:
            x = linear(x.relu())
        return x


def check_sizes(hidden_channels: int, num_layers: int, dropout: float) -> None:
    """Refuse widths, depths and probabilities that are none."""
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


def _trim(layer: int, nodes: list[int], edges: list[int], x: Tensor, edge_index: Tensor) -> Any:
    from torch_geometric.utils import trim_to_layer

    return trim_to_layer(layer, nodes, edges, x, edge_index)

"""Networks for whole graphs: message passing, BatchNorm, the mean over nodes, a linear head.

The form that the social networks of the TU collection are classified with; :class:`Pooled` is what
it shares with the molecules' form in :mod:`virgo.experiments.models.molecules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import global_mean_pool

from virgo.experiments.models.convolutions import GCNLayers, GINLayers, MessageLayers
from virgo.experiments.models.network import check_sizes

Convolve = Callable[[int, Tensor], Tensor]
"""``convolve(layer, h)`` is the output of a message-passing layer."""

Drop = Callable[[Tensor, bool], Tensor]
"""``drop(h, relu)`` is dropout, after a ReLU if that is asked for."""


class Pooled(nn.Module):
    r"""Layers with BatchNorm, ReLU and dropout after each, mean pooling and a linear head.

    The last layer has no ReLU, as in OGB's network: :math:`y = W\,\mathrm{mean}_i h_i + b`. A graph
    without nodes has the mean zero.

    Args:
        convs: the message-passing layers.
        hidden_channels: width of what they return.
        out_channels: outputs per graph.
        dropout: probability, after every layer.
    """

    def __init__(
        self, convs: Iterable[nn.Module], hidden_channels: int, out_channels: int, dropout: float
    ) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden_channels) for _ in self.convs)
        self.head = nn.Linear(hidden_channels, out_channels)
        self.num_layers = len(self.convs)
        self.dropout = dropout

    def run(
        self,
        h: Tensor,
        convolve: Convolve,
        batch: Tensor,
        num_graphs: int | None = None,
        drop: Drop | None = None,
    ) -> Tensor:
        """The output of every graph, whoever computes the layers and the dropout masks.

        Args:
            h: features of the nodes, in whatever form ``convolve`` takes them.
            convolve: computes a layer.
            batch: the graph of every node.
            num_graphs: how many there are; the last node's graph is the last if ``None``.
            drop: ReLU and dropout; PyTorch's if ``None``.

        Returns:
            One row per graph.
        """
        drop = drop or self._drop
        for layer, norm in enumerate(self.norms):
            h = drop(norm(convolve(layer, h)), layer < self.num_layers - 1)
        out: Tensor = self.head(global_mean_pool(h, batch, num_graphs))
        return out

    def _drop(self, h: Tensor, relu: bool) -> Tensor:
        return functional.dropout(h.relu() if relu else h, self.dropout, self.training)


class PooledNetwork(Pooled, MessageLayers):
    r"""The TU form.

    As in :class:`~virgo.experiments.models.Network`, ``forward`` runs PyG's own layers and
    :meth:`mix` computes one layer from products :math:`P H W` that the caller provides.

    Args:
        in_channels: features per node.
        hidden_channels: width of every layer.
        num_layers: message-passing layers.
        out_channels: outputs per graph.
        dropout: probability, after every layer.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int = 64,
        num_layers: int = 5,
        out_channels: int = 2,
        dropout: float = 0.0,
    ) -> None:
        check_sizes(hidden_channels, num_layers, dropout)
        widths = [in_channels, *[hidden_channels] * (num_layers - 1)]
        convs = [self.make_conv(width, hidden_channels, hidden_channels) for width in widths]
        super().__init__(convs, hidden_channels, out_channels, dropout)

    def forward(
        self, x: Tensor, edge_index: Tensor, batch: Tensor, num_graphs: int | None = None
    ) -> Tensor:
        """The output of every graph of a PyG batch."""
        return self.run(x, lambda layer, h: self.convs[layer](h, edge_index), batch, num_graphs)


class PooledGCN(GCNLayers, PooledNetwork):
    """GCN with BatchNorm between layers."""


class PooledGIN(GINLayers, PooledNetwork):
    """GIN with BatchNorm between layers and inside them."""

    norm = True


#: The networks by name.
FAMILIES: dict[str, type[PooledNetwork]] = {"gcn": PooledGCN, "gin": PooledGIN}

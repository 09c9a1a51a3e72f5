"""OGB's networks for molecules: atoms and bonds are embedded, a bond joins every message.

The architectures of OGB's own examples for graph property prediction, with OGB's encoders. A
molecule has few kinds of bond (5 types, 6 stereo forms, conjugated or not), so a layer embeds the
sixty kinds and looks bonds up among them, instead of three look-ups and two sums per bond.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from virgo.errors import GraphError
from virgo.experiments.data.ogb_files import ogb
from virgo.experiments.models.network import check_sizes
from virgo.experiments.models.pooled import Drop, Pooled
from virgo.layers import LayerView, Stage, Term, register_layer


class MoleculeConv(nn.Module):
    """What the two layers share: an embedding of every kind of bond.

    Args:
        channels: width of the layer's input and output.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bond_encoder = ogb("graphproppred.mol_encoder").BondEncoder(channels)
        values = [torch.arange(table.num_embeddings) for table in self._tables]
        self.register_buffer("kinds", torch.cartesian_prod(*values), persistent=False)

    @property
    def _tables(self) -> Any:
        return self.bond_encoder.bond_embedding_list

    def kinds_of(self, edge_attr: Tensor) -> Tensor:
        """The number of every bond's kind, from OGB's three integers."""
        sizes = [table.num_embeddings for table in self._tables]
        limit = torch.tensor(sizes, device=edge_attr.device)
        if edge_attr.dim() != 2 or edge_attr.size(1) != len(sizes):
            raise GraphError(
                f"data.edge_attr: expected {len(sizes)} integers per bond, got the shape "
                f"{list(edge_attr.shape)}. Give OGB's bond features."
            )
        if bool(((edge_attr < 0) | (edge_attr >= limit)).any()):
            raise GraphError(
                f"data.edge_attr: expected integers below {sizes}, got up to "
                f"{edge_attr.amax(0).tolist()}. Give OGB's bond features."
            )
        number = torch.zeros_like(edge_attr[:, 0])
        for column, size in enumerate(sizes):
            number = number * size + edge_attr[:, column]
        return number

    def messages(self, x: Tensor, source: Tensor, bonds: Tensor) -> Tensor:
        r""":math:`\mathrm{ReLU}(x_j + e_{ij})` for every edge."""
        embedded: Tensor = self.bond_encoder(self.kinds)
        return (x.index_select(0, source) + embedded.index_select(0, bonds)).relu()


class MoleculeGCNConv(MoleculeConv):
    r"""GCN with bonds.

    .. math:: h_i' = \sum_j \frac{\mathrm{ReLU}(W h_j + b + e_{ij})}{\sqrt{d_i d_j}}
                     + \frac{\mathrm{ReLU}(W h_i + b + r)}{d_i}

    with :math:`d` the degree and one, and a learned :math:`r` in the place of a bond to itself.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.linear = nn.Linear(channels, channels)
        self.root_emb = nn.Embedding(1, channels)

    def forward(self, x: Tensor, edge_index: Tensor, bonds: Tensor) -> Tensor:
        """The layer's output; ``bonds`` as :meth:`kinds_of` numbers them."""
        x = self.linear(x)
        source, target = edge_index
        degree = torch.bincount(source, minlength=x.size(0)).to(x.dtype).view(-1, 1) + 1
        root = degree.rsqrt()
        messages = self.messages(x, source, bonds) * (root[source] * root[target])
        own: Tensor = (x + self.root_emb.weight).relu() / degree
        return own.index_add(0, target, messages)


class MoleculeGINConv(MoleculeConv):
    r"""GIN with bonds: :math:`h_i' = \mathrm{MLP}((1 + \epsilon) h_i + \sum_j m_{ij})`.

    The message :math:`m_{ij}` is :math:`\mathrm{ReLU}(h_j + e_{ij})`, the MLP has one inner layer
    of twice the width with BatchNorm, and :math:`\epsilon` is learned from 0.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.mlp = nn.Sequential(
            nn.Linear(channels, 2 * channels),
            nn.BatchNorm1d(2 * channels),
            nn.ReLU(),
            nn.Linear(2 * channels, channels),
        )
        self.eps = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, edge_index: Tensor, bonds: Tensor) -> Tensor:
        """The layer's output; ``bonds`` as :meth:`kinds_of` numbers them."""
        source, target = edge_index
        own = (1 + self.eps) * x
        out: Tensor = self.mlp(own.index_add(0, target, self.messages(x, source, bonds)))
        return out


# Both follow the nodes and leave the bonds out, as for PyG's GINEConv: what a layer receives is
# not negative, so that without a bond's embedding the ReLU of GIN's messages lets all of it
# through, and that of GCN's, after the weight, is the one ReLU a layer that the gain counts.


@register_layer(MoleculeGCNConv)
def _gcn(layer: MoleculeGCNConv, view: LayerView) -> list[Stage]:
    return [(Term(view.graph.gcn(), "linear.weight"),)]


@register_layer(MoleculeGINConv)
def _gin(layer: MoleculeGINConv, view: LayerView) -> list[Stage]:
    return view.mlp(view.graph.sum(1.0 + float(layer.eps.detach())), "mlp")


class MoleculeNetwork(Pooled):
    """Embedded atoms, layers with bonds, BatchNorm, the mean over atoms, a linear head.

    Args:
        hidden_channels: width of every layer.
        num_layers: message-passing layers.
        out_channels: outputs per molecule.
        dropout: probability, after every layer.
    """

    conv: type[MoleculeConv]

    def __init__(
        self,
        hidden_channels: int = 300,
        num_layers: int = 5,
        out_channels: int = 1,
        dropout: float = 0.0,
    ) -> None:
        check_sizes(hidden_channels, num_layers, dropout)
        convs = [self.conv(hidden_channels) for _ in range(num_layers)]
        super().__init__(convs, hidden_channels, out_channels, dropout)
        self.atom_encoder = ogb("graphproppred.mol_encoder").AtomEncoder(hidden_channels)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor,
        batch: Tensor,
        num_graphs: int | None = None,
        drop: Drop | None = None,
    ) -> Tensor:
        """The output of every molecule of a PyG batch."""
        convs: Any = self.convs
        bonds = convs[0].kinds_of(edge_attr)
        return self.run(
            self.atom_encoder(x),
            lambda layer, h: convs[layer](h, edge_index, bonds),
            batch,
            num_graphs,
            drop,
        )


class MoleculeGCN(MoleculeNetwork):
    """OGB's GCN for molecules."""

    conv = MoleculeGCNConv


class MoleculeGIN(MoleculeNetwork):
    """OGB's GIN for molecules."""

    conv = MoleculeGINConv


#: The networks by name.
FAMILIES: dict[str, type[MoleculeNetwork]] = {"gcn": MoleculeGCN, "gin": MoleculeGIN}

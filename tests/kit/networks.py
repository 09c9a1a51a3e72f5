"""Networks that tests of several rooms build."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import GCNConv, GraphConv, HeteroConv, LEConv, SAGEConv, SGConv

#: Layers that take edge weights as a third argument.
WEIGHTED = (GCNConv, SGConv, GraphConv, LEConv)


class Stack(nn.Module):
    """Layers in a row with activations between them; edge weights go to layers that take them.

    Args:
        convs: message-passing layers.
        norms: one for each layer but the last, before its activation.
        activation: between layers.
        residual: add a layer's input to its output where the shapes agree.
        extra: further arguments of every layer, after ``edge_index``.
    """

    def __init__(
        self,
        convs: Sequence[nn.Module],
        *,
        norms: Sequence[nn.Module] = (),
        activation: Callable[[Tensor], Tensor] = torch.relu,
        residual: bool = False,
        extra: tuple[Any, ...] = (),
    ) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)
        self.norms = nn.ModuleList(norms)
        self.activation, self.residual, self.extra = activation, residual, extra

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        for index, conv in enumerate(self.convs):
            takes = edge_weight is not None and isinstance(conv, WEIGHTED)
            new = conv(x, edge_index, *((edge_weight,) if takes else self.extra))
            if index < len(self.convs) - 1:
                new = self.activation(self.norms[index](new) if len(self.norms) else new)
                if self.residual and new.shape == x.shape:
                    new = new + x
            x = new
        return x


def hetero() -> HeteroData:
    """A small graph of papers and authors with three relations."""
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["paper"].x = torch.rand(30, 12, generator=generator)
    data["author"].x = torch.rand(20, 9, generator=generator)
    for source, relation, target in (
        ("paper", "cites", "paper"),
        ("author", "writes", "paper"),
        ("paper", "written_by", "author"),
    ):
        sizes = [data[kind].num_nodes for kind in (source, target)]
        data[source, relation, target].edge_index = torch.stack(
            [torch.randint(size, (90,), generator=generator) for size in sizes]
        )
    return data


class HeteroNet(nn.Module):
    """A lazy GraphSAGE layer per relation, ``depth`` times."""

    def __init__(self, data: HeteroData, depth: int, width: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            HeteroConv({kind: SAGEConv((-1, -1), width) for kind in data.edge_types})
            for _ in range(depth)
        )

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: Any) -> dict[str, Tensor]:
        for index, conv in enumerate(self.convs):
            x_dict = conv(x_dict, edge_index_dict)
            if index < len(self.convs) - 1:
                x_dict = {key: x.relu() for key, x in x_dict.items()}
        return x_dict

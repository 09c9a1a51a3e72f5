"""Small generated inputs for the zoo, and the registry that its networks are entered in.

Every draw comes from a generator seeded by the caller: the same seed gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData

import virgo

Forward = Callable[[nn.Module, Any], Any]
Built = tuple[nn.Module, Any, Forward | None]

NODES, FEATURES, CLASSES, WIDTH = 200, 64, 5, 32
EDGE_FEATURES, RELATIONS = 8, 4


@dataclass(frozen=True)
class Network:
    """A network of the zoo.

    Attributes:
        name: Unique; what ``--only`` matches.
        kind: ``"conv"``, ``"model"``, ``"hetero"`` or ``"user"``.
        definition: Builds ``(model, data)`` or ``(model, data, forward)`` from a seed.
    """

    name: str
    kind: str
    definition: Callable[[int], Any]

    def build(self, seed: int) -> Built:
        """The model with PyTorch's and PyG's own weights, its data, and how to call it if odd."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model, data, *forward = self.definition(seed)
        return model, data, forward[0] if forward else None


NETWORKS: dict[str, Network] = {}


def add(name: str, kind: str, definition: Callable[[int], Any]) -> None:
    """Enter a network; names are unique."""
    assert name not in NETWORKS, name
    NETWORKS[name] = Network(name, kind, definition)


def network(kind: str, name: str) -> Callable[[Callable[[int], Any]], Callable[[int], Any]]:
    """:func:`add` as a decorator."""

    def register(definition: Callable[[int], Any]) -> Callable[[int], Any]:
        add(name, kind, definition)
        return definition

    return register


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed + 1000)


def papers(seed: int, *extras: str, nodes: int = NODES) -> Data:
    """A citation graph with bag-of-words features, and the named extra attributes."""
    data = virgo.data.citation_like(
        num_nodes=nodes,
        num_classes=CLASSES,
        num_features=FEATURES,
        words_per_node=9,
        train_per_class=20,
        num_val=40,
        num_test=40,
        seed=seed,
    )
    return with_extras(data, generator(seed), *extras)


def dense(seed: int, *extras: str, features: int = FEATURES) -> Data:
    """A random graph of mean degree 6 with Gaussian features, classes and a training mask."""
    draw = generator(seed)
    half = torch.randint(NODES, (2, 3 * NODES), generator=draw)
    half = half[:, half[0] != half[1]]
    ring = torch.stack([torch.arange(NODES), torch.arange(1, NODES + 1) % NODES])
    edges = torch.cat([half, half.flip(0), ring, ring.flip(0)], 1)
    data = Data(
        x=torch.randn(NODES, features, generator=draw),
        edge_index=torch.unique(edges, dim=1),
        y=torch.randint(CLASSES, (NODES,), generator=draw),
        train_mask=torch.rand(NODES, generator=draw) < 0.5,
    )
    return with_extras(data, draw, *extras)


def with_extras(data: Data, draw: torch.Generator, *extras: str) -> Data:
    """Attach edge weights, edge features, relations, positions and the like."""
    edges, nodes = data.num_edges, data.num_nodes
    makers: dict[str, Callable[[], Tensor]] = {
        "edge_weight": lambda: 0.5 + torch.rand(edges, generator=draw),
        "edge_attr": lambda: torch.randn(edges, EDGE_FEATURES, generator=draw),
        "edge_type": lambda: torch.randint(RELATIONS, (edges,), generator=draw),
        "node_type": lambda: torch.randint(3, (nodes,), generator=draw),
        "pos": lambda: torch.randn(nodes, 3, generator=draw),
        "normal": lambda: nn.functional.normalize(torch.randn(nodes, 3, generator=draw)),
        "edge_label_index": lambda: torch.randint(nodes, (2, 128), generator=draw),
        "edge_label": lambda: (torch.rand(128, generator=draw) < 0.5).float(),
    }
    for extra in extras:
        data[extra] = makers[extra]()
    return data


def cloud(seed: int, *extras: str, neighbours: int = 8) -> Data:
    """A point cloud: positions in space, edges to the nearest points, features of the points."""
    draw = generator(seed)
    pos = torch.randn(NODES, 3, generator=draw)
    nearest = torch.cdist(pos, pos).topk(neighbours + 1, largest=False).indices[:, 1:]
    target = torch.arange(NODES).repeat_interleave(neighbours)
    data = Data(
        x=torch.randn(NODES, 16, generator=draw),
        pos=pos,
        edge_index=torch.stack([nearest.flatten(), target]),
        y=torch.randint(CLASSES, (NODES,), generator=draw),
        train_mask=torch.rand(NODES, generator=draw) < 0.5,
    )
    return with_extras(data, draw, *extras)


def molecules(seed: int, *, count: int = 24, regression: bool = False) -> list[Data]:
    """Small ring-like graphs with dense atom and bond features, atomic numbers and positions."""
    draw = generator(seed)
    graphs = []
    for _ in range(count):
        n = int(torch.randint(6, 14, (1,), generator=draw))
        ring = torch.stack([torch.arange(n), torch.arange(1, n + 1) % n])
        chord = torch.randint(n, (2, 2), generator=draw)
        edges = torch.cat([ring, ring.flip(0), chord, chord.flip(0)], 1)
        edges = torch.unique(edges[:, edges[0] != edges[1]], dim=1)
        y = (
            torch.randn(1, 1, generator=draw)
            if regression
            else torch.randint(2, (1,), generator=draw)
        )
        graphs.append(
            Data(
                x=torch.randn(n, 16, generator=draw),
                z=torch.randint(1, 10, (n,), generator=draw),
                pos=1.5 * torch.randn(n, 3, generator=draw),
                edge_index=edges,
                edge_attr=torch.randn(edges.size(1), EDGE_FEATURES, generator=draw),
                y=y,
            )
        )
    return graphs


def batch(seed: int, **options: Any) -> Batch:
    """The molecules in one batch."""
    return Batch.from_data_list(molecules(seed, **options))


def library(seed: int, *, same_width: bool = False) -> HeteroData:
    """Papers, authors and venues; classes of the papers in ``data["paper"].y``."""
    draw = generator(seed)
    sizes = {"paper": 120, "author": 80, "venue": 12}
    widths = dict.fromkeys(sizes, 32) if same_width else {"paper": 48, "author": 24, "venue": 16}
    data = HeteroData()
    for kind, size in sizes.items():
        data[kind].x = torch.randn(size, widths[kind], generator=draw)
    data["paper"].y = torch.randint(CLASSES, (sizes["paper"],), generator=draw)
    data["paper"].train_mask = torch.rand(sizes["paper"], generator=draw) < 0.6
    for source, relation, target, number in (
        ("paper", "cites", "paper", 360),
        ("author", "writes", "paper", 300),
        ("paper", "rev_writes", "author", 300),
        ("paper", "appears_in", "venue", 120),
        ("venue", "rev_appears_in", "paper", 120),
    ):
        ends = [torch.randint(sizes[kind], (number,), generator=draw) for kind in (source, target)]
        data[source, relation, target].edge_index = torch.stack(ends)
    return data

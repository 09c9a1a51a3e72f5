"""OGB's dataset classes without a network. Importing this imports ogb, which is an extra."""

from __future__ import annotations

from typing import Any

from virgo.experiments.data.loaders import Offline
from virgo.experiments.data.ogb_files import ogb

_Nodes: Any = ogb("nodeproppred").PygNodePropPredDataset
_Links: Any = ogb("linkproppred").PygLinkPropPredDataset
_Graphs: Any = ogb("graphproppred").PygGraphPropPredDataset


class OfflineNodes(Offline, _Nodes):  # type: ignore[misc]  # ogb is untyped
    """ogbn-arxiv, ogbn-proteins, ogbn-products."""


class OfflineLinks(Offline, _Links):  # type: ignore[misc]
    """ogbl-ddi, ogbl-collab, ogbl-citation2, ogbl-ppa."""


class OfflineGraphs(Offline, _Graphs):  # type: ignore[misc]
    """ogbg-molhiv, ogbg-molpcba."""

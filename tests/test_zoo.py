"""A part of ``benchmarks/zoo.py``: networks from outside the package, one seed each.

Every kind of thing that a model can be made of is here once: attention, relations, pooling, norms,
residual streams, edge features, dense adjacencies, loaders, lazy layers, wrappers. The benchmark
runs all of them on three seeds.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import zoo  # noqa: E402

NETWORKS = [
    "GCNConv",
    "SAGEConv max",
    "GINConv",
    "GATConv 4 heads",
    "GATv2Conv edge_dim",
    "TransformerConv",
    "RGCNConv bases",
    "RGCNConv blocks",
    "FastRGCNConv",
    "ChebConv",
    "ARMAConv 3 stacks 2 layers",
    "GCN2Conv",
    "DenseGINConv",
    "EdgeConv",
    "NNConv",
    "PNAConv",
    "GPSConv",
    "FiLMConv",
    "GatedGraphConv",
    "HGT",
    "HeteroConv SAGE",
    "to_hetero SAGE lazy",
    "GCN batch norm",
    "GCN jk cat",
    "GCN tanh",
    "GCN 8",
    "GraphUNet",
    "LightGCN",
    "SignedGCN",
    "DeepGCN checkpointed",
    "RevGNN",
    "residual 16",
    "pre-norm residual 12",
    "TopKPooling",
    "GIN graph classification DataLoader",
    "link prediction network",
    "molecules regression",
    "APPNP",
    "MetaLayer",
]


@pytest.mark.parametrize("name", NETWORKS)
def test_served_and_never_worse(name: str) -> None:
    record = zoo.run_named(name, (0,))
    assert record.status == "served", record.error
    assert not record.worse, (record.before, record.after)
    assert record.broken == []

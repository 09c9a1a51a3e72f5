"""A part of ``benchmarks/zoo.py``: networks from outside the package, one seed each.

Every kind of thing that a model can be made of is here once: attention, relations, pooling, norms,
residual streams, edge features, dense adjacencies, loaders, lazy layers, wrappers. The benchmark
runs all of them on three seeds.
"""

from __future__ import annotations

import pytest
import zoo

NETWORKS = [
    "GCNConv",
    "SAGEConv max",
    "GINConv",
    "GATConv 4 heads",
    "TransformerConv",
    "RGCNConv bases",
    "ARMAConv 3 stacks 2 layers",
    "GCN2Conv",
    "DenseGINConv",
    "EdgeConv",
    "PNAConv",
    "GPSConv",
    "HGT",
    "to_hetero SAGE lazy",
    "GCN batch norm",
    "GCN 8",
    "GraphUNet",
    "LightGCN",
    "DeepGCN checkpointed",
    "RevGNN",
    "residual 16",
    "TopKPooling",
    "GIN graph classification DataLoader",
    "link prediction network",
    "APPNP",
    "MetaLayer",
    "weights in a ParameterList 8",
    "layers that write into the data",
]


@pytest.mark.parametrize("name", NETWORKS)
def test_served_and_never_worse(name: str) -> None:
    record = zoo.run_named(name, (0,))
    assert record.status == "served", record.error
    assert not record.worse, (record.before, record.after)
    assert record.broken == []

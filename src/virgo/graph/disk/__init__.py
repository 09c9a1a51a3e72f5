"""Graphs on disk: built in bounded memory, read by memory-mapping.

>>> import numpy as np, tempfile, pathlib
>>> folder = pathlib.Path(tempfile.mkdtemp())
>>> np.save(folder / "edges.npy", np.array([[0, 1, 2], [1, 2, 0]]))
>>> header = build(folder / "edges.npy", folder / "ring", symmetric=True)
>>> header.num_nodes, header.num_edges
(3, 6)
>>> open_array(folder / "ring", header, "in_columns").tolist()
[1, 2, 0, 2, 0, 1]
"""

from __future__ import annotations

from virgo.graph.disk.building import build
from virgo.graph.disk.format import FORMAT, Header, open_array, read_header, verify

__all__ = ["FORMAT", "Header", "build", "open_array", "read_header", "verify"]

"""The datasets in miniature, in the raw layout of their publishers.

OGB's tables are gzipped CSV without a header; an undirected edge is in them once. Its edge splits
are files of ``torch.save`` with numpy arrays, in the format and under the module names of the
versions of 2020.
"""

from __future__ import annotations

import gzip
import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from virgo.experiments.data.catalogue import CATALOGUE

Raw = dict[str, Any]
"""What was written, by table, to hold the loaded data against."""


def write(name: str, root: Path, seed: int = 0) -> Raw:
    """Write a miniature of ``name`` into a data root."""
    rng = np.random.default_rng(seed)
    row = CATALOGUE[name]
    if row.kind == "planetoid":
        return _planetoid(root, row.folder, rng)
    if row.kind == "tu":
        return _tu(root, row.folder, rng, row.num_classes)
    if row.kind in ("amazon", "coauthor"):
        return _npz(root / row.folder / row.files[0], rng, row.num_classes)
    return WRITERS[name](root / row.folder, rng)


# --- OGB -----------------------------------------------------------------------------------------


def table(path: Path, values: Any) -> None:
    """One of OGB's tables; ``nan`` is an empty cell, as in ogbg-molpcba's labels."""
    values = np.asarray(values)
    rows = values.reshape(len(values), -1).tolist()
    text = "".join(",".join("" if v != v else str(v) for v in row) + "\n" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))


def edge_part(path: Path, part: dict[str, NDArray[Any]]) -> None:
    """A part of an edge split, as OGB's files of 2020 are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save(part, buffer, _use_new_zipfile_serialization=False, pickle_protocol=2)
    path.write_bytes(buffer.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))


def _release(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "RELEASE_v1.txt").write_text("# Release note\n\n### v1\n\nMajor release\n")
    (folder / "mapping").mkdir()
    (folder / "mapping" / "README.md").write_text("what the numbers stand for\n")


def _pairs(rng: np.random.Generator, nodes: int, count: int) -> NDArray[np.int64]:
    """Distinct pairs of different nodes, each in one direction; the last node has none."""
    low, high = np.triu_indices(nodes - 1, 1)
    chosen = rng.choice(len(low), count, replace=False)
    pairs = np.stack([low[chosen], high[chosen]], 1)
    flip = rng.random(count) < 0.5
    pairs[flip] = pairs[flip, ::-1]
    return pairs


def _graph(folder: Path, nodes: int, edges: NDArray[np.int64], **tables: Any) -> Raw:
    _release(folder)
    raw = {"edge": edges, "num-node-list": [nodes], "num-edge-list": [len(edges)]}
    raw |= {name.replace("__", "-"): values for name, values in tables.items()}
    for name, values in raw.items():
        table(folder / "raw" / f"{name}.csv.gz", values)
    return raw


def _node_split(folder: Path, kind: str, nodes: int, rng: np.random.Generator) -> Raw:
    order = rng.permutation(nodes)
    half, most = nodes // 2, 3 * nodes // 4
    split = {"train": order[:half], "valid": order[half:most], "test": order[most:]}
    for part, ids in split.items():
        table(folder / "split" / kind / f"{part}.csv.gz", ids)
    return {"split": split}


def _arxiv(folder: Path, rng: np.random.Generator) -> Raw:
    nodes = 30
    edges = _pairs(rng, nodes, 60)
    edges = np.concatenate([edges, edges[:5, ::-1]])  # some papers cite each other
    raw = _graph(
        folder,
        nodes,
        edges,
        node__feat=rng.normal(size=(nodes, 6)).round(4),
        node__label=rng.integers(0, 40, nodes),
        node_year=rng.integers(2010, 2020, nodes),
    )
    return raw | _node_split(folder, "time", nodes, rng)


def _proteins(folder: Path, rng: np.random.Generator) -> Raw:
    nodes = 25
    raw = _graph(
        folder,
        nodes,
        _pairs(rng, nodes, 80),
        edge__feat=rng.random((80, 8)).round(3),
        node__label=rng.integers(0, 2, (nodes, 112)),
        node_species=rng.integers(3000, 9000, nodes),
    )
    return raw | _node_split(folder, "species", nodes, rng)


def _products(folder: Path, rng: np.random.Generator) -> Raw:
    nodes = 40
    raw = _graph(
        folder,
        nodes,
        _pairs(rng, nodes, 90),
        node__feat=rng.normal(size=(nodes, 10)).round(4),
        node__label=rng.integers(0, 47, nodes),
    )
    return raw | _node_split(folder, "sales_ranking", nodes, rng)


def _pair_split(folder: Path, kind: str, edges: Any, nodes: int, rng: Any, **more: Any) -> Raw:
    """Edges of three parts; validation and test part have false ones too."""
    split: dict[str, Raw] = {"train": {"edge": edges, **more}}
    for part, count in (("valid", 8), ("test", 9)):
        split[part] = {
            "edge": rng.integers(0, nodes, (count, 2)),
            "edge_neg": rng.integers(0, nodes, (2 * count, 2)),
        }
        split[part] |= {key: values[:count] for key, values in more.items()}
    for part, value in split.items():
        edge_part(folder / "split" / kind / f"{part}.pt", value)
    return {"split": split}


def _ddi(folder: Path, rng: np.random.Generator) -> Raw:
    edges = _pairs(rng, 20, 50)
    return _graph(folder, 20, edges) | _pair_split(folder, "target", edges, 20, rng)


def _collab(folder: Path, rng: np.random.Generator) -> Raw:
    nodes = 30
    edges = _pairs(rng, nodes, 60)
    edges = np.concatenate([edges, edges[:7]])  # the same two, in another year
    weight, year = rng.integers(1, 5, len(edges)), rng.integers(1990, 2018, len(edges))
    features = rng.normal(size=(nodes, 128)).round(4)
    raw = _graph(folder, nodes, edges, node__feat=features, edge_weight=weight, edge_year=year)
    return raw | _pair_split(folder, "time", edges, nodes, rng, weight=weight, year=year)


def _ppa(folder: Path, rng: np.random.Generator) -> Raw:
    nodes, edges = 30, _pairs(rng, 30, 70)
    species = np.eye(58, dtype=np.int64)[rng.integers(0, 58, nodes)]
    raw = _graph(folder, nodes, edges, node__feat=species)
    return raw | _pair_split(folder, "throughput", edges, nodes, rng)


def _citation2(folder: Path, rng: np.random.Generator) -> Raw:
    nodes, edges = 30, _pairs(rng, 30, 70)
    edges = np.concatenate([edges, edges[:4, ::-1]])
    features = rng.normal(size=(nodes, 128)).round(4)
    year = rng.integers(1990, 2020, nodes)
    raw = _graph(folder, nodes, edges, node__feat=features, node_year=year)
    split: dict[str, Raw] = {"train": {"source_node": edges[:, 0], "target_node": edges[:, 1]}}
    for part in ("valid", "test"):
        split[part] = {
            "source_node": rng.integers(0, nodes, 6),
            "target_node": rng.integers(0, nodes, 6),
            "target_node_neg": rng.integers(0, nodes, (6, 1000)),
        }
    for part, value in split.items():
        edge_part(folder / "split" / "time" / f"{part}.pt", value)
    return raw | {"split": split}


def _molecules(folder: Path, rng: np.random.Generator, tasks: int) -> Raw:
    _release(folder)
    sizes = rng.integers(3, 9, 24)
    edges = [_pairs(rng, int(size) + 1, int(size) - 1) for size in sizes]
    labels = rng.integers(0, 2, (len(sizes), tasks)).astype(float)
    if tasks > 1:
        labels[rng.random(labels.shape) < 0.3] = np.nan
    raw: Raw = {
        "edge": np.concatenate(edges),
        "num-node-list": sizes,
        "num-edge-list": np.array([len(one) for one in edges]),
        "node-feat": rng.integers(0, 5, (sizes.sum(), 9)),
        "edge-feat": rng.integers(0, 3, (sum(map(len, edges)), 3)),
        "graph-label": labels if tasks > 1 else labels.astype(int),
    }
    for name, values in raw.items():
        table(folder / "raw" / f"{name}.csv.gz", values)
    return raw | _node_split(folder, "scaffold", len(sizes), rng)


WRITERS: dict[str, Callable[[Path, np.random.Generator], Raw]] = {
    "ogbn-arxiv": _arxiv,
    "ogbn-proteins": _proteins,
    "ogbn-products": _products,
    "ogbl-ddi": _ddi,
    "ogbl-collab": _collab,
    "ogbl-citation2": _citation2,
    "ogbl-ppa": _ppa,
    "ogbg-molhiv": lambda folder, rng: _molecules(folder, rng, 1),
    "ogbg-molpcba": lambda folder, rng: _molecules(folder, rng, 128),
}


# --- PyG -----------------------------------------------------------------------------------------


def _planetoid(root: Path, folder: str, rng: np.random.Generator) -> Raw:
    """604 nodes on a ring, 3 classes, 5 features; the second node has no words."""
    known, nodes = 602, 604
    x = rng.integers(0, 3, (nodes, 5)).astype(np.float32)
    x[1] = 0
    y = np.eye(3, dtype=np.int32)[np.arange(nodes) % 3]
    ring = {i: [(i - 1) % nodes, (i + 1) % nodes] for i in range(nodes)}
    words = sparse.csr_matrix(x)
    objects = {"x": words[:60], "y": y[:60], "allx": words[:known], "ally": y[:known]}
    objects |= {"tx": words[known:], "ty": y[known:], "graph": ring}
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    for part, value in objects.items():
        (raw / f"ind.{folder.lower()}.{part}").write_bytes(pickle.dumps(value, protocol=2))
    (raw / f"ind.{folder.lower()}.test.index").write_text("602\n603\n")
    return {"x": x, "y": y.argmax(1), "graph": ring}


def _tu(root: Path, folder: str, rng: np.random.Generator, classes: int) -> Raw:
    """30 graphs without node labels, both directions of an edge, nodes counted from 1."""
    sizes = rng.integers(3, 8, 30)
    edges, first = [], 1
    for size in sizes:
        for low, high in _pairs(rng, int(size) + 1, int(size)) if size > 3 else [(0, 1), (1, 2)]:
            edges += [(first + low, first + high), (first + high, first + low)]
        first += size
    labels = np.arange(len(sizes)) % classes
    texts = {
        "A": "".join(f"{a}, {b}\n" for a, b in edges),
        "graph_indicator": "".join(f"{i + 1}\n" * n for i, n in enumerate(sizes)),
        "graph_labels": "".join(f"{label}\n" for label in labels),
    }
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    for part, text in texts.items():
        (raw / f"{folder}_{part}.txt").write_text(text)
    return {"sizes": sizes, "edges": edges, "labels": labels}


def _npz(path: Path, rng: np.random.Generator, classes: int) -> Raw:
    """53 nodes per class on a directed ring with some loops, 6 features; counts of words."""
    nodes = 53 * classes
    labels = rng.permutation(np.arange(nodes) % classes)
    x = sparse.csr_matrix(rng.integers(0, 3, (nodes, 6)).astype(np.float32))
    here = np.arange(nodes)
    ends = np.concatenate([np.stack([here, (here + 1) % nodes]), [[0, 5], [0, 5]]], axis=1)
    ones = np.ones(ends.shape[1], dtype=np.float32)
    ring = sparse.csr_matrix((ones, (ends[0], ends[1])), (nodes, nodes))
    arrays = {"labels": labels}
    for name, matrix in (("adj", ring), ("attr", x)):
        arrays |= {f"{name}_{part}": getattr(matrix, part) for part in ("data", "indices")}
        arrays |= {f"{name}_indptr": matrix.indptr, f"{name}_shape": np.array(matrix.shape)}
    path.parent.mkdir(parents=True)
    np.savez_compressed(path, **arrays)
    return {"x": x.toarray(), "y": labels, "arrays": arrays}


def pack(root: Path, folder: str) -> Path:
    """Put a TU dataset's files into the zip file in which they are published."""
    raw = root / folder / "raw"
    archive = root / folder / f"{folder}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(raw.iterdir()):
            packed.write(path, f"{folder}/{path.name}")
            path.unlink()
    raw.rmdir()
    return archive


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file of a folder, with its time."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def left_behind(cache: Path) -> list[str]:
    """What there is beside locks and digests."""
    return [path.name for path in (cache / "processed").iterdir()]

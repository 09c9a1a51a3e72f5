"""The datasets: miniatures through the real loaders, and real files where they are."""

from __future__ import annotations

import os
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit import miniatures
from kit.miniatures import snapshot
from torch_geometric import transforms
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from virgo.data import Dataset, load, load_arxiv, load_citation, names
from virgo.errors import DataError
from virgo.experiments.data.cache import final_folder
from virgo.experiments.data.catalogue import CATALOGUE, ENTRIES, EXTRA_ENTRIES, entry
from virgo.experiments.data.datasets import split_per_class, stratified
from virgo.experiments.data.inventory import check, counted, expected
from virgo.experiments.data.roots import locate

EVERY = [row.name for row in ENTRIES]
OGB = [row.name for row in ENTRIES if row.kind == "ogb"]
TU = [row.name for row in ENTRIES if row.kind == "tu"]
NODES = [row.name for row in ENTRIES if row.kind == "ogb" and row.task == "node"]
PAIRS = ["ogbl-ddi", "ogbl-collab", "ogbl-ppa"]


pytestmark = pytest.mark.usefixtures("offline")


# --- what they hold, against slow references -----------------------------------------------------


def both_ways(edges: Any) -> list[tuple[int, int]]:
    """Every pair in both directions, once."""
    found = {(int(a), int(b)) for a, b in edges} | {(int(b), int(a)) for a, b in edges}
    return sorted(found)


def doubled(edges: Any) -> list[tuple[int, int]]:
    """Every row in both directions, as often as it is there."""
    return sorted([(int(a), int(b)) for a, b in edges] + [(int(b), int(a)) for a, b in edges])


def columns(data: Data) -> list[tuple[int, int]]:
    return sorted(zip(*data.edge_index.tolist(), strict=True))


def entering(raw: miniatures.Raw, nodes: int) -> np.ndarray[Any, Any]:
    """Mean over a node's edges of their features, one node and edge after the other."""
    means = np.zeros((nodes, 8))
    for node in range(nodes):
        mine = [
            f for (a, b), f in zip(raw["edge"], raw["edge-feat"], strict=True) if node in (a, b)
        ]
        if mine:
            means[node] = np.mean(mine, axis=0)
    return means


@pytest.mark.parametrize("name", NODES)
def test_node_datasets(name: str, root: Path) -> None:
    raw = miniatures.write(name, root)
    dataset = load(name, root)
    data = dataset.data
    nodes = raw["num-node-list"][0]
    assert (dataset.name, dataset.task, dataset.metric) == (name, "node", CATALOGUE[name].metric)
    assert dataset.num_classes == CATALOGUE[name].num_classes
    assert data.num_nodes == nodes
    assert data.is_undirected()
    assert data.x.dtype == torch.float32
    if name == "ogbn-arxiv":
        assert columns(data) == both_ways(raw["edge"])  # two papers that cite each other: once
    else:
        assert columns(data) == doubled(raw["edge"])
    if name == "ogbn-proteins":
        assert data.y.dtype == torch.float32
        np.testing.assert_array_equal(data.y, raw["node-label"])
        np.testing.assert_allclose(data.x, entering(raw, nodes), rtol=1e-6)
        assert data.x[-1].tolist() == [0.0] * 8  # a protein without edges
        assert "edge_attr" not in data
    else:
        assert data.y.tolist() == raw["node-label"].tolist()
        np.testing.assert_allclose(data.x, raw["node-feat"], rtol=1e-6)
    for part, mask in (("train", "train_mask"), ("valid", "val_mask"), ("test", "test_mask")):
        assert dataset.split[part].tolist() == raw["split"][part].tolist()
        assert data[mask].nonzero().view(-1).tolist() == sorted(raw["split"][part])


@pytest.mark.parametrize("name", PAIRS)
def test_link_datasets(name: str, root: Path) -> None:
    raw = miniatures.write(name, root)
    dataset = load(name, root)
    data = dataset.data
    assert (dataset.task, dataset.metric) == ("link", CATALOGUE[name].metric)
    assert dataset.num_classes == 0
    assert data.num_nodes == raw["num-node-list"][0]
    assert columns(data) == doubled(raw["edge"])
    for part in ("train", "valid", "test"):
        found, wanted = dataset.split[part], raw["split"][part]
        assert found.keys() == wanted.keys()
        for key, values in wanted.items():
            assert found[key].dtype == torch.int64
            np.testing.assert_array_equal(found[key], values)
    if name == "ogbl-ddi":
        assert data.x is None  # embeddings are learned
    else:
        assert data.x.dtype == torch.float32
        np.testing.assert_allclose(data.x, raw["node-feat"], rtol=1e-6)
    if name == "ogbl-collab":
        assert data.edge_weight.dtype == torch.float32
        found = sorted(zip(*data.edge_index.tolist(), data.edge_weight.tolist(), strict=True))
        weighed = list(zip(raw["edge"].tolist(), raw["edge_weight"].tolist(), strict=True))
        wanted = [(a, b, w) for (a, b), w in weighed] + [(b, a, w) for (a, b), w in weighed]
        assert found == sorted(wanted)


def test_citation2_is_made_undirected(root: Path) -> None:
    raw = miniatures.write("ogbl-citation2", root)
    dataset = load("ogbl-citation2", root)
    assert columns(dataset.data) == both_ways(raw["edge"])
    assert dataset.metric == "mrr"
    np.testing.assert_allclose(dataset.data.x, raw["node-feat"], rtol=1e-6)
    for part in ("train", "valid", "test"):
        for key, values in raw["split"][part].items():
            np.testing.assert_array_equal(dataset.split[part][key], values)


@pytest.mark.parametrize("name", ["ogbg-molhiv", "ogbg-molpcba"])
def test_molecules(name: str, root: Path) -> None:
    raw = miniatures.write(name, root)
    dataset = load(name, root)
    assert len(dataset.data) == len(raw["num-node-list"])
    assert dataset.num_classes == CATALOGUE[name].num_classes
    node = edge = 0
    for i, graph in enumerate(dataset.data):
        n, e = raw["num-node-list"][i], raw["num-edge-list"][i]
        np.testing.assert_array_equal(graph.x, raw["node-feat"][node : node + n])
        assert columns(graph) == doubled(raw["edge"][edge : edge + e])
        np.testing.assert_array_equal(graph.edge_attr[::2], raw["edge-feat"][edge : edge + e])
        np.testing.assert_array_equal(graph.y[0], raw["graph-label"][i])
        node, edge = node + n, edge + e
    for part, ids in raw["split"].items():
        assert dataset.split[part].tolist() == ids.tolist()
    batch = next(iter(DataLoader(dataset.data[dataset.split["train"]], batch_size=4)))
    assert batch.num_graphs == 4


@pytest.mark.parametrize("packed", [False, True], ids=["files", "zip"])
@pytest.mark.parametrize("name", TU)
def test_social_graphs_have_their_degree_as_features(name: str, packed: bool, root: Path) -> None:
    raw = miniatures.write(name, root)
    if packed:
        miniatures.pack(root, CATALOGUE[name].folder)
    dataset = load(name, root)
    count: dict[int, int] = {}
    for a, _ in raw["edges"]:
        count[a] = count.get(a, 0) + 1
    widest = max(count.values())
    node = 1
    assert len(dataset.data) == len(raw["sizes"])
    for graph, size, label in zip(dataset.data, raw["sizes"], raw["labels"], strict=True):
        degrees = [count.get(i, 0) for i in range(node, node + size)]
        assert graph.x.tolist() == np.eye(widest + 1)[degrees].tolist()
        assert graph.degree.tolist() == degrees
        assert int(graph.y) == label
        own = transforms.OneHotDegree(widest)(Data(edge_index=graph.edge_index, num_nodes=size))
        assert torch.equal(own.x, graph.x)  # PyG's transform agrees
        node += size
    assert "x" not in dataset.data._data  # features are made when a graph is looked at
    assert dataset.split == {}
    assert dataset.num_classes == CATALOGUE[name].num_classes


@pytest.mark.parametrize("name", ["cora", "citeseer", "pubmed"])
def test_citation_graphs_have_rows_that_sum_to_one(name: str, root: Path) -> None:
    raw = miniatures.write(name, root)
    dataset = load(name, root)
    slow = [[v / sum(row) if sum(row) else 0.0 for v in row] for row in raw["x"].tolist()]
    np.testing.assert_allclose(dataset.data.x, slow, rtol=1e-6)
    assert dataset.data.x[1].tolist() == [0.0] * 5
    assert dataset.data.y.tolist() == raw["y"].tolist()
    assert columns(dataset.data) == sorted((a, b) for a, bs in raw["graph"].items() for b in bs)
    assert dataset.split["train"].tolist() == list(range(60))
    assert dataset.split["test"].tolist() == [602, 603]
    # negative control: as they are in the files
    np.testing.assert_array_equal(load_citation(name, root).x, raw["x"])
    assert len(list((Path(os.environ["VIRGO_CACHE"]) / "processed").iterdir())) == 1


EXTRA = [row.name for row in EXTRA_ENTRIES]


@pytest.mark.parametrize("name", EXTRA)
def test_extra_graphs_are_undirected_and_have_seeded_splits(name: str, root: Path) -> None:
    raw = miniatures.write(name, root)
    dataset, row = load(name, root), CATALOGUE[name]
    ones = (raw["x"] > 0).astype(float)  # PyG keeps whether a word is there
    np.testing.assert_allclose(dataset.data.x, ones / ones.sum(1, keepdims=True).clip(1), rtol=1e-6)
    assert dataset.data.y.tolist() == raw["y"].tolist()
    nodes = len(raw["y"])
    assert columns(dataset.data) == both_ways([(i, (i + 1) % nodes) for i in range(nodes)])
    assert dataset.num_classes == row.num_classes
    for part, count in (("train", 20), ("valid", 30), ("test", 3)):
        assert np.bincount(raw["y"][dataset.split[part]]).tolist() == [count] * row.num_classes
    ids = torch.cat(list(dataset.split.values()))
    assert sorted(ids.tolist()) == list(range(nodes))
    masks = (dataset.data.train_mask, dataset.data.val_mask, dataset.data.test_mask)
    for mask, part in zip(masks, dataset.split.values(), strict=True):
        assert mask.nonzero().view(-1).tolist() == part.tolist()


def test_a_split_follows_from_its_seed(root: Path) -> None:
    miniatures.write("photo", root)
    default, zero, other = (
        load("photo", root),
        load("photo", root, split=0),
        load("photo", root, split=1),
    )
    state = torch.get_rng_state()
    assert all(torch.equal(default.split[part], zero.split[part]) for part in default.split)
    assert not torch.equal(default.split["train"], other.split["train"])
    assert torch.equal(torch.get_rng_state(), state)
    miniatures.write("cora", root)
    for name in ("cora", "like:cora@0.1"):
        with pytest.raises(DataError, match=rf"{name}: expected split=0 .* got 3\. Leave it out"):
            load(name, root, split=3)
    with pytest.raises(
        DataError, match="more than 50 nodes of every class, got 50 of the smallest"
    ):
        split_per_class(np.arange(100) % 2, 0)


def test_arxiv_with_all_its_files_is_the_same_either_way(root: Path) -> None:
    miniatures.write("ogbn-arxiv", root)
    data, remark = load_arxiv(root)
    assert remark is None
    assert torch.equal(data.edge_index, load("ogbn-arxiv", root).data.edge_index)
    (root / "ogbn_arxiv" / "raw" / "node_year.csv.gz").unlink()
    read, remark = load_arxiv(root)  # by our own reader
    assert remark is None
    assert torch.equal(data.edge_index, read.edge_index)
    assert torch.equal(data.x, read.x)
    assert torch.equal(data.y, read.y)


def test_old_name_of_the_species_file(root: Path) -> None:
    miniatures.write("ogbn-proteins", root)
    raw = root / "ogbn_proteins" / "raw"
    (raw / "node_species.csv.gz").rename(raw / "species.csv.gz")
    before = snapshot(root)
    assert load("ogbn-proteins", root).data.num_nodes == 25
    assert snapshot(root) == before  # OGB renames it, in its copy


def test_names_and_strings(root: Path) -> None:
    assert names() == (*EVERY, "photo", "computers", "cs")
    assert len(EVERY) == 15
    assert not any(row.extra for row in ENTRIES)
    assert all(row.extra for row in EXTRA_ENTRIES)
    miniatures.write("ogbn-arxiv", root)
    assert str(load("OGBN-arxiv", root)) == (
        "ogbn-arxiv (node, accuracy): 30 nodes, 120 edge entries, 6 features, 40 outputs, "
        "15/7/8 split"
    )
    miniatures.write("ogbl-ddi", root)
    assert "no features, 50/8/9 split" in str(load("ogbl-ddi", root))
    miniatures.write("imdb-b", root)
    assert "30 graphs" in str(load("imdb-b", root))
    assert "10 folds" in str(load("imdb-b", root))
    wrong = r"expected one of cora, .* got 'cora2'\. Did you mean cora\? Choose one"
    with pytest.raises(DataError, match=wrong):
        load("cora2")


def test_generated_ones_come_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Dataset("like:cora@0.5", "node", Data(), {}, "accuracy", 7, "generated")
    stand_ins = types.ModuleType("virgo.experiments.data.stand_ins")
    stand_ins.like = lambda name, seed=0: {"like:cora@0.5": made}[name]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "virgo.experiments.data.stand_ins", stand_ins)
    assert load("like:cora@0.5") is made


# --- folds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_folds_are_stratified_and_cover_everything_once(seed: int) -> None:
    labels = np.random.default_rng(5).choice(3, 1003, p=[0.6, 0.3, 0.1])
    folds = stratified(labels, seed)
    tested = np.concatenate([test for _, test in folds])
    assert sorted(tested) == list(range(1003))
    sizes = [len(test) for _, test in folds]
    assert max(sizes) - min(sizes) <= 1
    for train, test in folds:
        assert sorted([*train, *test]) == list(range(1003))
    for label in range(3):
        counts = [int((labels[test] == label).sum()) for _, test in folds]
        assert max(counts) - min(counts) <= 1  # as scikit-learn's StratifiedKFold has it
    again = stratified(labels, seed)
    assert all(np.array_equal(a[1], b[1]) for a, b in zip(folds, again, strict=True))
    other = stratified(labels, seed + 1)
    assert any(not np.array_equal(a[1], b[1]) for a, b in zip(folds, other, strict=True))


def test_folds_of_a_dataset(root: Path) -> None:
    miniatures.write("imdb-b", root)
    dataset = load("imdb-b", root)
    folds = dataset.folds(3)
    assert len(folds) == 10
    train, test = folds[0]
    assert len(train) == 27
    assert sorted(dataset.data.y[test].tolist()) in ([0, 0, 1], [0, 1, 1])
    listed = Dataset("like:imdb-b", "graph", list(dataset.data), {}, "accuracy", 2)
    assert torch.equal(listed.folds(3)[0][1], test)  # a list of graphs will do
    miniatures.write("cora", root)
    with pytest.raises(DataError, match="cora: expected a graph dataset without a split"):
        load("cora", root).folds(0)
    with pytest.raises(DataError, match="at least 10 graphs, got 4"):
        stratified(np.zeros(4, dtype=np.int64), 0)


# --- checking, and real files --------------------------------------------------------------------


def test_a_miniature_is_not_as_published(root: Path) -> None:
    miniatures.write("ogbn-arxiv", root)
    found = check(entry("ogbn-arxiv"), root)
    assert not found.ok
    assert ("nodes", 169343, 30) in found.differences
    assert "nodes: expected 169343, got 30" in str(found)
    assert "train split: expected 90941, got 15" in str(found)
    gone = check(entry("ogbl-ppa"), root)
    assert not gone.ok
    assert "expected the raw files" in str(gone)


def test_every_published_count_is_looked_at(root: Path) -> None:
    for row in CATALOGUE.values():
        miniatures.write(row.name, root)
        assert expected(row).keys() <= counted(load(row.name, root)).keys()


@pytest.fixture(scope="module")
def real(data_root: Path, own_cache: Path) -> Path:
    return data_root


REAL = [
    "cora",
    "citeseer",
    "pubmed",
    "photo",
    "computers",
    "cs",
    "imdb-b",
    "imdb-m",
    "ogbl-ddi",
    "ogbg-molhiv",
]
LONG = ["collab", "ogbg-molpcba"]


@pytest.mark.data
@pytest.mark.parametrize(
    "name", [*REAL, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)]
)
def test_real_datasets_are_as_published(name: str, real: Path) -> None:
    row = CATALOGUE[name]
    source = locate(row, real)
    if not source.complete:
        pytest.skip(f"no real data: {real} lacks {', '.join(source.missing)}")
    found = check(row, real)
    copy = final_folder(source)
    assert copy is not None
    if name in LONG:
        shutil.rmtree(copy)  # pytest keeps its folders, and these are gigabytes
    assert found.ok, str(found)
    assert found.counted >= 4


@pytest.mark.data
def test_real_arxiv_says_that_its_features_are_missing(real: Path) -> None:
    source = locate(entry("ogbn-arxiv"), real)
    if source.missing != ("raw/node-feat.csv.gz",):
        pytest.skip("no real data: ogbn-arxiv is absent, or complete")
    with pytest.raises(DataError, match=r"got no raw/node-feat.csv.gz.*load_arxiv"):
        load("ogbn-arxiv", real)

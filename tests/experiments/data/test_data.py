"""The generated graph, the data roots, and the citation graphs from raw files."""

from __future__ import annotations

import gzip
import math
import os
import pickle
import random
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import sparse
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCN, MLP
from torch_geometric.utils import degree, homophily

from virgo.data import citation_like, demo_graph, find_root, load_arxiv, load_citation, user_cache
from virgo.errors import DataError

SMALL = {"num_nodes": 400, "num_features": 200, "num_val": 50, "num_test": 100}


@pytest.fixture(scope="module")
def generated() -> Data:
    return citation_like()


def same(one: Data, other: Data) -> bool:
    left, right = one.to_dict(), other.to_dict()
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


# --- the generated graph -------------------------------------------------------------------------


def test_generated_graph_is_a_function_of_its_seed() -> None:
    assert same(citation_like(**SMALL, seed=3), citation_like(**SMALL, seed=3))
    other = citation_like(**SMALL, seed=4)
    for name, value in citation_like(**SMALL, seed=3).to_dict().items():
        assert value.shape != other[name].shape or not torch.equal(value, other[name]), name


def test_generated_graph_neither_reads_nor_changes_global_random_state() -> None:
    np.random.seed(1)  # noqa: NPY002  the legacy state is what is watched
    random.seed(1)
    torch.manual_seed(1)
    before = (np.random.get_state()[1].copy(), random.getstate(), torch.get_rng_state())  # noqa: NPY002
    first = citation_like(**SMALL)
    assert np.array_equal(before[0], np.random.get_state()[1])  # noqa: NPY002
    assert before[1] == random.getstate()
    assert torch.equal(before[2], torch.get_rng_state())
    torch.manual_seed(2)
    np.random.seed(2)  # noqa: NPY002
    assert same(first, citation_like(**SMALL))


def test_more_features_leave_the_graph_as_it_is() -> None:
    narrow, wide = citation_like(**SMALL), citation_like(**{**SMALL, "num_features": 300})
    assert torch.equal(narrow.edge_index, wide.edge_index)
    assert torch.equal(narrow.y, wide.y)
    assert torch.equal(narrow.train_mask, wide.train_mask)


@pytest.mark.parametrize("average_degree", [2.0, 3.9, 20.0])
def test_generated_edges_are_simple_and_as_many_as_asked(average_degree: float) -> None:
    data = citation_like(**SMALL, average_degree=average_degree)
    row, col = data.edge_index
    assert data.edge_index.dtype == torch.int64
    assert data.num_edges == 2 * round(400 * average_degree / 2)
    pairs = set(zip(row.tolist(), col.tolist(), strict=True))
    assert len(pairs) == data.num_edges  # no duplicates
    assert pairs == {(j, i) for i, j in pairs}  # undirected
    assert not (row == col).any()
    assert degree(row, 400).min() >= 1
    assert data.is_coalesced()


def test_generated_degrees_have_a_heavy_tail(generated: Data) -> None:
    degrees = degree(generated.edge_index[0], generated.num_nodes)
    assert degrees.mean().item() == pytest.approx(3.9, abs=1e-3)  # rounding to whole edges
    # Without the degree correction a node has 1 + Poisson(2.9) edges: 20 is ten deviations away.
    assert degrees.max() > 60
    assert (degrees <= 2).float().mean() > 0.3


def test_generated_labels_follow_the_edges(generated: Data) -> None:
    # 5281 edges: the binomial deviation is 0.0054. Duplicates are likelier within a class and
    # count once, which costs up to another 0.015.
    assert homophily(generated.edge_index, generated.y) == pytest.approx(0.81, abs=0.03)
    none = citation_like(homophily=0.0)
    assert homophily(none.edge_index, none.y) < 0.02
    full = citation_like(homophily=1.0)
    assert homophily(full.edge_index, full.y) > 0.98  # self-loops drawn are re-drawn anywhere


def test_generated_words_are_sparse_zeros_and_ones(generated: Data) -> None:
    words = generated.x.sum(1)
    assert generated.x.dtype == torch.float32
    assert generated.x.shape == (2708, 1433)
    assert set(generated.x.unique().tolist()) == {0.0, 1.0}
    assert words.min() >= 1
    # Poisson counts: five standard errors of their mean.
    assert words.mean().item() == pytest.approx(18, abs=5 * math.sqrt(18 / 2708))
    # Zipf: the commonest word is in far more documents than the median one.
    uses = generated.x.sum(0).sort(descending=True).values
    assert uses[0] > 50 * uses[716]


def test_words_of_a_class_are_its_own(generated: Data) -> None:
    # Two halves of one class use the same words more than two classes do: the topics are there.
    first = generated.x[0::2], generated.y[0::2]
    second = generated.x[1::2], generated.y[1::2]
    profile = [torch.stack([x[y == c].mean(0) for c in range(7)]) for x, y in (first, second)]
    left, right = (p - p.mean(0) for p in profile)
    assert (left @ right.T).argmax(1).tolist() == list(range(7))


def test_generated_split_is_planetoids(generated: Data) -> None:
    masks = torch.stack([generated.train_mask, generated.val_mask, generated.test_mask])
    assert masks.dtype == torch.bool
    assert masks.sum(0).max() == 1  # disjoint
    assert masks.sum(1).tolist() == [140, 500, 1000]
    assert generated.y[generated.train_mask].bincount().tolist() == [20] * 7


@pytest.mark.parametrize("num_nodes", [20, 200, 1639])
def test_split_of_a_small_graph_keeps_its_proportions(num_nodes: int) -> None:
    data = citation_like(num_nodes=num_nodes)
    masks = torch.stack([data.train_mask, data.val_mask, data.test_mask])
    share = num_nodes / 1640
    assert masks.sum(0).max() == 1  # disjoint
    assert data.y[data.train_mask].bincount().tolist() == [max(int(20 * share), 1)] * 7
    assert int(data.val_mask.sum()) == int(500 * share)
    assert 0 < int(data.test_mask.sum()) <= int(1000 * share)


@pytest.mark.parametrize(
    ("option", "match"),
    [
        ({"num_classes": 1}, "num_classes must be at least 2, got 1"),
        ({"num_nodes": 14}, "num_nodes must be above twice num_classes, got 14"),
        ({"average_degree": 1.0}, "average_degree must be in .2, N/4., got 1.0"),
        ({"average_degree": 99.0, "homophily": 1.0}, "average_degree is too high for communities"),
        ({"homophily": 1.5}, "homophily must be a share in .0, 1., got 1.5"),
        ({"words_per_node": 101}, "words_per_node must be between 1 and half of num_features"),
        ({"num_features": 3, "words_per_node": 1}, "num_features must be at least num_classes"),
    ],
)
def test_impossible_shapes_are_named(option: dict[str, float], match: str) -> None:
    with pytest.raises(DataError, match=f"citation_like: {match}"):
        citation_like(**{**SMALL, **option})  # type: ignore[arg-type]


def accuracy(model: nn.Module, data: Data, *graph: Tensor) -> float:
    x = data.x / data.x.sum(1, keepdim=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(60):
        optimizer.zero_grad()
        out = model(x, *graph)
        F.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = model(x, *graph).argmax(1) == data.y
    return right[data.test_mask].float().mean().item()


@pytest.mark.slow
def test_generated_graph_is_as_hard_as_cora_and_needs_its_edges(generated: Data) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        gcn = accuracy(GCN(1433, 64, 2, 7, dropout=0.5), generated, generated.edge_index)
        mlp = accuracy(MLP([1433, 64, 7], dropout=0.5, norm=None), generated)
    assert 0.74 < gcn < 0.86  # about 0.80; 1000 test nodes: a standard error of 0.013
    assert mlp < gcn - 0.2
    assert mlp > 0.25  # the commonest class has 0.21


# --- data roots ----------------------------------------------------------------------------------


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without data: no variable set, an empty home, no checkout beside a data folder."""
    for name in ("VIRGO_DATA", "VIRGO_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(
        "virgo.experiments.data.roots._checkouts", lambda: iter([tmp_path / "checkout"])
    )
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def test_root_is_looked_for_in_order(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_root() is None
    cache = nowhere / "home" / ".cache" / "virgo"
    cache.mkdir(parents=True)
    assert find_root() == cache
    monkeypatch.setenv("XDG_CACHE_HOME", str(nowhere / "xdg"))
    assert user_cache() == nowhere / "xdg" / "virgo"
    assert find_root() is None  # the cache has moved, and is not there yet
    shared = nowhere / "shared" / "data"
    shared.mkdir(parents=True)
    assert find_root() == shared
    monkeypatch.setenv("VIRGO_DATA", str(nowhere / "asked"))
    assert find_root() == nowhere / "asked"
    assert find_root(nowhere / "explicit") == nowhere / "explicit"


def test_current_folder_counts_only_as_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared" / "data"
    here = tmp_path / "here"
    shared.mkdir(parents=True)
    here.mkdir()
    monkeypatch.delenv("VIRGO_DATA", raising=False)
    monkeypatch.setattr(
        "virgo.experiments.data.roots.__file__", str(tmp_path / "a" / "b" / "c" / "d" / "e.py")
    )
    monkeypatch.chdir(here)
    assert find_root() != shared
    (here / "pyproject.toml").write_text('[project]\nname = "virgo-gnn"\n')
    assert find_root() == shared


# --- citation graphs -----------------------------------------------------------------------------


def write_raw(root: Path, flip: bool = False) -> Path:
    """A miniature in Planetoid's raw layout: 604 nodes on a ring, 3 classes, 5 features."""
    rng = np.random.default_rng(0)
    known, unknown = 602, 2
    x = sparse.csr_matrix(rng.integers(0, 2, (known + unknown, 5)).astype(np.float32))
    y = np.eye(3, dtype=np.int32)[np.arange(known + unknown) % 3]
    if flip:
        y = y[:, ::-1]
    ring = {i: [(i - 1) % 604, (i + 1) % 604] for i in range(604)}
    objects = {"x": x[:60], "y": y[:60], "allx": x[:known], "ally": y[:known]}
    objects |= {"tx": x[known:], "ty": y[known:], "graph": ring}
    raw = root / "Cora" / "raw"
    raw.mkdir(parents=True)
    for part, value in objects.items():
        (raw / f"ind.cora.{part}").write_bytes(pickle.dumps(value, protocol=2))
    (raw / "ind.cora.test.index").write_text("603\n602\n")
    return raw


def snapshot(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VIRGO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_read_only_root_is_read_and_not_written_to(tmp_path: Path, cache: Path) -> None:
    root = tmp_path / "root"
    write_raw(root)
    before = snapshot(root)
    folders = [root, root / "Cora", root / "Cora" / "raw"]
    for folder in folders:
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        data = load_citation("Cora", root)
    finally:
        for folder in folders:
            folder.chmod(stat.S_IRWXU)
    assert snapshot(root) == before
    assert data.num_nodes == 604
    assert data.num_edges == 1208
    assert int(data.train_mask.sum()) == 60
    assert data.y[:6].tolist() == [0, 1, 2, 0, 1, 2]
    assert [p.name[:5] for p in (cache / "processed").iterdir()] == ["Cora-"]  # nothing aside


def test_changed_files_are_not_answered_from_an_older_copy(tmp_path: Path, cache: Path) -> None:
    write_raw(tmp_path / "one")
    write_raw(tmp_path / "two", flip=True)
    assert load_citation("cora", tmp_path / "one").y[:3].tolist() == [0, 1, 2]
    assert load_citation("cora", tmp_path / "two").y[:3].tolist() == [2, 1, 0]
    assert load_citation("cora", tmp_path / "one").y[:3].tolist() == [0, 1, 2]
    assert len(list((cache / "processed").iterdir())) == 2


@pytest.mark.slow
def test_two_processes_at_once_both_load(tmp_path: Path, cache: Path) -> None:
    write_raw(tmp_path / "root")
    code = (
        "import sys\nfrom virgo.data import load_citation\n"
        "print(load_citation('cora', sys.argv[1]).num_edges)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "root")]
    workers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for worker in workers:
        out, err = worker.communicate(timeout=120)
        assert (worker.returncode, out) == (0, "1208\n"), err
        assert "Processing" not in err
    assert len(list((cache / "processed").iterdir())) == 1


def test_the_second_of_two_processes_takes_the_copy_of_the_first(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The race itself: another process publishes while this one is processing.
    from virgo.experiments.data import cache as copies

    write_raw(tmp_path / "root")
    publish = copies._publish

    def overtaken(aside: Path, final: Path) -> None:
        shutil.copytree(aside, final)
        publish(aside, final)

    monkeypatch.setattr(copies, "_publish", overtaken)
    assert load_citation("cora", tmp_path / "root").num_edges == 1208
    assert len(list((cache / "processed").iterdir())) == 1


def test_absent_files_are_one_error_that_says_where_they_go(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("torch_geometric.datasets.planetoid.fs.cp", refuse)
    with pytest.raises(DataError, match=r"raw files of PubMed in .*PubMed/raw, got no .*pubmed\.x"):
        load_citation("pubmed", tmp_path / "empty")
    (write_raw(tmp_path) / "ind.cora.graph").unlink()
    with pytest.raises(DataError, match=r"got no ind\.cora\.graph\. Put them there, .* VIRGO_DATA"):
        load_citation("cora", tmp_path)
    assert not cache.exists()


def test_damaged_file_is_an_error_and_leaves_nothing_behind(tmp_path: Path, cache: Path) -> None:
    raw = write_raw(tmp_path)
    graph = raw / "ind.cora.graph"
    graph.write_bytes(graph.read_bytes()[:100])
    with pytest.raises(DataError, match=r"intact raw files of Cora in .*raw, got .*Fetch them"):
        load_citation("cora", tmp_path)
    assert list((cache / "processed").iterdir()) == []


def test_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_raw(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VIRGO_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"expected a writable cache, got .* Set VIRGO_CACHE"):
        load_citation("cora", tmp_path)


def test_unknown_dataset_lists_the_choices() -> None:
    with pytest.raises(DataError, match="one of cora, citeseer, pubmed, got 'core'"):
        load_citation("core")


def test_demo_graph_says_which_it_is(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRGO_DATA", str(tmp_path))
    data, text = demo_graph()
    assert same(data, citation_like())
    assert text.startswith("a generated citation-like graph (no data root has Cora): 2708 nodes")
    write_raw(tmp_path)
    data, text = demo_graph()
    assert data.num_nodes == 604
    assert text == "Cora, public split: 604 nodes, 1208 edges, 5 words"


@pytest.mark.data
def test_real_cora(cora: Data) -> None:
    assert (cora.num_nodes, cora.num_edges, cora.num_features) == (2708, 10556, 1433)
    parts = (cora.train_mask, cora.val_mask, cora.test_mask)
    assert [int(mask.sum()) for mask in parts] == [140, 500, 1000]


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "nodes", "edges"), [("citeseer", 3327, 9104), ("pubmed", 19717, 88648)]
)
def test_real_citation_graphs(data_root: Path, name: str, nodes: int, edges: int) -> None:
    folder = {"citeseer": "CiteSeer", "pubmed": "PubMed"}[name]
    if not os.path.isdir(data_root / folder / "raw"):
        pytest.skip(f"no real data: {data_root} has no {folder}/raw")
    data = load_citation(name, data_root)
    assert (data.num_nodes, data.num_edges) == (nodes, edges)


def _write_arxiv(root: Path, *, features: bool) -> None:
    """OGB's raw layout in miniature: four papers, three citations."""
    files = {
        "raw/edge.csv.gz": "0,1\n1,2\n3,0\n",
        "raw/node-label.csv.gz": "0\n1\n1\n0\n",
        "split/time/train.csv.gz": "0\n2\n",
    }
    if features:
        files["raw/node-feat.csv.gz"] = "0.5,1\n1,0\n0,2\n3,0.25\n"
    for name, text in files.items():
        path = root / "ogbn_arxiv" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))


def test_arxiv_says_when_its_features_are_generated(tmp_path: Path) -> None:
    _write_arxiv(tmp_path, features=False)
    data, remark = load_arxiv(tmp_path, num_features=5)
    assert remark is not None
    assert "generated" in remark
    assert data.x.shape == (4, 5)
    assert data.edge_index.tolist() == [[0, 0, 1, 1, 2, 3], [1, 3, 0, 2, 1, 0]]
    assert data.y.tolist() == [0, 1, 1, 0]
    assert data.train_mask.tolist() == [True, False, True, False]


def test_arxiv_takes_real_features_where_they_are(tmp_path: Path) -> None:
    _write_arxiv(tmp_path, features=True)
    data, remark = load_arxiv(tmp_path)
    assert remark is None
    assert data.x.tolist() == [[0.5, 1.0], [1.0, 0.0], [0.0, 2.0], [3.0, 0.25]]


def test_a_damaged_arxiv_file_is_named(tmp_path: Path) -> None:
    _write_arxiv(tmp_path, features=False)
    edges = tmp_path / "ogbn_arxiv" / "raw" / "edge.csv.gz"
    edges.write_bytes(edges.read_bytes()[:20])
    with pytest.raises(DataError, match=r"edge\.csv\.gz"):
        load_arxiv(tmp_path)
    edges.unlink()
    with pytest.raises(DataError, match=r"expected edge\.csv\.gz"):
        load_arxiv(tmp_path)

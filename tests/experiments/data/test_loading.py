"""Data roots, the citation graphs and ogbn-arxiv from raw files, and the demonstration graph."""

from __future__ import annotations

import gzip
import os
import pickle
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kit import miniatures
from kit.miniatures import snapshot
from torch_geometric.data import Data

from virgo.data import citation_like, demo_graph, find_root, load_arxiv, load_citation, user_cache
from virgo.errors import DataError

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
    """A miniature of Cora; ``flip`` numbers its three classes the other way round."""
    miniatures.write("cora", root)
    raw = root / "Cora" / "raw"
    for part in ("y", "ty", "ally") if flip else ():
        path = raw / f"ind.cora.{part}"
        flipped = pickle.loads(path.read_bytes())[:, ::-1]
        path.write_bytes(pickle.dumps(flipped, protocol=2))
    return raw


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


#: Imports once and forks: two processes that import for themselves take most of a minute on a busy
#: machine, and hardly ever reach the cache at the same moment. An alarm ends one that hangs.
RACE = """
import os, signal, sys
from virgo.data import load_citation
root, rounds = sys.argv[1], int(sys.argv[2])
for number in range(rounds):
    os.environ["VIRGO_CACHE"] = f"{sys.argv[3]}/{number}"
    ready, go = os.pipe()
    children = []
    for _ in range(2):
        children.append(os.fork())
        if children[-1] == 0:
            signal.alarm(100)
            os.close(go)
            os.read(ready, 1)  # returns when the parent closes its end: both start at once
            edges = load_citation("cora", root).num_edges
            os._exit(0 if edges == 1208 else 1)
    os.close(ready)
    os.close(go)
    print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


@pytest.mark.slow
def test_two_processes_at_once_both_load(tmp_path: Path) -> None:
    write_raw(tmp_path / "root")
    arguments = [str(tmp_path / "root"), "10", str(tmp_path / "caches")]
    done = subprocess.run(
        [sys.executable, "-c", RACE, *arguments], capture_output=True, text=True, check=False
    )
    assert done.stdout == "[0, 0]\n" * 10, done.stderr
    assert "Processing" not in done.stderr
    for cache in (tmp_path / "caches").iterdir():
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
    made, wanted = data.to_dict(), citation_like().to_dict()
    assert made.keys() == wanted.keys()
    assert all(torch.equal(made[key], wanted[key]) for key in wanted)
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

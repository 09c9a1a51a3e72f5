"""Where datasets' files are, damaged and malicious ones, and processes that share a cache."""

from __future__ import annotations

import gzip
import os
import pickle
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit import miniatures
from kit.miniatures import left_behind, snapshot
from torch_geometric.data import Data

from virgo.data import load, load_arxiv
from virgo.errors import DataError, MissingExtra
from virgo.experiments.data import cache as copies
from virgo.experiments.data import loaders
from virgo.experiments.data.catalogue import CATALOGUE, entry
from virgo.experiments.data.inventory import state
from virgo.experiments.data.loaders import quiet
from virgo.experiments.data.ogb_files import evaluator, ogb, readable
from virgo.experiments.data.roots import locate

EVERY = list(CATALOGUE)


pytestmark = pytest.mark.usefixtures("offline")


# --- where files are, and where they go ----------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_absent_ones_say_what_goes_where(name: str, root: Path, cache: Path) -> None:
    row = CATALOGUE[name]
    with pytest.raises(DataError) as caught:
        load(name, root)
    said = str(caught.value)
    assert said.startswith(f"{name}: expected the raw files of {row.folder} in {root / row.folder}")
    for file in row.files:
        assert Path(file.split("|")[0]).name in said
    assert "root=, --root or VIRGO_DATA" in said
    assert state(row, root).state == "absent"
    assert not cache.exists()


@pytest.mark.parametrize("name", [name for name in EVERY if len(CATALOGUE[name].files) > 1])
def test_incomplete_ones_name_what_is_missing(name: str, root: Path, cache: Path) -> None:
    miniatures.write(name, root)
    row = CATALOGUE[name]
    gone = row.files[-1]
    (root / row.folder / gone).unlink()
    said = gone.removeprefix("raw/") if row.kind != "ogb" else gone
    with pytest.raises(DataError, match=rf"got no {said}\. Put them there"):
        load(name, root)
    assert state(row, root).missing == (gone,)
    assert str(state(row, root)) == f"incomplete: no {gone}"
    assert not cache.exists()


def test_arxiv_without_features_points_to_what_there_is(root: Path) -> None:
    miniatures.write("ogbn-arxiv", root)
    (root / "ogbn_arxiv" / "raw" / "node-feat.csv.gz").unlink()
    with pytest.raises(DataError, match=r"got no raw/node-feat.csv.gz.*virgo.data.load_arxiv"):
        load("ogbn-arxiv", root)
    assert load_arxiv(root)[1] is not None


def test_without_a_release_note_ogb_does_not_get_to_ask(root: Path) -> None:
    miniatures.write("ogbl-ddi", root)
    (root / "ogbl_ddi" / "RELEASE_v1.txt").unlink()
    with pytest.raises(DataError, match=r"got no RELEASE_v1\.txt"):
        load("ogbl-ddi", root)


def test_the_cache_is_looked_through_after_the_shared_root(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VIRGO_DATA", raising=False)
    monkeypatch.setattr(
        "virgo.experiments.data.roots._checkouts", lambda: iter([tmp_path / "checkout"])
    )
    miniatures.write("cora", tmp_path / "shared" / "data")
    miniatures.write("imdb-b", cache)
    assert locate(entry("cora")).folder == tmp_path / "shared" / "data" / "Cora"
    assert locate(entry("imdb-b")).folder == cache / "IMDB-BINARY"
    assert len(load("imdb-b").data) == 30
    monkeypatch.setenv("VIRGO_DATA", str(tmp_path / "shared" / "data"))
    assert not locate(entry("imdb-b")).complete  # asked for one root: only there


@pytest.mark.parametrize("name", ["cora", "imdb-b", "ogbn-proteins", "ogbl-collab", "ogbg-molhiv"])
def test_read_only_root_is_read_and_not_written_to(name: str, root: Path, cache: Path) -> None:
    miniatures.write(name, root)
    before = snapshot(root)
    folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        first = load(name, root)
        second = load(name, root)
    finally:
        for folder in folders:
            folder.chmod(stat.S_IRWXU)
    assert snapshot(root) == before
    assert str(first) == str(second)
    folder = CATALOGUE[name].folder
    assert [one.rsplit("-", 1)[0] for one in left_behind(cache)] == [folder]
    kept = cache / "processed" / left_behind(cache)[0] / folder
    assert not (kept / "raw").exists()  # the root has them
    assert state(CATALOGUE[name], root).state == "ready"


def test_loading_says_nothing(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("cora", "imdb-b", "ogbn-arxiv", "ogbl-ddi", "ogbg-molhiv"):
        miniatures.write(name, root)
        load(name, root)
    assert capfd.readouterr() == ("", "")


def test_others_may_speak_while_a_loader_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet():
        print("the loader's")
        other = threading.Thread(target=print, args=("another thread's",))
        other.start()
        other.join()
    print("after")
    assert capfd.readouterr().out == "another thread's\nafter\n"


def test_progress_is_told(root: Path) -> None:
    miniatures.write("imdb-m", root)
    said: list[str] = []
    load("imdb-m", root, lambda done, total, what="": said.append(what))
    assert said == ["reading the raw files", "copying", "preparing, once"]
    said.clear()
    load("imdb-m", root, lambda done, total, what="": said.append(what))
    assert said == ["reading the raw files"]


# --- damage --------------------------------------------------------------------------------------


def cut_bytes(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def cut_rows(path: Path) -> None:
    """As an interrupted export leaves it: an intact archive that ends early."""
    rows = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    path.write_bytes(gzip.compress(b"".join(rows[:-1])))


def spoil_words(path: Path) -> None:
    text = gzip.decompress(path.read_bytes()).decode()
    path.write_bytes(gzip.compress(("not a number" + text[text.index(",") :]).encode()))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def zeros(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


TABLES = [
    (name, file)
    for name in ("ogbn-arxiv", "ogbn-proteins", "ogbl-collab", "ogbg-molpcba")
    for file in CATALOGUE[name].files
    if file.endswith(".gz") or file.endswith(".pt")
]


@pytest.mark.parametrize("harm", [cut_bytes, empty, zeros], ids=lambda harm: harm.__name__)
@pytest.mark.parametrize(("name", "file"), TABLES)
def test_a_damaged_file_of_ogbs_is_named(
    name: str, file: str, harm: Any, root: Path, cache: Path
) -> None:
    file = file.split("|")[0]
    miniatures.write(name, root)
    harm(root / CATALOGUE[name].folder / file)
    with pytest.raises(DataError, match=rf"{name}: .* got a damaged {Path(file).name} .*Fetch"):
        load(name, root)
    assert left_behind(cache) == []


@pytest.mark.parametrize(
    ("name", "file", "harm"),
    [
        ("ogbn-arxiv", "raw/node-feat.csv.gz", cut_rows),
        ("ogbn-arxiv", "raw/node-label.csv.gz", cut_rows),
        ("ogbn-arxiv", "raw/edge.csv.gz", cut_rows),
        ("ogbn-arxiv", "raw/edge.csv.gz", spoil_words),
        ("ogbn-arxiv", "raw/node-feat.csv.gz", spoil_words),
        ("ogbn-proteins", "raw/edge-feat.csv.gz", cut_rows),
        ("ogbg-molpcba", "raw/graph-label.csv.gz", cut_rows),
        ("ogbg-molpcba", "raw/num-edge-list.csv.gz", cut_rows),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_ogb_would_take_without_a_word_is_named(
    name: str, file: str, harm: Any, root: Path, cache: Path
) -> None:
    miniatures.write(name, root)
    harm(root / CATALOGUE[name].folder / file)
    with pytest.raises(DataError, match=rf"got a damaged {Path(file).name}"):
        load(name, root)
    assert left_behind(cache) == []


@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_a_split_of_nodes_that_are_not_there_is_named(part: str, root: Path, cache: Path) -> None:
    miniatures.write("ogbn-arxiv", root)
    miniatures.table(root / "ogbn_arxiv" / "split" / "time" / f"{part}.csv.gz", [1, 30])
    with pytest.raises(DataError, match=rf"damaged {part}.csv.gz \(ids beyond the 30"):
        load("ogbn-arxiv", root)
    miniatures.write("ogbl-ddi", root)
    wrong = {"edge": np.array([[0, 20]]), "edge_neg": np.array([[0, 1]])}
    miniatures.edge_part(root / "ogbl_ddi" / "split" / "target" / f"{part}.pt", wrong)
    with pytest.raises(DataError, match=rf"damaged {part}.pt \(.*nodes beyond the 20"):
        load("ogbl-ddi", root)
    miniatures.edge_part(root / "ogbl_ddi" / "split" / "target" / f"{part}.pt", {"no": wrong})
    with pytest.raises(DataError, match=rf"damaged {part}.pt \(ValueError: no 'source_node'"):
        load("ogbl-ddi", root)
    assert left_behind(cache) == []


def test_edges_of_nodes_that_are_not_there_are_named(root: Path, cache: Path) -> None:
    raw = miniatures.write("ogbl-ppa", root)
    raw["edge"][3, 0] = 30
    miniatures.table(root / "ogbl_ppa" / "raw" / "edge.csv.gz", raw["edge"])
    with pytest.raises(DataError, match=r"damaged edge.csv.gz \(nodes beyond the 30"):
        load("ogbl-ppa", root)
    assert left_behind(cache) == []


@pytest.mark.parametrize("part", ["x", "tx", "allx", "y", "ty", "ally", "graph", "test.index"])
def test_a_damaged_file_of_a_citation_graph_is_named(part: str, root: Path, cache: Path) -> None:
    miniatures.write("pubmed", root)
    cut_bytes(root / "PubMed" / "raw" / f"ind.pubmed.{part}")
    with pytest.raises(DataError, match=rf"PubMed/raw, got a damaged ind\.pubmed\.{part} "):
        load("pubmed", root)
    assert left_behind(cache) == []


@pytest.mark.parametrize("part", ["A", "graph_indicator", "graph_labels"])
def test_a_damaged_file_of_a_social_dataset_is_named(part: str, root: Path, cache: Path) -> None:
    miniatures.write("imdb-m", root)
    path = root / "IMDB-MULTI" / "raw" / f"IMDB-MULTI_{part}.txt"
    whole = path.read_text()
    named = rf"IMDB-MULTI/raw, got a damaged IMDB-MULTI_{part}.txt"
    path.write_text(whole[:-1])
    with pytest.raises(DataError, match=rf"{named} \(it ends in the middle of a line"):
        load("imdb-m", root)
    path.write_text("nonsense\n" + whole)
    with pytest.raises(DataError, match=rf"{named} \(ValueError"):
        load("imdb-m", root)
    assert left_behind(cache) == []


@pytest.mark.parametrize("part", ["A", "graph_indicator", "graph_labels"])
def test_a_social_dataset_that_ends_early_is_named(part: str, root: Path) -> None:
    miniatures.write("imdb-m", root)
    path = root / "IMDB-MULTI" / "raw" / f"IMDB-MULTI_{part}.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(DataError, match=rf"got a damaged IMDB-MULTI_{part}.txt"):
        load("imdb-m", root)


@pytest.mark.parametrize("name", ["photo", "cs"])
def test_a_damaged_npz_file_is_named(name: str, root: Path, cache: Path) -> None:
    arrays = miniatures.write(name, root)["arrays"]
    path = locate(entry(name), root).path(CATALOGUE[name].files[0])
    named = rf"{name}: .* got a damaged {path.name}"
    for harm in (cut_bytes, empty, zeros):
        whole = path.read_bytes()
        harm(path)
        with pytest.raises(DataError, match=named):
            load(name, root)
        path.write_bytes(whole)
    high = np.where(arrays["adj_indices"] == 7, 10**6, arrays["adj_indices"])
    for wrong, reason in (
        ({"labels": arrays["labels"][1:]}, "adj has .* rows, and there are .* labels"),
        ({"adj_indices": high}, "adj names columns beyond"),
        ({"attr_indices": arrays["attr_indices"][1:]}, "attr has .* entries, expected"),
        ({"labels": np.array([{}] * len(arrays["labels"]))}, "Object arrays cannot be loaded"),
    ):
        np.savez(path, **arrays | wrong)
        with pytest.raises(DataError, match=rf"{named} \(ValueError: {reason}"):
            load(name, root)
    with open(path, "wb") as file:
        np.save(file, arrays["labels"])
    with pytest.raises(DataError, match=rf"{named} \(ValueError: one array, expected an archive"):
        load(name, root)
    np.savez(path, **{key: value for key, value in arrays.items() if key != "attr_data"})
    with pytest.raises(DataError, match=named):
        load(name, root)
    assert left_behind(cache) == []


def test_a_damaged_archive_is_named(root: Path, cache: Path) -> None:
    miniatures.write("collab", root)
    archive = miniatures.pack(root, "COLLAB")
    whole = archive.read_bytes()
    cut_bytes(archive)
    with pytest.raises(DataError, match=r"collab: expected an intact .*COLLAB.zip, got .*Fetch"):
        load("collab", root)
    middle = len(whole) // 4
    archive.write_bytes(whole[:middle] + b"\xff\xff\xff" + whole[middle + 3 :])
    with pytest.raises(DataError, match=r"collab: expected an intact .*COLLAB.zip, got"):
        load("collab", root)
    archive.write_bytes(whole.replace(b"graph_labels", b"other_labels"))
    with pytest.raises(DataError, match=r"got no 'COLLAB_graph_labels.txt'"):
        load("collab", root)
    assert left_behind(cache) == []


def test_a_damaged_copy_in_the_cache_says_what_to_do(root: Path, cache: Path) -> None:
    miniatures.write("ogbl-ddi", root)
    load("ogbl-ddi", root)
    folder = cache / "processed" / left_behind(cache)[0]
    release = folder / "ogbl_ddi" / "RELEASE_v1.txt"
    release.unlink()
    with pytest.raises(DataError, match=r"intact processed copy in .*Delete that folder"):
        load("ogbl-ddi", root)
    release.write_text("")
    cut_bytes(folder / "ogbl_ddi" / "processed" / "geometric_data_processed.pt")
    with pytest.raises(DataError, match=r"intact processed copy in .*Delete that folder"):
        load("ogbl-ddi", root)
    shutil.rmtree(folder)
    assert load("ogbl-ddi", root).data.num_nodes == 20


# --- safe loading --------------------------------------------------------------------------------


class Malicious:
    """What a pickle may do while it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("zipped", [False, True], ids=["legacy", "zip"])
@pytest.mark.parametrize("part", ["train", "valid", "test", "split_dict"])
def test_a_malicious_split_is_not_run(
    part: str, zipped: bool, root: Path, tmp_path: Path, cache: Path
) -> None:
    miniatures.write("ogbl-ddi", root)
    bait = tmp_path / "bait"
    place = root / "ogbl_ddi" / "split" / "target" / f"{part}.pt"
    evil = {"edge": Malicious(bait), "edge_neg": np.zeros((1, 2))}
    torch.save(evil, place, _use_new_zipfile_serialization=zipped)
    if part == "split_dict":
        load("ogbl-ddi", root)  # OGB's short cut: not one of its files, and not copied
    else:
        with pytest.raises(DataError, match=rf"got a damaged {part}.pt \(UnpicklingError"):
            load("ogbl-ddi", root)
    assert not bait.exists()
    pickle.loads(pickle.dumps(Malicious(bait)))
    assert bait.exists()  # negative control: it would have been


def test_safe_loading_is_left_as_it_was(root: Path, tmp_path: Path) -> None:
    class Own:
        pass

    before = torch.serialization.get_safe_globals()
    try:
        torch.serialization.add_safe_globals([Own, Data])  # as a user, or PyG, may have done
        have = set(torch.serialization.get_safe_globals())
        miniatures.write("ogbl-citation2", root)
        load("ogbl-citation2", root)
        load("ogbl-citation2", root)
        assert set(torch.serialization.get_safe_globals()) == have
        with pytest.raises(KeyError), readable():
            raise KeyError
        assert set(torch.serialization.get_safe_globals()) == have
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)
    part = root / "ogbl_citation2" / "split" / "time" / "train.pt"
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        torch.load(part)  # negative control: the user's own loading is as strict as ever
    with readable():
        assert torch.load(part).keys() == {"source_node", "target_node"}


def test_arrays_of_objects_are_not_readable(tmp_path: Path) -> None:
    path = tmp_path / "objects.pt"
    torch.save({"edge": np.array([{}, []], dtype=object)}, path)
    with readable(), pytest.raises(pickle.UnpicklingError):
        torch.load(path)


def test_ogb_does_not_look_for_a_newer_version() -> None:
    code = (
        "import sys, threading, socket\n"
        "def refuse(*a, **k): print('asked'); raise OSError\n"
        "socket.getaddrinfo = refuse\n"
        "from virgo.experiments.data.ogb_files import ogb\n"
        "ogb('nodeproppred')\n"
        "print(len(threading.enumerate()), 'outdated' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "1 False\n", done.stderr


def test_without_ogb_the_extra_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    miniatures.write("ogbl-ddi", root)
    loaders.__getattr__.cache_clear()
    monkeypatch.setitem(sys.modules, "ogb.linkproppred", None)
    with pytest.raises(MissingExtra, match=r"requires ogb. Run: pip install 'virgo-gnn\[data"):
        load("ogbl-ddi", root)


def test_evaluators_are_ogbs_own() -> None:
    assert type(evaluator("ogbn-arxiv")) is ogb("nodeproppred").Evaluator
    assert evaluator("ogbl-ddi").eval_metric == "hits@20"
    with pytest.raises(DataError, match="cora: expected a dataset of OGB's"):
        evaluator("cora")


# --- processes and files at once -----------------------------------------------------------------

LOAD = (
    "import sys\nfrom virgo.data import load\nprint(load(sys.argv[1], sys.argv[2]).data.num_edges)"
)


@pytest.mark.slow
def test_two_processes_at_once_on_an_empty_cache(root: Path, cache: Path) -> None:
    miniatures.write("ogbn-arxiv", root)
    command = [sys.executable, "-W", "error::UserWarning", "-c", LOAD, "ogbn-arxiv", str(root)]
    workers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for worker in workers:
        out, err = worker.communicate(timeout=240)
        assert (worker.returncode, out, err) == (0, "120\n", "")
    assert len(left_behind(cache)) == 1


def test_only_one_of_many_prepares(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    miniatures.write("imdb-b", root)
    source = locate(entry("imdb-b"), root)
    made: list[int] = []
    started = threading.Barrier(4)

    def process(aside: Path) -> None:
        made.append(1)

    def work() -> None:
        started.wait()
        copies.prepared(source, process)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert made == [1]
    assert len(left_behind(cache)) == 1


def test_what_a_killed_process_left_is_swept(root: Path, cache: Path) -> None:
    miniatures.write("imdb-b", root)
    final = copies.final_folder(locate(entry("imdb-b"), root))
    assert final is not None
    half = final.parent / f".{final.name}-abc"
    (half / "IMDB-BINARY" / "raw").mkdir(parents=True)
    other = final.parent / ".Cora-0123-abc"  # of another dataset, whose process may be alive
    other.mkdir()
    load("imdb-b", root)
    assert sorted(left_behind(cache)) == sorted([other.name, final.name])


def test_without_locks_the_rename_alone_keeps_it_safe(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows
    miniatures.write("imdb-b", root)
    assert len(load("imdb-b", root).data) == 30
    assert len(left_behind(cache)) == 1


def test_an_interrupted_preparation_leaves_nothing(root: Path, cache: Path) -> None:
    miniatures.write("imdb-b", root)

    def interrupted(aside: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copies.prepared(locate(entry("imdb-b"), root), interrupted)
    assert left_behind(cache) == []


def test_a_full_disk_is_not_a_damaged_file(root: Path, cache: Path) -> None:
    miniatures.write("imdb-b", root)

    def full(aside: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match=r"expected a writable cache, got .*No space left"):
        copies.prepared(locate(entry("imdb-b"), root), full)
    assert left_behind(cache) == []


def test_large_files_are_read_once_for_their_digest(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "LARGE", 1)
    miniatures.write("imdb-b", root)
    row = entry("imdb-b")
    source = locate(row, root)
    path = source.path(row.files[2])
    for file in row.files:
        os.utime(source.path(file), (1_600_000_000, 1_600_000_000))
    assert copies.final_folder(source, hashing=False) is None
    assert state(row, root).state == "raw files"
    first = copies.final_folder(source)
    assert len(list((cache / "digests").iterdir())) == 3
    assert copies.final_folder(source, hashing=False) == first
    text = path.read_text()
    path.write_text(text.replace("0", "1", 1))  # as long as it was, but of another time
    assert copies.final_folder(source, hashing=False) is None
    assert copies.final_folder(source) != first
    # just written: its time may not tell the next change from this one, so nothing is remembered
    assert copies.final_folder(source, hashing=False) is None
    for note in (cache / "digests").iterdir():
        note.write_text("nonsense")
    path.write_text(text)
    assert copies.final_folder(source) == first


def test_the_same_files_elsewhere_share_a_copy(root: Path, cache: Path, tmp_path: Path) -> None:
    miniatures.write("imdb-b", root)
    load("imdb-b", root)
    shutil.copytree(root, tmp_path / "elsewhere")
    load("imdb-b", tmp_path / "elsewhere")
    assert len(left_behind(cache)) == 1

"""Graphs on disk: what is built, from every format, under little memory, kills and bad input.

The oracle is ``kit.edges.reference``: ``np.lexsort`` of all edges in memory. Everything must be
equal bit for bit, weights too, as equal edges are added in the order of the input.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import commands
from kit import edges as kit
from kit.edges import Edges, random_edges, reference
from torch_geometric.data import Data

import virgo
from virgo.cli import graphs
from virgo.errors import DataError, GraphError, MissingExtra, OptionError
from virgo.graph.disk import (
    Header,
    build,
    building,
    journal,
    open_array,
    places,
    read_header,
    sorting,
    spills,
    verify,
)
from virgo.graph.disk.describing import describe, names
from virgo.graph.disk.format import working_folder
from virgo.graph.disk.options import memory_of

pytest.importorskip("pyarrow", reason="reading Parquet and CSV needs pyarrow")
#: So little that a few thousand edges are many chunks, runs and buckets.
TINY = 2**16


def assert_equal(path: Path, expected: dict[str, kit.Rows]) -> Header:
    header = verify(path)
    for order, rows in expected.items():
        np.testing.assert_array_equal(open_array(path, header, f"{order}_pointer"), rows.pointer)
        np.testing.assert_array_equal(open_array(path, header, f"{order}_columns"), rows.columns)
        if rows.weights is not None:
            found = open_array(path, header, f"{order}_weights")
            if header.symmetric:  # the same arrays serve both orders, as sums are symmetric
                found = open_array(path, header, "in_weights")
            np.testing.assert_array_equal(found, rows.weights)
    assert header.num_edges == expected["in"].columns.size
    rows = np.repeat(np.arange(header.num_nodes), np.diff(expected["in"].pointer))
    assert header.self_loops == np.count_nonzero(rows == expected["in"].columns)
    return header


def sums(header: Header) -> dict[str, str]:
    return {name: one.sha256 for name, one in header.files.items()}


# --- every format --------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("kind", kit.WRITERS)
def test_every_format_gives_the_same_graph(kind: str, weighted: bool, tmp_path: Path) -> None:
    if weighted and kind not in kit.WEIGHT:
        pytest.skip("a format without weights")
    edges = random_edges(1, 300, 2500, weighted=weighted, hub=0.1)
    edges.sources[0], edges.targets[0] = 299, 7
    source = kit.WRITERS[kind](edges, tmp_path)
    column = kit.WEIGHT[kind] if weighted else {}
    header = build(source, tmp_path / "graph", memory=TINY, **column)
    assert_equal(tmp_path / "graph", reference(edges, 300))
    assert (header.num_nodes, header.weighted, header.index) == (300, weighted, "int32")
    assert header.source["name"] == str(source)
    both = build(source, tmp_path / "both", memory=TINY, symmetric=True, **column)
    assert_equal(tmp_path / "both", reference(edges, 300, symmetric=True))
    assert set(both.files) == {"in_pointer", "in_columns", *(["in_weights"] * weighted)}


@pytest.mark.parametrize("loops", ["keep", "drop"])
@pytest.mark.parametrize("options", [{}, {"symmetric": True}, {"deduplicate": True}], ids=str)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_every_option(weighted: bool, options: dict[str, Any], loops: str, tmp_path: Path) -> None:
    edges = random_edges(2, 60, 4000, weighted=weighted)
    kit.WRITERS["npz"](edges, tmp_path)
    for number, memory in enumerate((TINY, 2**19, "1GB")):
        out = tmp_path / str(number)
        build(tmp_path / "edges.npz", out, num_nodes=70, self_loops=loops, memory=memory, **options)
        assert_equal(out, reference(edges, 70, self_loops=loops, **options))
    assert sums(read_header(tmp_path / "0")) == sums(read_header(tmp_path / "2"))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_nodes=st.sampled_from([1, 2, 9, 1023, 1025, 40_000, 10**6]),
    num_edges=st.integers(1, 1500),
    hub=st.sampled_from([0.0, 0.5, 1.0]),
    weighted=st.booleans(),
    symmetric=st.booleans(),
    deduplicate=st.booleans(),
    drop=st.booleans(),
)
def test_random_graphs(
    seed: int,
    num_nodes: int,
    num_edges: int,
    hub: float,
    weighted: bool,
    symmetric: bool,
    deduplicate: bool,
    drop: bool,
) -> None:
    edges = random_edges(seed, num_nodes, num_edges, weighted=weighted, hub=hub)
    if drop and (edges.sources == edges.targets).all():
        return
    options: dict[str, Any] = {"symmetric": symmetric, "deduplicate": deduplicate}
    options["self_loops"] = "drop" if drop else "keep"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = kit.WRITERS["npz columns"](edges, folder)
        build(source, folder / "graph", num_nodes=num_nodes, memory=TINY, **options)
        assert_equal(folder / "graph", reference(edges, num_nodes, **options))
        assert not working_folder(folder / "graph").exists()


def test_symmetric_is_pygs_to_undirected(tmp_path: Path) -> None:
    from torch_geometric.utils import to_undirected

    edges = random_edges(3, 40, 900, weighted=True)
    source = kit.WRITERS["npz"](edges, tmp_path)
    header = build(source, tmp_path / "graph", symmetric=True, memory=TINY)
    assert edges.weights is not None
    index, weight = to_undirected(
        torch.from_numpy(edges.index), torch.from_numpy(edges.weights), num_nodes=40
    )
    # PyG sorts by its first row; the graph being symmetric, that is our order by target
    columns = open_array(tmp_path / "graph", header, "in_columns")
    np.testing.assert_array_equal(columns, index[1].numpy())
    found = np.array(open_array(tmp_path / "graph", header, "in_weights"))
    # two or a few dozen numbers of order one, added in another order
    np.testing.assert_allclose(found, weight.numpy(), rtol=0, atol=1e-13)
    rows = np.repeat(np.arange(40), np.diff(open_array(tmp_path / "graph", header, "in_pointer")))
    dense = np.zeros((40, 40))
    dense[rows, open_array(tmp_path / "graph", header, "in_columns")] = found
    assert (dense == dense.T).all(), "sums of the same weights in another order"


def test_a_cell_that_does_not_fit_is_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node has nearly all edges, more than fit: its row is sorted in parts."""
    divided: list[int] = []
    split = spills.split
    monkeypatch.setattr(
        spills,
        "split",
        lambda *args: divided.append(args[1]) or split(*args),  # type: ignore[func-returns-value]
    )
    for weighted in (False, True):
        edges = random_edges(4, 5000, 30_000, weighted=weighted, hub=0.97)
        turned = Edges(edges.targets, edges.sources, edges.weights)
        for number, some in enumerate((edges, turned)):
            folder = tmp_path / f"{weighted}-{number}"
            folder.mkdir()
            source = kit.WRITERS["npz"](some, folder)
            build(source, folder / "graph", memory=TINY, num_nodes=5000)
            assert_equal(folder / "graph", reference(some, 5000))
    assert len(divided) >= 8


def test_64_bit_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edges = random_edges(5, 500, 3000, weighted=True)
    source = kit.WRITERS["npz"](edges, tmp_path)
    narrow = build(source, tmp_path / "narrow", memory=TINY)
    for module in (sorting, building):
        monkeypatch.setattr(module, "NARROW_NODES", 499)
    wide = build(source, tmp_path / "wide", memory=TINY)
    assert (narrow.index, wide.index) == ("int32", "int64")
    assert wide.files["in_columns"].dtype == "<i8"
    assert_equal(tmp_path / "wide", reference(edges, 500))


def test_ids_beyond_31_bits(tmp_path: Path) -> None:
    """The greatest ids that are numbers; only the rows that have edges are looked at."""
    edges = Edges(np.array([2**32 - 1, 3, 2**31]), np.array([5, 2**31, 2**32 - 1]))
    source = kit.WRITERS["npy"](edges, tmp_path)
    with pytest.raises(
        GraphError, match="expected ids that number the nodes from 0 on, got one of"
    ):
        build(source, tmp_path / "graph")
    header = build(source, tmp_path / "graph", relabel=True)
    expected = Edges(np.array([3, 0, 2]), np.array([1, 2, 3]))
    assert_equal(tmp_path / "graph", reference(expected, 4))
    assert list(names(tmp_path / "graph", header)) == [3, 5, 2**31, 2**32 - 1]


# --- ids -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "parquet", "npy", "npz packed"])
def test_relabelled_integers(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    ids = np.unique(rng.integers(-(2**62), 2**62, 400))
    ids[0], ids[-1] = -(2**63), 2**63 - 1
    edges = random_edges(6, ids.size, 3000)
    edges.sources[: ids.size], edges.targets[0] = np.arange(ids.size), ids.size - 1
    named = Edges(ids[edges.sources], ids[edges.targets])
    if kind == "parquet":  # its sources are 32-bit here
        small = np.arange(ids.size) * 5 - 700
        named, ids = Edges(small[edges.sources], small[edges.targets]), small
    source = kit.WRITERS[kind](named, tmp_path)
    header = build(source, tmp_path / "graph", relabel=True, memory=TINY)
    assert_equal(tmp_path / "graph", reference(edges, ids.size))
    np.testing.assert_array_equal(open_array(tmp_path / "graph", header, "ids"), ids)
    assert header.ids == "int64"


@pytest.mark.parametrize("kind", ["csv", "csv with header", "quoted", "parquet", "dictionary"])
def test_strings(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    drawn = {f"{'aé漢z'[i % 4] * (1 + i % 3)}{rng.integers(10**6)}" for i in range(300)}
    texts = sorted(drawn | {"x", "é", "z"}, key=lambda text: text.encode())
    edges = random_edges(7, len(texts), 2500, weighted=True)
    edges.sources[: len(texts)] = np.arange(len(texts))
    pairs = [
        (texts[s], texts[t], w)
        for s, t, w in zip(edges.sources, edges.targets, edges.weights.tolist(), strict=True)
    ]
    if kind in ("parquet", "dictionary"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = [pa.array(list(column)) for column in zip(*pairs, strict=True)]
        if kind == "dictionary":
            columns[:2] = [column.dictionary_encode() for column in columns[:2]]
        pq.write_table(pa.table(columns, names=["from", "to", "w"]), tmp_path / "edges.parquet")
        source, column = tmp_path / "edges.parquet", "w"
    else:
        quote = '"' if kind == "quoted" else ""
        lines = [f"{quote}{s}{quote},{quote}{t}{quote},{w!r}" for s, t, w in pairs]
        head = ["src,dst,w"] if kind == "csv with header" else []
        source, column = tmp_path / "edges.csv", "w" if head else "2"
        source.write_text("\n".join(head + lines), encoding="utf-8")
    header = build(source, tmp_path / "graph", memory=TINY, weight_column=column)
    assert header.ids == "string"
    assert list(names(tmp_path / "graph", header)) == texts
    assert_equal(tmp_path / "graph", reference(edges, len(texts)))


def test_columns_by_name_and_number(tmp_path: Path) -> None:
    edges = random_edges(8, 50, 400, weighted=True)
    lines = [
        f"{w!r};x;{t};{s}"
        for s, t, w in zip(edges.sources, edges.targets, edges.weights.tolist(), strict=True)
    ]
    (tmp_path / "a.csv").write_text("w;what;to where;from\n" + "\n".join(lines))
    (tmp_path / "b.csv").write_text("\n".join(lines))
    one = build(
        tmp_path / "a.csv",
        tmp_path / "a",
        source_column="from",
        target_column="to where",
        weight_column="w",
        num_nodes=50,
    )
    two = build(
        tmp_path / "b.csv",
        tmp_path / "b",
        source_column="3",
        target_column="2",
        weight_column="0",
        num_nodes=50,
    )
    assert sums(one) == sums(two)
    assert_equal(tmp_path / "a", reference(edges, 50))
    with pytest.raises(OptionError, match=r"expected one of the columns w, what, .* got 'weight'"):
        build(tmp_path / "a.csv", tmp_path / "c", weight_column="weight")
    with pytest.raises(OptionError, match="expected different columns"):
        build(tmp_path / "b.csv", tmp_path / "c", source_column="3", target_column="3")
    with pytest.raises(OptionError, match="expected both or neither"):
        build(tmp_path / "b.csv", tmp_path / "c", source_column="3")


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("a,b\n1,2\n", {}, 1),  # names above numbers
        ("a,b\nc,d\n", {}, 2),  # strings throughout
        ("a,b\nc,d\n", {"header": "yes"}, 1),
        ("src,dst\nc,d\n", {}, 1),
        ("src,dst\n1,2\n", {"header": "no"}, 2),
        ("1,2\n3,4\n", {}, 2),
        ("1,2\n3,4\n", {"header": "yes"}, 1),
        ("1 2", {}, 1),
        ("1,2\nx,4\n", {"id_type": "string"}, 2),
    ],
)
def test_headers(text: str, options: dict[str, str], expected: int, tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text(text)
    assert build(tmp_path / "edges.csv", tmp_path / "graph", **options).num_edges == expected


# --- real graphs ---------------------------------------------------------------------------------


def assert_as_in_memory(path: Path, edge_index: torch.Tensor, num_nodes: int) -> None:
    header = verify(path)
    graph = virgo.Graph(edge_index, num_nodes)
    for order, rows in (("in", graph.by_target), ("out", graph.by_source)):
        pointer = open_array(path, header, f"{order}_pointer")
        np.testing.assert_array_equal(pointer, rows.pointer)
        number = np.repeat(np.arange(num_nodes), np.diff(pointer))
        sorted_columns = rows.columns[np.lexsort((rows.columns, number))]
        np.testing.assert_array_equal(open_array(path, header, f"{order}_columns"), sorted_columns)


@pytest.mark.data
def test_cora(cora: Any, tmp_path: Path) -> None:
    torch.save(cora.edge_index, tmp_path / "cora.pt")
    build(tmp_path / "cora.pt", tmp_path / "graph", num_nodes=2708, memory=TINY)
    assert_as_in_memory(tmp_path / "graph", cora.edge_index, 2708)


@pytest.mark.data
@pytest.mark.parametrize(("name", "num_nodes"), [("ogbl_ddi", 4267), ("ogbn_arxiv", 169_343)])
def test_ogb(name: str, num_nodes: int, data_root: Path, tmp_path: Path) -> None:
    folder = data_root / name
    if not (folder / "raw" / "edge.csv.gz").is_file():
        pytest.skip(f"no real data: {folder} has no raw/edge.csv.gz")
    header = build(folder, tmp_path / "graph", memory="64MB")
    raw = gzip.decompress((folder / "raw" / "edge.csv.gz").read_bytes()).replace(b"\n", b",")
    edges = torch.from_numpy(np.fromstring(raw.decode(), dtype=np.int64, sep=",").reshape(-1, 2).T)
    assert (header.num_nodes, header.num_edges) == (num_nodes, edges.size(1))
    assert_as_in_memory(tmp_path / "graph", edges, num_nodes)


# --- kills and restarts --------------------------------------------------------------------------


def killed(folder: Path, kind: str, edges: Edges, kills: int, **options: Any) -> dict[str, Any]:
    """Build with kills, and compare with a build in peace; returns what the script said."""
    source = kit.WRITERS[kind](edges, folder)
    command = [
        sys.executable,
        "-W",
        "ignore",
        kit.__file__,
        source,
        folder / "graph",
        1,
        kills,
        json.dumps(options),
    ]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    peaceful = build(source, folder / "peaceful", **{**options, "memory": "1GB"})
    assert said["files"] == sums(peaceful)
    left = {path.name for path in folder.iterdir()}
    assert not {name for name in left if name.startswith(".")}
    return said


def test_killed_builds_go_on(tmp_path: Path) -> None:
    edges = random_edges(9, 2000, 50_000, weighted=True)
    said = killed(tmp_path, "csv", edges, 6, memory=2**20, weight_column="w")
    stages = [one["stage"] for one in said["stages"] if isinstance(one, dict)]
    assert len(stages) >= 3, said["stages"]
    assert set(stages) & {"in", "out"}, "no kill came late enough to be of interest"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv.gz", "parquet", "npz packed", "npy"])
def test_killed_builds_of_every_kind(kind: str, tmp_path: Path) -> None:
    edges = random_edges(10, 5000, 200_000)
    (tmp_path / "spilled").mkdir()
    killed(tmp_path, kind, edges, 30, memory=2**18, deduplicate=True, tmp=str(tmp_path / "spilled"))


@pytest.mark.slow
def test_killed_builds_with_strings(tmp_path: Path) -> None:
    edges = random_edges(11, 5000, 100_000)
    killed(tmp_path, "csv", edges, 30, memory=2**18, id_type="string", symmetric=True)


class Stop(BaseException):
    """As abrupt as an interrupt."""


def interrupt(source: Path, out: Path, after: int, **options: Any) -> list[str]:
    """Build until the ``after``-th progress; returns what was said until then."""
    said: list[str] = []

    def progress(done: int, total: int, what: str) -> None:
        assert 0 <= done <= total
        said.append(what)
        if len(said) == after:
            raise Stop

    with contextlib.suppress(Stop):
        build(source, out, progress=progress, **options)
    return said


def test_what_is_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "INTERVAL", 0.0)
    monkeypatch.setattr(journal.Work, "note", journal.Work.note)  # so that it is put back
    kit.wait_for_entries(journal)
    edges = random_edges(12, 800, 20_000)
    source = kit.WRITERS["csv"](edges, tmp_path)
    whole = interrupt(source, tmp_path / "whole", -1, memory=2**17)
    stage_of = {what.split(" edges ")[1] for what in whole}
    assert stage_of == {"read", "sorted by target", "sorted by source"}
    assert len(whole) > 40
    said: list[str] = []
    for _ in range(100):
        said += interrupt(source, tmp_path / "graph", 9, memory=2**17)
        if (tmp_path / "graph").exists():
            break
        assert working_folder(tmp_path / "graph").is_dir()
        with pytest.raises(GraphError, match=r"got an unfinished build: .*edges"):
            describe(tmp_path / "graph")
        with pytest.raises(GraphError, match="got an unfinished build"):
            read_header(tmp_path / "graph")
    # the step in which a build is stopped was entered already; those under way are taken again
    assert len(whole) <= len(said) <= 2 * len(whole)
    assert_equal(tmp_path / "graph", reference(edges, 800))


@pytest.mark.parametrize("change", ["options", "memory", "source", "journal"])
def test_a_changed_build_starts_afresh(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "INTERVAL", 0.0)
    edges = random_edges(13, 300, 9000)
    source = kit.WRITERS["npy"](edges, tmp_path)
    options: dict[str, Any] = {"memory": TINY, "num_nodes": 300}
    interrupt(source, tmp_path / "graph", 25, **options)
    expected: dict[str, Any] = {}
    if change == "options":
        options["deduplicate"] = expected["deduplicate"] = True
    elif change == "memory":
        options["memory"] = 2**18
    elif change == "source":
        edges = random_edges(14, 300, 9000)
        kit.WRITERS["npy"](edges, tmp_path)
    else:
        (working_folder(tmp_path / "graph") / "journal.json").write_text("{")
    build(source, tmp_path / "graph", **options)
    assert_equal(tmp_path / "graph", reference(edges, 300, **expected))


def test_one_build_at_a_time(tmp_path: Path) -> None:
    source = kit.WRITERS["npy"](random_edges(15, 300, 500), tmp_path)

    def progress(done: int, total: int, what: str) -> None:
        build(source, tmp_path / "graph")

    with pytest.raises(GraphError, match="expected one build at a time, got another process"):
        build(source, tmp_path / "graph", progress=progress)
    build(source, tmp_path / "graph")
    assert {one.name for one in tmp_path.iterdir()} == {"edges.npy", "graph"}


def test_what_exists_is_replaced_only_if_asked(tmp_path: Path) -> None:
    one = kit.WRITERS["npy"](random_edges(16, 30, 50), tmp_path)
    build(one, tmp_path / "graph")
    before = sums(read_header(tmp_path / "graph"))
    kit.WRITERS["npy"](random_edges(17, 30, 60), tmp_path)
    with pytest.raises(GraphError, match="expected a new folder, got one that exists"):
        build(one, tmp_path / "graph")
    assert sums(read_header(tmp_path / "graph")) == before
    assert build(one, tmp_path / "graph", force=True).num_edges == 60
    assert read_header(tmp_path / "graph").num_edges == 60
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    with pytest.raises(GraphError, match="expected a graph to replace, got something without"):
        build(one, tmp_path / "mine", force=True)
    assert (tmp_path / "mine" / "thesis.txt").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"edges.npy", "graph", "mine"}


def test_spills_go_where_they_are_told(tmp_path: Path) -> None:
    source = kit.WRITERS["npy"](random_edges(18, 300, 5000), tmp_path)
    seen: set[str] = set()

    def progress(done: int, total: int, what: str) -> None:
        seen.update(path.name for path in (tmp_path / "other").rglob("*"))

    (tmp_path / "other").mkdir()
    build(source, tmp_path / "graph", tmp=tmp_path / "other", memory=TINY, progress=progress)
    assert {"in.spill", "in.index", "out.spill"} <= seen
    assert not any((tmp_path / "other").iterdir())


# --- bad input -----------------------------------------------------------------------------------


def _cut(kind: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = kit.WRITERS[kind](random_edges(19, 50, 4000), folder)
        if path.is_dir():
            path = path / "raw" / "edge.csv.gz"
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        return path

    return write


def _lines(text: str, name: str = "edges.csv") -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(text.encode())
        return folder / name

    return write


def _array(**arrays: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        np.savez(folder / "edges.npz", **arrays)
        return folder / "edges.npz"

    return write


def _pickled(folder: Path) -> Path:
    np.save(folder / "edges.npy", np.array([[{}], [{}]], dtype=object), allow_pickle=True)
    return folder / "edges.npy"


def _mixed(folder: Path) -> Path:
    _lines("1,2\n")(folder)
    np.save(folder / "edges.npy", np.zeros((2, 3), np.int64))
    return folder


def _nulls(folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1, 2, None], "b": [1, 2, 3]}), folder / "e.parquet")
    return folder / "e.parquet"


def _floats(folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1.0, 2.0], "b": [1, 2]}), folder / "e.parquet")
    return folder / "e.parquet"


def _short_ogb(folder: Path) -> Path:
    root = kit.WRITERS["ogb"](random_edges(20, 50, 400), folder)
    (root / "raw" / "num-edge-list.csv.gz").write_bytes(gzip.compress(b"401\n"))
    return root


def _many_ogb(folder: Path) -> Path:
    root = kit.WRITERS["ogb"](random_edges(20, 50, 400), folder)
    (root / "raw" / "num-node-list.csv.gz").write_bytes(gzip.compress(b"20\n30\n"))
    return root


PAIR = np.array([[0, 1, 2], [1, 2, 0]])
LONG = "".join(f"{i},{i + 1}\n" for i in range(3000))
WEIGHTED = {"weight_column": "2"}
BAD: dict[str, tuple[Callable[[Path], Path], dict[str, Any], str]] = {
    "cut csv.gz": (_cut("csv.gz"), {}, "expected an intact gzip file, got Compressed file ended"),
    "cut parquet": (_cut("parquet"), {}, "expected an intact Parquet file, got "),
    "cut npy": (_cut("npy"), {}, "expected an intact .npy file, got "),
    "cut npz": (_cut("npz"), {}, "expected an intact .npz file, got "),
    "cut packed npz": (_cut("npz packed"), {}, "expected an intact .npz file, got "),
    "cut pt": (_cut("pt"), {}, "expected an intact file of torch.save with an edge_index, got "),
    "cut ogb": (_cut("ogb"), {}, "expected an intact gzip file"),
    "a word": (_lines(LONG + "7,seven\n8,9\n"), {},
               r"edges.csv: line 3001: expected ids that are 64-bit integers .* got '7,seven'"),
    "three columns": (_lines(LONG + "7,8,9\n" + LONG), {}, "line 3001: expected 2 columns, got"),
    "one column": (_lines(LONG + "7\n" + LONG), {}, "line 3001: expected 2 columns, got '7'"),
    "no id": (_lines("a,b\n\n1,2\n,3\n"), {}, "line 4: expected two ids, got ',3'"),
    "no string": (_lines("src,dst\na,b\n,c\n"), {}, "line 3: expected two ids, got ',c'"),
    "a half id": (_lines("1,2\n1.5,3\n"), {}, "line 2: expected ids that are 64-bit"),
    "a huge id": (_lines("1,2\n9223372036854775808,3\n"), {}, "line 2: expected ids that are 64"),
    "no columns": (_lines("one\ntwo\n"), {}, "line 1: expected two ids between commas"),
    "not utf-8": (lambda folder: _latin(folder), {}, "line 2: expected UTF-8"),
    "negative": (_lines("# c\n1,2\n\n3,-4\n"), {},
                 r"line 4: expected ids from 0 to 4,294,967,295, got 3 and -4. Give --relabel"),
    "negative npy": (_array(edge_index=PAIR - 1), {}, r"edges.npz: edge 0: .* got -1 and 0"),
    "too great": (_array(edge_index=PAIR), {"num_nodes": 2},
                  r"edge 1: expected ids from 0 to 1, got 1 and 2. Correct it, give another"),
    "beyond 2^32": (_array(edge_index=PAIR * 2**33), {}, r"edge 0: .* got 0 and 8589934592"),
    "nan": (_lines("1,2,0.5\n2,3,nan\n"), WEIGHTED, "line 2: expected a finite weight, got nan"),
    "infinite": (_array(edge_index=PAIR, edge_weight=np.array([1, 2, np.inf])), {},
                 "edge 2: expected a finite weight, got inf"),
    "a weight's word": (_lines("1,2,0.5\n2,3,x\n"), WEIGHTED, "line 2: expected a finite number"),
    "few weights": (_array(edge_index=PAIR, edge_weight=np.ones(2)), {},
                    "expected as many sources as targets and weights, got 2 and 3"),
    "complex weights": (_array(edge_index=PAIR, edge_weight=np.ones(3, complex)), {},
                        "expected numbers as weights, got complex128"),
    "empty file": (_lines(""), {}, "expected at least one edge, got none"),
    "only a header": (_lines("src,dst\n"), {}, "expected at least one edge, got none"),
    "empty array": (_array(edge_index=np.zeros((2, 0), int)), {}, "expected at least one edge"),
    "empty strings": (_lines("", "a.csv"), {"id_type": "string"}, "expected at least one edge"),
    "only loops": (_array(edge_index=PAIR[[0, 0]]), {"self_loops": "drop"},
                   "expected an edge between two nodes, got 3 self-loops"),
    "three rows": (_array(edge_index=np.zeros((3, 4), int)), {}, r"shape \[2, E\] or \[E, 2\]"),
    "other arrays": (_array(x=PAIR), {}, "expected an array edge_index, or src and dst, got x"),
    "float ids": (_array(edge_index=PAIR * 1.0), {}, "expected integer ids, got float64"),
    "objects": (_pickled, {}, "expected an intact .npy file, got "),
    "nulls": (_nulls, {}, "row 2: expected a value in the column a, got none"),
    "float column": (_floats, {}, "expected integers or strings in the column a, got double"),
    "missing": (lambda folder: folder / "none.csv", {}, "none.csv: expected edges as .parquet"),
    "empty folder": (lambda folder: folder, {}, "got a folder without any"),
    "mixed folder": (_mixed, {}, "expected files of one kind, got .csv, .npy"),
    "unknown": (_lines("1,2", "edges.doc"), {}, "got a file of another kind"),
    "no edge_index": (lambda folder: _saved(folder), {}, "expected a tensor edge_index or a dict"),
    "short ogb": (_short_ogb, {}, "expected 401 edges, got 400"),
    "many graphs": (_many_ogb, {}, "expected one graph, got 2"),
}  # fmt: skip


def _latin(folder: Path) -> Path:
    (folder / "edges.csv").write_bytes("src,dst\né,b\n".encode("latin-1"))
    return folder / "edges.csv"


def _saved(folder: Path) -> Path:
    torch.save({"x": torch.zeros(3)}, folder / "data.pt")
    return folder / "data.pt"


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str, tmp_path: Path) -> None:
    write, options, message = BAD[case]
    (tmp_path / "in").mkdir()
    source = write(tmp_path / "in")
    with pytest.raises(DataError, match=message):
        build(source, tmp_path / "graph", memory=TINY, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["in"], "something was left"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": "lots"}, "expected a size such as 2GB"),
        ({"memory": "1KB"}, "expected at least 64KB"),
        ({"self_loops": "add"}, "expected one of keep, drop, got 'add'"),
        ({"num_nodes": 0}, "expected at least 1, got 0"),
        ({"num_nodes": 4, "relabel": True}, "expected none with relabel"),
        ({"header": "maybe"}, "expected one of auto, yes, no"),
        ({"id_type": "uuid"}, "expected one of auto, int64, string"),
    ],
    ids=str,
)
def test_bad_options(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = kit.WRITERS["npy"](random_edges(21, 5, 9), tmp_path)
    with pytest.raises(OptionError, match=message):
        build(source, tmp_path / "graph", **options)


def test_memory() -> None:
    assert memory_of("2GB") == memory_of("2g") == memory_of("2 GiB") == memory_of(2**31)
    assert memory_of("0.5MB") == 2**19


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = kit.WRITERS["csv"](random_edges(22, 5, 9), tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow.csv", None)
    with pytest.raises(
        MissingExtra, match=r"requires pyarrow. Run: pip install 'virgo-gnn\[scale\]'"
    ):
        build(source, tmp_path / "graph")


def test_a_disk_too_small_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = kit.WRITERS["npy"](random_edges(23, 50, 4000), tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(places.shutil, "disk_usage", lambda path: usage._replace(free=60_000))
    with pytest.raises(DataError, match=r"GB of free space, got 0.0 GB"):
        build(source, tmp_path / "graph")
    assert not working_folder(tmp_path / "graph").exists()
    monkeypatch.undo()
    build(source, tmp_path / "graph")


@pytest.mark.parametrize("after", [0, 1, 7, 20, 60])
def test_a_full_disk(after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever write it is that fails; with room again, the build goes on."""
    monkeypatch.setattr(journal, "INTERVAL", 0.0)
    edges = random_edges(24, 300, 9000, weighted=True)
    source = kit.WRITERS["npz"](edges, tmp_path)
    left, pwrite = after, os.pwrite

    def full(file: int, data: Any, offset: int) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(28, "No space left on device")
        return pwrite(file, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DataError, match=r"got .* No space left on device. Free some space"):
        build(source, tmp_path / "graph", memory=TINY)
    assert not (tmp_path / "graph").exists()
    monkeypatch.setattr(os, "pwrite", pwrite)
    build(source, tmp_path / "graph", memory=TINY)
    assert_equal(tmp_path / "graph", reference(edges, 300))


@pytest.mark.slow
def test_a_file_size_limit(tmp_path: Path) -> None:
    """A real limit of the system, on files of 100 KB."""
    source = kit.WRITERS["npy"](random_edges(25, 300, 40_000), tmp_path)
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "from virgo.graph.disk import build\nbuild(*sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, source, tmp_path / "graph"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "DataError" in done.stderr
    assert "File too large. Free some space" in done.stderr
    assert not (tmp_path / "graph").exists()
    build(source, tmp_path / "graph")


# --- what is read --------------------------------------------------------------------------------


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    edges = random_edges(26, 50, 400, weighted=True)
    build(kit.WRITERS["npz"](edges, tmp_path), tmp_path / "graph", num_nodes=60)
    return tmp_path / "graph"


def test_damage_is_found(graph: Path) -> None:
    raw = (graph / "out_columns.bin").read_bytes()
    (graph / "out_columns.bin").write_bytes(raw[:77] + bytes([raw[77] ^ 1]) + raw[78:])
    read_header(graph)  # of the right size
    with pytest.raises(GraphError, match=r"out_columns.bin: expected the checksum .* damaged"):
        verify(graph)
    (graph / "out_columns.bin").write_bytes(raw[:-4])
    with pytest.raises(GraphError, match=r"out_columns.bin: expected 1,600 bytes, got 1,596"):
        read_header(graph)
    (graph / "out_columns.bin").unlink()
    with pytest.raises(GraphError, match="expected 1,600 bytes, got no such file"):
        read_header(graph)


def test_headers_that_are_none(graph: Path, tmp_path: Path) -> None:
    text = (graph / "graph.json").read_text()
    assert Header.from_json(text).to_json() == text
    with pytest.raises(GraphError, match="expected format 1 or older, got 2"):
        Header.from_json(text.replace('"format": 1', '"format": 2'))
    for wrong in ("", "[]", "{}", text.replace('"num_nodes"', '"nodes"'), '{"format": null}'):
        with pytest.raises(GraphError, match=r"graph.json: expected .* Build the graph again"):
            Header.from_json(wrong)
    with pytest.raises(GraphError, match="expected a graph's folder, got nothing of that name"):
        read_header(tmp_path / "none")
    with pytest.raises(GraphError, match=r"expected a folder with graph.json, got one without"):
        read_header(tmp_path)
    with pytest.raises(GraphError, match=r"expected a folder with graph.json, got a file"):
        read_header(tmp_path / "edges.npz")
    with pytest.raises(GraphError, match=r"expected one of in_pointer, .* got 'ids'"):
        open_array(graph, read_header(graph), "ids")


def test_arrays_are_read_only(graph: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        open_array(graph, read_header(graph), "in_columns")[0] = 1


def test_describe(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virgo.graph.disk.describing._BLOCK", 7)
    edges = random_edges(26, 50, 400, weighted=True)
    found = describe(graph)
    degrees = {
        "in": np.bincount(edges.targets, minlength=60),
        "out": np.bincount(edges.sources, minlength=60),
    }
    for order, one in (("in", found.in_degrees), ("out", found.out_degrees)):
        expected = degrees[order]
        assert one.least == expected.min()
        assert one.most == expected.max()
        assert one.median == np.median(expected)
    assert found.isolated == np.count_nonzero(degrees["in"] + degrees["out"] == 0)


# --- the command line ----------------------------------------------------------------------------


run = partial(commands.run, graphs, "graph")


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edges = random_edges(27, 50, 400, weighted=True)
    source = kit.WRITERS["csv"](edges, tmp_path)
    out = tmp_path / "graph"
    assert (
        run(
            "build",
            source,
            out,
            "--symmetric",
            "--self-loops",
            "drop",
            "--weight-column",
            "w",
            "--num-nodes",
            55,
            "--memory",
            "1MB",
        )
        == 0
    )
    expected = reference(edges, 55, symmetric=True, self_loops="drop")
    assert_equal(out, expected)
    said = capsys.readouterr()
    count = expected["in"].columns.size
    assert f"{out}: 55 nodes, {count:,} edges, symmetric, weighted" in said.out
    assert said.err in ("", "building\n")  # a plain line, after a second or two
    assert run("info", out, "--check") == 0
    lines = capsys.readouterr().out
    assert "symmetric=True, self_loops=drop, num_nodes=55, weight_column=w" in lines
    assert "checksums    as they were written" in lines
    assert run("info", out, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["num_edges"], printed["checked"]) == (count, False)
    assert run("info", out, "--json", tmp_path / "info.json") == 0
    assert json.loads((tmp_path / "info.json").read_text()) == printed


# --- bounds --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_memory_is_bounded(tmp_path: Path) -> None:
    """Edges of 128 MB, keys of as much, built within 64 MB of buffers."""
    rng = np.random.default_rng(28)
    np.save(tmp_path / "edges.npy", rng.integers(0, 2**20, (2, 8_000_000)))
    code = """
import resource, sys, threading
from virgo.graph.disk import build
import numpy as np
np.save(sys.argv[2] + ".npy", np.array([[0, 1], [1, 0]]))
build(sys.argv[2] + ".npy", sys.argv[2] + "-small", memory="64MB")  # compiled code is loaded
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
build(sys.argv[1], sys.argv[2], memory="64MB")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, tmp_path / "edges.npy", tmp_path / "graph"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    # beside the buffers: indices of spills, threads' stacks and heaps
    assert int(done.stdout) < (64 + 48) * 1024


def test_more_nodes_than_a_build_can_number_are_refused_at_once(tmp_path: Path) -> None:
    np.save(tmp_path / "edges.npy", np.array([[0, 1], [1, 2]]))
    with pytest.raises(OptionError, match="num_nodes: expected at most 4,294,967,296"):
        build(tmp_path / "edges.npy", tmp_path / "out", num_nodes=5_000_000_000)
    assert [one.name for one in tmp_path.iterdir()] == ["edges.npy"]


def test_a_linked_folder_is_replaced_behind_its_link(tmp_path: Path) -> None:
    np.save(tmp_path / "edges.npy", np.array([[0, 1], [1, 2]]))
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for _ in range(2):
        build(tmp_path / "edges.npy", tmp_path / "link", force=True)
        assert (tmp_path / "link").is_symlink()
        assert read_header(tmp_path / "link").num_edges == 2
    assert {one.name for one in tmp_path.iterdir()} == {"edges.npy", "real", "link"}


def test_a_saved_data_and_what_is_none(tmp_path: Path) -> None:
    index = torch.tensor([[0, 1, 2], [1, 2, 0]])
    weight = torch.ones(3, dtype=torch.bfloat16)
    torch.save(Data(edge_index=index, edge_weight=weight), tmp_path / "data.pt")
    header = build(tmp_path / "data.pt", tmp_path / "out")
    assert (header.num_nodes, header.num_edges, header.weighted) == (3, 3, True)
    torch.save([1, 2, 3], tmp_path / "list.pt")
    torch.save(index.to_sparse(), tmp_path / "sparse.pt")
    for name in ("list", "sparse"):
        with pytest.raises(DataError, match="expected a tensor edge_index or a dictionary"):
            build(tmp_path / f"{name}.pt", tmp_path / name)


def test_ids_beyond_63_bits_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "edges.npy", np.array([[0, 2**63 + 5], [1, 2]], dtype=np.uint64))
    with pytest.raises(DataError, match="expected ids of 64 bits with a sign"):
        build(tmp_path / "edges.npy", tmp_path / "out", relabel=True)

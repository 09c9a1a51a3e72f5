"""Changed files of a graph: one error each; a loop never leaves its arrays."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.edges import WRITERS, random_edges

import virgo
from virgo.errors import DataError, GraphError, OptionError
from virgo.experiments.data.neighbours import InNeighbours
from virgo.graph.csr import Bounds, Compressed
from virgo.graph.disk import build, read_header
from virgo.graph.disk.describing import describe
from virgo.graph.disk.files import Output
from virgo.graph.disk.format import HEADER, working_folder


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine")
    source = WRITERS["npz"](random_edges(0, 50, 300), folder)
    build(source, folder / "graph", num_nodes=50)
    return folder / "graph"


@pytest.fixture
def graph(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "graph"))


def edit(graph: Path, **changes: Any) -> None:
    header = json.loads((graph / HEADER).read_text())
    (graph / HEADER).write_text(json.dumps({**header, **changes}))


def hop(graph: Path, *, in_memory: bool) -> None:
    virgo.Graph.open(graph, in_memory=in_memory).by_target.hop(np.ones(50))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_nodes": 10**9},
        {"num_nodes": 2**70},
        {"num_nodes": "50"},
        {"num_nodes": 50.0},
        {"num_nodes": True},
        {"num_nodes": None},
        {"num_nodes": 0},
        {"num_edges": -1},
        {"self_loops": 301},
        {"symmetric": "no"},
        {"symmetric": True},
        {"weighted": True},
        {"index": "int64"},
        {"index": ["int32"]},
        {"ids": "int64"},
        {"options": []},
        {"source": {"bytes": "many"}},
        {"files": {}},
        {"format": 0},
        {"format": "1"},
        {"more": 1},
    ],
    ids=str,
)
def test_headers(graph: Path, changes: dict[str, Any]) -> None:
    edit(graph, **changes)
    with pytest.raises(GraphError, match=r"graph.json: expected"):
        virgo.Graph.open(graph)
    with pytest.raises(GraphError):
        describe(graph)


@pytest.mark.parametrize(
    "array",
    [{"dtype": "<f8"}, {"dtype": "|O"}, {"size": -1}, {"size": 1}, {"sha256": "x"}, {"x": 1}],
)
def test_arrays_in_headers(graph: Path, array: dict[str, Any]) -> None:
    files = json.loads((graph / HEADER).read_text())["files"]
    files["in_columns"] |= array
    edit(graph, files=files)
    with pytest.raises(GraphError, match="in_columns"):
        virgo.Graph.open(graph)


@pytest.mark.parametrize("text", ["[" * 10**5, '{"a":' * 10**5, "[]", "1", "", "\x00", "nul"])
def test_no_headers(graph: Path, text: str) -> None:
    (graph / HEADER).write_text(text)
    with pytest.raises(GraphError, match="expected the header of a graph"):
        virgo.Graph.open(graph)


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("value", [-1, 50, 2**31 - 1, -(2**31)])
def test_columns(graph: Path, value: int, in_memory: bool) -> None:
    file = np.memmap(graph / "in_columns.bin", np.int32, "r+")
    file[123] = value
    file.flush()
    with pytest.raises(GraphError, match="expected columns from 0 to 49"):
        hop(graph, in_memory=in_memory)


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("at", [0, 20, 50])
@pytest.mark.parametrize("value", [-1, 301, 2**62, -(2**63)])
def test_pointers(graph: Path, value: int, at: int, in_memory: bool) -> None:
    file = np.memmap(graph / "in_pointer.bin", np.int64, "r+")
    file[at] = value
    file.flush()
    with pytest.raises(GraphError, match="expected pointers that ascend"):
        hop(graph, in_memory=in_memory)
    with pytest.raises(GraphError, match="expected pointers that ascend"):
        describe(graph)


def test_a_change_after_the_first_hop(graph: Path) -> None:
    rows = virgo.Graph.open(graph).by_target
    rows.hop(np.ones(50))
    file = np.memmap(graph / "in_columns.bin", np.int32, "r+")
    file[7] = 10**9
    file.flush()
    os.utime(graph / "in_columns.bin", ns=(1, 1))
    with pytest.raises(GraphError, match="expected columns"):
        rows.hop(np.ones(50))


def test_a_file_that_became_shorter(graph: Path) -> None:
    rows = virgo.Graph.open(graph).by_target
    os.truncate(graph / "in_columns.bin", 8)
    with pytest.raises(GraphError, match=r"1,200 bytes in in_columns.bin"):
        rows.hop(np.ones(50))


@pytest.mark.parametrize("name", [HEADER, "in_columns.bin"])
def test_links_are_refused(graph: Path, name: str) -> None:
    (graph / name).rename(graph.parent / "elsewhere")
    (graph / name).symlink_to(graph.parent / "elsewhere")
    with pytest.raises(GraphError, match="expected a file, got a symbolic link"):
        read_header(graph)


def test_pipes_are_refused(graph: Path) -> None:
    (graph / HEADER).unlink()
    os.mkfifo(graph / HEADER)
    with pytest.raises(GraphError, match="expected a file, got something else"):
        read_header(graph)


def test_checked_rows_have_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    pointer = np.concatenate([[0], np.cumsum(rng.integers(0, 9, 40))])
    columns = rng.integers(0, 40, pointer[-1]).astype(np.int32)
    x = rng.standard_normal(40)
    plain = Compressed.of_arrays(pointer, columns, None)
    checked = Compressed.of_arrays(pointer, columns, None, Bounds("graph", 40))
    for _ in range(2):
        assert np.array_equal(plain.hop(x), checked.hop(x))


def test_neighbours_are_checked() -> None:
    good = np.array([0, 1, 2]), np.array([1, 0], dtype=np.int32)
    InNeighbours(*good, None)
    with pytest.raises(GraphError, match="expected columns from 0 to 1"):
        InNeighbours(good[0], np.array([1, 2], dtype=np.int32), None)
    with pytest.raises(GraphError, match="expected pointers"):
        InNeighbours(np.array([0, 5, 2]), good[1], None)
    with pytest.raises(GraphError, match="expected 2 ids"):
        InNeighbours(*good, np.array([0]))


def test_a_temporary_folder_that_is_none(tmp_path: Path) -> None:
    source = WRITERS["npy"](random_edges(0, 9, 30), tmp_path)
    with pytest.raises(OptionError, match="--tmp: expected a folder for temporary files"):
        build(source, tmp_path / "graph", tmp=tmp_path / "nowhere")
    assert not working_folder(tmp_path / "graph").exists()


def test_the_header_of_an_array_that_is_cut(tmp_path: Path) -> None:
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '<i8', 'fortran_order': False, 'shape': (2, 5L"
    (tmp_path / "edges.npy").write_bytes(header.ljust(128) + bytes(80))
    with pytest.raises(DataError, match=r"edges.npy: expected an intact \.npy file"):
        build(tmp_path / "edges.npy", tmp_path / "graph")


def test_a_broken_member_beside_the_edges(tmp_path: Path) -> None:
    folder = tmp_path / "ogbn_small" / "raw"
    folder.mkdir(parents=True)
    np.savez(folder / "data.npz", edge_index=np.zeros((2, 5), np.int64), num_nodes_list=[7])
    data = (folder / "data.npz").read_bytes()
    at = data.rindex((7).to_bytes(8, "little"))
    (folder / "data.npz").write_bytes(data[:at] + b"\x08" + data[at + 1 :])
    with pytest.raises(DataError, match=r"data.npz: expected an intact \.npz file"):
        build(tmp_path / "ogbn_small", tmp_path / "graph")


def test_a_field_of_many_characters(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("0,1\n" + "x" * 200_000 + ",2\n")
    with pytest.raises(DataError, match=r"edges.csv: line 2: expected"):
        build(tmp_path / "edges.csv", tmp_path / "graph")
    assert not working_folder(tmp_path / "graph").exists()


def test_a_journal_that_promises_more_than_the_files_hold(tmp_path: Path) -> None:
    """Otherwise a forged size would be read to its end, as zeros, for hours."""
    with pytest.raises(GraphError, match="expected 8,000,000,000,000 bytes, got 0: the files of"):
        Output(tmp_path, "in_columns", "<i8", 10**12)

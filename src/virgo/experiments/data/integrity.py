"""Integrity of raw files: checked before a loader reads them, and again when it has failed.

The loaders do not notice a file that ends early at the end of a line, and where they do fail they
do not say in which file.
"""

from __future__ import annotations

import gzip
import importlib
import itertools
import pickle
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from virgo.errors import DataError
from virgo.experiments.data.catalogue import COUNTS, Entry
from virgo.experiments.data.ogb_files import readable
from virgo.experiments.data.roots import DataSource

TABLE_ERRORS = (OSError, EOFError, ValueError, zlib.error)
"""What reading a damaged table raises."""


def damaged(source: DataSource, file: str, reason: object) -> DataError:
    """The error that names a damaged file.

    Args:
        source: the dataset.
        file: the file, below the dataset's folder.
        reason: what is wrong with it: an exception, or a phrase.

    Returns:
        The error, to be raised.
    """
    entry = source.entry
    where = source.archive or source.folder / Path(file).parent
    kind = f"{type(reason).__name__}: " if isinstance(reason, BaseException) else ""
    return DataError(
        f"{entry.name}: expected intact raw files of {entry.folder} in {where}, got a damaged "
        f"{Path(file).name} ({kind}{_first_line(reason)}). Fetch them again."
    )


def _first_line(reason: object) -> str:
    return str(reason).split("\n")[0][:200]


def check_raw_files(source: DataSource, folder: Path) -> None:
    """Check the copied files before a loader reads them.

    Args:
        source: the dataset, for the message.
        folder: the copy.

    Raises:
        DataError: a file is damaged; names it.
    """  # noqa: DOC501  (`damaged` makes a DataError)
    if source.entry.kind == "ogb":
        _check_ogb(source, folder)
        return
    for file in source.files:
        if file.endswith((".txt", ".index")) and not _ends_with_newline(folder / file):
            # PyG would silently skip the last line
            raise damaged(source, file, "it ends in the middle of a line")
        if file.endswith(".npz"):
            try:
                _check_npz(folder / file)
            except (*TABLE_ERRORS, LookupError, zipfile.BadZipFile) as error:
                raise damaged(source, file, error) from error
    if source.entry.kind == "tu":
        _check_tu(source, folder)


def explain_failure(source: DataSource, folder: Path, error: Exception) -> DataError:
    """The error that names the file on which a loader has failed, as far as it can be found.

    Args:
        source: the dataset, for the message.
        folder: the copied files.
        error: what the loader raised.

    Returns:
        The error, to be raised.
    """
    for file in source.files:
        try:
            _read(source.entry, folder / file)
        except Exception as reason:  # unpickling a damaged file may raise anything
            return damaged(source, file, reason)
    entry = source.entry
    if entry.kind == "tu":
        edges, owners, _ = source.files
        largest = max(max(row) for row in _numbers(folder / edges))
        count = (folder / owners).read_bytes().count(b"\n")
        if largest > count:  # the list of nodes ends before the nodes that edges name
            return damaged(source, owners, f"{count} of {largest} nodes")
    return DataError(
        f"{entry.name}: expected intact raw files of {entry.folder} in {source.folder / 'raw'}, "
        f"got {type(error).__name__}: {_first_line(error)}, though each can be read. Fetch them "
        f"again."
    )


def _ends_with_newline(path: Path) -> bool:
    with open(path, "rb") as file:
        if file.seek(0, 2) == 0:
            return False
        file.seek(-1, 2)
        return file.read(1) == b"\n"


def _check_tu(source: DataSource, folder: Path) -> None:
    """Every graph has a label. PyG accepts more labels than graphs, and fails on fewer."""
    _, owners, labels = source.files
    for file in (owners, labels):
        try:
            _read(source.entry, folder / file)
        except ValueError as error:
            raise damaged(source, file, error) from error
    graphs = max(row[0] for row in _numbers(folder / owners))
    count = sum(1 for _ in _numbers(folder / labels))
    if graphs != count:
        file = labels if count < graphs else owners
        raise damaged(source, file, f"{graphs} graphs and {count} labels")


def _check_npz(path: Path) -> None:
    """Two CSR matrices and labels. SciPy and PyG do not look whether their indices are in range."""
    with open(path, "rb") as file:  # np.load leaves a path open where it fails
        arrays = np.load(file, allow_pickle=False)
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise ValueError("one array, expected an archive of several")
        nodes = len(arrays["labels"])
        for name in ("adj", "attr"):
            rows, columns = arrays[f"{name}_shape"].tolist()
            pointer, indices = arrays[f"{name}_indptr"], arrays[f"{name}_indices"]
            if rows != nodes or len(pointer) != nodes + 1 or (name == "adj" and columns != nodes):
                raise ValueError(f"{name} has {rows} rows, and there are {nodes} labels")
            if indices.min(initial=0) < 0 or indices.max(initial=0) >= columns:
                raise ValueError(f"{name} names columns beyond the {columns} that there are")
            if not len(arrays[f"{name}_data"]) == len(indices) == pointer[-1]:
                raise ValueError(f"{name} has {len(indices)} entries, expected {pointer[-1]}")


# --- OGB's files ---------------------------------------------------------------------------------


def _check_ogb(source: DataSource, folder: Path) -> None:
    counts = []
    for name in COUNTS:
        file = f"raw/{name}.csv.gz"
        try:
            counts.append(read_table(folder / file, np.int64).reshape(-1))
        except TABLE_ERRORS as error:
            raise damaged(source, file, error) from error
    nodes, edges = counts
    if len(nodes) != len(edges) or not len(nodes):
        file = f"raw/{COUNTS[1]}.csv.gz"
        raise damaged(source, file, f"{len(edges)} graphs, beside {len(nodes)} in {COUNTS[0]}")
    expected = {"node": int(nodes.sum()), "edge": int(edges.sum()), "graph": len(nodes)}
    for file in source.files:
        try:
            if file.endswith(".pt"):
                _check_edge_split(_load(folder / file), expected["node"], Path(file).stem)
            elif file.endswith(".csv.gz"):
                _check_rows(folder / file, expected)
        except (*TABLE_ERRORS, RuntimeError, LookupError, pickle.UnpicklingError) as error:
            raise damaged(source, file, error) from error


def _check_rows(path: Path, expected: Mapping[str, int]) -> None:
    """Decompress a table to its end, and compare its rows with the sizes of the graphs."""
    stem = path.name.removesuffix(".csv.gz")
    if stem in COUNTS:
        return
    kind = "node" if stem == "species" else stem.replace("-", "_").split("_")[0]
    rows, last = 0, b"\n"
    with gzip.open(path, "rb") as file:
        while block := file.read(2**20):
            rows += block.count(b"\n")
            last = block[-1:]
    rows += last != b"\n"
    if kind in expected and rows != expected[kind]:
        raise ValueError(f"{rows} rows, expected {expected[kind]}")
    if rows == 0:
        raise ValueError("no rows")


def read_table(path: Path, dtype: type[np.generic]) -> NDArray[Any]:
    """Read one of OGB's tables.

    Args:
        path: a gzipped CSV file without a header.
        dtype: type of its numbers.

    Returns:
        A two-dimensional array.

    Raises:
        ValueError: it is empty, or holds something else than numbers.
    """
    with gzip.open(path, "rt") as lines:
        first = lines.readline()
        if not first.strip():
            raise ValueError("no rows")
        return np.loadtxt(itertools.chain([first], lines), delimiter=",", dtype=dtype, ndmin=2)


def _load(path: Path) -> object:
    """A file of tensors and arrays, read without running code that a pickle may hold."""
    with readable():
        return torch.load(path, weights_only=True)


def _check_edge_split(part: object, num_nodes: int, name: str) -> None:
    """Check that a part of an edge split has OGB's form, and names only nodes that there are."""
    if not isinstance(part, Mapping):
        raise ValueError(f"a {type(part).__name__}, expected a dictionary of edges")
    pairs = "edge" in part
    wanted = ["edge"] if pairs else ["source_node", "target_node"]
    if name != "train":
        wanted.append("edge_neg" if pairs else "target_node_neg")
    for key in wanted:
        if key not in part:
            raise ValueError(f"no {key!r}")
        ids = torch.as_tensor(part[key])
        if not ids.numel():
            raise ValueError(f"no edges in {key!r}")
        if int(ids.min()) < 0 or int(ids.max()) >= num_nodes:
            raise ValueError(f"{key!r} names nodes beyond the {num_nodes} that there are")


# --- reading one file as its loader does ---------------------------------------------------------


def _read(entry: Entry, path: Path) -> None:
    if path.suffix == ".pt":
        _load(path)
    elif path.name.endswith(".csv.gz"):
        pandas = importlib.import_module("pandas")  # untyped; ogb brings it
        table = pandas.read_csv(path, compression="gzip", header=None)
        words = [column for column in table if table[column].dtype.kind not in "biuf"]
        if words:
            raise ValueError(f"column {words[0]} holds what is not a number")
    elif entry.kind == "planetoid":
        from torch_geometric.io.planetoid import read_file

        prefix = f"ind.{entry.folder.lower()}."
        read_file(str(path.parent), entry.folder, path.name.removeprefix(prefix))
    elif entry.kind == "tu":
        widths = {len(row) for row in _numbers(path)}
        if len(widths) != 1:
            raise ValueError("rows of different lengths" if widths else "no rows")


def _numbers(path: Path) -> Iterator[list[int]]:
    with open(path, encoding="ascii") as lines:
        for line in lines:
            yield [int(word) for word in line.split(",")]

"""``virgo.data.load``: a dataset by name, preprocessed as in the paper; and single graphs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from virgo.errors import DataError, MissingExtra, VirgoError, named_options, needed
from virgo.experiments.data import preprocessing
from virgo.experiments.data.cache import Progress, prepared, silent
from virgo.experiments.data.catalogue import CATALOGUE, Entry, entry
from virgo.experiments.data.datasets import PARTS, Dataset, masks_of, split_of, split_per_class
from virgo.experiments.data.generators import citation_like
from virgo.experiments.data.integrity import (
    TABLE_ERRORS,
    check_raw_files,
    damaged,
    explain_failure,
    read_table,
)
from virgo.experiments.data.loaders import loader_class, open_loader, quiet
from virgo.experiments.data.ogb_files import readable
from virgo.experiments.data.roots import CITATION, DataSource, Root, locate

GENERATED = "ogbn-arxiv's structure and labels are real, its features are generated"

ARXIV_FEATURES = "raw/node-feat.csv.gz"


@named_options
def load(name: str, root: Root = None, progress: Progress = silent, split: int = 0) -> Dataset:
    """Load a dataset by name, with its split and metric, preprocessed as in the paper.

    Raw files are read by PyG's and OGB's own loaders, once: they are copied to the cache and
    processed there (:mod:`virgo.experiments.data.cache`). The network is never used.

    ==================== ==========================================================================
    cora citeseer pubmed public split; rows of ``x`` sum to one, as in DGL
    ogbn-arxiv           made undirected
    ogbn-proteins        ``x`` is the mean over a node's edges of their features; 112 labels
    ogbn-products        as OGB gives it: undirected
    ogbl-ddi             no ``x``: embeddings are learned
    ogbl-collab          ``edge_weight``, ``edge_year``; repeated collaborations are kept
    ogbl-citation2       made undirected
    ogbl-ppa             ``x`` as floats
    imdb-b imdb-m collab one-hot degree, made when a graph is accessed; :meth:`Dataset.folds`
    ogbg-mol...          OGB's integer atoms and bonds, for its encoders
    photo computers cs   not in the paper; seeded split, rows of ``x`` sum to one
    like:NAME[@scale]    generated, see :mod:`virgo.experiments.data.stand_ins`
    ==================== ==========================================================================

    Args:
        name: one of :func:`virgo.data.names`, or ``like:`` and one of them.
        root: the data root; see :func:`virgo.data.find_root`.
        progress: called with ``(done, total, what)`` while a dataset is prepared for the first
            time, which takes minutes for the large ones.
        split: seed of the split of photo, computers and cs: 20 nodes per class to train, 30 to
            validate, the rest to test. Other datasets have a split of their own.

    Returns:
        The dataset.

    Raises:
        DataError: the name is unknown, files are missing or damaged, the cache cannot be written
            to, or the dataset has only one split and another is asked for.
    """
    generated = name.lower().startswith("like:")
    row = None if generated else entry(name)
    if split and (row is None or row.split_type != "seeded"):
        raise DataError(
            f"{name}: expected split=0 for a dataset with a split of its own, got {split}. Leave "
            f"it out."
        )
    if row is None:
        from virgo.experiments.data.stand_ins import like

        return like(name)
    return _assemble(row, _open_stored(row, root, progress), split)


def load_citation(name: str = "cora", root: Root = None) -> Data:
    """Cora, CiteSeer or PubMed with the public split and features as they are in the files.

    :func:`virgo.data.load` returns them as the paper's experiments use them.

    Args:
        name: ``"cora"``, ``"citeseer"`` or ``"pubmed"``, in upper or lower case.
        root: The data root; see :func:`virgo.data.find_root`.

    Returns:
        The graph.

    Raises:
        DataError: The name is unknown, files are absent or damaged, or the cache is not writable.
    """
    if name.lower() not in CITATION:
        choices = ", ".join(CITATION)
        raise DataError(f"load_citation: name must be one of {choices}, got {name!r}. Choose one.")
    return _open_stored(CATALOGUE[name.lower()], root)[0]


def demo_graph() -> tuple[Data, str]:
    """Cora where a data root has it and scipy is there to read it, otherwise a generated graph.

    Returns:
        The graph, and a line that says which it is.
    """
    reason = "no data root has Cora"
    data, kind = None, "Cora, public split"
    if locate(CATALOGUE["cora"]).complete:
        try:
            data = load_citation("cora")
        except MissingExtra as error:
            reason = str(error)
    if data is None:
        data, kind = citation_like(), f"a generated citation-like graph ({reason})"
    counts = f"{data.num_nodes} nodes, {data.num_edges} edges, {data.num_features} words"
    return data, f"{kind}: {counts}"


def load_arxiv(
    root: Root = None, num_features: int = 128, seed: int = 0
) -> tuple[Data, str | None]:
    """ogbn-arxiv made undirected, with generated features where the real ones are missing.

    With all of OGB's files it is what :func:`virgo.data.load` returns. Otherwise edges, labels and
    training nodes suffice: the paper's backward panel needs only structure and labels. No accuracy
    may be stated where features are generated.

    Args:
        root: the data root that holds ``ogbn_arxiv/raw``; see :func:`virgo.data.find_root`.
        num_features: how many features to generate per node if there are none.
        seed: seed of the generated features, which are uniform on [0, 1).

    Returns:
        The graph, and the remark to show with every result if its features are generated.
    """
    source = locate(CATALOGUE["ogbn-arxiv"], root)
    if source.complete:
        return load("ogbn-arxiv", root).data, None
    edges = _read_arxiv(source, "raw/edge.csv.gz", np.int64)
    labels = _read_arxiv(source, "raw/node-label.csv.gz", np.int64).reshape(-1)
    train = _read_arxiv(source, "split/time/train.csv.gz", np.int64).reshape(-1)
    edge_index = to_undirected(torch.from_numpy(edges.T.copy()), num_nodes=labels.size)
    mask = torch.zeros(labels.size, dtype=torch.bool)
    mask[torch.from_numpy(train)] = True
    generated = ARXIV_FEATURES in source.missing
    if generated:
        x = np.random.default_rng(seed).random((labels.size, num_features), dtype=np.float32)
    else:
        x = _read_arxiv(source, ARXIV_FEATURES, np.float32)
    data = Data(
        x=torch.from_numpy(x), edge_index=edge_index, y=torch.from_numpy(labels), train_mask=mask
    )
    return data, GENERATED if generated else None


def _read_arxiv(source: DataSource, file: str, dtype: type[np.generic]) -> Any:
    path = source.path(file)
    if file in source.missing:
        raise DataError(
            f"load_arxiv: expected {path.name} in {path.parent}, got none. Put OGB's "
            f"files there, or name another root with root= or VIRGO_DATA."
        )
    try:
        return read_table(path, dtype)
    except TABLE_ERRORS as error:
        raise damaged(source, file, error) from error


# --- the first time ------------------------------------------------------------------------------


def _open_stored(row: Entry, root: Root, progress: Progress = silent) -> Any:
    """The loader of a dataset on its processed copy, which is made if need be."""
    source = locate(row, root)
    if row.kind == "ogb":
        loader_class(row)  # names a missing extra before gigabytes are copied
    stored = prepared(source, lambda folder: _process(source, folder), progress)
    release = stored / row.folder / "RELEASE_v1.txt"
    try:
        if row.kind == "ogb" and not release.is_file():  # OGB would ask on the terminal
            raise FileNotFoundError(release)
        return _open(row, stored)
    except VirgoError:
        raise
    except Exception as error:
        raise DataError(
            f"{row.name}: expected an intact processed copy in {stored}, got "
            f"{type(error).__name__}: {error}. Delete that folder; it is made again."
        ) from error


def _open(row: Entry, folder: Path) -> Any:
    return open_loader(row, folder, pre_transform=preprocessing.BEFORE_STORING.get(row.name))


def _process(source: DataSource, temporary: Path) -> None:
    """Run the loader on a copy of the raw files, and store its split beside the result."""
    row, folder = source.entry, temporary / source.entry.folder
    if row.kind in ("planetoid", "amazon", "coauthor"):  # their files hold scipy's matrices
        needed("scipy.sparse", f"Loading {row.name}", "data")
    check_raw_files(source, folder)
    try:
        loader = _open(row, temporary)
        if row.kind == "ogb":
            _store_split(source, folder, loader)
    except (VirgoError, MemoryError):
        raise
    except ImportError as error:
        library = (error.name or "a library of its loader").partition(".")[0]
        raise MissingExtra(f"Loading {row.name}", library, "data") from error
    except Exception as error:  # a damaged file may make a loader raise anything
        raise explain_failure(source, folder, error) from error
    _check_processed(source, loader)


def _store_split(source: DataSource, folder: Path, loader: Any) -> None:
    """Store OGB's split as tensors where OGB itself looks first, in place of its tables."""
    row = source.entry
    split = _ogb_split(row, loader)
    if row.task != "link":
        limit = len(loader) if row.task == "graph" else loader[0].num_nodes
        for part, ids in split.items():
            if int(ids.min()) < 0 or int(ids.max()) >= limit:
                file = f"split/{row.split_type}/{part}.csv.gz"
                raise damaged(source, file, f"ids beyond the {limit} that there are")
    shutil.rmtree(folder / "split")
    split_folder = folder / "split" / row.split_type
    split_folder.mkdir(parents=True)
    torch.save(split, split_folder / "split_dict.pt")


def _ogb_split(row: Entry, loader: Any) -> dict[str, Any]:
    with quiet(), readable():
        split = loader.get_edge_split() if row.task == "link" else loader.get_idx_split()
    return {part: split[part] for part in PARTS}


def _check_processed(source: DataSource, loader: Any) -> None:
    """Look for damage that a loader accepts silently and that would only give wrong results."""
    data, row = loader._data, source.entry
    if row.kind == "tu":
        # an edge that is cut off leaves its other direction behind
        out_sums, in_sums = (_sums(ends, loader.slices["edge_index"]) for ends in data.edge_index)
        if not torch.equal(out_sums, in_sums):
            raise damaged(source, row.files[0], "edges without their other direction")
    elif row.task != "graph" and data.edge_index.numel():
        low, high = int(data.edge_index.min()), int(data.edge_index.max())
        if low < 0 or high >= data.num_nodes:
            ogb, planetoid = "raw/edge.csv.gz", f"raw/ind.{row.name}.graph"
            file = {"ogb": ogb, "planetoid": planetoid}.get(row.kind, row.files[0])
            raise damaged(source, file, f"nodes beyond the {data.num_nodes} that there are")


def _sums(ends: Tensor, slices: Tensor) -> Tensor:
    """Sum and sum of squares over the edges of every graph."""
    cumulative = torch.zeros(ends.numel() + 1, 2, dtype=torch.long)
    torch.cumsum(torch.stack([ends, ends * ends], 1), 0, out=cumulative[1:])
    return cumulative[slices].diff(dim=0)


# --- every time ----------------------------------------------------------------------------------


def _assemble(row: Entry, loader: Any, seed: int) -> Dataset:
    classes = row.num_classes if row.kind == "ogb" else int(loader.num_classes)
    split: dict[str, Any] = {}
    if row.kind == "ogb":
        split = _ogb_split(row, loader)
    if row.task == "graph":
        data = loader
        if row.kind == "tu":
            loader.transform = preprocessing.OneHotDegree(int(loader._data.degree.max()) + 1)
    else:
        data = loader[0]
        if row.kind == "planetoid":
            data.x = preprocessing.row_normalised(data.x)
            split = split_of(data)
        elif row.split_type == "seeded":
            data.x = preprocessing.row_normalised(data.x.to_dense())
            split = split_per_class(data.y.numpy(), seed)
        if row.task == "node":
            data.update(masks_of(split, data.num_nodes))
    return Dataset(row.name, row.task, data, split, row.metric, classes)

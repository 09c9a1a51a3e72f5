"""``virgo.data.load``: any of the fifteen datasets, prepared as the paper's protocol has it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from virgo.errors import DataError
from virgo.experiments.data import preparation
from virgo.experiments.data.cache import Progress, prepared, silent
from virgo.experiments.data.catalogue import Entry, entry
from virgo.experiments.data.damage import blame, damaged, inspect
from virgo.experiments.data.datasets import Dataset
from virgo.experiments.data.loaders import open_loader, quiet
from virgo.experiments.data.ogb_files import readable
from virgo.experiments.data.roots import Root, Source, locate

PARTS = ("train", "valid", "test")


def load(name: str, root: Root = None, progress: Progress = silent) -> Dataset:
    """A dataset by name, with its split and metric, prepared as in the paper.

    Raw files are read by PyG's and OGB's own loaders, once: they are copied to the cache and
    processed there (:mod:`virgo.experiments.data.cache`). The network is never used.

    ==================== ==========================================================================
    cora citeseer pubmed public split; rows of ``x`` sum to one, as in DGL
    ogbn-arxiv           made undirected
    ogbn-proteins        ``x`` is the mean over a node's edges of their features; 112 labels
    ogbn-products        as OGB gives it: undirected
    ogbl-ddi             no ``x``: embeddings are learned
    ogbl-collab          ``edge_weight``, ``edge_year``; repeated collaborations stay
    ogbl-citation2       made undirected
    ogbl-ppa             ``x`` as floats
    imdb-b imdb-m collab one-hot degree, made when a graph is looked at; :meth:`Dataset.folds`
    ogbg-mol...          OGB's integer atoms and bonds, for its encoders
    like:NAME[@scale]    generated, see :mod:`virgo.experiments.data.likeness`
    ==================== ==========================================================================

    Args:
        name: one of :func:`virgo.data.names`, or ``like:`` and one of them.
        root: the data root; see :func:`virgo.data.find_root`.
        progress: called with ``(done, total, what)`` while a dataset is prepared for the first
            time, which takes minutes for the large ones.

    Raises:
        DataError: the name is unknown, files are missing or damaged, or the cache cannot be
            written to.
    """
    if name.lower().startswith("like:"):
        from virgo.experiments.data.likeness import like

        return like(name)
    row = entry(name)
    return _assemble(row, open_stored(row, root, progress))


def open_stored(row: Entry, root: Root = None, progress: Progress = silent) -> Any:
    """The loader of a dataset on its processed copy, which is made if need be."""
    source = locate(row, root)
    stored = prepared(source, lambda aside: _process(source, aside), progress)
    release = stored / row.folder / "RELEASE_v1.txt"
    try:
        if row.kind == "ogb" and not release.is_file():  # OGB would ask on the terminal
            raise FileNotFoundError(release)
        return _open(row, stored)
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"{row.name}: expected an intact processed copy in {stored}, got "
            f"{type(error).__name__}: {error}. Delete that folder; it is made again."
        ) from error


def _open(row: Entry, folder: Path) -> Any:
    return open_loader(row, folder, pre_transform=preparation.BEFORE_STORING.get(row.name))


# --- the first time ------------------------------------------------------------------------------


def _process(source: Source, aside: Path) -> None:
    """Run the loader on a copy of the raw files, and keep its split beside what it made."""
    row, folder = source.entry, aside / source.entry.folder
    inspect(source, folder)
    try:
        loader = _open(row, aside)
        if row.kind == "ogb":
            _keep_split(source, folder, loader)
    except (DataError, MemoryError):
        raise
    except ImportError as error:
        raise DataError(
            f"{row.name}: expected the libraries that its loader needs, got {error}. Install "
            f"virgo-gnn[data]."
        ) from error
    except Exception as error:  # a damaged file may make a loader raise anything
        raise blame(source, folder, error) from error
    _look_over(source, loader)


def _keep_split(source: Source, folder: Path, loader: Any) -> None:
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
    place = folder / "split" / row.split_type
    place.mkdir(parents=True)
    torch.save(split, place / "split_dict.pt")


def _ogb_split(row: Entry, loader: Any) -> dict[str, Any]:
    with quiet(), readable():
        split = loader.get_edge_split() if row.task == "link" else loader.get_idx_split()
    return {part: split[part] for part in PARTS}


def _look_over(source: Source, loader: Any) -> None:
    """What a loader takes without a word and would only be found out by a wrong result."""
    data, row = loader._data, source.entry
    if row.kind == "tu":
        # an edge that is cut off leaves its other direction behind
        one, other = (_sums(ends, loader.slices["edge_index"]) for ends in data.edge_index)
        if not torch.equal(one, other):
            raise damaged(source, row.files[0], "edges without their other direction")
    elif row.task != "graph" and data.edge_index.numel():
        low, high = int(data.edge_index.min()), int(data.edge_index.max())
        if low < 0 or high >= data.num_nodes:
            file = "raw/edge.csv.gz" if row.kind == "ogb" else f"raw/ind.{row.name}.graph"
            raise damaged(source, file, f"nodes beyond the {data.num_nodes} that there are")


def _sums(ends: Tensor, slices: Tensor) -> Tensor:
    """Sum and sum of squares over the edges of every graph."""
    whole = torch.zeros(ends.numel() + 1, 2, dtype=torch.long)
    torch.cumsum(torch.stack([ends, ends * ends], 1), 0, out=whole[1:])
    return whole[slices].diff(dim=0)


# --- every time ----------------------------------------------------------------------------------


def _assemble(row: Entry, loader: Any) -> Dataset:
    classes = row.num_classes if row.kind == "ogb" else int(loader.num_classes)
    if row.task == "graph":
        if row.kind == "tu":
            loader.transform = preparation.OneHotDegree(int(loader._data.degree.max()) + 1)
            return Dataset(row.name, row.task, loader, {}, row.metric, classes)
        return Dataset(row.name, row.task, loader, _ogb_split(row, loader), row.metric, classes)
    data = loader[0]
    if row.kind == "planetoid":
        data.x = preparation.row_normalised(data.x)
        found = (data.train_mask, data.val_mask, data.test_mask)
        split = {part: mask.nonzero().view(-1) for part, mask in zip(PARTS, found, strict=True)}
    else:
        split = _ogb_split(row, loader)
        if row.task == "node":
            data.update(preparation.masks(split, data.num_nodes))
    return Dataset(row.name, row.task, data, split, row.metric, classes)

"""What the tests of on-disk graphs share: a slow reference, writers of every format, kills.

Run as a script, it builds a graph in processes that it kills, see :func:`main`.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Edges:
    """An edge list in memory."""

    sources: Ints
    targets: Ints
    weights: Floats | None = None

    @property
    def index(self) -> Ints:
        return np.stack([self.sources, self.targets])


def random_edges(
    seed: int, num_nodes: int, num_edges: int, *, weighted: bool = False, hub: float = 0.0
) -> Edges:
    """Edges with duplicates and loops; a share of them ends at one node."""
    rng = np.random.default_rng(seed)
    sources, targets = rng.integers(0, num_nodes, (2, num_edges))
    targets[rng.random(num_edges) < hub] = num_nodes // 2
    return Edges(sources, targets, rng.normal(size=num_edges) if weighted else None)


@dataclass(frozen=True)
class Rows:
    """Compressed rows."""

    pointer: Ints
    columns: Ints
    weights: Floats | None


def reference(
    edges: Edges,
    num_nodes: int,
    *,
    symmetric: bool = False,
    deduplicate: bool = False,
    self_loops: str = "keep",
) -> dict[str, Rows]:
    """Both orders by ``np.lexsort``, equal edges merged one by one."""
    s, t, w = edges.sources, edges.targets, edges.weights
    if self_loops == "drop":
        keep = s != t
        s, t, w = s[keep], t[keep], None if w is None else w[keep]
    if symmetric:  # each edge, and its reverse right after it
        s, t = np.stack([s, t], 1).ravel(), np.stack([t, s], 1).ravel()
        w = None if w is None else np.repeat(w, 2)
    merged = symmetric or deduplicate
    return {"in": _rows(t, s, w, num_nodes, merged), "out": _rows(s, t, w, num_nodes, merged)}


def _rows(rows: Ints, columns: Ints, weights: Floats | None, size: int, merged: bool) -> Rows:
    order = np.lexsort((columns, rows))
    rows, columns = rows[order], columns[order]
    weights = None if weights is None else weights[order]
    if merged:
        first = np.ones(rows.size, dtype=bool)
        first[1:] = (np.diff(rows) != 0) | (np.diff(columns) != 0)
        if weights is not None:
            parts = np.split(weights, np.flatnonzero(first)[1:])
            weights = np.array([part.cumsum()[-1] for part in parts])  # in order, not in pairs
        rows, columns = rows[first], columns[first]
    pointer = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=size))])
    return Rows(pointer, columns, weights)


# --- writers -----------------------------------------------------------------------------------


def _text(edges: Edges, delimiter: str, header: str = "", pad: str = "") -> bytes:
    columns = [edges.sources.tolist(), edges.targets.tolist()]
    if edges.weights is not None:
        columns.append(edges.weights.tolist())
    lines = [delimiter.join(map(repr, row)) + pad for row in zip(*columns, strict=True)]
    return (header + "\n".join(lines) + "\n").encode()


def _csv(edges: Edges, folder: Path) -> Path:
    header = "source,target" + ("" if edges.weights is None else ",w") + "\n"
    (folder / "edges.csv").write_bytes(_text(edges, ",", header))
    return folder / "edges.csv"


def _csv_gz(edges: Edges, folder: Path) -> Path:
    (folder / "edges.csv.gz").write_bytes(gzip.compress(_text(edges, ",")))
    return folder / "edges.csv.gz"


def _tsv(edges: Edges, folder: Path) -> Path:
    (folder / "edges.tsv").write_bytes(_text(edges, "\t").replace(b"\n", b"\r\n"))
    return folder / "edges.tsv"


def _blanks(edges: Edges, folder: Path) -> Path:
    text = _text(edges, "   ", "# a graph\n% of nodes\n\n", pad=" ").replace(b"\n1", b"\n  1")
    (folder / "edges.txt").write_bytes(text.rstrip(b"\n"))
    return folder / "edges.txt"


def _several_csv(edges: Edges, folder: Path) -> Path:
    (folder / "parts").mkdir()
    for number, part in enumerate(np.array_split(np.arange(edges.sources.size), 3)):
        weights = None if edges.weights is None else edges.weights[part]
        some = Edges(edges.sources[part], edges.targets[part], weights)
        (folder / "parts" / f"{number}.csv").write_bytes(_text(some, ","))
    return folder / "parts"


def _table(edges: Edges, **names: str) -> Any:
    import pyarrow as pa

    columns: dict[str, Any] = {"other": np.zeros(edges.sources.size)}
    columns["dst"], columns["src"] = edges.targets, edges.sources.astype(np.int32)
    if edges.weights is not None:
        columns["w"] = edges.weights
    return pa.table(columns)


def _parquet(edges: Edges, folder: Path) -> Path:
    import pyarrow.parquet as pq

    pq.write_table(_table(edges), folder / "edges.parquet", row_group_size=700)
    return folder / "edges.parquet"


def _parquets(edges: Edges, folder: Path) -> Path:
    import pyarrow.parquet as pq

    table = _table(edges)
    third = edges.sources.size // 3
    (folder / "parts").mkdir()
    (folder / "parts" / "_SUCCESS").write_text("")
    for number, begin in enumerate((0, third, 2 * third)):
        part = table.slice(begin, third if number < 2 else None)
        pq.write_table(part, folder / "parts" / f"part-{number}.parquet")
    return folder / "parts"


def _parquet_glob(edges: Edges, folder: Path) -> Path:
    return _parquets(edges, folder) / "part-*.parquet"


def _npy(edges: Edges, folder: Path) -> Path:
    np.save(folder / "edges.npy", edges.index)
    return folder / "edges.npy"


def _npy_pairs(edges: Edges, folder: Path) -> Path:
    np.save(folder / "edges.npy", np.ascontiguousarray(edges.index.T.astype(np.int32)))
    return folder / "edges.npy"


def _npy_fortran(edges: Edges, folder: Path) -> Path:
    np.save(folder / "edges.npy", np.asfortranarray(edges.index))
    return folder / "edges.npy"


def _weights(edges: Edges) -> dict[str, Any]:
    return {} if edges.weights is None else {"edge_weight": edges.weights}


def _npz(edges: Edges, folder: Path) -> Path:
    np.savez(
        folder / "edges.npz", odd=np.zeros(3, np.int8), edge_index=edges.index, **_weights(edges)
    )
    return folder / "edges.npz"


def _npz_columns(edges: Edges, folder: Path) -> Path:
    np.savez(folder / "edges.npz", src=edges.sources, dst=edges.targets, **_weights(edges))
    return folder / "edges.npz"


def _npz_packed(edges: Edges, folder: Path) -> Path:
    np.savez_compressed(folder / "edges.npz", edge_index=edges.index, **_weights(edges))
    return folder / "edges.npz"


def _npz_packed_pairs(edges: Edges, folder: Path) -> Path:
    pairs = np.ascontiguousarray(edges.index.T.astype(np.uint32))
    np.savez_compressed(folder / "edges.npz", edge_index=pairs, **_weights(edges))
    return folder / "edges.npz"


def _pt(edges: Edges, folder: Path) -> Path:
    import torch

    torch.save(torch.from_numpy(edges.index), folder / "edge_index.pt")
    return folder / "edge_index.pt"


def _pt_dict(edges: Edges, folder: Path) -> Path:
    import torch

    tensors = {key: torch.from_numpy(value) for key, value in _weights(edges).items()}
    torch.save({"edge_index": torch.from_numpy(edges.index), **tensors}, folder / "data.pth")
    return folder / "data.pth"


def _pt_data(edges: Edges, folder: Path) -> Path:
    """As PyG's in-memory datasets are stored."""
    import torch
    from torch_geometric.data import Data

    tensors = {key: torch.from_numpy(value) for key, value in _weights(edges).items()}
    data = Data(edge_index=torch.from_numpy(edges.index), **tensors)
    torch.save((data.to_dict(), None, {}, Data), folder / "data.pt")
    return folder / "data.pt"


def _ogb(edges: Edges, folder: Path) -> Path:
    raw = folder / "ogbn_mine" / "raw"
    raw.mkdir(parents=True)
    nodes, count = int(edges.index.max()) + 1, edges.sources.size
    for name, text in [
        ("edge", _text(edges, ",")),
        ("num-node-list", b"%d\n" % nodes),
        ("num-edge-list", b"%d\n" % count),
    ]:
        (raw / f"{name}.csv.gz").write_bytes(gzip.compress(text))
    return raw.parent


def _ogb_binary(edges: Edges, folder: Path) -> Path:
    raw = folder / "ogbn_mine" / "raw"
    raw.mkdir(parents=True)
    nodes = int(edges.index.max()) + 1
    np.savez_compressed(
        raw / "data.npz",
        edge_index=edges.index,
        num_nodes_list=np.array([nodes]),
        num_edges_list=np.array([edges.sources.size]),
    )
    return raw.parent


WRITERS: dict[str, Callable[[Edges, Path], Path]] = {
    "csv": _csv,
    "csv.gz": _csv_gz,
    "tsv": _tsv,
    "blanks": _blanks,
    "several csv": _several_csv,
    "parquet": _parquet,
    "folder of parquet": _parquets,
    "pattern of parquet": _parquet_glob,
    "npy": _npy,
    "npy pairs": _npy_pairs,
    "npy fortran": _npy_fortran,
    "npz": _npz,
    "npz columns": _npz_columns,
    "npz packed": _npz_packed,
    "npz packed pairs": _npz_packed_pairs,
    "pt": _pt,
    "pt dictionary": _pt_dict,
    "pt data": _pt_data,
    "ogb": _ogb,
    "ogb binary": _ogb_binary,
}
#: How the weights of each format are asked for; none where it cannot have any.
WEIGHT: dict[str, dict[str, str]] = {
    "csv": {"weight_column": "w"},
    "csv.gz": {"weight_column": "2"},
    "tsv": {"weight_column": "2"},
    "blanks": {"weight_column": "2"},
    "several csv": {"weight_column": "2"},
    "parquet": {"weight_column": "w"},
    "folder of parquet": {"weight_column": "w"},
    "pattern of parquet": {"weight_column": "w"},
    "npz": {},
    "npz columns": {},
    "npz packed": {},
    "npz packed pairs": {},
    "pt dictionary": {},
    "pt data": {},
}


# --- kills -------------------------------------------------------------------------------------


def main(source: str, out: str, seed: str, kills: str, options: str) -> None:
    """Build ``out`` in processes that are killed, ``kills`` times, and then in one that is not.

    Some die at a random moment, some right after a random write; the third while it sorts, the
    sixth before it renames its folder and the seventh after, which a random moment may miss. What
    was finished nevertheless is built again over itself. Prints how many died, the stages that the
    journal was in after each, and the checksums.
    """
    from virgo.graph.disk import build, journal, read_header

    _load_compiled(Path(out).parent)
    journal.INTERVAL = 0.0  # an entry at every chance, so that there is something to go on from
    rng, given, stages, died = random.Random(int(seed)), json.loads(options), [], 0
    folder = Path(out).parent / f".{Path(out).name}.building"
    began = time.monotonic()
    if (child := os.fork()) == 0:
        build(source, out + "-timed", **given)
        os._exit(0)
    os.waitpid(child, 0)
    took = time.monotonic() - began
    for attempt in range(int(kills)):
        child = os.fork()
        if child == 0:
            if attempt == 2:
                _die_sorting(journal)
            elif attempt in (5, 6):
                _die_renaming(after=attempt == 6)
            elif attempt % 2:
                _die_after(rng.randrange(100))
            if attempt % 3:
                wait_for_entries(journal)
            build(source, out, force=True, **given)
            os._exit(0)
        if attempt % 2 == 0 and attempt not in (2, 6):
            time.sleep(rng.random() * took)
            os.kill(child, signal.SIGKILL)
        died += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        rng.random()  # the child's draws are not ours
        found = journal.read_journal(folder)
        stages.append("finished" if Path(out).exists() else found and found["state"])
    build(source, out, force=True, **given)
    files = {name: one.sha256 for name, one in read_header(out).files.items()}
    print(json.dumps({"kills": died, "stages": stages, "files": files}))


def _load_compiled(folder: Path) -> None:
    """What takes long to import, and what numba has compiled, is loaded once, before the fork."""
    import pyarrow.csv  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    from virgo.graph.disk import build

    for weighted in (False, True):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            source = WRITERS["npz"](random_edges(0, 3, 9, weighted=weighted), Path(name))
            for merges in (False, True):
                build(source, Path(name) / f"{merges}", deduplicate=merges)


def wait_for_entries(journal: Any) -> None:
    """Let every step be in the journal before the next, as on a fast disk."""
    note = journal.Work.note

    def patient(self: Any, *args: Any, **kwargs: Any) -> None:
        note(self, *args, **kwargs)
        self.check(wait=True)

    journal.Work.note = patient


def _die_sorting(journal: Any) -> None:
    """Let this process be killed when the journal first says that edges are being sorted."""
    wait_for_entries(journal)
    note = journal.Work.note

    def dying(self: Any, state: Any, *args: Any, **kwargs: Any) -> None:
        note(self, state, *args, **kwargs)
        if state.stage in ("in", "out"):
            os.kill(os.getpid(), signal.SIGKILL)

    journal.Work.note = dying


def _die_renaming(*, after: bool) -> None:
    """Let this process be killed just before, or just after, a folder gets its final name."""
    rename = os.rename

    def dying(*names: Any) -> None:
        if after:
            rename(*names)
        os.kill(os.getpid(), signal.SIGKILL)

    os.rename = dying


def _die_after(writes: int) -> None:
    """Let this process be killed right after so many writes, half of the last one missing."""
    left, pwrite = writes, os.pwrite

    def dying(file: int, data: Any, offset: int) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            pwrite(file, data[: len(data) // 2], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        return pwrite(file, data, offset)

    os.pwrite = dying


if __name__ == "__main__":
    main(*sys.argv[1:])

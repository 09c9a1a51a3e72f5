"""Damaged files by the thousand: whatever they hold, the answer is a ``VirgoError``.

A case spoils a copy of good files and reads them, in a process that may die. Every case follows
from its number, so that one which fails can be run again alone::

    python tests/kit/fuzz.py graphs 0 2000         # cases 0 to 1999, a summary as JSON
    python tests/kit/fuzz.py graphs 1234 1         # case 1234 alone
"""

from __future__ import annotations

import json
import math
import os
import random
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

Bytes = bytes | bytearray
#: Seconds that a case may take, and cases of one process.
PATIENCE, CHUNK = 30.0, 50
_EXTREMES = (0, 1, -1, 2, 59, 60, 61, 2**31 - 1, 2**31, -(2**31), 2**32, 2**62, 2**63 - 1, -(2**63))
_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    "",
    "x",
    "../../etc/passwd",
    "<i8",
    "|O",
    "\ud800",
    -1,
    0,
    1,
    2**31,
    2**63,
    10**40,
    1.5,
    -0.0,
    math.nan,
    math.inf,
    [],
    [1],
    {},
    {"a": 1},
    [[[[]]]],
)


# --- what damage looks like ---------------------------------------------------------------------


def spoil_bytes(data: bytes, rng: random.Random) -> bytes:
    """The content of a file after an accident: bits, numbers, blocks, lengths."""
    spoiled = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        kind = rng.randrange(8)
        size = len(spoiled)
        at = rng.randrange(size) if size else 0
        if kind == 0 and size:
            spoiled[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and size:
            spoiled[at] = rng.randrange(256)
        elif kind in (2, 3) and size >= 8:
            width = rng.choice((4, 8))
            at -= at % width
            value = rng.choice(_EXTREMES) % 2 ** (8 * width)
            spoiled[at : at + width] = value.to_bytes(width, "little")[: max(0, size - at)]
        elif kind == 4:
            del spoiled[at:]
        elif kind == 5:
            spoiled[at:at] = rng.randbytes(rng.choice((1, 8, 64)))
        elif kind == 6 and size:
            end = min(size, at + rng.choice((1, 16, 512)))
            spoiled[at:end] = rng.choice((bytes(end - at), b"\xff" * (end - at)))
        else:
            other = rng.randrange(size) if size else 0
            spoiled[at : at + 16] = spoiled[other : other + 16]
    return bytes(spoiled)


def spoil_json(value: Any, rng: random.Random) -> Any:
    """A value somewhere inside is replaced, removed, renamed or added."""
    value = json.loads(json.dumps(value))
    holder, key = None, None
    inside = value
    while isinstance(inside, dict | list) and inside and (holder is None or rng.random() < 0.75):
        holder = inside
        key = rng.choice(list(inside)) if isinstance(inside, dict) else rng.randrange(len(inside))
        inside = inside[key]
    if holder is None:
        return rng.choice(_VALUES)
    kind = rng.randrange(6)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[rng.choice(("", "extra", "__class__", "../x"))] = rng.choice(_VALUES)
    elif kind == 2 and isinstance(inside, int | float) and not isinstance(inside, bool):
        holder[key] = inside + rng.choice((-1, 1, 0.5, -2 * inside, 2**40))
    else:
        holder[key] = rng.choice(_VALUES)
    return value


def spoil_text(text: str, rng: random.Random) -> bytes:
    """JSON, spoiled as JSON or as bytes; rarely very deep, or not JSON at all."""
    kind = rng.randrange(10)
    if kind == 0:
        return b"[" * 100_000 + b"]" * 100_000
    if kind == 1:
        return b'{"a":' * 50_000
    if kind < 4:
        return spoil_bytes(text.encode(), rng)
    return json.dumps(spoil_json(json.loads(text), rng)).encode("utf-8", "replace")


def _is_json(file: Path) -> bool:
    """Not if it was spoiled before."""
    try:
        json.loads(file.read_text())
    except (ValueError, RecursionError):
        return False
    return True


def spoil_folder(folder: Path, rng: random.Random) -> None:
    """A file in it is spoiled, missing, or something else than a file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    file = rng.choice(files)
    kind = rng.randrange(24)
    if kind == 0:
        file.unlink()
    elif kind == 1:
        file.rename(file.with_name("moved"))
        file.symlink_to(file.with_name("moved"))
    elif kind == 2:
        file.unlink()
        file.mkdir()
    elif kind == 3:
        file.unlink()
        os.mkfifo(file)
    elif kind == 4:
        file.write_bytes(rng.choice(files).read_bytes())
    elif file.suffix == ".json" and _is_json(file):
        file.write_bytes(spoil_text(file.read_text(), rng))
    else:
        file.write_bytes(spoil_bytes(file.read_bytes(), rng))


# --- what is read -------------------------------------------------------------------------------


class Target:
    """Good files, and what a user does with spoiled ones."""

    def __init__(self, pristine: Path) -> None:
        self.pristine = pristine

    def case(self, folder: Path, rng: random.Random) -> None:
        raise NotImplementedError


class Graphs(Target):
    """Folders of ``virgo graph build``: opened, described, planned for, mapped and in memory."""

    def __init__(self, pristine: Path) -> None:
        super().__init__(pristine)
        from kit.edges import WRITERS, random_edges

        from virgo.graph.disk import build

        for weighted in (False, True):
            source = WRITERS["npz"](random_edges(1, 60, 400, weighted=weighted), pristine)
            build(source, pristine / f"plain{weighted}", num_nodes=60)
            build(source, pristine / f"symmetric{weighted}", symmetric=True, relabel=True)
        (pristine / "named.csv").write_text("a,b\nb,c\nc,a\nä,a\n")
        build(pristine / "named.csv", pristine / "named")
        self.exercise(pristine / "plainFalse")
        self.exercise(pristine / "plainTrue")

    def case(self, folder: Path, rng: random.Random) -> None:
        good = rng.choice([path for path in sorted(self.pristine.iterdir()) if path.is_dir()])
        shutil.copytree(good, folder / "graph")
        for _ in range(rng.choice((1, 1, 2))):
            spoil_folder(folder / "graph", rng)
        self.exercise(folder / "graph", in_memory=rng.random() < 0.5)

    def exercise(self, graph: Path, *, in_memory: bool = False) -> None:
        import numpy as np

        import virgo
        from virgo.cli.planning import chain
        from virgo.graph.disk import read_header
        from virgo.graph.disk.describing import describe, names

        errors = []
        for step in (
            lambda: virgo.plan(
                chain("gcn", [8, 8, 4]), virgo.Graph.open(graph, in_memory=in_memory), "virgo"
            ),
            lambda: virgo.plan(
                chain("graph", [8, 8, 4], weighted=virgo.Graph.open(graph).is_weighted),
                virgo.Graph.open(graph, in_memory=in_memory).reversed,
                "virgo-forward",
            ),
            lambda: virgo.Graph.open(graph).by_source @ np.ones(virgo.Graph.open(graph).num_nodes),
            lambda: describe(graph).to_dict(),
            lambda: list(names(graph, read_header(graph))),
        ):
            try:
                step()
            except virgo.VirgoError as error:
                errors.append(error)
        if errors:
            raise errors[0]


class Builds(Target):
    """A build that was interrupted, whose working files are spoiled before it goes on."""

    def __init__(self, pristine: Path) -> None:
        super().__init__(pristine)
        from kit import edges as kit

        from virgo.graph.disk import build, journal

        source = kit.WRITERS["npz"](kit.random_edges(1, 3000, 20_000, weighted=True), pristine)
        self.source = source
        build(source, pristine / "finished", memory=2**17)
        journal.INTERVAL = 0.0
        stages = ("reading", "in", "out")
        for stage in stages:
            child = os.fork()
            if child == 0:
                self._die_in(stage)
                build(source, pristine / stage / "graph", memory=2**17)
                os._exit(0)
            os.waitpid(child, 0)
            assert (pristine / stage / ".graph.building").is_dir(), stage
        self.stages = stages

    def _die_in(self, stage: str) -> None:
        from kit.edges import wait_for_entries

        from virgo.graph.disk import journal

        wait_for_entries(journal)
        note = journal.Work.note

        def dying(work: Any, state: Any, *args: Any, **kwargs: Any) -> None:
            note(work, state, *args, **kwargs)
            if state.stage == stage and (state.edges_read > 0 or stage != "reading"):
                os.kill(os.getpid(), signal.SIGKILL)

        journal.Work.note = dying  # type: ignore[method-assign]

    def case(self, folder: Path, rng: random.Random) -> None:
        from virgo.graph.disk import build, journal, verify

        stage = rng.choice(self.stages)
        # the journal names its folder: spoiled where it was made, by one process at a time
        place = self.pristine / stage
        kept = folder / "kept"
        shutil.copytree(place, kept)
        try:
            working = place / ".graph.building"
            spoil_folder(working, rng)
            file = working / journal.JOURNAL
            if rng.random() < 0.3 and file.is_file() and not file.is_symlink():
                self._forge(file, rng)
            build(self.source, place / "graph", memory=2**17)
            verify(place / "graph")
        finally:
            shutil.rmtree(place)
            shutil.copytree(kept, place)

    def _forge(self, file: Path, rng: random.Random) -> None:
        """A journal that somebody wrote on purpose."""
        from virgo.graph.disk.journal import key_of

        try:
            entry = json.loads(file.read_text())
            del entry["digest"]
            state = {**entry["state"], rng.choice(sorted(entry["state"])): rng.choice(_VALUES)}
            entry["state"] = state
            file.write_text(json.dumps({**entry, "digest": key_of(entry)}))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return


class EdgeFiles(Target):
    """Edge lists in every format."""

    def __init__(self, pristine: Path) -> None:
        super().__init__(pristine)
        import numpy as np
        import torch
        from kit.edges import WRITERS, random_edges

        from virgo.graph.disk import build

        self.sources: list[tuple[Path, dict[str, Any]]] = []
        for name, write in WRITERS.items():
            for weighted in (False, True):
                folder = pristine / f"{name} {weighted}".replace(" ", "-")
                folder.mkdir()
                try:
                    written = write(random_edges(3, 50, 300, weighted=weighted), folder)
                except Exception:  # a format without weights
                    continue
                whole = written.parent if "*" in written.name else written
                self.sources.append((Path(whole), {}))
        index = torch.randint(9, (2, 20))
        odd: dict[str, Any] = {
            "meta": torch.empty(2, 5, device="meta", dtype=torch.long),
            "quantised": torch.quantize_per_tensor(torch.rand(2, 5), 0.1, 0, torch.quint8),
            "strings": ["a", "b"],
            "lists": [[0, 1], [1, 0]],
            "nested": {"edge_index": {"edge_index": index}},
            "weight list": {"edge_index": index, "edge_weight": [1.0] * 20},
            "weight meta": {"edge_index": index, "edge_weight": torch.empty(20, device="meta")},
            "weight text": {"edge_index": index, "edge_weight": "heavy"},
            "complex": {"edge_index": index, "edge_weight": torch.zeros(20, dtype=torch.complex64)},
            "boolean": index > 3,
            "float": index.float(),
            "half": {"edge_index": index, "edge_weight": torch.rand(20).bfloat16()},
            "sparse": index.float().to_sparse(),
            "scalar": torch.tensor(3),
            "none": None,
            "number": 3,
            "empty": {},
        }
        for name, value in odd.items():
            file = pristine / f"odd-{name.replace(' ', '-')}.pt"
            torch.save(value, file)
            self.sources.append((file, {}))
        (pristine / "long.csv").write_text("0,1," + "x" * 200_000 + "\n1,2,y\n")
        (pristine / "quote.csv").write_text('0,"1\n' * 9)
        header = b"\x93NUMPY\x01\x00v\x00{'descr': '<i8', 'fortran_order': False, 'shape': (2, -5)"
        (pristine / "negative.npy").write_bytes(header.ljust(127) + b"}\n" + bytes(80))
        np.savez(pristine / "strings.npz", edge_index=np.array([["a", "b"], ["c", "d"]]))
        for name in ("long.csv", "quote.csv", "negative.npy", "strings.npz"):
            self.sources.append((pristine / name, {}))
        build(self.sources[0][0], pristine / "warm", memory=2**17)

    def case(self, folder: Path, rng: random.Random) -> None:
        from virgo.graph.disk import build
        from virgo.graph.disk.format import working_folder

        source, options = rng.choice(self.sources)
        copy = folder / source.name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy)
        if rng.random() < 0.95:
            files = [copy] if copy.is_file() else [p for p in copy.rglob("*") if p.is_file()]
            file = rng.choice(sorted(files))
            file.write_bytes(spoil_bytes(file.read_bytes(), rng))
        more = rng.choice(({}, {"relabel": True}, {"symmetric": True}, {"id_type": "string"}))
        try:
            build(copy, folder / "graph", memory=2**17, **options, **more)
        except ValueError:
            assert not working_folder(folder / "graph").exists(), "a working folder is left"
            raise


class Plans(Target):
    """The JSON of a plan: read, printed, applied."""

    def __init__(self, pristine: Path) -> None:
        super().__init__(pristine)
        import torch
        from torch_geometric.data import Data

        import virgo
        from virgo.cli.planning import chain

        self.model = chain("sage", [16, 8, 4])
        self.text = virgo.plan(
            self.model, Data(x=torch.rand(40, 16), edge_index=torch.randint(40, (2, 200))), "virgo"
        ).to_json()

    def case(self, folder: Path, rng: random.Random) -> None:
        import copy

        import virgo

        text = spoil_text(self.text, rng).decode("utf-8", "replace")
        plan = virgo.Plan.from_json(text)
        str(plan), repr(plan), plan.to_json()
        plan.apply_(copy.deepcopy(self.model))


class Checkpoints(Target):
    """A run of ``virgo train --save``: loaded, and continued."""

    def __init__(self, pristine: Path) -> None:
        super().__init__(pristine)
        import virgo
        from virgo.experiments.tasks import Settings, Training, checkpoint, task_of

        self.task = task_of(virgo.data.load("like:cora@0.05"))
        training = Training(self.task, "gcn", "xavier", Settings.of({"epochs": 4}), 0)
        epochs = [training.advance(), training.advance()]
        self.file = checkpoint.save(training, pristine / "run.safetensors", epochs)

    def case(self, folder: Path, rng: random.Random) -> None:
        from virgo.experiments.tasks import checkpoint

        data = self.file.read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        if rng.random() < 0.6:  # what the header says, with tensors as they are
            header = json.loads(data[8 : 8 + size])
            inner = json.loads(header["__metadata__"]["virgo"])
            header["__metadata__"]["virgo"] = json.dumps(spoil_json(inner, rng))
            text = json.dumps(header).encode("utf-8", "replace")
            data = struct.pack("<Q", len(text)) + text + data[8 + size :]
        else:
            data = spoil_bytes(data, rng)
        copy = folder / "run.safetensors"
        copy.write_bytes(data)
        saved = checkpoint.load(copy)
        saved.model()
        training = saved.resume(self.task)
        curve = saved.curve
        if not training.done:
            curve.append(training.advance())
        training.finish()
        checkpoint.save(training, folder / "again.safetensors", curve)


class Stores(Target):
    """A sweep's SQLite file: status, export, table, and going on."""

    def __init__(self, pristine: Path) -> None:
        super().__init__(pristine)
        from kit.sweeps import small

        from virgo.experiments.sweep.running import run

        self.sweep = small
        run(small(pristine / "sweep.db", inits=("xavier", "kaiming-forward")), 0)
        self._join(pristine / "sweep.db")

    @staticmethod
    def _join(store: Path) -> None:
        """What waits in the log beside it becomes part of the file."""
        import sqlite3

        connection = sqlite3.connect(store)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()

    def case(self, folder: Path, rng: random.Random) -> None:
        import contextlib
        import io

        from virgo.cli import main

        store = folder / "sweep.db"
        data = bytearray((self.pristine / "sweep.db").read_bytes())
        if rng.random() < 0.7:
            for _ in range(rng.choice((1, 5, 50, 500))):
                data[rng.randrange(len(data))] = rng.randrange(256)
        else:
            data = bytearray(spoil_bytes(bytes(data), rng))
        store.write_bytes(data)
        commands = (
            ["sweep", "status", "--storage", str(store)],
            ["sweep", "export", "--storage", str(store), "--out", str(folder / "out")],
            ["table", "table1", "--storage", str(store)],
        )
        said = io.StringIO()
        codes = []
        for command in commands:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                codes.append(main(command))
        assert set(codes) <= {0, 2}, codes
        if 2 in codes:
            from virgo.errors import DataError

            raise DataError("refused")


class Records(Target):
    """Exported records: read, tabulated in every format, exported over."""

    def __init__(self, pristine: Path) -> None:
        super().__init__(pristine)
        from kit.sweeps import records, small

        from virgo.experiments.sweep.records import write
        from virgo.experiments.sweep.running import run

        run(small(pristine / "sweep.db", inits=("xavier", "virgo-forward"), curves=True), 0)
        self.file = write(pristine / "table1.jsonl", records(pristine / "sweep.db"))

    def case(self, folder: Path, rng: random.Random) -> None:
        from virgo.cli.tables import load
        from virgo.experiments.sweep.records import merge, read, write
        from virgo.experiments.sweep.tables import build

        lines = self.file.read_bytes().splitlines(keepends=True)
        at = rng.randrange(len(lines))
        lines[at] = spoil_text(lines[at].decode(), rng) + b"\n"
        copy = folder / "table1.jsonl"
        copy.write_bytes(b"".join(lines))
        table = build("table1", load("table1", None, copy))
        str(table), table.to_csv(), table.to_html(), table.to_json(), table.to_markdown()
        table.to_latex()
        write(folder / "again.jsonl", merge(read(copy), read(self.file)))


TARGETS: dict[str, type[Target]] = {
    "graphs": Graphs,
    "builds": Builds,
    "edges": EdgeFiles,
    "plans": Plans,
    "checkpoints": Checkpoints,
    "stores": Stores,
    "records": Records,
}


# --- running them -------------------------------------------------------------------------------


def run(name: str, first: int, count: int) -> dict[str, Any]:
    """So many cases from the first on.

    Returns:
        How many there were, how they ended, and those that ended badly.
    """
    import torch

    torch.set_num_threads(1)  # a forked process waits forever for threads that it does not have
    outcomes: Counter[str] = Counter()
    bad: list[str] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="virgo-fuzz-") as place:
        (Path(place) / "pristine").mkdir()
        target = TARGETS[name](Path(place) / "pristine")
        at, end = first, first + count
        while at < end:
            at = _some(target, Path(place), at, min(end, at + CHUNK), outcomes, bad)
    seconds = round(time.monotonic() - began, 1)
    result = {"target": name, "cases": count, "seconds": seconds, "outcomes": dict(outcomes)}
    return {**result, "bad": bad}


def _some(
    target: Target, place: Path, first: int, end: int, outcomes: Counter[str], bad: list[str]
) -> int:
    """Cases in one process; returns the number of the next one."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _child(target, place, first, end, writing)
    os.close(writing)
    at, text, trouble = first, b"", ""
    limit = time.monotonic() + PATIENCE
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, limit - time.monotonic()))
        data = os.read(reading, 1 << 16) if ready else b""
        if not data:
            if not ready:
                trouble = f"no answer within {PATIENCE:.0f} s"
                os.kill(child, signal.SIGKILL)
            break
        text += data
        *lines, text = text.split(b"\n")
        for line in lines:
            outcome, detail = json.loads(line)
            outcomes[outcome] += 1
            if outcome not in ("accepted", "refused"):
                bad.append(f"case {at}: {detail}")
            at, limit = at + 1, time.monotonic() + PATIENCE
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if at < end:
        if not trouble:
            killed = os.WIFSIGNALED(status)
            trouble = signal.Signals(os.WTERMSIG(status)).name if killed else f"status {status}"
        outcomes["hang" if "answer" in trouble else "signal"] += 1
        bad.append(f"case {at}: {trouble}")
        at += 1
    return at


def _child(target: Target, place: Path, first: int, end: int, pipe: int) -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    for number in range(first, end):
        folder = place / f"case{number}"
        folder.mkdir()
        answer = _outcome(target, folder, random.Random(number))
        os.write(pipe, json.dumps(answer).encode() + b"\n")
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _outcome(target: Target, folder: Path, rng: random.Random) -> tuple[str, str]:
    from virgo.errors import VirgoError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target.case(folder, rng)
        return "accepted", ""
    except VirgoError as error:
        return "refused", str(error)[:300]
    except BaseException as error:
        lines = traceback.format_exception(error)
        return (
            "traceback",
            f"{type(error).__name__}: {str(error)[:200]} {''.join(lines[-3:])[-900:]}",
        )


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])), indent=1))

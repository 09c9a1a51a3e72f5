"""The folder a build happens in: its lock, and the journal that says how far it has got.

The journal is replaced as a whole, and only after the files that it speaks of are on the disk. So
whenever the process ends, what the journal says is there; what is there beyond that is cut off.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from virgo.errors import GraphError
from virgo.graph.disk.format import working_folder
from virgo.graph.disk.header_checks import read_regular
from virgo.report.files import write_text_atomically
from virgo.report.json_types import check_types

JOURNAL = "journal.json"
STAGES = ("ids", "reading", "in", "out", "done")
#: Seconds between two entries; writing one makes the disk catch up.
INTERVAL = 5.0


@dataclass(frozen=True)
class BuildState:
    """How far a build has got.

    Attributes:
        stage: collecting ids, reading edges, sorting by target, sorting by source, done.
        position: where reading goes on.
        edges_read: edges of the source that were read in this stage.
        entries: room in the spill that is read from or written to, in keys.
        runs: runs in that spill.
        highest: the greatest id so far.
        sorted_to: keys below this are sorted and written.
        num_edges: edges written in this order.
        self_loops: loops among them.
        num_nodes: the number of nodes, once it is known.
        total_edges: edges of the order by target, once it is finished.
        files: finished arrays, as the header has them.
    """

    stage: str = "ids"
    position: list[int] | None = None
    edges_read: int = 0
    entries: int = 0
    runs: int = 0
    highest: int = -1
    sorted_to: int = 0
    num_edges: int = 0
    self_loops: int = 0
    num_nodes: int = 0
    total_edges: int = 0
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def is_possible(self) -> bool:
        """Whether a build can be there, so that going on cannot go wrong because of it."""
        counts = (self.edges_read, self.entries, self.runs, self.num_edges, self.self_loops)
        return (
            self.stage in STAGES
            and all(0 <= count < 2**48 for count in (*counts, self.total_edges))
            and -1 <= self.highest < 2**32
            and 0 <= self.num_nodes <= 2**32
            and 0 <= self.sorted_to <= (self.highest + 1) << 32
            and all(0 <= number < 2**62 for number in self.position or ())
            and all(set(array) == {"dtype", "size", "sha256"} for array in self.files.values())
        )

    def at(self, stage: str, **changes: Any) -> BuildState:
        """The same build at the beginning of another stage."""
        return replace(self, stage=stage, **changes)


class Work:
    """The working folder of one build, locked while this is open.

    Attributes:
        folder: what will become the graph's folder.
        scratch: where spills are.
        state: as the journal had it.
        resumed: whether there was anything to go on from.
    """

    def __init__(self, folder: Path, scratch: Path, key: str) -> None:
        self.folder, self.scratch, self._key = folder, scratch, key
        journal = read_journal(folder)
        self.state = BuildState()
        self.resumed = journal is not None and journal["key"] == key
        if journal is not None and journal["key"] == key:
            self.state = BuildState(**journal["state"])
        else:
            self._empty(Path(journal["scratch"]) if journal else scratch)
        self._writer = ThreadPoolExecutor(1)
        self._pending: list[Future[None]] = []
        self._last = self._begun = time.monotonic()

    @property
    def is_old(self) -> bool:
        """Whether doing it all again would be a pity."""
        return time.monotonic() - self._begun >= INTERVAL

    def _empty(self, earlier: Path) -> None:
        """Begin afresh."""
        for entry in self.folder.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        for scratch in (self.scratch, earlier):
            if scratch.name == self.scratch.name:  # never what somebody wrote into the journal
                shutil.rmtree(scratch, ignore_errors=True)
        self.scratch.mkdir(parents=True)
        self._write(self.state, [], None)

    def note(
        self,
        state: BuildState,
        files: Sequence[int],
        then: Callable[[], None] | None = None,
        *,
        now: bool = False,
    ) -> None:
        """Enter a state whose files are written, while the build goes on.

        Args:
            state: how far the build has got.
            files: open files that must be on the disk before.
            then: done after the entry, such as dropping what is no longer needed.
            now: enter it in any case; otherwise only if the last entry is old enough.
        """
        self.check()
        due = now or (not self._pending and time.monotonic() - self._last >= INTERVAL)
        if due:
            self._last = time.monotonic()
            kept = [os.dup(file) for file in files]
            self._pending.append(self._writer.submit(self._write, state, kept, then))

    def check(self, *, wait: bool = False) -> None:
        """Raise what went wrong while entering; with ``wait``, let all entries be made first."""
        while self._pending and (wait or self._pending[0].done()):
            self._pending.pop(0).result()

    def _write(self, state: BuildState, files: list[int], then: Callable[[], None] | None) -> None:
        try:
            for file in files:
                os.fsync(file)
        finally:
            for file in files:
                os.close(file)
        entry = {"key": self._key, "scratch": str(self.scratch), "state": asdict(state)}
        text = json.dumps({**entry, "digest": key_of(entry)})
        write_text_atomically(self.folder / JOURNAL, text, durable=True)
        if then is not None:
            then()

    def close(self) -> None:
        """Stop entering."""
        self._writer.shutdown(wait=True)


def read_journal(folder: Path) -> dict[str, Any] | None:
    """What an unfinished build's journal says, if there is one as it was written."""
    with contextlib.suppress(
        OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError
    ):
        journal = json.loads(read_regular(folder / JOURNAL))
        if journal.pop("digest", None) == key_of(journal):
            check_types(BuildState, journal["state"])
            state = BuildState(**journal["state"])
            if state.is_possible and isinstance(journal["scratch"], str):
                return dict(journal)
    return None


def key_of(values: object) -> str:
    """A digest of what decides a build; another one makes it start afresh."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


@contextlib.contextmanager
def locked(out: Path) -> Iterator[Path]:
    """The working folder of ``out``, made if it is not there, for this process alone.

    The lock is on the folder itself: the system frees it however its holder ends.

    Yields:
        The working folder.

    Raises:
        GraphError: another process builds the same graph.
    """
    folder = working_folder(out)
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
        try:
            _lock(handle, out)
            if _is_still(handle, folder):  # another build may just have renamed it
                yield folder
                return
        finally:
            os.close(handle)


def _is_still(handle: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(folder))
    except FileNotFoundError:
        return False


def _lock(handle: int, out: Path) -> None:
    import fcntl  # builds need a POSIX system, which `check_target` has made sure of

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise GraphError(
            f"{out}: expected one build at a time, got another process that builds it. Wait for "
            f"it, or stop it."
        ) from error
    except OSError:  # a file system without locks
        return

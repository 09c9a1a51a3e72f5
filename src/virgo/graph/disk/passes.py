"""What all passes of a build share, and the first: reading the edges once, into a spill."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from virgo.errors import DataError
from virgo.graph.disk.chunks import Chunk, Ids
from virgo.graph.disk.journal import BuildState, Work
from virgo.graph.disk.labels import Labels
from virgo.graph.disk.options import MOST_NODES, BuildOptions, memory_of
from virgo.graph.disk.sources import EdgeSource
from virgo.graph.disk.spills import CELLS, RUN, Spill, SpillRecord, shift_for
from virgo.graph.threads import cores

Progress = Callable[[int, int, str], None]
#: Edges of the largest chunk, and bytes that one takes: ids and weight, and the text they were in.
_CHUNK = 2**22
_CHUNK_EDGE = 64
HALF = 32


@dataclass(frozen=True)
class Context:
    """One build: what is asked, what is read, where it happens, who watches."""

    source: EdgeSource
    options: BuildOptions
    work: Work
    progress: Progress
    threads: int

    @property
    def memory(self) -> int:
        """Bytes for all buffers."""
        return memory_of(self.options.memory)

    @property
    def chunk(self) -> int:
        """Edges to read at once: three chunks are about at a time."""
        return max(1, min(_CHUNK, self.memory // (3 * _CHUNK_EDGE)))

    @property
    def relabels(self) -> bool:
        """Whether nodes get new numbers."""
        return self.options.relabel or self.source.has_strings


def num_threads() -> int:
    """Cores that this process may use, at most eight."""
    return min(8, cores())


def read_edges(context: Context, state: BuildState, labels: Labels | None) -> BuildState:
    """Read the source once and leave its edges in the spill ``in``, grouped by target.

    Chunks are partitioned by threads while the next is being read.

    Returns:
        The state after the last chunk.
    """
    work, source = context.work, context.source
    spill = Spill(work.scratch, "in", is_weighted=source.is_weighted)
    spill.keep(state.runs, state.entries)
    reader = _Reader(context, spill, labels)
    pending: deque[tuple[Chunk, list[Future[tuple[SpillRecord, int]]]]] = deque()
    total, entries = source.nbytes, state.entries

    def finish() -> None:
        nonlocal state
        chunk, futures = pending.popleft()
        done = [future.result() for future in futures]
        spill.add([record for record, _ in done])
        state = replace(
            state,
            position=chunk.position,
            edges_read=state.edges_read + len(chunk),
            entries=state.entries + len(chunk) * reader.factor,
            runs=state.runs + len(done),
            num_edges=state.num_edges + sum(int(record.counts.sum()) for record, _ in done),
            highest=max([state.highest, *(high for _, high in done)]),
        )
        work.note(state, spill.files)
        context.progress(chunk.consumed, total, f"{state.edges_read:,} edges read")

    with ThreadPoolExecutor(context.threads) as pool:
        for chunk in source.chunks(state.position, context.chunk):
            pending.append((chunk, reader.submit(pool, chunk, entries)))
            entries += len(chunk) * reader.factor
            if len(pending) > 1:
                finish()
        while pending:
            finish()
    work.note(state, spill.files)
    return state


class _Reader:
    """Partitions chunks by the rows of the order by target."""

    def __init__(self, context: Context, spill: Spill, labels: Labels | None) -> None:
        self._spill, self._labels = spill, labels
        self._drop, self._both = context.options.self_loops == "drop", context.options.symmetric
        given = context.options.num_nodes or context.source.num_nodes
        self._bound = MOST_NODES if given is None or labels is not None else given
        self.factor = 2 if self._both else 1
        share = context.memory // (context.threads * 4 * _CHUNK_EDGE)
        self._run = max(1, min(RUN, share) // self.factor)

    def submit(
        self, pool: ThreadPoolExecutor, chunk: Chunk, entries: int
    ) -> list[Future[tuple[SpillRecord, int]]]:
        """Let threads partition a chunk, run by run."""
        return [
            pool.submit(self._partition, chunk, begin, entries + begin * self.factor)
            for begin in range(0, len(chunk), self._run)
        ]

    def _partition(self, chunk: Chunk, begin: int, entries: int) -> tuple[SpillRecord, int]:
        from virgo.graph.disk import kernels

        end = min(begin + self._run, len(chunk))
        part = replace(chunk, sources=chunk.sources[begin:end], targets=chunk.targets[begin:end])
        sources, targets = (
            (_plain(part.sources), _plain(part.targets))
            if self._labels is None
            else self._labels.numbers(part)
        )
        weights = None if chunk.weights is None else np.array(chunk.weights[begin:end])
        low, high = kernels.extent(sources, targets)
        if low < 0 or high >= self._bound:
            raise self._out_of_range(chunk, begin, sources, targets)
        shift = max(HALF, shift_for((int(high) + 1) << HALF))
        how = shift - HALF, self._drop, self._both
        counts = np.zeros(CELLS, dtype=np.int64)
        kernels.count_rows(targets, sources, *how, counts)
        keys = np.empty(int(counts.sum()), dtype=np.uint64)
        moved = None if weights is None else np.empty(keys.size)
        cursor = np.cumsum(counts) - counts
        kernels.spread_rows(targets, sources, weights, *how, cursor, keys, moved)
        return SpillRecord(self._spill.write(entries, keys, moved), shift, counts), int(high)

    def _out_of_range(self, chunk: Chunk, begin: int, sources: Ids, targets: Ids) -> DataError:
        wrong = [(ids < 0) | (ids >= self._bound) for ids in (sources, targets)]
        edge = int(np.flatnonzero(wrong[0] | wrong[1])[0])
        given = self._bound < MOST_NODES
        advice = (
            "Correct it, give another --num-nodes, or --relabel"
            if given
            else "Give --relabel, which numbers any ids from 0 on"
        )
        return DataError(
            f"{chunk.name_edge(begin + edge)}: expected ids from 0 to {self._bound - 1:,}, got "
            f"{sources[edge]} and {targets[edge]}. {advice}."
        )


def _plain(ids: Ids) -> Ids:
    """Ids as the compiled loops want them, 32 or 64 bits wide, copied only if they are not so.

    Arrow's arrays cannot be written to, for which numba would compile everything once more.

    Returns:
        An array that compiled code takes.
    """
    kind = np.int32 if ids.dtype == np.int32 else np.int64
    return np.asarray(np.require(ids, kind, ["C", "A", "W"]))

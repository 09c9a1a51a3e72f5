"""Build an on-disk graph from an edge list, in bounded memory, and go on where a build ended.

Three passes: read the edges once into a spill (``passes.py``), sort them by target,
place them by source (``sorting.py``). Everything happens in a hidden folder beside the
final one, which is renamed when it is complete.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from virgo.errors import DataError, GraphError, VirgoError
from virgo.graph.disk import labels as labelling
from virgo.graph.disk import spills
from virgo.graph.disk.chunks import Chunk
from virgo.graph.disk.files import Output
from virgo.graph.disk.format import FORMAT, NARROW_NODES, Header, StoredArray
from virgo.graph.disk.journal import BuildState, Work, key_of, locked
from virgo.graph.disk.options import MOST_NODES, BuildOptions, memory_of
from virgo.graph.disk.passes import Context, Progress, num_threads, read_edges
from virgo.graph.disk.places import (
    check_space,
    check_target,
    check_tmp,
    drop,
    publish,
    scratch_folder,
    translated,
)
from virgo.graph.disk.sorting import Sorter
from virgo.graph.disk.sources import EdgeSource, open_source

#: A graph whose ids go beyond this many times its edges has ids, not numbers.
_SPARSE, _FEW = 64, 2**24


def _silent(done: int, total: int, what: str) -> None:
    """Progress that nobody watches."""


def build(
    source: str | Path, out: str | Path, *, progress: Progress | None = None, **options: Any
) -> Header:
    """Turn an edge list into an on-disk graph.

    A build that was interrupted, however, goes on where it was when it is asked for again; a
    source that has changed since, or other options, start it afresh.

    Args:
        source: a Parquet, CSV (also ``.gz``), ``.npy``, ``.npz`` or ``.pt`` file, a folder or a
            pattern of such, or an OGB raw folder.
        out: the folder to make.
        progress: told ``(done, total, what)``.
        **options: ``symmetric`` adds the reverse of every edge and merges equal ones, adding their
            weights; ``deduplicate`` merges only; ``self_loops="drop"``; ``relabel`` numbers
            arbitrary ids from 0 in ascending order (strings always are); ``num_nodes``;
            ``source_column``, ``target_column``, ``weight_column``; ``header`` (``"auto"``,
            ``"yes"``, ``"no"``) and ``id_type`` (``"auto"``, ``"int64"``, ``"string"``) of text
            files; ``memory="2GB"`` for buffers, beside which relabelling holds all ids;
            ``tmp`` for what is spilled; ``force`` to replace ``out``.

    Returns:
        The header of the finished graph.

    Raises:
        DataError: the source is missing, damaged, or holds something that is no edge; or the disk
            is full.
        GraphError: ``out`` exists, or another process builds it, or ids are too sparse.
        OptionError: an option does not make sense.
        VirgoError: as the family of all these.
    """
    asked = BuildOptions(**options)
    final = Path(out)
    if final.is_symlink():  # it is the folder behind it that is replaced
        final = final.resolve()
    check_target(final, asked.force)
    check_tmp(asked)
    opened = open_source(source, asked)
    with translated(final), locked(final) as folder:
        scratch = scratch_folder(final, folder, asked)
        key = key_of(
            [
                FORMAT,
                asked.asked(),
                memory_of(asked.memory),
                str(scratch),
                opened.stamp(),
                spills.CELLS,
                spills.RUN,
            ]
        )
        work = Work(folder, scratch, key)
        try:
            if not work.resumed:
                check_space(opened, asked, folder, scratch)
            context = Context(opened, asked, work, progress or _silent, num_threads())
            header = Header.from_json(_run(context).to_json(), final)  # checked before it is kept
            work.check(wait=True)
        except VirgoError:  # the source must change: nothing here is of use any more
            work.close()
            drop(folder, scratch)
            raise
        finally:
            work.close()
        publish(header, folder, scratch, final, asked.force)
    return header


def _run(context: Context) -> Header:
    """All stages from where the journal says."""
    work, state = context.work, context.work.state
    labels = None
    if state.stage == "ids":
        state = _collect_ids(context, state)
        work.note(state, [], now=True)
    if state.stage == "reading":
        if context.relabels:
            labels = labelling.load(work.folder, context.source.has_strings)
        state = _counted(context, read_edges(context, state, labels))
    if state.stage == "in":
        state = _sort_by_target(context, state)
    if state.stage == "out":
        sorter = Sorter(context, state, "out", None)
        state = sorter.run().at("done")
        work.note(state, sorter.files, then=sorter.spill.forget, now=True)
    return _header(context, state)


def _sort_by_target(context: Context, state: BuildState) -> BuildState:
    work, onward = context.work, None
    if not context.options.symmetric:
        onward = spills.Spill(work.scratch, "out", is_weighted=context.source.is_weighted)
        onward.keep(state.runs, state.entries)
    sorter = Sorter(context, state, "in", onward)
    state = sorter.run()
    stage = "out" if onward is not None else "done"
    state = state.at(stage, total_edges=state.num_edges, sorted_to=0, num_edges=0)
    work.note(state, sorter.files, then=sorter.spill.forget, now=stage == "done" or work.is_old)
    return state


def _collect_ids(context: Context, state: BuildState) -> BuildState:
    """All ids in ascending order, if nodes get new numbers."""
    if not context.relabels:
        return state.at("reading")
    source, total, read = context.source, context.source.nbytes, 0

    def chunks() -> Iterator[Chunk]:
        nonlocal read
        for chunk in source.chunks(None, context.chunk):
            yield chunk
            read += len(chunk)
            context.progress(chunk.consumed, total, f"{read:,} edges read for their ids")

    labels: labelling.Labels | None
    if source.has_strings:
        labels = labelling.collect(chunks(), labelling.Strings)
    else:
        labels = labelling.collect(chunks(), labelling.Integers)
    if labels is None:
        raise _empty(source)
    if len(labels) > MOST_NODES:
        raise GraphError(f"{source.name}: expected at most {MOST_NODES:,} nodes, got more.")
    files = {}
    for name, array in labels.arrays().items():
        output = Output(context.work.folder, name, array.dtype.newbyteorder("<").str)
        output.append(array)
        os.fsync(output.file)
        files[name] = output.described()
    return state.at("reading", num_nodes=len(labels), files=files)


def _counted(context: Context, state: BuildState) -> BuildState:
    """The state after reading, once it is known how many nodes and edges there are."""
    source, options = context.source, context.options
    if source.num_edges is not None and state.edges_read != source.num_edges:
        raise DataError(
            f"{source.name}: expected {source.num_edges:,} edges, got {state.edges_read:,}. Make "
            f"or fetch the files again."
        )
    if state.edges_read == 0:
        raise _empty(source)
    if state.num_edges == 0:
        raise DataError(
            f"{source.name}: expected an edge between two nodes, got {state.edges_read:,} "
            f"self-loops. Give --self-loops keep."
        )
    nodes = state.num_nodes or options.num_nodes or source.num_nodes
    if nodes is None:
        nodes = state.highest + 1
        if nodes > _SPARSE * state.edges_read + _FEW:
            raise GraphError(
                f"{source.name}: expected ids that number the nodes from 0 on, got one of "
                f"{state.highest:,} among {state.edges_read:,} edges. Give --relabel, or "
                f"--num-nodes if they are numbers."
            )
    return state.at("in", num_nodes=nodes, runs=0, entries=0, num_edges=0)


def _empty(source: EdgeSource) -> DataError:
    return DataError(f"{source.name}: expected at least one edge, got none. Give a list of edges.")


def _header(context: Context, state: BuildState) -> Header:
    from virgo import __version__

    source = context.source
    kind = "string" if source.has_strings else "int64"
    return Header(
        num_nodes=state.num_nodes,
        num_edges=state.total_edges,
        symmetric=context.options.symmetric,
        weighted=source.is_weighted,
        index="int32" if state.num_nodes <= NARROW_NODES else "int64",
        self_loops=state.self_loops,
        ids=kind if context.relabels else None,
        files={name: StoredArray(**array) for name, array in state.files.items()},
        options=context.options.asked(),
        virgo=__version__,
        source={"name": source.name, "bytes": source.nbytes},
    )

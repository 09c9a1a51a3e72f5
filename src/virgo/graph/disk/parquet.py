"""Edges from Parquet files, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from virgo.errors import DataError, OptionError, needed
from virgo.graph.disk.arrays import PAIRS
from virgo.graph.disk.chunks import Chunk, Position, damaged, numbered
from virgo.graph.disk.options import BuildOptions

#: pyarrow has no types that strict mode accepts.
Arrow = Any


def arrow(module: str) -> Arrow:
    """``pyarrow`` or a module of it.

    Returns:
        The module.

    Raises:
        MissingExtra: it is not installed.
    """
    return needed(module, "Reading Parquet and CSV", "scale")


def chosen_columns(names: Sequence[str], options: BuildOptions, where: Path) -> list[int]:
    """The positions of the columns of sources, targets and, if named, weights.

    A column is named by its name or, where no column has that name, by its number from 0 on.

    Returns:
        Two or three positions.

    Raises:
        OptionError: there is no such column, or one is named twice.
    """
    if options.source_column is not None and options.target_column is not None:
        chosen = (options.source_column, options.target_column)
        positions = [_position(column, names, where) for column in chosen]
    else:
        lower = [name.lower() for name in names]
        pair = next((pair for pair in PAIRS if set(pair) <= set(lower)), None)
        positions = [lower.index(column) for column in pair] if pair else [0, 1]
    if options.weight_column is not None:
        positions.append(_position(options.weight_column, names, where))
    if len(set(positions)) < len(positions) or len(names) < 2:
        shown = ", ".join(names[column] for column in positions if column < len(names))
        raise OptionError(f"{where}: expected different columns, got {shown}. Name others.")
    return positions


def _position(column: str, names: Sequence[str], where: Path) -> int:
    if column in names:
        return list(names).index(column)
    if column.isdecimal() and int(column) < len(names):
        return int(column)
    raise OptionError(
        f"{where}: expected one of the columns {', '.join(names)}, got {column!r}. Name the "
        f"columns with --source-column, --target-column and --weight-column."
    )


class ParquetFile:
    """One Parquet file; a position is its row group and the rows already read of that."""

    def __init__(self, path: Path, options: BuildOptions) -> None:
        self.path = path
        opened = self._open()
        schema = opened.schema_arrow
        names = list(schema.names)
        chosen = chosen_columns(names, options, path)
        self._names = [names[position] for position in chosen]
        self.is_weighted = len(chosen) == 3
        self.num_edges: int | None = int(opened.metadata.num_rows)
        kinds = {self._kind(schema.field(name).type, name) for name in self._names[:2]}
        self.has_strings = "string" in kinds or options.id_type == "string"
        if len(kinds) > 1 and options.id_type != "string":
            raise DataError(
                f"{path}: expected ids of one type, got {' and '.join(sorted(kinds))}. Give "
                f"--id-type string, or convert a column."
            )

    def _open(self) -> Arrow:
        parquet, lib = arrow("pyarrow.parquet"), arrow("pyarrow.lib")
        try:
            return parquet.ParquetFile(self.path, memory_map=False, pre_buffer=False)
        except (lib.ArrowException, OSError) as error:
            raise damaged(self.path, "Parquet file", error) from error

    def _kind(self, kind: Arrow, name: str) -> str:
        types = arrow("pyarrow").types
        if types.is_dictionary(kind):
            kind = kind.value_type
        if types.is_integer(kind):
            return "int64"
        if types.is_string(kind) or types.is_large_string(kind):
            return "string"
        raise DataError(
            f"{self.path}: expected integers or strings in the column {name}, got {kind}. Name "
            f"other columns with --source-column and --target-column."
        )

    def chunks(self, start: Position | None, limit: int) -> Iterator[Chunk]:
        lib = arrow("pyarrow.lib")
        group, skip, before = start or [0, 0, 0]
        size, opened = self.path.stat().st_size, self._open()
        total = max(opened.metadata.num_rows, 1)
        try:
            while group < opened.num_row_groups:
                done = 0
                for batch in opened.iter_batches(limit, [group], self._names, use_threads=False):
                    done += batch.num_rows
                    if done <= skip:  # a whole number of batches, if the limit is the same
                        continue
                    batch = batch.slice(max(0, skip - (done - batch.num_rows)))
                    after = [group, done, before + batch.num_rows]
                    if batch.num_rows:
                        yield self._chunk(batch, before, after, size * after[2] // total)
                    before, skip = after[2], done
                group, skip = group + 1, 0
        except (lib.ArrowException, OSError) as error:
            raise damaged(self.path, "Parquet file", error) from error

    def _chunk(self, batch: Arrow, before: int, after: Position, consumed: int) -> Chunk:
        name_edge = numbered(self.path, before, "row")
        columns = [batch.column(name) for name in self._names]
        for name, column in zip(self._names, columns, strict=True):
            if column.null_count:
                first = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
                raise DataError(
                    f"{name_edge(first)}: expected a value in the column {name}, got none. "
                    f"Correct or remove that row."
                )
        pa = arrow("pyarrow")
        kind = pa.large_string() if self.has_strings else pa.int64()
        ids = [column.cast(kind) for column in columns[:2]]
        if not self.has_strings:
            ids = [column.to_numpy() for column in ids]
        weights = columns[2].cast(pa.float64()).to_numpy() if self.is_weighted else None
        return Chunk(ids[0], ids[1], weights, after, consumed, name_edge)

"""Edges from CSV files, plain or packed with gzip.

Blocks of whole lines are cut here and parsed by Arrow. So a build can go on at a line, and the line
that Arrow stumbles over can be named.
"""

from __future__ import annotations

import csv
import gzip
import math
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np

from virgo.errors import DataError
from virgo.graph.disk.chunks import Chunk, Position, damaged
from virgo.graph.disk.options import BuildOptions
from virgo.graph.disk.parquet import Arrow, arrow, chosen_columns

Stream = gzip.GzipFile | BinaryIO
_BROKEN = (EOFError, gzip.BadGzipFile, zlib.error, OSError)
_SNIFFED = 2**16
_LONGEST_LINE = 2**20
#: Bytes that an edge of two ids takes at least, roughly: blocks are cut by bytes, not by edges.
_LINE = 12
_NAMES = {"src", "dst", "source", "target", "from", "to", "row", "col", "u", "v", "head", "tail"}
_COMMENT = (b"#", b"%")


@dataclass(frozen=True)
class Layout:
    """How a file's lines are made."""

    delimiter: str
    num_columns: int
    chosen: tuple[int, ...]
    has_strings: bool
    begins: int  # the byte after comments and header
    line: int  # the number of the line there, counting from 1

    def fields(self, line: str) -> list[str]:
        """A line's columns."""
        return split(line, self.delimiter)


def split(line: str, delimiter: str) -> list[str]:
    """A line's columns, without quotes and blanks."""
    if delimiter == " ":
        return line.split()
    try:
        return [field.strip() for field in next(csv.reader([line], delimiter=delimiter), [])]
    except csv.Error:  # a field of more than 131,072 characters: no edge in any case
        return [line]


def is_whole(text: str) -> bool:
    """Whether a text is a 64-bit integer."""
    return re.fullmatch(r"[+-]?\d{1,19}", text) is not None and -(2**63) <= int(text) < 2**63


def sniff(path: Path, head: bytes, options: BuildOptions) -> Layout:
    """Delimiter, header, columns and type of ids, from a file's first lines.

    The first line is a header if the user chose columns by name, or if its ids are no integers
    while those of the second are, or if it has the usual names.

    Returns:
        The layout of all lines.

    Raises:
        DataError: the first line is no edge.
    """
    begins, number = 0, 1
    lines: list[tuple[bytes, str]] = []
    for raw in head.splitlines(keepends=True):
        if not lines and (raw.startswith(_COMMENT) or not raw.strip()):
            begins, number = begins + len(raw), number + 1
        elif raw.strip():
            lines.append((raw, raw.decode("utf-8", "replace").strip("\r\n\ufeff")))
    if not lines:
        return Layout(",", 2, (0, 1), False, begins, number)
    first = lines[0][1]
    delimiter = next((sign for sign in ",\t;" if sign in first), " ")
    fields = split(first, delimiter)
    if len(fields) < 2:
        raise DataError(
            f"{path}: line {number}: expected two ids between commas, tabs or blanks, got "
            f"{first[:80]!r}. Give a file of edges."
        )
    second = split(lines[1][1], delimiter) if len(lines) > 1 else None
    is_header = _is_header(fields, second, options)
    names = fields if is_header else [str(position) for position in range(len(fields))]
    chosen = tuple(chosen_columns(names, options, path))
    sample = second if is_header and second else fields
    integers = all(is_whole(sample[position]) for position in chosen[:2] if position < len(sample))
    has_strings = options.id_type == "string" or (options.id_type == "auto" and not integers)
    if is_header:
        begins, number = begins + len(lines[0][0]), number + 1
    return Layout(delimiter, len(fields), chosen, has_strings, begins, number)


def _is_header(first: list[str], second: list[str] | None, options: BuildOptions) -> bool:
    if options.header != "auto":
        return options.header == "yes"
    named = {options.source_column, options.target_column, options.weight_column}
    if any(field is not None and not field.isdecimal() for field in named):
        return True
    if any(is_whole(field) for field in first[:2]):
        return False
    if len({field.lower() for field in first} & _NAMES) > 1:
        return True
    return second is not None and all(map(is_whole, second[:2]))


class TextFile:
    """One CSV file; a position is a byte (unpacked) and the number of its line."""

    num_edges: int | None = None

    def __init__(self, path: Path, options: BuildOptions) -> None:
        self.path = path
        with open(path, "rb") as file:
            self._is_packed = file.read(2) == b"\x1f\x8b"
        with self._open() as stream:
            head = self._read(stream, _SNIFFED)
        self._layout = sniff(path, head, options)
        self.has_strings = self._layout.has_strings
        self.is_weighted = len(self._layout.chosen) == 3
        arrow("pyarrow.csv")  # says at once if it is missing

    def _open(self) -> Stream:
        return gzip.open(self.path, "rb") if self._is_packed else open(self.path, "rb")

    def _read(self, stream: Stream, size: int) -> bytes:
        try:
            data: bytes = stream.read(size)
            return data
        except _BROKEN as error:
            raise damaged(self.path, "gzip file" if self._is_packed else "file", error) from error

    def _skip(self, stream: Stream, size: int) -> None:
        if not self._is_packed:
            stream.seek(size)
            return
        while size:
            size -= len(self._read(stream, min(size, 2**22)))

    def _consumed(self, stream: Stream, position: int) -> int:
        packed: IO[bytes] | None = getattr(stream, "fileobj", None)
        return packed.tell() if packed is not None else position

    def chunks(self, start: Position | None, limit: int) -> Iterator[Chunk]:
        position, line = start or (self._layout.begins, self._layout.line)
        size = max(limit * _LINE, 2**8)
        with self._open() as stream:
            self._skip(stream, position)
            rest = b""
            while True:
                data = self._read(stream, size)
                block, rest = _cut(rest + data, at_end=not data)
                if block:
                    position, lines = position + len(block), block.count(b"\n")
                    if block.strip():
                        consumed = self._consumed(stream, position)
                        yield self._parse(block, line, [position, line + lines], consumed)
                    line += lines
                elif len(rest) > max(_LONGEST_LINE, 2 * size):
                    raise DataError(
                        f"{self.path}: line {line}: expected an edge, got a line of more than "
                        f"{len(rest):,} bytes. Give a file of edges."
                    )
                if not data:
                    return

    def _parse(self, block: bytes, line: int, after: Position, consumed: int) -> Chunk:
        lib, layout = arrow("pyarrow.lib"), self._layout

        def name_edge(index: int) -> str:
            numbers = (n for n, text in enumerate(block.split(b"\n"), line) if text.strip())
            return f"{self.path}: line {next(n for i, n in enumerate(numbers) if i == index)}"

        try:
            columns = self._columns(block)
        except lib.ArrowException as error:
            raise self._bad_line(block, line, str(error)) from error
        if any(column.null_count for column in columns):
            raise self._bad_line(block, line, "an empty field")
        ids = columns[:2] if layout.has_strings else [column.to_numpy() for column in columns[:2]]
        weights = columns[2].to_numpy() if len(columns) == 3 else None
        return Chunk(ids[0], ids[1], weights, after, consumed, name_edge)

    def _columns(self, block: bytes) -> list[Arrow]:
        """The chosen columns of a block of lines."""
        pa, reading, layout = arrow("pyarrow"), arrow("pyarrow.csv"), self._layout
        if layout.delimiter == " ":
            block = _single_blanks(block)
        names = [str(position) for position in range(layout.num_columns)]
        chosen = [names[position] for position in layout.chosen]
        ids = pa.large_string() if layout.has_strings else pa.int64()
        table = reading.read_csv(
            pa.BufferReader(block),
            reading.ReadOptions(column_names=names, block_size=max(len(block), 2**20)),
            reading.ParseOptions(delimiter=layout.delimiter),
            reading.ConvertOptions(
                column_types=dict(zip(chosen, [ids, ids, pa.float64()], strict=False)),
                include_columns=chosen,
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
        return [table.column(name).combine_chunks() for name in chosen]

    def _bad_line(self, block: bytes, line: int, said: str) -> DataError:
        for number, raw in enumerate(block.split(b"\n"), line):
            text = raw.decode("utf-8", "replace").strip("\r")
            if text.strip() and (wrong := _wrong(text, self._layout)):
                return DataError(
                    f"{self.path}: line {number}: expected {wrong}, got {text[:80]!r}. Correct "
                    f"or remove that line."
                )
        last = line + block.count(b"\n")
        return DataError(f"{self.path}: lines {line} to {last}: expected edges, got {said}.")


def _wrong(text: str, layout: Layout) -> str:
    """What a line should have been; nothing if it is as it should be."""
    fields = layout.fields(text)
    if len(fields) != layout.num_columns:
        return f"{layout.num_columns} columns"
    if "\ufffd" in text:
        return "UTF-8"
    for position in layout.chosen[:2]:
        if not fields[position]:
            return "two ids"
        if not layout.has_strings and not is_whole(fields[position]):
            return "ids that are 64-bit integers (as in the first line; or give --id-type string)"
    try:
        number = float(fields[layout.chosen[2]]) if len(layout.chosen) == 3 else 0.0
    except ValueError:
        number = math.nan
    return "" if np.isfinite(number) else "a finite number as weight"


def _cut(data: bytes, *, at_end: bool) -> tuple[bytes, bytes]:
    """Whole lines, and the beginning of the next."""
    end = len(data) if at_end else data.rfind(b"\n") + 1
    return data[:end], data[end:]


def _single_blanks(block: bytes) -> bytes:
    """Columns that are lined up with several blanks, as Arrow takes exactly one for a delimiter."""
    if b"  " in block or b"\t" in block or block[:1] == b" " or b"\n " in block:
        block = re.sub(rb"[ \t]+", b" ", block)
    if b" " in (block[:1], block[-1:]) or any(blank in block for blank in (b"\n ", b" \n", b" \r")):
        block = re.sub(rb"(?m)^ | (?=\r?$)", b"", block)
    return block

"""Checkpoints: what a hop computed, kept for this run only or for the next one too.

Every result has a key, a digest of all it was computed from. With a checkpoint, a result is written
atomically, and then a manifest of a few numbers beside it. A run that is started again asks for the
same keys, reads what agrees with its manifest, and computes the rest.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from virgo.errors import DataError, OptionError
from virgo.graph.sql.connections import (
    Connection,
    Table,
    brief,
    is_duckdb,
    is_spark,
    new_name,
    one_row,
    session_of,
)
from virgo.report.files import atomic_write, write_text_atomically

FORMAT = 1
#: Sums in another order differ by rounding; a damaged file differs by more.
_ROUNDING = 1e-9
Forget = Callable[[], None]


def digest(*parts: object) -> str:
    """A short name for all that a result depends on.

    >>> digest("gcn", 1.0) == digest("gcn", 1.0) != digest("gcn", 2.0)
    True

    Returns:
        24 hexadecimal digits.
    """
    text = json.dumps([FORMAT, *parts], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(eq=False)
class Kept:
    """A computed table, how many rows it has, and the sum of squares of its numbers."""

    table: Table
    key: str
    rows: int
    squares: float


class Results:
    """Results in temporary tables, kept as long as somebody holds them.

    Args:
        con: the engine.

    Attributes:
        computed: notes of the results that were computed, in order.
        resumed: notes of those that an earlier run had left.
    """

    #: What an error adds about starting again.
    advice = "Pass checkpoint= to keep the hops that were finished"

    def __init__(self, con: Connection) -> None:
        self.con = con
        self.computed: list[str] = []
        self.resumed: list[str] = []

    def keep(self, key: str, table: Table, note: str, number: str = "value") -> Kept:
        """The rows of ``table``, computed now unless they are there already.

        Args:
            key: a digest of all that they are computed from.
            table: the expression.
            note: what this is, for people.
            number: the column whose squares are summed.

        Returns:
            The computed table and its checksums.

        Raises:
            DataError: the engine fails.
        """
        earlier = self._resume(key, number)
        if earlier is not None:
            self.resumed.append(note)
            return earlier
        try:
            stored, forget = self._store(key, table)
            kept = Kept(stored, key, *_measured(stored, number))
            self._seal(kept, note)
        except Exception as error:  # each engine has its own
            raise DataError(
                f"{note}: expected the engine to finish, got {type(error).__name__} "
                f"({brief(error)}). {self.advice}."
            ) from error
        if forget is not None:
            # with the last expression that reads it; not at exit, when the connection may be gone
            weakref.finalize(stored.op(), forget).atexit = False
        self.computed.append(note)
        return kept

    def _resume(self, key: str, number: str) -> Kept | None:
        """A result of an earlier run, if it is whole."""
        try:
            manifest = json.loads(self._manifest(key))
            expected = int(manifest["rows"]), float(manifest["squares"])
            table = self._open(key)
            rows, squares = _measured(table, number)
        except Exception:  # absent, unfinished, damaged: all of them mean computing it
            return None
        if rows != expected[0] or not math.isclose(squares, expected[1], rel_tol=_ROUNDING):
            return None
        # the number of the first run, so that all that follows has the same keys
        return Kept(table, key, *expected)

    def _store(self, key: str, table: Table) -> tuple[Table, Forget | None]:
        """Compute a result; returns it and what to call when nobody reads it any more."""
        name = new_name()
        return self.con.create_table(name, table, temp=True), lambda: self._drop(name)

    def _drop(self, name: str) -> None:
        with contextlib.suppress(Exception):  # a connection that is closed holds nothing
            self.con.drop_table(name, force=True)

    def _seal(self, kept: Kept, note: str) -> None:
        """Record that a result is whole."""

    def _manifest(self, key: str) -> str:
        raise LookupError(key)

    def _open(self, key: str) -> Table:
        raise LookupError(key)


class LastingResults(Results):
    """Results that the next run finds."""

    advice = "Start it again with the same checkpoint=, which keeps the hops that were finished"


class ParquetFolder(LastingResults):
    """DuckDB's results as Parquet files in a folder of this machine."""

    def __init__(self, con: Connection, folder: str | Path) -> None:
        super().__init__(con)
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionError(
                f"checkpoint: expected a folder that can be made, got {folder} ({error}). "
                f"Choose another."
            ) from error

    def _store(self, key: str, table: Table) -> tuple[Table, Forget | None]:
        with atomic_write(self.folder / f"{key}.parquet") as temporary:
            quoted = str(temporary).replace("'", "''")
            self.con.raw_sql(f"COPY ({self.con.compile(table)}) TO '{quoted}' (FORMAT parquet)")
        return self._open(key), None

    def _seal(self, kept: Kept, note: str) -> None:
        write_text_atomically(self.folder / f"{kept.key}.json", _manifest(kept, note))

    def _manifest(self, key: str) -> str:
        return (self.folder / f"{key}.json").read_text()

    def _open(self, key: str) -> Table:
        return self.con.read_parquet(self.folder / f"{key}.parquet")


class SparkFolder(LastingResults):
    """Spark's results as Parquet folders, wherever Spark can write.

    Spark writes and commits them itself, task by task, so a task that is tried again or an executor
    that is lost leaves no half of a result. Reading them back cuts the lineage: a later loss goes
    back to this hop, not to the first.
    """

    def __init__(self, con: Connection, folder: str | Path) -> None:
        super().__init__(con)
        self.folder = os.fspath(folder).rstrip("/")

    def _store(self, key: str, table: Table) -> tuple[Table, Forget | None]:
        frame, path = self.con.raw_sql(self.con.compile(table)), f"{self.folder}/{key}.parquet"
        frame.write.mode("overwrite").parquet(path)
        # with the schema that is known, or Spark reads a file to learn it
        back, name = frame.sparkSession.read.schema(frame.schema).parquet(path), new_name()
        back.createOrReplaceTempView(name)
        return self.con.table(name), None

    def _seal(self, kept: Kept, note: str) -> None:
        line = self.con.raw_sql(_as_select(kept, note))
        line.coalesce(1).write.mode("overwrite").text(f"{self.folder}/{kept.key}.json")

    def _manifest(self, key: str) -> str:
        session = session_of(self.con)
        return str(session.read.text(f"{self.folder}/{key}.json").collect()[0][0])

    def _open(self, key: str) -> Table:
        return self.con.read_parquet(f"{self.folder}/{key}.parquet")


class SparkScratch(SparkFolder):
    """The same in a folder of this machine, as long as somebody holds the results.

    Not in Spark's own cache: every hop names the last one twice, and without files the plan of the
    tenth would hold the first a thousand times.
    """

    advice = Results.advice

    def __init__(self, con: Connection) -> None:
        if not session_of(con).sparkContext.master.startswith("local"):
            raise OptionError(
                "checkpoint: expected a folder that every executor of the cluster can write, such "
                "as hdfs://... or s3a://..., got none. Pass one; finished hops are kept in it."
            )
        super().__init__(con, tempfile.mkdtemp(prefix="virgo-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def _store(self, key: str, table: Table) -> tuple[Table, Forget | None]:
        name = new_name()  # of its own: the same hop may be asked for while the last is read
        stored, _ = super()._store(name, table)
        path = f"{self.folder}/{name}.parquet"
        return stored, lambda: shutil.rmtree(path, ignore_errors=True)

    def _seal(self, kept: Kept, note: str) -> None:
        """Nobody comes back to it."""

    def _resume(self, key: str, number: str) -> Kept | None:
        return None


class WarehouseTables(LastingResults):
    """Results as tables of the engine's own, for warehouses."""

    def __init__(self, con: Connection, prefix: str) -> None:
        super().__init__(con)
        if not prefix.isidentifier():
            raise OptionError(
                f"checkpoint: expected 'table:' and a name of letters, digits and _, got "
                f"{'table:' + prefix!r}. Choose such a name."
            )
        self.prefix = prefix

    def _store(self, key: str, table: Table) -> tuple[Table, Forget | None]:
        return self.con.create_table(f"{self.prefix}_{key}", table, overwrite=True), None

    def _seal(self, kept: Kept, note: str) -> None:
        line = self.con.sql(_as_select(kept, note))
        self.con.create_table(f"{self.prefix}_{kept.key}_done", line, overwrite=True)

    def _manifest(self, key: str) -> str:
        return str(one_row(self.con.table(f"{self.prefix}_{key}_done"))["manifest"])

    def _open(self, key: str) -> Table:
        return self.con.table(f"{self.prefix}_{key}")


def results_for(con: Connection, checkpoint: str | Path | None) -> Results:
    """The way an engine keeps results: a folder, or ``"table:PREFIX"``, or for this run only."""
    if checkpoint is None:
        return SparkScratch(con) if is_spark(con) else Results(con)
    if isinstance(checkpoint, str) and checkpoint.startswith("table:"):
        return WarehouseTables(con, checkpoint.removeprefix("table:"))
    if is_duckdb(con):
        return ParquetFolder(con, checkpoint)
    if is_spark(con):
        return SparkFolder(con, checkpoint)
    raise OptionError(
        f"checkpoint: expected 'table:PREFIX' for the engine {con.name}, got {checkpoint!r}. "
        f"Folders are for duckdb and spark."
    )


def _measured(table: Table, number: str) -> tuple[int, float]:
    values = table[number]
    row = one_row(table.aggregate(rows=table.count(), squares=(values * values).sum()))
    return int(row["rows"]), float(row["squares"] or 0.0)


def _manifest(kept: Kept, note: str) -> str:
    facts = {"format": FORMAT, "note": note, "rows": kept.rows, "squares": kept.squares}
    return json.dumps(facts)


def _as_select(kept: Kept, note: str) -> str:
    text = _manifest(kept, note)
    assert "'" not in text
    assert "\\" not in text
    return f"SELECT '{text}' AS manifest"

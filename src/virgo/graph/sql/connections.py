"""Engines that hold tables: how one is reached, and how tables get in and single rows out.

Ibis, DuckDB and PySpark are imported here and nowhere else in the project, and only when asked for.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from virgo.errors import DataError, OptionError, needed

#: Ibis has no types that strict mode accepts.
Table = Any
Connection = Any
Column = Any
#: The facts that an aggregate found, by name.
Facts = dict[str, Any]
Library = Any

#: What a Spark master may look like, beside "spark" for this machine.
_MASTERS = ("spark://", "local", "yarn", "k8s://")
#: Two of these multiplied cover more nodes than 64-bit edges could join.
_BLOCK = 1 << 16
#: Rows of a table that Spark sends to every executor; in memory some 50 bytes each.
_SENT_WHOLE = 4_000_000


def library(name: str, extra: str) -> Library:
    """An optional library, or one error that says how to install it."""
    return needed(name, "A graph in a database", extra)


def connect(
    engine: str = "duckdb",
    *,
    memory: str | None = None,
    threads: int | None = None,
    tmp: str | Path | None = None,
    **settings: object,
) -> Connection:
    """A connection to an engine, as Ibis has it.

    Args:
        engine: ``"duckdb"`` (in this process, spilling to disk), ``"spark"`` (in this process),
            a Spark master such as ``"spark://host:7077"``, ``"local[4]"`` or ``"yarn"``, or any
            connection string that Ibis knows, such as ``"duckdb://edges.db"``.
        memory: how much of it DuckDB may use before it spills, or Spark's driver, such as
            ``"4GB"``.
        threads: how many of them DuckDB or a local Spark may use.
        tmp: where to spill to; a folder of its own, removed afterwards, if not given.
        settings: the engine's own, such as ``{"spark.executor.memory": "8g"}``.

    Returns:
        The connection.

    Raises:
        OptionError: the engine is unknown, not installed, or cannot be reached.
    """
    ibis = library("ibis", "lake")
    if engine == "duckdb" or engine.startswith("duckdb://"):
        return _duckdb(ibis, engine, memory, threads, tmp, settings)
    if engine == "spark" or engine.startswith(_MASTERS):
        return _spark(ibis, engine, memory, threads, tmp, settings)
    if memory is not None or threads is not None or tmp is not None:
        raise OptionError(
            f"memory, threads, tmp: expected them for duckdb and spark, got engine={engine!r}. "
            f"Put them into its connection string."
        )
    try:
        return ibis.connect(engine, **settings)
    except Exception as error:  # each backend has its own
        raise OptionError(
            f"engine: expected duckdb, spark, spark://host:port or a connection string of Ibis, "
            f"got {engine!r} ({brief(error)}). Choose one."
        ) from error


def _duckdb(
    ibis: Library,
    engine: str,
    memory: str | None,
    threads: int | None,
    tmp: str | Path | None,
    settings: Mapping[str, object],
) -> Connection:
    library("duckdb", "lake")
    own = None if tmp is not None else tempfile.mkdtemp(prefix="virgo-")
    # a table has no order, and keeping one costs memory
    options = {"temp_directory": str(tmp or own), "preserve_insertion_order": False, **settings}
    if memory is not None:
        options["memory_limit"] = memory
    if threads is not None:
        options["threads"] = threads
    try:
        database = engine.removeprefix("duckdb").removeprefix("://") or ":memory:"
        connection = ibis.duckdb.connect(database, **options)
    except Exception as error:
        if own is not None:
            shutil.rmtree(own, ignore_errors=True)
        raise OptionError(
            f"engine: expected a database that DuckDB can open with these options, got "
            f"{engine!r} ({brief(error)}). Check the path, memory= and threads=."
        ) from error
    if own is not None:
        weakref.finalize(connection, shutil.rmtree, own, ignore_errors=True)
    return connection


def _spark(
    ibis: Library,
    engine: str,
    memory: str | None,
    threads: int | None,
    tmp: str | Path | None,
    settings: Mapping[str, object],
) -> Connection:
    sql = library("pyspark.sql", "spark")
    master = f"local[{threads or '*'}]" if engine == "spark" else engine
    options = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    if master.startswith("local"):  # nobody has to reach this machine from another
        options |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
        options["spark.sql.shuffle.partitions"] = str(2 * (threads or os.cpu_count() or 1))
        options["spark.driver.memory"] = (
            f"{_quarter_of_memory()}m"  # Spark's own 1 GB is too little
        )
    if memory is not None:
        options["spark.driver.memory"] = memory.upper().removesuffix("B").lower()
    if tmp is not None:
        options["spark.local.dir"] = str(tmp)
    options |= {name: str(value) for name, value in settings.items()}
    builder = sql.SparkSession.builder.master(master).appName("virgo")
    for name, value in options.items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:
        raise OptionError(
            f"engine: expected a Spark that starts, got {engine!r} ({brief(error)}). "
            f"It needs Java 17 or newer, and a master that can be reached."
        ) from error
    session.sparkContext.setLogLevel("ERROR")
    return ibis.pyspark.connect(session)


def _quarter_of_memory() -> int:
    """In megabytes, of this machine."""
    try:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not everywhere
        return 2048
    return max(1024, pages * size // 4 >> 20)


def is_duckdb(con: Connection) -> bool:
    return bool(con.name == "duckdb")


def is_spark(con: Connection) -> bool:
    return bool(con.name == "pyspark")


def session_of(con: Connection) -> Connection:
    """The session behind a connection to Spark."""
    return con.raw_sql("SELECT 1").sparkSession


def read_table(con: Connection, given: object, where: str) -> Table:
    """A table from its name, from a Parquet file, a folder or a pattern of them, or itself."""
    if not isinstance(given, (str, Path)):
        if hasattr(given, "get_backend") and hasattr(given, "schema"):
            return given
        raise DataError(
            f"{where}: expected a table, the name of one or a path of Parquet files, got "
            f"{type(given).__name__}. Pass one of them."
        )
    text = str(given)
    remote = "://" in text
    if not (remote or any(sign in text for sign in "/*?\\") or Path(text).exists()):
        if not text.endswith(".parquet"):
            return _named_table(con, text, where)
    elif not remote and is_duckdb(con) and Path(text).is_dir():
        text = str(Path(text) / "**" / "*.parquet")
    try:
        return con.read_parquet(text)
    except Exception as error:
        raise DataError(
            f"{where}: expected Parquet files, got {given} ({brief(error)}). Check the path."
        ) from error


def _named_table(con: Connection, name: str, where: str) -> Table:
    database, _, last = name.rpartition(".")
    try:
        return con.table(last, database=database or None)
    except Exception as error:
        there = ", ".join(sorted(con.list_tables())[:10]) or "none"
        raise DataError(
            f"{where}: expected a table or a path, got {name!r}, which is neither. "
            f"Tables there: {there}."
        ) from error


def numbers(con: Connection, count: int) -> Table:
    """A column ``node`` that counts from 0 to ``count - 1``, made by the engine itself."""
    if is_spark(con):  # its own is spread over the cluster
        return con.sql(f"SELECT id AS node FROM range({count})")
    ibis = library("ibis", "lake")
    blocks = ibis.range(0, -(-count // _BLOCK)).unnest().name("block").as_table()
    places = ibis.range(0, min(_BLOCK, count)).unnest().name("place").as_table()
    both = blocks.cross_join(places)
    counted = both.select(node=both.block.cast("int64") * _BLOCK + both.place.cast("int64"))
    return counted.filter(counted.node < count)


def from_array(con: Connection, values: npt.NDArray[np.float64]) -> Table:
    """One number per node, as a table of the engine."""
    ibis, arrow = library("ibis", "lake"), library("pyarrow", "lake")
    columns = arrow.table({"node": np.arange(len(values)), "value": values})
    if is_spark(con):
        return con.create_view(new_name(), ibis.memtable(columns))
    return con.create_table(new_name(), columns, temp=True)


def new_name() -> str:
    return f"virgo_{uuid.uuid4().hex[:16]}"


def fetch(table: Table) -> Table:
    """All rows of an expression, as a table of Arrow."""
    con = table.get_backend()
    if is_spark(con):
        frame = con.raw_sql(con.compile(table))
        if hasattr(frame, "toArrow"):  # Spark 4; by way of pandas before
            return frame.toArrow()
    return table.to_pyarrow()


def one_row(table: Table) -> Facts:
    """The only row of a table, an aggregate for example."""
    row: Facts = fetch(table).to_pylist()[0]
    return row


def beside_edges(con: Connection, table: Table, rows: int) -> Table:
    """A table of nodes, about to be joined with the edges.

    Spark is told to send a small one whole to every executor: the edges then stay where they are.
    Left to itself it may send the edges instead, whose compressed files look smaller.

    Returns:
        The table, with a hint for Spark if it is small.
    """
    if not is_spark(con) or rows > _SENT_WHOLE:
        return table
    name = new_name()
    frame = con.raw_sql(con.compile(table)).hint("broadcast")
    frame.createOrReplaceTempView(name)
    view = con.table(name)
    weakref.finalize(view.op(), _forget_view, frame.sparkSession, name).atexit = False
    return view


def _forget_view(session: Connection, name: str) -> None:
    with contextlib.suppress(Exception):  # a session that has stopped holds nothing
        session.catalog.dropTempView(name)


def brief(error: BaseException) -> str:
    """One line of what an engine says: the first, or what Java says was the cause."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    return (causes[-1] if causes else lines[0]).removeprefix("Caused by: ")[:300]

"""Raw results: one record per configuration with all its seeds, one line of JSON per record.

Lines are sorted by what they describe, so a file does not depend on the order of running.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from virgo.errors import DataError
from virgo.report.files import write_text_atomically
from virgo.report.json_types import check_types

#: Hyper-parameters by name, and the result of one seed by field.
Config = Mapping[str, Any]
SeedResult = Mapping[str, Any]


class _Values:
    """Hyper-parameters are words and numbers."""

    config: Mapping[str, str | float | bool | None]


class _Seed:
    """What a seed's mapping holds; more is ignored."""

    seed: int
    valid: float | None
    test: float | None
    epoch: int | None
    epochs: int | None
    seconds: float | None
    status: str
    message: str | None
    curve: list[tuple[int, float | None]] | None


_NEEDED = ("seed", "valid", "test", "epoch", "epochs", "seconds", "status")


@dataclass(frozen=True)
class Record:
    """One configuration with its seeds.

    Attributes:
        table: "table1", "table2", "table3" or "depth".
        dataset, model, init: the cell of the table.
        config: the hyper-parameters, including those that the grid leaves fixed.
        seeds: one mapping per seed: seed, valid, test, epoch, epochs, seconds, status, a message
            if it failed, and if asked for the curve, [epoch, valid] of every validation. Values
            are in 0..1, None where there is no number.
        generated: the remark on generated data; None for real data.
        versions, commit, time: what it ran with, and when it ended (UTC).
        screen: {"seeds": K, "top": M} if the configurations with all seeds were picked by K seeds.
        grid: the grid that it was run for, e.g. "reproduces"; None for the printed one. A
            configuration may be in several grids, and counts in all of them.
        protocol: "released" where the epoch is chosen on test; None for validation.
        code: a hash of a user's own functions, in a study of their own.
        columns: the keys of the configuration with a column per value, in a study of a user's own.
    """

    table: str
    dataset: str
    model: str
    init: str
    config: Config
    seeds: tuple[SeedResult, ...]
    generated: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str | None = None
    time: str | None = None
    screen: Mapping[str, int] | None = None
    grid: str | None = None
    protocol: str | None = None
    code: str | None = None
    columns: tuple[str, ...] | None = None

    @property
    def identity(self) -> tuple[str, ...]:
        """The key to sort and look up by: two records with the same key are of the same thing."""
        cell = (self.table, self.dataset, self.model, self.init)
        return (*cell, canonical(self.config), self.protocol or "")

    def to_json(self) -> str:
        """One line of compact JSON."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        for name in ("screen", "grid", "protocol", "code", "columns"):
            if values[name] is None:
                del values[name]
        return json.dumps(_plain(values), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> Record:
        """Read a line of :meth:`to_json`, ignoring unknown fields.

        Args:
            line: one line of JSON.

        Returns:
            The record.

        Raises:
            ValueError: if the line is no JSON object, or a seed lacks something.

        >>> line = Record("table1", "cora", "gcn", "xavier", {"lr": 0.01}, ()).to_json()
        >>> Record.from_json(line).config
        {'lr': 0.01}
        """
        raw = json.loads(line)
        if not isinstance(raw, dict):
            raise ValueError(f"expected an object, got {type(raw).__name__}")
        return cls.checked(raw)

    @classmethod
    def checked(cls, raw: Mapping[str, Any]) -> Record:
        """A record of values that somebody else may have written, ignoring unknown fields.

        Args:
            raw: as JSON has them.

        Returns:
            The record.

        Raises:
            ValueError: if a value has another type, or a seed lacks something.
        """
        known = {item.name: raw[item.name] for item in fields(cls) if item.name in raw}
        check_types(cls, known)
        check_types(_Values, {"config": known.get("config", {})})
        for seed in known.get("seeds", ()):
            check_types(_Seed, seed)
            if missing := [name for name in _NEEDED if name not in seed]:
                raise ValueError(f"a seed without {', '.join(missing)}")
        columns = known.get("columns")
        known |= {"columns": None if columns is None else tuple(columns)}
        return cls(**{**known, "seeds": tuple(known.get("seeds", ()))})


def canonical(config: Config) -> str:
    """Return a configuration as JSON that does not depend on the order of its keys.

    >>> canonical({"lr": 0.01, "dropout": 0.5})
    '{"dropout":0.5,"lr":0.01}'
    """
    return json.dumps(_plain(config), sort_keys=True, separators=(",", ":"))


def _plain(value: object) -> object:
    """Values that JSON has: no NaN, no infinity, no tuple."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read(path: str | Path) -> list[Record]:
    """Read all records of a file.

    Args:
        path: a ``.jsonl`` file.

    Returns:
        The records in the order of the file.

    Raises:
        DataError: if a line is damaged, with its number.
    """
    records = []
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(
            f"{path}: expected a readable file of records, got {error}. Name "
            f"the folder or file that virgo sweep wrote."
        ) from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records.append(Record.from_json(line.decode("utf-8")))
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise DataError(
                f"{path}, line {number}: expected a record as JSON, got {error}. "
                f"Delete the line, or restore the file."
            ) from error
    return records


def write(path: str | Path, records: Iterable[Record]) -> Path:
    """Write sorted records atomically.

    Args:
        path: the file.
        records: what it will hold.

    Returns:
        The path.

    Raises:
        DataError: if it cannot be written.
    """
    path = Path(path)
    lines = [record.to_json() + "\n" for record in sorted(records, key=_order)]
    try:
        write_text_atomically(path, "".join(lines), durable=True)
    except OSError as error:
        raise DataError(
            f"{path}: expected a place to write records to, got {error}. Free some space, or name "
            f"another by --out; nothing is lost, the storage has them."
        ) from error
    return path


def _order(record: Record) -> tuple[object, ...]:
    """By cell, then by the configuration's values, numbers as numbers and after words."""
    values = [
        (name, 1, float(value), "")
        if isinstance(value, (int, float))
        else (name, 0, 0.0, str(value))
        for name, value in sorted(record.config.items())
    ]
    return (*record.identity[:4], values, *record.identity[4:])


def merge(old: Iterable[Record], new: Iterable[Record]) -> list[Record]:
    """Merge two lists, one record per identity: the one with more seeds, else the new one.

    A sweep that has just begun in an empty storage must not replace finished results, and a record
    with the very same seeds stays as it is: a storage that was restored from it does not know when
    and in which search they were run.

    Args:
        old: the records of the file.
        new: the records of the storage.

    Returns:
        The merged records, not sorted.
    """
    merged = {record.identity: record for record in old}
    for record in new:
        before = merged.get(record.identity)
        if before is None or (
            record.seeds != before.seeds and len(record.seeds) >= len(before.seeds)
        ):
            merged[record.identity] = record
    return list(merged.values())

"""The raw results: one record a configuration with all its seeds, one line of JSON a record.

Lines are sorted by what they describe, so that a file does not depend on the order of running.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from virgo.errors import DataError

#: What names a record: two with these alike are results of the same thing.
IDENTITY = ("table", "dataset", "model", "init", "config")


@dataclass(frozen=True)
class Record:
    """One configuration with its seeds.

    Attributes:
        table: "table1", "table2", "table3" or "depth".
        dataset, model, init: the cell of the table.
        config: the hyper-parameters, those that the grid leaves fixed included.
        seeds: one mapping a seed: seed, valid, test, epoch, epochs, seconds, status, a message
            if it failed, and if asked for the curve, [epoch, valid] of every validation. Values
            are in 0..1, None where there is no number.
        generated: what must be said where the data is not real; None if it is.
        versions, commit, time: what it ran with, and when it ended (UTC).
        screen: {"seeds": K, "top": M} if the configurations with all seeds were picked by K seeds.
    """

    table: str
    dataset: str
    model: str
    init: str
    config: Mapping[str, Any]
    seeds: tuple[Mapping[str, Any], ...]
    generated: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str | None = None
    time: str | None = None
    screen: Mapping[str, int] | None = None

    @property
    def identity(self) -> tuple[str, ...]:
        """What it is a result of, as something to sort and look up by."""
        return (self.table, self.dataset, self.model, self.init, canonical(self.config))

    def to_json(self) -> str:
        """One line of compact JSON."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        if self.screen is None:
            del values["screen"]
        return json.dumps(_plain(values), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> Record:
        """The record of one line; what it does not know it leaves out.

        >>> line = Record("table1", "cora", "gcn", "xavier", {"lr": 0.01}, ()).to_json()
        >>> Record.from_json(line).config
        {'lr': 0.01}
        """
        raw = json.loads(line)
        if not isinstance(raw, dict):
            raise ValueError(f"expected an object, got {type(raw).__name__}")
        known = {name: raw[name] for name in cls.__dataclass_fields__ if name in raw}
        known["seeds"] = tuple(known.get("seeds", ()))
        return cls(**known)


def canonical(config: Mapping[str, Any]) -> str:
    """A configuration as text that does not depend on the order of its keys.

    >>> canonical({"lr": 0.01, "dropout": 0.5})
    '{"dropout":0.5,"lr":0.01}'
    """
    return json.dumps(_plain(config), sort_keys=True, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """As JSON has it: no NaN, no infinity, no tuple."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read(path: str | Path) -> list[Record]:
    """All records of a file; a damaged line is named."""
    found = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            found.append(Record.from_json(line))
        except (ValueError, TypeError) as error:
            raise DataError(
                f"{path}, line {number}: expected a record as JSON, got {error}. "
                f"Delete the line, or restore the file."
            ) from error
    return found


def write(path: str | Path, records: Iterable[Record]) -> Path:
    """Write sorted records aside, then put the file in place: no reader sees half of it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [record.to_json() for record in sorted(records, key=_order)]
    descriptor, aside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o644)  # mkstemp's own is for secrets
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    return path


def _order(record: Record) -> tuple[Any, ...]:
    """By cell, then by the configuration's values as numbers where they are numbers."""
    items = sorted(record.config.items())
    values = [(name, *_rank(value)) for name, value in items]
    return (*record.identity[:4], values, record.identity[4])


def _rank(value: Any) -> tuple[int, float, str]:
    number = isinstance(value, (int, float))
    return (1 if number else 0, float(value) if number else 0.0, "" if number else str(value))


def merge(old: Iterable[Record], new: Iterable[Record]) -> list[Record]:
    """Both, one record for each thing: the one with more seeds, else the new one.

    A sweep that has just begun in an empty storage must not replace finished results.
    """
    found = {record.identity: record for record in old}
    for record in new:
        before = found.get(record.identity)
        if before is None or len(record.seeds) >= len(before.seeds):
            found[record.identity] = record
    return list(found.values())

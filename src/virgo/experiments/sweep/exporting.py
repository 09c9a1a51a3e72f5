"""The contents of a storage: progress of each cell, and the records of finished configurations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timezone
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from virgo.experiments.sweep import records
from virgo.experiments.sweep.board import ORDERS, RETRIED
from virgo.experiments.sweep.claims import (
    CONFIG,
    RUN,
    TARGET,
    is_retried,
    mean_valid,
    seeds_of,
)
from virgo.experiments.sweep.grids import PRINTED, VALIDATION, tables
from virgo.experiments.sweep.records import Record, SeedResult, canonical
from virgo.experiments.sweep.storage import WORKER, Storage, is_alive

Orders = Mapping[str, Any]  # the attribute of a study that says what was asked for


@dataclass(frozen=True)
class Status:
    """Progress of one cell, as the storage has it."""

    cell: str
    done: int
    asked: int
    seeds: int
    running: int
    failed: int
    best: float | None
    generated: bool


def studies(storage: Storage, table: str | None = None) -> list[optuna.Study]:
    """The studies of sweeps, of one table or of all."""
    names = storage.study_names(ORDERS, table)
    return [optuna.load_study(study_name=name, storage=storage) for name in names]


def status(storage: Storage, table: str | None = None) -> list[Status]:
    """The progress of each cell that was ever begun."""
    return [
        _status(
            study.study_name,
            study.user_attrs[ORDERS],
            storage.trials(study),
            study.user_attrs.get(RETRIED, ()),
        )
        for study in studies(storage, table)
    ]


def _status(
    name: str, orders: Orders, trials: list[FrozenTrial], retried: Collection[int]
) -> Status:
    complete = _complete(trials, retried)
    results: dict[tuple[str, int], SeedResult] = {}
    for trial in trials:
        for seed, result in seeds_of(trial).items():
            if not (trial.number in retried and is_retried(result)):
                results[canonical(trial.user_attrs[CONFIG]), seed] = result
    running = [trial for trial in trials if trial.state == TrialState.RUNNING]
    values = [mean_valid(list(seeds_of(trial).values())) for trial in complete.values()]
    return Status(
        name,
        len(complete),
        max(orders["configurations"], len(complete)),
        len(results),
        sum(is_alive(trial.user_attrs.get(WORKER)) is not False for trial in running),
        sum(result["status"] != "ok" for result in results.values()),
        max(values, default=None),
        any(trial.user_attrs.get(RUN, {}).get("generated") for trial in trials),
    )


def _complete(trials: list[FrozenTrial], retried: Collection[int] = ()) -> dict[str, FrozenTrial]:
    """For each configuration the finished trial with the most seeds, the first of those."""
    complete: dict[str, FrozenTrial] = {}
    for trial in sorted(trials, key=lambda trial: trial.number):
        if trial.number in retried:
            continue
        if trial.state == TrialState.COMPLETE and CONFIG in trial.user_attrs:
            key = canonical(trial.user_attrs[CONFIG])
            if key not in complete or complete[key].user_attrs[TARGET] < trial.user_attrs[TARGET]:
                complete[key] = trial
    return complete


def collect(storage: Storage, table: str) -> list[Record]:
    """The records of a table: every configuration that has all the seeds it was to have."""
    return [
        _record(study.user_attrs[ORDERS], trial)
        for study in studies(storage, table)
        for trial in _complete(storage.trials(study), study.user_attrs.get(RETRIED, ())).values()
    ]


def _record(orders: Orders, trial: FrozenTrial) -> Record:
    run, ended = trial.user_attrs.get(RUN, {}), trial.datetime_complete
    seeds = seeds_of(trial)
    values = {
        **{name: orders[name] for name in ("table", "dataset", "model", "init", "screen")},
        "config": trial.user_attrs[CONFIG],
        "seeds": [seeds[seed] for seed in sorted(seeds) if seed < trial.user_attrs[TARGET]],
        "generated": run.get("generated"),
        "versions": run.get("versions", {}),
        "commit": run.get("commit"),
        "code": run.get("code"),
        "columns": _columns(orders),
        "grid": None if run.get("grid") == PRINTED else run.get("grid"),
        "protocol": None if orders.get("protocol") == VALIDATION else orders.get("protocol"),
        "time": ended.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ") if ended else None,
    }
    return Record.checked(values)  # the bytes of a store may have been changed


def _columns(orders: Orders) -> list[str] | None:
    """What divides a study of a user's own; the paper's tables say so themselves."""
    return None if orders["table"] in tables() else list(orders.get("part", {})) or None


def tables_in(storage: Storage) -> list[str]:
    """The tables and studies that were begun in a storage."""
    found = {study.user_attrs[ORDERS]["table"] for study in studies(storage)}
    return sorted(found)


def export(storage: Storage, table: str, folder: str | Path) -> tuple[Path, int]:
    """Merge a table's records into ``folder/table.jsonl``.

    Args:
        storage: a sweep's storage.
        table: the table.
        folder: where the file is or will be; records of other sweeps in it are kept.

    Returns:
        The file, and how many records came from the storage.
    """
    path = Path(folder) / f"{table}.jsonl"
    new = collect(storage, table)
    old = records.read(path) if path.is_file() else []
    return records.write(path, records.merge(old, new)), len(new)

"""What a storage holds: how far each cell is, and the records of what is whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timezone
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from virgo.experiments.sweep import records
from virgo.experiments.sweep.board import ORDERS
from virgo.experiments.sweep.claims import CONFIG, RUN, TARGET, mean_valid, seeds_of
from virgo.experiments.sweep.records import Record, canonical
from virgo.experiments.sweep.storage import WORKER, Storage, is_alive


@dataclass(frozen=True)
class Status:
    """One cell as the storage has it."""

    cell: str
    done: int
    asked: int
    seeds: int
    running: int
    failed: int
    best: float | None
    generated: bool


def studies(storage: Storage, table: str | None = None) -> list[optuna.Study]:
    """The studies of our sweeps, of one table or of all."""
    with storage.reading():
        found = [
            study.study_name
            for study in storage.get_all_studies()
            if ORDERS in study.user_attrs and table in (None, study.user_attrs[ORDERS]["table"])
        ]
    return [optuna.load_study(study_name=name, storage=storage) for name in found]


def status(storage: Storage, table: str | None = None) -> list[Status]:
    """How far each cell is that was ever begun."""
    return [
        _status(study.study_name, study.user_attrs[ORDERS], storage.trials(study))
        for study in studies(storage, table)
    ]


def _status(name: str, orders: Mapping[str, Any], trials: list[FrozenTrial]) -> Status:
    complete = _complete(trials)
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for trial in trials:
        for seed, result in seeds_of(trial).items():
            found[canonical(trial.user_attrs[CONFIG]), seed] = result
    values = [mean_valid(list(seeds_of(trial).values())) for trial in complete.values()]
    return Status(
        name,
        len(complete),
        max(orders["configurations"], len(complete)),
        len(found),
        sum(
            t.state == TrialState.RUNNING and is_alive(t.user_attrs.get(WORKER)) is not False
            for t in trials
        ),
        sum(result["status"] != "ok" for result in found.values()),
        max(values, default=None),
        any(t.user_attrs.get(RUN, {}).get("generated") for t in trials),
    )


def _complete(trials: list[FrozenTrial]) -> dict[str, FrozenTrial]:
    """For each configuration the finished trial with the most seeds, the first of those."""
    found: dict[str, FrozenTrial] = {}
    for trial in sorted(trials, key=lambda trial: trial.number):
        if trial.state == TrialState.COMPLETE and CONFIG in trial.user_attrs:
            key = canonical(trial.user_attrs[CONFIG])
            if key not in found or found[key].user_attrs[TARGET] < trial.user_attrs[TARGET]:
                found[key] = trial
    return found


def collect(storage: Storage, table: str) -> list[Record]:
    """The records of a table: every configuration that has all the seeds it was to have."""
    found = []
    for study in studies(storage, table):
        orders = study.user_attrs[ORDERS]
        for trial in _complete(storage.trials(study)).values():
            found.append(_record(orders, trial))
    return found


def _record(orders: Mapping[str, Any], trial: FrozenTrial) -> Record:
    run, ended = trial.user_attrs.get(RUN, {}), trial.datetime_complete
    seeds = seeds_of(trial)
    return Record(
        **{name: orders[name] for name in ("table", "dataset", "model", "init", "screen")},
        config=trial.user_attrs[CONFIG],
        seeds=tuple(seeds[seed] for seed in sorted(seeds) if seed < trial.user_attrs[TARGET]),
        generated=run.get("generated"),
        versions=run.get("versions", {}),
        commit=run.get("commit"),
        time=ended.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ") if ended else None,
    )


def export(storage: Storage, table: str, folder: str | Path) -> tuple[Path, int]:
    """Put a table's records into ``folder/table.jsonl``, beside those of other sweeps there."""
    path = Path(folder) / f"{table}.jsonl"
    new = collect(storage, table)
    old = records.read(path) if path.is_file() else []
    return records.write(path, records.merge(old, new)), len(new)

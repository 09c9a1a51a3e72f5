"""A storage from exported records: they alone say everything that must not be run again."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import optuna
from optuna.trial import TrialState

from virgo.errors import DataError
from virgo.experiments.sweep.board import ORDERS
from virgo.experiments.sweep.claims import CONFIG, RUN, SEED, TARGET, mean_valid
from virgo.experiments.sweep.grids import cell_keys, tables
from virgo.experiments.sweep.records import Record, canonical
from virgo.experiments.sweep.storage import Storage

#: Fields of a record that a trial keeps about its run, as far as there are such.
_RUN = ("generated", "versions", "commit", "grid", "code")


def restore(storage: Storage, records: Iterable[Record]) -> int:
    """Add finished configurations to a storage that does not have them.

    Args:
        storage: a new one, or one that lacks some.
        records: what ``virgo sweep export`` wrote.

    Returns:
        How many were added.

    Raises:
        DataError: a record lacks what its table is divided by, or says something else than others.
    """
    records = list(records)
    _check_columns(records)
    cells: dict[str, list[Record]] = {}
    for record in records:
        try:
            part = _part(record)
        except KeyError as error:
            raise DataError(
                f"{record.table}: expected records with {error}, got one without. Restore the "
                f"file that virgo sweep export wrote."
            ) from error
        names = [record.table, record.dataset, record.model, record.init]
        names += [f"{key}={value}" for key, value in part.items()]
        protocol = getattr(record, "protocol", None)
        names += [f"protocol={protocol}"] if protocol else []
        cells.setdefault("/".join(names), []).append(record)
    return sum(_restore_cell(storage, name, group) for name, group in cells.items())


def _check_columns(records: list[Record]) -> None:
    """A study that is divided in two ways would run again what the other way has."""
    columns: dict[str, object] = {}
    for record in records:
        expected = columns.setdefault(record.table, record.columns)
        if record.columns != expected:
            raise DataError(
                f"{record.table}: expected records that all have columns {expected}, got "
                f"{record.columns} for {record.dataset}, {record.model}, {record.init}. Write the "
                f"same columns into every line of the file."
            )


def _part(record: Record) -> dict[str, Any]:
    """What makes a cell of its own: the table's keys, or the columns of a user's own study."""
    own = record.table not in tables()
    keys = (record.columns or ()) if own else cell_keys(record.table)
    return {key: record.config[key] for key in keys}


def _restore_cell(storage: Storage, name: str, records: list[Record]) -> int:
    first = records[0]
    study = optuna.create_study(
        storage=storage, study_name=name, direction="maximize", load_if_exists=True
    )
    if ORDERS not in study.user_attrs:
        orders = {key: getattr(first, key) for key in ("table", "dataset", "model", "init")}
        orders |= {
            "part": _part(first),
            "seeds": max(len(record.seeds) for record in records),
            "screen": first.screen,
            "configurations": len(records),
        }
        if protocol := getattr(first, "protocol", None):
            orders["protocol"] = protocol
        study.set_user_attr(ORDERS, orders)
    known = {
        canonical(trial.user_attrs[CONFIG])
        for trial in storage.trials(study)
        if trial.state == TrialState.COMPLETE and CONFIG in trial.user_attrs
    }
    missing = [record for record in records if canonical(record.config) not in known]
    for record in missing:
        run = {key: value for key in _RUN if (value := getattr(record, key, None))}
        seeds = {f"{SEED}{seed['seed']}": dict(seed) for seed in record.seeds}
        attributes = {CONFIG: dict(record.config), TARGET: len(record.seeds), RUN: run, **seeds}
        trial = optuna.create_trial(
            state=TrialState.COMPLETE,
            value=mean_valid(list(record.seeds)),
            user_attrs=attributes,
        )
        trial.datetime_complete = _ended(record.time) or trial.datetime_complete
        study.add_trial(trial)
    return len(missing)


def _ended(time: str | None) -> datetime | None:
    """When a record says that it ended, as Optuna has it: local, without a zone."""
    if time is None:
        return None
    try:
        return datetime.fromisoformat(time.replace("Z", "+00:00")).astimezone().replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None

"""How long a sweep will take, from what was measured before it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from virgo.experiments.sweep.claims import SEED
from virgo.experiments.sweep.grids import GridCell, base_name
from virgo.experiments.sweep.records import Config, Record
from virgo.experiments.sweep.statistics import mean
from virgo.experiments.sweep.storage import open_storage
from virgo.experiments.sweep.worker import Sweep


@dataclass(frozen=True)
class Estimate:
    """What is left to run.

    Attributes:
        seeds: trainings that are missing.
        hours: processor hours for those whose cost is known.
        unknown: cells that nothing was measured of, so they are in no hours.
    """

    seeds: int
    hours: float
    unknown: tuple[str, ...]

    def __str__(self) -> str:
        words = f"{self.seeds} seeds to run"
        if self.seeds and self.hours:
            words += f", about {self.hours:.2g} processor hours"
        if self.unknown:
            words += f" (nothing measured yet of {', '.join(self.unknown)})"
        return words


@cache
def costs() -> Mapping[str, Any]:
    """Seconds per epoch and epochs per seed on one core, by ``table/dataset/model``.

    Returns:
        What :func:`measured` made of the records in ``results/``.
    """
    path = Path(__file__).with_name("costs.json")
    raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return raw


def measured(records: Iterable[Record]) -> dict[str, dict[str, float]]:
    """The costs of finished records, as ``costs.json`` has them."""
    seeds: dict[str, list[Any]] = {}
    for record in records:
        key = f"{record.table}/{record.dataset}/{record.model}"
        seeds.setdefault(key, []).extend(s for s in record.seeds if s["epochs"] and s["seconds"])
    return {
        key: {
            "seconds_per_epoch": float(
                f"{sum(s['seconds'] for s in own) / sum(s['epochs'] for s in own):.3g}"
            ),
            "epochs": float(f"{mean([s['epochs'] for s in own]):.3g}"),
        }
        for key, own in sorted(seeds.items())
        if own
    }


def estimate(sweep: Sweep) -> Estimate:
    """The seeds that a sweep has still to run, and their cost.

    A cell's cost is that of its own finished seeds, else of ``costs.json``.

    Args:
        sweep: what is to be run.

    Returns:
        The estimate; nothing is run, and a file that is not there is not made.
    """
    with ExitStack() as stack:
        where = sweep.storage
        if "://" not in where and not Path(where).expanduser().is_file():
            where = str(Path(stack.enter_context(TemporaryDirectory())) / "empty.db")
        storage = open_storage(where, grace=sweep.grace)
        stack.callback(storage.close)
        boards = sweep.boards(storage)
        for board in boards:
            board.look()
        counts = [board.count() for board in boards]
        seen: dict[tuple[str, str], list[float]] = {}
        for board in boards:
            for trials in board.trials.values():
                for trial in trials:
                    seen.setdefault((board.cell.dataset, board.cell.model), []).extend(
                        result["seconds"]
                        for name, result in trial.user_attrs.items()
                        if name.startswith(SEED) and result.get("seconds")
                    )
    hours, seeds, unknown = 0.0, 0, []
    for board, count in zip(boards, counts, strict=True):
        left, cell = count.total - count.seeds, board.cell
        own = seen.get((cell.dataset, cell.model))
        each = mean(own) if own else _seconds(cell)
        seeds += left
        if left and each is None:
            unknown.append(f"{cell.dataset}, {cell.model}")
        hours += left * (each or 0.0) / 3600
    return Estimate(seeds, hours, tuple(dict.fromkeys(unknown)))


def _seconds(cell: GridCell) -> float | None:
    """Seconds per seed of a cell by ``costs.json``, averaged over its configurations."""
    cost = costs().get(f"{cell.table}/{base_name(cell.dataset)}/{cell.model}")
    if cost is None:
        return None
    epochs = [_epochs(config, cost["epochs"]) for config in cell.configurations]
    return float(mean(epochs) * cost["seconds_per_epoch"])


def _epochs(config: Config, usual: float) -> float:
    """All epochs, or the usual number where early stopping ends a run."""
    asked = float(config.get("epochs", usual))
    return min(asked, usual) if config.get("patience") else asked

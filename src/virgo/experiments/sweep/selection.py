"""From the raw records of one cell to its number: the paper's selection.

The configuration with the best mean validation over its seeds is chosen, and its test values are
reported. What it was chosen from (how much of the grid, how many seeds, how many epochs) is kept,
because two cells may only be compared if both were searched alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from virgo.errors import DataError
from virgo.experiments.sweep.records import Config, Record, SeedResult
from virgo.experiments.sweep.statistics import comparable, mean

Key = tuple[tuple[str, object], ...]

OK = "ok"


def key_of(config: Config, *, without: Sequence[str] = ()) -> Key:
    """Return a configuration as a key to look up by; 0 and 0.0 are the same.

    >>> key_of({"lr": 0.01, "dropout": 0}) == key_of({"dropout": 0.0, "lr": 0.01})
    True
    """
    return tuple(
        (name, tuple(value) if isinstance(value, list) else value)
        for name, value in sorted(config.items())
        if name not in without
    )


@dataclass(frozen=True)
class Space:
    """All configurations a cell is to be searched over, in order, and how many seeds each gets."""

    configs: tuple[Config, ...]
    seeds: int = 10


@dataclass(frozen=True)
class Chosen:
    """The configuration that was selected for a cell, and what it was selected from.

    Attributes:
        config: the configuration.
        valid: its mean validation over the seeds, in percent.
        tests: seed -> test value in percent, of the seeds that finished.
        failed: seed -> "diverged", "refused" or "out of memory".
        competing: configurations that had all the seeds asked for, or failed.
        searched: configurations with at least one seed.
        total: configurations of the grid; None if there is no grid for this cell.
        screened: (K, M) where all were run with K seeds and the best M with all seeds.
        partial: where the search falls short of the grid, in words.
        protocol: equal for two cells that were searched alike.
        generated: the remark on generated data.
    """

    config: Config
    valid: float
    tests: Mapping[int, float]
    failed: Mapping[int, str]
    competing: int
    searched: int
    total: int | None
    screened: tuple[int, int] | None
    partial: tuple[str, ...]
    protocol: tuple[object, ...]
    generated: str | None

    @property
    def label(self) -> str:
        """The label beside the number; empty for a search of the whole grid with all seeds."""
        words = []
        if self.partial:
            words.append(f"partial ({', '.join(self.partial)})")
        if self.screened:
            few, top = self.screened
            words.append(f"screened ({few} seed{'s' if few > 1 else ''}, top {top})")
        if self.failed:
            kinds = " or ".join(sorted(set(self.failed.values())))
            words.append(
                f"{len(self.failed)} of {len(self.tests) + len(self.failed)} seeds {kinds}"
            )
        return ", ".join(words)


@dataclass(frozen=True)
class _Trial:
    """One configuration with the seeds of all its records."""

    config: Config
    place: tuple[int, str]  # in the grid; a configuration outside it comes after
    valid: dict[int, float]
    test: dict[int, float]
    failed: dict[int, str]

    @property
    def count(self) -> int:
        return len(self.valid) + len(self.failed)

    @property
    def score(self) -> float:
        """Mean validation, rounded so that equal means are equal numbers."""
        return comparable(mean(list(self.valid.values()))) if self.valid else -1.0


def select(records: Iterable[Record], grid: Space | None = None) -> Chosen | None:
    """Choose the configuration of one cell.

    Only configurations with the full number of seeds compete (if none has it, those that have the
    most). One with a failed seed is chosen only if all that compete have one. A tie goes to the
    configuration that comes first in the grid, then by its text.

    Args:
        records: of one dataset, model and method (and depth, where depth is a column).
        grid: what was to be searched; without it nothing is called partial.

    Returns:
        The choice, or None if nothing was run.
    """
    records = list(records)
    trials = _merge(records, grid)
    if not trials:
        return None
    pool, kind, total, partial = _pool(trials, grid)
    most = max(trial.count for trial in pool.values())
    full = grid.seeds if grid else most
    need = min(full, most)
    competing = {k: t for k, t in pool.items() if t.count >= need or t.failed}
    whole = need == full and len(pool) == total
    screened = _screening(pool, competing, records) if whole else None
    if need < full:
        partial.append(f"{need} of {full} seeds")
    if total is not None and len(competing) < total and not screened:
        partial.append(f"{len(competing)} of {total} configurations")
    best = min(competing.values(), key=_order)
    seeds = frozenset(best.valid) | frozenset(best.failed)
    alike = frozenset(pool if screened else competing)
    generated = sorted({record.generated for record in records if record.generated})
    return Chosen(
        config=best.config,
        valid=100 * mean(list(best.valid.values())),
        tests={seed: 100 * best.test[seed] for seed in sorted(best.test)},
        failed=dict(sorted(best.failed.items())),
        competing=len(competing),
        searched=len(pool),
        total=total,
        screened=screened,
        partial=tuple(partial),
        protocol=(kind, alike, screened, seeds, bool(best.failed)),
        generated="; ".join(generated) or None,
    )


def _order(trial: _Trial) -> tuple[object, ...]:
    """The smallest is chosen: no failed seed, most seeds left, best validation, first in grid."""
    left = len(trial.valid) if trial.failed else 0
    return (bool(trial.failed), -left, -trial.score, trial.place)


def _merge(records: Iterable[Record], grid: Space | None) -> dict[Key, _Trial]:
    """One trial per configuration; a seed that was recorded twice must have the same result."""
    places = {key_of(config): i for i, config in enumerate(grid.configs)} if grid else {}
    trials: dict[Key, _Trial] = {}
    for record in records:
        key = key_of(record.config)
        trial = trials.get(key)
        if trial is None:
            place = (places.get(key, len(places)), repr(key))
            trial = trials[key] = _Trial(record.config, place, {}, {}, {})
        for result in record.seeds:
            _add(trial, result, record)
    return {key: trial for key, trial in trials.items() if trial.count}


def _add(trial: _Trial, result: SeedResult, record: Record) -> None:
    seed, status = int(result["seed"]), result["status"]
    before = trial.failed.get(seed) or (trial.valid.get(seed), trial.test.get(seed))
    now = status if status != OK else (result["valid"], result["test"])
    if before not in ((None, None), now):
        raise DataError(
            f"{record.dataset}, {record.model}, {record.init}: expected one result for seed "
            f"{seed} of {dict(record.config)}, got {before} and {now}. Keep one of the records."
        )
    if status == OK:
        trial.valid[seed], trial.test[seed] = now
    else:
        trial.failed[seed] = status


def _pool(
    trials: dict[Key, _Trial], grid: Space | None
) -> tuple[dict[Key, _Trial], str, int | None, list[str]]:
    """Which trials compete with each other: the grid's own, else shortened ones, else others.

    Returns:
        The trials, their kind, how many the grid has of it, and in what they are partial.
    """
    if grid is None:
        return trials, "no grid", None, []
    own = {key_of(config) for config in grid.configs}
    pool = {key: trial for key, trial in trials.items() if key in own}
    if pool:
        return pool, "grid", len(own), []
    short = {key_of(config, without=["epochs"]) for config in grid.configs}
    pool = {k: t for k, t in trials.items() if key_of(t.config, without=["epochs"]) in short}
    if pool:
        ran = _numbers(trial.config.get("epochs") for trial in pool.values())
        of = _numbers(config.get("epochs") for config in grid.configs)
        return pool, f"epochs {ran}", len(short), [f"epochs {ran} of {of}"]
    words = f"{len(trials)} configurations outside the grid of {len(own)}"
    return trials, "outside", None, [words]


def _numbers(values: Iterable[int | None]) -> str:
    return "/".join(str(value) for value in sorted({value for value in values if value}))


def _screening(
    pool: Mapping[Key, _Trial], competing: Mapping[Key, _Trial], records: Iterable[Record]
) -> tuple[int, int] | None:
    """(K, M) of a finished screening; one that was interrupted or mixed is a partial search."""
    screens = {
        (record.screen["seeds"], record.screen["top"]) for record in records if record.screen
    }
    rest = [trial for key, trial in pool.items() if key not in competing]
    if len(screens) != 1 or not rest:
        return None
    few, top = screens.pop()
    # a configuration that failed within the first K seeds was not continued
    went_on = [trial for trial in competing.values() if trial.count > few]
    if len(went_on) < top or any(trial.count < few for trial in rest):
        return None
    seeds = set(rest[0].valid)
    scores = [
        mean([trial.valid[seed] for seed in sorted(seeds)])
        for trial in went_on
        if seeds <= set(trial.valid)
    ]
    # the M best must have gone on; others may have been run with all seeds by another sweep
    least = sorted(scores, reverse=True)[:top]
    if len(least) < top or comparable(least[-1]) < max(trial.score for trial in rest):
        return None
    return few, top

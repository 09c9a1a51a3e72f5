"""One cell's study as a board of trials: what is asked for, what is done, what can be taken.

A cell is an Optuna study, a configuration one of its trials, with the configuration and the number
of seeds it is to have as attributes, and each finished seed as one more. What is true of a
configuration is said by all of its trials together:

- its results are the seeds of all of them, also of those that a dead worker left behind;
- of those for the same number of seeds that have not failed, the first is the one that counts.
  Two machines may add a configuration at once; whatever comes second is ended without being run.

So nothing depends on the moment at which a process was killed.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from virgo.experiments.sweep.claims import CONFIG, SEED, TARGET, Claim, Seeds, mean_valid, seeds_of
from virgo.experiments.sweep.grids import Cell
from virgo.experiments.sweep.records import canonical
from virgo.experiments.sweep.storage import WORKER, Storage

ORDERS = "virgo"  # the attribute of a study that says what was asked for
_LIVE = (TrialState.WAITING, TrialState.RUNNING, TrialState.COMPLETE)
_LOG = ("lr",)
_CHOICES = {"ngnn_type": ("input", "hidden", "output", "all")}


@dataclass(frozen=True)
class Count:
    """How far a cell is: seeds and configurations done and asked for, and what came out."""

    seeds: int
    all_seeds: int
    configurations: int
    all_configurations: int
    failed: int
    best: float | None


class Board:
    """A cell's trials, as they were when last looked at.

    Args:
        storage: where they are.
        cell: whose they are.
        seeds: how many seeds a configuration is to have.
        screen: (K, M): all configurations with K seeds, then the best M with all.
    """

    def __init__(
        self, storage: Storage, cell: Cell, seeds: int, screen: tuple[int, int] | None = None
    ) -> None:
        self.cell, self.seeds, self.screen = cell, seeds, screen
        self.complete = False
        self.seen = -math.inf
        self._storage = storage
        self._study: optuna.Study | None = None
        self._configs = {canonical(config): config for config in cell.configurations}
        self._trials: dict[str, list[FrozenTrial]] = {}
        self._waiting: deque[FrozenTrial] = deque()
        self._count: Count | None = None

    # --- looking ----------------------------------------------------------------------------

    def look(self) -> None:
        """Read the trials anew, except those that are known to have ended."""
        self.seen = time.monotonic()
        self._count = None
        if self._study is None:
            try:
                self._study = optuna.load_study(study_name=self.cell.name, storage=self._storage)
            except KeyError:
                return
        self._trials = {}
        trials = self._storage.trials(self._study)
        for trial in trials:
            if CONFIG in trial.user_attrs:
                self._trials.setdefault(canonical(trial.user_attrs[CONFIG]), []).append(trial)
        wanted = self._wanted()
        self.complete = all(self._done(key, target) for key, target in wanted.items())
        self._waiting = deque(
            trial
            for trial in trials
            if trial.state == TrialState.WAITING
            and CONFIG in trial.user_attrs
            and wanted.get(canonical(trial.user_attrs[CONFIG])) == trial.user_attrs[TARGET]
            and self._first(trial)
        )

    @property
    def waiting(self) -> int:
        """Trials that could be taken when last looked at."""
        return len(self._waiting)

    def _wanted(self) -> dict[str, int]:
        """How many seeds each configuration is to have, as far as that can be said by now."""
        if self.screen is None or self.screen[0] >= self.seeds:
            return dict.fromkeys(self._configs, self.seeds)
        few, top = self.screen
        wanted = dict.fromkeys(self._configs, few)
        if all(self._done(key, few) for key in wanted):
            for key in self._best(few)[:top]:
                wanted[key] = self.seeds
        return wanted

    def _best(self, few: int) -> list[str]:
        """By mean validation over the first seeds, those with a failed seed last."""
        place = {key: number for number, key in enumerate(self._configs)}

        def rank(key: str) -> tuple[bool, float, int]:
            found = self.results(key)
            seeds = [found[seed] for seed in range(few)]
            failed = any(seed["status"] != "ok" for seed in seeds)
            return failed, -round(mean_valid(seeds), 12), place[key]

        return sorted(self._configs, key=rank)

    def _done(self, key: str, target: int) -> bool:
        return any(
            trial.state == TrialState.COMPLETE and trial.user_attrs[TARGET] >= target
            for trial in self._trials.get(key, ())
        )

    def _first(self, trial: FrozenTrial) -> bool:
        """Whether no earlier trial is for the same configuration and number of seeds."""
        alike = self._trials[canonical(trial.user_attrs[CONFIG])]
        target = trial.user_attrs[TARGET]
        return not any(
            other.number < trial.number
            and other.state in _LIVE
            and other.user_attrs[TARGET] == target
            for other in alike
        )

    def results(self, key: str) -> Seeds:
        """All finished seeds of a configuration."""
        found: Seeds = {}
        for trial in self._trials.get(key, ()):
            for seed, result in seeds_of(trial).items():
                found.setdefault(seed, result)
        return found

    def count(self) -> Count:
        """How far it is, as of the last look."""
        if self._count is None:
            self._count = self._counted()
        return self._count

    def _counted(self) -> Count:
        wanted = self._wanted()
        done = {
            key: [result for seed, result in self.results(key).items() if seed < target]
            for key, target in wanted.items()
        }
        total = sum(wanted.values())
        if self.screen and self.screen[0] < self.seeds:
            few, top = self.screen
            total = few * len(wanted) + min(top, len(wanted)) * (self.seeds - few)
        finished = [key for key, target in wanted.items() if self._done(key, target)]
        full = [mean_valid(done[key]) for key in finished]
        return Count(
            sum(map(len, done.values())),
            total,
            len(finished),
            len(wanted),
            sum(seed["status"] != "ok" for found in done.values() for seed in found),
            max(full, default=None),
        )

    # --- changing ---------------------------------------------------------------------------

    def tidy(self) -> int:
        """Free the trials of dead workers, and add what is missing; how many were added."""
        if self._study is None:
            self._study = optuna.create_study(
                storage=self._storage,
                study_name=self.cell.name,
                direction="maximize",
                load_if_exists=True,
            )
        orders = self._orders()
        if self._study.user_attrs.get(ORDERS) != orders:
            self._study.set_user_attr(ORDERS, orders)
        self._storage.give_up_stale(self._study)
        self.look()
        missing = [
            (key, target)
            for key, target in self._wanted().items()
            if not self._done(key, target)
            and not any(
                trial.state in _LIVE and trial.user_attrs[TARGET] == target
                for trial in self._trials.get(key, ())
            )
        ]
        for key, target in missing:
            self._study.add_trial(self._new(key, target))
        self._end_doubles()
        if missing:
            self.look()
        return len(missing)

    def _orders(self) -> dict[str, Any]:
        cell = self.cell
        screen = {"seeds": self.screen[0], "top": self.screen[1]} if self.screen else None
        return {
            "table": cell.table,
            "dataset": cell.dataset,
            "model": cell.model,
            "init": cell.init,
            "part": dict(cell.part),
            "seeds": self.seeds,
            "screen": screen,
            "configurations": len(cell.configurations),
        }

    def _new(self, key: str, target: int) -> FrozenTrial:
        config = self._configs[key]
        spaces = _distributions(self.cell.configurations)
        known = {f"{SEED}{s}": r for s, r in self.results(key).items() if s < target}
        return optuna.create_trial(
            state=TrialState.WAITING,
            params={name: config[name] for name in spaces},
            distributions=spaces,
            user_attrs={CONFIG: dict(config), TARGET: target, **known},
        )

    def _end_doubles(self) -> None:
        for trials in self._trials.values():
            for trial in trials:
                if (
                    trial.state == TrialState.WAITING
                    and not self._first(trial)
                    and self._take(trial)
                ):
                    self._storage.set_trial_state_values(trial._trial_id, TrialState.PRUNED)

    def claim(self) -> Claim | None:
        """Take a trial that waits, if there still is one of those that were seen."""
        while self._waiting:
            trial = self._waiting.popleft()
            if self._take(trial):
                return Claim(
                    self._storage,
                    self.cell,
                    trial,
                    self.results(canonical(trial.user_attrs[CONFIG])),
                )
        return None

    def _take(self, trial: FrozenTrial) -> bool:
        try:
            return self._storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
        except UpdateFinishedTrialError:
            return False

    def running_on(self, worker: Mapping[str, Any]) -> list[tuple[int, str, int]]:
        """Trial, configuration and seed in flight of what a worker has taken."""
        self.look()
        return [
            (trial._trial_id, key, min(missing, default=-1))
            for key, trials in self._trials.items()
            for trial in trials
            if trial.state == TrialState.RUNNING and trial.user_attrs.get(WORKER) == dict(worker)
            for missing in [set(range(trial.user_attrs[TARGET])) - set(seeds_of(trial))]
        ]


def _distributions(configurations: tuple[Mapping[str, Any], ...]) -> dict[str, BaseDistribution]:
    """The grid as Optuna's search space, for its dashboard: the range of each number."""
    found: dict[str, BaseDistribution] = {}
    for name in configurations[0]:
        values = [config[name] for config in configurations]
        if name in _CHOICES:
            found[name] = CategoricalDistribution(_CHOICES[name])
        elif all(type(value) is int for value in values):
            found[name] = IntDistribution(min(values), max(values))
        elif all(type(value) is float for value in values):
            found[name] = FloatDistribution(min(values), max(values), log=name in _LOG)
    return found

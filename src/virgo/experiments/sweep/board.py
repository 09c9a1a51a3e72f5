"""One cell's study as a board of trials: what is wanted, what is done, what can be claimed.

A cell is an Optuna study, a configuration one of its trials. The attributes of a trial are its
configuration, the number of seeds it is to have, and the result of each finished seed. The state of
a configuration follows from all of its trials together:

- its results are the seeds of all of them, including those that a dead worker left behind;
- of the trials for the same number of seeds that have not failed, the first one counts. Two
  machines may add a configuration at once; later duplicates are pruned without being run.

So nothing depends on the moment at which a process was killed.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState

from virgo.experiments.sweep.claims import (
    CONFIG,
    SEED,
    TARGET,
    Seeds,
    TrialClaim,
    is_retried,
    mean_valid,
    seeds_of,
)
from virgo.experiments.sweep.grids import GridCell
from virgo.experiments.sweep.records import Config, canonical
from virgo.experiments.sweep.statistics import comparable
from virgo.experiments.sweep.storage import WORKER, Storage, Worker

ORDERS = "virgo"  # the attribute of a study that says what was asked for
RETRIED = "retried"  # and the numbers of its trials whose failed seeds are run again
_LIVE = (TrialState.WAITING, TrialState.RUNNING, TrialState.COMPLETE)
_LOG = ("lr",)
_CHOICES = {"ngnn_type": ("input", "hidden", "output", "all")}


@dataclass(frozen=True)
class Count:
    """Progress of a cell: seeds done, wanted and failed, and the best mean validation."""

    seeds: int
    total: int
    failed: int
    best: float | None


class Board:
    """A cell's trials, as they were at the last :meth:`look`.

    Args:
        storage: the storage of the trials.
        cell: the cell.
        seeds: how many seeds a configuration is to have.
        screen: (K, M): all configurations with K seeds, then the best M with all.
    """

    def __init__(
        self, storage: Storage, cell: GridCell, seeds: int, screen: tuple[int, int] | None = None
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
        self._retried: set[int] = set()

    # --- reading ----------------------------------------------------------------------------

    def look(self) -> None:
        """Read the trials again; Optuna keeps those that have ended in memory."""
        self.seen = time.monotonic()
        self._count = None
        if self._study is None:
            try:
                self._study = optuna.load_study(study_name=self.cell.name, storage=self._storage)
            except KeyError:
                return
        self._trials = {}
        self._retried = set(self._study.user_attrs.get(RETRIED, ()))
        for trial in self._storage.trials(self._study):
            if CONFIG in trial.user_attrs:
                self._trials.setdefault(canonical(trial.user_attrs[CONFIG]), []).append(trial)
        wanted = self._wanted()
        self.complete = all(self._done(key, target) for key, target in wanted.items())
        firsts = [trial for key in wanted for trial in self._live(key, wanted[key])[:1]]
        waiting = [trial for trial in firsts if trial.state == TrialState.WAITING]
        self._waiting = deque(sorted(waiting, key=lambda trial: trial.number))

    @property
    def trials(self) -> Mapping[str, list[FrozenTrial]]:
        """The trials of the last look, by configuration."""
        return self._trials

    @property
    def waiting(self) -> int:
        """Trials that could be claimed at the last look."""
        return len(self._waiting)

    def _wanted(self) -> dict[str, int]:
        """The number of seeds that each configuration is to have, as far as it is known by now."""
        if self.screen is None or self.screen[0] >= self.seeds:
            return dict.fromkeys(self._configs, self.seeds)
        few, top = self.screen
        wanted = dict.fromkeys(self._configs, few)
        if all(self._done(key, few) for key in wanted):
            wanted.update(dict.fromkeys(self._best(few)[:top], self.seeds))
        return wanted

    def _best(self, few: int) -> list[str]:
        """Configurations by mean validation over the first seeds, those with a failed seed last."""

        def rank(key: str) -> tuple[bool, float]:
            results = self.results(key)
            seeds = [results[seed] for seed in range(few)]
            return any(s["status"] != "ok" for s in seeds), -comparable(mean_valid(seeds))

        return sorted(self._configs, key=rank)  # stable: a tie goes to the first in the grid

    def _done(self, key: str, target: int) -> bool:
        return any(
            trial.state == TrialState.COMPLETE
            and trial.user_attrs[TARGET] >= target
            and trial.number not in self._retried
            for trial in self._trials.get(key, ())
        )

    def _live(self, key: str, target: int) -> list[FrozenTrial]:
        """The trials for this number of seeds that have not failed; the first one counts."""
        return [
            trial
            for trial in self._trials.get(key, ())
            if trial.state in _LIVE
            and trial.user_attrs[TARGET] == target
            and trial.number not in self._retried
        ]

    def results(self, key: str) -> Seeds:
        """All finished seeds of a configuration; of two results for a seed the first counts."""
        results: Seeds = {}
        for trial in self._trials.get(key, ()):
            own = seeds_of(trial)
            if trial.number in self._retried:
                own = {seed: result for seed, result in own.items() if not is_retried(result)}
            results = own | results
        return results

    def count(self) -> Count:
        """The progress at the last look."""
        if self._count is None:
            wanted = self._wanted()
            done = {
                key: [result for seed, result in self.results(key).items() if seed < target]
                for key, target in wanted.items()
            }
            total = sum(wanted.values())
            if self.screen and self.screen[0] < self.seeds:
                few, top = self.screen
                total = few * len(wanted) + min(top, len(wanted)) * (self.seeds - few)
            finished = [done[key] for key, target in wanted.items() if self._done(key, target)]
            self._count = Count(
                sum(map(len, done.values())),
                total,
                sum(seed["status"] != "ok" for seeds in done.values() for seed in seeds),
                max(map(mean_valid, finished), default=None),
            )
        return self._count

    # --- changing ---------------------------------------------------------------------------

    def retry(self) -> int:
        """Set finished trials with failed seeds aside, so that these seeds are run again.

        Optuna never changes a trial that has ended; the study keeps the numbers of those that no
        longer count. Their other seeds stay.

        Returns:
            The number of seeds to run again.
        """
        self.look()
        if self._study is None:
            return 0
        failed = {
            trial.number: seeds
            for trials in self._trials.values()
            for trial in trials
            if trial.state == TrialState.COMPLETE and trial.number not in self._retried
            if (seeds := sum(map(is_retried, seeds_of(trial).values())))
        }
        if failed:
            self._study.set_user_attr(RETRIED, sorted({*self._retried, *failed}))
        return sum(failed.values())

    def tidy(self) -> int:
        """Free the trials of dead workers, add missing ones and prune duplicates.

        Returns:
            The number of trials added.
        """
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
        self._storage.fail_stale(self._study)
        self.look()
        missing = [
            (key, target)
            for key, target in self._wanted().items()
            if not self._done(key, target) and not self._live(key, target)
        ]
        for key, target in missing:
            self._study.add_trial(self._new(key, target))
        self._prune_duplicates()
        if missing:
            self.look()
        return len(missing)

    def _orders(self) -> dict[str, object]:
        cell = self.cell
        return {
            "table": cell.table,
            "dataset": cell.dataset,
            "model": cell.model,
            "init": cell.init,
            "part": dict(cell.part),
            "seeds": self.seeds,
            "screen": {"seeds": self.screen[0], "top": self.screen[1]} if self.screen else None,
            "configurations": len(cell.configurations),
            "protocol": cell.protocol,
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

    def _prune_duplicates(self) -> None:
        for key, trials in self._trials.items():
            for target in {trial.user_attrs[TARGET] for trial in trials}:
                for trial in self._live(key, target)[1:]:
                    if trial.state == TrialState.WAITING and self._storage.take(trial):
                        self._storage.set_trial_state_values(trial._trial_id, TrialState.PRUNED)

    def claim(self) -> TrialClaim | None:
        """Claim one of the waiting trials of the last look, if one is left."""
        while self._waiting:
            trial = self._waiting.popleft()
            if self._storage.take(trial):
                known = self.results(canonical(trial.user_attrs[CONFIG]))
                return TrialClaim(self._storage, self.cell, trial, known)
        return None

    def running_on(self, worker: Worker) -> list[tuple[int, str, int]]:
        """Trial id, configuration and current seed (-1 for none) of what a worker runs."""
        self.look()
        return [
            (trial._trial_id, key, min(missing, default=-1))
            for key, trials in self._trials.items()
            for trial in trials
            if trial.state == TrialState.RUNNING and trial.user_attrs.get(WORKER) == worker
            for missing in [set(range(trial.user_attrs[TARGET])) - set(seeds_of(trial))]
        ]


def _distributions(configurations: tuple[Config, ...]) -> dict[str, BaseDistribution]:
    """The grid as Optuna's search space, for its dashboard: the range of each number."""
    spaces: dict[str, BaseDistribution] = {}
    shared = [name for name in configurations[0] if all(name in c for c in configurations)]
    for name in shared:
        values = [config[name] for config in configurations]
        if name in _CHOICES:
            spaces[name] = CategoricalDistribution(_CHOICES[name])
        elif all(type(value) is int for value in values):
            spaces[name] = IntDistribution(min(values), max(values))
        elif all(type(value) is float for value in values):
            spaces[name] = FloatDistribution(min(values), max(values), log=name in _LOG)
    return spaces

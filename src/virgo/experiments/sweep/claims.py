"""A trial in the storage, and the hold that one process has on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from virgo.experiments.sweep.grids import Cell
from virgo.experiments.sweep.storage import WORKER, Storage

#: A trial's attributes: its configuration, how many seeds it is to have, what it ran with, and
#: the result of each seed that is done, as "seed:0", "seed:1", ...
CONFIG, TARGET, RUN, SEED = "config", "seeds", "run", "seed:"
Seeds = dict[int, dict[str, Any]]


class Claim:
    """A trial that this process has taken. Any of these may find that it was taken from it, as
    Optuna's ``UpdateFinishedTrialError``, after a machine has slept for longer than the grace."""

    def __init__(self, storage: Storage, cell: Cell, trial: FrozenTrial, known: Seeds) -> None:
        self.cell = cell
        self.trial_id = trial._trial_id
        self.config: dict[str, Any] = trial.user_attrs[CONFIG]
        self.target: int = trial.user_attrs[TARGET]
        self._storage = storage
        self._own = seeds_of(trial)
        self._known = {seed: known[seed] for seed in known if seed < self.target}

    @property
    def missing(self) -> list[int]:
        """The seeds that are still to be run."""
        return [seed for seed in range(self.target) if seed not in self._known]

    def begin(self, worker: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        """Say who runs it and with what, and write down what other trials know of it."""
        self._storage.set_trial_user_attr(self.trial_id, WORKER, dict(worker))
        self._storage.set_trial_user_attr(self.trial_id, RUN, dict(run))
        for seed in sorted(set(self._known) - set(self._own)):
            self.record(seed, self._known[seed])

    def record(self, seed: int, result: dict[str, Any]) -> None:
        """Write down one finished seed."""
        self._storage.set_trial_user_attr(self.trial_id, f"{SEED}{seed}", result)
        self._known[seed] = result

    def finish(self) -> None:
        """All seeds are there."""
        assert not self.missing
        value = mean_valid([self._known[seed] for seed in range(self.target)])
        self._storage.set_trial_state_values(self.trial_id, TrialState.COMPLETE, [value])

    def release(self) -> None:
        """Put it back in line with the seeds that it has."""
        try:
            self._storage.set_trial_user_attr(self.trial_id, WORKER, None)
            self._storage.set_trial_state_values(self.trial_id, TrialState.WAITING)
        except UpdateFinishedTrialError:
            pass


def seeds_of(trial: FrozenTrial) -> Seeds:
    """The finished seeds that one trial holds."""
    return {
        int(name[len(SEED) :]): result
        for name, result in trial.user_attrs.items()
        if name.startswith(SEED)
    }


def mean_valid(seeds: list[dict[str, Any]]) -> float:
    """Mean validation; a seed without a number counts as 0, so that failing never pays.

    >>> mean_valid([{"valid": 0.8}, {"valid": None}])
    0.4
    """
    return sum(seed["valid"] or 0.0 for seed in seeds) / len(seeds) if seeds else 0.0

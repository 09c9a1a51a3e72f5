"""The attributes of a trial, and the claim that one process has on it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from virgo.experiments.sweep.grids import GridCell
from virgo.experiments.sweep.records import Config, SeedResult
from virgo.experiments.sweep.storage import WORKER, Storage, Worker

#: A trial's attributes: its configuration, how many seeds it is to have, what it ran with, and
#: the result of each seed that is done, as "seed:0", "seed:1", ...
CONFIG, TARGET, RUN, SEED = "config", "seeds", "run", "seed:"
Seeds = dict[int, SeedResult]


def seeds_of(trial: FrozenTrial) -> Seeds:
    """The finished seeds of one trial."""
    return {
        int(name[len(SEED) :]): result
        for name, result in trial.user_attrs.items()
        if name.startswith(SEED)
    }


def mean_valid(seeds: list[SeedResult]) -> float:
    """Return mean validation; a seed without a number counts as 0, so that failing never pays.

    >>> mean_valid([{"valid": 0.8}, {"valid": None}])
    0.4
    """
    return sum(seed["valid"] or 0.0 for seed in seeds) / len(seeds) if seeds else 0.0


def is_retried(result: SeedResult) -> bool:
    """Whether ``--retry-failed`` runs a seed again; one that diverged would diverge again."""
    return result["status"] in ("failed", "out of memory")


class TrialClaim:
    """A trial that this process runs.

    Its methods raise Optuna's ``UpdateFinishedTrialError`` if the trial was given to another worker
    meanwhile, for example because the machine slept for longer than the grace period.

    Args:
        storage: the storage of the trial.
        cell: the cell it belongs to.
        trial: the claimed trial.
        known: finished seeds of the configuration, from any trial.
    """

    def __init__(self, storage: Storage, cell: GridCell, trial: FrozenTrial, known: Seeds) -> None:
        self.cell = cell
        self.trial_id = trial._trial_id
        self.config: Config = trial.user_attrs[CONFIG]
        self.target: int = trial.user_attrs[TARGET]
        self._storage = storage
        self._own = seeds_of(trial)
        self._known = {seed: known[seed] for seed in known if seed < self.target}

    @property
    def missing(self) -> list[int]:
        """The seeds that are still to be run."""
        return [seed for seed in range(self.target) if seed not in self._known]

    def begin(self, worker: Worker, run: Mapping[str, object]) -> None:
        """Write who runs it and with what, and the seeds that other trials have finished."""
        self._storage.set_trial_user_attr(self.trial_id, WORKER, dict(worker))
        self._storage.set_trial_user_attr(self.trial_id, RUN, dict(run))
        for seed in sorted(set(self._known) - set(self._own)):
            self.record(seed, self._known[seed])

    def record(self, seed: int, result: SeedResult) -> None:
        """Write the result of one finished seed."""
        self._storage.set_trial_user_attr(self.trial_id, f"{SEED}{seed}", result)
        self._known[seed] = result

    def finish(self) -> None:
        """Mark the trial complete; all seeds must be there."""
        assert not self.missing
        value = mean_valid([self._known[seed] for seed in range(self.target)])
        self._storage.set_trial_state_values(self.trial_id, TrialState.COMPLETE, [value])

    def release(self) -> None:
        """Put the trial back in the queue with the seeds that it has."""
        with suppress(UpdateFinishedTrialError):
            self._storage.set_trial_user_attr(self.trial_id, WORKER, None)
            self._storage.set_trial_state_values(self.trial_id, TrialState.WAITING)

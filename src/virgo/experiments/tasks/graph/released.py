"""The released script's protocol for the TU collection: **no validation, selection on test**.

Ten stratified folds, nine to train on and one to test on, and a test after every epoch. The script
(``comp11.py``) returns these curves. How the paper made its numbers of them is not in it; GIN's
paper, whose set-up this is, takes the one epoch with the best mean over the ten folds, for all
folds (:func:`virgo.experiments.sweep.protocols.at_best_epoch`). That mean is a maximum over epochs
of the quantity to estimate, and so are the numbers of every paper with this protocol.

Two classes have one logit and binary cross-entropy, and the script calls a **logit** above 0.5
positive, where a probability of 0.5 would be a logit of 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from virgo.errors import OptionError
from virgo.experiments.data.datasets import FOLDS, Dataset
from virgo.experiments.models.network import Config
from virgo.experiments.tasks.compute import CPU, Compute
from virgo.experiments.tasks.graph import GraphTask
from virgo.experiments.tasks.graph.labels import masked_loss
from virgo.experiments.tasks.outcome import Outcome
from virgo.experiments.tasks.settings import Settings
from virgo.experiments.tasks.starts import Starts
from virgo.experiments.tasks.training import Training

#: A logit from which on the released script predicts the second of two classes.
THRESHOLD = 0.5


class ReleasedGraphTask(GraphTask):
    """Folds without validation: the part called ``"valid"`` is the test fold.

    Args:
        dataset: one of the TU collection, or any with folds in place of a split.
        compute: where and how its runs compute.

    Raises:
        OptionError: the dataset has a split of its own.
    """

    def __init__(self, dataset: Dataset, compute: Compute = CPU) -> None:
        if dataset.task != "graph" or dataset.split:
            raise OptionError(
                f"protocol: expected a dataset with folds (imdb-b, imdb-m, collab) for 'released', "
                f"got {dataset.name}. Take the protocol 'validation'."
            )
        super().__init__(dataset, compute)
        if dataset.num_classes == 2:
            self.y = self.y.float().view(-1, 1)
            self.loss = masked_loss
            self.recipe = {**self.recipe, "out_channels": 1}
            self._starts = Starts(self.recipe, compute.device)

    def split_of(self, number: int) -> Mapping[str, Tensor]:
        """Fold ``number % 10`` to test on, the other nine to train on."""
        if number not in self._splits:
            train, test = self.dataset.folds(number // FOLDS)[number % FOLDS]
            self._splits[number] = {"train": train, "valid": test, "test": test}
        return self._splits[number]

    def score(self, output: Tensor, y: Tensor) -> float:
        """Accuracy; of two classes by the released threshold."""
        if self.dataset.num_classes != 2:
            return super().score(output, y)
        return float(((output >= THRESHOLD).float() == self.compute.put(y)).float().mean())


_last: list[ReleasedGraphTask] = []


def run(
    dataset: Dataset, model: str, init: str, config: Config, seed: int, device: Compute = CPU
) -> Outcome:
    """Train on nine folds for all epochs; the outcome's curve is the test fold's.

    Args:
        dataset: a dataset with folds.
        model: one of :data:`virgo.experiments.models.MODELS`.
        init: an initialisation.
        config: the fields of :class:`Settings`; patience does not apply, as nothing is validated.
        seed: the fold, and of everything random.
        device: where and how it computes.

    Returns:
        The outcome after the last epoch, with ``(epoch, test)`` of every epoch as its curve.
    """
    if not _last or _last[0].dataset is not dataset or _last[0].compute != device:
        _last[:] = [ReleasedGraphTask(dataset, device)]
    settings = replace(Settings.of(config), patience=None)
    training = Training(_last[0], model, init, settings, seed)
    curve = []
    while not training.done:
        epoch = training.advance()
        if epoch.valid is not None:
            curve.append((epoch.number, epoch.valid))
    if training.diverged:
        return Outcome.failed("diverged", training.epoch, training.seconds)
    last, test = curve[-1]
    return Outcome(test, test, last, training.epoch, training.seconds, curve=tuple(curve))

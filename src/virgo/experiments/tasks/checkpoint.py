"""A run on disk: tensors and JSON in one ``.safetensors`` file, read without unpickling anything.

The file holds the weights of the last epoch (``last.``) and of the best (``best.``), Adam's moments
(``adam.``) and, in its header, everything else: names, settings, seed, epoch, curve, versions. All
that is random in an epoch follows from the seed and the epoch's number, so a continued run takes
the same steps as one that was never stopped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from virgo.devices import has_fused_adam
from virgo.errors import DataError, OptionError, VirgoError, needed
from virgo.experiments.models import from_recipe
from virgo.experiments.tasks.settings import Settings
from virgo.experiments.tasks.training import Epoch, Task, Training
from virgo.report.files import atomic_write
from virgo.report.json_types import is_of
from virgo.report.saving import versions

FORMAT = 1
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
#: What the header must say, and of which types.
_HEADER: dict[str, Any] = {
    "dataset": str,
    "model": str,
    "recipe": dict[str, Any],
    "init": str,
    "settings": dict[str, Any],
    "seed": int,
    "epoch": int,
    "best_epoch": int,
    "best_valid": float | None,
    "diverged": bool,
    "seconds": float,
    "curve": list[tuple[int, float | None, float | None]],
}


def save(training: Training, path: str | Path, curve: Sequence[Epoch] = ()) -> Path:
    """Write a run as it stands, atomically.

    Args:
        training: the run.
        path: of the file; missing folders are made.
        curve: its epochs so far.

    Returns:
        The path.

    Raises:
        DataError: the file cannot be written.
    """
    library = _safetensors()
    path = Path(path)
    tensors = {f"last.{name}": value for name, value in training.model.state_dict().items()}
    tensors |= {f"best.{name}": value for name, value in training.best.items()}
    for name, parameter in training.model.named_parameters():
        for moment, value in training.optimiser.state[parameter].items():
            tensors[f"adam.{moment}.{name}"] = value
    dataset = training.task.dataset
    header = {
        "format": FORMAT,
        "dataset": dataset.name,
        "generated": dataset.generated,
        "model": training.name,
        "recipe": training.task.recipe,
        "init": training.init,
        "settings": training.settings.to_dict(),
        "seed": training.seed,
        "epoch": training.epoch,
        "best_epoch": training.best_epoch,
        "best_valid": None if math.isinf(training.best_valid) else training.best_valid,
        "diverged": training.diverged,
        "seconds": training.seconds,
        "curve": [[e.number, e.loss if math.isfinite(e.loss) else None, e.valid] for e in curve],
        "versions": versions(),
    }
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    try:
        with atomic_write(path) as temporary:
            library.torch.save_file(plain, temporary, metadata={"virgo": json.dumps(header)})
    except (OSError, library.SafetensorError) as error:
        raise DataError(
            f"{path}: expected a place to write to, got {error}. Name another."
        ) from None
    return path


@dataclass(frozen=True)
class Checkpoint:
    """What :func:`save` wrote."""

    header: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def settings(self) -> Settings:
        """The run's hyper-parameters."""
        return Settings.of(self.header["settings"])

    @property
    def curve(self) -> list[Epoch]:
        """Loss and validation score of the epochs so far."""
        return [
            Epoch(number, math.nan if loss is None else loss, valid)
            for number, loss, valid in self.header["curve"]
        ]

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors under ``"last"``, ``"best"`` or ``"adam"``."""
        begin = f"{name}."
        return {k.removeprefix(begin): v for k, v in self.tensors.items() if k.startswith(begin)}

    def model(self, weights: str = "best") -> nn.Module:
        """The network, without its dataset, with its best or its last weights."""
        head = self.header
        with _intact():
            self._check_size()
            network: nn.Module = from_recipe(head["model"], head["recipe"], self.settings.to_dict())
            network.load_state_dict(self.part(weights))
        return network.eval()

    def resume(self, task: Task, epochs: int | None = None) -> Training:
        """The run, to be continued on its dataset.

        Args:
            task: of the same dataset.
            epochs: the new number of epochs, if it is to change.

        Returns:
            The run after its last saved epoch.

        Raises:
            OptionError: the dataset is another one.
        """
        head = self.header
        if task.dataset.name != head["dataset"]:
            raise OptionError(
                f"resume: expected the dataset {head['dataset']}, got {task.dataset.name}. "
                f"Load the one that the run was on."
            )
        with _intact():
            self._check_size()
            return self._resumed(task, epochs)

    def _check_size(self) -> None:
        """Before a network is made that takes all memory: it has no more layers than weights."""
        settings, weights = self.settings, self.part("last")
        widest = max((size for weight in weights.values() for size in weight.shape), default=0)
        hidden = settings.hidden_channels if settings.num_layers > 1 else 0
        if settings.num_layers > len(weights) or hidden > widest:
            raise ValueError(
                f"{settings.num_layers} layers of {settings.hidden_channels} in the settings, "
                f"{len(weights)} weights of at most {widest} in the file"
            )

    def _resumed(self, task: Task, epochs: int | None) -> Training:
        head = self.header
        settings = Settings.of(head["settings"] | ({} if epochs is None else {"epochs": epochs}))
        training = Training(task, head["model"], head["init"], settings, head["seed"])
        training.model.load_state_dict(self.part("last"))
        device = task.compute.device
        training.best = {n: value.clone().to(device) for n, value in self.part("best").items()}
        moments = self.part("adam")
        for name, parameter in training.model.named_parameters():
            for moment in _MOMENTS if f"step.{name}" in moments else ():
                value = moments[f"{moment}.{name}"]
                # Adam's fused step walks through memory: moments must lie as their weight does
                like = parameter if value.dim() or has_fused_adam(device) else value
                state = torch.empty_like(
                    parameter if value.dim() else value, device=like.device, requires_grad=False
                )
                training.optimiser.state[parameter][moment] = state.copy_(value)
        training.epoch, training.best_epoch = head["epoch"], head["best_epoch"]
        training.best_valid = -math.inf if head["best_valid"] is None else head["best_valid"]
        training.diverged, training.seconds = head["diverged"], head["seconds"]
        return training


@contextmanager
def _intact() -> Iterator[None]:
    """What a changed checkpoint does to the code that believes it, as an error that says so."""
    try:
        yield
    except VirgoError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"checkpoint: expected settings and weights that fit each other, got "
            f"{type(error).__name__}: {reason}. Train it again, or read it with the version of "
            f"virgo that wrote it."
        ) from error


def load(path: str | Path) -> Checkpoint:
    """Read what :func:`save` wrote.

    Args:
        path: of the file.

    Returns:
        The checkpoint.

    Raises:
        DataError: there is no such file, or it is not a checkpoint of this format.
    """
    library = _safetensors()
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: expected a checkpoint, got no file. Name one that was saved.")
    try:
        with library.safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["virgo"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # the reader has its own family of errors for damaged files
        raise DataError(
            f"{path}: expected a checkpoint written by virgo train --save, got "
            f"{type(error).__name__}: {error}. Name another file."
        ) from error
    version = header.get("format") if isinstance(header, dict) else None
    if version != FORMAT:
        raise DataError(
            f"{path}: expected format {FORMAT}, got {version!r:.80}. Read it with the version of "
            f"virgo that wrote it."
        )
    for name, kind in _HEADER.items():
        if name not in header or not is_of(header[name], kind):
            raise DataError(
                f"{path}: expected {name} as virgo train --save writes it, got "
                f"{header.get(name)!r:.80}. Train it again."
            )
    if header["seed"] < 0 or not 0 <= header["best_epoch"] <= header["epoch"]:
        raise DataError(
            f"{path}: expected a seed and epochs from 0 on, got seed {header['seed']}, epoch "
            f"{header['epoch']}, best {header['best_epoch']}. Train it again."
        )
    return Checkpoint(header, tensors)


def _safetensors() -> Any:
    needed("safetensors.torch", "A checkpoint", "train")
    return needed("safetensors", "A checkpoint", "train")

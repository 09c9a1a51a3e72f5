"""Losses and scores: accuracy, or what OGB's evaluator computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from torch import Tensor
from torch.nn import functional

from virgo.devices import moved
from virgo.errors import OptionError
from virgo.experiments.data.datasets import Dataset

Loss = Callable[[Tensor, Tensor], Tensor]


def check_dataset(dataset: Dataset, task: str, known: Iterable[str] = ()) -> None:
    """Raise unless a dataset is for this kind of task, with one of the known metrics if any."""
    kind = {"link": "link prediction"}.get(task, f"{task} classification")
    if dataset.task != task:
        raise OptionError(
            f"{dataset.name}: expected a {kind} dataset, got a {dataset.task} one. Choose another."
        )
    if known and dataset.metric not in known:
        raise OptionError(
            f"{dataset.name}: expected a metric of {', '.join(known)}, got {dataset.metric!r}. "
            f"Choose another dataset."
        )


def accuracy(output: Tensor, y: Tensor) -> float:
    """The share of rows whose largest output is the class (what OGB's evaluator computes)."""
    return int((output.argmax(1) == moved(y, output.device)).sum()) / y.numel()


def rocauc(output: Tensor, y: Tensor) -> float:
    """ROC-AUC, averaged over tasks, by OGB's evaluator."""
    return float(ogb_evaluator("ogbn-proteins").eval({"y_true": y, "y_pred": output})["rocauc"])


NODE_METRICS = {"accuracy": accuracy, "rocauc": rocauc}


def node_score(dataset: Dataset, part: str, output: Tensor) -> float:
    """The dataset's metric of an output at the nodes of ``part``."""
    y = dataset.data.y[dataset.split[part]]
    return NODE_METRICS[dataset.metric](output.float(), y)


def loss_for(metric: str) -> Loss:
    """Cross-entropy where there is one class per row, otherwise binary cross-entropy per task."""
    return functional.cross_entropy if metric == "accuracy" else _binary_loss


def _binary_loss(output: Tensor, y: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(output, y.float())


@lru_cache
def ogb_evaluator(name: str, num_tasks: int | None = None) -> Any:
    """OGB's evaluator of a dataset, for another number of tasks if that is given."""
    from virgo.experiments.data.ogb_files import evaluator  # needs an extra

    evaluate = evaluator(name)
    if num_tasks is not None:
        evaluate.num_tasks = num_tasks
    return evaluate

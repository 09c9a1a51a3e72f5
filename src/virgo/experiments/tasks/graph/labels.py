"""Labels of graphs, of which some may be missing: what is lost, what is scored, what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from virgo.errors import DataError
from virgo.experiments.tasks.metrics import Loss, accuracy

#: Whose evaluator of OGB's computes a metric, whatever the number of tasks.
EVALUATORS = {"rocauc": "ogbg-molhiv", "ap": "ogbg-molpcba"}
METRICS = ("accuracy", *EVALUATORS)


def score(metric: str, output: Tensor, y: Tensor) -> float:
    """Accuracy, or what OGB's evaluator says; an output that is not a number counts as zero."""
    if metric == "accuracy":
        return accuracy(output, y)
    result = _evaluator(metric, y.size(1)).eval({"y_true": y, "y_pred": output.nan_to_num()})
    return float(result[metric])


@lru_cache
def _evaluator(metric: str, tasks: int) -> Any:
    from virgo.experiments.data.ogb_files import evaluator  # needs an extra

    made = evaluator(EVALUATORS[metric])
    made.num_tasks = tasks
    return made


def present(y: Tensor) -> int:
    """How many labels are there."""
    return y.numel() - int(torch.isnan(y).sum()) if y.is_floating_point() else y.numel()


def masked_loss(output: Tensor, y: Tensor) -> Tensor:
    """The mean over the labels that are there of the cross-entropy of yes and no."""
    there = ~torch.isnan(y)
    return functional.binary_cross_entropy_with_logits(output[there], y[there])


def loss_for(metric: str) -> Loss:
    """Cross-entropy where there is one class a graph, otherwise one yes or no for each task."""
    return functional.cross_entropy if metric == "accuracy" else masked_loss


def labels_of(dataset: Any, y: Tensor) -> Tensor:
    """A class a graph, or a row of yes (1), no (0) and missing (nan) for each."""
    outputs = dataset.num_classes
    if dataset.metric != "accuracy":
        rows: Tensor = y.reshape(y.size(0), -1).float()
        if rows.size(1) != outputs:
            raise DataError(
                f"{dataset.name}: expected {outputs} labels a graph, got {rows.size(1)}. "
                f"Check y against num_classes."
            )
        return rows
    classes: Tensor = y.reshape(-1).long()
    if int(classes.min()) < 0 or int(classes.max()) >= outputs:
        raise DataError(
            f"{dataset.name}: expected classes in 0..{outputs - 1}, got "
            f"{int(classes.min())}..{int(classes.max())}. Check y against num_classes."
        )
    return classes


def check_parts(dataset: Any, y: Tensor, split: Mapping[str, Tensor]) -> None:
    """Refuse what would otherwise only come out when the first epoch is evaluated."""
    for part, graphs in split.items():
        mine = y[graphs]
        if not mine.numel() or not present(mine):
            raise DataError(
                f"{dataset.name}: expected labelled graphs in {part}, got none. Take another split."
            )
        both = (mine == 0).any(0) & (mine == 1).any(0)
        if part != "train" and dataset.metric != "accuracy" and not bool(both.any()):
            raise DataError(
                f"{dataset.name}: expected a task with positive and negative labels in {part}, "
                f"got none, so {dataset.metric} is not defined. Take another split."
            )

"""Labels of graphs, of which some may be missing: loss, score and checks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from virgo.errors import DataError
from virgo.experiments.data.datasets import Dataset
from virgo.experiments.tasks.metrics import Loss, accuracy, ogb_evaluator

#: The dataset whose OGB evaluator computes a metric, for any number of tasks.
EVALUATORS = {"rocauc": "ogbg-molhiv", "ap": "ogbg-molpcba"}
METRICS = ("accuracy", *EVALUATORS)


def score(metric: str, output: Tensor, y: Tensor) -> float:
    """Accuracy, or what OGB's evaluator says; an output that is not a number counts as zero."""
    if metric == "accuracy":
        return accuracy(output, y)
    evaluator = ogb_evaluator(EVALUATORS[metric], y.size(1))
    return float(evaluator.eval({"y_true": y, "y_pred": output.nan_to_num()})[metric])


def present(y: Tensor) -> int:
    """The number of labels that are not missing."""
    return y.numel() - int(torch.isnan(y).sum()) if y.is_floating_point() else y.numel()


def masked_loss(output: Tensor, y: Tensor) -> Tensor:
    """The mean binary cross-entropy over the labels that are not missing."""
    known = ~torch.isnan(y)
    return functional.binary_cross_entropy_with_logits(output[known], y[known])


def loss_for(metric: str) -> Loss:
    """Cross-entropy where there is one class per graph, otherwise binary per task."""
    return functional.cross_entropy if metric == "accuracy" else masked_loss


def labels_of(dataset: Dataset, y: Tensor) -> Tensor:
    """One class per graph, or one row of 1, 0 and nan (missing)."""
    outputs = dataset.num_classes
    if dataset.metric != "accuracy":
        rows: Tensor = y.reshape(y.size(0), -1).float()
        if rows.size(1) != outputs:
            raise DataError(
                f"{dataset.name}: expected {outputs} labels per graph, got {rows.size(1)}. "
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


def check_parts(dataset: Dataset, y: Tensor, split: Mapping[str, Tensor]) -> None:
    """Raise now for what would otherwise fail when the first epoch is evaluated."""
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

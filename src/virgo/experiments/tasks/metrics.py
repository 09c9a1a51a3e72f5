"""How good an output is: accuracy, or what OGB's evaluator says."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Loss = Callable[[Tensor, Tensor], Tensor]


def accuracy(output: Tensor, y: Tensor) -> float:
    """The share of rows whose largest output is the class (what OGB's evaluator computes)."""
    return int((output.argmax(1) == y).sum()) / y.numel()


def rocauc(output: Tensor, y: Tensor) -> float:
    """ROC-AUC, averaged over tasks, by OGB's evaluator."""
    return float(_evaluator("ogbn-proteins").eval({"y_true": y, "y_pred": output})["rocauc"])


NODE_METRICS = {"accuracy": accuracy, "rocauc": rocauc}


def node_score(dataset: Any, part: str, output: Tensor) -> float:
    """The dataset's metric of an output at the nodes of ``part``."""
    return NODE_METRICS[dataset.metric](output, dataset.data.y[dataset.split[part]])


def loss_for(metric: str) -> Loss:
    """Cross-entropy where there is one class a node, otherwise one yes or no for each task."""
    return functional.cross_entropy if metric == "accuracy" else _binary


def _binary(output: Tensor, y: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(output, y.to(torch.float32))


@lru_cache
def _evaluator(name: str) -> Any:
    from virgo.experiments.data.ogb_files import evaluator  # needs an extra

    return evaluator(name)

"""How well links are ranked above pairs without one: OGB's evaluator on a stream of scores.

Hits@K needs only the K best negatives, and a reciprocal rank only its pair's own negatives. So
scores are computed a piece at a time, handed to OGB's evaluator, and dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from virgo.devices import total as total_of
from virgo.errors import DataError
from virgo.experiments.tasks.metrics import ogb_evaluator

Score = Callable[[Tensor], Tensor]
"""Scores ``[pairs]`` of pairs ``[2, pairs]``."""

#: Pairs that are scored at a time: activations stay in the processor's cache.
PIECE = 1 << 14


def base_name(name: str) -> str:
    """The dataset that a stand-in is like.

    Args:
        name: of a dataset, or ``like:`` one.

    Returns:
        OGB's name.

    >>> base_name("like:ogbl-ddi@0.2"), base_name("ogbl-ppa")
    ('ogbl-ddi', 'ogbl-ppa')
    """
    return name.removeprefix("like:").partition("@")[0]


def check_part(name: str, part: str, pairs: Mapping[str, Tensor]) -> None:
    """Raise unless a part of a split has positive and negative pairs to rank."""
    fields = ("source_node", "target_node_neg") if "source_node" in pairs else ("edge", "edge_neg")
    for field, what in zip(fields, ("links", "negatives"), strict=True):
        if field not in pairs or not len(pairs[field]):
            have = ", ".join(key for key in pairs if len(pairs[key])) or "nothing"
            raise DataError(
                f"{name}, {part}: expected {what} under {field!r} to rank, got {have}. Use OGB's "
                f"split, or add them."
            )


def evaluate(name: str, pairs: Mapping[str, Tensor], score: Score, piece: int = PIECE) -> float:
    """The metric of a dataset by OGB's evaluator, in bounded memory.

    A score that is not a number counts as the worst possible; OGB's evaluator would take the
    comparisons with it for a perfect rank. With fewer than K negatives Hits@K is 1, as in OGB.

    Args:
        name: the dataset, or ``like:`` it.
        pairs: OGB's dictionary of one part of the split.
        score: of pairs.
        piece: pairs to score at a time.

    Returns:
        Hits@K, or the mean reciprocal rank.
    """
    metric = _reciprocal_rank if "source_node" in pairs else _hits
    return metric(ogb_evaluator(base_name(name)), pairs, score, piece)


def _hits(evaluator: Any, pairs: Mapping[str, Tensor], score: Score, piece: int) -> float:
    best: Tensor | None = None
    for edges in pairs["edge_neg"].split(piece):
        negative = _without_nan(score(edges.t()), torch.inf)
        negative = negative if best is None else torch.cat([best, negative])
        best = negative.topk(min(evaluator.K, negative.numel())).values
    hits = 0.0
    for edges in pairs["edge"].split(piece):
        positive = _without_nan(score(edges.t()), -torch.inf)
        share = evaluator.eval({"y_pred_pos": positive, "y_pred_neg": best})[f"hits@{evaluator.K}"]
        hits += round(share * positive.numel())  # the whole number that the share was made from
    return hits / len(pairs["edge"])


def _reciprocal_rank(
    evaluator: Any, pairs: Mapping[str, Tensor], score: Score, piece: int
) -> float:
    total, candidates = 0.0, pairs["target_node_neg"].size(1)
    fields = (
        pairs[key].split(max(piece // candidates, 1))
        for key in ("source_node", "target_node", "target_node_neg")
    )
    for source, target, others in zip(*fields, strict=True):
        among = torch.stack([source.repeat_interleave(candidates), others.reshape(-1)])
        negative = _without_nan(score(among), torch.inf).view(-1, candidates)
        positive = _without_nan(score(torch.stack([source, target])), -torch.inf)
        ranked = evaluator.eval({"y_pred_pos": positive, "y_pred_neg": negative})
        total += total_of(ranked["mrr_list"])
    return total / len(pairs["source_node"])


def _without_nan(score: Tensor, instead: float) -> Tensor:
    return torch.where(score.isnan(), instead, score)

"""How well links are ranked above pairs without one: OGB's evaluator on a stream of scores.

Hits@K of many positive pairs against many negative ones needs only the K best negatives; a
positive pair's reciprocal rank only its own. So scores are made a piece at a time, handed to
OGB's evaluator, and dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from virgo.errors import DataError

Score = Callable[[Tensor], Tensor]
"""Scores ``[pairs]`` of pairs ``[2, pairs]``."""

#: Pairs that are scored at a time: what is between the predictor's layers stays in the cache.
PIECE = 1 << 14


def base_name(name: str) -> str:
    """The dataset that a stand-in is like.

    >>> base_name("like:ogbl-ddi@0.2"), base_name("ogbl-ppa")
    ('ogbl-ddi', 'ogbl-ppa')
    """
    return name.removeprefix("like:").partition("@")[0]


def check_part(name: str, part: str, pairs: Mapping[str, Any]) -> None:
    """Raise unless a part of a split has positive and negative pairs to rank."""
    positive, negative = _fields(pairs)
    for field, what in ((positive, "links"), (negative, "negatives")):
        if field not in pairs or not len(pairs[field]):
            have = ", ".join(key for key in pairs if len(pairs[key])) or "nothing"
            raise DataError(
                f"{name}, {part}: expected {what} under {field!r} to rank, got {have}. Use OGB's "
                f"split, or add them."
            )


def evaluate(name: str, pairs: Mapping[str, Any], score: Score, piece: int = PIECE) -> float:
    """The metric that OGB's evaluator of a dataset gives a score, in memory that is bounded.

    A score that is not a number counts as the worst there is; OGB's evaluator would take the
    comparisons with it for a perfect rank. With fewer than K negatives Hits@K is 1, as OGB has it.

    Args:
        name: the dataset, or ``like:`` it.
        pairs: OGB's dictionary of one part of the split.
        score: of pairs.
        piece: pairs to score at a time.
    """
    positive, _ = _fields(pairs)
    evaluator = _evaluator(base_name(name))
    if positive == "edge":
        return _hits(evaluator, pairs, score, piece)
    return _reciprocal_rank(evaluator, pairs, score, piece)


def _hits(evaluator: Any, pairs: Mapping[str, Any], score: Score, piece: int) -> float:
    best = torch.empty(0)
    for edges in pairs["edge_neg"].split(piece):
        found = torch.cat([best, _without_nan(score(edges.t()), torch.inf)])
        best = found.topk(min(evaluator.K, found.numel())).values
    hits = 0.0
    for edges in pairs["edge"].split(piece):
        found = _without_nan(score(edges.t()), -torch.inf)
        share = evaluator.eval({"y_pred_pos": found, "y_pred_neg": best})[f"hits@{evaluator.K}"]
        hits += round(share * found.numel())  # a whole number, which the share was made from
    return hits / len(pairs["edge"])


def _reciprocal_rank(evaluator: Any, pairs: Mapping[str, Any], score: Score, piece: int) -> float:
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
        total += float(ranked["mrr_list"].double().sum())
    return total / len(pairs["source_node"])


def _fields(pairs: Mapping[str, Any]) -> tuple[str, str]:
    if "source_node" in pairs:
        return "source_node", "target_node_neg"
    return "edge", "edge_neg"


def _without_nan(score: Tensor, instead: float) -> Tensor:
    return torch.where(score.isnan(), instead, score)


@lru_cache
def _evaluator(name: str) -> Any:
    from virgo.experiments.data.ogb_files import evaluator  # needs an extra

    return evaluator(name)

"""The released protocol of the TU folds: an epoch for all folds, chosen by the mean test curve.

This is selection on test: the reported mean is a maximum over epochs of the quantity that it
estimates. :func:`by_other_folds` says what the same runs give when a fold's epoch is chosen without
looking at that fold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from virgo.experiments.sweep.records import Record, SeedResult
from virgo.experiments.sweep.statistics import comparable, mean

RELEASED = "released"
#: The protocols, and what a table says of them.
PROTOCOLS = {
    "validation": "",
    RELEASED: "SELECTION ON TEST: no validation set; the one epoch with the best mean test value "
    "over the folds is reported for all of them, as the released script's curves are read in "
    "GIN's paper",
}
Curves = Mapping[int, Mapping[int, float]]  # fold -> epoch -> test value


def at_best_epoch(record: Record) -> Record:
    """A record of the released protocol with every fold's value at the best common epoch.

    Args:
        record: with the test curve of every fold.

    Returns:
        The record; folds that failed or have no curve are as they were.
    """
    curves = _curves(record)
    best = best_epoch(curves)
    if best is None:
        return record
    seeds = (
        _moved(seed, curves[fold][best], best) if (fold := int(seed["seed"])) in curves else seed
        for seed in record.seeds
    )
    return replace(record, seeds=tuple(seeds))


def best_epoch(curves: Curves) -> int | None:
    """The first epoch with the largest mean over folds, of those that all folds have.

    Args:
        curves: fold -> epoch -> test value.

    Returns:
        The epoch, or None without curves.

    >>> best_epoch({0: {1: 0.5, 2: 0.7}, 1: {1: 0.6, 2: 0.5}})
    2
    """
    if not curves:
        return None
    shared = sorted(set.intersection(*(set(curve) for curve in curves.values())))
    means = {epoch: comparable(mean([c[epoch] for c in curves.values()])) for epoch in shared}
    return max(means, key=lambda epoch: (means[epoch], -epoch), default=None)


def by_other_folds(record: Record) -> dict[str, dict[int, float]]:
    """What the same runs give by three ways to choose the epoch, per fold.

    Args:
        record: with the test curve of every fold.

    Returns:
        ``"best common epoch"`` (released), ``"epoch by the other folds"``, where a fold's own test
        values have no say in its epoch, and ``"last epoch"``; each fold -> test value.
    """
    curves = _curves(record)
    best = best_epoch(curves)
    if best is None or len(curves) < 2:
        return {}
    others = {
        fold: best_epoch({other: curve for other, curve in curves.items() if other != fold})
        for fold in curves
    }
    return {
        "best common epoch": {fold: curve[best] for fold, curve in curves.items()},
        "epoch by the other folds": {
            fold: curve[epoch]
            for fold, curve in curves.items()
            if (epoch := others[fold]) is not None
        },
        "last epoch": {fold: curve[max(curve)] for fold, curve in curves.items()},
    }


def _curves(record: Record) -> dict[int, dict[int, float]]:
    return {
        int(seed["seed"]): {int(epoch): float(value) for epoch, value in seed["curve"]}
        for seed in record.seeds
        if seed["status"] == "ok" and seed.get("curve")
    }


def _moved(seed: SeedResult, value: float, epoch: int) -> SeedResult:
    return {**seed, "valid": value, "test": value, "epoch": epoch}

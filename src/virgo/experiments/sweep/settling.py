"""Had the order of methods stopped changing when the runs were cut short?

A run of 15 epochs where the grid has 1600 says little about its last accuracy, but it may still
rank methods, if their order has been the same for a while. A run's score after some epochs is its
best validation so far, for that is what selects the weights that are tested; a method's score is
the mean of it over seeds. Methods are held against each other in one configuration that all of
them ran, with the seeds that all of them finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from virgo.experiments.sweep.records import Record
from virgo.experiments.sweep.selection import OK, Config, Key, key_of
from virgo.experiments.sweep.statistics import mean
from virgo.experiments.sweep.verdicts import Cell, Place

#: Epoch -> value, in order.
Curve = Mapping[int, float]
#: Differences below this are ties.
DIGITS = 9


def best_so_far(curve: Curve) -> dict[int, float]:
    """The largest value up to each epoch.

    >>> best_so_far({1: 0.2, 2: 0.1, 3: 0.4})
    {1: 0.2, 2: 0.2, 3: 0.4}
    """
    found: dict[int, float] = {}
    best = -float("inf")
    for epoch in sorted(curve):
        best = found[epoch] = max(best, curve[epoch])
    return found


def averaged(curves: Sequence[Curve]) -> dict[int, float]:
    """The mean over seeds at each epoch that any was validated at, once all have a value.

    A seed that is not validated at an epoch, or has stopped before it, has its last value there.

    >>> averaged([{1: 0.2, 2: 0.4}, {2: 0.6, 3: 0.8}])
    {2: 0.5, 3: 0.6}
    """
    latest: list[float | None] = [None] * len(curves)
    found = {}
    for epoch in sorted({epoch for curve in curves for epoch in curve}):
        latest = [c.get(epoch, before) for c, before in zip(curves, latest, strict=True)]
        values = [value for value in latest if value is not None]
        if len(values) == len(curves):
            found[epoch] = round(mean(values), 12)
    return found


def ranks(values: Mapping[str, float]) -> dict[str, int]:
    """The place of each by size; equals share one.

    >>> ranks({"a": 0.5, "b": 0.7, "c": 0.5})
    {'a': 2, 'b': 1, 'c': 2}
    """
    rounded = {name: round(value, DIGITS) for name, value in values.items()}
    return {n: 1 + sum(other > value for other in rounded.values()) for n, value in rounded.items()}


class Settled(NamedTuple):
    """Since when an order has not changed.

    Attributes:
        order: the first epoch from which on every method has the place it has at the end.
        first: the first epoch from which on the same methods are first.
        last: the last epoch with a validation.
        before: the one before that; None if there was none.
    """

    order: int
    first: int
    last: int
    before: int | None

    @property
    def is_settled(self) -> bool:
        """Whether at least two validations in a row gave the order of the end."""
        return self.order < self.last


def settled(scores: Mapping[str, Curve]) -> Settled | None:
    """Since when the order of methods by ``scores`` is that of the end; None without a common one.

    A tie is a place of its own: the order changes when it begins and when it ends.

    Args:
        scores: method -> epoch -> value. A method has its last value until its next.

    >>> settled({"a": {1: 0.1, 2: 0.5, 3: 0.6}, "b": {1: 0.2, 2: 0.3, 3: 0.4}})
    Settled(order=2, first=2, last=3, before=2)
    """
    table = _side_by_side(scores)
    if not table:
        return None
    places = {epoch: ranks(values) for epoch, values in table.items()}
    leaders = {e: {n for n, rank in row.items() if rank == 1} for e, row in places.items()}
    epochs = list(table)
    before = epochs[-2] if len(epochs) > 1 else None
    return Settled(_unchanged_since(places), _unchanged_since(leaders), epochs[-1], before)


def _side_by_side(scores: Mapping[str, Curve]) -> dict[int, dict[str, float]]:
    """Epoch -> method -> value, from where all methods have one."""
    latest: dict[str, float] = {}
    found = {}
    for epoch in sorted({epoch for curve in scores.values() for epoch in curve}):
        latest |= {name: curve[epoch] for name, curve in scores.items() if epoch in curve}
        if len(latest) == len(scores):
            found[epoch] = {name: latest[name] for name in scores}
    return found


def _unchanged_since(states: Mapping[int, Any]) -> int:
    """The first epoch from which on the state is that of the end."""
    epochs = list(states)
    since = epochs[-1]
    for epoch in reversed(epochs):
        if states[epoch] != states[epochs[-1]]:
            break
        since = epoch
    return since


# --- from records -------------------------------------------------------------------------------


@dataclass(frozen=True)
class History:
    """The validations of some methods on the way, in one configuration of one place.

    Attributes:
        config: the configuration, the same for all.
        seeds: those that all methods finished.
        curves: method -> epoch -> mean validation over seeds, in 0..1.
        scores: method -> epoch -> the mean of each seed's best so far.
    """

    config: Config
    seeds: tuple[int, ...]
    curves: Mapping[str, Curve]
    scores: Mapping[str, Curve]

    @property
    def settled(self) -> Settled:
        """Since when the order of methods has not changed."""
        found = settled(self.scores)
        assert found is not None
        return found

    @property
    def height(self) -> float:
        """The mean over methods of their last score."""
        return mean([list(score.values())[-1] for score in self.scores.values()])


def histories(records: Iterable[Record]) -> list[History]:
    """The histories of one place: a configuration for which two methods or more kept curves, each.

    A seed that failed or kept no curve is left out for every method; a method without any seed is
    left out itself.

    Args:
        records: of one dataset and model.
    """
    runs: dict[Key, dict[str, dict[int, Curve]]] = {}
    configs: dict[Key, Config] = {}
    for record in records:
        key = key_of(record.config)
        configs.setdefault(key, record.config)
        for seed in record.seeds:
            curve = _curve(seed)
            if curve:
                runs.setdefault(key, {}).setdefault(record.init, {})[int(seed["seed"])] = curve
    found = []
    for key in sorted(runs, key=repr):
        methods = runs[key]
        common = set.intersection(*(set(seeds) for seeds in methods.values()))
        if len(methods) < 2 or not common:
            continue
        seeds = tuple(sorted(common))
        kept = {init: [run[seed] for seed in seeds] for init, run in methods.items()}
        found.append(
            History(
                configs[key],
                seeds,
                {init: averaged(curves) for init, curves in kept.items()},
                {init: averaged([best_so_far(c) for c in curves]) for init, curves in kept.items()},
            )
        )
    return found


def _curve(seed: Mapping[str, Any]) -> dict[int, float]:
    """A seed's curve, in order; empty if it failed or kept none."""
    if seed["status"] != OK:
        return {}
    points = [(int(epoch), valid) for epoch, valid in seed.get("curve") or ()]
    return {epoch: float(valid) for epoch, valid in sorted(points) if valid is not None}


def of_cells(cells: Sequence[Cell], records: Mapping[str, Sequence[Record]]) -> list[History]:
    """The histories of a table's column: only of methods that were searched alike.

    Args:
        cells: of one place.
        records: method -> its records there.
    """
    alike = [cell.init for cell in cells if cell.comparable]
    return histories(record for init in alike for record in records.get(init, ()))


def plain(place: Place, history: History) -> dict[str, Any]:
    """A history in plain types, values in percent."""
    found = history.settled
    return {
        "dataset": place.dataset,
        "model": place.model,
        "num_layers": place.layers,
        "config": dict(history.config),
        "seeds": list(history.seeds),
        "order_since": found.order,
        "first_since": found.first,
        "last": found.last,
        "methods": {
            init: {
                "epochs": list(history.curves[init]),
                "valid": [100 * value for value in history.curves[init].values()],
                "best": [100 * value for value in history.scores[init].values()],
            }
            for init in history.curves
        },
    }


# --- words --------------------------------------------------------------------------------------


def remark(place: Place, cells: Sequence[Cell], found: Sequence[History]) -> str | None:
    """What to say under a table of runs that were cut short; None of others, or without curves.

    Where several configurations were run, the one that settled last is spoken of.
    """
    partial = [cell.chosen.partial for cell in cells if cell.comparable and cell.chosen]
    if not found or not any(word.startswith("epochs ") for words in partial for word in words):
        return None
    latest = max((history.settled for history in found), key=lambda s: (s.order / s.last, s.first))
    many = "" if len(found) == 1 else f" (the last to settle of {len(found)} configurations)"
    count = min(len(history.scores) for history in found)
    line = f"{place}{many}: the order of {count} methods by validation "
    if latest.before is None:
        return line + f"was looked at only once, after epoch {latest.last}."
    if latest.is_settled:
        line += f"has been the same since epoch {latest.order} of {latest.last}"
    else:
        line += f"still changed in the last validation, epoch {latest.last}"
    if latest.first < latest.last:
        return f"{line} (first: since epoch {latest.first})."
    return f"{line} (so did the first)."

"""Whether the order of methods had settled when the runs were cut short.

A run of 15 epochs where the grid has 1600 says little about the final accuracy, but it may still
rank methods if their order has been the same for a while. A run's score after some epochs is its
best validation so far, which selects the weights that are tested; a method's score is the mean over
seeds. Methods are compared in one configuration that all of them ran, with the seeds that all of
them finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import NamedTuple, TypeVar

from virgo.experiments.sweep.records import Config, Record, SeedResult
from virgo.experiments.sweep.selection import OK, Key, key_of
from virgo.experiments.sweep.statistics import comparable, mean
from virgo.experiments.sweep.verdicts import Place, ResultCell

#: Epoch -> value, in order.
Curve = Mapping[int, float]
Name = TypeVar("Name", str, int)


def best_so_far(curve: Curve) -> dict[int, float]:
    """Return the largest value up to each epoch.

    >>> best_so_far({1: 0.2, 2: 0.1, 3: 0.4})
    {1: 0.2, 2: 0.2, 3: 0.4}
    """
    epochs = sorted(curve)
    return dict(zip(epochs, accumulate((curve[e] for e in epochs), max), strict=True))


def averaged(curves: Sequence[Curve]) -> dict[int, float]:
    """The mean over seeds at each epoch with a validation, once all seeds have a value.

    A seed that is not validated at an epoch, or has stopped before it, keeps its last value.

    Args:
        curves: one curve per seed.

    Returns:
        The mean by epoch.

    >>> averaged([{1: 0.2, 2: 0.4}, {2: 0.6, 3: 0.8}])
    {2: 0.5, 3: 0.6}
    """
    rows = _side_by_side(dict(enumerate(curves)))
    return {epoch: round(mean(list(row.values())), 12) for epoch, row in rows.items()}


def ranks(values: Mapping[str, float]) -> dict[str, int]:
    """Return the rank of each value, 1 for the largest; equal values share a rank.

    >>> ranks({"a": 0.5, "b": 0.7, "c": 0.5})
    {'a': 2, 'b': 1, 'c': 2}
    """
    rounded = {name: comparable(value) for name, value in values.items()}
    return {n: 1 + sum(other > value for other in rounded.values()) for n, value in rounded.items()}


class Settled(NamedTuple):
    """Since when an order has not changed.

    Attributes:
        order: the first epoch from which on every method has the place it has at the end.
        first: the first epoch from which on the leading methods are those of the end.
        last: the last epoch with a validation.
        before: the one before that; None if there was none.
    """

    order: int
    first: int
    last: int
    before: int | None

    @property
    def is_settled(self) -> bool:
        """Whether at least the last two validations gave the same order."""
        return self.order < self.last


def settled(scores: Mapping[str, Curve]) -> Settled | None:
    """Since when the order of methods by ``scores`` is that of the end.

    A tie is an order of its own: the order changes when it begins and when it ends.

    Args:
        scores: method -> epoch -> value. A method keeps its last value until its next.

    Returns:
        The epochs, or None if there is no epoch at which all methods have a value.

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


def _side_by_side(curves: Mapping[Name, Curve]) -> dict[int, dict[Name, float]]:
    """Epoch -> name -> last value, from the first epoch at which all have one."""
    latest: dict[Name, float] = {}
    rows = {}
    for epoch in sorted({epoch for curve in curves.values() for epoch in curve}):
        latest |= {name: curve[epoch] for name, curve in curves.items() if epoch in curve}
        if len(latest) == len(curves):
            rows[epoch] = {name: latest[name] for name in curves}
    return rows


def _unchanged_since(states: Mapping[int, object]) -> int:
    """The first epoch from which on the state is that of the end."""
    epochs = list(states)
    same = takewhile(lambda epoch: states[epoch] == states[epochs[-1]], reversed(epochs))
    return list(same)[-1]


# --- from records -------------------------------------------------------------------------------


@dataclass(frozen=True)
class History:
    """The validation curves of some methods in one configuration of one place.

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
        result = settled(self.scores)
        assert result is not None
        return result


def histories(records: Iterable[Record]) -> list[History]:
    """The histories of one place, one per configuration for which two or more methods kept curves.

    A seed that failed or kept no curve is left out for every method; a method without any seed is
    left out itself.

    Args:
        records: of one dataset and model.

    Returns:
        The histories.
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
    kept = []
    for key in sorted(runs, key=repr):
        methods = runs[key]
        common = set.intersection(*(set(seeds) for seeds in methods.values()))
        if len(methods) < 2 or not common:
            continue
        seeds = tuple(sorted(common))
        curves = {init: [run[seed] for seed in seeds] for init, run in methods.items()}
        means = {init: averaged(own) for init, own in curves.items()}
        scores = {init: averaged([best_so_far(c) for c in own]) for init, own in curves.items()}
        kept.append(History(configs[key], seeds, means, scores))
    return kept


def _curve(seed: SeedResult) -> dict[int, float]:
    """A seed's curve, in order; empty if it failed or kept none."""
    if seed["status"] != OK:
        return {}
    points = [(int(epoch), valid) for epoch, valid in seed.get("curve") or ()]
    return {epoch: float(valid) for epoch, valid in sorted(points) if valid is not None}


def of_cells(cells: Sequence[ResultCell], records: Mapping[str, Sequence[Record]]) -> list[History]:
    """The histories of a table's column, of the methods that were searched alike."""
    alike = [cell.init for cell in cells if cell.comparable]
    return histories(record for init in alike for record in records.get(init, ()))


def plain(place: Place, history: History) -> dict[str, object]:
    """A history in plain types, values in percent."""
    since = history.settled
    return {
        "dataset": place.dataset,
        "model": place.model,
        "num_layers": place.layers,
        "config": dict(history.config),
        "seeds": list(history.seeds),
        "order_since": since.order,
        "first_since": since.first,
        "last": since.last,
        "methods": {
            init: {
                "epochs": list(history.curves[init]),
                "valid": [100 * value for value in history.curves[init].values()],
                "best": [100 * value for value in history.scores[init].values()],
            }
            for init in history.curves
        },
    }


# --- remarks ------------------------------------------------------------------------------------


def remark(place: Place, cells: Sequence[ResultCell], histories: Sequence[History]) -> str | None:
    """The remark on a column whose runs were cut short, about the configuration that settled last.

    Args:
        place: the column.
        cells: its cells.
        histories: its histories.

    Returns:
        A sentence, or None if the runs were not cut short or kept no curves.
    """
    partial = [cell.chosen.partial for cell in cells if cell.comparable and cell.chosen]
    if not histories or not any(word.startswith("epochs ") for words in partial for word in words):
        return None
    latest = max(
        (history.settled for history in histories), key=lambda s: (s.order / s.last, s.first)
    )
    total = len(histories)
    many = "" if total == 1 else f" (the last to settle of {total} configurations)"
    count = min(len(history.scores) for history in histories)
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

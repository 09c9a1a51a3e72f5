"""What a study of a user's own is given: names, functions and grids, checked before it runs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from virgo.errors import OptionError, shown
from virgo.experiments.models import MODELS, from_recipe
from virgo.experiments.sweep.grids import GridCell, tables
from virgo.experiments.sweep.records import Config, canonical
from virgo.experiments.tasks.calling import imported
from virgo.experiments.tasks.own import UNTOUCHED
from virgo.experiments.tasks.settings import Settings
from virgo.rules import parse_method

#: More is a slip of the finger: the study would not end.
MOST_SEEDS = 100_000
Named = str | Callable[..., Any] | Any
Method = str | Callable[..., Any]
Grid = Mapping[str, Any] | Sequence[Mapping[str, Any]]


def is_known(name: str) -> bool:
    """Whether text names one of the paper's datasets or networks, not a function to import."""
    return ":" not in name or name.startswith("like:")


def configurations(grid: Grid) -> tuple[Config, ...]:
    """The configurations of a grid: every combination, or those of several grids in turn.

    Args:
        grid: a mapping from keys to a value or a list of values, or a sequence of them.

    Returns:
        The configurations, without repetitions.

    Raises:
        OptionError: an empty list of values, or something else than a mapping.

    >>> configurations([{"num_layers": 2, "lr": [0.1, 0.2]}, {"num_layers": 8, "lr": 0.01}])
    ({'num_layers': 2, 'lr': 0.1}, {'num_layers': 2, 'lr': 0.2}, {'num_layers': 8, 'lr': 0.01})
    """
    chosen: dict[str, Config] = {}
    for part in [grid] if isinstance(grid, Mapping) else grid:
        if not isinstance(part, Mapping):
            raise OptionError(f"grid: expected a mapping from keys to values, got {part!r}.")
        choices = {k: list(v) if isinstance(v, (list, tuple)) else [v] for k, v in part.items()}
        for key, values in choices.items():
            if not values:
                raise OptionError(f"grid: expected values for {key!r}, got none. Add one.")
        for picked in itertools.product(*choices.values()):
            config = dict(zip(choices, picked, strict=True))
            chosen[canonical(config)] = config
    return tuple(chosen.values())


def by_name(given: Any, what: str) -> dict[str, Any]:
    """Several by their names, or one by the name that it has."""
    if isinstance(given, Mapping) and set(given) != {"train", "valid", "test"}:
        if not given:
            raise OptionError(f"{what}: expected at least one, got none.")
        return {str(key): value for key, value in given.items()}
    if isinstance(given, (list, tuple)) and given and all(isinstance(v, str) for v in given):
        return {_name(value, what): value for value in given}
    return {_name(given, what): given}


def _name(value: Any, what: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, functools.partial):
        value = value.func
    return str(getattr(value, "__name__", what)).replace("<lambda>", what)


def read_function(value: str | Callable[..., Any] | None, where: str) -> Callable[..., Any] | None:
    function = imported(value, where) if isinstance(value, str) else value
    if function is not None and not callable(function):
        raise OptionError(f"{where}: expected a function, got {function!r}.")
    return function


def read_model(name: str, value: Any) -> Callable[..., Any]:
    if isinstance(value, str) and ":" not in value:
        if value not in MODELS:
            raise OptionError(
                f"model: expected module:function, a function or one of {', '.join(MODELS)}, got "
                f"{value!r}. Name one."
            )
        return functools.partial(_paper_model, value)
    function = read_function(value, f"model {name}")
    if function is None:
        raise OptionError("model: expected a function that makes the model, got None. Pass one.")
    return function


def _paper_model(kind: str, data: Any, in_channels: int, out_channels: int, config: Config) -> Any:
    """One of the paper's networks, sized by a configuration."""
    form = "pooled" if isinstance(data, Mapping) else "node"
    recipe = {"form": form, "in_channels": in_channels, "out_channels": out_channels}
    return from_recipe(kind, recipe, Settings.of(config).to_dict())


def read_methods(inits: Sequence[Named] | Mapping[str, Named]) -> dict[str, Method]:
    """Names and methods; a name is checked now, before hours of work."""
    if isinstance(inits, str) or callable(inits):
        inits = [inits]
    pairs = list(inits.items()) if isinstance(inits, Mapping) else [(None, v) for v in inits]
    methods: dict[str, Method] = {}
    for key, value in pairs:
        name = key or _name(value, f"init {len(methods)}")
        if name in methods:
            raise OptionError(f"inits: expected a name for each, got {name!r} twice. Rename one.")
        if isinstance(value, str) and ":" in value:
            value = imported(value, f"init {name}")
        elif isinstance(value, str) and value != UNTOUCHED:
            parse_method(value)
        elif not isinstance(value, str) and not callable(value):
            raise OptionError(
                f"inits: expected a method's name or a function, got {value!r}. See virgo methods."
            )
        methods[name] = value
    if not methods:
        raise OptionError("inits: expected at least one initialisation, got none.")
    return methods


def _names_a_file(name: str) -> bool:
    """And none of the paper's, whose records are divided otherwise."""
    visible = bool(name) and name.isprintable() and not set(name) & set("/\\ ")
    return visible and not name.startswith(("table", ".")) and name not in tables()


def check_study(
    name: str,
    configs: Sequence[Config],
    columns: Sequence[str],
    baseline: str | None,
    methods: Mapping[str, object],
    seeds: object,
) -> None:
    if not isinstance(seeds, int) or not 1 <= seeds <= MOST_SEEDS:
        raise OptionError(f"seeds: expected 1 to {MOST_SEEDS:,}, got {shown(seeds)}. Try 5.")
    if not isinstance(name, str) or not _names_a_file(name):
        raise OptionError(f"name: expected a word that names a file, got {name!r}. Choose another.")
    for column in columns:
        if not all(column in config for config in configs):
            keys = ", ".join(configs[0]) or "none"
            raise OptionError(f"columns: expected keys of the grid ({keys}), got {column!r}.")
    if baseline is not None and baseline not in methods:
        raise OptionError(
            f"baseline: expected one of {', '.join(methods)}, got {baseline!r}. Choose one."
        )


def study_cells(
    name: str,
    datasets: Sequence[str],
    models: Sequence[str],
    methods: Sequence[str],
    configs: Sequence[Config],
    columns: Sequence[str],
) -> list[GridCell]:
    parts: dict[tuple[tuple[str, Any], ...], list[Config]] = {}
    for config in configs:
        parts.setdefault(tuple((key, config[key]) for key in columns), []).append(config)
    return [
        GridCell(name, dataset, model, init, tuple(own), part, grid="own")
        for dataset in datasets
        for model in models
        for part, own in parts.items()
        for init in methods
    ]

"""The paper's grids, from ``grids.json``: tables, their cells, and the configurations of a cell."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from virgo.errors import OptionError
from virgo.experiments.sweep.records import Config, canonical
from virgo.rules import parse_method

#: What the initial weights depend on. Outermost, so that neighbouring trials can share them.
ARCHITECTURE = ("num_layers", "hidden_channels", "ngnn_type", "num_ngnn_layers")
_TRAINING = (
    "batch_size num_neighbors num_parts eval_step epochs patience strict halve_every dropout "
    "weight_decay lr"
)
#: The order of keys in a configuration, outermost first.
ORDER = (*ARCHITECTURE, *_TRAINING.split())
Part = tuple[tuple[str, Any], ...]
#: The grid of the paper's appendix, and what the epoch is chosen by unless said otherwise.
PRINTED, VALIDATION = "printed", "validation"


@dataclass(frozen=True)
class GridCell:
    """One cell of a table: its configurations are searched on their own.

    Attributes:
        table, dataset, model, init: the cell.
        configurations: what is searched.
        part: the keys that make a column of their own, such as the depth in "depth".
        grid: the name of the grid, for the records.
        protocol: what the epoch is chosen by: "validation", or "released" (on test).
    """

    table: str
    dataset: str
    model: str
    init: str
    configurations: tuple[Config, ...]
    part: Part = ()
    grid: str = PRINTED
    protocol: str = VALIDATION

    @property
    def name(self) -> str:
        """The name of its study in the storage, such as ``depth/cora/gcn/xavier/num_layers=4``."""
        parts = [f"{key}={value}" for key, value in self.part]
        parts += [] if self.protocol == VALIDATION else [f"protocol={self.protocol}"]
        return "/".join([self.table, self.dataset, self.model, self.init, *parts])


@dataclass(frozen=True)
class Grid:
    """The grid of some datasets and models: the paper's values, and ours where it has none."""

    datasets: tuple[str, ...]
    models: tuple[str, ...]
    paper: Mapping[str, list[Any]]
    ours: Mapping[str, list[Any]]
    note: str | None = None

    def configurations(self) -> tuple[Config, ...]:
        """Every combination, in a stable order, the architecture outermost."""
        choices = {**self.paper, **self.ours}
        keys = [key for key in ORDER if key in choices]
        assert len(keys) == len(choices), f"no order for {set(choices) - set(keys)}"
        combinations = itertools.product(*(choices[key] for key in keys))
        return tuple(_fit(dict(zip(keys, values, strict=True))) for values in combinations)


def _fit(config: dict[str, Any]) -> Config:
    """One number of neighbours per layer; further layers repeat the last."""
    listed = config.get("num_neighbors")
    if isinstance(listed, list):
        depth = config["num_layers"]
        config["num_neighbors"] = (listed + [listed[-1]] * depth)[:depth]
    return config


@cache
def _tables() -> dict[str, Any]:
    text = Path(__file__).with_name("grids.json").read_text(encoding="utf-8")
    raw: dict[str, Any] = json.loads(text)["tables"]
    return raw


def tables() -> tuple[str, ...]:
    """The names of the tables: table1, table2, table3, depth."""
    return tuple(_tables())


def _table(name: str) -> Any:
    if name not in _tables():
        raise OptionError(
            f"table: expected one of {', '.join(_tables())}, got {name!r}. Choose one."
        )
    return _tables()[name]


@cache
def grids(table: str, name: str = PRINTED) -> tuple[Grid, ...]:
    """The grids of one table in the paper's order; those of a name come first."""
    named = _table(table).get("named", {})
    if name != PRINTED and name not in named:
        raise OptionError(
            f"--grid: expected one of {', '.join([PRINTED, *named])} for {table}, got {name!r}. "
            f"Choose one."
        )
    return tuple(
        Grid(
            tuple(raw["datasets"]),
            tuple(raw["models"]),
            raw["paper"],
            raw.get("ours", {}),
            raw.get("note"),
        )
        for raw in [*named.get(name, []), *_table(table)["grids"]]
    )


def names(table: str) -> tuple[str, ...]:
    """Return the names of a table's grids.

    >>> names("table1"), names("table3")
    (('printed', 'reproduces'), ('printed', 'released'))
    """
    return (PRINTED, *_table(table).get("named", {}))


def grid(table: str, dataset: str, model: str, name: str = PRINTED) -> Grid:
    """The grid of one dataset and model.

    Args:
        table: a table.
        dataset: one of its datasets; a generated one has the grid of what it stands for.
        model: one of its models.
        name: the grid's name; a dataset that it leaves out has the printed grid.

    Returns:
        The grid.

    Raises:
        OptionError: if the table has no such dataset or model.

    >>> len(grid("table1", "cora", "gcn").configurations())
    144
    """
    base = base_name(dataset)
    for candidate in grids(table, name):
        if base in candidate.datasets and model in candidate.models:
            return candidate
    if base not in datasets(table):
        _reject("dataset", datasets(table), dataset, table)
    _reject("model", models(table, dataset), model, f"{table} on {dataset}")


def middle(dataset: str, model: str) -> tuple[str, Config] | None:
    """The paper's hyper-parameters for a pair: the middle of each list of its printed grid.

    Args:
        dataset: a dataset, or ``like:`` one.
        model: a model.

    Returns:
        The table and the configuration; None for a pair that the paper does not have. Of an even
        number of values it is the larger of the two in the middle.

    >>> table, config = middle("cora", "gcn")
    >>> table, config["num_layers"], config["lr"], config["dropout"]
    ('table1', 3, 0.01, 0.5)
    >>> middle("ogbl-ddi", "gcn")[1]["batch_size"], middle("cora", "sage")
    (32768, None)
    """
    for table in tables():
        if _table(table)["results"] is None or model not in models(table, dataset):
            continue
        own = grid(table, dataset, model)
        values = {key: _middle(choices) for key, choices in {**own.paper, **own.ours}.items()}
        return table, _fit({key: values[key] for key in ORDER if key in values})
    return None


def _middle(choices: Sequence[Any]) -> Any:
    is_sorted = all(isinstance(value, (int, float)) for value in choices)
    return (sorted(choices) if is_sorted else list(choices))[len(choices) // 2]


_grid = grid  # the option of the same name hides it in `cells`


def base_name(dataset: str) -> str:
    """Return the dataset that a generated one stands for, or the dataset itself.

    >>> base_name("like:cora@0.1"), base_name("cora")
    ('cora', 'cora')
    """
    return dataset.removeprefix("like:").partition("@")[0] if dataset[:5] == "like:" else dataset


def datasets(table: str) -> tuple[str, ...]:
    """The datasets of a table."""
    return tuple(dict.fromkeys(name for grid in grids(table) for name in grid.datasets))


def models(table: str, dataset: str | None = None) -> tuple[str, ...]:
    """The models of a table, or of one dataset in it."""
    return tuple(
        dict.fromkeys(
            model
            for grid in grids(table)
            if dataset is None or base_name(dataset) in grid.datasets
            for model in grid.models
        )
    )


def inits(table: str) -> tuple[str, ...]:
    """The methods that a table compares unless others are asked for."""
    return tuple(_table(table)["inits"])


def cells(
    table: str,
    dataset: Sequence[str] | None = None,
    model: Sequence[str] | None = None,
    inits: Sequence[str] | None = None,
    *,
    where: Mapping[str, str] | None = None,
    limit: int | None = None,
    overrides: Config | None = None,
    grid: str = PRINTED,
    protocol: str = VALIDATION,
) -> list[GridCell]:
    """The cells of a table, datasets outermost, each with its configurations.

    Args:
        table: the table.
        dataset: some of the table's datasets, or ``like:`` one of them.
        model: some of its models; a dataset without any of them is left out.
        inits: methods with options after a plus.
        where: only configurations with these values, given as text: ``{"lr": "0.01"}``.
        limit: at most this many configurations per cell: the same ones for every method, spread
            over the grid; those of a smaller limit are among those of a larger one.
        overrides: values that replace the grid's, such as ``{"epochs": 10}``.
        grid: the name of the grid, one of :func:`names`.
        protocol: what the epoch is chosen by, for the name of the cell and the records.

    Returns:
        At least one cell.

    Raises:
        OptionError: if a name or value is not the table's.

    >>> cells("depth", ["cora"], inits=["xavier"])[1].name
    'depth/cora/gcn/xavier/num_layers=4'
    """
    if limit is not None and limit < 1:
        raise OptionError(f"--limit: expected at least 1 configuration, got {limit}.")
    methods = dict.fromkeys(_known_init(init, table) for init in inits or _table(table)["inits"])
    chosen: list[GridCell] = []
    for name in dict.fromkeys(dataset or datasets(table)):
        if base_name(name) not in datasets(table):
            _reject("dataset", datasets(table), name, table)
        for kind in _known_models(table, name, model):
            configs = matching(_grid(table, name, kind, grid), where or {}, f"{name}, {kind}")
            parts = _split(table, _overridden(configs, overrides or {}))
            chosen += [
                GridCell(table, name, kind, init, tuple(_limited(own, limit)), part, grid, protocol)
                for init in methods
                for part, own in parts.items()
            ]
    if not chosen:
        _reject("model", models(table), ", ".join(model or ()), table)
    return chosen


def cell_keys(table: str) -> tuple[str, ...]:
    """The keys of a configuration that make a cell of their own, such as the depth in "depth"."""
    return tuple(_table(table).get("cells_by", []))


def _split(table: str, configs: Sequence[Config]) -> dict[Part, list[Config]]:
    """The configurations by the keys that make a cell of its own, if any."""
    keys = cell_keys(table)
    parts: dict[Part, list[Config]] = {}
    for config in configs:
        parts.setdefault(tuple((key, config[key]) for key in keys), []).append(config)
    return parts


def matching(grid: Grid, where: Mapping[str, str], cell: str) -> Sequence[Config]:
    """The configurations of a grid with these values.

    Args:
        grid: the grid.
        where: values as text, by key.
        cell: what errors call it.

    Returns:
        The configurations, in the grid's order.

    Raises:
        OptionError: a key or value that the grid does not have.
    """
    configs: Sequence[Config] = grid.configurations()
    for key, text in where.items():
        values = list(dict.fromkeys(_text(config[key]) for config in configs if key in config))
        if not values:
            raise OptionError(
                f"--where: expected one of {', '.join(configs[0])} for {cell}, got {key!r}."
            )
        wanted = next((v for v in values if _same(v, text)), None)
        if wanted is None:
            raise OptionError(
                f"--where {key}: expected one of {', '.join(values)} for {cell}, got {text!r}."
            )
        configs = [config for config in configs if _text(config[key]) == wanted]
    return configs


def has_values(config: Config, where: Mapping[str, str]) -> bool:
    """Return whether a configuration has these values, given as text.

    >>> has_values({"lr": 0.001, "dropout": 0.5}, {"lr": "1e-3"})
    True
    """
    return all(key in config and _same(_text(config[key]), v) for key, v in where.items())


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _same(first: str, second: str) -> bool:
    """Equal as numbers if both are: 0.001 and 1e-3."""
    try:
        return float(first) == float(second)
    except ValueError:
        return first == second


def _overridden(configs: Sequence[Config], overrides: Config) -> list[Config]:
    """With other values; configurations that become equal are merged."""
    changed = [{**config, **overrides} for config in configs]
    return list({canonical(config): config for config in changed}.values())


def _limited(configs: list[Config], limit: int | None) -> list[Config]:
    """A fixed choice by hash, in the grid's order."""
    if limit is None or limit >= len(configs):
        return configs
    picked = sorted(configs, key=lambda c: hashlib.sha256(canonical(c).encode()).digest())[:limit]
    return [config for config in configs if config in picked]


def _known_models(table: str, dataset: str, asked: Sequence[str] | None) -> list[str]:
    for name in asked or ():
        if name not in models(table):
            _reject("model", models(table), name, table)
    return [name for name in models(table, dataset) if not asked or name in asked]


def _known_init(text: str, table: str) -> str:
    """The canonical name of a method; options after a plus are kept."""
    try:
        name, _ = parse_method(text)
    except OptionError:
        _reject("init", inits(table), text, table)
    return "+".join([name, *text.split("+")[1:]])


def _reject(what: str, choices: Sequence[str], got: str, where: str) -> NoReturn:
    raise OptionError(
        f"--{what}: expected one of {', '.join(choices)} for {where}, got {got!r}. Choose one."
    )

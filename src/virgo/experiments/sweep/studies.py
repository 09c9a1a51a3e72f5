"""The same study on a user's own data and models: grids, seeds, paired tests and tables.

:func:`study` stands on the engine of the paper's tables: it can be stopped and started again, and a
seed that is done is never run twice.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from virgo.errors import OptionError, VirgoWarning, named_options
from virgo.experiments.sweep.exporting import collect, export
from virgo.experiments.sweep.records import Config, Record, canonical
from virgo.experiments.sweep.running import Progress, run
from virgo.experiments.sweep.selection import Space
from virgo.experiments.sweep.storage import open_storage
from virgo.experiments.sweep.study_inputs import (
    Grid,
    Named,
    by_name,
    check_study,
    configurations,
    read_function,
    read_methods,
    read_model,
    study_cells,
)
from virgo.experiments.sweep.study_runner import OwnLoader, OwnRunner, rehearse, source_of
from virgo.experiments.sweep.tables import ResultsTable, build_study
from virgo.experiments.sweep.worker import Sweep


@dataclass(frozen=True)
class StudyResult:
    """What a study found.

    Attributes:
        table: test values by method and column, with ranks and paired tests; ``print`` shows it,
            ``table.save(path)`` writes markdown, LaTeX, CSV, HTML, JSON or a figure.
        records: one per configuration, with every seed.
        path: the file with the records.
        failed: messages of seeds without a number, and how many had each.
    """

    table: ResultsTable
    records: tuple[Record, ...]
    path: Path
    failed: Mapping[str, int]

    def __str__(self) -> str:
        return str(self.table)


@named_options
def study(
    data: Named | Mapping[str, Named],
    model: Named | Mapping[str, Named],
    inits: Sequence[Named] | Mapping[str, Named] = ("auto", "xavier"),
    grid: Grid | None = None,
    *,
    name: str = "study",
    seeds: int = 5,
    columns: Sequence[str] = (),
    train: str | Callable[..., object] | None = None,
    baseline: str | None = None,
    screen: tuple[int, int] | None = None,
    storage: str | Path | None = None,
    out: str | Path = "out",
    jobs: int = 1,
    curves: bool = False,
    retry_failed: bool = False,
    root: str | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
) -> StudyResult:
    """Compare initialisations on your own data and model.

    Every configuration of the grid is trained with every initialisation and all seeds; of each cell
    the configuration with the best mean validation is chosen and its test values are reported.
    Seed ``s`` of two methods has the same data, batches and dropout, so tests are paired by seed.

    Args:
        data: a function that returns the data, or the data itself, ``"module:function"``, or a
            name of ``virgo data list``; several as a mapping from names. One ``Data`` with ``y``,
            ``train_mask``, ``val_mask`` and ``test_mask``, or lists of graphs ``{"train": ...,
            "valid": ..., "test": ...}``; with ``train`` anything.
        model: a function or class that makes the model, ``"module:name"``, or a name of the
            paper's; several as a mapping. It is called with the grid's keys that it names, and
            with ``data``, ``in_channels``, ``out_channels`` and ``seed`` where it names them.
        inits: methods of :func:`virgo.methods` with options after a plus, ``"default"`` to leave
            the model as it is made, ``"module:function"``, or functions ``init(model, data,
            seed)``; a mapping gives them names.
        grid: a mapping from keys to lists of values, or several of them, which are not multiplied
            with each other. Training takes ``lr``, ``weight_decay``, ``epochs``, ``patience``,
            ``batch_size``, ``strict``, ``halve_every``, ``eval_step`` and ``max_grad_norm``;
            everything else is the model's.
        name: of the study, its storage and its file.
        seeds: how many each configuration gets.
        columns: grid keys that are not searched over: each of their values has its own column.
        train: ``train(model, data, config, seed)`` that returns ``{"valid": ..., "test": ...}``,
            the higher the better and as fractions, since tables show percent; in place of Adam
            with early stopping by validation accuracy.
        baseline: the method that the others are compared with; by default the first classic one.
        screen: ``(K, M)``: all configurations with K seeds, the best M of a cell with all.
        storage: an SQLite file or a PostgreSQL URL; ``out/NAME.db`` by default.
        out: the folder for the records.
        jobs: worker processes; with more than one, functions have to be importable.
        curves: whether records keep validation curves.
        retry_failed: run seeds again that failed or ran out of memory.
        root: where the paper's datasets are, for data given by name.
        report: called now and then with the progress.

    Returns:
        The table and the records.

    Raises:
        OptionError: for something that cannot be run, before anything is.

    >>> import virgo
    >>> from torch_geometric.nn import GCN
    >>> graph = virgo.data.load("like:cora@0.1").data
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = study(graph, GCN, ["auto", "xavier"], seeds=2, out=folder, grid={
    ...         "hidden_channels": 16, "num_layers": 2, "lr": [0.01, 0.03], "epochs": 5})
    >>> [(record.init, record.config["lr"], len(record.seeds)) for record in result.records]
    [('auto', 0.01, 2), ('auto', 0.03, 2), ('xavier', 0.01, 2), ('xavier', 0.03, 2)]
    """
    datasets = by_name(data, "data")
    models = {key: read_model(key, value) for key, value in by_name(model, "model").items()}
    methods = read_methods(inits)
    configs = configurations(grid or {})
    sources = {key: source_of(key, value) for key, value in datasets.items()}
    runner = OwnRunner(models, methods, read_function(train, "train"), sources)
    loader = OwnLoader(datasets)
    check_study(name, configs, columns, baseline, methods, seeds)
    cells = study_cells(name, list(datasets), list(models), list(methods), configs, columns)
    where = str(storage) if storage is not None else str(Path(out) / f"{name}.db")
    orders = Sweep(
        tuple(cells), where, seeds, screen, root=root, curves=curves, runner=runner, loader=loader,
        retry=retry_failed,
    )  # fmt: skip
    if jobs > 1:
        _check_importable(orders)
    rehearse(cells, loader, runner, root)
    _run(orders, jobs, report, Path(out))
    codes = {(c.dataset, c.model, c.init): str(runner.facts(c)["code"]) for c in cells}
    return _result(orders, name, list(methods), columns, baseline, configs, Path(out), codes)


def _run(orders: Sweep, jobs: int, report: Callable[[Progress], None], out: Path) -> None:
    """Run it; one that is stopped leaves records, too, which alone can make another storage."""
    try:
        run(orders, jobs, report)
    except KeyboardInterrupt:
        storage = open_storage(orders.storage, create=False)
        try:
            export(storage, orders.cells[0].table, out)
        finally:
            storage.close()
        raise


def _check_importable(sweep: Sweep) -> None:
    try:
        pickle.dumps(sweep)
    except Exception as error:
        raise OptionError(
            f"jobs: expected functions that worker processes can import, got {error}. Define them "
            f"at the top of a module, or take jobs=1."
        ) from error


def _result(
    orders: Sweep,
    name: str,
    methods: Sequence[str],
    columns: Sequence[str],
    baseline: str | None,
    configs: Sequence[Config],
    out: Path,
    codes: Mapping[tuple[str, str, str], str],
) -> StudyResult:
    storage = open_storage(orders.storage, create=False)
    try:
        wanted = {canonical(config) for config in configs}
        places = {(cell.dataset, cell.model) for cell in orders.cells}
        records = tuple(
            record
            for record in collect(storage, name)
            if canonical(record.config) in wanted
            and (record.dataset, record.model) in places
            and record.init in methods
        )
        path, _ = export(storage, name, out)
    finally:
        storage.close()
    failed: dict[str, int] = {}
    for record in records:
        for seed in record.seeds:
            if seed["status"] != "ok":
                words = seed.get("message") or seed["status"]
                failed[words] = failed.get(words, 0) + 1
    space = Space(tuple(configs), orders.seeds)
    warn_of_changes(records, codes)
    table = build_study(name, records, methods, columns, space, baseline)
    ordered = sorted(records, key=lambda record: record.identity)
    return StudyResult(table, tuple(ordered), path, failed)


def warn_of_changes(records: Sequence[Record], codes: Mapping[tuple[str, str, str], str]) -> None:
    """Warn where a record was made by other functions of the user's, or on other data.

    Args:
        records: of the study.
        codes: the hash of functions and data as they are now, by dataset, model and method.
    """
    places = [(record.dataset, record.model, record.init) for record in records]
    old = [
        place
        for record, place in zip(records, places, strict=True)
        if record.code not in (None, codes[place])
    ]
    if old:
        warnings.warn(
            f"study: expected results of your functions and data as they are now, got "
            f"{len(old)} of {len(records)} records of others, the first for {', '.join(old[0])}. "
            f"Give the study another name, or delete its storage, to run everything again.",
            VirgoWarning,
            stacklevel=4,
        )

"""``virgo sweep TABLE | status | export``: run the paper's grids, and show their progress.

Without a table it is a study of a user's own: :mod:`virgo.cli.studying`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from virgo.cli.arguments import (
    Subparsers,
    add_command,
    add_device,
    add_root,
    chosen_compute,
    key_values,
)
from virgo.cli.progress import LogLines, errors, note
from virgo.cli.signals import Interruption
from virgo.cli.studying import OUT, STORAGE, add_study, own_study
from virgo.errors import OptionError
from virgo.report.text import text_table

if TYPE_CHECKING:
    from virgo.experiments.sweep.running import Progress as Done
    from virgo.experiments.sweep.storage import Storage

#: Where records that documents quote are; written only by ``--publish``.
PUBLISHED = Path("results")
_ABOUT = {
    "table1": "node classification, the paper's Table 1",
    "table2": "link prediction, the paper's Table 2",
    "table3": "graph classification, the paper's Table 3",
    "depth": "a study of depth, 2 to 64 layers",
}


# --- commands -----------------------------------------------------------------------------------


def sweep(args: argparse.Namespace) -> int:
    """Run what is missing of a table, and export its records."""
    _need_optuna()
    from virgo.experiments.sweep.estimates import estimate
    from virgo.experiments.sweep.grids import cells, grid
    from virgo.experiments.sweep.running import run
    from virgo.experiments.sweep.worker import RELEASED, Sweep

    protocol, name = args.protocol, args.grid or _usual_grid(args)
    overrides = {} if args.epochs is None else {"epochs": args.epochs}
    wanted = cells(
        args.table,
        args.dataset,
        args.model,
        args.init,
        where=key_values(args.where),
        limit=args.limit,
        overrides={**overrides, **({"strict": True} if args.strict else {})},
        grid=name,
        protocol=protocol,
    )
    orders = Sweep(
        tuple(wanted),
        str(args.storage),
        args.seeds,
        read_screen(args),
        args.grace,
        str(args.root) if args.root else None,
        args.curves or protocol == "released",  # whose epoch is chosen by the curves
        retry=args.retry_failed,
        compute=chosen_compute(args),
        **{"runner": RELEASED} if protocol == "released" else {},
        **{name: vars(args)[name] for name in ("runner", "loader") if name in args},
    )
    for dataset, model in dict.fromkeys((cell.dataset, cell.model) for cell in wanted):
        remark = grid(args.table, dataset, model, name).note
        if remark:
            note(f"{dataset}, {model}: {remark}", style="dim")
    note(f"{args.table}: {estimate(orders)}", style="dim")
    if args.dry_run:
        return 0
    code = 0
    try:
        with bar(args.table) as show:
            done = run(orders, args.jobs, show)
    except KeyboardInterrupt as error:
        interruption = Interruption.of(error)
        with suppress(OSError):  # a terminal that was closed
            note(interruption.words("sweep"))
        code = interruption.code
    else:
        failed = f", {done.failed} without a number" if done.failed else ""
        print(f"{args.table}: {done.seeds} seeds of {len(wanted)} cells{failed}")
    _write(args.table, args)
    return code


def _usual_grid(args: argparse.Namespace) -> str:
    """The printed grid, or the released script's own with its protocol."""
    if args.protocol == "validation":
        return "printed"
    if args.table != "table3":
        raise OptionError(
            f"--protocol: expected validation for {args.table}, got released, which is that of the "
            f"TU folds. Take it with: virgo sweep table3 --dataset imdb-b imdb-m collab."
        )
    return "released"


def _need_optuna() -> None:
    """Import first the module that names a missing extra; the parser works without it."""
    import virgo.experiments.sweep.storage  # noqa: F401


def read_screen(args: argparse.Namespace) -> tuple[int, int] | None:
    """``--screen K --top M``, or neither."""
    if (args.screen is None) != (args.top is None):
        raise OptionError(
            f"--screen, --top: expected both or neither, got --screen {args.screen} "
            f"--top {args.top}. --screen K --top M runs all with K seeds, the best M with all."
        )
    return None if args.screen is None else (args.screen, args.top)


@contextmanager
def _opened(args: argparse.Namespace) -> Iterator[Storage]:
    from virgo.experiments.sweep.storage import open_storage, reading

    storage = open_storage(args.storage, create=False)
    try:
        with reading(args.storage):
            yield storage
    finally:
        storage.close()


def _write(table: str, args: argparse.Namespace) -> None:
    from virgo.experiments.sweep.exporting import collect, export

    with _opened(args) as storage:
        folder = PUBLISHED if args.publish else args.out
        path, count = export(storage, table, folder)
        remarks = {(r.dataset, r.generated) for r in collect(storage, table) if r.generated}
    print(f"wrote {count} configurations to {path}")
    for dataset, remark in sorted(remarks):
        print(f"{dataset}: {remark}")


def status(args: argparse.Namespace) -> int:
    """Print the progress of each cell."""
    _need_optuna()
    from virgo.experiments.sweep import exporting

    if args.table is not None:
        _named(args)
    with _opened(args) as storage:
        cells = exporting.status(storage, args.table)
    rows = [
        (
            cell.cell,
            f"{cell.done}/{cell.asked}",
            str(cell.seeds),
            str(cell.running),
            str(cell.failed),
            "-" if cell.best is None else f"{100 * cell.best:.2f}",
            "generated" if cell.generated else "",
        )
        for cell in cells
    ]
    header = ("cell", "configurations", "seeds", "running", "failed", "best validation", "data")
    shown = len(header) if any(row[-1] for row in rows) else len(header) - 1
    lines = text_table(header[:shown], [row[:shown] for row in rows])
    print("\n".join(lines) if rows else "nothing was run in this storage yet")
    return 0


def export(args: argparse.Namespace) -> int:
    """Write the records of one table or study, or of all in the storage."""
    _need_optuna()
    for name in _named(args):
        _write(name, args)
    return 0


def _named(args: argparse.Namespace) -> list[str]:
    """The table or study that was asked for, or all that the storage has."""
    from virgo.experiments.sweep.exporting import tables_in

    with _opened(args) as storage:
        names = tables_in(storage)
    if args.table is None or args.table in names:
        return names if args.table is None else [args.table]
    if args.table in _ABOUT:
        return [args.table]
    raise OptionError(
        f"table: expected one of {', '.join(dict.fromkeys([*names, *_ABOUT]))}, got "
        f"{args.table!r}. Choose one, or name its --storage: a study of your own has OUT/NAME.db."
    )


def restore(args: argparse.Namespace) -> int:
    """Put exported records into a storage, where they count as run."""
    _need_optuna()
    from virgo.experiments.sweep import records, restoring
    from virgo.experiments.sweep.storage import open_storage

    wanted = [args.table] if args.table else list(_ABOUT)
    files = [args.records]
    if args.records.is_dir():
        files = [file for name in wanted if (file := args.records / f"{name}.jsonl").is_file()]
    known = [record for file in files for record in records.read(file)]
    known = [record for record in known if args.table in (None, record.table)]
    if not known:
        _no_records(args.records, wanted)
    names = {record.table for record in known}
    own = names - set(_ABOUT)
    if args.storage is None and own and len(names) > 1:
        raise OptionError(
            f"--storage: expected one for {', '.join(sorted(names))}, got none. Name it, or "
            f"restore each by its name: a study of your own has OUT/NAME.db."
        )
    usual = files[0].with_name(f"{min(names)}.db") if own else STORAGE
    storage = open_storage(args.storage or usual)
    try:
        count = restoring.restore(storage, known)
    finally:
        storage.close()
    shown = "" if args.storage else f" in {usual}"
    print(f"restored {count} configurations{shown}")
    return 0


def _no_records(where: Path, wanted: list[str]) -> None:
    """Refuse a file or folder without what was asked for, and name what can be asked for."""
    others = sorted(file.stem for file in where.glob("*.jsonl")) if where.is_dir() else []
    others = [name for name in others if name not in wanted]
    advice = "Name the folder that --out or --publish wrote to."
    if others:
        advice = (
            f"Records of a study of your own are restored by its name: virgo sweep restore "
            f"{others[0]} --records {where}."
        )
    raise OptionError(
        f"--records: expected records of {', '.join(wanted)}, got none in {where}. {advice}"
    )


# --- the bar ------------------------------------------------------------------------------------


class _Bar(Progress):
    """A progress bar with the best results so far below it."""

    best: Table | None = None

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.best is not None:
            yield self.best


@contextmanager
def bar(title: str) -> Iterator[Callable[[Done], None]]:
    """A progress bar, or log lines; yields what shows a sweep's progress."""
    if not errors.is_interactive:
        with LogLines(f"{title}: starting") as lines:
            yield lambda done: lines.update(
                f"{title}: {done.seeds} of {done.total} seeds {_pace(done)}".rstrip()
            )
        return
    shown = _Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} seeds {task.fields[pace]}"),
        console=errors,
        transient=True,
    )
    with shown:
        task = shown.add_task(title, total=1, pace="")

        def show(done: Done) -> None:
            shown.best = _best(done)
            shown.update(task, completed=done.seeds, total=done.total, pace=_pace(done))

        yield show


def _pace(done: Done) -> str:
    """Throughput and time left, once a seed is done."""
    if done.rate is None:
        return ""
    left = timedelta(seconds=round((done.total - done.seeds) / done.rate * 3600))
    return f"{done.rate:,.0f} per hour, {left} left"


def _best(done: Done) -> Table | None:
    """The best mean validation by method, one column per dataset and model."""
    if not done.best:
        return None
    columns = list(dict.fromkeys((dataset, model) for dataset, model, _ in done.best))
    table = Table("best validation", *(f"{d} {m}" for d, m in columns), box=None, style="dim")
    for init in dict.fromkeys(init for _, _, init in done.best):
        values = [done.best.get((*column, init)) for column in columns]
        table.add_row(Text(init), *("" if v is None else f"{100 * v:.2f}" for v in values))
    return table


# --- options ------------------------------------------------------------------------------------


def add_to(commands: Subparsers) -> None:
    """Add ``virgo sweep`` and its commands."""
    top = add_command(
        commands,
        "sweep",
        None,
        "Runs every configuration of a table's grid with every method and ten seeds. It can be "
        "stopped, killed and started again, on several machines at once with a PostgreSQL URL: "
        "finished seeds are never run again.",
        "virgo sweep table1 --dataset cora --init xavier virgo-backward --limit 20",
        "virgo sweep status",
        "virgo sweep restore --records results --storage new.db",
        "virgo sweep table1 --storage postgresql://user@host/sweeps",
        "virgo sweep --dataset my_pkg:make_data --model my_pkg:make_model --init auto xavier "
        "--grid my.toml",
    )
    add_study(top)
    top.set_defaults(run=own_study, table=None)
    kinds = top.add_subparsers(metavar="table1|table2|table3|depth|status|export|restore")
    for name, about in _ABOUT.items():
        command = kinds.add_parser(name, help=about, description=about)
        _add_options(command)
        command.set_defaults(run=sweep, table=name)
    status_command = kinds.add_parser("status", help="progress of each cell")
    export_command = kinds.add_parser("export", help="write the records to files")
    restore_command = kinds.add_parser(
        "restore", help="make a storage from exported records, after it was lost or damaged"
    )
    restore_command.add_argument(
        "--records", type=Path, default=OUT, help="their folder or file (default %(default)s)"
    )
    for command, run in (
        (status_command, status),
        (export_command, export),
        (restore_command, restore),
    ):
        command.add_argument(
            "table", nargs="?", help="one table, or the name of a study of your own (default: all)"
        )
        _add_storage(command)
        command.set_defaults(run=run)
    restore_command.set_defaults(storage=None)
    _add_out(export_command)


def _add_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--dataset", nargs="+", help="datasets, or like:NAME for a generated one (default: all)")
    add("--model", nargs="+", help="some of the table's models (default: all)")
    add("--init", nargs="+", help="methods, with options after a plus (default: the table's)")
    add("--seeds", type=int, default=10, help="seeds per configuration (default 10)")
    add(
        "--limit",
        type=int,
        help="configurations per cell, the same for every method, spread over the grid (default: "
        "the whole grid)",
    )
    add(
        "--where",
        nargs="+",
        metavar="KEY=VALUE",
        help="only the grid's configurations with these values, e.g. batch_size=32768",
    )
    add("--screen", type=int, metavar="K", help="run all configurations with K seeds")
    add("--top", type=int, metavar="M", help="then the best M of a cell with all seeds")
    add("--epochs", type=int, help="epochs instead of the grid's")
    add(
        "--grid",
        choices=("printed", "reproduces", "released"),
        help="printed: the paper's appendix; reproduces: what comes closest to its numbers; "
        "released: the released script's own (default printed)",
    )
    add(
        "--protocol",
        choices=("validation", "released"),
        default="validation",
        help="released: of the TU folds, no validation, the epoch is chosen on test (default "
        "%(default)s)",
    )
    add(
        "--strict",
        action="store_true",
        help="an epoch counts as better only if it is (released script); by default one that is "
        "as good does",
    )
    add("--retry-failed", action="store_true", help="run seeds again that failed")
    add("--dry-run", action="store_true", help="only print what is to run and the hours")
    add("--curves", action="store_true", help="keep validation curves in the records")
    add(
        "--jobs",
        type=int,
        help="worker processes (default: one per core; 0 or 1: none); on GPUs, per GPU (default 1)",
    )
    add_device(command, training=True)
    _add_storage(command)
    add(
        "--grace",
        type=int,
        default=60,
        help="seconds without a heartbeat after which a worker on another machine counts as dead "
        "(default 60)",
    )
    add_root(command)
    _add_out(command)
    for option in ("--runner", "--loader"):  # for tests and benchmarks
        add(option, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def _add_out(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--out", type=Path, default=OUT, help="folder of the records (default %(default)s)"
    )
    command.add_argument(
        "--publish", action="store_true", help="write to results/, which documents quote"
    )


def _add_storage(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--storage",
        default=STORAGE,
        help="an SQLite file, or postgresql://... for many machines (default %(default)s)",
    )

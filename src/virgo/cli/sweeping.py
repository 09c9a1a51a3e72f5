"""``virgo sweep TABLE | status | export``: run the paper's grids, and see how far they are."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from virgo.cli.progress import errors
from virgo.report.text import text_table

if TYPE_CHECKING:
    from virgo.experiments.sweep.running import Progress as Done

STORAGE, OUT = "out/sweeps.db", Path("results")
_ABOUT = {
    "table1": "node classification, the paper's Table 1",
    "table2": "link prediction, the paper's Table 2",
    "table3": "graph classification, the paper's Table 3",
    "depth": "our study of depth, 2 to 64 layers",
}


# --- commands -----------------------------------------------------------------------------------


def sweep(args: argparse.Namespace) -> int:
    _need_optuna()
    from virgo.experiments.sweep.grids import cells, grid
    from virgo.experiments.sweep.running import run
    from virgo.experiments.sweep.worker import Sweep

    overrides = {} if args.epochs is None else {"epochs": args.epochs}
    wanted = cells(
        args.table,
        args.dataset,
        args.model,
        args.init,
        where=_pairs(args.where),
        limit=args.limit,
        overrides=overrides,
    )
    orders = Sweep(
        tuple(wanted),
        str(args.storage),
        args.seeds,
        _screen(args),
        args.grace,
        str(args.root) if args.root else None,
        args.curves,
        **_hidden(args),
    )
    for name, model in dict.fromkeys((cell.dataset, cell.model) for cell in wanted):
        note = grid(args.table, name, model).note
        if note:
            errors.print(f"{name}, {model}: {note}", style="dim", highlight=False)
    code = 0
    try:
        with _bar(args.table) as show:
            done = run(orders, args.jobs, show)
    except KeyboardInterrupt:
        errors.print("stopped; the same command goes on from here", highlight=False)
        code = 130
    else:
        failed = f", {done.failed} without a number" if done.failed else ""
        print(f"{args.table}: {done.seeds} seeds of {len(wanted)} cells{failed}")
    _write(args.table, args)
    return code


def _need_optuna() -> None:
    """Import first what says which extra to install; the parser works without it."""
    import virgo.experiments.sweep.storage  # noqa: F401


def _screen(args: argparse.Namespace) -> tuple[int, int] | None:
    from virgo.errors import OptionError

    if (args.screen is None) != (args.top is None):
        raise OptionError(
            f"--screen, --top: expected both or neither, got --screen {args.screen} "
            f"--top {args.top}. --screen K --top M runs all with K seeds, the best M with all."
        )
    return None if args.screen is None else (args.screen, args.top)


def _pairs(given: list[str] | None) -> dict[str, str]:
    """``KEY=VALUE`` words as a mapping."""
    from virgo.errors import OptionError

    for word in given or ():
        if not all(word.partition("=")):
            raise OptionError(f"--where: expected KEY=VALUE, got {word!r}.")
    return dict(word.split("=", 1) for word in given or ())


def _hidden(args: argparse.Namespace) -> dict[str, str]:
    """Other functions than our own to run and load with, for tests and benchmarks."""
    given = {"runner": args.runner, "loader": args.loader}
    return {name: value for name, value in given.items() if value}


def _write(table: str, args: argparse.Namespace) -> None:
    from virgo.experiments.sweep.exporting import collect, export
    from virgo.experiments.sweep.storage import open_storage

    storage = open_storage(args.storage, create=False)
    path, count = export(storage, table, args.out)
    remarks = {(r.dataset, r.generated) for r in collect(storage, table) if r.generated}
    storage.close()
    print(f"wrote {count} configurations to {path}")
    for dataset, remark in sorted(remarks):
        print(f"{dataset}: {remark}")


def status(args: argparse.Namespace) -> int:
    _need_optuna()
    from virgo.experiments.sweep import exporting
    from virgo.experiments.sweep.storage import open_storage

    storage = open_storage(args.storage, create=False)
    rows = [
        (
            one.cell,
            f"{one.done}/{one.asked}",
            str(one.seeds),
            str(one.running),
            str(one.failed),
            "-" if one.best is None else f"{100 * one.best:.2f}",
            "generated" if one.generated else "",
        )
        for one in exporting.status(storage, args.table)
    ]
    storage.close()
    header = ("cell", "configurations", "seeds", "running", "failed", "best validation", "data")
    shown = len(header) if any(row[-1] for row in rows) else len(header) - 1
    lines = text_table(header[:shown], [row[:shown] for row in rows])
    print("\n".join(lines) if rows else "nothing was run in this storage yet")
    return 0


def export(args: argparse.Namespace) -> int:
    _need_optuna()
    from virgo.experiments.sweep.exporting import studies
    from virgo.experiments.sweep.grids import tables
    from virgo.experiments.sweep.storage import open_storage

    storage = open_storage(args.storage, create=False)
    names = [args.table] if args.table else [t for t in tables() if studies(storage, t)]
    storage.close()
    for name in names:
        _write(name, args)
    return 0


# --- the bar ------------------------------------------------------------------------------------


class _Bar(Progress):
    """Two lines of progress, and the best so far below them."""

    best: Table | None = None

    def get_renderables(self) -> Iterator[Any]:
        yield self.make_tasks_table(self.tasks)
        if self.best is not None:
            yield self.best


@contextmanager
def _bar(title: str) -> Iterator[Callable[[Done], None]]:
    bar = _Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} seeds {task.fields[pace]}"),
        console=errors,
        transient=True,
    )
    with bar:
        task = bar.add_task(title, total=1, pace="")

        def show(done: Done) -> None:
            bar.best = _best(done)
            bar.update(task, completed=done.seeds, total=done.total, pace=_pace(done))

        yield show


def _pace(done: Done) -> str:
    """Throughput and time left, once there is something to judge them by."""
    if done.rate is None:
        return ""
    left = timedelta(seconds=round((done.total - done.seeds) / done.rate * 3600))
    return f"{done.rate:,.0f} an hour, {left} left"


def _best(done: Done) -> Table | None:
    """The best mean validation by method, a column for each dataset and model."""
    if not done.best:
        return None
    columns = list(dict.fromkeys((dataset, model) for dataset, model, _ in done.best))
    table = Table("best validation", *(f"{d} {m}" for d, m in columns), box=None, style="dim")
    for init in dict.fromkeys(init for _, _, init in done.best):
        values = [done.best.get((*column, init)) for column in columns]
        table.add_row(Text(init), *("" if v is None else f"{100 * v:.2f}" for v in values))
    return table


# --- options ------------------------------------------------------------------------------------


def add_to(commands: Any) -> None:
    """``virgo sweep`` and what is below it."""
    top = commands.add_parser(
        "sweep",
        description="Runs every configuration of a table's grid with every method and ten seeds. "
        "Stop it, kill it, start it again, on several machines at once with a PostgreSQL URL: "
        "what is done is never done again.",
        epilog="virgo sweep table1 --dataset cora --init xavier virgo-backward --limit 20\n"
        "virgo sweep status\nvirgo sweep table1 --storage postgresql://user@host/sweeps",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    below = top.add_subparsers(required=True, metavar="table1|table2|table3|depth|status|export")
    for name, about in _ABOUT.items():
        one = below.add_parser(name, help=about, description=about)
        _add_options(one)
        one.set_defaults(run=sweep, table=name)
    two = below.add_parser("status", help="how far each cell is")
    three = below.add_parser("export", help="write the records to files")
    for command, function in ((two, status), (three, export)):
        command.add_argument("table", nargs="?", choices=list(_ABOUT), help="one table (all)")
        _add_storage(command)
        command.set_defaults(run=function)
    three.add_argument("--out", type=Path, default=OUT, help="folder (default %(default)s)")


def _add_options(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "--dataset",
        nargs="+",
        help="some of the table's; like:NAME for a generated stand-in (default: all)",
    )
    one.add_argument("--model", nargs="+", help="some of the table's models (default: all)")
    one.add_argument(
        "--init", nargs="+", help="methods, with options after a plus (default: those of the table)"
    )
    one.add_argument("--seeds", type=int, default=10, help="a configuration (default 10)")
    one.add_argument(
        "--limit",
        type=int,
        help="configurations a cell, the same for every method, "
        "spread over the grid (default: the whole grid)",
    )
    one.add_argument(
        "--where",
        nargs="+",
        metavar="KEY=VALUE",
        help="only the grid's configurations with these values, e.g. batch_size=32768",
    )
    one.add_argument("--screen", type=int, metavar="K", help="run all configurations with K seeds")
    one.add_argument("--top", type=int, metavar="M", help="and the best M of a cell with --seeds")
    one.add_argument("--epochs", type=int, help="instead of the grid's")
    one.add_argument(
        "--curves", action="store_true", help="keep every seed's validation curve in its record"
    )
    one.add_argument(
        "--jobs", type=int, help="worker processes (default: one a core); 0 or 1: none but this"
    )
    _add_storage(one)
    one.add_argument(
        "--grace",
        type=int,
        default=60,
        help="seconds without a sign of life after "
        "which a worker on another machine counts as dead (default 60)",
    )
    one.add_argument("--root", type=Path, help="data root (default: VIRGO_DATA, user cache)")
    one.add_argument(
        "--out", type=Path, default=OUT, help="folder for the records (default %(default)s)"
    )
    one.add_argument("--runner", help=argparse.SUPPRESS)
    one.add_argument("--loader", help=argparse.SUPPRESS)


def _add_storage(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--storage",
        default=STORAGE,
        help="an SQLite file, or postgresql://... for many machines (default %(default)s)",
    )

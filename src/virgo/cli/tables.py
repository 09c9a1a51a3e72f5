"""``virgo table``: the paper's tables, from the records of sweeps."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from virgo.cli.arguments import (
    Subparsers,
    add_command,
    check_output,
    key_values,
    writable_folder,
)
from virgo.cli.progress import note
from virgo.errors import DataError, OptionError, needed

if TYPE_CHECKING:
    from virgo.experiments.sweep.records import Record

TABLES = ("table1", "table2", "table3", "depth")
#: The format of each ending.
ENDINGS = {
    ".txt": "text",
    ".md": "markdown",
    ".tex": "latex",
    ".csv": "csv",
    ".html": "html",
    ".json": "json",
}


def table(args: argparse.Namespace) -> int:
    """Print or write a table and its figures."""
    form = chosen_format(args.format, args.out)
    for option, path in (("--png", args.png), ("--curves-png", args.curves_png)):
        check_output(option, path, ".png", ".pdf", ".svg")
        if path is not None:
            needed("matplotlib", "A figure", "plot")
    from virgo.experiments.sweep.tables import build

    records = load(args.table, args.storage, args.records or default_records(args.table))
    grid = args.grid or ("released" if args.protocol == "released" else "printed")
    where = key_values(args.where)
    built = build(args.table, records, grid=grid, protocol=args.protocol, where=where)
    if not args.all:
        built = built.ran()
    if not built.places:
        raise DataError(
            f"{args.table}: expected records by the protocol {args.protocol}, got none. Make them "
            f"with: virgo sweep {args.table} --protocol {args.protocol}."
        )
    text = str(built) if form == "text" else getattr(built, f"to_{form}")()
    if args.out is None:
        print(text.rstrip("\n"))
    else:
        writable_folder(args.out.parent, "--out")
        args.out.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
        note(f"wrote {args.out}")
    if args.png is not None:
        note(f"wrote {built.save(args.png)}")
    if args.curves_png is not None:
        writable_folder(args.curves_png.parent, "--curves-png")
        built.curves_figure().savefig(args.curves_png, dpi=200)
        note(f"wrote {args.curves_png}")
    return 0


def default_records(name: str) -> Path:
    """The folder of a sweep of one's own if it has the table, else the published one."""
    own = Path("out")
    folder = own if (own / f"{name}.jsonl").is_file() else Path("results")
    note(f"records: {folder / f'{name}.jsonl'}", style="dim")
    return folder


def chosen_format(asked: str | None, out: Path | None) -> str:
    """The format asked for, else that of the file's ending, else text."""
    if asked or out is None:
        return asked or "text"
    if out.suffix.lower() not in ENDINGS:
        raise OptionError(
            f"--out: expected a path ending in {', '.join(ENDINGS)}, got {out}. "
            f"Choose one, or say which by --format."
        )
    return ENDINGS[out.suffix.lower()]


def load(name: str, storage: str | None, where: Path) -> list[Record]:
    """The records of a table from a sweep's storage, else from an exported file or folder."""
    if storage is not None:
        source, records = "the storage", _stored(name, storage)  # a URL may hold a password
    else:
        from virgo.experiments.sweep.records import read

        path = where if where.is_file() else where / f"{name}.jsonl"
        source, records = str(path), read(path) if path.is_file() else []
    records = [record for record in records if record.table == name]
    if not records:
        raise DataError(
            f"{name}: expected records of its trials in {source}, got none. Make them with: virgo "
            f"sweep {name}; or say where they are by --records or --storage."
        )
    return records


def _stored(name: str, where: str) -> list[Record]:
    """The finished records of a storage; the sweep may be running meanwhile."""
    from virgo.experiments.sweep.storage import (  # first: names a missing extra
        open_storage,
        reading,
    )

    from virgo.experiments.sweep.exporting import collect  # isort: skip

    storage = open_storage(where, create=False)
    try:
        with reading(where):
            return collect(storage, name)
    finally:
        storage.close()


def add_to(commands: Subparsers) -> None:
    """Add ``virgo table``."""
    command = add_command(
        commands,
        "table",
        table,
        "Selects each cell's configuration by mean validation and prints its test mean and "
        "standard deviation, the paper's cell, the difference, first and second, and whether the "
        "best Virgo method beats the best classic one by a paired test.",
        "virgo table table1 --format latex --out table1.tex",
        "virgo table depth --storage out/sweeps.db --png depth.png",
    )
    add = command.add_argument
    add("table", choices=TABLES, help="a table of the paper, or depth")
    add(
        "--storage",
        help="a sweep's database: the path of an SQLite file, or a postgresql:// URL (default: "
        "the exported records)",
    )
    add(
        "--records",
        type=Path,
        help="exported records: a folder or file (default: out if it has them, else results)",
    )
    add(
        "--grid",
        choices=("printed", "reproduces", "released"),
        help="the grid that cells are chosen from (default printed)",
    )
    add(
        "--protocol",
        choices=("validation", "released"),
        default="validation",
        help="which records; released is selection on test (default %(default)s)",
    )
    add(
        "--where",
        nargs="+",
        metavar="KEY=VALUE",
        help="choose only from the grid's configurations with these values",
    )
    add("--all", action="store_true", help="also the rows and columns that were not run")
    add(
        "--format",
        choices=list(ENDINGS.values()),
        help="default: by the ending of --out, else text",
    )
    add("--out", type=Path, help="write the table here instead of printing it")
    add("--png", type=Path, help="write a figure here")
    add(
        "--curves-png",
        type=Path,
        metavar="PNG",
        help="write a figure of the validation curves here, of runs with virgo sweep --curves",
    )

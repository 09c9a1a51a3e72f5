"""``virgo table``: the paper's tables, from the records of our trials."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from virgo.cli.progress import errors, writable_folder
from virgo.errors import DataError, OptionError

TABLES = ("table1", "table2", "table3", "depth")
FORMATS = ("text", "markdown", "latex", "csv", "html", "json")
#: The format that a file's ending stands for.
ENDINGS = {
    ".txt": "text",
    ".md": "markdown",
    ".tex": "latex",
    ".csv": "csv",
    ".html": "html",
    ".json": "json",
}


def table(args: argparse.Namespace) -> int:
    form = chosen_format(args.format, args.out)
    for option, path in (("--png", args.png), ("--curves-png", args.curves_png)):
        if path is not None and path.suffix.lower() not in (".png", ".pdf", ".svg"):
            raise OptionError(
                f"{option}: expected a path ending in .png, .pdf or .svg, got {path}."
            )
    from virgo.experiments.sweep.tables import build

    found = build(args.table, load(args.table, args.storage, args.records))
    text = str(found) if form == "text" else getattr(found, f"to_{form}")()
    if args.out is None:
        print(text.rstrip("\n"))
    else:
        writable_folder(args.out.parent, "--out")
        args.out.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
        errors.print(f"wrote {args.out}", markup=False, highlight=False)
    if args.png is not None:
        errors.print(f"wrote {found.save(args.png)}", markup=False, highlight=False)
    if args.curves_png is not None:
        writable_folder(args.curves_png.parent, "--curves-png")
        found.curves_figure().savefig(args.curves_png, dpi=200)
        errors.print(f"wrote {args.curves_png}", markup=False, highlight=False)
    return 0


def chosen_format(asked: str | None, out: Path | None) -> str:
    """The format asked for, else the one of the file's ending, else text for the terminal."""
    if asked or out is None:
        return asked or "text"
    if out.suffix.lower() not in ENDINGS:
        raise OptionError(
            f"--out: expected a path ending in {', '.join(ENDINGS)}, got {out}. "
            f"Choose one, or say which by --format."
        )
    return ENDINGS[out.suffix.lower()]


def load(name: str, storage: str | None, where: Path) -> list[Any]:
    """The records of a table: a sweep's storage if one is named, else those that were kept."""
    if storage is not None:
        # not its name: a URL may hold a password
        place, found = "the storage", stored(name, storage)
    else:
        from virgo.experiments.sweep import records

        path = where if where.is_file() else where / f"{name}.jsonl"
        place, found = str(path), records.read(path) if path.is_file() else []
    found = [record for record in found if record.table == name]
    if not found:
        raise DataError(
            f"{name}: expected records of its trials in {place}, got none. Make them with: virgo "
            f"sweep {name}; or say where they are by --records or --storage."
        )
    return found


def stored(name: str, where: str) -> list[Any]:
    """What a sweep's storage has of a table by now; the sweep may go on meanwhile."""
    from virgo.experiments.sweep.storage import open_storage  # first: says which extra to install

    from virgo.experiments.sweep.exporting import collect  # isort: skip

    storage = open_storage(where, create=False)
    try:
        return collect(storage, name)
    finally:
        storage.close()


def add_to(commands: Any) -> None:
    """The command that makes tables."""
    one = commands.add_parser(
        "table",
        description="Selects each cell's configuration by mean validation and prints its test mean "
        "and standard deviation, the paper's cell, the difference, first and second, and whether "
        "the best Virgo method beats the best classic one by a paired test.",
        epilog="virgo table table1 --format latex --out table1.tex\n"
        "virgo table depth --storage out/sweeps.db --png depth.png",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument("table", choices=TABLES, help="the paper's, or depth")
    one.add_argument(
        "--storage",
        help="a sweep's database: the path of an SQLite file, or a "
        "postgresql:// URL (default: the records)",
    )
    one.add_argument(
        "--records",
        type=Path,
        default=Path("results"),
        help="folder of the kept records, or one file (default results)",
    )
    one.add_argument("--format", choices=FORMATS, help="default: by the ending of --out, else text")
    one.add_argument("--out", type=Path, help="write it here instead of printing it")
    one.add_argument("--png", type=Path, help="write a picture here")
    one.add_argument(
        "--curves-png",
        type=Path,
        metavar="PNG",
        help="write a picture of the validation curves here, of runs with virgo sweep --curves",
    )
    one.set_defaults(run=table)

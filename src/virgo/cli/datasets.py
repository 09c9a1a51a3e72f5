"""``virgo data list | get | check``: the paper's datasets on this machine."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from virgo.cli.arguments import Subparsers, add_command, add_root, check_output, write_text
from virgo.cli.progress import note, working
from virgo.errors import DataError
from virgo.experiments.data.catalogue import Entry, entry
from virgo.experiments.data.roots import locate
from virgo.report.text import text_table

HEADS = ("name", "task", "metric", "graphs", "nodes", "edges", "here")


def listing(args: argparse.Namespace) -> int:
    """Print the state of each dataset."""
    from virgo.experiments.data.inventory import states

    check_output("--json", args.json, ".json")
    datasets = states(args.root)
    width = max(len(str(state)) for state in datasets)  # padded: number columns are right-aligned
    rows = [(*_row(state.entry), str(state).ljust(width)) for state in datasets]
    print("\n".join(text_table((*HEADS[:-1], HEADS[-1].ljust(width)), rows, left=3)))
    extra = [state.entry.name for state in datasets if state.entry.extra]
    print(f"\nextra, not in the paper's tables: {', '.join(extra)}")
    folders = {str(Path(state.folder).parent) for state in datasets}
    print(f"raw files: {', '.join(sorted(folders))}")
    print("virgo data get NAME prepares a dataset, or says which files it needs where")
    document = [
        {
            "name": state.entry.name,
            "task": state.entry.task,
            "metric": state.entry.metric,
            "nodes": state.entry.num_nodes,
            "edges": state.entry.num_edges,
            "graphs": state.entry.num_graphs,
            "extra": state.entry.extra,
            "state": state.state,
            "folder": state.folder,
            "missing": list(state.missing),
        }
        for state in datasets
    ]
    _write(args, document)
    return 0


def _row(row: Entry) -> tuple[str, ...]:
    counts = (f"{count:,}" for count in (row.num_graphs, row.num_nodes, row.num_edges))
    return row.name, row.task, row.metric, *counts


def get(args: argparse.Namespace) -> int:
    """Prepare a dataset, and print where it is and how long that took."""
    from virgo.experiments.data import load
    from virgo.experiments.data.cache import final_folder

    row = _entry(args.name)
    if args.download:
        from virgo.experiments.data.loaders import download

        with working(f"downloading {row.name}"):
            download(row, args.root)
    start = time.perf_counter()
    with _status(row.name) as progress:
        dataset = load(row.name, args.root, progress)
    seconds = time.perf_counter() - start
    print(dataset)
    print(f"{seconds:.1f} s, in {final_folder(locate(row, args.root))}")
    return 0


def checking(args: argparse.Namespace) -> int:
    """Compare datasets with the published counts; exit code 1 if one differs."""
    from virgo.experiments.data.inventory import check, states

    check_output("--json", args.json, ".json")
    if args.names:
        rows = [_entry(name) for name in args.names]
        absent: list[str] = []
    else:
        datasets = states(args.root)
        rows = [state.entry for state in datasets if state.state != "absent"]
        absent = [state.entry.name for state in datasets if state.state == "absent"]
    results = []
    for row in rows:
        with _status(row.name) as progress:
            results.append(check(row, args.root, progress))
        note(" ".join(str(results[-1]).split()))
    if absent:
        print(f"absent: {', '.join(absent)}")
    wrong = [result.name for result in results if not result.ok]
    good = f"{len(results) - len(wrong)} of {len(results)} as published"
    print(f"{good}, not: {', '.join(wrong)}" if wrong else good)
    document = [
        {
            "name": result.name,
            "ok": result.ok,
            "error": result.error,
            "differences": [
                {"what": what, "expected": expected, "got": got}
                for what, expected, got in result.differences
            ],
        }
        for result in results
    ]
    _write(args, document)
    return 1 if wrong else 0


@contextmanager
def _status(name: str) -> Iterator[Callable[..., None]]:
    """A line that says what is being done; the total time is unknown, so there is no bar."""
    with working(f"{name}: looking for it") as update:
        yield lambda done, total, what="": update(f"{name}: {what}")


def _entry(name: str) -> Entry:
    if name.lower().startswith("like:"):
        raise DataError(f"{name}: expected a dataset with files, got a generated one. Load it.")
    return entry(name)


def _write(args: argparse.Namespace, rows: Sequence[Mapping[str, object]]) -> None:
    if args.json is not None:
        write_text("--json", args.json, json.dumps(rows, indent=1) + "\n")


def add_to(commands: Subparsers) -> None:
    """Add ``virgo data`` and its commands."""
    data = add_command(
        commands,
        "data",
        None,
        "Datasets are read from a data root, which is never written to, and their processed copies "
        "are kept in the user's cache.",
        "virgo data list",
        "virgo data get cora",
        "virgo data check cora imdb-b",
    )
    kinds = data.add_subparsers(required=True, metavar="what")
    list_command = kinds.add_parser("list", help="the datasets and their state")
    get_command = kinds.add_parser("get", help="prepare a dataset, or list the files it needs")
    check_command = kinds.add_parser(
        "check", help="compare counts with the published ones; exit code 1 if one differs"
    )
    get_command.add_argument("name", help="a name of virgo data list")
    get_command.add_argument(
        "--download",
        action="store_true",
        help="fetch missing files by the loader's own download (otherwise the network is never "
        "used)",
    )
    check_command.add_argument("names", nargs="*", help="datasets (default: all that are here)")
    for command, run in ((list_command, listing), (get_command, get), (check_command, checking)):
        add_root(command)
        command.set_defaults(run=run)
    for command in (list_command, check_command):
        command.add_argument("--json", type=Path, help="write the table here")

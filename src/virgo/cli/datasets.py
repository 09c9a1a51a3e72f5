"""``virgo data list | get | check``: the datasets on this machine."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from virgo.cli.progress import errors, writable_folder
from virgo.errors import DataError, OptionError
from virgo.experiments.data import load
from virgo.experiments.data.cache import final_folder
from virgo.experiments.data.catalogue import Entry, entry
from virgo.experiments.data.inventory import Checked, DatasetState, check, states
from virgo.experiments.data.roots import locate
from virgo.report.files import write_text_atomically
from virgo.report.text import text_table

HEADS = ("name", "task", "metric", "graphs", "nodes", "edges", "here")


def listing(args: argparse.Namespace) -> int:
    """Print the state of each dataset."""
    _check_output(args)
    known = states(args.root)
    width = max(len(str(state)) for state in known)  # padded: the table aligns to the right
    rows = [(*_row(state.entry), str(state).ljust(width)) for state in known]
    print("\n".join(text_table((*HEADS[:-1], HEADS[-1].ljust(width)), rows, left=3)))
    extra = [state.entry.name for state in known if state.entry.extra]
    print(f"\nextra, not in the paper's tables: {', '.join(extra)}")
    folders = {str(Path(state.folder).parent) for state in known}
    print(f"raw files: {', '.join(sorted(folders))}")
    print("virgo data get NAME prepares one, or says which files go where")
    _write(args, [_as_json(state) for state in known])
    return 0


def _row(row: Entry) -> tuple[str, ...]:
    counts = (f"{count:,}" for count in (row.num_graphs, row.num_nodes, row.num_edges))
    return row.name, row.task, row.metric, *counts


def _as_json(state: DatasetState) -> dict[str, object]:
    row = state.entry
    return {
        "name": row.name,
        "task": row.task,
        "metric": row.metric,
        "nodes": row.num_nodes,
        "edges": row.num_edges,
        "graphs": row.num_graphs,
        "extra": row.extra,
        "state": state.state,
        "folder": state.folder,
        "missing": list(state.missing),
    }


def get(args: argparse.Namespace) -> int:
    """Prepare a dataset, and print where it is and how long that took."""
    row = _entry(args.name)
    if args.download:
        from virgo.experiments.data.loaders import download

        with errors.status(f"downloading {row.name}"):
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
    _check_output(args)
    if args.names:
        rows = [_entry(name) for name in args.names]
        absent: list[str] = []
    else:
        known = states(args.root)
        rows = [state.entry for state in known if state.state != "absent"]
        absent = [state.entry.name for state in known if state.state == "absent"]
    results = []
    for row in rows:
        with _status(row.name) as progress:
            results.append(check(row, args.root, progress))
        line = " ".join(str(results[-1]).split())
        errors.print(line, markup=False, highlight=False, soft_wrap=True)
    if absent:
        print(f"absent: {', '.join(absent)}")
    wrong = [result.name for result in results if not result.ok]
    good = f"{len(results) - len(wrong)} of {len(results)} as published"
    print(f"{good}, not: {', '.join(wrong)}" if wrong else good)
    _write(args, [_result_as_json(result) for result in results])
    return 1 if wrong else 0


@contextmanager
def _status(name: str) -> Iterator[Callable[..., None]]:
    """A status line; a bar would promise a time that is not known."""
    with errors.status(f"{name}: looking for it") as status:

        def progress(done: int, total: int, what: str = "") -> None:
            status.update(f"{name}: {what}")

        yield progress


def _result_as_json(result: Checked) -> dict[str, object]:
    differences = [
        {"what": what, "expected": want, "got": have} for what, want, have in result.differences
    ]
    return {
        "name": result.name,
        "ok": result.ok,
        "error": result.error,
        "differences": differences,
    }


def _entry(name: str) -> Entry:
    if name.lower().startswith("like:"):
        raise DataError(f"{name}: expected a dataset with files, got a generated one. Load it.")
    return entry(name)


def _check_output(args: argparse.Namespace) -> None:
    """Refuse a wrong ending before any work is done."""
    if args.json is not None and args.json.suffix.lower() != ".json":
        raise OptionError(f"--json: expected a path ending in .json, got {args.json}.")


def _write(args: argparse.Namespace, rows: list[dict[str, object]]) -> None:
    if args.json is not None:
        writable_folder(args.json.parent, "--json")
        write_text_atomically(args.json, json.dumps(rows, indent=1) + "\n")
        print(f"wrote {args.json}")


def add_to(commands: Any) -> None:
    """Add ``virgo data`` and its commands.

    Args:
        commands: what ``add_subparsers`` of the main parser returned.
    """
    data = commands.add_parser(
        "data",
        description="Datasets are read from a data root, which is never written to, and their "
        "processed copies are kept in the user's cache.",
        epilog="virgo data list\nvirgo data get cora\nvirgo data check cora imdb-b",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = data.add_subparsers(required=True, metavar="what")

    list_ = kinds.add_parser("list", help="the paper's fifteen and extra ones, and their state")
    _add_paths(list_, json_too=True)
    list_.set_defaults(run=listing)

    get_ = kinds.add_parser("get", help="prepare a dataset, or say which files go where")
    get_.add_argument("name", help="as virgo data list has it")
    get_.add_argument(
        "--download",
        action="store_true",
        help="download missing files with the loader's own code (otherwise the network is never "
        "used)",
    )
    _add_paths(get_, json_too=False)
    get_.set_defaults(run=get)

    check_ = kinds.add_parser(
        "check", help="compare counts with the published ones; exit code 1 if something is wrong"
    )
    check_.add_argument("names", nargs="*", help="datasets (default: all that are here)")
    _add_paths(check_, json_too=True)
    check_.set_defaults(run=checking)


def _add_paths(command: argparse.ArgumentParser, *, json_too: bool) -> None:
    command.add_argument("--root", type=Path, help="data root (default: VIRGO_DATA, user cache)")
    if json_too:
        command.add_argument("--json", type=Path, help="write the table here")

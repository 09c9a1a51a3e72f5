"""``virgo data list | get | check``: the paper's datasets on this machine."""

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
from virgo.plans import text_table

HEADS = ("name", "task", "metric", "graphs", "nodes", "edges", "here")


def listing(args: argparse.Namespace) -> int:
    """Print what there is of each dataset."""
    _output(args)
    found = states(args.root)
    width = max(len(str(one)) for one in found)  # padded, as columns of numbers go to the right
    rows = [(*_row(one), str(one).ljust(width)) for one in found]
    print("\n".join(text_table((*HEADS[:-1], HEADS[-1].ljust(width)), rows, left=3)))
    folders = {str(Path(one.folder).parent) for one in found}
    print(f"\nraw files: {', '.join(sorted(folders))}")
    print("virgo data get NAME prepares one, or says which files go where")
    _write(args, [_described(one) for one in found])
    return 0


def _row(one: DatasetState) -> tuple[str, ...]:
    row = one.entry
    graphs = f"{row.num_graphs:,}" if row.task == "graph" else "1"
    nodes, edges = f"{row.num_nodes:,}", f"{row.num_edges:,}"
    return row.name, row.task, row.metric, graphs, nodes, edges


def _described(one: DatasetState) -> dict[str, Any]:
    row = one.entry
    return {
        "name": row.name,
        "task": row.task,
        "metric": row.metric,
        "nodes": row.num_nodes,
        "edges": row.num_edges,
        "graphs": row.num_graphs,
        "state": one.state,
        "folder": one.folder,
        "missing": list(one.missing),
    }


def get(args: argparse.Namespace) -> int:
    """Prepare a dataset, and say where it is and what that took."""
    row = _entry(args.name)
    if args.download:
        from virgo.experiments.data.loaders import download

        with errors.status(f"downloading {row.name}"):
            download(row, args.root)
    start = time.perf_counter()
    with _telling(row.name) as progress:
        dataset = load(row.name, args.root, progress)
    seconds = time.perf_counter() - start
    print(dataset)
    print(f"{seconds:.1f} s, in {final_folder(locate(row, args.root))}")
    return 0


def checking(args: argparse.Namespace) -> int:
    """Hold datasets against the published counts; 1 if one is not as it should be."""
    _output(args)
    if args.names:
        rows = [_entry(name) for name in args.names]
        absent: list[str] = []
    else:
        found = states(args.root)
        rows = [one.entry for one in found if one.state != "absent"]
        absent = [one.entry.name for one in found if one.state == "absent"]
    results = []
    for row in rows:
        with _telling(row.name) as progress:
            results.append(check(row, args.root, progress))
        errors.print(_line(results[-1]), markup=False, highlight=False, soft_wrap=True)
    if absent:
        print(f"absent: {', '.join(absent)}")
    wrong = [one.name for one in results if not one.ok]
    good = f"{len(results) - len(wrong)} of {len(results)} as published"
    print(f"{good}, not: {', '.join(wrong)}" if wrong else good)
    _write(args, [_result(one) for one in results])
    return 1 if wrong else 0


@contextmanager
def _telling(name: str) -> Iterator[Callable[..., None]]:
    """A line that says what is being done; a bar would promise a time that nobody knows."""
    with errors.status(f"{name}: looking for it") as status:

        def progress(done: int, total: int, what: str = "") -> None:
            status.update(f"{name}: {what}")

        yield progress


def _line(one: Checked) -> str:
    return " ".join(str(one).split())


def _result(one: Checked) -> dict[str, Any]:
    wrong = [{"what": what, "expected": want, "got": have} for what, want, have in one.differences]
    return {"name": one.name, "ok": one.ok, "error": one.error, "differences": wrong}


def _entry(name: str) -> Entry:
    if name.lower().startswith("like:"):
        raise DataError(f"{name}: expected a dataset with files, got a generated one. Load it.")
    return entry(name)


def _output(args: argparse.Namespace) -> None:
    """A wrong ending is said before any work is done."""
    if args.json is not None and args.json.suffix.lower() != ".json":
        raise OptionError(f"--json: expected a path ending in .json, got {args.json}.")


def _write(args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    if args.json is not None:
        writable_folder(args.json.parent, "--json")
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {args.json}")


def add_to(commands: Any) -> None:
    """``virgo data`` and its commands."""
    data = commands.add_parser(
        "data",
        description="Datasets are read from a data root, which is never written to, and their "
        "processed copies are kept in the user's cache.",
        epilog="virgo data list\nvirgo data get cora\nvirgo data check cora imdb-b",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = data.add_subparsers(required=True, metavar="what")

    one = kinds.add_parser("list", help="all fifteen, and what there is of each")
    _add_places(one, json_too=True)
    one.set_defaults(run=listing)

    two = kinds.add_parser("get", help="prepare a dataset, or say which files go where")
    two.add_argument("name", help="as virgo data list has it")
    two.add_argument(
        "--download",
        action="store_true",
        help="fetch missing files by the loader's "
        "own download (otherwise the network is never used)",
    )
    _add_places(two, json_too=False)
    two.set_defaults(run=get)

    three = kinds.add_parser(
        "check", help="compare counts with the published ones; exit code 1 if something is wrong"
    )
    three.add_argument("names", nargs="*", help="datasets (default: all that are here)")
    _add_places(three, json_too=True)
    three.set_defaults(run=checking)


def _add_places(command: argparse.ArgumentParser, *, json_too: bool) -> None:
    command.add_argument("--root", type=Path, help="data root (default: VIRGO_DATA, user cache)")
    if json_too:
        command.add_argument("--json", type=Path, help="write the table here")

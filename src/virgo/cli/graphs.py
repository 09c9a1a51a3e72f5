"""``virgo graph build | info``: graphs on disk."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from virgo.cli.progress import errors, reporting, writable_folder
from virgo.graph.disk import build, verify
from virgo.graph.disk.describing import Degrees, Description, describe
from virgo.graph.disk.format import Header
from virgo.graph.disk.options import Options

_OPTIONS = tuple(one.name for one in fields(Options))


def building(args: argparse.Namespace) -> int:
    """Build a graph, and say what it has."""
    begun = time.perf_counter()
    options = {name: getattr(args, name) for name in _OPTIONS}
    with _watched("building") as progress:
        header = build(args.edges, args.out, progress=progress, **options)
    seconds = time.perf_counter() - begun
    print(f"{args.out}: {_counts(header)}, {_size(_nbytes(header))}, {seconds:.1f} s")
    return 0


def info(args: argparse.Namespace) -> int:
    """Say what a graph has, and whether it is what was written."""
    described = describe(args.out)
    if args.check:
        with _watched("checking") as progress:
            verify(args.out, progress)
    if args.json is None:
        print("\n".join(_lines(described, checked=args.check)))
        return 0
    text = json.dumps({**described.to_dict(), "checked": args.check}, indent=1)
    if args.json == "-":
        print(text)
    else:
        writable_folder(Path(args.json).parent, "--json")
        Path(args.json).write_text(text + "\n", encoding="utf-8")
        print(f"wrote {args.json}")
    return 0


@contextmanager
def _watched(title: str) -> Iterator[Callable[[int, int, str], None] | None]:
    """A progress bar, where somebody watches."""
    if not errors.is_terminal:
        yield None
        return
    with reporting(title) as progress:
        yield progress


def _lines(one: Description, *, checked: bool) -> list[str]:
    header = one.header
    given = {name: value for name, value in header.options.items() if value not in (None, False)}
    options = ", ".join(f"{name}={value}" for name, value in given.items())
    lines = [
        f"{one.path}: {_counts(header)}",
        f"in-degrees   {_degrees(one.in_degrees)}",
        f"out-degrees  {_degrees(one.out_degrees)}",
        f"isolated     {one.isolated:,} nodes, self-loops {header.self_loops:,}",
        f"source       {header.source.get('name')} ({_size(header.source.get('bytes', 0))})",
        f"options      {options}",
        f"format       {header.format}, virgo {header.virgo}, {header.index} columns",
    ]
    for name, file in header.files.items():
        lines.append(
            f"{name + '.bin':<16} {file.dtype:>4} x {file.size:>15,}  {_size(file.nbytes):>9}  "
            f"sha256 {file.sha256[:16]}"
        )
    verdict = "as they were written" if checked else "not read (--check does)"
    return [*lines, f"checksums    {verdict}; {_size(one.nbytes)} in all"]


def _counts(header: Header) -> str:
    kinds = [
        name
        for name, holds in [
            ("symmetric", header.symmetric),
            ("weighted", header.weighted),
            (f"ids {header.ids}", header.ids is not None),
        ]
        if holds
    ]
    return ", ".join([f"{header.num_nodes:,} nodes", f"{header.num_edges:,} edges", *kinds])


def _degrees(one: Degrees) -> str:
    return "{least:,} least, {median:,g} median, {most:,} most".format(**asdict(one))


def _nbytes(header: Header) -> int:
    return sum(one.nbytes for one in header.files.values())


def _size(nbytes: int) -> str:
    """Bytes in a unit that fits."""
    amount, units = float(nbytes), ["B", "KB", "MB", "GB", "TB"]
    while amount >= 1000 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:.{0 if units[0] == 'B' else 1}f} {units[0]}"


def add_to(commands: Any) -> None:
    """``virgo graph`` and its commands."""
    graph = commands.add_parser(
        "graph",
        description="Turns edge lists of any size into compressed rows on disk, which are "
        "memory-mapped where they are used.",
        epilog="virgo graph build edges.parquet graph --symmetric --memory 2GB\n"
        "virgo graph info graph --check",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = graph.add_subparsers(required=True, metavar="what")
    _add_build(kinds)
    two = kinds.add_parser("info", help="counts, degrees, sizes and options of a graph")
    two.add_argument("out", type=Path, help="the graph's folder")
    two.add_argument("--check", action="store_true", help="read everything, compare checksums")
    two.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="as JSON, printed or written to a file"
    )
    two.set_defaults(run=info)


def _add_build(kinds: Any) -> None:
    one = kinds.add_parser(
        "build",
        help="make one from Parquet, CSV(.gz), npy, npz, a saved edge_index or an OGB raw folder",
        description="An interrupted build continues when the same command is given again. An OGB "
        "folder is taken as it is: give --symmetric for the datasets whose loader adds reverses.",
    )
    one.add_argument("edges", help="a file, a folder of files, a pattern, or an OGB raw folder")
    one.add_argument("out", type=Path, help="the folder to make")
    one.add_argument(
        "--symmetric",
        action="store_true",
        help="add the reverse of every edge; equal edges become one, their weights are added",
    )
    one.add_argument(
        "--deduplicate", action="store_true", help="equal edges become one, their weights are added"
    )
    one.add_argument("--self-loops", choices=("keep", "drop"), default="keep")
    one.add_argument("--num-nodes", type=int, metavar="N", help="default: the greatest id plus one")
    one.add_argument(
        "--relabel",
        action="store_true",
        help="number arbitrary ids from 0 in ascending order (string ids always are)",
    )
    for what in ("source", "target", "weight"):
        one.add_argument(f"--{what}-column", metavar="NAME", help="a name, or a number from 0")
    one.add_argument(
        "--header",
        choices=("auto", "yes", "no"),
        default="auto",
        help="whether a text file's first line has names",
    )
    one.add_argument(
        "--id-type",
        choices=("auto", "int64", "string"),
        default="auto",
        help="what ids in a text file are",
    )
    one.add_argument(
        "--memory",
        default="2GB",
        metavar="SIZE",
        help="for buffers (default 2GB); relabelling holds all ids beside that",
    )
    one.add_argument(
        "--tmp",
        type=Path,
        metavar="DIR",
        help="where edges wait to be sorted (default: beside OUT)",
    )
    one.add_argument("--force", action="store_true", help="replace the graph at OUT")
    one.set_defaults(run=building)

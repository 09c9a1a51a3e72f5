"""``virgo graph build | info``: graphs on disk."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, fields
from pathlib import Path

from virgo.cli.arguments import Subparsers, add_command, write_text
from virgo.cli.progress import reporting
from virgo.graph.disk import build, verify
from virgo.graph.disk.describing import Degrees, Description, describe
from virgo.graph.disk.format import Header
from virgo.graph.disk.options import BuildOptions


def building(args: argparse.Namespace) -> int:
    """Build a graph, and print its counts."""
    begun = time.perf_counter()
    options = {option.name: getattr(args, option.name) for option in fields(BuildOptions)}
    with reporting("building") as progress:
        header = build(args.edges, args.out, progress=progress, **options)
    seconds = time.perf_counter() - begun
    nbytes = sum(file.nbytes for file in header.files.values())
    print(f"{args.out}: {_counts(header)}, {_size(nbytes)}, {seconds:.1f} s")
    return 0


def info(args: argparse.Namespace) -> int:
    """Describe a graph, and verify its checksums if asked."""
    described = describe(args.out)
    if args.check:
        with reporting("checking") as progress:
            verify(args.out, progress)
    if args.json is None:
        print("\n".join(_lines(described, checked=args.check)))
        return 0
    text = json.dumps({**described.to_dict(), "checked": args.check}, indent=1)
    if args.json == "-":
        print(text)
    else:
        write_text("--json", Path(args.json), text + "\n")
    return 0


def _lines(graph: Description, *, checked: bool) -> list[str]:
    header = graph.header
    given = {name: value for name, value in header.options.items() if value not in (None, False)}
    options = ", ".join(f"{name}={value}" for name, value in given.items())
    lines = [
        f"{graph.path}: {_counts(header)}",
        f"in-degrees   {_degrees(graph.in_degrees)}",
        f"out-degrees  {_degrees(graph.out_degrees)}",
        f"isolated     {graph.isolated:,} nodes, self-loops {header.self_loops:,}",
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
    return [*lines, f"checksums    {verdict}; {_size(graph.nbytes)} in all"]


def _counts(header: Header) -> str:
    words = [f"{header.num_nodes:,} nodes", f"{header.num_edges:,} edges"]
    words += ["symmetric"] * header.symmetric + ["weighted"] * header.weighted
    return ", ".join(words if header.ids is None else [*words, f"ids {header.ids}"])


def _degrees(degrees: Degrees) -> str:
    return "{least:,} least, {median:,g} median, {most:,} most".format(**asdict(degrees))


def _size(nbytes: int) -> str:
    """Bytes with a unit."""
    amount, units = float(nbytes), ["B", "KB", "MB", "GB", "TB"]
    while amount >= 1000 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:.{0 if units[0] == 'B' else 1}f} {units[0]}"


def add_to(commands: Subparsers) -> None:
    """Add ``virgo graph`` and its commands."""
    graph = add_command(
        commands,
        "graph",
        None,
        "Turns edge lists of any size into CSR files on disk, which are memory-mapped when used.",
        "virgo graph build edges.parquet graph --symmetric --memory 2GB",
        "virgo graph info graph --check",
    )
    kinds = graph.add_subparsers(required=True, metavar="what")
    _add_build(kinds)
    command = kinds.add_parser("info", help="counts, degrees, sizes and options of a graph")
    command.add_argument("out", type=Path, help="the graph's folder")
    command.add_argument("--check", action="store_true", help="read everything, compare checksums")
    command.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="as JSON, printed or written to a file"
    )
    command.set_defaults(run=info)


def _add_build(kinds: Subparsers) -> None:
    command = kinds.add_parser(
        "build",
        help="build from Parquet, CSV(.gz), npy, npz, a saved edge_index or an OGB raw folder",
        description="An interrupted build continues when the same command is given again. An OGB "
        "folder is read as it is: give --symmetric for datasets whose loader adds reverse edges.",
    )
    add = command.add_argument
    add("edges", help="a file, a folder of files, a pattern, or an OGB raw folder")
    add("out", type=Path, help="the folder to create")
    add(
        "--symmetric",
        action="store_true",
        help="add the reverse of every edge; equal edges become one, their weights are added",
    )
    add(
        "--deduplicate", action="store_true", help="equal edges become one, their weights are added"
    )
    add("--self-loops", choices=("keep", "drop"), default="keep")
    add("--num-nodes", type=int, metavar="N", help="default: the largest id plus one")
    add(
        "--relabel",
        action="store_true",
        help="number arbitrary ids from 0 in ascending order (string ids always are)",
    )
    for what in ("source", "target", "weight"):
        add(f"--{what}-column", metavar="NAME", help="a name, or a number from 0")
    add(
        "--header",
        choices=("auto", "yes", "no"),
        default="auto",
        help="whether text files begin with column names",
    )
    add("--id-type", choices=("auto", "int64", "string"), default="auto", help="ids in text files")
    add(
        "--memory",
        default="2GB",
        metavar="SIZE",
        help="for buffers (default 2GB); relabelling needs memory for all ids as well",
    )
    add("--tmp", type=Path, metavar="DIR", help="folder for temporary files (default: beside OUT)")
    add("--force", action="store_true", help="replace the graph at OUT")
    command.set_defaults(run=building)

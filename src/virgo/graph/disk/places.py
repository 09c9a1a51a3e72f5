"""Where a build happens and ends: checks before it starts, and the rename that finishes it."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from virgo.errors import DataError, GraphError, OptionError
from virgo.graph.disk.format import HEADER, Header
from virgo.graph.disk.journal import JOURNAL
from virgo.graph.disk.options import BuildOptions
from virgo.graph.disk.sources import EdgeSource, suffix_of
from virgo.report.files import sync_folder, write_text_atomically

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: Bytes a line of text takes at most, roughly, so that the estimate is of the least space.
_LONG_LINE, _LONG_PACKED_LINE = 24, 8


def check_target(out: Path, force: bool) -> None:
    """Refuse to overwrite a graph without being asked, and anything else in any case.

    Raises:
        GraphError: there is something at ``out``.
    """
    if not hasattr(os, "pwrite"):
        raise GraphError(f"{out}: expected a POSIX system, which builds need, got {os.name}.")
    if not out.exists() and not out.is_symlink():
        return
    if not force:
        raise GraphError(
            f"{out}: expected a new folder, got one that exists. Give --force to replace it."
        )
    if not (out / HEADER).is_file() and not (out.is_dir() and not any(out.iterdir())):
        raise GraphError(
            f"{out}: expected a graph to replace, got something without {HEADER}. Remove it "
            f"yourself, or name another folder."
        )


def check_tmp(options: BuildOptions) -> None:
    """Refuse a folder for temporary files that is none: a mistyped one would fill another disk.

    Args:
        options: of the build.

    Raises:
        OptionError: there is no such folder.
    """
    if options.tmp is not None and not Path(options.tmp).is_dir():
        raise OptionError(
            f"--tmp: expected a folder for temporary files, got {options.tmp}, which is none. "
            f"Make it, or name another."
        )


def scratch_folder(out: Path, folder: Path, options: BuildOptions) -> Path:
    """Where spills go: inside the working folder, or in ``tmp``, named after ``out``."""
    if options.tmp is None:
        return folder.absolute() / "spills"
    digest = hashlib.sha256(str(out.absolute()).encode()).hexdigest()[:12]
    return Path(options.tmp).absolute() / f".{out.absolute().name}.{digest}.spills"


def least_edges(source: EdgeSource) -> int:
    """How many edges a source has, or at least about so many."""
    if source.num_edges is not None:
        return source.num_edges
    return sum(
        reader.path.stat().st_size
        // (_LONG_PACKED_LINE if reader.path.name.endswith(".gz") else _LONG_LINE)
        for reader in source.readers
        if suffix_of(reader.path)
    )


def check_space(source: EdgeSource, options: BuildOptions, folder: Path, scratch: Path) -> None:
    """Say before a long build that the disk will not do.

    Raises:
        DataError: there is too little space.
    """
    edges = least_edges(source) * (2 if options.symmetric else 1)
    entry, column = (16, 12) if source.is_weighted else (8, 4)
    spilled, kept = edges * entry, edges * column
    if not options.symmetric:
        spilled, kept = 2 * spilled, 2 * kept
    if options.merges:
        kept = 0  # nobody knows what will be left
    pointers = 1 if options.symmetric else 2
    kept += pointers * 8 * (options.num_nodes or source.num_nodes or 0)
    needs = {scratch: spilled, folder: kept}
    if os.stat(scratch).st_dev == os.stat(folder).st_dev:
        needs = {folder: spilled + kept}
    for disk, need in needs.items():
        free = shutil.disk_usage(disk).free
        if free < need:
            raise DataError(
                f"{disk}: expected {need / 2**30:.1f} GB of free space, got "
                f"{free / 2**30:.1f} GB. Free some, or give --tmp on another disk."
            )


@contextmanager
def translated(out: Path) -> Iterator[None]:
    """A full disk, and a folder that cannot be written to, are a user's errors."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DataError(
                f"{out}: expected room for the graph and what is spilled, got {error}. Free some "
                f"space, or give --tmp on another disk, and run the same command again: it "
                f"continues."
            ) from error
        raise GraphError(f"{out}: expected to build it there, got {error}.") from error


def drop(folder: Path, scratch: Path) -> None:
    """Leave nothing of a build."""
    for leftover in (scratch, folder):
        shutil.rmtree(leftover, ignore_errors=True)


def publish(header: Header, folder: Path, scratch: Path, out: Path, force: bool) -> None:
    """Give a complete graph its name; everything it holds is on the disk."""
    shutil.rmtree(scratch, ignore_errors=True)
    for unfinished in folder.glob(f".*.{JOURNAL}"):  # of a build that was killed
        unfinished.unlink()
    write_text_atomically(folder / HEADER, header.to_json(), durable=True)
    replaced = folder.with_name(f".{out.absolute().name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    check_target(out, force)  # once more: a long build leaves time for others
    if out.exists():
        os.rename(out, replaced)
    os.rename(folder, out)
    sync_folder(out.absolute().parent)
    (out / JOURNAL).unlink(missing_ok=True)
    shutil.rmtree(replaced, ignore_errors=True)

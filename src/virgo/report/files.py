"""Atomic writes: a reader sees the old file or the new one, never half of one."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from virgo.errors import OptionError, shown


@contextlib.contextmanager
def atomic_write(path: str | Path, *, durable: bool = False) -> Iterator[Path]:
    """A hidden path beside ``path`` to write to, renamed to it when the block ends without error.

    Args:
        path: the file to write or replace; its folder is made if it is not there.
        durable: whether to flush the file and its name to the disk, so that both outlive a crash of
            the system.

    Yields:
        The path to write to, with the same suffix. It is removed if the block raises.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "note.txt"
    >>> with atomic_write(target) as temporary:
    ...     _ = temporary.write_text("whole")
    >>> target.read_text(), [file.name for file in target.parent.iterdir()]
    ('whole', ['note.txt'])
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{uuid.uuid4().hex[:12]}.{path.name}")
    try:
        yield temporary
        if durable:
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        sync_folder(path.parent)


def write_text_atomically(path: str | Path, text: str, *, durable: bool = False) -> None:
    """Write or replace a small text file in one step.

    Args:
        path: the file.
        text: what it will hold, in UTF-8.
        durable: see :func:`atomic_write`.
    """
    with atomic_write(path, durable=durable) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    with contextlib.suppress(OSError):  # not every system opens folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def as_path(path: object) -> Path:
    """The path to save to.

    Args:
        path: what was given.

    Returns:
        It as a path.

    Raises:
        OptionError: if it is none.
    """
    try:
        return Path(path)  # type: ignore[arg-type]
    except TypeError as error:
        raise OptionError(
            f"save: expected a path, got {shown(path)}. Pass a string or a pathlib.Path."
        ) from error

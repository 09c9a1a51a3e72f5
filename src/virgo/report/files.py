"""Atomic writes: a file is either complete or not there, also where a process is killed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``, renamed to it on success and removed on failure.

    Args:
        path: the file to write; its folder is made if need be.

    Yields:
        A path in the same folder that no other writer uses.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text_atomically(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` in one step, as UTF-8.

    Args:
        path: the file to write.
        text: its content.
    """
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")

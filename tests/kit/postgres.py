"""A PostgreSQL server of one's own, on loopback, started and stopped again."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class NoServer(Exception):
    """There is none to start here."""


def binaries() -> Path:
    """The newest of Debian's, or what is on the path."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3])
    )
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        raise NoServer("no PostgreSQL server is installed (Debian: postgresql)")
    return found[-1].parent if found else Path(str(on_path)).parent


def _user() -> str | None:
    """The server refuses to run as root; then someone else has to."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise NoServer("PostgreSQL does not run as root, and there is no user postgres or nobody")


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The URL of a new and empty server, below ``/``: add the name of a database."""
    programs, user = binaries(), _user()
    # not pytest's own folder: another user could not reach into it
    with tempfile.TemporaryDirectory(prefix="virgo-postgres-") as name:
        folder = Path(name)
        if user:
            shutil.chown(folder, user)
        options: dict[str, Any] = {"cwd": folder, "user": user}
        captured = {**options, "capture_output": True, "text": True}
        silent = {**options, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        control = [str(programs / "pg_ctl"), "-D", str(folder / "data"), "-w"]
        how = ["-U", "virgo", "-A", "trust", "-E", "UTF8", "--locale", "C", "--no-sync"]
        made = subprocess.run(
            [str(programs / "initdb"), "-D", str(folder / "data"), *how], **captured
        )
        assert made.returncode == 0, made.stderr
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        where = f"-h 127.0.0.1 -p {port} -k {folder} -F -c timezone=America/New_York"
        # a pipe would stay open as long as the server lives
        started = subprocess.run(
            [*control, "-l", str(folder / "log"), "-o", where, "start"], **silent
        )
        try:
            assert started.returncode == 0, (folder / "log").read_text()
            yield f"postgresql://virgo@127.0.0.1:{port}"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], **captured)


def new_database(server: str, name: str) -> str:
    """The URL of an empty database."""
    import psycopg

    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')  # type: ignore[arg-type]
    return f"{server}/{name}"

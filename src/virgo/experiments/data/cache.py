"""Processed copies of datasets: made aside, renamed when complete, named after their content.

A data root is only read. PyG's and OGB's loaders write beside what they read, so raw files are
copied into the cache, processed there, and dropped again: ``processed/<folder>-<key>/`` holds what
a loader needs to load without them. The key is a digest of the raw files, of the versions of the
loaders and of our own preparation, so nothing is answered from an older copy.

Three things keep processes out of each other's way. The copy is made in a folder of its own and
renamed into place, which is one step. A lock lets one process work while others wait for its
result; the system frees it when its holder dies, however it dies. Where a file system has no locks
two processes do the same work, and the second finds the first's copy in place and drops its own.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch_geometric

from virgo.errors import DataError
from virgo.experiments.data.roots import Source, user_cache

Progress = Callable[..., None]
"""``progress(done, total, what)``, as :func:`virgo.cli.progress.reporting` gives."""

PREPARATION = 1
"""Raised whenever what we store of a dataset changes."""

LARGE = 4 * 2**20
"""Bytes from which a file's digest is remembered. Below, it is taken anew each time (2 ms)."""

FRESH = 2.0
"""Seconds after a change for which a digest is not remembered: file times may be that coarse."""

STEPS = 3


def silent(done: int, total: int, what: str = "") -> None:
    """Progress that nobody watches."""


# --- the key -------------------------------------------------------------------------------------


def final_folder(source: Source, *, hashing: bool = True) -> Path | None:
    """Where the processed copy of ``source`` is, or will be.

    Args:
        source: a complete dataset.
        hashing: take digests that are not remembered; otherwise the answer is ``None`` where one
            would be needed, as there is no processed copy of a large file that nobody has read.
    """
    digest = hashlib.sha256(f"{PREPARATION} {torch_geometric.__version__}".encode())
    if source.entry.kind == "ogb":
        from importlib.metadata import PackageNotFoundError, version

        with contextlib.suppress(PackageNotFoundError):
            digest.update(version("ogb").encode())
    paths = [source.archive] if source.archive else [source.path(file) for file in source.files]
    for path in paths:
        one = _digest(path, hashing=hashing)
        if one is None:
            return None
        digest.update(f"{path.name} {one}\n".encode())
    return user_cache() / "processed" / f"{source.entry.folder}-{digest.hexdigest()[:16]}"


def _digest(path: Path, *, hashing: bool) -> str | None:
    """SHA-256 of a file; that of a large one is remembered with its size and time."""
    state = path.stat()
    if state.st_size < LARGE:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    stamp = [state.st_size, state.st_mtime_ns]
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
    note = user_cache() / "digests" / f"{place}.json"
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        kept = json.loads(note.read_text(encoding="utf-8"))
        if kept["stamp"] == stamp:
            return str(kept["sha256"])
    if not hashing:
        return None
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**22):
            digest.update(block)
    if time.time() - state.st_mtime > FRESH:
        text = json.dumps({"path": str(path), "stamp": stamp, "sha256": digest.hexdigest()})
        with contextlib.suppress(OSError):  # a cache that cannot be written to is said later
            _write_aside(note, text)
    return digest.hexdigest()


def _write_aside(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".", dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(name, path)


# --- making the copy -----------------------------------------------------------------------------


def prepared(source: Source, process: Callable[[Path], None], progress: Progress = silent) -> Path:
    """The folder with the processed copy of ``source``, made if it is not there.

    Args:
        source: where the raw files are.
        process: makes what the loader needs, given a folder that has a copy of the raw files where
            the loader looks for them.
        progress: is told what is going on.

    Raises:
        DataError: files are missing or damaged, or the cache cannot be written to.
    """
    source.require()
    progress(0, STEPS, "reading the raw files")
    final = final_folder(source)
    assert final is not None
    if final.is_dir():
        return final
    with _locked(final, progress) as alone:
        if final.is_dir():  # made while we waited
            return final
        if alone:
            _sweep(final)
        aside = _aside(final)
        try:
            with _room():
                progress(1, STEPS, "copying")
                _copy(source, aside / source.entry.folder)
                progress(2, STEPS, "preparing, once")
                process(aside)
            shutil.rmtree(aside / source.entry.folder / "raw")
            _publish(aside, final)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return final


def _aside(final: Path) -> Path:
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    except OSError as error:
        raise _unwritable(error) from error


def _sweep(final: Path) -> None:
    """Drop what a process that was killed has left; its lock is ours, so nobody works there."""
    for left in final.parent.glob(f".{final.name}-*"):
        shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def _room() -> Iterator[None]:
    """A full disk is no damaged file."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        raise _unwritable(error) from error


def _unwritable(error: OSError) -> DataError:
    return DataError(
        f"{user_cache()}: expected a writable cache, got {error}. Set VIRGO_CACHE to a folder that "
        f"can be written to."
    )


def _copy(source: Source, folder: Path) -> None:
    for file in source.files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
    if source.archive is None:
        for file in source.files:
            # contents only: the source may be read-only
            shutil.copyfile(source.path(file), folder / file)
        return
    try:
        with zipfile.ZipFile(source.archive) as packed:
            members = {Path(name).name: name for name in packed.namelist()}
            for file in source.files:
                with packed.open(members[Path(file).name]) as one, open(folder / file, "wb") as out:
                    shutil.copyfileobj(one, out, 2**20)
    except (zipfile.BadZipFile, zlib.error, EOFError, LookupError, ValueError) as error:
        lack = isinstance(error, LookupError)
        raise DataError(
            f"{source.entry.name}: expected an intact {source.archive}, got "
            f"{'no ' if lack else ''}{error}. Fetch it again."
        ) from error


def _publish(aside: Path, final: Path) -> None:
    try:
        aside.chmod(0o755)  # mkdtemp's folders are their owner's only; a cache may be shared
        aside.rename(final)
    except OSError:
        if not final.is_dir():
            raise
        # Another process was first; its copy has the same content.


@contextlib.contextmanager
def _locked(final: Path, progress: Progress) -> Iterator[bool]:
    """Keep other processes from making the same copy; yields whether that could be done."""
    try:
        import fcntl

        path = user_cache() / "locks" / f"{final.name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = open(path, "a")  # noqa: SIM115  closed below, which frees the lock
    except ImportError:  # not a POSIX system
        yield False
        return
    except OSError as error:
        raise _unwritable(error) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = True
        except BlockingIOError:
            progress(1, STEPS, "waiting for another process that prepares it")
            fcntl.flock(handle, fcntl.LOCK_EX)
            alone = True
        except OSError:  # a file system without locks
            alone = False
        yield alone

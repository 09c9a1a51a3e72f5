"""Processed copies of datasets: made aside, renamed when complete, keyed by their content.

A data root is only read. PyG's and OGB's loaders write beside what they read, so raw files are
copied into the cache, processed there, and removed again: ``processed/<folder>-<key>/`` holds what
a loader needs to load without them. The key is a digest of the raw files, the versions of the
loaders and our own preprocessing, so an outdated copy is never used.

Three things make this safe for concurrent processes. The copy is made in a temporary folder and
renamed, which is atomic. A file lock lets one process work while others wait for its result; the
system releases it when its holder dies. On a file system without locks two processes do the same
work, and the second finds the first's copy and drops its own.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import shutil
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch_geometric

from virgo.errors import DataError
from virgo.experiments.data.roots import DataSource, user_cache
from virgo.report.files import write_text_atomically

Progress = Callable[..., None]
"""``progress(done, total, what)``, as :func:`virgo.cli.progress.reporting` returns."""

PREPROCESSING = 1
"""Raised whenever what we store of a dataset changes."""

LARGE = 4 * 2**20
"""Bytes from which a file's digest is remembered. Below, it is computed each time (2 ms)."""

FRESH = 2.0
"""Seconds after a change for which a digest is not remembered: file times may be that coarse."""

STEPS = 3


def silent(done: int, total: int, what: str = "") -> None:
    """Progress that is not shown."""


# --- the key -------------------------------------------------------------------------------------


def final_folder(source: DataSource, *, hashing: bool = True) -> Path | None:
    """The folder of the processed copy of ``source``, whether it exists or not.

    Args:
        source: a complete dataset.
        hashing: compute digests that are not remembered.

    Returns:
        The folder; ``None`` where a digest is needed and not ``hashing``, since there is no
        processed copy of a large file that was never read.
    """
    digest = hashlib.sha256(f"{PREPROCESSING} {torch_geometric.__version__}".encode())
    if source.entry.kind == "ogb":
        from importlib.metadata import PackageNotFoundError, version

        with contextlib.suppress(PackageNotFoundError):
            digest.update(version("ogb").encode())
    paths = [source.archive] if source.archive else [source.path(file) for file in source.files]
    for path in paths:
        file_digest = _digest(path, hashing=hashing)
        if file_digest is None:
            return None
        digest.update(f"{path.name} {file_digest}\n".encode())
    return user_cache() / "processed" / f"{source.entry.folder}-{digest.hexdigest()[:16]}"


def _digest(path: Path, *, hashing: bool) -> str | None:
    """SHA-256 of a file; that of a large one is remembered with its size and time."""
    state = path.stat()
    if state.st_size < LARGE:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    stamp = [state.st_size, state.st_mtime_ns]
    path_digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
    note = user_cache() / "digests" / f"{path_digest}.json"
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
        with contextlib.suppress(OSError):  # a cache that is not writable is reported later
            write_text_atomically(note, text)
    return digest.hexdigest()


# --- making the copy -----------------------------------------------------------------------------


def prepared(
    source: DataSource, process: Callable[[Path], None], progress: Progress = silent
) -> Path:
    """The folder with the processed copy of ``source``, which is made if it is not there.

    Args:
        source: the raw files.
        process: makes what the loader needs, given a folder with a copy of the raw files where the
            loader looks for them.
        progress: called before each step.

    Returns:
        The folder.

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
        if alone:  # remove what a killed process has left; we hold its lock
            for left in final.parent.glob(f".{final.name}-*"):
                shutil.rmtree(left, ignore_errors=True)
        temporary = _temporary_folder(final)
        try:
            with _disk_errors():
                progress(1, STEPS, "copying")
                _copy(source, temporary / source.entry.folder)
                progress(2, STEPS, "preparing, once")
                process(temporary)
            shutil.rmtree(temporary / source.entry.folder / "raw")
            _publish(temporary, final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return final


def _temporary_folder(final: Path) -> Path:
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    except OSError as error:
        raise _unwritable(error) from error


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    """Tell a full disk from a damaged file."""
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


def _copy(source: DataSource, folder: Path) -> None:
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
                with (
                    packed.open(members[Path(file).name]) as member,
                    open(folder / file, "wb") as out,
                ):
                    shutil.copyfileobj(member, out, 2**20)
    except (zipfile.BadZipFile, zlib.error, EOFError, LookupError, ValueError) as error:
        absent = isinstance(error, LookupError)
        raise DataError(
            f"{source.entry.name}: expected an intact {source.archive}, got "
            f"{'no ' if absent else ''}{error}. Fetch it again."
        ) from error


def _publish(temporary: Path, final: Path) -> None:
    try:
        temporary.chmod(0o755)  # mkdtemp's folders are private; a cache may be shared
        temporary.rename(final)
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
        handle = open(path, "a")  # noqa: SIM115  closed below, which releases the lock
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

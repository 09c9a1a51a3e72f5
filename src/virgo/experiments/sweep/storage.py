"""Optuna's database storage, made safe for workers that may be killed at any moment.

Optuna brings studies, trials and heartbeats. Three things are added here:

- On SQLite a transaction that may write takes the write lock when it begins. Optuna reads a
  trial's state and then changes it, and SQLite has no row locks: without this, two workers could
  both read "waiting" and both take the trial.
- A trial is given a heartbeat before it is taken. Optuna gives it one a moment later, and never
  calls a trial stale that has none: a worker killed in that moment would block it for ever.
- On its own machine a worker is looked up by its process id: a dead worker's trial is free at once,
  and a living one's is never taken, however late its heartbeat is.
"""

from __future__ import annotations

import os
import platform
import random
import sqlite3
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from virgo.errors import DataError, MissingExtra, OptionError, VirgoError

try:
    import optuna
    import sqlalchemy
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial, TrialState
except ImportError as missing:  # pragma: no cover
    raise MissingExtra("A sweep", "optuna", "sweep") from missing

WORKER = "worker"  # the attribute of a trial that says who runs it
GRACE = 60  # seconds without a heartbeat after which a worker on another machine counts as dead
Worker = dict[str, Any]  # host, process id and start time, as `myself` returns them


# --- opening ------------------------------------------------------------------------------------


def url_of(where: str | Path) -> str:
    """The database URL of a path or URL.

    Args:
        where: the path of an SQLite file, or an SQLite or PostgreSQL URL.

    Returns:
        The URL with the driver to use.

    Raises:
        OptionError: for any other kind of URL.

    >>> url_of("postgresql://me@host/sweeps")
    'postgresql+psycopg://me@host/sweeps'
    """
    text = str(where)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return f"sqlite:///{Path(text).expanduser().absolute()}"
    if scheme in ("postgresql", "postgres", "postgresql+psycopg"):
        url = f"postgresql+psycopg://{rest}"
        try:
            sqlalchemy.engine.make_url(url)
        except (sqlalchemy.exc.ArgumentError, ValueError) as error:  # a port that is no number
            raise OptionError(
                "--storage: expected postgresql://user@host:port/database, got another "
                "form. Write special characters of a password as %XX."
            ) from error
        return url
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return text
    raise OptionError(
        f"--storage: expected the path of an SQLite file or postgresql://..., got {_shown(text)}."
    )


def _shown(url: str) -> str:
    """The URL without its password."""
    try:
        return sqlalchemy.engine.make_url(url).render_as_string(hide_password=True)
    except (sqlalchemy.exc.ArgumentError, ValueError):  # a port that is no number
        return url.partition("://")[0] + "://..."


def open_storage(where: str | Path, *, grace: int = GRACE, create: bool = True) -> Storage:
    """Connect to a storage, and create its tables if it is new.

    Args:
        where: a path (SQLite) or a PostgreSQL URL.
        grace: seconds without a heartbeat after which a trial's worker counts as dead.
        create: whether an SQLite file may be created.

    Returns:
        The storage, to be closed after use.

    Raises:
        OptionError: for a bad URL or grace period.
        MissingExtra: if a driver is not installed.
        DataError: if the database is missing, cannot be opened or has another version's tables.
    """
    if grace < 1:
        raise OptionError(f"--grace: expected at least 1 second, got {grace}.")
    url = url_of(where)
    if url.startswith("sqlite:"):
        path = Path(url.removeprefix("sqlite:///"))
        if not create and not path.is_file():
            raise DataError(
                f"--storage: expected a sweep's database, got no file {path}. "
                f"Run virgo sweep first, or name the storage that it used."
            )
        _check_file(path, create=create)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    attempt = 0
    while True:
        attempt += 1
        try:
            with _quiet():
                return Storage(url, grace)
        except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            if "not a database" in str(error.__cause__ or error):
                _raise_damage(where, error)
            if attempt == 10 or not _is_creation_race(error):
                cause = error.__cause__ or error
                reason = " ".join(str(getattr(cause, "orig", None) or cause).split())
                raise DataError(
                    f"--storage: expected a database that can be opened, got {reason} for "
                    f"{_shown(url)}."
                ) from error
            time.sleep(random.Random().uniform(0.05, 0.5))
        except ImportError as error:
            raise MissingExtra("A PostgreSQL storage", "psycopg", "postgresql") from error
        except RuntimeError as error:  # another version's tables
            raise DataError(f"--storage {_shown(url)}: {error}") from error
        except _DAMAGE as error:
            _raise_damage(where, error)


def _raise_damage(where: str | Path, error: Exception) -> NoReturn:
    """As the one error of :func:`reading`."""
    with reading(where):
        raise error
    raise AssertionError("reading() raises")


def _check_file(path: Path, *, create: bool) -> None:
    """SQLite takes a file of a few bytes for an empty database, and writes over it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        begins = b""
        if path.is_file():
            with path.open("rb") as file:
                begins = file.read(16)
    except OSError as error:
        raise DataError(
            f"--storage: expected a file that can be opened or made, got {error.strerror} for "
            f"{path}. Name another."
        ) from error
    if path.is_dir() or (begins and begins != b"SQLite format 3\0") or not (create or begins):
        kind = "a folder" if path.is_dir() else "another file" if begins else "an empty file"
        raise DataError(
            f"--storage: expected a sweep's database, got {kind}: {path}. Name another file; if it "
            f"was a sweep's, move it away and make a new one from the exported records: virgo "
            f"sweep restore --records {_records_of(str(path))} --storage {path}."
        )


#: What Optuna and SQLAlchemy raise for a database whose bytes were changed.
_DAMAGE = (
    sqlalchemy.exc.SQLAlchemyError,
    optuna.exceptions.StorageInternalError,
    sqlite3.Error,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    OverflowError,
)


@contextmanager
def reading(where: str | Path) -> Iterator[None]:
    """What a damaged storage does to those who read it, as one error that says what to do.

    Args:
        where: the storage, for the message.

    Raises:
        DataError: the storage holds something else than what was written to it.
        VirgoError: as it was raised.
    """
    try:
        yield
    except VirgoError:
        raise
    except _DAMAGE as error:
        cause = error.__cause__ or error
        reason = " ".join(str(getattr(cause, "orig", None) or cause).split())[:200]
        shown = _shown(url_of(where))
        file = shown.removeprefix("sqlite:///")
        check = f" (sqlite3 {file} 'PRAGMA integrity_check' says more)" if file != shown else ""
        raise DataError(
            f"--storage: expected an intact database in {file}, got {type(cause).__name__}: "
            f"{reason}{check}. Move it away and make a new one from the exported records: virgo "
            f"sweep restore --records {_records_of(file)} --storage {file}."
        ) from error


def _records_of(file: str) -> str:
    """Where the records of a storage are most likely: beside it, or where they are published."""
    path = Path(file)
    if (own := path.with_suffix(".jsonl")).is_file():
        return str(own)
    beside = next(path.parent.glob("*.jsonl"), None) if path.is_file() else None
    return "results" if beside is None else str(path.parent)


def _is_creation_race(error: Exception) -> bool:
    """Whether another process created the tables at the same time; a retry then succeeds."""
    words = ("already exists", "locked", "duplicate", "unique")
    return any(word in str(error.__cause__ or error).lower() for word in words)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Optuna's warning that heartbeats are experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


# --- the storage --------------------------------------------------------------------------------


class Storage(RDBStorage):
    """Optuna's storage with the additions named at the top of this file.

    Args:
        url: a database URL as :func:`url_of` returns it.
        grace: seconds without a heartbeat after which a trial's worker counts as dead.
    """

    def __init__(self, url: str, grace: int = GRACE) -> None:
        self._thread = threading.local()
        try:
            super().__init__(
                url,
                engine_kwargs=_engine_options(url),
                heartbeat_interval=max(1, grace // 4),
                grace_period=grace,
            )
        except BaseException:
            if hasattr(self, "engine"):
                self.engine.dispose()  # or its connections stay open
            raise
        if url.startswith("sqlite:"):
            sqlalchemy.event.listen(self.engine, "begin", self._begin)

    def _begin(self, connection: sqlalchemy.Connection) -> None:
        reading = getattr(self._thread, "reading", False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Transactions in here only read, so they neither wait for writers nor block them."""
        self._thread.reading = True
        try:
            yield
        finally:
            self._thread.reading = False

    def take(self, trial: FrozenTrial) -> bool:
        """Set a waiting trial to running; False if another worker was first."""
        self.record_heartbeat(trial._trial_id)
        try:
            return self.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
        except UpdateFinishedTrialError:
            return False

    def fail_stale(self, study: optuna.Study) -> None:
        """Fail the running trials whose workers are dead."""
        for trial in self.trials(study):
            if trial.state != TrialState.RUNNING:
                continue
            alive = is_alive(trial.user_attrs.get(WORKER))
            if alive:  # its own heartbeat may be late
                self.record_heartbeat(trial._trial_id)
            elif alive is False:
                with suppress(UpdateFinishedTrialError):
                    self.set_trial_state_values(trial._trial_id, TrialState.FAIL)
        with _quiet():
            optuna.storages.fail_stale_trials(study)

    def study_names(self, attribute: str, table: str | None) -> list[str]:
        """The names of the studies that have an attribute, of one table or of all."""
        with self._reading():
            return [
                study.study_name
                for study in self.get_all_studies()
                if attribute in study.user_attrs
                and table in (None, study.user_attrs[attribute]["table"])
            ]

    def trials(self, study: optuna.Study) -> list[FrozenTrial]:
        """All trials of a study, not to be changed; those that have ended come from memory."""
        with self._reading():
            return study.get_trials(deepcopy=False)

    def close(self) -> None:
        """Close the connections."""
        self.remove_session()
        self.engine.dispose()


def _engine_options(url: str) -> dict[str, Any]:
    if not url.startswith("sqlite:"):
        # heartbeats are compared as the server's local time, which must be the same for everyone
        connect = {"options": "-c timezone=utc", "connect_timeout": 10}
        return {"pool_pre_ping": True, "connect_args": connect}
    # with isolation_level None the driver leaves it to `_begin` to begin transactions
    return {
        "connect_args": {"timeout": 60, "isolation_level": None},
        "pool_events": [(_tune, "connect")],
    }


def _tune(connection: Any, _: Any) -> None:
    """Let readers and a writer work at once; what is committed survives any kill of a process."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")


# --- who is alive -------------------------------------------------------------------------------


def myself() -> Worker:
    """This process, as :func:`is_alive` can look it up."""
    return worker_of(os.getpid())


def worker_of(pid: int) -> Worker:
    """A process of this machine, as :func:`is_alive` can look it up."""
    return {"host": _machine(), "pid": pid, "started": _started(pid)}


def is_alive(worker: Worker | None) -> bool | None:
    """Whether a process is alive; None if it is on another machine or unknown."""
    if not isinstance(worker, dict) or worker.get("host") != _machine() or os.name != "posix":
        return None
    pid = int(worker["pid"])
    if worker.get("started") is not None and sys.platform == "linux":
        return bool(_started(pid) == worker["started"])  # the pid may be in use again
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return True


def _machine() -> str:
    """This machine since its last boot; each container counts as a machine."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(os.stat("/proc/self/ns/pid").st_ino))
    return "/".join(parts)


def _started(pid: int) -> int | None:
    """When a process started, in ticks since boot; None if it is dead or unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])

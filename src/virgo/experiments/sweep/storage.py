"""Optuna's database storage, made safe for workers that may be killed at any moment.

Optuna brings studies, trials, heartbeats and retries. Four things are added here:

- On SQLite a transaction that may write takes the write lock when it begins. Optuna reads a
  trial's state and then changes it, and SQLite has no row locks: without this, two workers could
  both read "waiting" and both take the trial.
- A trial is given a heartbeat before it is taken. Optuna gives it one a moment later, and never
  calls a trial stale that has none: a worker killed in that moment would block it for ever.
- On the machine it runs on, a worker is looked up by its process id: a dead one's trial is free at
  once, and a living one's is never taken, however late its heartbeat is.
- Everything that touches Optuna's experimental parts is in this file.
"""

from __future__ import annotations

import os
import platform
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from virgo.errors import DataError, OptionError

try:
    import optuna
    import sqlalchemy
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial, TrialState
except ImportError as missing:  # pragma: no cover
    raise OptionError(
        f"sweep: expected the package optuna 4.9 or later, got {missing}. Install virgo-gnn[sweep]."
    ) from missing

WORKER = "worker"  # the attribute of a trial that says who runs it
GRACE = 60  # seconds without a heartbeat after which a worker on another machine counts as dead


# --- where it is --------------------------------------------------------------------------------


def url_of(where: str | Path) -> str:
    """The database URL of a path or URL.

    >>> url_of("postgresql://me@host/sweeps")
    'postgresql+psycopg://me@host/sweeps'
    """
    text = str(where)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return f"sqlite:///{Path(text).expanduser().absolute()}"
    if scheme in ("postgresql", "postgres", "postgresql+psycopg"):
        return f"postgresql+psycopg://{rest}"
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return text
    raise OptionError(
        f"--storage: expected the path of an SQLite file or postgresql://..., got {_shown(text)}."
    )


def _shown(url: str) -> str:
    """Without its password."""
    try:
        return sqlalchemy.engine.make_url(url).render_as_string(hide_password=True)
    except sqlalchemy.exc.ArgumentError:
        return url.partition("://")[0] + "://..."


def open_storage(where: str | Path, *, grace: int = GRACE, create: bool = True) -> Storage:
    """Connect to a storage, and make its tables if it is new.

    Args:
        where: a path (SQLite) or a PostgreSQL URL.
        grace: seconds without a heartbeat after which a trial's worker counts as dead.
        create: whether an SQLite file may be made.
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
        path.parent.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for attempt in range(10):
        try:
            with _quiet():
                return Storage(url, grace)
        except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            if attempt == 9 or not _passing(error):
                raise _unreachable(url, error) from error
            time.sleep(random.uniform(0.05, 0.5))
        except ImportError as error:
            raise OptionError(
                f"--storage: expected the package psycopg for {_shown(url)}, got {error}. "
                f"Install virgo-gnn[postgresql]."
            ) from error
        except RuntimeError as error:  # another version's tables
            raise DataError(f"--storage {_shown(url)}: {error}") from error
    raise AssertionError("not reached")


def _passing(error: Exception) -> bool:
    """Two that make the tables at once get in each other's way; a moment later they are there."""
    words = ("already exists", "locked", "duplicate", "unique")
    return any(word in str(error.__cause__ or error).lower() for word in words)


def _unreachable(url: str, error: Exception) -> DataError:
    cause = error.__cause__ or error
    reason = " ".join(str(getattr(cause, "orig", None) or cause).split())
    return DataError(
        f"--storage: expected a database that can be opened, got {reason} for {_shown(url)}."
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna warns that heartbeats and retries are experimental; we know."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


# --- the storage --------------------------------------------------------------------------------


class Storage(RDBStorage):
    """Optuna's storage with the additions named at the top of this file."""

    def __init__(self, url: str, grace: int = GRACE) -> None:
        self._here = threading.local()
        try:
            super().__init__(
                url,
                engine_kwargs=_engine_options(url),
                heartbeat_interval=max(1, grace // 4),
                grace_period=grace,
                heartbeat_stale_trial_callback=_retry,
            )
        except BaseException:
            if hasattr(self, "engine"):
                self.engine.dispose()  # or its connections stay open
            raise
        if url.startswith("sqlite:"):
            sqlalchemy.event.listen(self.engine, "begin", self._begin)

    def _begin(self, connection: Any) -> None:
        reading = getattr(self._here, "reading", False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Transactions in here only read, so they need not wait for writers, nor these for them."""
        self._here.reading = True
        try:
            yield
        finally:
            self._here.reading = False

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        if state == TrialState.RUNNING:
            self.record_heartbeat(trial_id)
        return super().set_trial_state_values(trial_id, state, values)

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        """By heartbeat, and by process id for workers of this machine."""
        stale = set(super()._get_stale_trial_ids(study_id))
        with self.reading():
            running = self.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,))
        for trial in running:
            alive = is_alive(trial.user_attrs.get(WORKER))
            if alive is not None:
                (stale.discard if alive else stale.add)(trial._trial_id)
        return sorted(stale)

    def give_up_stale(self, study: optuna.Study) -> None:
        """Fail the trials whose workers are dead, and put them in line again with their seeds."""
        with _quiet():
            optuna.storages.fail_stale_trials(study)

    def trials(self, study: optuna.Study) -> list[FrozenTrial]:
        """All trials of a study, those that ended from memory. To be read, not changed."""
        with self.reading():
            return study.get_trials(deepcopy=False)

    def close(self) -> None:
        """Give the connections back."""
        self.remove_session()
        self.engine.dispose()


def _engine_options(url: str) -> dict[str, Any]:
    if not url.startswith("sqlite:"):
        # heartbeats are compared as the server's local time: let it be the same for everyone
        connect = {"options": "-c timezone=utc", "connect_timeout": 10}
        return {"pool_pre_ping": True, "connect_args": connect}
    # without isolation_level the driver leaves it to us to begin transactions
    return {
        "connect_args": {"timeout": 60, "isolation_level": None},
        "pool_events": [(_tune, "connect")],
    }


def _tune(connection: Any, _: Any) -> None:
    """Readers and a writer at once; what is committed survives any kill of a process."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")


def _retry(study: optuna.Study, trial: FrozenTrial) -> None:
    """Optuna's retry, which keeps the seeds that are done, without the mark of the dead worker."""
    trial.user_attrs.pop(WORKER, None)
    with _quiet():
        again: Callable[..., None] = optuna.storages.RetryHeartbeatStaleTrialCallback()
        again(study, trial)


# --- who is alive -------------------------------------------------------------------------------


def myself() -> dict[str, Any]:
    """This process, as :func:`is_alive` can look it up."""
    return {"host": _machine(), "pid": os.getpid(), "started": started(os.getpid())}


def is_alive(worker: Any) -> bool | None:
    """Whether the process lives; None if it is on another machine, or nothing is known of it."""
    if not isinstance(worker, dict) or worker.get("host") != _machine() or os.name != "posix":
        return None
    pid = int(worker["pid"])
    if worker.get("started") is not None and sys.platform == "linux":
        return bool(started(pid) == worker["started"])  # a number may be in use again
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _machine() -> str:
    """This machine since it was started; each container is a machine of its own."""
    parts = [platform.node()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(os.stat("/proc/self/ns/pid").st_ino))
    except OSError:
        pass
    return "/".join(parts)


def started(pid: int) -> int | None:
    """When a process began, in ticks since the machine did; None if it is dead or unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])

"""Run one seed: the task, its dataset, and the versions it ran with."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import virgo
from virgo.errors import LayerError, VirgoError
from virgo.experiments.sweep.grids import GridCell
from virgo.experiments.sweep.records import Config, SeedResult
from virgo.experiments.tasks.calling import imported
from virgo.experiments.tasks.compute import CPU, Compute
from virgo.experiments.tasks.outcome import is_out_of_memory
from virgo.report.saving import versions


class Bench:
    """Runs seeds, and keeps the dataset that was used last.

    Args:
        runner: a function that runs a seed, or its ``module:function``.
        loader: a function that loads a dataset, or its ``module:function``.
        root: data root.
        curves: whether results keep the validation curve.
        compute: where and how seeds are run.
    """

    def __init__(
        self,
        runner: str | Callable[..., Any],
        loader: str | Callable[..., Any],
        root: str | None,
        curves: bool = False,
        compute: Compute = CPU,
    ) -> None:
        #: a runner of a test's own need not know of devices
        self._how = {} if compute == CPU else {"device": compute}
        self._words = compute.words()
        self._root, self._curves = root, curves
        self._run, self._load = (
            imported(part, "sweep") if isinstance(part, str) else part for part in (runner, loader)
        )
        self._dataset: tuple[str, Any] = ("", None)

    def _loaded(self, name: str) -> Any:
        if self._dataset[0] != name:
            self._dataset = ("", None)  # free the old dataset before the new one is loaded
            self._dataset = (name, self._load(name, self._root))
        return self._dataset[1]

    def facts(self, cell: GridCell) -> dict[str, object]:
        """What a trial runs with."""
        generated = getattr(self._loaded(cell.dataset), "generated", None)
        facts = {"generated": generated, "versions": versions(), "commit": commit()}
        own = getattr(self._run, "facts", None)
        return {**facts, "grid": cell.grid, **self._words, **(own(cell) if own else {})}

    def run(self, cell: GridCell, config: Config, seed: int) -> SeedResult:
        """Run one seed; an exception becomes its result, and so does a method's refusal.

        Args:
            cell: dataset, model and method.
            config: hyper-parameters.
            seed: the seed.

        Returns:
            The result in plain types.

        Raises:
            VirgoError: a mistake of the user, which ends the sweep.
        """
        start = time.perf_counter()
        try:
            dataset = self._loaded(cell.dataset)
            outcome = self._run(dataset, cell.model, cell.init, config, seed, **self._how)
        except LayerError as error:  # a method that is not for this network: the others go on
            return _ended(seed, "refused", str(error), start)
        except VirgoError:
            raise
        except Exception as error:
            status = "out of memory" if is_out_of_memory(error) else "failed"
            return _ended(seed, status, f"{type(error).__name__}: {error}", start)
        result = asdict(outcome)
        for name in ("valid", "test"):
            value = result[name]
            result[name] = float(value) if value is not None and math.isfinite(value) else None
        result["seconds"] = round(float(result["seconds"]), 4)
        curve = result.pop("curve", ())
        if self._curves:
            result["curve"] = [[epoch, round(valid, 6)] for epoch, valid in curve]
        return {"seed": seed, **result}


def _ended(seed: int, status: str, message: str, start: float) -> SeedResult:
    """The result of a seed that an exception has ended, in one short line."""
    text = " ".join(message.split())[:300]
    return failed(seed, status, text, round(time.perf_counter() - start, 4))


def failed(seed: int, status: str, message: str, seconds: float = 0.0) -> SeedResult:
    """The result of a seed that failed."""
    return {
        "seed": seed,
        "valid": None,
        "test": None,
        "epoch": 0,
        "epochs": 0,
        "seconds": seconds,
        "status": status,
        "message": message,
    }


@cache
def commit() -> str | None:
    """The commit of the checkout that this package is in; None if it is installed elsewhere."""
    source = Path(virgo.__file__).resolve().parent

    def git(*words: str) -> str:
        command = ["git", "-C", str(source), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        top, head = git("rev-parse", "--show-toplevel"), git("rev-parse", "--short", "HEAD")
        if Path(top).resolve() / "src" / "virgo" != source:
            return None  # another project's repository that this package is installed in
        changed = git("status", "--porcelain", "--", str(source))
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}-dirty" if changed else head

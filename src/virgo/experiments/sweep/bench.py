"""One seed at a time: the task, its dataset, and what it ran with."""

from __future__ import annotations

import importlib
import math
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import virgo
from virgo.errors import OptionError, VirgoError
from virgo.experiments.sweep.grids import Cell
from virgo.experiments.tasks.outcome import is_out_of_memory
from virgo.report.saving import versions


class Bench:
    """What a worker keeps at hand: the functions, and the dataset it used last."""

    def __init__(self, runner: str, loader: str, root: str | None, curves: bool = False) -> None:
        self._root, self._curves = root, curves
        self._run, self._load = imported(runner), imported(loader)
        self._dataset: tuple[str, Any] = ("", None)

    def dataset(self, name: str) -> Any:
        if self._dataset[0] != name:
            self._dataset = ("", None)  # let go of the old one before the new one comes
            self._dataset = (name, self._load(name, self._root))
        return self._dataset[1]

    def facts(self, cell: Cell) -> dict[str, Any]:
        """What a trial ran with."""
        generated = getattr(self.dataset(cell.dataset), "generated", None)
        return {"generated": generated, "versions": versions(), "commit": commit()}

    def run(self, cell: Cell, config: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """One seed. Whatever goes wrong in it is its result, except a mistake of the user's."""
        start = time.perf_counter()
        try:
            dataset = self.dataset(cell.dataset)
            outcome = self._run(dataset, cell.model, cell.init, config, seed)
        except VirgoError:
            raise
        except Exception as error:
            seconds = round(time.perf_counter() - start, 4)
            lack = is_out_of_memory(error)
            text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            return failed(seed, "out of memory" if lack else "failed", text, seconds)
        found = asdict(outcome)
        for name in ("valid", "test"):
            value = found[name]
            found[name] = float(value) if value is not None and math.isfinite(value) else None
        found["seconds"] = round(float(found["seconds"]), 4)
        curve = found.pop("curve", ())
        if self._curves:
            found["curve"] = [[epoch, round(valid, 6)] for epoch, valid in curve]
        return {"seed": seed, **found}


def failed(seed: int, status: str, message: str, seconds: float = 0.0) -> dict[str, Any]:
    """The result of a seed that has none."""
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


def imported(spec: str) -> Callable[..., Any]:
    """``module:function`` as the function."""
    module, _, name = spec.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise OptionError(
            f"sweep: expected a function {spec} to import, got {error}. Check the installation."
        ) from error
    return found


@cache
def commit() -> str | None:
    """The commit of the checkout that this package is in; None for an installed one."""
    source = Path(virgo.__file__).resolve().parent
    git = ["git", "-C", str(source)]
    try:
        top, head = (
            subprocess.run(
                [*git, "rev-parse", *what], capture_output=True, text=True, check=True
            ).stdout.strip()
            for what in (["--show-toplevel"], ["--short", "HEAD"])
        )
        if Path(top).resolve() / "src" / "virgo" != source:
            return None  # some other project's repository that we are installed in
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--", str(source)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}-dirty" if changed.strip() else head

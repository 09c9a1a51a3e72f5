"""What the storage takes of a trial's time, on SQLite with all cores working.

    python benchmarks/storage_share.py [--seconds 0.3] [--limit 144] [--jobs N]

Runs Cora's whole grid through the sweep's own engine with a task that does a fixed amount of work,
about as long as a real seed on a small graph. Each worker adds up the time it spends inside the
storage, its heartbeat thread included, and inside the task; the rest of its time is the engine's.
The parent's share is its processor time, by which it keeps the workers from a core. Rewrites
results/storage_share.json.
Without ``--publish`` the file goes to out/, and the published one stays as it is.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from optuna.trial import TrialState
from publishing import output_file

from virgo.experiments.sweep.grids import cells
from virgo.experiments.sweep.running import run
from virgo.experiments.sweep.storage import Storage
from virgo.experiments.sweep.worker import Sweep
from virgo.experiments.tasks import Outcome

SUMMARY = output_file("storage_share.json")
FOLDER, STEPS = "STORAGE_SHARE_FOLDER", "STORAGE_SHARE_STEPS"
TIMED = (
    "record_heartbeat",
    "set_trial_state_values",
    "set_trial_user_attr",
    "trials",
    "get_study_id_from_name",
    "get_study_user_attrs",
    "get_study_directions",
    "fail_stale",
)


# --- inside a worker ----------------------------------------------------------------------------


class Clock:
    """What this process has spent where; calls inside calls count once."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.storage = self.task = 0.0
        self.seeds = self.trials = 0
        self._inside = threading.local()

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **options: Any) -> Any:
            if getattr(self._inside, "now", False):
                return function(*args, **options)
            self._inside.now, start = True, time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self._inside.now = False
                self.storage += time.perf_counter() - start
                if function.__name__ == "set_trial_state_values" and TrialState.COMPLETE in args:
                    self.trials += 1
                    self.write()

        return wrapper

    def write(self) -> None:
        found = {
            "wall": time.perf_counter() - self.start,
            "storage": self.storage,
            "task": self.task,
            "seeds": self.seeds,
            "trials": self.trials,
        }
        (Path(os.environ[FOLDER]) / f"{os.getpid()}.json").write_text(json.dumps(found))


clock = Clock()


def load(name: str, root: str | None = None) -> str:
    """The first thing a worker does: from here on it is watched."""
    clock.start = time.perf_counter()
    for method in TIMED:
        setattr(Storage, method, clock.timed(getattr(Storage, method)))
    return name


def task(dataset: Any, model: str, init: str, config: Mapping[str, Any], seed: int) -> Outcome:
    start = time.perf_counter()
    busy(int(os.environ[STEPS]))
    seconds = time.perf_counter() - start
    clock.task += seconds
    clock.seeds += 1
    return Outcome(0.5, 0.5, 1, 1, seconds)


def busy(steps: int) -> None:
    x = torch.eye(64)
    for _ in range(steps):
        x = x @ x


# --- outside ------------------------------------------------------------------------------------


def steps_for(seconds: float) -> int:
    """How many steps take that long on a quiet core."""
    torch.set_num_threads(1)
    start, steps = time.perf_counter(), 20_000
    busy(steps)
    return max(1, round(steps * seconds / (time.perf_counter() - start)))


def measure(seconds: float, limit: int | None, jobs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        os.environ |= {FOLDER: name, STEPS: str(steps_for(seconds))}
        chosen = tuple(cells("table1", ["cora"], inits=["xavier"], limit=limit))
        sweep = Sweep(
            chosen, f"{name}/sweeps.db", runner="storage_share:task", loader="storage_share:load"
        )
        cpu, start = time.process_time(), time.perf_counter()
        done = run(sweep, jobs, lambda p: print(f"\r{p.seeds}/{p.total} seeds", end="", flush=True))
        elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu
        workers = [json.loads(path.read_text()) for path in sorted(Path(name).glob("*.json"))]
    total = {key: sum(worker[key] for worker in workers) for key in workers[0]}
    return {
        "seed_seconds": round(total["task"] / total["seeds"], 4),
        "trials": total["trials"],
        "seeds": done.total,
        "workers": len(workers),
        "cores": os.cpu_count(),
        "storage_share": round(total["storage"] / total["wall"], 5),
        "engine_share": round(1 - (total["task"] + total["storage"]) / total["wall"], 5),
        "parent_share": round(cpu / elapsed / jobs, 5),
        "storage_ms_a_trial": round(1000 * total["storage"] / total["trials"], 2),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    options.add_argument("--seconds", type=float, default=0.3, help="a seed (default 0.3)")
    options.add_argument("--limit", type=int, help="configurations (default: all 144)")
    options.add_argument("--jobs", type=int, default=max(2, os.cpu_count() or 2))
    options.add_argument("--json", type=Path, default=SUMMARY, help="where to write the numbers")
    args = options.parse_args()
    found = measure(args.seconds, args.limit, args.jobs)
    print()
    for key, value in found.items():
        print(f"{key:20} {value}")
    verdict = "reached" if found["storage_share"] < 0.05 else "missed"
    print(f"storage under 5 % of a trial's time: {verdict}")
    args.json.parent.mkdir(exist_ok=True)
    args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

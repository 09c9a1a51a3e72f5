"""What a training step on the CPU costs beside the same step before networks ran on any device.

    python benchmarks/device_step.py              # minutes; needs git and the commit
    python benchmarks/device_step.py --rounds 1   # a look; writes nothing

Two processes, one with this source and one with that of the commit before (from git's history),
take steps in turns, whoever is first changing from round to round. A ratio is the median over
rounds of a step's time now to the same round's time before; ``cpu_`` is processor time, in which
neighbours on the machine do not count. What is timed is 20 epochs on Cora, which are 20 steps, an
epoch of IMDB-BINARY, and two batches of ogbl-ddi.

Writes results/device_step.json with ``--publish``, otherwise out/device_step.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from publishing import ROOT, output_file
from turns import median_and_ratio

#: The last commit before networks ran on any device.
BEFORE = "f7875ca8"
#: Dataset -> network and settings.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "cora": ("gcn", {"num_layers": 3, "hidden_channels": 64, "dropout": 0.5}),
    "imdb-b": ("gin", {"num_layers": 5, "hidden_channels": 64, "dropout": 0.5, "batch_size": 32}),
    "ogbl-ddi": (
        "gcn",
        {"num_layers": 2, "hidden_channels": 256, "dropout": 0.5, "batch_size": 65536},
    ),
}
#: Epochs that are timed at once where one takes milliseconds.
EPOCHS = {"cora": 20}


def step_of(name: str) -> Callable[[], None]:
    """One step of a run that has begun."""
    import virgo
    from virgo.experiments.tasks import Settings, Training, task_of

    model, settings = CASES[name]
    task = task_of(virgo.data.load(name))
    if name == "ogbl-ddi":
        task.positive = task.positive[:, : 2 * settings["batch_size"]]
    training = Training(task, model, "virgo-backward", Settings.of(settings), 0)
    epoch = 0

    def step() -> None:
        nonlocal epoch
        for _ in range(EPOCHS.get(name, 1)):
            epoch += 1
            training.batches.train_epoch(training.model, training.optimiser, epoch)

    return step


def serve() -> None:
    """Take the name of a dataset per line; answer with the seconds of one step there."""
    import torch

    torch.set_num_threads(1)
    steps: dict[str, Callable[[], None]] = {}
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed
    for line in sys.stdin:
        name = line.strip()
        step = steps.get(name) or steps.setdefault(name, step_of(name))
        began = (time.perf_counter(), time.process_time())
        step()
        spent = (time.perf_counter() - began[0], time.process_time() - began[1])
        print(json.dumps(spent), file=answers, flush=True)


def worker(source: Path) -> subprocess.Popen[str]:
    """A process that serves with the package under ``source``."""
    return subprocess.Popen(
        [sys.executable, __file__, "--serve"],
        env=os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(process: subprocess.Popen[str], name: str) -> tuple[float, float]:
    """The seconds of one step, by the clock and of the processor."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(name + "\n")
    process.stdin.flush()
    clock, processor = json.loads(process.stdout.readline())
    return clock, processor


def measure(before: Path, rounds: int) -> dict[str, Any]:
    """Median milliseconds and ratios of every case."""
    workers = {"before": worker(before / "src"), "now": worker(ROOT / "src")}
    found: dict[str, Any] = {}
    try:
        for name in CASES:
            times: dict[str, list[tuple[float, float]]] = {"before": [], "now": []}
            for number in range(rounds + 1):
                for key in ("before", "now") if number % 2 else ("now", "before"):
                    spent = ask(workers[key], name)
                    if number:  # the first round compiles and fills caches
                        times[key].append(spent)
            cell: dict[str, Any] = {"model": CASES[name][0], **CASES[name][1]}
            for which, prefix in enumerate(("", "cpu_")):
                seconds, ratio = median_and_ratio(times, "now", "before", which)
                cell |= {f"{prefix}ms": round(1e3 * seconds, 2), f"{prefix}ratio": round(ratio, 3)}
            found[name] = cell
            print(f"{name}: {cell['cpu_ms']} ms of processor, x{cell['cpu_ratio']} of before")
    finally:
        for process in workers.values():
            process.communicate()  # the end of its input ends it
    return found


def main() -> None:
    if "--serve" in sys.argv:
        serve()
        return
    summary = output_file("device_step.json")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", default=BEFORE, help=f"commit (default {BEFORE})")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each (default 15)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "before.tar"
        git = ["git", "-C", str(ROOT), "archive", f"--output={archive}", args.before, "src"]
        subprocess.run(git, check=True)
        shutil.unpack_archive(archive, folder)
        found = measure(Path(folder), args.rounds)
    if args.rounds > 1:
        facts = {"command": f"python {' '.join(['benchmarks/device_step.py', *sys.argv[1:]])}"}
        facts |= {"before": args.before, "rounds": args.rounds, "threads": 1}
        summary.write_text(json.dumps(facts | {"steps": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""A task for the sweep's tests: really busy, deterministic, and it writes down what it does.

A dataset ``like:cora@<trick>`` makes it misbehave.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from virgo.errors import DataError
from virgo.experiments.tasks import Outcome


@dataclass(frozen=True)
class Dataset:
    name: str
    generated: str | None = None


def load(name: str, root: str | None = None) -> Dataset:
    if root == "nowhere":
        raise DataError("cora: expected files below nowhere, got none. Get them.")
    return Dataset(name, f"generated: {name}" if name.startswith("like:") else None)


def run(dataset: Dataset, model: str, init: str, config: Mapping[str, Any], seed: int) -> Outcome:
    start = time.perf_counter()
    what = json.dumps([dataset.name, model, init, config, seed], sort_keys=True)
    write_down("begin", what)
    trick(dataset.name.partition("@")[2], config, seed)
    digest = hashlib.sha256(what.encode()).digest()
    value = int.from_bytes(digest[:4], "big") / 2**32
    for _ in range(int(os.environ.get("STUB_WORK", "2000"))):
        digest = hashlib.sha256(digest).digest()
    status = "ok"
    if dataset.name.endswith("@diverge") and seed == 1:
        value, status = float("nan"), "diverged"
    write_down("end", what)
    return Outcome(value, 1 - value, 3, 7, time.perf_counter() - start, status)


def real(dataset: Any, model: str, init: str, config: Mapping[str, Any], seed: int) -> Any:
    """The real task, written down as well."""
    from virgo.experiments import tasks

    what = json.dumps([dataset.name, model, init, config, seed], sort_keys=True)
    write_down("begin", what)
    outcome = tasks.run(dataset, model, init, config, seed)
    write_down("end", what)
    return outcome


def trick(word: str, config: Mapping[str, Any], seed: int) -> None:
    if word == "fail" and seed == 1:
        raise ZeroDivisionError("a bug\nof two lines")
    if word == "memory" and seed == 0:
        torch.empty(2**60)
    if word == "memory" and seed == 1:
        raise MemoryError
    if word == "mistake" and seed == 1:
        raise DataError("cora: expected something else, got this. Mend it.")
    if word == "interrupt" and seed == 1 and not os.path.exists(os.environ["STUB_LOG"] + ".once"):
        open(os.environ["STUB_LOG"] + ".once", "w").close()
        raise KeyboardInterrupt
    if word == "suicide" and seed == 1 and config["lr"] == 0.05:
        os.kill(os.getpid(), 9)


def write_down(what: str, text: str) -> None:
    """One write, so that lines of several processes do not mix."""
    path = os.environ.get("STUB_LOG")
    if path:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, f"{what}\t{os.getpid()}\t{text}\n".encode())
        os.close(file)

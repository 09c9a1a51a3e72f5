"""What benchmarks share: several ways of doing one thing, timed in turns."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any


def in_turns(label: str, actions: dict[str, Callable[[], Any]], rounds: int) -> dict[str, dict]:
    """Each action's median time, and its ratio to the first one's."""
    times: dict[str, list[tuple[float, float]]] = {key: [] for key in actions}
    keys = list(actions)
    for number in range(rounds + 1):
        shift = number % len(keys)
        for key in keys[shift:] + keys[:shift]:
            start = (time.perf_counter(), time.process_time())
            actions[key]()
            if number:  # the first round compiles and fills caches
                spent = (time.perf_counter() - start[0], time.process_time() - start[1])
                times[key].append(spent)
        print(f"\r{label} {number}/{rounds}   ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    found = {}
    for key in keys:
        cell = {}
        for which, prefix in enumerate(("", "cpu_")):
            mine, first = ([spent[which] for spent in times[k]] for k in (key, keys[0]))
            ratios = [a / b for a, b in zip(mine, first, strict=True)]
            cell[f"{prefix}ms"] = round(1000 * statistics.median(mine), 1)
            cell[f"{prefix}ratio"] = round(statistics.median(ratios), 2)
        found[key] = cell
    return found

"""What benchmarks share: several ways of doing one thing, timed in turns."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

Times = dict[str, list[tuple[float, float]]]


def timed(label: str, actions: dict[str, Callable[[], Any]], rounds: int) -> Times:
    """Seconds by the clock and of the processor for each action, round by round."""
    times: Times = {key: [] for key in actions}
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
    return times


def median_and_ratio(times: Times, key: str, base: str, which: int = 0) -> tuple[float, float]:
    """The median of one action's seconds, and that of its ratios to another's, round by round."""
    mine, other = ([spent[which] for spent in times[k]] for k in (key, base))
    ratios = [a / b for a, b in zip(mine, other, strict=True)]
    return statistics.median(mine), statistics.median(ratios)


def in_turns(label: str, actions: dict[str, Callable[[], Any]], rounds: int) -> dict[str, dict]:
    """Each action's median time, and its ratio to the first one's."""
    times = timed(label, actions, rounds)
    base = next(iter(times))
    found = {}
    for key in times:
        cell = {}
        for which, prefix in enumerate(("", "cpu_")):
            median, ratio = median_and_ratio(times, key, base, which)
            cell[f"{prefix}ms"] = round(1000 * median, 1)
            cell[f"{prefix}ratio"] = round(ratio, 2)
        found[key] = cell
    return found

"""How many cores there are to use."""

from __future__ import annotations

import os


def cores() -> int:
    """Those that this process may use, which a container or ``taskset`` may have narrowed."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

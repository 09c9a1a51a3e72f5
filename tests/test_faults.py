"""Damaged files, kills, full disks, load: benchmarks/reliability.py with fewer tries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import reliability

FUZZED = [name for name in reliability.EXPERIMENTS if name.startswith("damaged")]
MOUNTED = ("full disk", "read-only disk")
#: How much of the benchmark's tries the slow tests make.
SHARE = {"damaged graphs": 1.0, "damaged builds": 0.2, "bits of 1 and 2 threads": 1.0}


def test_a_few_damaged_graphs() -> None:
    """In a process of its own, so that nothing of this one's is forked."""
    script = Path(__file__).parent / "kit" / "fuzz.py"
    done = subprocess.run(
        [sys.executable, str(script), "graphs", "0", "80"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert '"bad": []' in done.stdout, done.stdout
    assert '"refused"' in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in reliability.EXPERIMENTS if n != "hostile calls"])
def test_a_fault(name: str) -> None:
    if name in MOUNTED and os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    result = reliability.run(name, SHARE.get(name, 0.1))
    assert result["tried"] >= 1
    assert result["bad"] == []

"""Commands of these tests are quiet about their progress, however slow the machine is."""

from __future__ import annotations

import pytest

from virgo.cli import progress


@pytest.fixture(autouse=True)
def _no_log_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST", 600.0)

"""docs/leads.py: what was tried on the cells of Table 1, on records made by hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from virgo.experiments.sweep.records import Record
from virgo.experiments.sweep.selection import Space
from virgo.experiments.sweep.tables import ResultsTable, build

ROOT = Path(__file__).resolve().parent.parent
SMALL, LARGE = {"lr": 0.01}, {"lr": 0.05}
SPACE = Space((SMALL, LARGE))


@pytest.fixture(scope="module")
def leads() -> ModuleType:
    spec = importlib.util.spec_from_file_location("leads", ROOT / "docs" / "leads.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["leads"] = module
    spec.loader.exec_module(module)
    return module


def record(config: dict[str, Any], valid: float, test: float, init: str = "xavier") -> Record:
    """Ten seeds whose test values are 0.1 points apart from the mean, to and fro."""
    seeds = tuple(
        {
            "seed": s, "valid": valid, "test": test + (0.001 if s % 2 else -0.001),
            "epoch": 1, "epochs": 1, "seconds": 1.0, "status": "ok",
        }
        for s in range(10)
    )  # fmt: skip
    return Record("table1", "cora", "gcn", init, config, seeds)


def table(records: list[Record]) -> ResultsTable:
    own = [one for one in records if one.init == "xavier" and "strict" not in one.config]
    return build("table1", own, lambda *_: SPACE).ran()


def test_a_tie_by_validation_is_found_and_a_worse_configuration_is_not(leads: ModuleType) -> None:
    # the paper has 81.50 ± 0.20 for Xavier on Cora
    chosen, tie = record(SMALL, 0.81, 0.83), record(LARGE, 0.807, 0.815)
    (lead,) = leads.collect(table([chosen, tie]).cells, [chosen, tie], {"cora": SPACE.configs})
    assert [round(one.mean, 2) for one in lead.ties] == [83.0, 81.5]
    assert not lead.chosen.near(lead.paper)
    assert lead.nearest.near(lead.paper)
    assert leads.explained([lead]) == (1, 1)
    worse = record(LARGE, 0.805, 0.815)  # 0.5 points of validation: 2.5 nodes of 500
    (lead,) = leads.collect(table([chosen, worse]).cells, [chosen, worse], {"cora": SPACE.configs})
    assert len(lead.ties) == 1
    assert leads.explained([lead]) == (0, 1)
    assert "Not explained by it: cora xavier." in leads.words([lead])


def test_strict_stopping_is_compared_with_the_same_configurations(leads: ModuleType) -> None:
    plain = [record(SMALL, 0.81, 0.83), record(LARGE, 0.80, 0.82)]
    strict = record({**LARGE, "strict": True}, 0.80, 0.815)
    released = record(LARGE, 0.80, 0.825, "xavier+released")
    records = [*plain, strict, released]
    (lead,) = leads.collect(table(records).cells, records, {"cora": SPACE.configs})
    new, old = lead.strict
    assert (round(new.mean, 2), round(old.mean, 2)) == (81.5, 82.0)  # not the chosen 83.0
    new, old = lead.released
    assert (round(new.mean, 2), round(old.mean, 2)) == (82.5, 82.0)
    (row,) = leads.rows([lead])
    assert row[-2:] == ["**81.50 ± 0.11** (-0.50)", "82.50 ± 0.11 (+0.50)"]
    assert "brings 1 of 1 cells" in leads.words([lead])

"""The numbers of the paper's Tables 1, 2 and 3, from ``paper.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

Key = tuple[str, str, str]  # dataset, model, init, in this package's words


class Printed(NamedTuple):
    """A cell of the paper, in percent."""

    mean: float
    sd: float


@cache
def printed(table: str) -> Mapping[Key, Printed]:
    """Return the paper's cells of a table in its order; none for a table that it lacks.

    >>> printed("table1")["cora", "gcn", "xavier"]
    Printed(mean=81.5, sd=0.2)
    >>> len(printed("table1")), len(printed("table2")), len(printed("table3")), printed("depth")
    (36, 64, 40, {})
    """
    paper = json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))
    names = paper["names"]
    cells: dict[Key, Printed] = {}
    for cell in paper["cells"]:
        if cell["table"] == table:
            key = (
                names["datasets"][table][cell["dataset"]],
                names["models"][cell["model"]],
                names["methods"][cell["method"]],
            )
            assert key not in cells, f"paper.json has {key} twice"
            cells[key] = Printed(cell["mean"], cell["sd"])
    return cells

"""The paper's tables, and ours of depth, from raw records: ``build("table1", records)``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from virgo.errors import OptionError
from virgo.experiments.sweep import grids, rendering, settling
from virgo.experiments.sweep.contrasts import Contrast, contrasts
from virgo.experiments.sweep.layouts import View, view
from virgo.experiments.sweep.paper import printed
from virgo.experiments.sweep.protocols import PROTOCOLS, RELEASED, at_best_epoch
from virgo.experiments.sweep.provenance import Provenance
from virgo.experiments.sweep.records import Config, Record
from virgo.experiments.sweep.remarks import incomparable, remarks
from virgo.experiments.sweep.selection import Space, select
from virgo.experiments.sweep.statistics import paired
from virgo.experiments.sweep.verdicts import Place, ResultCell, Verdict, judged, overlap_of, ranked
from virgo.report.files import as_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Methods whose baseline is another one.
OURS = ("auto", "virgo", "virgo-forward", "virgo-backward")
SpaceOf = Callable[[str, str, str], Space | None]

Name = TypeVar("Name", str, Place)
#: The title of each table.
TABLES = {
    "table1": "Table 1: node classification, test accuracy (ogbn-proteins: ROC-AUC) in percent",
    "table2": "Table 2: link prediction, test Hits@20 (ogbl-ddi), Hits@50 (ogbl-collab), MRR "
    "(ogbl-citation2), Hits@100 (ogbl-ppa) in percent",
    "table3": "Table 3: graph classification, test accuracy (ogbg-molhiv: ROC-AUC, ogbg-molpcba: "
    "average precision) in percent",
    "depth": "Depth: node classification with more layers, test accuracy in percent",
}


@dataclass(frozen=True)
class ResultsTable:
    """A finished table.

    Attributes:
        name: "table1", "table2", "table3" or "depth".
        methods: the rows.
        places: the columns, each with one cell per method.
        verdicts: the paired tests of the columns.
        remarks: the sentences below the table.
        provenance: what the table was made from.
        histories: validation curves of the columns that have them.
        contrasts: in a study of a user's own, every method against the baseline.
        heading: the title, where it is none of the paper's tables.
        only_ran: whether cells that were not run are left empty.
    """

    name: str
    methods: tuple[str, ...]
    places: Mapping[Place, tuple[ResultCell, ...]]
    verdicts: tuple[Verdict, ...]
    remarks: tuple[str, ...]
    provenance: Provenance = field(repr=False)
    histories: Mapping[Place, Sequence[settling.History]] = field(default_factory=dict, repr=False)
    contrasts: tuple[Contrast, ...] = ()
    heading: str = ""
    only_ran: bool = False

    @property
    def title(self) -> str:
        """What the table shows."""
        return self.heading or TABLES[self.name]

    def ran(self) -> ResultsTable:
        """The same table with only what was run; between such cells others are empty."""
        places = {p: cells for p, cells in self.places.items() if any(c.chosen for c in cells)}
        rows = {cell.init for cells in places.values() for cell in cells if cell.chosen}
        methods = tuple(method for method in self.methods if method in rows)
        kept = {p: tuple(c for c in cells if c.init in rows) for p, cells in places.items()}
        verdicts = tuple(verdict for verdict in self.verdicts if verdict.virgo)
        return replace(self, methods=methods, places=kept, verdicts=verdicts, only_ran=True)

    @property
    def cells(self) -> list[ResultCell]:
        """All cells, column by column."""
        return [cell for cells in self.places.values() for cell in cells]

    def cell(
        self, dataset: str, init: str, model: str = "gcn", layers: int | None = None
    ) -> ResultCell:
        """One cell.

        Args:
            dataset: the column's dataset.
            init: the method.
            model: the column's model.
            layers: the column's depth, in the table of depths.

        Returns:
            The cell.

        Raises:
            OptionError: if the table has no such cell.
        """
        for cell in self.places.get(Place(dataset, model, layers), ()):
            if cell.init == init:
                return cell
        raise OptionError(
            f"cell: expected one of {', '.join(str(p) for p in self.places)} and one of "
            f"{', '.join(self.methods)}, got {dataset}, {model}, {layers}, {init}. Choose others."
        )

    def verdict(self, dataset: str, model: str = "gcn", layers: int | None = None) -> Verdict:
        """Whether Virgo is better in one column."""
        return next(v for v in self.verdicts if v.place == Place(dataset, model, layers))

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain types."""
        return {
            "table": self.name,
            "title": self.title,
            "cells": [
                {**rendering.flat(cell), "over_xavier": _over(cell, cells, "xavier")}
                for cells in self.places.values()
                for cell in cells
            ],
            "verdicts": [{**asdict(v), "place": v.place._asdict()} for v in self.verdicts],
            **(
                {"contrasts": [{**asdict(c), "place": c.place._asdict()} for c in self.contrasts]}
                if self.contrasts
                else {}
            ),
            "remarks": list(self.remarks),
            "provenance": asdict(self.provenance),
            "curves": [
                settling.plain(place, history)
                for place, histories in self.histories.items()
                for history in histories
            ],
        }

    def to_json(self, indent: int | None = 1) -> str:
        """Everything as JSON."""
        return rendering.to_json(self.to_dict(), indent)

    def to_markdown(self, *, details: bool = True) -> str:
        """Markdown in the paper's layout; with ``details`` also the chosen configurations."""
        return rendering.to_markdown(self._view(details))

    def to_latex(self) -> str:
        """The table alone for a paper; needs ``\\usepackage{booktabs}``."""
        return rendering.to_latex(self._view(False))

    def to_csv(self) -> str:
        """One line per cell, with its rank."""
        return rendering.to_csv([rendering.flat(cell) for cell in self.cells])

    def to_html(self) -> str:
        """One page that opens offline, light or dark."""
        return rendering.to_html(self._view(True))

    def __str__(self) -> str:
        return rendering.to_text(self._view(False))

    def _view(self, details: bool) -> View:
        return view(self, details=details)

    def figure(self) -> Figure:
        """Differences to Xavier with their intervals; for depth, accuracy against depth."""
        from virgo.report import results

        draw = results.accuracy_over_depth if self.name == "depth" else results.differences
        return draw(self.to_dict())

    def curves_figure(self) -> Figure:
        """Validation by epoch: one panel per dataset and model, one line per method."""
        from virgo.report import results

        return results.validation_curves(self.to_dict())

    def save(self, path: str | Path) -> Path:
        """Write the table in the format of the path's ending.

        Args:
            path: ends in ``.md``, ``.tex``, ``.csv``, ``.html``, ``.json``, ``.txt``, or for a
                figure in ``.png``, ``.pdf`` or ``.svg``.

        Returns:
            The path.

        Raises:
            OptionError: for any other ending.
        """
        path = as_path(path)
        kind = path.suffix.lower()
        texts = {
            ".md": self.to_markdown,
            ".tex": self.to_latex,
            ".csv": self.to_csv,
            ".html": self.to_html,
            ".json": self.to_json,
            ".txt": self.__str__,
        }
        pictures = (".png", ".pdf", ".svg")
        if kind not in (*texts, *pictures):
            raise OptionError(
                f"save: expected a path that ends in {', '.join([*texts, *pictures])}, got "
                f"{path.name!r}. Choose one."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind in pictures:
            self.figure().savefig(path, dpi=200)
        else:
            path.write_text(texts[kind](), encoding="utf-8")
        return path


def build(
    table: str,
    records: Iterable[Record],
    space: SpaceOf | None = None,
    *,
    grid: str = grids.PRINTED,
    protocol: str = grids.VALIDATION,
    where: Mapping[str, str] | None = None,
) -> ResultsTable:
    """Build a table from raw records; without any, every cell says "not run".

    Args:
        table: "table1", "table2", "table3" or "depth".
        records: records of any tables; those of other tables are left out.
        space: ``(table, dataset, model) -> Space`` to be searched; the paper's grids if None.
        grid: the name of the grid to be searched, e.g. "reproduces".
        protocol: "released" for the records whose epoch is chosen on test, and only those.
        where: only the grid's configurations with these values, as ``virgo sweep --where`` runs.

    Returns:
        The table.

    Raises:
        OptionError: if there is no such table, grid or protocol.
    """
    if table not in TABLES:
        raise OptionError(f"table: expected one of {', '.join(TABLES)}, got {table!r}. Choose one.")
    if protocol not in PROTOCOLS:
        raise OptionError(
            f"protocol: expected one of {', '.join(PROTOCOLS)}, got {protocol!r}. Choose one."
        )
    grids.grids(table, grid)  # an unknown name is an error
    space = space or partial(space_of, name=grid, where=where)
    mine = [r for r in records if r.table == table and (r.protocol or grids.VALIDATION) == protocol]
    if where:
        mine = [r for r in mine if grids.has_values(r.config, where)]
    if protocol == RELEASED:
        mine = [at_best_epoch(record) for record in mine]
    by_cell: dict[tuple[Place, str], list[Record]] = {}
    for record in mine:
        by_cell.setdefault((_place(record), record.init), []).append(record)
    methods = tuple(_with_others(grids.inits(table), {init for _, init in by_cell}))
    places: dict[Place, tuple[ResultCell, ...]] = {}
    for place in _with_others(_known(table), {place for place, _ in by_cell}):
        searched = _space(table, place, space)
        cells = []
        for init in methods:
            chosen = select(by_cell.get((place, init), ()), searched)
            paper = printed(table).get((place.dataset, place.model, init))
            cells.append(ResultCell(place, init, chosen, paper))
        places[place] = tuple(ranked(cells))
    verdicts = judged(places)
    histories, cut_short = {}, []
    for place, column in places.items():
        by_method = {init: by_cell.get((place, init), []) for init in methods}
        if kept := settling.of_cells(column, by_method):
            histories[place] = kept
            cut_short.append(settling.remark(place, column, kept))
    lines = [*remarks(places, verdicts, table), *(line for line in cut_short if line)]
    words = [f"grid: {grid}"] * (grid != grids.PRINTED) + [PROTOCOLS[protocol]]
    words += ["only " + ", ".join(f"{k} {v}" for k, v in where.items())] if where else []
    heading = "; ".join([TABLES[table], *(word for word in words if word)])
    return ResultsTable(
        table,
        methods,
        places,
        tuple(verdicts),
        tuple(lines),
        Provenance.of(mine),
        {} if protocol == RELEASED else histories,
        heading=heading,
    )


def build_study(
    name: str,
    records: Sequence[Record],
    methods: Sequence[str],
    columns: Sequence[str] = (),
    space: Space | None = None,
    baseline: str | None = None,
) -> ResultsTable:
    """The table of a user's own study.

    Args:
        name: of the study.
        records: its records.
        methods: the rows, in order.
        columns: grid keys each of whose values makes a column.
        space: the configurations that were to be searched, and the seeds.
        baseline: what the others are compared with; by default the first method that is not one
            of Virgo's.

    Returns:
        The table.
    """
    base = baseline or next((m for m in methods if m.split("+")[0] not in OURS), methods[0])
    by_cell: dict[tuple[Place, str], list[Record]] = {}
    for record in records:
        by_cell.setdefault((_column(record, columns), record.init), []).append(record)
    places: dict[Place, tuple[ResultCell, ...]] = {}
    for place in dict.fromkeys(place for place, _ in by_cell):
        searched = space and Space(
            tuple(c for c in space.configs if _part(c, columns) == place.layers), space.seeds
        )
        cells = [
            ResultCell(place, init, select(by_cell.get((place, init), ()), searched), None)
            for init in methods
        ]
        places[place] = tuple(ranked(cells))
    lines = [line for place, cells in places.items() for line in incomparable(place, cells)]
    generated = {(r.dataset, r.generated) for r in records if r.generated}
    lines += [f"{dataset} is generated data: {words}." for dataset, words in sorted(generated)]
    return ResultsTable(
        name,
        tuple(methods),
        places,
        (),
        tuple(lines),
        Provenance.of(records),
        contrasts=tuple(contrasts(places, base)),
        heading=f"{name}: test value in percent",
    )


def _column(record: Record, columns: Sequence[str]) -> Place:
    return Place(record.dataset, record.model, _part(record.config, columns))


def _part(config: Config, columns: Sequence[str]) -> int | str | None:
    if list(columns) == ["num_layers"]:
        return int(config["num_layers"])
    return ", ".join(f"{key}={config[key]}" for key in columns) or None


def space_of(
    table: str,
    dataset: str,
    model: str,
    name: str = grids.PRINTED,
    where: Mapping[str, str] | None = None,
) -> Space | None:
    """The grid of a sweep of this table; None for a dataset or model that the table lacks."""
    try:
        chosen = grids.grid(table, dataset, model, name)
        return Space(tuple(grids.matching(chosen, where or {}, f"{dataset}, {model}")))
    except OptionError:
        return None


def _space(table: str, place: Place, of: SpaceOf) -> Space | None:
    space = of(table, place.dataset, place.model)
    if space is None or place.layers is None:
        return space
    configs = tuple(c for c in space.configs if c.get("num_layers") == place.layers)
    return Space(configs, space.seeds) if configs else None


def _place(record: Record) -> Place:
    layers = int(record.config["num_layers"]) if record.table == "depth" else None
    return Place(record.dataset, record.model, layers)


def _known(table: str) -> list[Place]:
    """The paper's columns in its order; of depth, every depth of every dataset."""
    if table != "depth":
        return list(dict.fromkeys(Place(dataset, model) for dataset, model, _ in printed(table)))
    return [
        Place(dataset, model, layers)
        for grid in grids.grids(table)
        for dataset in grid.datasets
        for model in grid.models
        for layers in grid.ours["num_layers"]
    ]


def _over(cell: ResultCell, cells: Sequence[ResultCell], base: str) -> dict[str, float] | None:
    """The difference to the ``base`` method in points with its interval, if they compare."""
    other = next((c for c in cells if c.init == base), None)
    if other is None or not (cell.comparable and other.comparable) or cell.n < 2:
        return None
    assert cell.chosen is not None
    assert other.chosen is not None
    overlap = overlap_of(cell.place.dataset)
    test = paired(cell.chosen.tests, other.chosen.tests, overlap=overlap)
    return {"difference": test.difference, "low": test.low, "high": test.high}


def _with_others(known: Iterable[Name], ran: set[Name]) -> list[Name]:
    """The table's own rows or columns in their order, then the others that were run."""
    return list(known) + sorted(ran - set(known))

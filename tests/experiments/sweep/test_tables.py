"""From raw records to the paper's tables: selection, ranks, verdicts, layout, formats."""

from __future__ import annotations

import csv
import html.parser
import io
import itertools
import json
import math
import random
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from virgo.cli import tables as command
from virgo.errors import DataError, OptionError
from virgo.experiments.sweep import grids, records
from virgo.experiments.sweep.paper import printed
from virgo.experiments.sweep.records import Record
from virgo.experiments.sweep.selection import Chosen, Space, select
from virgo.experiments.sweep.tables import Place, ResultsTable, build
from virgo.experiments.sweep.verdicts import overlap_of

CHECKOUT = Path(__file__).resolve().parents[3]
CONFIGS = tuple({"lr": lr, "dropout": d} for lr in (0.001, 0.01) for d in (0.0, 0.5))
SPACE = Space(CONFIGS, seeds=4)
CLASSIC = ("lecun", "xavier", "kaiming-forward", "kaiming-backward")


def result(seed: int, valid: float | None, test: float | None, status: str = "ok") -> Any:
    return {
        "seed": seed,
        "valid": valid,
        "test": test,
        "epoch": 9,
        "epochs": 29,
        "seconds": 0.5,
        "status": status,
    }


def record(
    config: Mapping[str, Any],
    valid: Sequence[float],
    test: Sequence[float] | None = None,
    *,
    init: str = "xavier",
    dataset: str = "cora",
    model: str = "gcn",
    table: str = "table1",
    **more: Any,
) -> Record:
    """A record with one seed a value; -1 is a seed that diverged."""
    seeds = tuple(
        result(i, None, None, "diverged") if v < 0 else result(i, v, t)
        for i, (v, t) in enumerate(zip(valid, test or valid, strict=True))
    )
    more = {"versions": {"virgo": "0"}, "commit": "abc", "time": "2026-01-02T03:04:05Z", **more}
    return Record(table, dataset, model, init, config, seeds, **more)


def chosen(*given: Record, space: Space | None = SPACE) -> Chosen:
    found = select(given, space)
    assert found is not None
    return found


def grid_records(
    dataset: str = "cora",
    *,
    means: Mapping[str, float],
    seeds: int = 10,
    table: str = "table1",
    model: str = "gcn",
    limit: int | None = None,
) -> list[Record]:
    """The whole grid for some methods: one configuration is the best, seeds share their noise."""
    found = []
    for cell in grids.cells(table, [dataset], [model], list(means), limit=limit):
        draw = random.Random(cell.name)
        best = draw.randrange(len(cell.configurations))
        for i, config in enumerate(cell.configurations):
            level = means[cell.init] - (0 if i == best else draw.uniform(0.02, 0.1))
            values = [
                round(level + random.Random(s).gauss(0, 0.01) + draw.gauss(0, 0.002), 4)
                for s in range(seeds)
            ]
            found.append(
                record(config, values, init=cell.init, dataset=dataset, table=table, model=model)
            )
    return found


LEVELS = dict.fromkeys(grids.inits("table1"), 0.80)


@pytest.fixture(scope="module")
def table1() -> ResultsTable:
    """Cora with a clear winner of ours, CiteSeer with a classic one, PubMed with none."""
    given = [
        *grid_records("cora", means={**LEVELS, "virgo-backward": 0.82}),
        *grid_records("citeseer", means={**LEVELS, "lecun": 0.83}),
        *grid_records("pubmed", means=LEVELS, limit=12),
    ]
    return build("table1", given)


# --- the paper's numbers ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tex() -> str:
    folder = CHECKOUT.parent / "shared" / "paper"
    if not folder.is_dir():
        pytest.skip("the paper's source is not beside the checkout")
    return next(folder.glob("*.tex")).read_text(encoding="utf-8")


RAW = json.loads((CHECKOUT / "src/virgo/experiments/sweep/paper.json").read_text(encoding="utf-8"))
COLOURS = {"red": 1, "blue": 2}


def from_tex(tex: str, table: str) -> list[tuple[str, str, str, float, float, int | None]]:
    """(model, method, dataset, mean, sd, place by colour) of every cell, in order."""
    body = tex.split(rf"\label{{{RAW['labels'][table]}}}")[1].split(r"\end{tabular}")[0]
    body = re.sub(r"\\multirow(?:cell)?\{\d\}(?:\{\*\})?\{([^}]*)\}", r"\1", body)
    body = re.sub(r"\\makecell\[c\]\{(\w+)\}", r"\1", body).replace("NGNN-\\\\", "NGNN-")
    lines = [re.sub(r"\\(?:midrule|toprule|bottomrule)", "", line) for line in body.split("\\\\")]
    header = next(line for line in lines if re.search(r"& *(cora|ddi|imdb)", line))
    datasets = [
        re.sub(r"\$_?\{?(\w+)\}?\$", r"\1", cell).replace("productssage", "products").strip()
        for cell in header.replace("imdb$_", "imdb_$").split("&")
        if cell.strip()
    ]
    found, model = [], ""
    for line in lines:
        cells = [cell.strip() for cell in line.split("&")]
        if "±" not in line:
            continue
        values = cells[-len(datasets) :]
        method = cells[-len(datasets) - 1]
        if table != "table1":
            model = cells[0] or model
        for dataset, value in zip(datasets, values, strict=True):
            colour = re.match(r"\\textcolor\{(\w+)\}", value)
            mean, sd = re.findall(r"[\d.]+", value.split("}{")[-1])
            kind = model or ("GraphSAGE" if dataset == "products" else "GCN")
            place = COLOURS[colour[1]] if colour else None
            found.append((kind, method, dataset, float(mean), float(sd), place))
    return found


@pytest.mark.parametrize(("table", "count"), [("table1", 36), ("table2", 64), ("table3", 40)])
def test_the_papers_numbers_are_those_of_its_source(table: str, count: int, tex: str) -> None:
    expected = [cell[:5] for cell in from_tex(tex, table)]
    ours = [
        (c["model"], c["method"], c["dataset"], c["mean"], c["sd"])
        for c in RAW["cells"]
        if c["table"] == table
    ]
    assert ours == expected
    assert len(ours) == len(printed(table)) == count


@pytest.mark.parametrize("table", ["table1", "table2", "table3"])
def test_the_papers_colours_are_our_ranks(table: str, tex: str) -> None:
    """Its means as if we had measured them: first and second are where it has red and blue."""
    given = []
    for (dataset, model, init), (mean, _) in printed(table).items():
        values = [mean / 100] * 2
        given.append(
            record({"lr": 1}, values, dataset=dataset, model=model, init=init, table=table)
        )
    found = build(table, given, lambda *_: None)
    names = RAW["names"]
    for kind, method, dataset, mean, _, place in from_tex(tex, table):
        cell = found.cell(
            names["datasets"][table][dataset], names["methods"][method], names["models"][kind]
        )
        assert cell.difference == pytest.approx(0, abs=1e-9)
        tied = sum(c.mean == pytest.approx(cell.mean) for c in found.places[cell.place]) > 1
        assert (cell.rank if cell.rank in (1, 2) else None) == (1 if tied else place), (cell, mean)


def test_the_grids_and_the_paper_have_the_same_columns() -> None:
    for table in ("table1", "table2", "table3"):
        assert {dataset for dataset, _, _ in printed(table)} == set(grids.datasets(table))
        assert {init for _, _, init in printed(table)} <= set(grids.inits(table))


# --- selection ----------------------------------------------------------------------------------


def slow_selection(given: Sequence[Record], full: int) -> tuple[Any, float, float, int]:
    """The paper's sentence, word for word: best mean on validation, then mean and sd on test."""
    best = None
    for one in given:
        if len(one.seeds) == full and all(s["status"] == "ok" for s in one.seeds):
            valid = statistics.fmean(s["valid"] for s in one.seeds)
            if best is None or valid > best[0]:
                best = (valid, one)
    assert best is not None
    tests = [100 * s["test"] for s in best[1].seeds]
    return best[1].config, statistics.fmean(tests), statistics.stdev(tests), len(tests)


@pytest.mark.parametrize("seed", range(8))
def test_selection_against_a_slow_reference(seed: int) -> None:
    draw = random.Random(seed)
    given = []
    for config in CONFIGS:
        length = draw.choice([4, 4, 4, 2])
        valid = [draw.choice([-1.0] + [draw.random()] * 15) for _ in range(length)]
        given.append(record(config, valid, [draw.random() for _ in valid]))
    whole = [g for g in given if len(g.seeds) == 4 and all(s["status"] == "ok" for s in g.seeds)]
    if not whole:
        pytest.skip("this draw has no configuration without failure")
    expected = slow_selection(given, 4)
    draw.shuffle(given)
    found = chosen(*given)
    values = list(found.tests.values())
    assert (found.config, len(values)) == (expected[0], expected[3])
    assert statistics.fmean(values) == pytest.approx(expected[1])
    assert statistics.stdev(values) == pytest.approx(expected[2])


def test_it_is_validation_that_selects() -> None:
    """Negative control: the configuration with the best test loses."""
    found = chosen(
        record(CONFIGS[0], [0.8] * 4, [0.7] * 4), record(CONFIGS[1], [0.7] * 4, [0.9] * 4)
    )
    assert found.config == CONFIGS[0]
    assert list(found.tests.values()) == [70.0] * 4


def test_a_tie_goes_to_the_first_in_the_grid() -> None:
    # the same mean by other values and in another order: equal on paper, not in the last digit
    values = [[0.1, 0.2, 0.3, 0.7], [0.7, 0.3, 0.2, 0.1], [0.3, 0.3, 0.35, 0.35]]
    given = [record(CONFIGS[i], v) for i, v in zip((3, 1, 2), values, strict=True)]
    for order in itertools.permutations(given):
        assert chosen(*order).config == CONFIGS[1]


def test_fewer_seeds_do_not_compete() -> None:
    found = chosen(record(CONFIGS[0], [0.9] * 3), record(CONFIGS[1], [0.5] * 4))
    assert found.config == CONFIGS[1]
    assert found.label == "partial (1 of 4 configurations)"


def test_no_configuration_has_all_seeds() -> None:
    found = chosen(*(record(config, [0.5] * 2) for config in CONFIGS))
    assert found.label == "partial (2 of 4 seeds)"
    found = chosen(record(CONFIGS[0], [0.5] * 3), record(CONFIGS[1], [0.9] * 2))
    assert found.label == "partial (3 of 4 seeds, 1 of 4 configurations)"


def test_a_failed_seed_does_not_win_unless_all_have_one() -> None:
    bad = record(CONFIGS[0], [0.9, 0.9, 0.9, -1])
    good = record(CONFIGS[1], [0.3] * 4)
    rest = [record(config, [0.2] * 4) for config in CONFIGS[2:]]
    found = chosen(bad, good, *rest)
    assert found.config == CONFIGS[1]
    assert found.label == ""
    worse = record(CONFIGS[1], [0.99, -1, -1, 0.99])
    found = chosen(bad, worse)
    assert found.config == CONFIGS[0]  # more seeds are left, whatever their mean
    assert len(found.tests) == 3
    assert "1 of 4 seeds diverged" in found.label
    nothing = chosen(record(CONFIGS[0], [-1] * 4))
    assert nothing.tests == {}
    assert math.isnan(nothing.valid)


def test_screening_is_said_and_only_when_it_is_true() -> None:
    screen = {"seeds": 2, "top": 1}
    rest = [record(config, [0.5, 0.5], screen=screen) for config in CONFIGS[:3]]
    top = record(CONFIGS[3], [0.7, 0.7, 0.6, 0.6], screen=screen)
    found = chosen(*rest, top)
    assert found.screened == (2, 1)
    assert found.label == "screened (2 seeds, top 1)"
    # interrupted, or not said to be a screening, or not the best by the first seeds
    assert chosen(*rest[1:], top).label == "partial (1 of 4 configurations)"
    plain = [record(config, [0.5, 0.5]) for config in CONFIGS[:3]]
    assert chosen(*plain, record(CONFIGS[3], [0.7] * 4)).screened is None
    odd = record(CONFIGS[3], [0.4, 0.4, 0.9, 0.9], screen=screen)
    assert chosen(*rest, odd).label == "partial (1 of 4 configurations)"
    two = {"seeds": 2, "top": 2}
    both = [record(r.config, [0.5, 0.5], screen=two) for r in rest]
    unfinished = record(CONFIGS[3], [0.7] * 4, screen=two)
    assert chosen(*both, unfinished).label == "partial (1 of 4 configurations)"


def test_one_that_failed_in_screening_or_later() -> None:
    screen = {"seeds": 2, "top": 2}
    given = [
        record(CONFIGS[0], [-1, 0.9], screen=screen),
        record(CONFIGS[1], [0.5, 0.5], screen=screen),
        record(CONFIGS[2], [0.8, 0.8, -1, 0.8], screen=screen),
        record(CONFIGS[3], [0.7] * 4, screen=screen),
    ]
    found = chosen(*given)
    assert (found.config, found.screened) == (CONFIGS[3], (2, 2))


def test_reduced_epochs_and_other_configurations_are_partial() -> None:
    space = Space(tuple({"lr": lr, "epochs": e} for lr in (0.1, 0.2) for e in (50, 100)), 2)
    short = [record({"lr": lr, "epochs": 5}, [0.9] * 2) for lr in (0.1, 0.2)]
    assert chosen(*short, space=space).label == "partial (epochs 5 of 50/100)"
    found = chosen(short[0], space=space)
    assert found.label == "partial (epochs 5 of 50/100, 1 of 2 configurations)"
    # a single one of the grid itself goes before them, however bad
    whole = record({"lr": 0.1, "epochs": 100}, [0.1] * 2)
    found = chosen(*short, whole, space=space)
    assert found.config == whole.config
    assert found.label == "partial (1 of 4 configurations)"
    other = record({"lr": 7.0, "epochs": 100}, [0.9] * 2)
    assert chosen(other, space=space).label == "partial (1 configurations outside the grid of 4)"


def test_records_of_one_configuration_are_put_together() -> None:
    first = record(CONFIGS[0], [0.5, 0.6])
    more = Record(
        "table1",
        "cora",
        "gcn",
        "xavier",
        {"dropout": 0, "lr": 0.001},
        (result(1, 0.6, 0.6), result(2, 0.7, 0.7), result(3, 0.8, 0.8)),
    )
    found = chosen(first, more)
    assert list(found.tests) == [0, 1, 2, 3]
    assert found.searched == 1


@pytest.mark.parametrize("other", [(0.5, 0.7), (-1,)], ids=["value", "status"])
def test_two_results_for_one_seed_are_an_error(other: tuple[float, ...]) -> None:
    given = [record(CONFIGS[0], [0.5, 0.6]), record(CONFIGS[0], other)]
    with pytest.raises(DataError, match="cora, gcn, xavier: expected one result for seed"):
        select(given, SPACE)


@pytest.mark.parametrize(("other", "place"), [(0.6 + 3e-8, 0), (0.601, 1)])
def test_the_rounding_of_float32_breaks_no_tie(other: float, place: int) -> None:
    first, second = (record(CONFIGS[at], [value] * 4) for at, value in enumerate((0.6, other)))
    assert chosen(second, first).config == CONFIGS[place]


def test_nothing_is_nothing() -> None:
    assert select([], SPACE) is None
    assert select([record(CONFIGS[0], [])], SPACE) is None


# --- ranks and verdicts -------------------------------------------------------------------------


def test_the_whole_of_table_1(table1: ResultsTable) -> None:
    assert [str(place) for place in table1.places][:2] == ["cora, gcn", "citeseer, gcn"]
    cell = table1.cell("cora", "virgo-backward")
    assert (cell.rank, cell.n) == (1, 10)
    assert cell.mean == pytest.approx(82, abs=1)
    assert cell.difference == pytest.approx(cell.mean - 82.14)
    assert cell.chosen is not None
    assert cell.chosen.label == ""
    assert (cell.chosen.competing, cell.chosen.total) == (144, 144)
    assert sorted(c.rank or 0 for c in table1.places[cell.place]) == list(range(1, 9))
    assert table1.verdict("cora").answer == "yes"
    assert table1.verdict("cora").virgo == "virgo-backward"
    assert table1.verdict("citeseer").answer == "no"
    assert table1.verdict("citeseer").classic == "lecun"
    assert table1.verdict("ogbn-products", "sage").answer == "not run"


def test_partial_cells_are_marked_and_corrected_on_their_own(table1: ResultsTable) -> None:
    cell = table1.cell("pubmed", "xavier")
    assert cell.chosen is not None
    assert cell.chosen.label == "partial (12 of 144 configurations)"
    assert cell.comparable  # with the others of pubmed, which searched the same twelve
    verdict = table1.verdict("pubmed")
    assert verdict.family == "partial"
    assert verdict.holm == pytest.approx(verdict.paired.p if verdict.paired else None)
    both = [table1.verdict(name) for name in ("cora", "citeseer")]
    smaller = min(both, key=lambda v: v.paired.p if v.paired else 1)
    assert smaller.holm == pytest.approx(2 * smaller.paired.p if smaller.paired else None)


def test_complete_and_partial_cells_are_never_ranked_together() -> None:
    given = grid_records("cora", means={"lecun": 0.8, "xavier": 0.81, "virgo-forward": 0.7})
    some = grid_records("cora", means={"virgo-backward": 0.99}, limit=12)
    found = build("table1", [*given, *some])
    best = found.cell("cora", "virgo-backward")
    assert best.mean > 90
    assert best.rank is None
    assert found.cell("cora", "xavier").rank == 1
    assert found.verdict("cora").virgo == "virgo-forward"
    assert any("virgo-backward is not ranked: partial (12 of 144" in r for r in found.remarks)
    assert any(
        "claim cannot be judged; kaiming-forward, kaiming-backward, virgo-backward: not run" in r
        for r in found.remarks
    )


def test_other_configurations_or_seeds_are_not_comparable() -> None:
    """Two partial searches over other parts of the grid, and one with other seeds."""
    configs = grids.grid("table1", "cora", "gcn").configurations()
    some = [record(c, [0.8] * 10, init="xavier") for c in configs[:5]]
    others = [record(c, [0.9] * 10, init="virgo-forward") for c in configs[5:10]]
    found = build("table1", [*some, *others])
    assert {cell.rank for cell in found.cells} == {None}
    assert found.verdict("cora").answer == "no Virgo method was searched like the others"
    few = [record(c, [0.9] * 3, init="virgo-forward") for c in configs[:5]]
    assert {cell.rank for cell in build("table1", [*some, *few]).cells} == {None}
    alike = [record(c, [0.9] * 10, init="virgo-forward") for c in configs[:5]]
    assert {cell.rank for cell in build("table1", [*some, *alike]).cells} == {None, 1, 2}
    alone = build("table1", some)
    assert alone.verdict("cora").answer == "no Virgo method was run"
    assert not any("is not ranked" in line for line in alone.remarks)


def test_both_champions_are_chosen_by_validation() -> None:
    config = grids.grid("table1", "cora", "gcn").configurations()[0]
    noise = [0.001 * i for i in range(10)]

    def method(init: str, valid: float, test: float) -> Record:
        draw = random.Random(init)
        return record(
            config,
            [valid + n for n in noise],
            [test + n + draw.gauss(0, 1e-3) for n in noise],
            init=init,
        )

    given = [
        method("xavier", 0.80, 0.70),
        method("lecun", 0.70, 0.90),
        method("virgo-forward", 0.80, 0.75),
        method("virgo-backward", 0.70, 0.95),
    ]
    found = build("table1", given)
    verdict = found.verdict("cora")
    assert (verdict.virgo, verdict.classic) == ("virgo-forward", "xavier")
    assert verdict.paired is not None
    assert verdict.paired.difference == pytest.approx(5, abs=0.2)
    assert found.cell("cora", "virgo-backward").rank == 1  # the ranks are of the test, as theirs


def test_failed_cells_are_said_and_not_ranked() -> None:
    configs = grids.grid("table1", "cora", "gcn").configurations()
    given = [record(c, [0.8] * 10, init=i) for c in configs for i in ("lecun", "virgo-forward")]
    given += [record(c, [-1] * 10, init="xavier") for c in configs]
    given += [record(c, [0.9] * 9 + [-1], init="virgo-backward") for c in configs]
    found = build("table1", given)
    text = found.to_markdown()
    assert "| xavier | diverged<br>" in text
    assert "1 of 10 seeds diverged" in text
    assert found.cell("cora", "xavier").n == 0
    assert found.cell("cora", "xavier").rank is None
    assert found.cell("cora", "virgo-backward").n == 9
    assert found.cell("cora", "virgo-backward").rank is None
    assert found.verdict("cora").virgo == "virgo-forward"


def test_claims_are_made_from_the_numbers() -> None:
    def lines(**means: float) -> list[str]:
        levels = {**LEVELS, **{k.replace("_", "-"): v for k, v in means.items()}}
        found = build("table1", grid_records("cora", means=levels))
        return [line for line in found.remarks if "eproduced" in line]

    (won,) = lines(virgo_forward=0.85)
    assert "reproduced: the paper has a Virgo method first (virgo-forward, 82.14), and" in won
    assert "NOT" not in won
    assert "virgo-forward against" in won
    assert "finds the first better" in won
    (lost,) = lines(xavier=0.85)
    assert "NOT reproduced: the paper has a Virgo method first" in lost
    assert "xavier is first here" in lost
    assert "finds the second better" in lost
    levels = {**LEVELS, "virgo-backward+mirrored": 0.9, "xavier": 0.85}
    (ours,) = [
        line
        for line in build("table1", grid_records("cora", means=levels)).remarks
        if "eproduced" in line
    ]
    assert "NOT reproduced" in ours  # a method that the paper lacks cannot rescue its claim
    assert "of all methods virgo-backward+mirrored is first" in ours


def test_generated_data_is_said_everywhere() -> None:
    given = [
        record(c, [v] * 10, init=i, dataset="like:cora@0.5", generated="generated like cora")
        for c in grids.grid("table1", "like:cora@0.5", "gcn").configurations()
        for i, v in (("xavier", 0.5), ("virgo-forward", 0.6))
    ]
    found = build("table1", given)
    assert found.verdict("like:cora@0.5").family == "generated"
    for text in (
        found.to_markdown(),
        found.to_html(),
        found.to_latex(),
        found.to_csv(),
        str(found),
    ):
        assert "generated like cora" in text
    assert "generated" in found.to_markdown().split("| --- |")[0]


def test_depth_has_a_column_a_depth() -> None:
    means = {"xavier": 0.6, "virgo-backward": 0.7}
    found = build("depth", grid_records("cora", means=means, table="depth"))
    assert Place("cora", "gcn", 64) in found.places
    cell = found.cell("cora", "virgo-backward", layers=8)
    assert cell.chosen is not None
    assert cell.chosen.config["num_layers"] == 8
    assert cell.chosen.total == len(grids.grid("depth", "cora", "gcn").configurations()) / 6
    assert cell.rank == 1
    assert found.verdict("cora", layers=2).answer == "yes"
    text = found.to_markdown()
    assert "| method | 2 layers | 4 layers | 8 layers | 16 layers | 32 layers | 64 layers |" in text
    assert (
        "beats the best classic method in 6 of 6 (cora, gcn (2, 4, 8, 16, 32, 64 layers))" in text
    )
    assert "Not run: citeseer, gcn (2, 4," in text


def test_models_are_blocks_of_tables_2_and_3() -> None:
    means = {"lecun": 0.5, "xavier": 0.5, "virgo-forward": 0.6, "virgo-backward": 0.5}
    given = [
        *grid_records("ogbl-ddi", means=means, table="table2", model="gcn"),
        *grid_records("ogbl-ddi", means=means, table="table2", model="sage", seeds=3),
    ]
    found = build("table2", given)
    text = found.to_markdown()
    blocks = dict(re.findall(r"\*\*([\w-]+)\*\*\n\n((?:\|.*\n)+)", text))
    assert list(blocks)[:2] == ["gcn", "ngnn-gcn"]
    assert "| method | ogbl-ddi | ogbl-collab | ogbl-citation2 | ogbl-ppa |" in blocks["gcn"]
    assert "| method | ogbl-ddi<br>partial (3 of 10 seeds) | ogbl-collab |" in blocks["sage"]
    (row,) = re.findall(r"\| lecun \| (.*?) \|", blocks["sage"])
    assert re.search(r"<br>paper 71.26 ± 13.79 \(-.*\)$", row)
    assert "| xavier | not run<br>paper 73.07 ± 8.57 |" in blocks["ngnn-sage"]
    ran = found.ran().to_markdown()
    assert "**ngnn-gcn**" not in ran
    assert "ogbl-ppa |" not in ran
    assert r"\multicolumn{5}{l}{sage} \\ \midrule" in found.to_latex()
    assert found.verdict("ogbl-ddi", "sage").family == "partial"
    assert found.verdict("ogbl-ddi", "gcn").family == ""


def test_other_methods_and_models_get_rows_and_columns_of_their_own() -> None:
    config = {"lr": 0.1, "num_layers": 2}
    given = [record(config, [0.5, 0.6], init="xavier+orthogonal", model="sage")]
    found = build("table1", given)
    assert found.methods[-1] == "xavier+orthogonal"
    assert Place("cora", "sage") in found.places
    assert "cora (sage)" in found.to_markdown()
    assert "n = 2" in found.to_markdown()


def test_a_table_without_records_says_so() -> None:
    found = build("table3", [record(CONFIGS[0], [0.5])])  # another table's
    assert {cell.chosen for cell in found.cells} == {None}
    assert found.to_markdown().count("not run") == len(found.cells)
    assert found.remarks[0].startswith("Not run: imdb-b, gcn;")
    with pytest.raises(OptionError, match="expected one of table1, table2, table3, depth"):
        build("table4", [])


# --- folds --------------------------------------------------------------------------------------


def differing(dataset: str, gaps: Sequence[float], model: str = "gcn") -> list[Record]:
    """Two methods in the whole grid, whose tests differ by these gaps, in points."""
    found = []
    for config in grids.grid("table3", dataset, model).configurations():
        base = [0.7 + 0.01 * (i % 3) for i in range(len(gaps))]
        ours = [value + gap / 100 for value, gap in zip(base, gaps, strict=True)]
        for init, tests in (("xavier", base), ("virgo-forward", ours)):
            found.append(
                record(
                    config,
                    [0.7] * len(gaps),
                    tests,
                    init=init,
                    dataset=dataset,
                    model=model,
                    table="table3",
                )
            )
    return found


#: t = 3.07 on nine degrees of freedom, p = 0.013; corrected for folds t = 2.04, p = 0.071.
GAPS = [3.0 * (1 + step) for step in (-1.5, -1.2, -0.9, -0.5, -0.2, 0.2, 0.5, 0.9, 1.2, 1.5)]


def test_folds_are_held_to_the_corrected_test() -> None:
    """The same ten differences: enough on molhiv's ten seeds, not on ten folds of imdb-b."""
    found = build("table3", [*differing("imdb-b", GAPS), *differing("ogbg-molhiv", GAPS)])
    folds, seeds = found.verdict("imdb-b"), found.verdict("ogbg-molhiv")
    assert folds.paired is not None
    assert seeds.paired is not None
    assert (folds.answer, seeds.answer) == ("no difference shown", "yes")
    assert (folds.paired.overlap, seeds.paired.overlap) == (1 / 8, 0.0)
    assert folds.paired.difference == pytest.approx(seeds.paired.difference)
    assert folds.paired.p > 0.05 > 2 * seeds.paired.p
    assert folds.paired.exact is None
    assert seeds.paired.exact is not None
    reach = [v.high - v.difference for v in (folds.paired, seeds.paired)]
    assert reach[0] == pytest.approx(1.5 * reach[1])  # sqrt((1/10 + 1/8) / (1/10))
    # the picture's intervals are the same test's
    over = {
        c["dataset"]: c["over_xavier"]
        for c in found.to_dict()["cells"]
        if c["init"] == "virgo-forward" and c["model"] == "gcn"
    }
    for name, verdict in (("imdb-b", folds), ("ogbg-molhiv", seeds)):
        assert over[name]["high"] == pytest.approx(verdict.paired.high if verdict.paired else None)


def test_a_table_says_where_it_corrected_for_folds() -> None:
    given = [*differing("imdb-m", GAPS), *differing("like:collab@0.1", GAPS, "gin")]
    found = build("table3", given)
    (line,) = [r for r in found.remarks if "corrected for folds that share training data" in r]
    assert line.startswith("imdb-m, gcn; like:collab@0.1, gin: seed s is fold s;")
    assert "1/n + 1/8" in line
    assert "Where seeds are folds, the t test and the interval allow for" in found.to_markdown()
    (row,) = re.findall(r"\| imdb-m, gcn \| virgo-forward .*", found.to_markdown(details=False))
    assert row.split(" | ")[7].strip() == ""  # no p of sign flips
    plain = build("table3", differing("ogbg-molhiv", GAPS))
    assert not any("folds" in line for line in plain.remarks)
    assert "Where seeds are folds" not in plain.to_markdown()


@pytest.mark.parametrize("name", [*grids.datasets("table3"), "cora", "ogbl-ddi", "my own"])
def test_which_seeds_are_folds_is_what_the_catalogue_says(name: str) -> None:
    folded = name in ("imdb-b", "imdb-m", "collab")
    assert overlap_of(name) == overlap_of(f"like:{name}@0.5") == (1 / 8 if folded else 0.0)


def test_the_overlap_is_that_of_the_real_folds() -> None:
    """Test over training graphs of a run, as the task splits them."""
    import virgo
    from virgo.experiments.tasks.graph import GraphTask

    split = GraphTask(virgo.data.load("like:imdb-b@0.1")).split_of(3)
    ratio = split["test"].numel() / split["train"].numel()
    assert overlap_of("like:imdb-b@0.1") == pytest.approx(ratio, rel=0.05)


# --- runs that were cut short -------------------------------------------------------------------


def with_curves(given: Sequence[Record], last: int = 4) -> list[Record]:
    """The same records with a curve that rises to each seed's validation; Xavier starts above."""
    found = []
    for one in given:
        start = 0.2 if one.init == "xavier" else 0.0
        seeds = tuple(
            {
                **seed,
                "curve": [
                    [e, start + (seed["valid"] - start) * e / last] for e in range(1, last + 1)
                ],
            }
            for seed in one.seeds
        )
        found.append(replace(one, seeds=seeds))
    return found


def cut_short(epochs: int = 4, **means: float) -> list[Record]:
    """One configuration of ddi's grid with few epochs, two seeds, curves kept."""
    config = {**grids.grid("table2", "ogbl-ddi", "gcn").configurations()[0], "epochs": epochs}
    return with_curves(
        [
            record(
                config,
                [value, value + 0.01],
                init=init.replace("_", "-"),
                dataset="ogbl-ddi",
                table="table2",
            )
            for init, value in means.items()
        ],
        epochs,
    )


def settling_lines(given: Sequence[Record]) -> list[str]:
    return [line for line in build("table2", given).remarks if "by validation" in line]


def test_a_table_says_since_when_the_order_stands() -> None:
    (line,) = settling_lines(cut_short(xavier=0.3, virgo_forward=0.5))
    # 0.2 + 0.1 e / 4 against 0.5 e / 4: equal at e = 2, above from then on
    assert line == (
        "ogbl-ddi, gcn: the order of 2 methods by validation has been the same since epoch 3 of 4 "
        "(first: since epoch 3)."
    )
    (line,) = settling_lines(cut_short(xavier=0.39, virgo_forward=0.4, lecun=0.1))
    assert "still changed in the last validation, epoch 4 (so did the first)." in line
    (line,) = settling_lines(cut_short(xavier=0.2, virgo_forward=0.21, lecun=0.8))
    assert "still changed in the last validation, epoch 4 (first: since epoch 2)." in line
    (line,) = settling_lines(cut_short(1, xavier=0.2, virgo_forward=0.21))
    assert line.endswith("was looked at only once, after epoch 1.")


def test_only_runs_with_curves_that_were_cut_short_are_spoken_of() -> None:
    given = cut_short(xavier=0.3, virgo_forward=0.5)
    without = [replace(r, seeds=tuple({**s, "curve": []} for s in r.seeds)) for r in given]
    assert settling_lines(without) == []
    assert settling_lines(given[:1]) == []  # nothing to be in order with
    whole = grid_records("ogbl-ddi", means={"xavier": 0.3, "virgo-forward": 0.5}, table="table2")
    found = build("table2", with_curves(whole))
    assert found.histories  # to be drawn
    assert not any("by validation" in line for line in found.remarks)


def test_the_slowest_of_several_configurations_counts() -> None:
    given = cut_short(xavier=0.3, virgo_forward=0.5)
    other = [
        replace(r, config={**r.config, "lr": 0.005})
        for r in cut_short(xavier=0.39, virgo_forward=0.4)
    ]
    (line,) = settling_lines([*given, *other])
    assert line.startswith("ogbl-ddi, gcn (the last to settle of 2 configurations): the order of 2")
    assert "still changed" in line


def test_the_picture_of_curves_has_a_panel_a_model() -> None:
    pytest.importorskip("matplotlib")
    given = cut_short(xavier=0.3, virgo_forward=0.5, lecun=0.1)
    sage = [replace(r, model="sage") for r in given]
    figure = build("table2", [*given, *sage]).curves_figure()
    panels = [axes for axes in figure.axes if axes.get_visible()]
    titles = ["ogbl-ddi, gcn (2 seeds)", "ogbl-ddi, sage (2 seeds)"]
    assert [axes.get_title() for axes in panels] == titles
    lines = panels[0].lines
    assert len(lines) == 2 * 3 + 1  # thin and thick each, and where the order settled
    assert list(lines[1].get_xdata()) == [1, 2, 3, 4]
    assert lines[1].get_ydata()[-1] == pytest.approx(10.5)  # lecun, the mean of two seeds in %
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["lecun", "xavier", "virgo-forward"]


def test_a_picture_without_curves_says_so() -> None:
    pytest.importorskip("matplotlib")
    (text,) = build("table2", []).curves_figure().texts
    assert "no two methods kept curves" in text.get_text()


# --- formats ------------------------------------------------------------------------------------


def test_markdown_is_rectangular_and_marked(table1: ResultsTable) -> None:
    text = table1.to_markdown()
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.strip().split("\n")}) == 1
    first, second = (
        next(c for c in table1.places[Place("cora", "gcn")] if c.rank == rank) for rank in (1, 2)
    )
    assert f"**{first.mean:.2f} ± {first.sd:.2f}**<br>paper " in text
    assert f"<u>{second.mean:.2f} ± {second.sd:.2f}</u>" in text
    assert "pubmed<br>partial (12 of 144 configurations)" in text  # once, at the column's head
    assert "not run<br>paper 79.45 ± 0.36" in text
    assert "Chosen configurations" not in table1.to_markdown(details=False)
    assert "commit abc" in text


def test_latex_has_as_many_cells_in_each_row(table1: ResultsTable) -> None:
    text = table1.to_latex()
    lines = [line for line in text.split("\n") if not line.startswith("%")]
    assert lines[0] == r"\begin{tabular}{lcccccc}"
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}")
    assert [r for r in (r"\toprule", r"\midrule", r"\bottomrule") if text.count(r) != 1] == []
    rows = [line for line in lines if line.endswith(r"\\")]
    assert len(rows) == 9
    for row in rows:
        assert len(re.findall(r"(?<!\\)&", row)) == 6
        plain = re.sub(r"\\[{}]", "", row)
        assert plain.count("{") == plain.count("}")
        assert plain.count("$") % 2 == 0
        assert row.isascii()
    assert r"\textbf{" in text
    assert r"\underline{" in text


def test_latex_escapes_what_a_name_may_hold() -> None:
    name = r"like:a_b&c%$#{}~^\x<1>"
    text = build("table1", [record({"lr": 1}, [0.5, 0.6], dataset=name)]).to_latex()
    wanted = r"like:a\_b\&c\%\$\#\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}x$<$1$>$"
    assert wanted in text


def test_csv_has_a_line_a_cell_with_its_rank(table1: ResultsTable) -> None:
    rows = list(csv.DictReader(io.StringIO(table1.to_csv())))
    assert len(rows) == len(table1.cells) == 6 * 8
    by = {(row["dataset"], row["init"]): row for row in rows}
    row, cell = by["cora", "virgo-backward"], table1.cell("cora", "virgo-backward")
    assert row["rank"] == "1"
    assert float(row["test_mean"]) == pytest.approx(cell.mean, abs=1e-4)
    assert float(row["paper_mean"]) == 82.14
    assert cell.chosen is not None
    assert json.loads(row["config"]) == cell.chosen.config
    assert by["ogbn-arxiv", "lecun"]["state"] == "not run"
    assert by["ogbn-arxiv", "lecun"]["test_mean"] == ""


def test_json_is_strict_and_has_the_seeds(table1: ResultsTable) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    found = json.loads(table1.to_json(), parse_constant=refuse)
    cell = next(c for c in found["cells"] if c["init"] == "virgo-backward")
    assert len(cell["tests"]) == 10
    assert statistics.fmean(cell["tests"].values()) == pytest.approx(cell["test_mean"])
    assert cell["over_xavier"]["difference"] == pytest.approx(2, abs=0.5)
    assert found["verdicts"][0]["answer"] == "yes"
    assert found["provenance"]["runs"][0]["trained"] == 8 * 144 * 10


class Page(html.parser.HTMLParser):
    """Which tags are open, all tags seen, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_html_is_whole_and_needs_nothing_else(table1: ResultsTable) -> None:
    text = table1.to_html()
    page = Page(text)
    assert page.open == []
    assert not {tag for tag, _ in page.seen} & {"script", "link", "img", "iframe"}
    assert "http" not in text
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text
    assert any(tag == "strong" for tag, _ in page.seen)
    assert any(tag == "u" for tag, _ in page.seen)
    assert any("lr 0." in (attrs.get("title") or "") for tag, attrs in page.seen if tag == "td")


def test_html_and_markdown_escape_what_a_name_may_hold() -> None:
    nasty = '<script>alert("x")</script>|*`_'
    found = build("table1", [record({"lr": nasty}, [0.5, 0.6], dataset=nasty, generated=nasty)])
    page = Page(found.to_html())
    assert "script" not in {tag for tag, _ in page.seen}
    assert nasty in "".join(page.words)
    assert "<script" not in found.to_markdown()
    assert r"\|\*\`\_" in found.to_markdown()


def test_text_is_aligned_for_a_terminal(table1: ResultsTable) -> None:
    lines = str(table1).split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith("method "))
    assert lines[start + 1].startswith("-----")
    assert " ¹" in str(table1)
    assert " ²" in str(table1)
    assert "Virgo better?" in str(table1)


# --- pictures -----------------------------------------------------------------------------------


def test_the_picture_of_a_table_shows_differences_to_xavier(table1: ResultsTable) -> None:
    pytest.importorskip("matplotlib")
    figure = table1.figure()
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == ["cora, gcn", "citeseer, gcn", "pubmed, gcn"]
    bars = panels[0].containers
    assert len(bars) == 7  # every method but Xavier itself
    spot = {round(float(bar[0].get_ydata()[0])): float(bar[0].get_xdata()[0]) for bar in bars}
    place = table1.methods.index("virgo-backward")
    cells = (table1.cell("cora", "virgo-backward"), table1.cell("cora", "xavier"))
    assert spot[place] == pytest.approx(cells[0].mean - cells[1].mean)


def test_the_picture_of_depth_has_a_line_a_method() -> None:
    pytest.importorskip("matplotlib")
    means = {"xavier": 0.6, "virgo-backward": 0.7}
    figure = build("depth", grid_records("cora", means=means, table="depth")).figure()
    (axes,) = figure.axes
    assert len(axes.lines) == 2
    assert list(axes.lines[0].get_xdata()) == [2, 4, 8, 16, 32, 64]
    assert len(axes.collections) == 2  # the bands


@pytest.mark.parametrize("name", ["table1", "depth"])
def test_a_picture_of_nothing_says_so(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = build(name, []).save(tmp_path / "empty.png")
    assert path.stat().st_size > 1000


@pytest.mark.parametrize("ending", ["md", "tex", "csv", "html", "json", "txt", "svg"])
def test_save_goes_by_the_ending(ending: str, table1: ResultsTable, tmp_path: Path) -> None:
    path = table1.save(tmp_path / "new" / f"table.{ending}")
    assert path.stat().st_size > 1000


def test_save_refuses_other_endings(table1: ResultsTable, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"a path that ends in \.md.*got 'table.doc'"):
        table1.save(tmp_path / "table.doc")


# --- command line -------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """``virgo table ...`` in an empty folder with records of Cora."""
    import argparse

    monkeypatch.chdir(tmp_path)
    means = {"xavier": 0.8, "virgo-forward": 0.82}
    records.write(tmp_path / "results" / "table1.jsonl", grid_records("cora", means=means, seeds=3))

    def call(*words: str) -> int:
        top = argparse.ArgumentParser()
        command.add_to(top.add_subparsers())
        args = top.parse_args(["table", *words])
        code: int = args.run(args)
        return code

    return call


def test_the_command_prints_the_table(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("table1") == 0
    text = capsys.readouterr().out
    assert "paper 81.50 ± 0.20" in text
    assert "partial (3 of 10 seeds)" in text
    for form, sign in [
        ("markdown", "| xavier |"),
        ("latex", r"\toprule"),
        ("csv", "dataset,"),
        ("html", "<!doctype"),
        ("json", '"cells"'),
    ]:
        assert run("table1", "--format", form) == 0
        assert sign in capsys.readouterr().out


def test_the_command_writes_files(run: Callable[..., int], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert run("table1", "--out", "a/table.tex", "--png", "a/table.png") == 0
    assert r"\toprule" in (tmp_path / "a" / "table.tex").read_text(encoding="utf-8")
    assert (tmp_path / "a" / "table.png").read_bytes()[:4] == b"\x89PNG"
    assert run("table1", "--out", "a.txt", "--curves-png", "b/curves.png") == 0
    assert (tmp_path / "b" / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert run("table1", "--out", "table.data", "--format", "csv") == 0
    assert (tmp_path / "table.data").read_text(encoding="utf-8").startswith("dataset,")
    assert run("table1", "--records", "results/table1.jsonl", "--out", "b.md") == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["table2"],
            r"table2: expected records of its trials in results.table2.jsonl, got none\. "
            r"Make them with: virgo sweep table2",
        ),
        (["depth", "--records", "results/table1.jsonl"], "depth: expected records of its trials"),
        (["table1", "--out", "a.doc"], r"--out: expected a path ending in \.txt"),
        (["table1", "--png", "a.html"], r"--png: expected a path ending in \.png"),
        (["table1", "--curves-png", "a"], r"--curves-png: expected a path ending in \.png"),
    ],
)
def test_mistakes_at_the_command_line(
    words: list[str], message: str, run: Callable[..., int]
) -> None:
    with pytest.raises((DataError, OptionError), match=message):
        run(*words)


def test_a_storage_that_is_not_there(run: Callable[..., int]) -> None:
    pytest.importorskip("optuna")
    with pytest.raises(DataError, match="Run virgo sweep first"):
        run("table1", "--storage", "none.db")
    assert not Path("none.db").exists()


def test_the_storage_and_its_records_give_the_same_table(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    from virgo.experiments.sweep.board import Board
    from virgo.experiments.sweep.exporting import export
    from virgo.experiments.sweep.storage import open_storage

    storage = open_storage(tmp_path / "sweep.db")
    cells = grids.cells("table1", ["cora"], ["gcn"], ["xavier", "virgo-forward"], limit=3)
    try:
        for cell in cells:
            board = Board(storage, cell, seeds=2)
            board.tidy()
            while (claim := board.claim()) is not None:
                claim.begin({}, {"versions": {"virgo": "0"}, "commit": "abc"})
                for seed in claim.missing:
                    value = 0.7 + 0.01 * seed + claim.config["lr"]
                    claim.record(seed, result(seed, value, value))
                claim.finish()
        export(storage, "table1", tmp_path)
    finally:
        storage.close()
    stored = command.load("table1", str(tmp_path / "sweep.db"), tmp_path)
    kept = command.load("table1", None, tmp_path)
    with pytest.raises(DataError, match="depth: expected records of its trials in the storage"):
        command.load("depth", str(tmp_path / "sweep.db"), tmp_path)
    assert len(stored) == len(kept) == 6
    assert build("table1", stored).to_json() == build("table1", kept).to_json()
    label = build("table1", kept).cell("cora", "xavier").chosen
    assert label is not None
    assert label.label == "partial (2 of 10 seeds, 3 of 144 configurations)"


# --- size ---------------------------------------------------------------------------------------


def test_thirty_thousand_seeds_take_no_time(tmp_path: Path) -> None:
    """Under two seconds from the file to the text; it takes half of one."""
    given = [r for name in ("cora", "citeseer", "pubmed") for r in grid_records(name, means=LEVELS)]
    assert sum(len(r.seeds) for r in given) > 30_000
    path = records.write(tmp_path / "table1.jsonl", given)
    start = time.process_time()
    text = build("table1", records.read(path)).to_markdown()
    assert time.process_time() - start < 2
    assert "144 of 144" in text


def test_the_order_of_records_does_not_matter(table1: ResultsTable) -> None:
    given = grid_records("cora", means={**LEVELS, "virgo-backward": 0.82})
    random.Random(0).shuffle(given)
    again = build("table1", given)
    for mine, theirs in zip(again.cells, table1.cells, strict=True):
        if mine.place.dataset == "cora":
            assert mine == theirs

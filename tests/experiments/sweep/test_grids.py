"""The grids against the paper's own tables, and what is picked from them."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from virgo.errors import OptionError
from virgo.experiments.sweep import grids
from virgo.experiments.sweep.records import canonical

OURS = {"epoch": "epochs", "num_layer": "num_layers", "wd": "weight_decay"}
MODELS = {"GCN": "gcn", "NGNN-GCN": "ngnn-gcn", "GraphSAGE": "sage", "NGNN-GraphSAGE": "ngnn-sage"}
PREFIX = {"tab:nchyper": "ogbn-", "tab:lphyper": "ogbl-", "tab:gchyper": "ogbg-"}


@pytest.fixture(scope="module")
def appendix(data_root: Path) -> str:
    folder = data_root.parent / "paper"
    found = sorted(folder.glob("*.tex"))
    if not found:
        pytest.skip(f"no paper: {folder} has no .tex file")
    return found[0].read_text(encoding="utf-8").partition(r"\section{Experimental Setting}")[2]


def parse(appendix: str, label: str) -> dict[tuple[str, str | None], dict[str, list[Any]]]:
    """A slow reading of one hyper-parameter table: (dataset, model) -> key -> values."""
    body = appendix.partition(rf"\label{{{label}}}")[2].partition(r"\end{tabular}")[0]
    body = body.replace(r"\_", "_")
    found: dict[tuple[str, str | None], dict[str, list[Any]]] = {}
    dataset = ""
    pieces = re.split(r"\\makecell\[l\]\{", body)
    for before, inside in itertools.pairwise(pieces):
        head = before.rpartition(r"\midrule")[2] if r"\midrule" in before else before
        named = re.search(r"\{(\w+)\}\s*$", head.partition("&")[0].strip()) or re.search(
            r"(\w+)\s*$", head.partition("&")[0].strip()
        )
        if r"\midrule" in before and named:
            dataset = named.group(1)
        model = next((m for m in reversed(re.findall(r"&\s*([\w-]+)\s*&", before))), None)
        settings = re.findall(r"(\w+):\s*(?:\\\{([^}]*)\\\}|([\w.-]+))", inside)
        found[dataset, model] = {
            OURS.get(key, key): [number(v) for v in (many or one).split(",")]
            for key, many, one in settings
        }
    return found


def number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text.strip()


@pytest.mark.parametrize(
    ("table", "label", "count"),
    [("table1", "tab:nchyper", 6), ("table2", "tab:lphyper", 16), ("table3", "tab:gchyper", 2)],
)
def test_the_grids_are_the_papers(table: str, label: str, count: int, appendix: str) -> None:
    printed = parse(appendix, label)
    assert len(printed) == count
    for (dataset, model), values in printed.items():
        name = dataset if dataset in grids.datasets(table) else PREFIX[label] + dataset
        kinds = [MODELS[model]] if model else grids.models(table, name)
        for kind in kinds:
            paper = {k: list(v) for k, v in grids.grid(table, name, kind).paper.items()}
            if table == "table2":  # said in the text, not in the table
                assert paper.pop("weight_decay") == [0.0]
            assert paper == values, (name, kind)


def test_all_fifteen_datasets_have_a_grid() -> None:
    found = [name for table in ("table1", "table2", "table3") for name in grids.datasets(table)]
    assert len(found) == len(set(found)) == 15
    assert grids.datasets("depth") == ("cora", "citeseer", "pubmed")


def test_what_the_paper_does_not_say_is_marked_as_ours() -> None:
    assert grids.tables() == ("table1", "table2", "table3", "depth")
    for table in grids.tables():
        for grid in grids.grids(table):
            assert not set(grid.paper) & set(grid.ours)
            if set(grid.ours) - {"patience"}:
                assert grid.note
    assert grids.grid("table3", "imdb-b", "gin").paper == {}
    assert "no grid" in str(grids.grid("table3", "collab", "gcn").note)


@pytest.mark.parametrize("table", grids.tables())
def test_configurations_are_complete_distinct_and_architecture_outermost(table: str) -> None:
    for cell in grids.cells(table):
        texts = [canonical(config) for config in cell.configurations]
        assert len(set(texts)) == len(texts) > 0
        shapes = [tuple(c.get(k) for k in grids.ARCHITECTURE) for c in cell.configurations]
        changes = sum(a != b for a, b in itertools.pairwise(shapes))
        assert changes == len(set(shapes)) - 1  # no architecture comes back
        for config in cell.configurations:
            assert {
                "num_layers",
                "hidden_channels",
                "lr",
                "weight_decay",
                "dropout",
                "epochs",
                "patience",
            } <= set(config)


def test_products_samples_as_many_hops_as_layers() -> None:
    for config in grids.grid("table1", "ogbn-products", "sage").configurations():
        assert len(config["num_neighbors"]) == config["num_layers"]


def test_depth_is_a_column_of_its_own() -> None:
    cells = grids.cells("depth", ["cora"], inits=["xavier"])
    assert [dict(cell.part) for cell in cells] == [{"num_layers": n} for n in (2, 4, 8, 16, 32, 64)]
    assert all(len(cell.configurations) == 6 for cell in cells)
    limited = grids.cells("depth", ["cora"], inits=["xavier"], limit=2)
    assert [len(cell.configurations) for cell in limited] == [2] * 6


def test_a_limit_is_spread_nested_and_the_same_for_every_method() -> None:
    def pick(limit: int) -> list[list[str]]:
        cells = grids.cells("table1", ["cora"], inits=["xavier", "virgo-backward"], limit=limit)
        return [[canonical(config) for config in cell.configurations] for cell in cells]

    few, many = pick(20), pick(40)
    assert few[0] == few[1]
    assert len(few[0]) == 20
    assert set(few[0]) < set(many[0])
    assert {
        c[k]
        for c in grids.cells("table1", ["cora"], inits=["xavier"], limit=20)[0].configurations
        for k in ("num_layers",)
    } == {2, 3, 4}
    whole = [canonical(c) for c in grids.grid("table1", "cora", "gcn").configurations()]
    assert few[0] == [text for text in whole if text in few[0]]  # in the grid's order
    assert pick(1000)[0] == whole


def test_overrides_make_what_becomes_alike_one() -> None:
    cell = grids.cells("table2", ["ogbl-ddi"], ["gcn"], ["xavier"], overrides={"epochs": 5})[0]
    assert len(cell.configurations) == 12
    assert {config["epochs"] for config in cell.configurations} == {5}


def test_where_keeps_the_configurations_with_these_values() -> None:
    where = {"batch_size": "32768", "lr": "5e-3", "ngnn_type": "all"}
    cell = grids.cells("table2", ["ogbl-ddi"], ["ngnn-gcn"], ["xavier"], where=where)[0]
    whole = grids.grid("table2", "ogbl-ddi", "ngnn-gcn").configurations()
    assert list(cell.configurations) == [
        c
        for c in whole
        if c["batch_size"] == 32768 and c["lr"] == 0.005 and c["ngnn_type"] == "all"
    ]
    assert len(cell.configurations) == 6 * 3  # dropouts and epochs
    sampled = grids.cells("table1", ["ogbn-products"], where={"num_neighbors": "15,10,5"})
    assert all(c["num_layers"] == 3 for cell in sampled for c in cell.configurations)


def test_a_generated_stand_in_has_the_grid_of_what_it_stands_for() -> None:
    one, two = grids.cells("table1", ["like:cora@0.1", "cora"], inits=["VirgoBack+measured"])
    assert one.configurations == two.configurations
    assert one.name == "table1/like:cora@0.1/gcn/virgo-backward+measured"


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ("table9", {}, "table: expected one of table1, table2, table3, depth, got 'table9'"),
        ("table1", {"dataset": ["coda"]}, r"--dataset: expected one of cora, .*got 'coda'"),
        ("table1", {"dataset": ["ogbl-ddi"]}, r"--dataset: .* for table1, got 'ogbl-ddi'"),
        ("table1", {"dataset": ["like:coda"]}, "--dataset: expected one of cora"),
        ("table1", {"model": ["gat"]}, "--model: expected one of gcn, sage for table1, got 'gat'"),
        ("table1", {"dataset": ["cora"], "model": ["sage"]}, "--model: expected one of gcn, sage"),
        ("table1", {"inits": ["javier"]}, "--init: expected one of lecun, .*got 'javier'"),
        ("table1", {"inits": ["xavier+magic"]}, "--init: expected one of lecun"),
        ("table1", {"limit": 0}, "--limit: expected at least 1"),
        ("table1", {"where": {"depth": "2"}}, "--where: expected one of num_layers, .*got 'depth'"),
        ("table1", {"where": {"dropout": "2"}}, "--where dropout: expected one of 0.0, .*got '2'"),
    ],
)
def test_unknown_names(table: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        grids.cells(table, **options)


def test_a_dataset_without_the_model_is_left_out() -> None:
    assert {cell.dataset for cell in grids.cells("table1", model=["sage"])} == {"ogbn-products"}


def test_one_grid_by_name() -> None:
    with pytest.raises(OptionError, match="--model: expected one of gcn for table1 on cora"):
        grids.grid("table1", "cora", "sage")
    with pytest.raises(OptionError, match="--dataset: expected one of cora"):
        grids.grid("table1", "imdb-b", "gcn")

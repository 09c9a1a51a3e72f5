"""Named grids, the released protocol, estimates, and what tables leave out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from kit.commands import run as command
from kit.sweeps import STUB

from virgo.cli import sweeping, tables, training
from virgo.errors import OptionError
from virgo.experiments.data import load
from virgo.experiments.sweep import grids, records
from virgo.experiments.sweep.estimates import estimate, measured
from virgo.experiments.sweep.protocols import at_best_epoch, by_other_folds
from virgo.experiments.sweep.records import Record
from virgo.experiments.sweep.tables import build
from virgo.experiments.sweep.worker import Sweep
from virgo.experiments.tasks import Settings, Training, task_of
from virgo.experiments.tasks.graph.released import ReleasedGraphTask, run

CONFIG = grids.grid("table3", "imdb-b", "gcn", "released").configurations()[0]


def fold(number: int, *tests: float) -> dict[str, Any]:
    curve = [[epoch, value] for epoch, value in enumerate(tests, start=1)]
    last = tests[-1]
    return {"seed": number, "valid": last, "test": last, "epoch": len(tests), "epochs": len(tests),
            "seconds": 1.0, "status": "ok", "curve": curve}  # fmt: skip


def released(init: str, *folds: dict[str, Any]) -> Record:
    return Record("table3", "imdb-b", "gcn", init, CONFIG, folds, protocol="released")


# --- grids --------------------------------------------------------------------------------------


def test_reproduces_is_the_printed_grid_with_another_weight_decay() -> None:
    printed = grids.grid("table1", "cora", "gcn").configurations()
    other = grids.grid("table1", "cora", "gcn", "reproduces").configurations()
    changed = [{**c, "weight_decay": 5e-4} if c["weight_decay"] else c for c in printed]
    assert sorted(map(records.canonical, other)) == sorted(map(records.canonical, changed))
    arxiv = ("table1", "ogbn-arxiv", "gcn")
    assert grids.grid(*arxiv, "reproduces") == grids.grid(*arxiv)
    with pytest.raises(OptionError, match="printed, reproduces for table1"):
        grids.cells("table1", grid="released")


def test_records_say_their_grid_and_protocol_and_old_ones_stay_readable() -> None:
    record = Record("table1", "cora", "gcn", "xavier", {"lr": 0.1}, (), grid="reproduces")
    assert Record.from_json(record.to_json()) == record
    old = '{"table":"table1","dataset":"cora","model":"gcn","init":"xavier","config":{},"seeds":[]}'
    assert Record.from_json(old).grid is None
    assert '"grid"' not in Record.from_json(old).to_json()
    first = released("xavier", fold(0, 0.5))
    assert len(records.merge([first], [Record(*first.identity[:4], CONFIG, first.seeds)])) == 2


# --- the released protocol ----------------------------------------------------------------------


def test_one_epoch_for_all_folds_by_the_mean_test_curve() -> None:
    record = released("xavier", fold(0, 0.9, 0.5, 0.6), fold(1, 0.1, 0.8, 0.6))
    # the means are 0.5, 0.65, 0.6: the second epoch, although fold 0 is best in the first
    assert [seed["test"] for seed in at_best_epoch(record).seeds] == [0.5, 0.8]
    assert [seed["epoch"] for seed in at_best_epoch(record).seeds] == [2, 2]
    ways = by_other_folds(record)
    assert ways["last epoch"] == {0: 0.6, 1: 0.6}
    # fold 0's epoch is fold 1's best, the second; fold 1's is fold 0's best, the first
    assert ways["epoch by the other folds"] == {0: 0.5, 1: 0.1}


def test_the_table_names_the_selection_on_test_and_keeps_protocols_apart() -> None:
    mine = [
        released(init, *(fold(i, 0.5 + gain, 0.6 + 0.01 * i) for i in range(10)))
        for init, gain in (("xavier", 0.0), ("virgo-backward", 0.3))
    ]
    table = build("table3", mine, grid="released", protocol="released")
    assert "SELECTION ON TEST" in str(table)
    assert table.cell("imdb-b", "virgo-backward").mean == pytest.approx(80)
    assert table.cell("imdb-b", "xavier").mean == pytest.approx(64.5)
    assert all(cell.chosen is None for cell in build("table3", mine).cells)
    kept = table.ran()
    assert [str(place) for place in kept.places] == ["imdb-b, gcn"]
    assert kept.methods == ("xavier", "virgo-backward")
    assert "not run" not in str(kept).split("\n\n")[2]
    assert "not run" in str(table).split("\n\n")[2]


def test_the_released_task_trains_on_nine_folds_with_one_logit() -> None:
    dataset = load("like:imdb-b@0.05")
    task = ReleasedGraphTask(dataset)
    split = task.split_of(3)
    assert torch.equal(split["valid"], split["test"])
    assert split["train"].numel() + split["test"].numel() == len(dataset.data)
    logits = torch.tensor([[0.4], [0.6], [-1.0]])
    # a logit of 0.4 is a probability above one half, and called negative by the script
    assert task.score(logits, torch.tensor([[0.0], [1.0], [0.0]])) == 1.0
    config = {**CONFIG, "hidden_channels": 4, "num_layers": 2, "epochs": 3}
    outcome = run(dataset, "gcn", "xavier", config, 0)
    assert [epoch for epoch, _ in outcome.curve] == [1, 2, 3]
    assert outcome.test == outcome.curve[-1][1]
    assert outcome == run(dataset, "gcn", "xavier", config, 0).__class__(
        **{**vars(run(dataset, "gcn", "xavier", config, 0)), "seconds": outcome.seconds}
    )


def test_the_released_protocol_refuses_datasets_with_a_split() -> None:
    with pytest.raises(OptionError, match="protocol 'validation'"):
        ReleasedGraphTask(load("like:ogbg-molhiv@0.002"))
    with pytest.raises(OptionError, match="virgo sweep table3"):
        command(sweeping, "sweep", "table1", "--protocol", "released", "--dry-run")


# --- training -----------------------------------------------------------------------------------


def test_strict_stopping_keeps_the_first_of_equal_epochs() -> None:
    task = task_of(load("like:cora@0.1"))
    common = {"hidden_channels": 4, "lr": 1e-12, "epochs": 30, "patience": 5, "dropout": 0.0}
    loose = Training(task, "gcn", "xavier", Settings.of(common), 0).complete()
    strict = Training(task, "gcn", "xavier", Settings.of({**common, "strict": True}), 0).complete()
    # with a rate of nothing every epoch is as good as the first
    assert (loose.epoch, loose.epochs) == (30, 30)
    assert (strict.epoch, strict.epochs) == (1, 6)


def test_the_rate_is_halved_every_so_many_epochs() -> None:
    task = task_of(load("like:cora@0.1"))
    settings = Settings.of({"hidden_channels": 4, "lr": 0.8, "epochs": 5, "halve_every": 2})
    run_ = Training(task, "gcn", "xavier", settings, 0)
    rates = []
    for _ in range(5):
        run_.advance()
        rates.append(run_.optimiser.param_groups[0]["lr"])
    assert rates == [0.8, 0.8, 0.4, 0.4, 0.2]


# --- the commands -------------------------------------------------------------------------------


def test_an_estimate_counts_what_is_missing(tmp_path: Path) -> None:
    cells = tuple(grids.cells("table1", ["cora"], inits=["xavier"], limit=4))
    guess = estimate(Sweep(cells, str(tmp_path / "s.db"), 10, **STUB))
    assert guess.seeds == 40
    assert 0 < guess.hours < 1
    unknown = tuple(grids.cells("table1", ["ogbn-proteins"], inits=["xavier"], limit=1))
    assert "nothing measured" in str(estimate(Sweep(unknown, str(tmp_path / "s.db"), 1, **STUB)))
    assert not list(tmp_path.iterdir())  # to ask what a sweep would take makes no storage
    seed = {"seed": 0, "seconds": 3.0, "epochs": 6, "status": "ok"}
    costs = measured([Record("table1", "cora", "gcn", "xavier", {}, (seed,))])
    assert costs == {"table1/cora/gcn": {"seconds_per_epoch": 0.5, "epochs": 6.0}}


def test_sweeps_and_tables_leave_published_results_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "sweep table1 --dataset cora --init xavier virgo-backward --limit 1 --seeds 2 --jobs 0 "
    words += "--grid reproduces --strict --runner kit.sweep_stub:run --loader kit.sweep_stub:load"
    assert command(sweeping, *words.split()) == 0
    (first, second) = records.read(tmp_path / "out" / "table1.jsonl")
    assert first.grid == second.grid == "reproduces"
    assert first.config["strict"] is True
    assert not (tmp_path / "results").exists()
    assert "seeds to run" in capsys.readouterr().err
    assert command(tables, "table", "table1", "--grid", "reproduces") == 0
    said = capsys.readouterr().out
    assert "cora" in said
    assert "pubmed" not in said.split("Not run")[0]
    assert command(sweeping, *words.split(), "--publish") == 0
    assert (tmp_path / "results" / "table1.jsonl").is_file()


def test_training_takes_the_middle_of_the_papers_grid_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "train --dataset like:cora@0.1 --model gcn --epochs 2 --lr 0.5"
    assert command(training, *words.split()) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "middle of the paper's grid (table1): num_layers 3, hidden_channels 64" in said
    assert "lr" not in said.split("table1")[1]
    assert grids.middle("ogbl-ddi", "gcn") == (
        "table2",
        {
            "num_layers": 2,
            "hidden_channels": 256,
            "batch_size": 32768,
            "epochs": 2400,
            "patience": None,
            "dropout": 0.5,
            "weight_decay": 0.0,
            "lr": 0.005,
        },
    )


def test_few_seeds_and_few_epochs_are_indicative_only() -> None:
    config = {**grids.grid("table3", "ogbg-molhiv", "gcn").configurations()[0], "epochs": 2}
    seeds = tuple({**fold(i, 0.7 + i / 100), "curve": []} for i in range(6))
    mine = [
        Record("table3", "ogbg-molhiv", "gcn", init, config, seeds)
        for init in ("lecun", "xavier", "virgo-forward", "virgo-backward")
    ]
    text = str(build("table3", mine))
    line = next(line for line in build("table3", mine).remarks if "paper has" in line)
    assert "indicative only" in line
    assert "reproduced" not in line
    assert "not run" in text
    assert "not run" not in "\n".join(build("table3", mine).ran().to_csv().splitlines()[1:])

"""Manners: help at once, progress in a log, the nearest word, options that do nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from kit import miniatures

import virgo
from virgo import cli
from virgo.cli import progress, subjects
from virgo.cli.wording import spoken
from virgo.errors import MissingExtra, VirgoError
from virgo.experiments.models import FAMILIES, MODELS


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line of a command that must end with exit code 2."""
    try:
        code = cli.main(argv)
    except SystemExit as end:
        code = end.code  # type: ignore[assignment]
    assert code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    return line


# --- help -----------------------------------------------------------------------------------------


def test_no_help_waits_for_torch() -> None:
    code = """
import sys
from contextlib import suppress
from virgo import cli
from virgo.cli.completion import script
for command in ([], *([name] for name in cli.COMMANDS), ["sweep", "table1"], ["data", "get"]):
    with suppress(SystemExit):
        cli.main([*command, "--help"])
script()
print([name for name in ("torch", "torch_geometric", "numba") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_exit_codes_are_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "exit codes: 0 good; 1 the verdict is bad" in shown
    assert all(code in shown for code in ("2 wrong use", "130 interrupted", "141 the reader"))


def test_the_words_of_options_are_those_of_the_library() -> None:
    assert set(MODELS) == {*FAMILIES, "ngnn-gcn", "ngnn-sage"}
    assert set(subjects.KNOWN_MODELS) == {*MODELS, "gat"}


# --- progress -------------------------------------------------------------------------------------


def test_a_log_gets_lines_while_one_call_works(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "FIRST", 0.01)
    monkeypatch.setattr(progress, "EVERY", 0.01)
    progress.begin()
    with progress.working("reading") as update:
        _until(capsys, "reading")
        update("sorting")
        _until(capsys, "sorting")
    with progress.reporting("measuring") as report:
        report(1, 4, "xavier")
        _until(capsys, "measuring, 25 %: xavier")
    with progress.loading("cora") as report:
        report(0, 1, "copying")
        _until(capsys, "loading cora: copying")


def _until(capsys: pytest.CaptureFixture[str], line: str) -> None:
    limit = time.monotonic() + 60
    while line not in capsys.readouterr().err.splitlines():
        assert time.monotonic() < limit, line
        time.sleep(0.01)


def test_what_is_quick_says_nothing_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.working("reading"):
        pass
    assert capsys.readouterr().err == ""


# --- misspelt words -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["chekc", "cora"], "check"),
        (["check", "cora", "--laers", "3"], "--layers"),
        (["data", "lst"], "list"),
        (["sweep", "tabel1"], "table1"),
        (["table", "tabel1"], "table1"),
        (["check", "corra"], "cora"),
        (["check", "cora", "--model", "gta"], "gat"),
        (["check", "cora", "--method", "xaver"], "xavier"),
        (["check", "cora", "--method", "virgo+mirored"], "mirrored"),
        (["train", "--dataset", "corra"], "cora"),
        (["train", "--dataset", "cora", "--init", "virgo-bakward"], "virgo-backward"),
        (["train", "--dataset", "cora", "--model", "gni"], "gin"),
        (["data", "get", "pubmd"], "pubmed"),
        (["compare", "cora", "--methods", "lecunn"], "lecun"),
    ],
)
def test_a_misspelt_word_gets_the_nearest(
    argv: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"Did you mean {meant}?" in refused(capsys, *argv)


def test_an_unknown_dataset_lists_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "check", "corra")
    assert all(name in line for name in virgo.data.names())


def test_messages_speak_the_command_lines_words() -> None:
    assert spoken("Use signal='rms' or estimate='measured'.") == "Use +rms or +measured."
    assert spoken("beside distribution='spectral', got") == "beside +spectral, got"
    assert spoken("See virgo.methods().") == "See virgo methods."


# --- options that do nothing ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "where"),
    [
        (["plan", "--graph", "g", "--widths", "4", "2", "--checkpoint", "c"], "--checkpoint: "),
        (["plan", "--graph", "g", "--widths", "4", "2", "--num-nodes", "9"], "--num-nodes: "),
        (["plan", "--graph", "g", "--widths", "4", "2", "--weight-column", "w"], "--weight-"),
        (["plan", "--graph", "g", "--widths", "4", "2", "--nodes", "9"], "--nodes: "),
        (["check", "cora", "--graphs", "9"], "--graphs: "),
        (["check", "cora", "--norms", "fresh"], "--norms: "),
        (["train", "--dataset", "cora", "--ngnn-type", "all"], "--ngnn-type: "),
        (["train", "--resume", "r.safetensors", "--layers", "3"], "--layers: "),
        (["train", "--dataset", "cora", "--model", "gat", "--save", "r.safetensors"], "--save: "),
    ],
)
def test_an_option_that_does_nothing_says_so(
    argv: list[str], where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, *argv)
    assert line.startswith(f"virgo: {where}")
    assert "Leave it out" in line


def test_columns_of_arrays_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "edges.npy", np.array([[0, 1], [1, 2]]))
    argv = ["graph", "build", str(tmp_path / "edges.npy"), str(tmp_path / "out")]
    line = refused(capsys, *argv, "--weight-column", "w")
    assert line.startswith("virgo: --weight-column: expected a file with columns")
    assert cli.main(argv) == 0


# --- missing libraries ----------------------------------------------------------------------------


def test_a_missing_library_is_named_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    miniatures.write("cora", tmp_path)
    for name in ("scipy", "scipy.sparse", "ogb", "safetensors", "matplotlib"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setenv("VIRGO_DATA", str(tmp_path))
    monkeypatch.setenv("VIRGO_CACHE", str(tmp_path / "cache"))
    asked = {
        ("check", "cora"): "Loading cora requires scipy. Run: pip install 'virgo-gnn[data]'",
        ("train", "--dataset", "cora"): "Loading cora requires scipy. Run: ",
        ("data", "get", "cora"): "Loading cora requires scipy. Run: ",
        ("train", "--dataset", "x", "--save", "a.safetensors"): "A checkpoint requires safetensors",
        ("check", "cora", "--png", "a.png"): "A figure requires matplotlib. Run: ",
    }
    for argv, expected in asked.items():
        assert refused(capsys, *argv).startswith(f"virgo: {expected}")
    graph, words = virgo.data.demo_graph()
    assert graph.num_nodes > 0
    assert "generated" in words
    assert "Loading cora requires scipy" in words


def test_a_missing_extra_is_an_import_error_and_crosses_processes() -> None:
    import pickle

    error = MissingExtra("A sweep", "optuna", "sweep")
    assert isinstance(error, ImportError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert isinstance(pickle.loads(pickle.dumps(error)), VirgoError)


# --- models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", subjects.KNOWN_MODELS)
def test_check_and_train_take_the_same_models(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "graph.pt"
    torch.save(virgo.data.citation_like(num_nodes=150, num_features=40, seed=0), path)
    assert cli.main(["check", str(path), "--model", model, "--width", "8"]) in (0, 1)
    first = capsys.readouterr().out
    assert first.startswith(f"{model} as it is on graph")
    cli.main(["check", str(path), "--model", model, "--width", "8"])
    assert capsys.readouterr().out == first  # a model's own weights come from the seed
    argv = ["train", "--dataset", "like:cora@0.05", "--model", model, "--epochs", "2"]
    assert cli.main([*argv, "--hidden", "8"]) == 0
    assert f"{model} with virgo-backward" in capsys.readouterr().out

"""Arguments that nobody meant: one line that says what to do, exit code 2, nothing changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import virgo
from virgo.cli import main
from virgo.cli.progress import errors, note, working
from virgo.errors import DataError, OptionError
from virgo.experiments import study
from virgo.experiments.sweep.storage import open_storage, url_of


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a graph, a file that is something else, and broken grids."""
    monkeypatch.chdir(tmp_path)
    np.save("edges.npy", np.random.default_rng(0).integers(0, 50, (2, 300)))
    Path("file").write_text("a user's own notes")
    Path("deep.json").write_text("[" * 100_000)
    Path("number.json").write_text("3")
    return tmp_path


def refused(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says that does nothing."""
    try:
        code = main(words.split())
    except SystemExit as exit:  # of argparse
        code = int(exit.code or 0)
    said = capsys.readouterr().err
    assert code == 2, said
    assert "Traceback" not in said
    return " ".join(said.split())


@pytest.mark.parametrize("words", ["check like:cora@0.05", "train --dataset like:cora@0.05"])
@pytest.mark.parametrize("seed", ["-1", "9" * 30, "x"])
def test_seeds_that_no_generator_takes(
    words: str, seed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--seed: expected a whole number from 0" in refused(f"{words} --seed {seed}", capsys)


def test_depths_and_widths_that_no_model_has(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "expected a whole number from 1" in refused("check like:cora@0.05 --layers 0", capsys)
    assert main(["graph", "build", "edges.npy", "g"]) == 0
    assert "expected a whole number" in refused(f"plan --graph g --widths 4 {10**21}", capsys)
    vast = "plan --graph g --widths 2000000000 2000000000 4"
    assert "expected weights that fit into memory" in refused(vast, capsys)


@pytest.mark.parametrize("grid", ["deep.json", "number.json"])
def test_grids_that_are_none(here: Path, grid: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(f"sweep --dataset a:b --model a:c --grid {grid}", capsys)
    assert f"--grid {grid}: expected keys and values" in said


def test_a_storage_that_is_another_file_stays_as_it_is(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SQLite takes a file of a few bytes for an empty database, and would write over it."""
    for words in ("sweep status --storage file", "sweep restore --records r.jsonl --storage file"):
        Path("r.jsonl").write_text(
            '{"table":"mine","dataset":"d","model":"m","init":"i","config":{},"seeds":[]}\n'
        )
        assert "expected a sweep's database, got another file" in refused(words, capsys)
        assert Path("file").read_text() == "a user's own notes"
    Path("empty").touch()
    assert "got an empty file" in refused("sweep status --storage empty", capsys)
    assert Path("empty").read_bytes() == b""
    with pytest.raises(DataError, match=r"expected a file that can be opened or made, got .* Name"):
        open_storage(here / "file" / "s.db")


def test_a_port_that_is_no_number_shows_no_password() -> None:
    with pytest.raises(OptionError, match="expected postgresql://user@host") as caught:
        url_of("postgresql://me:hunter2@host:hunter3/db")
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize("name", ["..", ".hidden", "depth", "a\nb", ""])
def test_names_that_name_no_file_of_a_study(name: str, tmp_path: Path) -> None:
    data = virgo.data.citation_like(num_nodes=20, seed=0)
    with pytest.raises(OptionError, match="name: expected a word that names a file"):
        study(data, "gcn", ["xavier"], name=name, out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_report_where_no_file_can_be(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused("check like:cora@0.05 --json file/x.json", capsys)
    assert "expected a file that can be written" in said
    assert Path("file").read_text() == "a user's own notes"


def test_scales_beyond_any_memory() -> None:
    with pytest.raises(DataError, match=r"up to 1e\+06 after @"):
        virgo.data.load("like:cora@1e99")


def test_pickled_mean_features_are_refused_without_advice_to_trust_them(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["graph", "build", "edges.npy", "g"]) == 0
    said = refused("plan --graph g --widths 4 4 --mean-features file", capsys)
    assert "expected a .npy file of numbers" in said
    assert "pickle" not in said


def test_names_are_shown_as_they_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    note("data :x: [red]expected[/blue]")
    assert capsys.readouterr().err == "data :x: [red]expected[/blue]\n"
    monkeypatch.setattr(errors, "_force_terminal", True, raising=False)
    monkeypatch.setattr(type(errors), "is_interactive", property(lambda _: True), raising=False)
    with working("loading [/x]") as update:
        update("loading [/y]")

"""``virgo data``: what it prints, writes and returns."""

from __future__ import annotations

import io
import json
import zipfile
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
from kit import commands, miniatures

from virgo.cli import datasets
from virgo.data import load
from virgo.errors import DataError, OptionError
from virgo.experiments.data import inventory
from virgo.experiments.data.catalogue import CATALOGUE, ENTRIES
from virgo.experiments.data.inventory import Checked
from virgo.experiments.data.loaders import download

run = partial(commands.run, datasets, "data")


def test_list_says_what_there_is(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    miniatures.write("cora", root)
    miniatures.write("imdb-b", root)
    load("imdb-b", root)
    miniatures.write("ogbn-arxiv", root)
    (root / "ogbn_arxiv" / "raw" / "node-feat.csv.gz").unlink()
    out = root.parent / "list.json"
    assert run("list", "--root", root, "--json", out) == 0
    lines = capsys.readouterr().out.splitlines()
    table = {line.split()[0]: line for line in lines[2:17]}
    assert list(table) == [row.name for row in ENTRIES]
    assert [line.split()[0] for line in lines[17:20]] == ["photo", "computers", "cs"]
    assert "extra, not in the paper's tables: photo, computers, cs" in lines
    assert table["cora"].endswith("raw files")
    assert table["imdb-b"].endswith("ready")
    assert table["ogbn-arxiv"].endswith("incomplete: no raw/node-feat.csv.gz")
    assert table["ogbl-ppa"].endswith("absent")
    assert "30,326,273" in table["ogbl-ppa"]
    found = {one["name"]: one for one in json.loads(out.read_text())}
    assert found["ogbn-arxiv"]["missing"] == ["raw/node-feat.csv.gz"]
    assert found["imdb-b"]["state"] == "ready"
    assert [name for name, row in found.items() if row["extra"]] == ["photo", "computers", "cs"]


def test_get_prepares_and_says_where(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    miniatures.write("imdb-m", root)
    assert run("get", "imdb-m", "--root", root) == 0
    out = capsys.readouterr().out
    assert "imdb-m (graph, accuracy): 30 graphs" in out
    folder = Path(out.split(" s, in ")[1].strip())
    assert (folder / "IMDB-MULTI" / "processed" / "data.pt").is_file()


def test_get_of_an_absent_one_says_what_goes_where(root: Path) -> None:
    with pytest.raises(DataError, match=r"ogbl-ppa: expected the raw files .* got no RELEASE_v1"):
        run("get", "ogbl-ppa", "--root", root)
    with pytest.raises(DataError, match="like:cora: expected a dataset with files"):
        run("get", "like:cora", "--root", root)
    with pytest.raises(DataError, match="got 'nonsense'"):
        run("get", "nonsense", "--root", root)


def test_check_fails_where_something_is_wrong(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    miniatures.write("ogbl-ddi", root)
    out = root.parent / "check.json"
    assert run("check", "ogbl-ddi", "--root", root, "--json", out) == 1
    said = capsys.readouterr()
    assert "nodes: expected 4267, got 20" in said.err
    assert said.out.startswith("0 of 1 as published, not: ogbl-ddi")
    (found,) = json.loads(out.read_text())
    assert {"what": "nodes", "expected": 4267, "got": 20} in found["differences"]
    assert run("check", "ogbl-ppa", "--root", root) == 1  # asked for, and not there
    assert "expected the raw files of ogbl_ppa" in capsys.readouterr().err
    with pytest.raises(OptionError, match=r"--json: expected a path ending in \.json"):
        run("check", "--json", "table.csv")


def test_check_of_nothing_in_particular_passes_over_absent_ones(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    miniatures.write("cora", root)
    monkeypatch.setattr(
        inventory, "check", lambda row, root, progress: Checked(row.name, counted=8)
    )
    assert run("check", "--root", root) == 0
    said = capsys.readouterr()
    assert "cora: ok, 8 counts are as published" in said.err
    assert "absent: citeseer, pubmed" in said.out
    assert said.out.rstrip().endswith("1 of 1 as published")


# --- downloads, from a network that is made here -------------------------------------------------


def published(name: str, where: Path) -> bytes:
    """The zip file that OGB's server has: the dataset's folder under its download name."""
    miniatures.write(name, where)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for path in sorted((where / CATALOGUE[name].folder).rglob("*")):
            packed.write(path, Path("ddi", *path.relative_to(where).parts[1:]))
    return buffer.getvalue()


class Answer(io.BytesIO):
    def __init__(self, content: bytes, claimed: int) -> None:
        super().__init__(content)
        self.claimed = claimed

    def info(self) -> dict[str, Any]:
        return {"Content-Length": self.claimed}


@pytest.mark.parametrize("claimed", [2**20, 2**31], ids=["small", "asks first"])
def test_download_by_the_loaders_own_code(
    claimed: int, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = published("ogbl-ddi", root.parent / "server")
    asked: list[str] = []

    def urlopen(url: str) -> Answer:
        asked.append(url)
        return Answer(content, claimed)

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    assert run("get", "ogbl-ddi", "--download", "--root", root) == 0
    assert "ogbl-ddi (link, hits@20): 20 nodes" in capsys.readouterr().out
    assert asked[0].endswith("/ddi.zip")
    assert [path.name for path in root.iterdir()] == ["ogbl_ddi"]
    asked.clear()
    assert run("get", "ogbl-ddi", "--download", "--root", root) == 0
    assert asked == []  # complete: nothing to fetch


@pytest.mark.parametrize("error", [URLError("no route"), TimeoutError("timed out")])
def test_a_failed_download_is_one_error_and_leaves_nothing(
    error: Exception, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def urlopen(url: str) -> None:
        raise error

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    with pytest.raises(DataError, match=r"ogbl-ddi: expected a download, got .*Check the network"):
        run("get", "ogbl-ddi", "--download", "--root", root)
    assert list(root.iterdir()) == []


def test_a_download_without_the_files_is_an_error(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        packed.writestr("ddi/RELEASE_v1.txt", "")
        packed.writestr("ddi/raw/other.csv.gz", "")
    content = buffer.getvalue()
    monkeypatch.setattr("urllib.request.urlopen", lambda url: Answer(content, len(content)))
    with pytest.raises(DataError, match=r"expected raw/edge.csv.gz in the download"):
        download(CATALOGUE["ogbl-ddi"], root)


def test_a_root_that_cannot_be_written_to_is_said_before_a_download(root: Path) -> None:
    (root / "file").write_text("")
    with pytest.raises(DataError, match=r"expected a data root that can be written to.*--root"):
        download(CATALOGUE["ogbl-ddi"], root / "file")


@pytest.mark.data
def test_check_of_real_files(data_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not (data_root / "Cora" / "raw").is_dir():
        pytest.skip(f"no real data: {data_root} has no Cora/raw")
    assert run("check", "cora", "--root", data_root) == 0
    assert "cora: ok, 8 counts are as published" in capsys.readouterr().err

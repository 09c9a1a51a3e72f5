"""The command line: what it prints and writes, and the code it exits with."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.checks import strict_json
from torch_geometric.data import Data

import virgo
from virgo import cli
from virgo.cli import demo, subjects

CHECKOUT = Path(__file__).resolve().parents[2]
COMMANDS = ("demo", "methods", "check", "compare", "verify")
MODULE = """
import torch, virgo
from torch_geometric.nn import GCN

def make_data():
    return virgo.data.citation_like(num_nodes=150, num_features=40, seed=0)

def good():
    torch.manual_seed(0)
    return GCN(40, 16, 2, 7)

def bad():
    torch.manual_seed(0)
    model = GCN(40, 16, 6, 7)
    with torch.no_grad():
        for conv in model.convs[1:]:
            conv.lin.weight.mul_(1e-2)
    return model

def deep(depth):
    torch.manual_seed(0)
    return GCN(40, 16, depth, 7)

def with_width(hidden=16):
    assert hidden == 16
    return good()

number = 3
"""


def test_every_name_of_the_package_is_found_when_it_is_used() -> None:
    assert set(dir(virgo)) == {*virgo.__all__, "__version__"}
    for name in virgo.__all__:
        assert getattr(virgo, name) is getattr(virgo, name)
    homes = {name for names in virgo._HOMES.values() for name in names}
    assert homes < set(virgo.__all__)
    assert virgo.theory.__name__ == "virgo.theory"  # a module that nothing here imported
    with pytest.raises(AttributeError, match="module 'virgo' has no attribute 'nothing'"):
        _ = virgo.nothing


def test_two_threads_may_ask_for_names_at_once() -> None:
    code = """
import threading, virgo
wrong = []
def ask(name):
    try:
        getattr(virgo, name)
    except Exception as error:
        wrong.append(error)
threads = [threading.Thread(target=ask, args=(n,)) for n in ("LayerView", "Plan", "data")]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(wrong, virgo.init_.__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "init_"]


def test_every_command_is_listed_with_its_module(capsys: pytest.CaptureFixture[str]) -> None:
    there = {word for name in cli.COMMANDS for word in _choices(cli.parser([name, "--help"]))}
    assert there == set(cli.COMMANDS) == set(_choices(cli.parser()))
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert all(f"{name} {what}" in shown for name, (_, what) in cli.COMMANDS.items())


def _choices(parser: Any) -> list[str]:
    return next(list(action.choices) for action in parser._actions if action.choices)


def test_help_and_a_graph_on_disk_do_not_wait_for_torch(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("0,1\n1,2\n")
    code = f"""
import sys
from virgo.cli import main
assert main(["graph", "build", {str(tmp_path / "edges.csv")!r}, {str(tmp_path / "out")!r}]) == 0
assert main(["graph", "info", {str(tmp_path / "out")!r}]) == 0
try:
    main(["--help"])
except SystemExit as end:
    assert end.code == 0
print([name for name in ("torch", "torch_geometric") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "graph.pt"
    torch.save(virgo.data.citation_like(num_nodes=150, num_features=40, seed=0), path)
    return path


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's in the current folder, which is not on the path."""
    name = "users_own_models"
    (tmp_path / f"{name}.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [part for part in sys.path if part])
    yield name
    sys.modules.pop(name, None)


def failed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Runs a command that must fail in one line on stderr, and gives that line."""
    assert cli.main(argv) == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1, err
    assert lines[0].startswith("virgo: ")
    return lines[0]


# --- check ----------------------------------------------------------------------------------------


def test_check_exits_by_its_verdict(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    assert cli.main(["check", str(saved), "--width", "16"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("gcn as it is on graph\nGOOD: Signal and gradient survive")
    assert "forward variance" in out
    deep = ["check", str(saved), "--layers", "12", "--width", "32", "--method", "xavier"]
    files = {kind: tmp_path / "made" / f"r.{kind}" for kind in ("json", "html", "png")}
    options = [part for kind, path in files.items() for part in (f"--{kind}", str(path))]
    assert cli.main([*deep, *options]) == 1
    out = capsys.readouterr().out
    assert "gcn with xavier on graph" in out
    assert "BAD: The" in out
    assert "vanishes" in out
    for path in files.values():
        assert f"wrote {path}" in out
    read = strict_json(files["json"].read_text(encoding="utf-8"))
    assert read["ok"] is False
    assert read["title"] == "gcn with xavier on graph"
    assert len(read["measurement"]["layers"]) == 13
    assert "gcn with xavier on graph" in files["html"].read_text(encoding="utf-8")
    assert files["png"].read_bytes()[1:4] == b"PNG"


def test_thresholds_from_the_command_line(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["check", str(saved), "--layers", "5", "--width", "64", "--method", "lecun"]
    levels = []
    for limits in ([], ["--change", "20"], ["--change", "1e9"], ["--watch", "1e8"]):
        code = cli.main([*argv, *limits, *(["--change", "1e9"] if "--watch" in limits else [])])
        levels.append((code, capsys.readouterr().out.splitlines()[1].split(":")[0]))
    assert levels == [(1, "BAD"), (1, "BAD"), (0, "WATCH"), (0, "GOOD")]


def test_loading_a_file_leaves_pygs_loading_as_it_was(saved: Path) -> None:
    before = set(torch.serialization.get_safe_globals())
    subjects.load_file(saved)
    assert set(torch.serialization.get_safe_globals()) >= before
    assert isinstance(torch.load(saved, weights_only=True), Data)


def test_check_is_what_the_library_says(saved: Path, tmp_path: Path) -> None:
    argv = [
        "check",
        str(saved),
        "--layers",
        "3",
        "--method",
        "virgo-forward+measured",
        "--seed",
        "4",
        "--width",
        "16",
        "--json",
        str(tmp_path / "r.json"),
    ]
    assert cli.main(argv) == 0
    from torch_geometric.nn import GCN

    data = subjects.load_file(saved)
    model = GCN(40, 16, 3, 7)
    plan = virgo.plan(model, data, "virgo-forward", estimate="measured", seed=4)
    expected = virgo.check(model, data, plan)
    layers = strict_json((tmp_path / "r.json").read_text(encoding="utf-8"))["measurement"]["layers"]
    assert [layer["forward"] for layer in layers] == expected.measurement.forward
    assert [layer["backward"] for layer in layers] == expected.measurement.backward


@pytest.mark.parametrize("model", ["sage", "gin", "gat"])
def test_check_with_other_models_and_a_sample(
    model: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["check", str(saved), "--model", model, "--width", "32", "--nodes", "100"]
    assert cli.main(argv) in (0, 1)
    out = capsys.readouterr().out
    assert f"{model} as it is on graph" in out
    assert "sample of 100 of 150 nodes" in out


def test_check_on_the_users_own_code(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    own = ["check", "--data", f"{module}:make_data", "--model"]
    assert cli.main([*own, f"{module}:good"]) == 0
    assert f"{module}:good as it is on {module}:make_data" in capsys.readouterr().out
    assert cli.main([*own, f"{module}:bad"]) == 1
    assert "BAD" in capsys.readouterr().out
    assert cli.main([*own, f"{module}:deep", "--layers", "3"]) == 0
    assert "into convs.2" in capsys.readouterr().out
    assert cli.main([*own, f"{module}:with_width"]) == 0


def test_check_annotates_for_github(
    module: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    own = ["check", "--data", f"{module}:make_data", "--format", "github", "--model"]
    assert cli.main([*own, f"{module}:bad"]) == 1
    first, *rest = capsys.readouterr().out.splitlines()
    source = Path(sys.modules[module].__file__ or "")
    line = source.read_text().splitlines().index("def bad():") + 1
    where = f"file={source.name},line={line}," if source.parent == Path.cwd() else ""
    assert first.startswith(f"::error {where}title=virgo check%3A vanishing at ")
    assert "::The signal vanishes by a factor of " in first
    assert any(line.startswith("::group::") for line in rest)
    assert rest[-1] == "::endgroup::"
    assert cli.main([*own, f"{module}:good"]) == 0
    assert capsys.readouterr().out.startswith("::notice ")


def test_a_dictionary_of_tensors_is_a_graph_too(tmp_path: Path) -> None:
    data = virgo.data.citation_like(num_nodes=150, num_features=40, seed=0)
    torch.save(data.to_dict(), tmp_path / "d.pt")
    assert isinstance(subjects.load_file(tmp_path / "d.pt"), Data)
    assert cli.main(["check", str(tmp_path / "d.pt"), "--width", "16"]) == 0


def test_a_file_that_runs_code_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(marker),))

    torch.save({"x": Evil()}, tmp_path / "evil.pt")
    assert "expected a torch_geometric Data" in failed(capsys, "check", str(tmp_path / "evil.pt"))
    assert not marker.exists()


# --- mistakes -------------------------------------------------------------------------------------


def test_an_unknown_target_is_one_line_and_code_2(tmp_path: Path) -> None:
    """In a process of its own, as a shell sees it."""
    done = subprocess.run(
        [sys.executable, "-m", "virgo.cli", "check", "nosuch"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT / "src"), "COLUMNS": "60"},
    )
    assert done.returncode == 2
    assert done.stdout == ""
    *progress, line = done.stderr.splitlines()
    assert set(progress) <= {"loading PyTorch and PyG", "loading nosuch"}  # on a slow machine
    assert "expected a file with a saved Data, or one of cora, citeseer, pubmed" in line
    assert "got 'nosuch'" in done.stderr


def test_mistakes_with_names(
    module: str, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ("check", "--data", f"{module}:make_data", "--model")
    assert "or module:function, got 'nocolon'" in failed(capsys, *data, "nocolon")
    assert "No module named" in failed(capsys, *data, "nosuchmodule:make")
    assert "got no such name" in failed(capsys, *data, f"{module}:nothing")
    assert "expected a function, got int" in failed(capsys, *data, f"{module}:number")
    assert "Name both" in failed(capsys, *data, ":make")
    assert "to import, got" in failed(capsys, *data, ".relative:make")
    assert "expected module:function" in failed(capsys, "check", "--data", "nocolon")
    assert "nonsense" in failed(capsys, "check", str(saved), "--method", "nonsense")
    assert "got 'fast'" in failed(capsys, "check", str(saved), "--method", "xavier+fast")
    (tmp_path / "text.pt").write_text("no graph", encoding="utf-8")
    assert "expected a torch_geometric Data" in failed(capsys, "check", str(tmp_path / "text.pt"))
    torch.save(Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2), tmp_path / "bare.pt")
    assert "expected data with x and y" in failed(capsys, "check", str(tmp_path / "bare.pt"))
    assert "one of cora, citeseer, pubmed" in failed(capsys, "verify", "nosuch")
    assert "seeds: expected at least 1" in failed(capsys, "compare", str(saved), "--seeds", "0")


def test_a_wrong_ending_is_a_mistake(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", str(saved), "--width", "16", "--png", str(tmp_path / "a.json")]) == 2
    assert "--png: expected a path ending in .png" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "a.json").exists()


def test_data_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VIRGO_DATA", str(tmp_path))
    line = failed(capsys, "check", "cora")
    assert "expected the raw files of Cora" in line
    assert "VIRGO_DATA" in line
    assert "edge.csv.gz" in failed(capsys, "check", "ogbn-arxiv")


@pytest.mark.parametrize(
    "argv", [[], ["nosuch"], ["check", "--nosuch"], ["check", "--layers", "x"]]
)
def test_argparse_mistakes_exit_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("virgo")
    assert line.endswith(" --help.")


# --- named graphs ---------------------------------------------------------------------------------


def test_check_on_cora(cora: Data, data_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = ("--root", str(data_root))
    assert cli.main(["check", "Cora", *root]) == 0
    assert "gcn as it is on cora" in capsys.readouterr().out
    deep = ["check", "cora", *root, "--layers", "16", "--width", "64", "--method"]
    assert cli.main([*deep, "xavier"]) == 1
    assert cli.main([*deep, "virgo-backward+mirrored"]) == 0


def test_features_that_were_generated_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """OGB's files of a graph like arxiv, without its features."""
    data = virgo.data.citation_like(num_nodes=150, num_features=40, seed=0)
    one_way = data.edge_index[:, data.edge_index[0] < data.edge_index[1]].T.tolist()
    files: dict[str, list[list[int]]] = {
        "raw/edge.csv.gz": one_way,
        "raw/node-label.csv.gz": [[int(label)] for label in data.y],
        "split/time/train.csv.gz": [[i] for i in range(100)],
        "split/time/valid.csv.gz": [[i] for i in range(100, 120)],
        "split/time/test.csv.gz": [[i] for i in range(120, 150)],
    }
    for name, rows in files.items():
        path = tmp_path / "ogbn_arxiv" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt") as out:
            out.writelines(",".join(map(str, row)) + "\n" for row in rows)
    found = tmp_path / "r.json"
    argv = ["check", "ogbn-arxiv", "--root", str(tmp_path), "--width", "16", "--json", str(found)]
    assert cli.main(argv) == 0
    assert "features are generated" in capsys.readouterr().out
    read = strict_json(found.read_text(encoding="utf-8"))
    assert read["measurement"]["facts"] == {"nodes": 150, "edges": data.num_edges}
    assert any("features are generated" in note for note in read["notes"])
    argv = ["compare", *argv[1:4], "--methods", "xavier", "--layers", "2", "--seeds", "1"]
    assert cli.main(argv) == 0
    assert "features are generated" in capsys.readouterr().out


# --- compare, verify, methods, help ---------------------------------------------------------------


def test_compare(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [
        "compare",
        str(saved),
        "--layers",
        "2",
        "3",
        "--seeds",
        "2",
        "--width",
        "16",
        "--methods",
        "xavier",
        "virgo-forward+measured",
    ]
    files = {kind: tmp_path / f"c.{kind}" for kind in ("json", "html", "png")}
    options = [part for kind, path in files.items() for part in (f"--{kind}", str(path))]
    assert cli.main([*argv, *options]) == 0
    out = capsys.readouterr().out
    assert "gcn on graph, mean of 2 draws" in out
    assert "3 layers, forward: confirmed: virgo-forward+measured" in out
    read = strict_json(files["json"].read_text(encoding="utf-8"))
    assert {(c["method"], c["depth"]) for c in read["curves"]} == {
        (m, d) for m in ("xavier", "virgo-forward+measured") for d in (2, 3)
    }
    assert "Virgo compare: gcn on graph" in files["html"].read_text(encoding="utf-8")
    assert files["png"].read_bytes()[1:4] == b"PNG"


def test_compare_on_the_users_own_code(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["compare", "--data", f"{module}:make_data", "--methods", "lecun", "--seeds", "1"]
    assert cli.main([*own, "--model", f"{module}:good"]) == 0
    assert "\n2 layers" in capsys.readouterr().out
    assert cli.main([*own, "--model", f"{module}:deep", "--layers", "3", "4"]) == 0
    out = capsys.readouterr().out
    assert "\n3 layers" in out
    assert "\n4 layers" in out


def test_verify(
    cora: Data,
    data_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("VIRGO_DATA", str(data_root))
    found = tmp_path / "new" / "v.json"
    assert cli.main(["verify", "cora", "--seeds", "2", "--json", str(found)]) == 0
    out = capsys.readouterr().out
    assert f"wrote {found}" in out
    for table in ("A1", "A2", "A3", "A4", "A5"):
        assert table in out
    read = strict_json(found.read_text(encoding="utf-8"))
    assert read["command"] == "virgo verify cora"
    assert set(read["datasets"]) == {"cora"}
    assert read["datasets"]["cora"]["settings"]["seeds"] == 2


def test_methods(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["methods"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(virgo.methods())
    assert "Theorem 3" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--help"])
    assert caught.value.code == 0
    assert f"usage: virgo {command}" in capsys.readouterr().out


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert all(f"\n    {command} " in out for command in COMMANDS)
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith(f"virgo {virgo.__version__}, torch ")


def test_an_interrupt_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(virgo, "methods", interrupted)
    monkeypatch.setattr("virgo.rules.methods", interrupted)
    assert cli.main(["methods"]) == 130


# --- demo -----------------------------------------------------------------------------------------


def nowhere(tmp_path: Path) -> dict[str, str]:
    """An environment in which no folder has data."""
    names = ("VIRGO_DATA", "VIRGO_CACHE", "HOME", "XDG_CACHE_HOME")
    for name in names:
        (tmp_path / name).mkdir()
    return {name: str(tmp_path / name) for name in names}


def test_a_small_demo_on_the_generated_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in nowhere(tmp_path).items():
        monkeypatch.setenv(name, value)
    sizes = {"DEPTH": 3, "WIDTH": 8, "EPOCHS": 3}
    for name, number in sizes.items():
        assert hasattr(demo, name)
        monkeypatch.setattr(demo, name, number)
    monkeypatch.setattr(demo, "METHODS", ("xavier", "virgo+spectral"))
    threads = torch.get_num_threads()
    try:
        assert cli.main(["demo", "--out", str(tmp_path / "out")]) == 0
    finally:
        torch.set_num_threads(threads)
    out = capsys.readouterr().out
    assert "a generated citation-like graph" in out.splitlines()[0]
    assert "signal over layers" in out
    assert "xavier" in out
    assert " %" not in out  # an accuracy on a generated graph means nothing
    assert "Over 3 layers signal or gradient ranges over x" in out.splitlines()[-1]
    assert (tmp_path / "out" / "demo.png").read_bytes()[1:4] == b"PNG"
    assert f"picture: {tmp_path / 'out' / 'demo.png'}" in out


@pytest.mark.slow
def test_the_whole_demo(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "virgo.cli", "demo", "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=300,
        env={**os.environ, **nowhere(tmp_path), "PYTHONPATH": str(CHECKOUT / "src")},
    )
    assert done.returncode == 0, done.stderr
    assert "generated" in done.stdout.splitlines()[0]
    assert all(name in done.stdout for name in demo.METHODS)
    assert (tmp_path / "out" / "demo.png").is_file()


def test_verify_on_code_of_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All three kinds of file, for a graph the paper has no cells for."""
    (tmp_path / "verified_graph.py").write_text(
        "import virgo\n\n\ndef make():\n"
        "    return virgo.data.citation_like(num_nodes=300, num_features=64, seed=1)\n"
    )
    monkeypatch.chdir(tmp_path)
    files = [f"--{kind}" for kind in ("json", "html", "png")]
    options = [part for kind in files for part in (kind, f"out/tables.{kind[2:]}")]
    assert cli.main(["verify", "--data", "verified_graph:make", "--seeds", "2", *options]) == 0
    assert "wrote out/tables.html" in capsys.readouterr().out
    tables = json.loads(Path("out/tables.json").read_text())
    (name,) = tables["datasets"]
    assert name == "verified_graph:make"
    page = Path("out/tables.html").read_text()
    assert "A4: " in page
    assert "expected" in page
    assert Path("out/tables.png").read_bytes().startswith(b"\x89PNG")


def test_all_nodes_leaves_the_training_mask_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = virgo.data.citation_like(num_nodes=200, num_features=48, seed=0)
    torch.save(data.to_dict(), tmp_path / "graph.pt")
    monkeypatch.chdir(tmp_path)
    found = {}
    for option in ([], ["--all-nodes"]):
        torch.manual_seed(0)  # of the model's own weights
        assert cli.main(["check", "graph.pt", "--width", "16", "--json", "r.json", *option]) == 0
        found[bool(option)] = json.loads(Path("r.json").read_text())
    assert any("over all nodes" in note for note in found[True]["notes"])
    at_logits = {key: r["measurement"]["layers"][-1]["backward"] for key, r in found.items()}
    # Lemma 1: 1/(n^2 C) at each of the n nodes of the loss, averaged over all of them
    share = int(data.train_mask.sum()) / data.num_nodes
    assert at_logits[True] / at_logits[False] == pytest.approx(share, rel=0.1)


def test_a_stand_in_is_checked_and_said_to_be_generated(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "like:cora@0.1", "--width", "16", "--method", "virgo-backward"]) == 0
    assert "note: generated: like cora, scale 0.1" in capsys.readouterr().out

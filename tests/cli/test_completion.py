"""Shell completion, in a real shell, and the versions."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import metadata

import pytest

import virgo
from virgo.cli import COMMANDS, completion, main

BASH = shutil.which("bash")


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("virgo che", ["check"]),
        ("virgo --ver", ["--version"]),
        ("virgo check --lay", ["--layers"]),
        ("virgo check cora --norms f", ["fresh"]),
        ("virgo graph bui", ["build"]),
        ("virgo completion ", ["bash", "zsh"]),
        ("virgo compare --chan", []),  # an option of check alone
    ],
)
def test_bash_completes(line: str, expected: list[str], script: str) -> None:
    words = line.split(" ")
    listed = " ".join(f"'{word}'" for word in words)
    ask = f"COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _virgo; echo ${{COMPREPLY[@]}}"
    out = subprocess.run([str(BASH), "-c", f"{script}\n{ask}"], capture_output=True, text=True)
    assert out.stderr == ""
    found = [word for word in out.stdout.split() if not word.startswith("-") or line[-1] != " "]
    assert found == expected


@pytest.fixture(scope="module")
def script() -> str:
    return completion.script()


def test_the_command_prints_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "script", lambda: "words\n")
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == "words\n"
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out == "autoload -U +X bashcompinit && bashcompinit\nwords\n"
    assert "completion" in COMMANDS


def test_version_names_what_virgo_runs_on_without_importing_it() -> None:
    code = (
        "import sys\nfrom virgo.cli import main\n"
        "try:\n    main(['--version'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "assert 'torch' not in sys.modules and 'torch_geometric' not in sys.modules"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    torch, pyg = metadata.version("torch"), metadata.version("torch_geometric")
    start = f"virgo {virgo.__version__}, torch {torch}, torch_geometric {pyg}, Python "
    assert out.stdout.startswith(start)

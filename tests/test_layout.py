"""Where things are: which room imports which, and what no room does twice."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

import virgo

SOURCE = Path(virgo.__file__).parent
PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
FILES = sorted(SOURCE.rglob("*.py"))

#: Slow or optional libraries, and the only modules or folders that may import them.
LIBRARIES = {
    "numba": (
        "graph",
        "experiments/data/sampling_kernels",
        "experiments/tasks/fused",
        "experiments/tasks/link/pairs",
    ),
    "matplotlib": ("report", "cli/demo", "diagnostics", "experiments", "plans", "plan_views"),
    "optuna": ("experiments/sweep",),
    "rich": ("cli", "report"),
    "scipy": ("experiments/sweep/statistics",),
    "ogb": ("experiments/data",),
    "pandas": ("experiments/data/integrity", "report/notebook"),
    "ibis": ("graph/sql",),
    "duckdb": ("graph/sql",),
    "pyspark": ("graph/sql",),
    "pyarrow": ("graph/disk", "graph/sql"),
    "safetensors": ("experiments/tasks/checkpoint",),
    "pymetis": ("experiments/tasks/link/clusters",),
    "dgl": ("layers", "network/dgl_graphs"),
    # PyG's layer classes: described by layers, built by those that build models
    "torch_geometric.nn": ("layers", "experiments", "cli"),
}


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").as_posix()


def is_in(name: str, rooms: tuple[str, ...]) -> bool:
    return any(name == room or name.startswith(f"{room}/") for room in rooms)


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that a file imports, by a statement or by ``import_module`` of a literal."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            first = node.args[0]
            yield first.value if isinstance(first, ast.Constant) else ""


def trespasses(name: str, source: str) -> list[str]:
    """The libraries that a module imports and may not."""
    return [
        module
        for module in imports(ast.parse(source))
        for library, rooms in LIBRARIES.items()
        if f"{module}.".startswith(f"{library}.") and not is_in(name, rooms)
    ]


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))  # import-linter puts the current folder first


def test_the_contracts_of_import_linter_hold() -> None:
    """The same as in ``make lint``; the report is printed where one is broken."""
    assert lint_imports(config_filename=str(PROJECT), no_cache=True) == 0


def test_an_arrow_that_points_up_is_seen(tmp_path: Path) -> None:
    """Negative control: the rooms in a wrong order break the contract."""
    text = PROJECT.read_text(encoding="utf-8")
    wrong = text.replace(
        '"graph",\n    "theory | report | devices",', '"theory | report | devices",\n    "graph",'
    )
    assert wrong != text
    (tmp_path / "wrong.toml").write_text(wrong, encoding="utf-8")
    assert lint_imports(config_filename=str(tmp_path / "wrong.toml"), no_cache=True) == 1


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_slow_and_optional_libraries_stay_in_their_rooms(path: Path) -> None:
    assert trespasses(name_of(path), path.read_text(encoding="utf-8")) == []


def test_a_trespass_is_seen() -> None:
    source = "def f():\n    from torch_geometric.nn import GCN\n    import_module('duckdb')\n"
    assert trespasses("planning", source) == ["torch_geometric.nn.GCN", "duckdb"]
    assert trespasses("graph/sql/graph", source) == ["torch_geometric.nn.GCN"]
    assert trespasses("layers", "from torch_geometric import nn\nimport rich") == ["rich"]


def test_theory_knows_neither_networks_nor_graphs() -> None:
    names = list(imports(ast.parse((SOURCE / "theory.py").read_text(encoding="utf-8"))))
    assert "torch.Tensor" in names
    assert not {n for n in names if n.startswith(("torch_geometric", "torch.nn", "virgo"))}


def test_no_class_name_is_defined_twice() -> None:
    defined = Counter(
        node.name
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert len(defined) > 100, "no classes were found"
    assert {name for name, times in defined.items() if times > 1} == set()


#: Modules that may bring tensors to the host, and how many calls of ``.cpu()`` or ``.numpy()``
#: each has: compiled loops, data before any device has them, and what is written to files.
TO_HOST = {
    "graph/operators.py": 7,  # the graph of the compiled loops: edges, never features
    "graph/device.py": 1,  # a CPU tensor as an array
    "graph/spectrum.py": 4,  # directions: a row per feature, none per node; a small CPU matrix
    "study.py": 1,  # a weight that was drawn on the CPU
    "plans.py": 1,  # the same
    "latched_layers.py": 1,  # what a latch holds, its middle and its scale: numbers per channel
    "theory.py": 1,  # an activation at the points of a quadrature
    "experiments/tasks/fused.py": 9,  # compiled loops
    "experiments/tasks/link/pairs.py": 6,  # compiled loops
    "experiments/tasks/link/negatives.py": 2,  # the edges that negatives avoid
    "experiments/tasks/link/clusters.py": 3,  # METIS
    "experiments/tasks/checkpoint.py": 1,  # a file
    "experiments/sweep/study_runner.py": 2,  # a digest of the user's data
}


def test_nothing_else_brings_tensors_to_the_host() -> None:
    """A hidden copy would be slow on a GPU; one more of them has to be argued for here."""
    found: Counter[str] = Counter()
    for path in FILES:
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith(("experiments/data/", "experiments/assumptions/", "graph/disk/")):
            calls = (node for node in ast.walk(ast.parse(path.read_text())) if _to_host(node))
            found[name] += sum(1 for _ in calls)
    assert +found == Counter(TO_HOST)


def _to_host(node: ast.AST) -> bool:
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return is_method and node.func.attr in ("cpu", "numpy")  # type: ignore[attr-defined]

"""What the tests share: one thread per process, a cache of their own, and real data where it is."""

from __future__ import annotations

import os

# Before torch and numba load their thread pools: tests run one process per core, and two pools of
# two spinning threads on two cores take fifty times as long as one thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from collections.abc import Iterator
from pathlib import Path

import numba
import pytest
import torch
from kit import second_device
from torch_geometric.data import Data

from virgo.data import load_citation

# Autograd counts devices when it first runs, so this one must be there before any test does.
if second_device.AVAILABLE:
    second_device.register()

CHECKOUT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def one_torch_thread() -> None:
    """Whatever the test before set."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test reads or fills the user's cache; processes that a test starts inherit this."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIRGO_CACHE", str(cache))
        yield cache


@pytest.fixture(scope="session")
def data_root() -> Path:
    """A folder with real datasets; tests that ask for it are skipped where there is none."""
    chosen = os.environ.get("VIRGO_DATA")
    root = Path(chosen) if chosen else CHECKOUT.parent / "shared" / "data"
    if not root.is_dir():
        pytest.skip(f"no real data: {root} does not exist, set VIRGO_DATA to a data root")
    return root


@pytest.fixture(scope="session")
def cora(data_root: Path, own_cache: Path) -> Data:
    """The real Cora, public split."""
    if not (data_root / "Cora" / "raw").is_dir():
        pytest.skip(f"no real data: {data_root} has no Cora/raw")
    return load_citation("cora", data_root)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test may not ask the network, or the terminal."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("the network or the terminal was asked")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    monkeypatch.setattr("builtins.input", refuse)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    monkeypatch.setenv("VIRGO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path: Path, cache: Path) -> Path:
    """An empty data root, beside an empty cache."""
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """On a busy machine, waking a second thread for five edges takes a thousand times longer."""
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    yield
    numba.set_num_threads(before)


@pytest.fixture
def double_by_default() -> Iterator[None]:
    """ClusterGCNConv counts degrees in torch's default precision, whatever its weights are."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)

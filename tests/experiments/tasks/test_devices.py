"""Every task on a second device and without the CPU's compiled loops: the same losses."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from kit import fake_cuda, second_device

import virgo
from virgo.experiments.tasks import CPU, Compute, Settings, Training, checkpoint, fused, task_of
from virgo.experiments.tasks.fused import Kernels, kept_mask, relu_dropout

#: Task -> dataset, network, settings. Every way to train is among them.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "node": ("like:cora@0.1", "gcn", {"num_layers": 3}),
    "node sage": ("like:cora@0.1", "sage", {}),
    "node sampled": ("like:cora@0.1", "sage", {"num_neighbors": (4, 4), "batch_size": 20}),
    "link": ("like:ogbl-ddi@0.2", "sage", {"batch_size": 65536}),
    "link features": ("like:ogbl-collab@0.001", "ngnn-gcn", {"batch_size": 500}),
    "link clusters": ("like:ogbl-collab@0.001", "gcn", {"num_parts": 4, "batch_size": 2}),
    "link sampled": (
        "like:ogbl-collab@0.001",
        "gcn",
        {"num_neighbors": (3, 3), "batch_size": 300},
    ),
    "graph": ("like:imdb-b@0.1", "gin", {"batch_size": 32, "num_layers": 3}),
    "molecules": ("like:ogbg-molhiv@0.005", "gcn", {"batch_size": 64}),
}


#: A million pairs take their time.
NAMES = [pytest.param(c, marks=pytest.mark.slow) if c == "link" else c for c in CASES]
LINK = NAMES[list(CASES).index("link")]


@lru_cache(maxsize=2)
def dataset(name: str) -> Any:
    gc.collect()
    return virgo.data.load(name)


def start(case: str, compute: Compute, **changes: Any) -> Training:
    name, model, settings = CASES[case]
    given = {"hidden_channels": 12, "dropout": 0.3, "patience": None} | settings | changes
    task = task_of(dataset(name), compute)
    return Training(task, model, "virgo-backward", Settings.of(given), seed=1)


def losses(training: Training, epochs: int) -> list[float]:
    return [training.advance().loss for _ in range(epochs)]


def losses_of_steps(training: Training, steps: int) -> list[float]:
    """The losses of as many epochs as it takes for so many steps."""
    taken: list[int] = []
    training.optimiser.register_step_post_hook(lambda *args: taken.append(1))
    found = []
    while len(taken) < steps:
        found += losses(training, 1)
    return found


@pytest.fixture
def second() -> Compute:
    return Compute(second_device.register())


@pytest.mark.parametrize("case", NAMES)
def test_losses_are_the_same_without_the_compiled_loops(case: str) -> None:
    """20 steps or more with dropout, whose masks do not depend on who computes them."""
    with_loops = losses_of_steps(start(case, CPU), 20)
    with Kernels.off():
        without = losses_of_steps(start(case, CPU), 20)
    np.testing.assert_allclose(without, with_loops, atol=1e-4)


@pytest.mark.parametrize("case", NAMES)
def test_a_run_on_a_second_device_is_that_of_the_cpu(case: str, second: Compute) -> None:
    """Masks of PyG's own layers ("node sampled") come from the device, so without dropout there."""
    changes = {"dropout": 0.0} if case == "node sampled" else {}
    here, there = start(case, CPU, **changes), start(case, second, **changes)
    assert all(p.device == second.device for p in there.model.parameters())
    for a, b in zip(here.model.parameters(), there.model.parameters(), strict=True):
        assert torch.equal(a, b.cpu())  # initial bits
    np.testing.assert_allclose(losses(there, 2), losses(here, 2), atol=1e-4)
    assert there.finish().test == pytest.approx(here.finish().test, abs=0.02)


@pytest.mark.parametrize("case", NAMES)
def test_an_epoch_on_fake_cuda_mixes_no_devices(case: str) -> None:
    """Batches of every kind and what they are evaluated on come from pinned memory, unawaited."""
    dataset(CASES[case][0])  # and cached: what it computes is no part of this
    with fake_cuda.fake_cuda() as mode:
        training = start(case, Compute(fake_cuda.CUDA))
        assert all(p.is_cuda for p in training.model.parameters())
        mode.waiting.clear()
        epoch = training.advance()
    assert epoch.valid is not None
    assert len(mode.overlapping) > 5
    assert all(len(shape) == 1 and shape[0] <= 3 for shape in mode.waiting), mode.waiting
    to_evaluator = {(20, 1)} if case == "molecules" else set()  # OGB's is scikit-learn's
    assert set(mode.to_host) <= {()} | to_evaluator


def test_a_sparse_matrix_is_moved_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch would copy it from unpinned memory."""
    parts: list[torch.Tensor] = []
    monkeypatch.setattr(fused, "moved", lambda part, device: parts.append(part) or part)
    matrix = torch.eye(4).to_sparse_csr()
    there = fused.put_matrix(matrix, torch.device("cuda"))
    assert isinstance(there, torch.Tensor)
    assert [part.numel() for part in parts] == [5, 4, 4]
    assert torch.equal(there.to_dense(), torch.eye(4))


@pytest.mark.parametrize("init", ["virgo-forward+measured", "virgo-backward+mirrored"])
@pytest.mark.parametrize("case", ["node", LINK, "link features", "graph"])
def test_measured_starts_are_those_of_the_cpu(case: str, init: str, second: Compute) -> None:
    name, model, settings = CASES[case]
    given = Settings.of({"hidden_channels": 12} | settings)
    weights = [
        Training(task_of(dataset(name), compute), model, init, given, seed=0).model.state_dict()
        for compute in (CPU, second)
    ]
    for key, value in weights[0].items():
        torch.testing.assert_close(weights[1][key].cpu(), value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.93])
def test_the_mask_is_that_of_the_loop(p: float) -> None:
    x = torch.ones(70_000)
    looped = relu_dropout(x, p, np.random.default_rng(7)) > 0
    words = np.random.default_rng(7).integers(2**32, size=2, dtype=np.uint32)
    assert torch.equal(looped, kept_mask(x.numel(), p, *map(int, words), x.device))


def test_gradients_are_the_same_without_the_loops() -> None:
    gradients = []
    for around in (nullcontext(), Kernels.off()):
        x = torch.randn(50, 20, generator=torch.Generator().manual_seed(0)).requires_grad_()
        with around:
            relu_dropout(x, 0.4, np.random.default_rng(1)).square().sum().backward()
        assert x.grad is not None
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("case", ["node", LINK, "graph", "molecules"])
def test_bf16_learns(case: str) -> None:
    narrow = start(case, Compute(precision="bf16"), dropout=0.0)
    found, wanted = losses(narrow, 3), losses(start(case, CPU, dropout=0.0), 3)
    assert found != wanted
    np.testing.assert_allclose(found, wanted, rtol=0.05)
    assert all(p.dtype == torch.float32 for p in narrow.model.parameters())


def test_a_run_is_continued_on_another_device(tmp_path: Any, second: Compute) -> None:
    there = start("node", second, dropout=0.0)
    losses(there, 3)
    saved = checkpoint.load(checkpoint.save(there, tmp_path / "run.safetensors"))
    here = saved.resume(task_of(dataset("like:cora@0.1"), CPU))
    np.testing.assert_allclose(losses(here, 2), losses(there, 2), atol=1e-4)
    back = saved.resume(task_of(dataset("like:cora@0.1"), second))
    assert next(back.model.parameters()).device == second.device
    assert next(iter(back.best.values())).device == second.device


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.:DeprecationWarning")  # of PyTorch's compiler
def test_a_compiled_network_has_the_same_losses() -> None:
    """With neighbour sampling, where the network runs through its layers."""
    plain = losses(start("node sampled", CPU, dropout=0.0), 2)
    compiled = losses(start("node sampled", Compute(compile=True), dropout=0.0), 2)
    np.testing.assert_allclose(compiled, plain, atol=1e-4)

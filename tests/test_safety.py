"""What Virgo must leave as it was, and what it must work under."""

from __future__ import annotations

import gc
import math
import random
import subprocess
import sys
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from kit.snapshots import untouched, unusual
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN, GIN, GCNConv, GraphSAGE, SGConv

import virgo

CLASSES = 7


@pytest.fixture(scope="module")
def data() -> Data:
    return virgo.data.citation_like(num_nodes=120, num_features=64, seed=0)


class Busy(nn.Module):
    """Everything a pass could disturb: dropout, batch norm, caches, randomness, own attributes."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            [
                GCNConv(in_channels, 16, cached=True),
                GCNConv(16, 16, cached=True),
                SGConv(16, CLASSES, K=1, cached=False),
            ]
        )
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.5)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.calls = 0
        self.last: Tensor | None = None

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.calls += 1
        x = x + 1e-9 * torch.rand_like(x)
        for conv in list(self.convs)[:-1]:
            x = self.drop(self.norm(conv(x, edge_index)).relu())
        self.last = x
        return self.convs[-1](x, edge_index)


def busy(data: Data, *, filled: bool = False) -> nn.Module:
    model = Busy(data.num_features)
    model.train()
    if filled:
        model(data.x, data.edge_index).sum().backward()
    return unusual(model)


ACTIONS: dict[str, Callable[[nn.Module, Data], Any]] = {
    "plan": lambda m, d: virgo.plan(m, d, "virgo"),
    "classic": lambda m, d: virgo.plan(m, d, "xavier"),
    "released": lambda m, d: virgo.plan(m, d, "virgo-forward", variant="released"),
    "mirrored": lambda m, d: virgo.plan(m, d, "virgo", distribution="mirrored"),
    "measured": lambda m, d: virgo.plan(m, d, "virgo", estimate="measured"),
    "init": lambda m, d: virgo.init_(m, d, "virgo"),
    "init-measured": lambda m, d: virgo.init_(m, d, "virgo", estimate="measured"),
}


@pytest.mark.parametrize("filled", [False, True], ids=["empty-caches", "filled-caches"])
@pytest.mark.parametrize("action", ACTIONS)
def test_a_busy_model_is_left_as_it_was(action: str, filled: bool, data: Data) -> None:
    model = busy(data, filled=filled)
    attributes = model.calls, model.last
    with untouched(model, weights=not action.startswith("init")):
        made = ACTIONS[action](model, data)
    assert (model.calls, model.last) == attributes
    if filled:
        # the caches hold the user's graph, not the few nodes that were watched
        assert model.convs[0]._cached_edge_index[0].size(1) > data.num_edges
    assert ("frozen", "frozen (requires_grad=False)") in made.left_alone


class Interrupted(BaseException):
    """Not an ``Exception``, as ``KeyboardInterrupt`` is not."""


@pytest.mark.parametrize("after", [1, 2, 4])
@pytest.mark.parametrize("error", [RuntimeError, Interrupted])
@pytest.mark.parametrize("filled", [False, True], ids=["empty-caches", "filled-caches"])
def test_a_busy_model_survives_an_error(
    after: int, error: type[BaseException], filled: bool, data: Data
) -> None:
    """Whenever it happens: while watching, in the first measured pass, with weights redrawn."""
    model, passes = busy(data, filled=filled), 0

    def forward(model: nn.Module, data: Any) -> Any:
        nonlocal passes
        passes += 1
        out = model(data.x, data.edge_index)
        if passes >= after:
            raise error("an accident")
        return out

    with untouched(model), pytest.raises((virgo.VirgoError, error)):
        virgo.init_(model, data, "virgo", estimate="measured", forward=forward)
    assert passes >= after


@pytest.mark.parametrize("spoil", ["loss", "method", "option", "features"])
def test_a_busy_model_survives_bad_input(spoil: str, data: Data) -> None:
    model, options = busy(data, filled=True), {"estimate": "measured", "seed": 1}
    if spoil == "loss":
        options["loss"] = lambda output, data: (_ for _ in ()).throw(RuntimeError("no loss"))
    if spoil == "option":
        options["signal"] = "loud"
    if spoil == "features":
        data = Data(x=torch.full_like(data.x, math.nan), edge_index=data.edge_index)
    method = "nonsense" if spoil == "method" else "virgo"
    with untouched(model), pytest.raises((virgo.VirgoError, RuntimeError)):
        virgo.init_(model, data, method, **options)


@pytest.mark.parametrize("action", ["plan", "measured", "init"])
def test_a_model_that_uses_numpys_and_pythons_generators(action: str, data: Data) -> None:
    """As many do: ``torch_geometric.utils.negative_sampling`` draws from both."""

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GCNConv(data.num_features, CLASSES)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            random.random()
            np.random.rand()  # noqa: NPY002
            return self.conv(x + 1e-9 * torch.rand_like(x), edge_index)

    model = Noisy()
    with untouched(model, weights=action != "init"):
        ACTIONS[action](model, data)


def test_the_number_of_threads_is_left_as_it_was(data: Data) -> None:
    """Virgo's own kernels must not decide how many threads PyTorch uses from then on.

    The second graph is large enough for any kernel that spreads its work to do so.
    """
    torch.set_num_threads(1)  # as conftest does; another test may have lost it
    virgo.plan(GCN(data.num_features, 16, 3, CLASSES), data, "virgo")
    assert torch.get_num_threads() == 1
    edges = torch.randint(100_000, (2, 3_000_000), generator=torch.Generator().manual_seed(0))
    large = virgo.Graph(edges, 100_000)
    summed = large.sum()(np.ones(100_000))
    assert torch.get_num_threads() == 1
    assert summed.sum() == 3_000_000


def test_the_data_is_left_as_it_was(data: Data) -> None:
    mine = data.clone()
    before = {key: value.clone() for key, value in mine.to_dict().items()}
    virgo.init_(GCN(data.num_features, 16, 3, CLASSES), mine, "virgo", estimate="measured")
    after = mine.to_dict()
    assert list(after) == list(before)
    for key, value in before.items():
        assert torch.equal(after[key], value)
        assert not after[key].requires_grad


# --- what is drawn and what is not -----------------------------------------------------------


@pytest.mark.parametrize("estimate", ["analytic", "measured"])
def test_frozen_parameters_are_left_alone_and_listed(estimate: str, data: Data) -> None:
    model = GCN(data.num_features, 16, 4, CLASSES)
    frozen = ["convs.0.lin.weight", "convs.2.bias", "convs.3.lin.weight"]
    for name in frozen:
        model.get_parameter(name).requires_grad_(False).add_(0.25)
    before = {name: model.get_parameter(name).clone() for name in frozen}
    plan = virgo.init_(model, data, "virgo-forward", estimate=estimate)
    for name in frozen:
        assert torch.equal(model.get_parameter(name), before[name])
        assert not model.get_parameter(name).requires_grad
        assert (name, "frozen (requires_grad=False)") in plan.left_alone
        assert name not in plan.variances
        assert name not in plan.biases
        assert f"{name}: frozen" in str(plan)
    assert set(plan.variances) == {"convs.1.lin.weight", "convs.2.lin.weight"}


@pytest.mark.parametrize("estimate", ["analytic", "measured"])
def test_a_model_frozen_throughout(estimate: str, data: Data) -> None:
    model = GCN(data.num_features, 16, 3, CLASSES).requires_grad_(False)
    with untouched(model):
        plan = virgo.init_(model, data, "virgo", estimate=estimate)
    assert plan.rows == ()
    assert {name for name, _ in plan.left_alone} == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("bias", ["zero", "keep"])
@pytest.mark.parametrize("kind", [GCN, GraphSAGE, GIN])
def test_every_parameter_is_accounted_for(kind: Any, bias: str, data: Data) -> None:
    """Drawn, set to zero, or left alone bit for bit with a reason: each in exactly one list."""
    model = kind(data.num_features, 16, 3, CLASSES, norm="batch", jk="cat")
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    plan = virgo.init_(model, data, "virgo-forward", bias=bias)
    left = dict(plan.left_alone)
    listed = [*plan.variances, *plan.biases, *left]
    assert sorted(listed) == sorted(before)
    for name, parameter in model.named_parameters():
        if name in left:
            assert torch.equal(parameter, before[name]), name
            assert left[name]
        elif name in plan.biases:
            assert not parameter.any(), name
        else:
            assert not torch.equal(parameter, before[name]), name
    assert bool(plan.biases) == (bias == "zero")
    assert {"norms.0.module.weight", "lin.weight"} <= set(left)


def test_tied_weights_are_one_weight(data: Data) -> None:
    def make(tied: bool) -> nn.Module:
        model = GCN(data.num_features, 16, 5, CLASSES)
        if tied:
            model.convs[3].lin.weight = model.convs[1].lin.weight
        return model

    model = make(tied=True)
    plan = virgo.init_(model, data, "virgo-forward", seed=3)
    assert model.convs[3].lin.weight is model.convs[1].lin.weight
    row = next(row for row in plan.rows if row.weight == "convs.1.lin.weight")
    assert row.uses == 2
    assert "convs.3.lin.weight" not in plan.variances
    apart = virgo.plan(make(tied=False), data, "virgo-forward", seed=3).variances
    asked = apart["convs.1.lin.weight"], apart["convs.3.lin.weight"]
    assert asked[0] != asked[1]
    assert row.variance == pytest.approx(math.sqrt(asked[0] * asked[1]), rel=1e-12)
    # the same draw as an untied weight of that name, up to its scale
    other = make(tied=False)
    virgo.init_(other, data, "virgo-forward", seed=3)
    scale = math.sqrt(row.variance / asked[0])
    torch.testing.assert_close(model.convs[1].lin.weight, other.convs[1].lin.weight * scale)
    measured = virgo.plan(model, data, "virgo-forward", estimate="measured")
    assert set(measured.variances) == set(plan.variances)


def test_one_layer_used_twice_is_one_row(data: Data) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.again = GCNConv(data.num_features, 16), GCNConv(16, 16)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = self.first(x, edge_index).relu()
            return self.again(self.again(x, edge_index).relu(), edge_index)

    for estimate in ("analytic", "measured"):
        plan = virgo.plan(Twice(), data, "virgo-forward", estimate=estimate)
        assert [row.weight for row in plan.rows] == ["first.lin.weight", "again.lin.weight"]
    assert virgo.plan(Twice(), data, "virgo-forward").rows[1].uses == 2


# --- precisions ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("estimate", ["analytic", "measured"])
def test_precisions(dtype: torch.dtype, estimate: str, data: Data) -> None:
    model = GCN(data.num_features, 64, 4, CLASSES).to(dtype)
    plan = virgo.init_(model, data, "virgo-forward", seed=0, estimate=estimate)
    reference = virgo.plan(
        GCN(data.num_features, 64, 4, CLASSES).double(), data, "virgo-forward", estimate=estimate
    )
    for row in plan.rows:
        weight = model.get_parameter(row.weight)
        assert weight.dtype == dtype
        # uniform: the sample variance of n draws has relative standard error sqrt(0.8 / n)
        bound = 5 * math.sqrt(0.8 / weight.numel()) + torch.finfo(dtype).eps
        sampled = float(weight.detach().double().square().mean())
        assert sampled / row.variance == pytest.approx(1, abs=bound)
        if estimate == "analytic":
            assert row.variance == reference.variances[row.weight]
        else:
            # another draw of 64 x 64 weights (float64 has its own), and bfloat16's own rounding
            assert row.variance == pytest.approx(reference.variances[row.weight], rel=0.5)
    if estimate == "measured":
        assert plan.measured is not None
        assert plan.measured["achieved"]["forward"]["range"] < 1.05


def test_data_in_another_precision_changes_nothing(data: Data) -> None:
    other = data.clone()
    other.x = other.x.double()
    model = GCN(data.num_features, 16, 3, CLASSES)
    for estimate in ("analytic", "measured"):
        plans = [virgo.plan(model, d, "virgo", estimate=estimate) for d in (data, other)]
        for name, variance in plans[0].variances.items():
            assert plans[1].variances[name] == pytest.approx(variance, rel=1e-6)


# --- wrappers and circumstances ----------------------------------------------------------------


@pytest.mark.parametrize("wrapper", ["compile", "data-parallel", "both"])
@pytest.mark.parametrize("estimate", ["analytic", "measured"])
def test_wrapped_models_get_the_same_bits(wrapper: str, estimate: str, data: Data) -> None:
    bare = GCN(data.num_features, 16, 3, CLASSES)
    inner = GCN(data.num_features, 16, 3, CLASSES)
    wrapped: nn.Module = inner
    if wrapper in ("data-parallel", "both"):
        wrapped = nn.DataParallel(wrapped)
    if wrapper in ("compile", "both"):
        wrapped = torch.compile(wrapped, backend="eager")  # type: ignore[assignment]
    expected = virgo.init_(bare, data, "virgo-forward", seed=5, estimate=estimate)
    with untouched(wrapped, weights=False):
        assert virgo.init_(wrapped, data, "virgo-forward", seed=5, estimate=estimate) == expected
    for name, parameter in bare.named_parameters():
        assert torch.equal(inner.get_parameter(name), parameter), name
    nn.init.ones_(inner.convs[0].lin.weight)
    virgo.Plan.from_json(expected.to_json()).apply_(wrapped)
    assert torch.equal(inner.convs[0].lin.weight, bare.convs[0].lin.weight)


# Dynamo looks at .grad of whatever tensor it meets.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_model_that_was_already_compiled_and_run(data: Data) -> None:
    model = GCN(data.num_features, 16, 3, CLASSES)
    compiled = torch.compile(model, backend="eager")
    compiled(data.x, data.edge_index)
    virgo.init_(compiled, data, "virgo-forward")
    torch.testing.assert_close(compiled(data.x, data.edge_index), model(data.x, data.edge_index))


@pytest.mark.parametrize("estimate", ["analytic", "measured"])
@pytest.mark.parametrize(
    "circumstance",
    [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", dtype=torch.bfloat16)],
    ids=["no_grad", "inference_mode", "autocast"],
)
def test_the_callers_circumstances_do_not_matter(
    circumstance: Callable[[], Any], estimate: str, data: Data
) -> None:
    models = [GCN(data.num_features, 16, 3, CLASSES) for _ in range(2)]
    for model, around in zip(models, (nullcontext, circumstance), strict=True):
        with around():
            virgo.init_(model, data, "virgo", estimate=estimate)
    for name, parameter in models[0].named_parameters():
        assert torch.equal(parameter, models[1].get_parameter(name)), name


def test_drawing_does_not_depend_on_the_default_device(data: Data) -> None:
    """``torch.set_default_device("cuda")`` is common; the draw is made on the CPU regardless."""
    for distribution in ("uniform", "normal", "truncated", "orthogonal", "mirrored"):
        model = GCN(data.num_features, 16, 3, CLASSES)
        plan = virgo.plan(model, data, "virgo-backward", distribution=distribution)
        expected = plan.draw(plan.rows[1], 0, torch.empty(0, dtype=torch.float32))
        with torch.device("meta"):
            drawn = plan.draw(plan.rows[1], 0, torch.empty(0, dtype=torch.float32))
        assert drawn.device.type == "cpu"
        assert torch.equal(drawn, expected)


def test_drawing_does_not_depend_on_the_default_dtype(data: Data) -> None:
    model = GCN(data.num_features, 16, 3, CLASSES)
    plans = [
        virgo.plan(model, data, "virgo-backward", distribution=d) for d in ("uniform", "mirrored")
    ]
    for plan in plans:
        expected = plan.draw(plan.rows[1], 0, torch.empty(0, dtype=torch.float32))
        torch.set_default_dtype(torch.float64)
        try:
            drawn = plan.draw(plan.rows[1], 0, torch.empty(0, dtype=torch.float32))
        finally:
            torch.set_default_dtype(torch.float32)
        assert torch.equal(drawn, expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no second device on this machine")
@pytest.mark.parametrize("estimate", ["analytic", "measured"])
def test_another_device(estimate: str, data: Data) -> None:
    models = [GCN(data.num_features, 16, 3, CLASSES).to(d) for d in ("cpu", "cuda")]
    plans = [virgo.init_(model, data, "virgo", estimate=estimate) for model in models]
    for row, other in zip(plans[0].rows, plans[1].rows, strict=True):
        assert other.variance == pytest.approx(row.variance, rel=1e-3)
        assert models[1].get_parameter(row.weight).device.type == "cuda"


# --- seeds -------------------------------------------------------------------------------------


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def equal(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("distribution", ["uniform", "normal", "orthogonal", "mirrored"])
def test_a_seed_decides_every_bit(distribution: str, data: Data) -> None:
    def drawn(seed: int) -> list[Tensor]:
        model = GCN(data.num_features, 16, 3, CLASSES)
        virgo.init_(model, data, "virgo", seed=seed, distribution=distribution)
        return weights(model)

    torch.manual_seed(1)
    first = drawn(0)
    torch.manual_seed(2)
    assert equal(first, drawn(0))
    assert not equal(first, drawn(1))


def test_a_generator_gives_the_seed_and_is_advanced(data: Data) -> None:
    generator = torch.Generator().manual_seed(11)
    model = GCN(data.num_features, 16, 3, CLASSES)
    with untouched(model, weights=False):
        one = virgo.init_(model, data, "virgo-backward", generator=generator)
    first = weights(model)
    two = virgo.init_(model, data, "virgo-backward", generator=generator)
    assert one.seed != two.seed
    assert not equal(first, weights(model))
    again = virgo.init_(model, data, "virgo-backward", generator=torch.Generator().manual_seed(11))
    assert again == one
    assert equal(first, weights(model))
    # the plan records what it took, so that no generator is needed to repeat it
    virgo.init_(model, data, "virgo-backward", seed=one.seed)
    assert equal(first, weights(model))


def test_applying_with_a_seed_or_a_generator(data: Data) -> None:
    model = GCN(data.num_features, 16, 3, CLASSES)
    plan = virgo.init_(model, data, "virgo-backward", seed=4)
    drawn = weights(model)
    plan.apply_(model, seed=9)
    assert not equal(drawn, weights(model))
    plan.apply_(model)
    assert equal(drawn, weights(model))
    plan.apply_(model, generator=torch.Generator().manual_seed(1))
    from_generator = weights(model)
    assert not equal(drawn, from_generator)
    plan.apply_(model, generator=torch.Generator().manual_seed(1))
    assert equal(from_generator, weights(model))


def test_an_unused_layer_changes_no_other_weight(data: Data) -> None:
    model, more = (GCN(data.num_features, 16, 3, CLASSES) for _ in range(2))
    more.unused = GCNConv(5, 5)
    for estimate in ("analytic", "measured"):
        plans = [virgo.init_(m, data, "virgo", estimate=estimate) for m in (model, more)]
        assert plans[0].variances == plans[1].variances
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, more.get_parameter(name))
        assert ("unused.lin.weight", "its layer did not run") in plans[1].left_alone


@pytest.mark.parametrize("kind", [GCN, GAT])
def test_twice_the_depth_costs_about_twice_the_work(kind: Any, data: Data) -> None:
    """Counted in Python calls, which unlike seconds are the same on every machine."""

    def calls(depth: int) -> float:
        """Per pass, of which a measured estimate takes as many as it needs."""
        model = kind(data.num_features, 4, depth, CLASSES, norm="layer")
        count = 0

        def profile(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(profile)
        try:
            plan = virgo.plan(
                model,
                data,
                "virgo-forward",
                estimate="analytic" if kind is GCN else "measured",
                tolerance=100.0,
            )
        finally:
            sys.setprofile(None)
        return count / (plan.measured or {"passes": 1})["passes"]

    calls(2)  # imports and compiles what is imported and compiled once
    # linear would be 2, quadratic 4, cubic 8
    assert calls(80) / calls(40) < 3


# --- what importing costs ----------------------------------------------------------------------


def test_import_is_light() -> None:
    """``import virgo`` adds no slow library to what torch_geometric itself imports."""
    code = """
import sys, torch_geometric, torch_geometric.nn, torch_geometric.data
before = set(sys.modules)
import virgo
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before}))
print("virgo.graph.kernels" in sys.modules)
"""
    out = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout.splitlines()
    added = set(out[0].split())
    assert "virgo" in added
    slow = {
        "numba",
        "matplotlib",
        "scipy",
        "pandas",
        "rich",
        "optuna",
        "networkx",
        "ogb",
        "sklearn",
    }
    assert not added & slow
    assert out[1] == "False"


def test_a_measured_pass_is_not_kept_in_memory() -> None:
    """A gradient hook that holds its own tensor keeps the whole pass alive for ever."""
    data = virgo.data.citation_like(num_nodes=120, num_features=64, seed=0)
    model = GCN(64, 16, num_layers=3, out_channels=7)
    seen: list[weakref.ref[Any]] = []
    for conv in model.convs:
        conv.register_forward_hook(lambda *call: seen.append(weakref.ref(call[-1])))
    virgo.measure(model, data)
    virgo.plan(model, data, "virgo-backward", estimate="measured")
    gc.collect()
    assert len(seen) > 9
    assert all(reference() is None for reference in seen)

"""Sampled weights: their variance, their distribution, their bits, and mirrored networks.

Draws are seeded, so a test passes always or never; bounds are chosen so that a correct sampler
fails for fewer than one seed in a million.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import (
    GCN,
    ClusterGCNConv,
    GCNConv,
    GINConv,
    GraphConv,
    LEConv,
    SAGEConv,
    SGConv,
)

import virgo
from virgo.draws import generator_for, standard

SQRT3 = math.sqrt(3.0)
#: A standard normal cut at two standard deviations, scaled back to variance one.
CUT = stats.truncnorm(-2, 2)
CUT_SD = math.sqrt(CUT.var())
REFERENCE = {
    "uniform": stats.uniform(-SQRT3, 2 * SQRT3),
    "normal": stats.norm(),
    "truncated": stats.truncnorm(-2, 2, scale=1 / CUT_SD),
}


pytestmark = pytest.mark.usefixtures("one_thread")


def draw(shape: tuple[int, ...], distribution: str, seed: int = 0, **more: Any) -> Tensor:
    return standard(shape, distribution, generator_for(seed, "weight"), **more)


def graph(nodes: int = 12, edges: int = 40, features: int = 6, seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.randn(nodes, features, generator=generator, dtype=torch.float64) + 0.5,
        edge_index=torch.randint(nodes, (2, edges), generator=generator),
    )


# --- variance ------------------------------------------------------------------------------


def variance_bound(kurtosis: float, count: int) -> float:
    """How far a mean of ``count`` squares may be from the variance, relatively.

    The square of a centred variable with variance 1 and kurtosis k has variance k - 1, so the mean
    of n independent squares has standard deviation sqrt((k - 1) / n). It is close to normal for
    the sizes here, and a normal variable is more than 5 deviations off 6 times in ten million.
    """
    return 5 * math.sqrt((kurtosis - 1) / count)


@pytest.mark.parametrize("variance", [1e-8, 0.003, 1.0, 40.0])
@pytest.mark.parametrize("distribution", REFERENCE)
def test_sample_variance_is_the_planned_one(distribution: str, variance: float) -> None:
    shape = (300, 400)
    kurtosis = float(REFERENCE[distribution].stats("k")) + 3  # scipy gives the excess
    bound = variance_bound(kurtosis, math.prod(shape))
    assert bound < 0.025  # or it would let the other definitions of these variances through
    row = virgo.Row("conv", "conv.lin.weight", shape, 400, 300, 1.0, variance)
    plan = virgo.Plan("virgo", (row,), distribution=distribution)
    weight = plan.draw(row, 0, torch.empty(0)).double()
    assert weight.square().mean().item() == pytest.approx(variance, rel=bound)
    # the mean of n variables of variance v has standard deviation sqrt(v / n)
    assert abs(weight.mean().item()) < 5 * math.sqrt(variance / math.prod(shape))


def test_every_weight_of_an_initialised_model_has_its_planned_variance() -> None:
    data = graph(features=150)
    data.x = data.x.abs()
    for distribution in REFERENCE:
        kurtosis = float(REFERENCE[distribution].stats("k")) + 3
        model = GCN(150, 200, num_layers=4, out_channels=120)
        plan = virgo.init_(model, data, "virgo-forward", distribution=distribution, seed=1)
        parameters = dict(model.named_parameters())
        assert len(plan.rows) == 4
        for row in plan.rows:
            found = parameters[row.weight].double().square().mean().item()
            bound = variance_bound(kurtosis, math.prod(row.shape))
            assert found == pytest.approx(row.variance, rel=bound), (distribution, row.weight)
            # negative control: a factor of two, the usual mistake, is far outside
            assert found != pytest.approx(2 * row.variance, rel=bound)


@pytest.mark.parametrize("shape", [(8, 8), (5, 9), (9, 5), (1, 7), (7, 1)])
@pytest.mark.parametrize("in_first", [False, True])
def test_orthogonal_weights(shape: tuple[int, int], in_first: bool) -> None:
    """The shorter side is orthogonal, and the mean square of the entries is exactly one."""
    weight = draw(shape, "orthogonal", in_first=in_first, dtype=torch.float64)
    assert weight.shape == shape
    small, large = min(shape), max(shape)
    gram = weight @ weight.T if shape[0] <= shape[1] else weight.T @ weight
    # 1e-12: a few roundings of a QR factorisation of at most 9 columns
    torch.testing.assert_close(gram, large * torch.eye(small).double(), rtol=0, atol=1e-12 * large)
    assert weight.square().mean().item() == pytest.approx(1.0, rel=1e-12)


def test_orthogonal_weights_of_a_model() -> None:
    data = graph(features=9)
    data.x = data.x.abs()
    model = GCN(9, 7, num_layers=3, out_channels=4).double()
    plan = virgo.init_(model, data, "virgo-forward", distribution="orthogonal")
    parameters = dict(model.named_parameters())
    for row in plan.rows:
        weight = parameters[row.weight].detach()
        rows, columns = row.shape
        assert rows <= columns
        gram = weight @ weight.T / (row.variance * columns)
        torch.testing.assert_close(gram, torch.eye(rows).double(), rtol=0, atol=1e-12)


def test_leading_dimensions_are_independent_matrices() -> None:
    stacked = draw((3, 4, 6), "orthogonal", dtype=torch.float64)
    for matrix in stacked:
        torch.testing.assert_close(matrix @ matrix.T, 6 * torch.eye(4).double())
    assert not torch.equal(stacked[0], stacked[1])


# --- distribution --------------------------------------------------------------------------

#: The chance of rejecting a correct sampler. Seeds are fixed, so this is about the choice of seed.
ALPHA = 1e-6


def ks(sample: np.ndarray, cdf: Callable[[Any], Any]) -> float:
    return float(stats.kstest(sample, cdf).pvalue)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("distribution", REFERENCE)
def test_distribution_is_the_planned_one(distribution: str, seed: int) -> None:
    sample = draw((200, 250), distribution, seed).double().numpy().ravel()
    for name, reference in REFERENCE.items():
        agrees = ks(sample, reference.cdf) > ALPHA
        # the others have the same mean and variance: 50 000 draws tell them apart all the same
        assert agrees == (name == distribution), name


@pytest.mark.parametrize("distribution", REFERENCE)
def test_a_scale_off_by_five_per_cent_is_noticed(distribution: str) -> None:
    """Negative control of the test above."""
    sample = draw((200, 500), distribution).double().numpy().ravel()
    assert ks(1.05 * sample, REFERENCE[distribution].cdf) < ALPHA


@pytest.mark.parametrize("method", ["virgo-forward", "xavier"])
def test_planned_weights_are_uniform_up_to_their_bound(method: str) -> None:
    """The paper's distribution: uniform on ``[-sqrt(3 var), sqrt(3 var)]``, the default."""
    data = graph(features=150)
    data.x = data.x.abs()
    model = GCN(150, 200, num_layers=2, out_channels=120)
    plan = virgo.init_(model, data, method)
    for row in plan.rows:
        weight = dict(model.named_parameters())[row.weight].detach().double().numpy().ravel()
        bound = math.sqrt(3 * row.variance)
        assert np.abs(weight).max() <= bound * (1 + 1e-6)
        # the largest of n uniforms is below 1 - 20/n with a chance of exp(-20)
        assert np.abs(weight).max() > bound * (1 - 20 / weight.size)
        assert ks(weight, stats.uniform(-bound, 2 * bound).cdf) > ALPHA


def test_truncated_weights_end_at_two_standard_deviations() -> None:
    weight = draw((300, 300), "truncated", dtype=torch.float64)
    assert weight.abs().max().item() <= 2 / CUT_SD
    # a normal variable leaves that interval more than 2 % of the time; 90 000 would not all stay
    assert draw((300, 300), "normal").abs().max().item() > 2 / CUT_SD


def test_orthogonal_entries_are_those_of_a_random_rotation() -> None:
    """An entry q of a Haar-random rotation of n dimensions: (1 + q) / 2 ~ Beta((n-1)/2, (n-1)/2).

    One entry a matrix, since entries of one matrix depend on each other. Without the sign of
    R's diagonal, QR does not give Haar's measure: the first entry would always be negative.
    """
    n = 6
    entries = [draw((n, n), "orthogonal", seed, dtype=torch.float64) for seed in range(800)]
    reference = stats.beta((n - 1) / 2, (n - 1) / 2, loc=-1, scale=2)
    for i, j in ((0, 0), (5, 5), (2, 4)):
        sample = np.array([matrix[i, j].item() for matrix in entries]) / math.sqrt(n)
        assert ks(sample, reference.cdf) > ALPHA
        assert ks(-np.abs(sample), reference.cdf) < ALPHA  # what plain QR would give
        assert ks(1.6 * sample, reference.cdf) < ALPHA


def test_weights_are_independent_of_each_other() -> None:
    """Correlations of n independent pairs have standard deviation 1/sqrt(n)."""
    names = ("convs.0.lin.weight", "convs.1.lin.weight", "convs.2.lin.weight")
    draws = [standard((200, 200), "normal", generator_for(s, n)) for n in names for s in (0, 1)]
    correlations = torch.corrcoef(torch.stack([d.ravel() for d in draws]))
    off = correlations[~torch.eye(6, dtype=torch.bool)]
    assert off.abs().max().item() < 5 / math.sqrt(200 * 200)


# --- bits ----------------------------------------------------------------------------------

SCRIPT = """
import hashlib, sys, torch, virgo
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE
torch.manual_seed(int(sys.argv[1]))
data = Data(x=torch.arange(30.0).reshape(6, 5), edge_index=torch.arange(6).repeat(2, 1).roll(1, 1))
data.edge_index[1] = (data.edge_index[0] + 1) % 6
for distribution in ("uniform", "normal", "truncated", "orthogonal", "mirrored"):
    model = GraphSAGE(5, 8, num_layers=3, out_channels=4)
    virgo.init_(model, data, "virgo-backward", distribution=distribution, seed=9)
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.numpy().tobytes())
    print(distribution, digest.hexdigest())
"""


def test_the_same_seed_gives_the_same_bits_in_another_process(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, "1"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(virgo.__file__).parents[1]),
            "PYTHONHASHSEED": "77",
        },
    )
    there = found.stdout.split()
    monkeypatch.setattr(sys, "argv", ["script", "2"])  # another global seed must not matter
    with torch.random.fork_rng(devices=[]):
        exec(compile(SCRIPT, "script", "exec"), {})
    here = capsys.readouterr().out.split()
    assert len(here) == 10
    assert len(set(here)) == 10
    assert there == here


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = SAGEConv(6, 9), GCNConv(9, 7), GCNConv(7, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.b(self.a(x, edge_index).relu(), edge_index).relu()
        return self.c(x, edge_index)


class Reordered(Plain):
    """The same network declared the other way round, with layers that never run in between."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.c = GCNConv(7, 4)
        self.unused = GINConv(nn.Linear(3, 3))
        self.b = GCNConv(9, 7)
        self.also_unused = nn.Linear(4, 4)
        self.a = SAGEConv(6, 9)


@pytest.mark.parametrize("distribution", ["uniform", "orthogonal", "mirrored"])
@pytest.mark.parametrize("method", ["virgo-forward", "virgo-backward", "xavier"])
def test_declarations_and_unused_layers_change_no_weight(method: str, distribution: str) -> None:
    data = graph()
    plain, reordered = Plain(), Reordered()
    options = {"distribution": distribution, "signal": "rms", "seed": 4}
    virgo.init_(plain, data, method, **options)
    virgo.init_(reordered, data, method, **options)
    other = dict(reordered.named_parameters())
    names = [name for name, _ in plain.named_parameters()]
    assert [name for name in other if name in names] != names  # they are declared differently
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, other[name]), name


@pytest.mark.parametrize(
    "distribution", ["uniform", "normal", "truncated", "orthogonal", "mirrored"]
)
def test_precisions(distribution: str) -> None:
    """bfloat16 is the float32 draw rounded; float64 is a draw of its own, to its full precision."""
    data = graph()
    options = {"distribution": distribution, "signal": "rms", "seed": 2}
    models = {
        dtype: GCN(6, 8, num_layers=3, out_channels=4).to(dtype)
        for dtype in (torch.float32, torch.bfloat16, torch.float64)
    }
    plans = {dtype: virgo.init_(m, data, "virgo", **options) for dtype, m in models.items()}
    single, half, double = (dict(m.named_parameters()) for m in models.values())
    for name, parameter in single.items():
        assert half[name].dtype == torch.bfloat16
        assert double[name].dtype == torch.float64
        assert torch.equal(half[name], parameter.to(torch.bfloat16)), name
        if name in plans[torch.float64].variances:
            rounded = double[name].float().double()
            assert not torch.equal(double[name], rounded), name  # it is no float32 in disguise
    reference = plans[torch.float32].variances
    for plan in plans.values():
        assert plan.variances == pytest.approx(reference, rel=1e-9)


# --- mirrored weights ----------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 6), (7, 6), (6, 7), (7, 9), (2, 2), (3, 3)])
@pytest.mark.parametrize("in_first", [False, True])
def test_mirrored_blocks(shape: tuple[int, int], in_first: bool) -> None:
    """``[[Q, -Q], [-Q, Q]]`` to the bit, with a semi-orthogonal Q of mean square one."""
    rows, columns = shape
    weight = draw(
        shape[::-1] if in_first else shape,
        "mirrored",
        dtype=torch.float64,
        mirror_in=True,
        mirror_out=True,
        in_first=in_first,
    )
    weight = weight.T if in_first else weight
    r, c = rows // 2, columns // 2
    q = weight[:r, :c]
    assert torch.equal(weight[r : 2 * r, :c], -q)
    assert torch.equal(weight[:r, c : 2 * c], -q)
    assert torch.equal(weight[r : 2 * r, c : 2 * c], q)
    gram = q @ q.T if r <= c else q.T @ q
    torch.testing.assert_close(gram, max(r, c) * torch.eye(min(r, c)).double())
    assert q.square().mean().item() == pytest.approx(1.0, rel=1e-12)
    if rows % 2:  # the unit without a partner listens ...
        assert weight[-1, : 2 * c].abs().min() > 0
    if columns % 2:  # ... and is not heard
        assert weight[:, -1].abs().max() == 0


def test_mirrored_ends() -> None:
    first = draw((8, 5), "mirrored", mirror_out=True, dtype=torch.float64)
    assert torch.equal(first[:4], -first[4:])
    last = draw((5, 8), "mirrored", mirror_in=True, dtype=torch.float64)
    assert torch.equal(last[:, :4], -last[:, 4:])
    for block in (first[:4], last[:, :4]):
        rows, columns = block.shape
        gram = block @ block.T if rows <= columns else block.T @ block
        torch.testing.assert_close(gram, 5 * torch.eye(4).double())


class Net(nn.Module):
    """Layers in a row with a ReLU between any two, or with none."""

    def __init__(self, layers: list[nn.Module], activate: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.activate = activate

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x, edge_index)
            if self.activate and i < len(self.layers) - 1:
                x = x.relu()
        return x


def gin(i: int, inner: tuple[int, ...], o: int, activate: bool) -> GINConv:
    widths = (i, *inner, o)
    blocks: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        blocks += [nn.Linear(a, b), nn.ReLU() if activate else nn.Identity()]
    return GINConv(nn.Sequential(*blocks[:-1]), eps=0.3)


LAYERS: dict[str, Callable[[int, int], nn.Module]] = {
    "gcn": GCNConv,
    "sage": SAGEConv,
    "graph": GraphConv,
    "sg": lambda i, o: SGConv(i, o, K=2),
    "cluster": lambda i, o: ClusterGCNConv(i, o, diag_lambda=0.5),
    "le": LEConv,
}


def copy_folded(full: nn.Module, folded: nn.Module) -> None:
    """Put the upper left block of every hidden weight into a network of half the width.

    Its biases, all of them zero in a mirrored network, are set to zero too.
    """
    source = dict(full.named_parameters())
    with torch.no_grad():
        for name, parameter in folded.named_parameters():
            if parameter.dim() < 2:
                assert source[name].abs().max() == 0
                parameter.zero_()
                continue
            block = source[name][: parameter.size(0), : parameter.size(1)]
            assert block.shape == parameter.shape
            parameter.copy_(block)


def check_linear(
    make: Callable[[list[int], bool], nn.Module], widths: list[int], data: Data, **options: Any
) -> nn.Module:
    """A mirrored ReLU network against the same layers at half the hidden width, without ReLU."""
    halves = [widths[0], *(w // 2 for w in widths[1:-1]), widths[-1]]
    full, folded = make(widths, True).double(), make(halves, False).double()
    virgo.init_(full, data, distribution="mirrored", **options)
    copy_folded(full, folded)
    with torch.no_grad():
        expected = folded(data.x, data.edge_index)
        found = full(data.x, data.edge_index)
        assert expected.abs().max() > 0
        scale = expected.abs().max().item()
        # both round differently, a few dozen times over at most 5 layers; nothing else differs
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 * scale)
        # negative control: with other weights the same network is not linear at all
        virgo.init_(full, data, distribution="orthogonal", **options)
        copy_folded(full, folded)
        gap = full(data.x, data.edge_index) - folded(data.x, data.edge_index)
        assert gap.abs().max().item() > 1e-3 * scale
    virgo.init_(full, data, distribution="mirrored", **options)
    return full


WIDTHS = {
    "even": [6, 8, 8, 8, 4],
    "unequal": [6, 10, 4, 8, 3],
    "odd": [6, 7, 7, 7, 4],
    "odd-and-unequal": [6, 9, 5, 12, 3],
    "narrow": [6, 2, 3, 2, 4],
    "two-layers": [6, 7, 4],
    "one-output": [6, 5, 4, 1],
}


@pytest.mark.usefixtures("double_by_default")
@pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("kind", LAYERS)
def test_a_mirrored_network_is_linear(kind: str, widths: list[int]) -> None:
    """``relu(z) - relu(-z) = z`` in every layer, so the ReLUs could as well not be there."""

    def make(ws: list[int], activate: bool) -> nn.Module:
        pairs = itertools.pairwise(ws)
        return Net([LAYERS[kind](i, o) for i, o in pairs], activate)

    check_linear(make, widths, graph(), method="virgo-backward", num_classes=False)


@pytest.mark.parametrize("method", ["virgo-forward", "virgo-backward", "virgo", "xavier"])
@pytest.mark.parametrize("widths", [[6, 8, 8, 4], [6, 9, 5, 3]], ids=["even", "odd"])
def test_a_mirrored_network_is_linear_whatever_the_method(widths: list[int], method: str) -> None:
    def make(ws: list[int], activate: bool) -> nn.Module:
        pairs = itertools.pairwise(ws)
        return Net([SAGEConv(i, o) for i, o in pairs], activate)

    check_linear(make, widths, graph(), method=method, num_classes=False)


@pytest.mark.parametrize("hidden", [8, 7])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_mirrored_gin_is_linear(hidden: int, depth: int) -> None:
    """ReLUs inside the inner networks as well as between layers."""

    def make(ws: list[int], activate: bool) -> nn.Module:
        inner = tuple([ws[1]] * depth)
        ends = [(ws[0], ws[1]), (ws[1], ws[2]), (ws[2], ws[3])]
        return Net([gin(i, inner, o, activate) for i, o in ends], activate)

    check_linear(make, [6, hidden, hidden, 4], graph(), method="virgo-backward", num_classes=False)


@pytest.mark.parametrize("hidden", [8, 7])
def test_a_mirrored_projecting_sage_is_linear(hidden: int) -> None:
    """Each layer's ``relu(x W)`` is a hidden layer too, and its root term does not see it.

    The first projection has the features' width on both sides and is folded on one only, so the
    linear network is written out here.
    """
    data = graph(features=6)
    full = Net([SAGEConv(i, o, project=True) for i, o in [(6, hidden), (hidden, 4)]], True).double()
    virgo.init_(full, data, "virgo-backward", distribution="mirrored", num_classes=False)
    half = hidden // 2
    eye = torch.eye(data.num_nodes, dtype=torch.float64)
    average = SAGEConv(data.num_nodes, data.num_nodes, root_weight=False, bias=False).double()
    with torch.no_grad():
        average.lin_l.weight.copy_(eye)
        mean = average(eye, data.edge_index)
        one, two = full.layers
        # the first root term reads the features: pairing those would lose half of them
        assert not torch.equal(one.lin_r.weight[:, :3], -one.lin_r.weight[:, 3:])
        assert torch.linalg.matrix_rank(one.lin_r.weight[:half]) == half
        z = data.x @ one.lin.weight[:3].T
        z = mean @ z @ one.lin_l.weight[:half, :3].T + data.x @ one.lin_r.weight[:half].T
        p = z @ two.lin.weight[:half, :half].T
        z = mean @ p @ two.lin_l.weight[:, :half].T + z @ two.lin_r.weight[:, :half].T
        found = full(data.x, data.edge_index)
    torch.testing.assert_close(found, z, rtol=0, atol=1e-12 * z.abs().max().item())


class Woven(nn.Module):
    """A hidden layer that runs twice, and residual connections around it."""

    def __init__(self, widths: list[int], activate: bool) -> None:
        super().__init__()
        features, hidden, _, out = widths
        self.first, self.last = GCNConv(features, hidden), SAGEConv(hidden, out)
        self.middle = SAGEConv(hidden, hidden)
        self.act: nn.Module = nn.ReLU() if activate else nn.Identity()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.act(self.first(x, edge_index))
        for _ in range(2):
            x = x + self.act(self.middle(x, edge_index))
        return self.last(x, edge_index)


@pytest.mark.parametrize("hidden", [8, 7])
def test_residuals_and_repeated_layers_stay_linear(hidden: int) -> None:
    """The sum of two pairs ``(a, b)`` still carries ``a - b``."""
    check_linear(Woven, [6, hidden, hidden, 4], graph(), method="virgo-backward", num_classes=False)


class Tied(nn.Module):
    """One layer for all: it reads the features first and pairs of hidden units later."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GCNConv(6, 6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.conv(self.conv(x, edge_index).relu(), edge_index).relu()
        return self.conv(x, edge_index)


def test_a_mirrored_layer_that_reads_both_features_and_hidden_units_is_linear() -> None:
    data = graph()
    model = Tied().double()
    virgo.init_(model, data, "virgo-backward", distribution="mirrored")
    other = graph(seed=1).x
    with torch.no_grad():
        parts = model(data.x, data.edge_index) + model(other, data.edge_index)
        whole = model(data.x + other, data.edge_index)
    scale = parts.abs().max().item()
    torch.testing.assert_close(whole, parts, rtol=0, atol=1e-12 * scale)


@pytest.mark.parametrize("layers", [["gcn", "sage", "le"], ["sg", "graph", "gcn"]])
def test_a_mirrored_network_of_several_kinds_is_linear(layers: list[str]) -> None:
    def make(ws: list[int], activate: bool) -> nn.Module:
        made = [LAYERS[k](i, o) for k, i, o in zip(layers, ws, ws[1:], strict=False)]
        return Net(made, activate)

    check_linear(make, [6, 9, 8, 3], graph(), method="virgo-forward", signal="rms")


def test_the_leftover_unit_is_alive_and_silent() -> None:
    """It receives a row of random weights, fires, says nothing yet, and can learn to speak."""
    data = graph()
    model = Net([GCNConv(6, 7), GCNConv(7, 7), GCNConv(7, 4)], True).double()
    virgo.init_(model, data, "virgo-backward", distribution="mirrored", num_classes=False)
    weights = [layer.lin.weight for layer in model.layers]
    for incoming, outgoing in itertools.pairwise(weights):
        heard = incoming[-1, :6]
        assert heard.abs().min() > 0
        assert outgoing[:, -1].abs().max() == 0
    hidden = model.layers[0](data.x, data.edge_index).relu()
    assert hidden[:, -1].max() > 0
    model(data.x, data.edge_index).square().sum().backward()
    for outgoing in weights[1:]:
        assert outgoing.grad[:, -1].abs().max() > 0  # the first step lets it speak


def test_the_leftover_row_has_the_variance_of_its_layer() -> None:
    """Its 5000 normal entries: the bound of the variance tests above with a kurtosis of 3."""
    weight = draw((3, 5001), "mirrored", mirror_in=True, mirror_out=True, dtype=torch.float64)
    row = weight[-1, :5000]
    assert row.square().mean().item() == pytest.approx(1.0, rel=variance_bound(3.0, 5000))
    assert ks(row.numpy(), stats.norm().cdf) > ALPHA


@pytest.mark.parametrize("widths", [[6, 1, 4], [6, 8, 1, 4]])
def test_a_hidden_width_of_one_cannot_be_mirrored(widths: list[int]) -> None:
    model = Net([GCNConv(i, o) for i, o in itertools.pairwise(widths)], True)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(virgo.OptionError, match=r"mirrored.*width.*at least 2.*Widen"):
        virgo.init_(model, graph(), "virgo-forward", distribution="mirrored")
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_a_width_of_one_says_so_when_drawn_directly() -> None:
    with pytest.raises(virgo.OptionError, match=r"mirrored.*at least 2.*1 x 5"):
        draw((1, 5), "mirrored", mirror_out=True)
    with pytest.raises(virgo.OptionError, match=r"mirrored.*at least 2.*5 x 1"):
        draw((5, 1), "mirrored", mirror_in=True)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_analytic_scale_of_a_mirrored_gcn_is_exact(seed: int) -> None:
    """Orthogonal blocks keep norms, so ``||h^l||^2`` is the same in every hidden layer.

    ``h^{l+1} = (relu(z), relu(-z))`` has the norm of ``z = s A~ h Q``, with ``s^2 = 2 / width *
    ||A~^l X M||^2 / ||A~^{l+1} X M||^2`` and ``Q Q^T = width / 2``. The plan projects the features
    in float32, hence 1e-5; Kaiming's scale, the control, drifts ten thousand times further.
    """
    data = graph(nodes=30, edges=60, features=10, seed=seed)
    layers: list[nn.Module] = [GCNConv(10, 12), *(GCNConv(12, 12) for _ in range(8))]
    model = Net([*layers, GCNConv(12, 4)], True).double()

    def norms() -> list[float]:
        h, found = data.x, []
        with torch.no_grad():
            for layer in model.layers[:-1]:
                h = layer(h, data.edge_index).relu()
                found.append(h.square().sum().item())
        return found

    virgo.init_(model, data, "virgo-forward", distribution="mirrored", seed=seed)
    exact = norms()
    assert max(exact) / min(exact) < 1 + 1e-5
    virgo.init_(model, data, "kaiming-forward", distribution="mirrored", seed=seed)
    drifting = norms()
    assert max(drifting) / min(drifting) > 1.1


def test_digest_of_a_name_is_what_decides() -> None:
    """The recipe that other processes, and other versions, have to keep to."""
    expected = int.from_bytes(hashlib.sha256(b"3/convs.0.lin.weight").digest()[:8], "big") >> 1
    assert generator_for(3, "convs.0.lin.weight").initial_seed() == expected

"""Spectral weights: the features' directions that survive, against a dense SVD; their bits; limits.

The oracle materialises every operator by the model's own layers with identity weights and takes
numpy's SVD of the product with the features.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.networks import Stack
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCN, GCNConv, GINConv, GraphConv, SAGEConv

import virgo
from virgo.draws import generator_for, read_basis, scaled_basis, standard
from virgo.graph import spectrum, threads
from virgo.graph.spectrum import Features, orthonormal, right_singular

pytestmark = pytest.mark.usefixtures("one_thread")
OPTIONS = {"distribution": "spectral", "num_classes": False}


def graph(nodes: int = 40, edges: int = 120, features: int = 12, seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    scales = torch.logspace(0, -1.5, features, dtype=torch.float64)
    x = torch.randn(nodes, features, generator=generator, dtype=torch.float64) * scales
    index = torch.randint(0, nodes, (2, edges), generator=generator)
    y = torch.randint(0, 3, (nodes,), generator=generator)
    return Data(x=x + 0.3 * scales, edge_index=torch.cat([index, index.flip(0)], 1), y=y)


def gcn(features: int, hidden: int, layers: int, out: int = 3) -> Stack:
    widths = [features, *[hidden] * (layers - 1), out]
    return Stack([GCNConv(i, o) for i, o in itertools.pairwise(widths)]).double()


def dense_operator(make: Callable[[int], nn.Module], data: Data) -> np.ndarray:
    """What a layer multiplies features by, read off its output for the identity."""
    layer = make(data.num_nodes).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        layer.lin.weight.copy_(torch.eye(data.num_nodes))
        return layer(torch.eye(data.num_nodes, dtype=torch.float64), data.edge_index).numpy()


def dense_svd(data: Data, layers: int) -> tuple[np.ndarray, np.ndarray]:
    product = data.x.to_dense().double().numpy()
    operator = dense_operator(lambda n: GCNConv(n, n), data)
    for _ in range(layers):
        product = operator @ product
    _, values, vectors = np.linalg.svd(product, full_matrices=False)
    return values, vectors


# --- the directions -----------------------------------------------------------------------------


@pytest.mark.parametrize("power", [0.0, -0.5, -1.0])
@pytest.mark.parametrize("layers", [2, 5])
def test_directions_and_their_scales_are_those_of_a_dense_svd(layers: int, power: float) -> None:
    """Stored in float32 and scaled to unit mean square, hence 1e-5 and ratios of scales."""
    data = graph()
    plan = virgo.plan(gcn(12, 8, layers), data, "virgo-backward", power=power, **OPTIONS)
    rows = read_basis(plan.basis).double().numpy()
    values, vectors = dense_svd(data, layers)
    assert rows.shape == (4, 12)
    lengths = np.linalg.norm(rows, axis=1)
    np.testing.assert_allclose(lengths / lengths[0], (values[:4] / values[0]) ** power, rtol=1e-5)
    overlap = np.abs((rows / lengths[:, None]) @ vectors[:4].T)
    np.testing.assert_allclose(overlap, np.eye(4), atol=1e-5)
    # negative control: the directions of the features themselves are others
    _, _, raw = np.linalg.svd(data.x.numpy(), full_matrices=False)
    assert np.abs(np.abs((rows / lengths[:, None]) @ raw[:4].T) - np.eye(4)).max() > 0.02


def test_the_first_weight_spans_these_directions_and_no_others() -> None:
    data = graph()
    model = gcn(12, 8, 4)
    virgo.init_(model, data, "virgo-backward", **OPTIONS)
    weight = model.convs[0].lin.weight.detach().numpy()
    _, vectors = dense_svd(data, 4)
    outside = weight - weight @ vectors[:4].T @ vectors[:4]
    assert np.abs(outside).max() < 1e-5 * np.abs(weight).max()
    virgo.init_(model, data, "virgo-backward", distribution="mirrored", num_classes=False)
    weight = model.convs[0].lin.weight.detach().numpy()  # negative control
    outside = weight - weight @ vectors[:4].T @ vectors[:4]
    assert np.abs(outside).max() > 0.1 * np.abs(weight).max()


def test_half_whitening_leaves_the_root_of_the_singular_values() -> None:
    """``K X M^T`` has singular values ``s * s^-1/2``, whatever the rotation."""
    data, layers = graph(), 3
    plan = virgo.plan(gcn(12, 8, layers), data, "virgo-backward", power=-0.5, **OPTIONS)
    values, vectors = dense_svd(data, layers)
    weight = plan.draw(plan.rows[0], 0, torch.empty(8, 12, dtype=torch.float64))[:4].numpy()
    inner = np.linalg.svd(np.diag(values) @ vectors @ weight.T, compute_uv=False)[:4]
    np.testing.assert_allclose(inner / inner[0], np.sqrt(values[:4] / values[0]), rtol=1e-5)


def test_subspace_iteration_on_a_slow_spectrum_keeps_nearly_all_that_can_be_kept() -> None:
    """More features than columns of the block, singular values that fall slowly: energy within
    one per cent of the best, which a random start alone misses by far."""
    rng = np.random.default_rng(0)
    left, _ = np.linalg.qr(rng.standard_normal((400, 300)))
    right, _ = np.linalg.qr(rng.standard_normal((300, 300)))
    values = 1 / np.sqrt(np.arange(1, 301))
    matrix = left * values @ right.T
    found = right_singular(lambda b: matrix.T @ (matrix @ b), 300, 20, np.random.default_rng(1))
    best = np.square(values[:20]).sum()
    assert np.square(matrix @ found.vectors.T).sum() > 0.99 * best
    np.testing.assert_allclose(found.vectors @ found.vectors.T, np.eye(20), atol=1e-12)
    start, _ = np.linalg.qr(rng.standard_normal((300, 20)))
    assert np.square(matrix @ start).sum() < 0.5 * best


def test_an_orthonormal_basis_of_columns_that_nearly_depend() -> None:
    """Ill-conditioned by 1e10, where one pass of Gram-Schmidt would be off by 1e-6."""
    rng = np.random.default_rng(0)
    block = rng.standard_normal((50, 6)) @ np.vander(np.linspace(1, 1.05, 6))
    basis = orthonormal(block)
    np.testing.assert_allclose(basis.T @ basis, np.eye(6), atol=1e-13)
    leading = block[:, :3]  # the same span, column by column
    np.testing.assert_allclose(
        basis[:, :3] @ (basis[:, :3].T @ leading), leading, atol=1e-12 * np.abs(block).max()
    )


def test_columns_that_depend_become_zero() -> None:
    rng = np.random.default_rng(0)
    two = rng.standard_normal((20, 2))
    basis = orthonormal(np.concatenate([two, two @ rng.standard_normal((2, 3))], 1))
    np.testing.assert_allclose(basis.T @ basis, np.diag([1.0, 1, 0, 0, 0]), atol=1e-13)


@pytest.mark.parametrize(("decay", "products"), [(0.5, 3), (0.98, 4)])
def test_the_iteration_stops_where_singular_values_do(decay: float, products: int) -> None:
    """A spectrum that falls fast is found by the second product, and the third one shows it; one
    that falls slowly takes longer."""
    rng = np.random.default_rng(0)
    right, _ = np.linalg.qr(rng.standard_normal((300, 300)))
    values = decay ** np.arange(300)
    calls = []

    def gram(block: np.ndarray) -> np.ndarray:
        calls.append(block.shape)
        return right @ (values[:, None] ** 2 * (right.T @ block))

    found = right_singular(gram, 300, 12, np.random.default_rng(1))
    assert len(calls) == products
    np.testing.assert_allclose(found.values, values[:12], rtol=spectrum.SETTLED)


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """More features than a block has columns, dense and sparse, every product on two threads."""
    monkeypatch.setattr(threads, "_WORTH_THREADS", 0)
    found: dict[bool, set[str]] = {False: set(), True: set()}
    before = torch.get_num_threads()
    try:
        for count in (1, 2):
            monkeypatch.setattr(threads, "cores", lambda count=count: count)
            torch.set_num_threads(count)
            for sparse in found:
                data = graph(300, 900, 200)
                data.x = data.x.to_sparse() if sparse else data.x
                plan = virgo.plan(gcn(200, 24, 6), data, "virgo-backward", **OPTIONS)
                found[sparse].add(plan.basis["float32"])
    finally:
        torch.set_num_threads(before)
    assert {sparse: len(bits) for sparse, bits in found.items()} == {False: 1, True: 1}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SAGEConv, GraphConv])
def test_several_terms_add_their_squares(
    kind: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One layer of two terms: the mean over signs tends to ``X^T (P^T P + I) X``.

    With 4000 draws of independent signs the cross terms ``X^T (P + P^T) X`` are weighted with a
    mean of 1/sqrt(4000), so the Gram matrix is within a few per cent.
    """
    monkeypatch.setattr(spectrum, "SIGN_DRAWS", 4000)
    data = graph(features=5)
    model = Stack([kind(5, 10)]).double()
    plan = virgo.plan(model, data, "virgo-backward", power=-0.5, **OPTIONS)
    adjacency = np.zeros((data.num_nodes, data.num_nodes))
    np.add.at(adjacency, (data.edge_index[1].numpy(), data.edge_index[0].numpy()), 1.0)
    if kind is SAGEConv:
        adjacency /= np.maximum(adjacency.sum(1, keepdims=True), 1)
    x = data.x.numpy()
    gram = x.T @ (adjacency.T @ adjacency + np.eye(data.num_nodes)) @ x
    rows = read_basis(plan.basis).double().numpy()
    lengths = np.linalg.norm(rows, axis=1)
    values = np.linalg.eigvalsh(gram)[::-1]
    # each draw is scaled by its own norm, which moves all values alike
    np.testing.assert_allclose((lengths / lengths[0]) ** -4, values / values[0], rtol=0.15)
    assert all(row.distribution is None for row in plan.rows)  # both weights read the features


# --- the network ----------------------------------------------------------------------------------


def inner(i: int, o: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(i, hidden), nn.ReLU(), nn.Linear(hidden, o))


NETWORKS: dict[str, Callable[[int, int], nn.Module]] = {
    "gcn": lambda i, h: Stack([GCNConv(i, h), GCNConv(h, h), GCNConv(h, 3)]),
    "sage": lambda i, h: Stack([SAGEConv(i, h), SAGEConv(h, h), SAGEConv(h, 3)]),
    "graph": lambda i, h: Stack([GraphConv(i, h), GraphConv(h, h), GraphConv(h, 3)]),
    "gin": lambda i, h: Stack([GINConv(inner(i, h, h)), GINConv(inner(h, 3, h))]),
    "residual": lambda i, h: Stack(
        [GCNConv(i, h), GCNConv(h, h), GCNConv(h, h), GCNConv(h, 3)], residual=True
    ),
}


@pytest.mark.parametrize("hidden", [8, 9, 40], ids=["even", "odd", "wider-than-the-rank"])
@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("method", ["virgo-backward", "virgo-forward"])
def test_the_network_is_linear_at_initialisation(kind: str, hidden: int, method: str) -> None:
    """``f(a x + b x') = a f(x) + b f(x')``, which no ReLU network with other weights does."""
    data = graph()
    model = NETWORKS[kind](12, hidden).double()
    other = torch.randn(data.x.shape, dtype=torch.float64, generator=generator_for(0, "other"))

    def gap() -> float:
        with torch.no_grad():
            joined = model(2 * data.x - 3 * other, data.edge_index)
            apart = 2 * model(data.x, data.edge_index) - 3 * model(other, data.edge_index)
        return float((joined - apart).abs().max() / apart.abs().max())

    virgo.init_(model, data, method, **OPTIONS)
    assert gap() < 1e-11  # a few dozen roundings
    virgo.init_(model, data, method, distribution="orthogonal", signal="rms", num_classes=False)
    assert gap() > 1e-2


@pytest.mark.parametrize("seed", [0, 1])
def test_the_forward_scale_is_exact_from_the_features_on(seed: int) -> None:
    """The mean square of every hidden layer is that of the features (basis in float32: 1e-5)."""
    data = graph(seed=seed)
    model = gcn(12, 8, 7)
    virgo.init_(model, data, "virgo-forward", distribution="spectral", seed=seed)
    h, squares = data.x, [float(data.x.square().mean())]
    with torch.no_grad():
        for layer in model.convs[:-1]:
            h = layer(h, data.edge_index).relu()
            squares.append(float(h.square().mean()))
    assert max(squares) / min(squares) < 1 + 1e-5


def test_measured_scales_hold_too() -> None:
    data = graph()
    model = gcn(12, 8, 5)
    plan = virgo.init_(model, data, "virgo-backward+measured+spectral")
    assert plan.measured is not None
    assert plan.measured["achieved"]["backward"]["range"] < 1.05
    assert plan.basis is not None


# --- plans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_bits_from_json(kind: str, dtype: torch.dtype) -> None:
    data = graph()
    model = NETWORKS[kind](12, 9).to(dtype)
    plan = virgo.init_(model, data, "virgo-backward", **OPTIONS, seed=3)
    read = virgo.Plan.from_json(plan.to_json())
    assert read == plan
    assert replace(plan, basis=None) != plan
    twin = NETWORKS[kind](12, 9).to(dtype)
    read.apply_(twin)
    again = virgo.plan(twin, data, "virgo-backward", **OPTIONS, seed=3)
    assert again == plan
    for (name, one), two in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, two), name
    read.apply_(twin, seed=4)  # negative control: another seed is another rotation
    first = plan.rows[0].weight
    assert not torch.equal(twin.get_parameter(first), model.get_parameter(first))


def test_the_short_form_and_the_rows() -> None:
    data, model = graph(), gcn(12, 8, 3)
    plan = virgo.plan(model, data, "virgo-backward+spectral")
    assert plan == virgo.plan(model, data, "virgo-backward", distribution="spectral")
    assert [row.distribution for row in plan.rows] == [None, "mirrored", "mirrored"]
    assert "4 strongest directions" in str(plan)
    assert len(repr(plan)) < 3000  # the basis is not printed


@pytest.mark.parametrize(
    "damage",
    [
        {"shape": [4, 12]},
        {"shape": [4, 13], "float32": "AAAA"},
        {"shape": [1, 1], "float32": "not base64!"},
        {"shape": [1, 1], "float32": "AADAfw=="},  # NaN
        [1, 2],
    ],
)
def test_a_damaged_basis_is_refused(damage: Any) -> None:
    plan = virgo.plan(gcn(12, 8, 3), graph(), "virgo-backward+spectral")
    raw = json.loads(plan.to_json())
    with pytest.raises(virgo.PlanError, match=r"plan: expected"):
        virgo.Plan.from_json(json.dumps({**raw, "basis": damage}))


@pytest.mark.parametrize("basis", [None, scaled_basis(np.ones(1), np.ones((1, 5)))])
def test_a_basis_that_does_not_fit_leaves_the_model_alone(basis: Any) -> None:
    model = gcn(12, 8, 3)
    plan = replace(virgo.plan(model, graph(), "virgo-backward+spectral"), basis=basis)
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(virgo.PlanError, match=r"convs\.0\.lin\.weight: expected a basis of 12"):
        plan.apply_(model)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


# --- widths and features --------------------------------------------------------------------------


def test_directions_that_do_not_survive_are_filled_up_as_mirrored() -> None:
    """Features of rank 3 and 10 pairs: 3 directions, 7 random ones orthogonal to them."""
    data = graph()
    data.x = data.x[:, :3] @ torch.randn(3, 12, dtype=torch.float64, generator=generator_for(0, ""))
    model = gcn(12, 20, 3)
    plan = virgo.init_(model, data, "virgo-backward", **OPTIONS)
    rows = read_basis(plan.basis).double()
    assert rows.shape == (3, 12)
    assert any("3 directions survive, fewer than the 10 pairs" in note for note in plan.notes)
    weight = model.convs[0].lin.weight.detach()[:10]
    assert torch.linalg.matrix_rank(weight) == 10
    # the rotation's columns are orthogonal, so the Gram matrix of M splits into the two spaces
    space = torch.linalg.qr(rows.T).Q
    gram = weight.T @ weight
    across = gram @ space - space @ (space.T @ gram @ space)
    assert across.abs().max() < 1e-6 * gram.abs().max()


@pytest.mark.parametrize(("rows", "columns"), [(8, 12), (9, 12), (40, 12), (7, 3)])
@pytest.mark.parametrize("in_first", [False, True])
def test_a_draw_has_unit_mean_square_and_pairs(rows: int, columns: int, in_first: bool) -> None:
    basis = read_basis(scaled_basis(np.array([2.0, 1.0]), np.eye(2, columns)))
    shape = (columns, rows) if in_first else (rows, columns)
    options: dict[str, Any] = {"mirror_out": True, "in_first": in_first, "dtype": torch.float64}
    weight = standard(shape, "spectral", generator_for(0, "w"), basis=basis, **options)
    weight = weight.T if in_first else weight
    half = rows // 2
    assert torch.equal(weight[:half], -weight[half : 2 * half])
    assert abs(weight[:half].square().mean().item() - 1) < 1e-12
    assert weight[2 * half :].abs().sum() > 0 or rows % 2 == 0  # the unit without a partner
    with pytest.raises(virgo.OptionError, match="got no basis"):
        standard(shape, "spectral", generator_for(0, "w"), **options)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("density", [0.05, 0.5], ids=["few", "many"])
def test_sparse_features_give_the_plan_of_dense_ones(layout: str, density: float) -> None:
    data = graph(nodes=60, features=30).clone()
    keep = torch.rand(data.x.shape, generator=generator_for(0, "keep")) < density
    data.x = data.x * keep
    dense = virgo.plan(gcn(30, 8, 4), data, "virgo-forward", **OPTIONS)
    data.x = data.x.to_sparse_coo() if layout == "coo" else data.x.to_sparse_csr()
    sparse = virgo.plan(gcn(30, 8, 4), data, "virgo-forward", **OPTIONS)
    # rounding of float32 storage; and a direction is settled up to the gap of its singular value
    torch.testing.assert_close(read_basis(sparse.basis), read_basis(dense.basis), rtol=0, atol=1e-4)
    assert list(sparse.variances.values()) == pytest.approx(list(dense.variances.values()), 1e-4)


def test_products_are_those_of_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectrum, "_CHUNK", 64)  # five rows at a time
    x, rng = graph().x, np.random.default_rng(0)
    block, other = rng.standard_normal((12, 3)), rng.standard_normal((40, 3))
    for given in (x, x.to_sparse_coo(), x.float().double(), x.numpy()):
        features = Features(given)
        np.testing.assert_allclose(features.times(block), x.numpy() @ block, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(
            features.transposed_times(other), x.numpy().T @ other, rtol=1e-6, atol=1e-6
        )
        assert features.squares == pytest.approx(float(x.square().sum()), 1e-6)


def test_blocks_of_columns_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = virgo.plan(gcn(12, 8, 3), graph(), "virgo-backward+spectral")
    monkeypatch.setattr(spectrum, "_BLOCK", 80)  # two columns of forty nodes
    parts = virgo.plan(gcn(12, 8, 3), graph(), "virgo-backward+spectral")
    torch.testing.assert_close(read_basis(parts.basis), read_basis(whole.basis))


def test_standardised_features_and_many_components() -> None:
    """Means of zero, forty components: columns keep their signs, so nothing cancels."""
    parts = [graph(nodes=6, edges=12, seed=s) for s in range(40)]
    data = Data(
        x=torch.cat([part.x for part in parts]),
        edge_index=torch.cat([part.edge_index + 6 * i for i, part in enumerate(parts)], 1),
        y=torch.cat([part.y for part in parts]),
    )
    data.x = (data.x - data.x.mean(0)) / data.x.std(0)
    model = gcn(12, 16, 8)
    plan = virgo.init_(model, data, "virgo", **OPTIONS)
    assert read_basis(plan.basis).shape == (8, 12)
    with torch.no_grad():
        out = model(data.x, data.edge_index)
    assert torch.isfinite(out).all()
    assert torch.linalg.matrix_rank(out) == 3


def test_a_dataset_of_graphs_is_its_approximation_graph() -> None:
    graphs = [graph(nodes=20, edges=40, seed=s) for s in range(5)]
    plan = virgo.plan(gcn(12, 8, 3), graphs, "virgo-backward", **OPTIONS)
    assert read_basis(plan.basis).shape == (4, 12)
    assert plan.graph["nodes"] == 100


@pytest.mark.parametrize("method", ["virgo-backward", "virgo-forward"])
def test_features_in_a_file(tmp_path: Path, method: str) -> None:
    data, model = graph(), gcn(12, 8, 4)
    np.save(tmp_path / "x.npy", data.x.numpy())
    home = virgo.Graph(data.edge_index, data.num_nodes)
    plan = virgo.plan(model, home, method, **OPTIONS, features=tmp_path / "x.npy")
    usual = virgo.plan(model, data, method, **OPTIONS)
    torch.testing.assert_close(read_basis(plan.basis), read_basis(usual.basis))
    assert list(plan.variances.values()) == pytest.approx(list(usual.variances.values()), 1e-6)
    for options in ({}, {"mean_features": np.ones(40)}, {"estimate": "measured"}):
        with pytest.raises(virgo.OptionError, match=r"'spectral' follows every feature.*features="):
            virgo.plan(model, home, method, **OPTIONS, **options)


# --- what is refused ------------------------------------------------------------------------------


class Encoded(nn.Module):
    """A Linear reads the features; the layer does not."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.one, self.two = nn.Linear(12, 12), GCNConv(12, 8), GCNConv(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.two(self.one(self.encode(x), edge_index).relu(), edge_index)


def test_a_network_whose_first_layer_reads_no_features_is_refused() -> None:
    with pytest.raises(virgo.OptionError, match=r"spectral.*reads them alone.*'mirrored'"):
        virgo.plan(Encoded().double(), graph(), "virgo-backward+spectral")
    virgo.plan(Encoded().double(), graph(), "virgo-backward+mirrored")  # what it says to do


def test_a_hidden_width_of_one_is_refused() -> None:
    with pytest.raises(virgo.OptionError, match=r"spectral.*at least 2"):
        virgo.plan(gcn(12, 1, 3), graph(), "virgo-backward+spectral")


# --- auto -----------------------------------------------------------------------------------------


def test_auto_tries_spectral_weights_on_a_deep_stack_and_mirrored_ones_only_without() -> None:
    data = graph(nodes=200, edges=800)
    data.x = data.x.float()
    model = GCN(12, 16, 12, 3)
    plan = virgo.plan(model, data)
    assert plan.choice is not None
    tried = [candidate["name"] for candidate in plan.choice["tried"]]
    assert "virgo-backward+spectral" in tried
    assert "spectral weights, scaled by measured passes" in tried
    assert not any("mirrored" in name for name in tried)
    twin = GCN(12, 16, 12, 3)
    virgo.Plan.from_json(plan.to_json()).apply_(twin)
    shallow = virgo.plan(GCN(12, 16, 2, 3), data)
    assert shallow.choice is not None
    assert not any("spectral" in candidate["name"] for candidate in shallow.choice["tried"])

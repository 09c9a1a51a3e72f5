"""Operators over tensors on a device: the numbers of the compiled loops, and nothing copied."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from kit import fake_cuda, second_device
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GAT, GCN, GIN, GraphSAGE, to_hetero
from torch_geometric.nn import conv as pyg

import virgo
from virgo import devices
from virgo.errors import GraphError, LayerError, OptionError
from virgo.graph.composites import Composite, Polynomial
from virgo.graph.device import DeviceGraph, graph_of, vector_of
from virgo.graph.operators import Graph
from virgo.graph.vectors import extent, magnitudes, root_of_squares, scaled, squared_norm

NODES = 30
OPERATORS: dict[str, Callable[[Any], Any]] = {
    "identity": lambda g: g.identity(),
    "sum": lambda g: g.sum(1.5),
    "mean": lambda g: g.mean(),
    "mean_with_self": lambda g: g.mean_with_self(0.5),
    "mean_with_loops": lambda g: g.mean_with_loops(),
    "degree": lambda g: g.degree(),
    "gcn": lambda g: g.gcn(),
    "gcn improved": lambda g: g.gcn(improved=True),
    "gcn bare": lambda g: g.gcn(add_self_loops=False),
    "gcn thrice": lambda g: g.gcn().times(3),
    "cluster": lambda g: g.cluster_gcn(diag_lambda=0.3),
    "cluster by source": lambda g: g.cluster_gcn(by_source=True),
    "laplacian": lambda g: g.rescaled_laplacian("sym", by_source=False),
    "laplacian rw": lambda g: g.rescaled_laplacian("rw", by_source=True),
    "laplacian none": lambda g: g.rescaled_laplacian(None, by_source=True),
    "reversed": lambda g: g.reversed.gcn(),
    "unweighted": lambda g: g.unweighted.mean(),
    "some edges": lambda g: g.where(torch.arange(120) % 3 == 0).shares_of(g),
    "polynomial": lambda g: Polynomial(g.gcn(), (0.2, 0.3, 0.5), chebyshev=True),
    "product": lambda g: Composite(((0.5, (g.mean(), g.sum())), (2.0, (g.identity(),)))),
}


def edges(weighted: bool) -> tuple[Tensor, Tensor | None]:
    """Repeated edges, self-loops (some of them several) and a node without any edge."""
    draw = torch.Generator().manual_seed(0)
    index = torch.randint(NODES - 1, (2, 120), generator=draw)
    index[:, :12] = index[0, :12]
    index[:, 4:8] = 3
    return index, torch.rand(120, generator=draw) + 0.1 if weighted else None


@pytest.fixture(params=["second", "cpu"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """A device without CSR matrices, and PyTorch's own on the CPU."""
    return second_device.register() if request.param == "second" else torch.device("cpu")


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("keep_loops", [False, True])
def test_an_operator_is_that_of_the_compiled_loops(
    name: str, weighted: bool, keep_loops: bool, device: torch.device
) -> None:
    index, weight = edges(weighted)
    there = None if weight is None else weight.to(device)
    here = OPERATORS[name](Graph(index, NODES, weight, keep_loops=keep_loops))
    second = OPERATORS[name](DeviceGraph(index.to(device), NODES, there, keep_loops=keep_loops))
    for x in (np.linspace(-1, 2, NODES), np.linspace(-1, 2, 2 * NODES).reshape(NODES, 2)):
        sent = torch.from_numpy(x).to(device)
        for one, other in ((here, second), (here.T, second.T)):
            found = other(sent)
            assert found.device.type == device.type
            np.testing.assert_allclose(found.cpu().numpy(), one(x), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(sent.cpu().numpy(), x)  # read, and not written


def test_vectors_are_measured_the_same(device: torch.device) -> None:
    x = np.linspace(-1, 2, NODES)
    sent = torch.from_numpy(x).to(device)
    assert squared_norm(sent) == pytest.approx(squared_norm(x), rel=1e-14)
    assert extent(sent) == pytest.approx(extent(x), rel=1e-14)
    pairs = [(magnitudes(sent), magnitudes(x)), (scaled(sent, 3.0), scaled(x, 3.0))]
    pairs.append((root_of_squares([sent, sent]), root_of_squares([x, x])))
    for found, wanted in pairs:
        np.testing.assert_allclose(found.cpu().numpy(), wanted, rtol=1e-14)


def test_edges_out_of_range_are_refused_there_too() -> None:
    where = second_device.register()
    with pytest.raises(GraphError, match="expected ids from 0 to 1"):
        graph_of(torch.tensor([[0], [2]]).to(where), 2)


# --- plans --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data() -> Data:
    return virgo.data.citation_like(num_nodes=150, num_features=200, seed=0)


@pytest.fixture
def copies() -> list[tuple[int, ...]]:
    second_device.to_host.clear()
    return second_device.to_host


@pytest.mark.parametrize(
    "method",
    [
        "auto",
        "virgo",
        "virgo-backward+mirrored",
        "virgo-backward+spectral",
        "virgo-backward+released",
        "virgo-forward+measured",
        "virgo-forward+rms",
    ],
)
@pytest.mark.parametrize("kind", [GCN, GraphSAGE, GIN])
def test_a_plan_on_the_device_is_that_of_the_cpu(
    data: Data, kind: type[torch.nn.Module], method: str, copies: list[tuple[int, ...]]
) -> None:
    where = second_device.register()
    models = [_same(kind), _same(kind).to(where)]
    here = virgo.plan(models[0], data, method, seed=3)
    moved = data.clone().to(where)
    copies.clear()
    there = virgo.plan(models[1], moved, method, seed=3)
    assert not any(shape and shape[0] == data.num_nodes for shape in copies), copies
    assert there.choice is None or there.choice["chosen"] == here.choice["chosen"]  # type: ignore[index]
    assert there.notes == here.notes
    for a, b in zip(here.rows, there.rows, strict=True):
        assert a.variance == pytest.approx(b.variance, rel=1e-9)
    for model in models:
        here.apply_(model)
    for p, q in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(p, q.cpu())  # one plan, the same bits wherever it is drawn


def _same(kind: type[torch.nn.Module]) -> torch.nn.Module:
    torch.manual_seed(0)
    return kind(200, 16, 7, 7)  # type: ignore[call-arg]


def test_a_report_on_the_device_is_that_of_the_cpu(
    data: Data, copies: list[tuple[int, ...]]
) -> None:
    where = second_device.register()
    here = virgo.check(_same(GCN), data)
    model, moved = _same(GCN).to(where), data.clone().to(where)
    copies.clear()
    there = virgo.check(model, moved)
    assert not any(shape and shape[0] == data.num_nodes for shape in copies), copies
    assert there.verdict == here.verdict
    assert str(there) == str(here)


@pytest.mark.parametrize(
    "conv", [pyg.ChebConv, pyg.TAGConv, pyg.SSGConv, pyg.ARMAConv, pyg.ClusterGCNConv, "rgcn"]
)
def test_layers_of_several_operators(data: Data, conv: Any) -> None:
    where = second_device.register()
    arguments: tuple[Any, ...] = {pyg.ChebConv: (3,), pyg.SSGConv: (0.2,), "rgcn": (4,)}.get(
        conv, ()
    )
    kind = pyg.RGCNConv if conv == "rgcn" else conv
    options = {"num_bases": 2} if conv == "rgcn" else {}
    torch.manual_seed(0)
    model = virgo_sequence(kind(200, 7, *arguments, **options), conv == "rgcn")
    graph = data.clone()
    graph.edge_type = torch.arange(graph.num_edges) % 4
    here = virgo.plan(model, graph, "virgo-forward")
    there = virgo.plan(model.to(where), graph.clone().to(where), "virgo-forward")
    for a, b in zip(here.rows, there.rows, strict=True):
        assert a.variance == pytest.approx(b.variance, rel=1e-9)


def virgo_sequence(layer: torch.nn.Module, relational: bool) -> torch.nn.Module:
    from torch_geometric.nn import Sequential

    edges = "edge_index, edge_type" if relational else "edge_index"
    model: torch.nn.Module = Sequential(f"x, {edges}", [(layer, f"x, {edges} -> x")])
    return model


def test_attention_is_measured_on_the_device(data: Data) -> None:
    where = second_device.register()
    model = GAT(200, 16, 4, 7).to(where)
    plan = virgo.init_(model, data.clone().to(where))
    assert plan.choice is not None
    assert all(p.device == where for p in model.parameters())


def test_a_large_graph_is_sampled_from_the_device(
    data: Data, monkeypatch: pytest.MonkeyPatch, copies: list[tuple[int, ...]]
) -> None:
    monkeypatch.setattr("virgo.auto.MANY_EDGES", 100)
    monkeypatch.setattr("virgo.auto.SAMPLE_NODES", 50)
    where = second_device.register()
    moved = data.clone().to(where)
    copies.clear()
    plan = virgo.plan(_same(GCN).to(where), moved)
    assert "tried on a connected sample of 50 nodes" in plan.notes
    assert all(shape == (2, data.num_edges) or data.num_nodes not in shape for shape in copies)


def test_features_there_and_edges_here(data: Data) -> None:
    """As scripts keep them that sample neighbours on the CPU from features on a GPU."""
    where = second_device.register()
    mixed = data.clone()
    mixed.x = mixed.x.to(where)
    here = virgo.plan(_same(GCN), data, "virgo")
    assert virgo.plan(_same(GCN).to(where), mixed, "virgo").variances == pytest.approx(
        here.variances, rel=1e-9
    )


class Centred(torch.nn.Module):
    """Attention, a buffer and a head, as users write models."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((200,), 0.01))
        self.first, self.second = pyg.GATConv(200, 8, heads=2), pyg.GATConv(16, 16)
        self.head = torch.nn.Linear(16, 7)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.first(x - self.mean, edge_index).relu()
        return self.head(self.second(h, edge_index).relu())  # type: ignore[no-any-return]


def test_a_model_of_ones_own_is_that_of_the_cpu(data: Data, copies: list[tuple[int, ...]]) -> None:
    where = second_device.register()
    torch.manual_seed(0)
    here, there = Centred(), Centred().to(where)
    there.load_state_dict(here.state_dict())
    moved = data.clone().to(where)
    copies.clear()
    plans = virgo.init_(here, data), virgo.init_(there, moved)
    assert not any(shape and shape[0] == data.num_nodes for shape in copies), copies
    assert plans[1].variances == pytest.approx(plans[0].variances, rel=1e-5)
    assert str(virgo.check(there, moved).verdict) == str(virgo.check(here, data).verdict)


def test_a_heterogeneous_model_is_that_of_the_cpu() -> None:
    where = second_device.register()
    graph = HeteroData()
    graph["a"].x, graph["b"].x = torch.randn(30, 8), torch.randn(40, 8)
    there = torch.stack([torch.arange(90) % 30, torch.arange(90) % 40])
    graph["a", "to", "b"].edge_index, graph["b", "back", "a"].edge_index = there, there.flip(0)
    torch.manual_seed(0)
    try:
        model = to_hetero(GraphSAGE(8, 16, 3, 4), graph.metadata(), aggr="sum")
    except AttributeError:  # PyG 2.6.0 reads typing's names from torch.fx, where they no longer are
        pytest.skip("to_hetero of this PyG does not run with this torch")
    second = copy.deepcopy(model).to(where)
    plans = virgo.init_(model, graph), virgo.init_(second, copy.deepcopy(graph).to(where))
    assert plans[1].variances == pytest.approx(plans[0].variances, rel=1e-5)
    assert all(p.device == where for p in second.parameters())


def test_data_follow_the_model(data: Data) -> None:
    """Either may be on the device: one pass is on few nodes, the rest where the model is."""
    where = second_device.register()
    wanted = virgo.plan(_same(GCN), data, "virgo-backward").variances
    moved = data.clone().to(where)
    for model, graph in ((_same(GCN), moved), (_same(GCN).to(where), data)):
        found = virgo.plan(model, graph, "virgo-backward").variances
        assert found == pytest.approx(wanted, rel=1e-9)
        virgo.check(model, graph)
        virgo.init_(model, graph)


@pytest.mark.parametrize("verb", [virgo.init_, virgo.plan, virgo.check, virgo.measure])
def test_a_model_on_two_devices_is_named_and_the_advice_works(
    data: Data, verb: Callable[..., object]
) -> None:
    where = second_device.register()
    model, moved = Centred().to(where), data.clone().to(where)
    model.mean = model.mean.cpu()
    words = rf"got first\S+ on {second_device.NAME}:0 and mean on cpu\. Call model\.to\("
    with pytest.raises(LayerError, match=words) as caught:
        verb(model, moved)
    model.to(re.findall(r"model\.to\('(.+)'\)", str(caught.value))[0])
    verb(model, moved)


# --- fake CUDA -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [GCN, GraphSAGE, GIN, GAT])
def test_plan_init_and_check_on_fake_cuda(data: Data, kind: type[torch.nn.Module]) -> None:
    """FakeTensorMode raises where two devices meet; numbers are stubbed, so only names count."""
    here = virgo.plan(_same(kind), data, "virgo-backward" if kind is not GAT else "auto")
    with fake_cuda.fake_cuda() as mode:
        model, there = _same(kind).to(fake_cuda.CUDA), data.clone().to(fake_cuda.CUDA)
        for method in ("virgo", "virgo-backward+mirrored", "virgo-forward+measured"):
            if kind is not GAT or method.endswith("measured"):
                plan = virgo.plan(model, there, method)
                assert [row.weight for row in plan.rows] == [row.weight for row in here.rows]
        virgo.init_(model, there)
        virgo.init_(model, there, "virgo-backward+measured")
        virgo.check(model, there)
        assert all(p.is_cuda for p in model.parameters())
    assert not any(shape and shape[0] == data.num_nodes for shape in mode.to_host), mode.to_host


def test_fake_cuda_refuses_what_cuda_refuses() -> None:
    """Negative control of the test above."""
    with fake_cuda.fake_cuda() as mode:
        there = torch.ones(5).to(fake_cuda.CUDA)
        with pytest.raises(RuntimeError, match="on the same device"):
            _ = there + torch.ones(5)
        with pytest.raises(RuntimeError, match="not supported for tensor subclasses"):
            there.numpy()
        assert not mode.to_host
        assert there.cpu().device.type == "cpu"
        assert mode.to_host == [(5,)]
        assert mode.waiting == [(5,)]
        devices.moved(torch.ones(3), fake_cuda.CUDA)
        assert mode.overlapping == [(3,)]
    with pytest.raises((RuntimeError, AssertionError)):
        torch.ones(5).to(fake_cuda.CUDA)


# --- devices without float64 --------------------------------------------------------------------


def test_without_float64_sums_are_compensated(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    where = second_device.register()
    wanted = {m: virgo.plan(_same(GCN), data, m).variances for m in ("virgo", "virgo+mirrored")}
    monkeypatch.setattr(devices, "_NARROW", ("mps", second_device.NAME))
    moved, model = data.clone().to(where), _same(GCN).to(where)
    assert vector_of(moved.x).dtype == torch.float32
    for method, variances in wanted.items():
        found = virgo.plan(model, moved, method).variances
        assert found == pytest.approx(variances, rel=1e-5)  # a hop rounds each number to float32
    virgo.init_(model, moved)
    virgo.check(model, moved)


@pytest.mark.parametrize("size", [1, 2, 3, 1000, 4097])
def test_a_compensated_sum_is_that_of_float64(size: int) -> None:
    draw = torch.Generator().manual_seed(size)
    values = torch.randn(size, generator=draw) * 10 ** (8 * torch.rand(size, generator=draw))
    exact = float(values.double().sum())
    tolerance = float(values.abs().sum()) * 1e-12
    assert devices.compensated_sum(values) == pytest.approx(exact, abs=tolerance)
    if size == 4097:  # which the plain sum is far from
        assert abs(float(values.cumsum(0)[-1]) - exact) > 100 * tolerance


# --- choosing -----------------------------------------------------------------------------------


def test_a_device_that_is_not_here_is_one_clear_error() -> None:
    for name in ("cuda", "cuda:1", "mps"):
        if not devices.count_devices(name.partition(":")[0]):
            with pytest.raises(OptionError, match="device: expected a device that is here"):
                devices.choose_device(name)
    with pytest.raises(OptionError, match="expected one of auto, cpu, cuda, mps or cuda:N"):
        devices.choose_device("gpu")


def test_the_meta_device_is_no_place_to_compute() -> None:
    """No other PyTorch would help, so none is advised."""
    with pytest.raises(OptionError) as caught:
        devices.choose_device("meta")
    assert str(caught.value) == (
        "device: expected a device that computes, got 'meta', on which tensors have shapes but no "
        "numbers. Use --device auto or cpu."
    )


def test_auto_takes_the_first_kind_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, chosen in (((), "cpu"), (("mps",), "mps"), (("cuda", "mps"), "cuda")):
        monkeypatch.setattr(devices, "count_devices", lambda kind, there=there: kind in there)
        assert devices.choose_device("auto").type == chosen
        assert devices.choose_device(None).type == chosen
    monkeypatch.setattr(devices, "count_devices", lambda kind: 2)
    assert devices.choose_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(OptionError, match="expected cuda:0 to cuda:1, got 'cuda:2'"):
        devices.choose_device("cuda:2")

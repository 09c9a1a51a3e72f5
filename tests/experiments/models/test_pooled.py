"""Networks for whole graphs: against loops over graphs, nodes and edges, and what init_ plans."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

import virgo
from virgo.experiments.models import from_recipe, molecules
from virgo.experiments.models.molecules import MoleculeGCNConv, MoleculeGINConv

BONDS = (5, 6, 2)
SMALL = {"hidden_channels": 8, "num_layers": 3}


def build_pooled(name: str, in_channels: int, out_channels: int, config: dict[str, Any]) -> Any:
    sizes = {"in_channels": in_channels, "out_channels": out_channels}
    return from_recipe(name, {"form": "pooled", **sizes}, config)


def build_molecules(name: str, out_channels: int, config: dict[str, Any]) -> Any:
    return from_recipe(name, {"form": "molecule", "out_channels": out_channels}, config)


def social(seed: int = 0, graphs: int = 6, width: int = 9) -> list[Data]:
    """Undirected graphs, one of a single node and one without edges among them."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for number in range(graphs):
        n = 1 if number == 1 else int(torch.randint(3, width, (1,), generator=generator))
        upper = torch.rand(n, n, generator=generator).triu(1) > 0.5
        edges = torch.zeros(2, 0, dtype=torch.long) if number == 2 else upper.nonzero().t()
        edges = torch.cat([edges, edges.flip(0)], 1)
        x = torch.zeros(n, width).scatter_(1, torch.bincount(edges[0], minlength=n).view(-1, 1), 1)
        made.append(Data(x=x, edge_index=edges, y=torch.tensor([number % 2])))
    return made


def atoms(seed: int = 0, graphs: int = 5) -> list[Data]:
    """Molecules in OGB's integers, one of a single atom among them."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for number in range(graphs):
        n = 1 if number == 1 else 3 + number
        chain = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
        edges = torch.cat([chain, chain.flip(0)], 1)
        x = torch.randint(0, 2, (n, 9), generator=generator)
        bond = torch.stack([torch.randint(0, s, (n - 1,), generator=generator) for s in BONDS], 1)
        made.append(
            Data(
                x=x,
                edge_index=edges,
                edge_attr=torch.cat([bond, bond]),
                y=torch.tensor([[number % 2]]),
            )
        )
    return made


def shaken(model: nn.Module) -> nn.Module:
    """Norms, biases and eps as after some training, so that a test sees them."""
    generator = torch.Generator().manual_seed(5)
    for name, value in model.state_dict().items():
        if "running_var" in name or name.endswith(("norms.0.weight", "norms.1.weight")):
            value.copy_(0.5 + torch.rand(value.shape, generator=generator))
        elif value.is_floating_point() and value.dim() == 1:
            value.copy_(0.2 * torch.randn(value.shape, generator=generator))
    return model


def form(name: str) -> tuple[Any, list[Data]]:
    """A small network of either form by its name, and graphs for it."""
    torch.manual_seed(0)
    if name.startswith("molecule"):
        return build_molecules(name.split("-")[1], 3, SMALL), atoms()
    return build_pooled(name, 9, 2, SMALL), social()


NAMES = ("gcn", "gin", "molecule-gcn", "molecule-gin")


def called(model: nn.Module, data: Any, **more: Any) -> Tensor:
    bonds = [data.edge_attr] if isinstance(model, molecules.MoleculeNetwork) else []
    return model(data.x, data.edge_index, *bonds, data.batch, **more)


# --- against loops ------------------------------------------------------------------------------


def norm(module: Any, h: Tensor) -> Tensor:
    return (h - module.running_mean) / (module.running_var + module.eps).sqrt() * (
        module.weight
    ) + module.bias


def slow_conv(conv: Any, h: Tensor, graph: Data) -> Tensor:
    """One layer, node by node and edge by edge."""
    n, edges = h.size(0), graph.edge_index.t().tolist()
    degree = [1 + sum(s == i for s, _ in edges) for i in range(n)]
    is_molecule = isinstance(conv, (MoleculeGCNConv, MoleculeGINConv))
    bond = [
        sum(t.weight[v] for t, v in zip(conv.bond_encoder.bond_embedding_list, row, strict=True))
        for row in (graph.edge_attr.tolist() if is_molecule else [])
    ] or [torch.zeros(h.size(1))] * len(edges)
    rows = []
    if hasattr(conv, "mlp") or hasattr(conv, "nn"):
        inner = conv.mlp if is_molecule else conv.nn
        for i in range(n):
            total = (1 + float(conv.eps)) * h[i]
            for (s, t), e in zip(edges, bond, strict=True):
                if t == i:
                    total = total + ((h[s] + e).relu() if is_molecule else h[s])
            hidden = norm(inner[1], inner[0].weight @ total + inner[0].bias).relu()
            rows.append(inner[3].weight @ hidden + inner[3].bias)
        return torch.stack(rows)
    linear = conv.linear if is_molecule else conv.lin
    z = h @ linear.weight.t() + (linear.bias if is_molecule else 0)
    for i in range(n):
        own = (z[i] + conv.root_emb.weight[0]).relu() if is_molecule else z[i]
        total = own / degree[i]
        for (s, t), e in zip(edges, bond, strict=True):
            if t == i:
                message = (z[s] + e).relu() if is_molecule else z[s]
                total = total + message / math.sqrt(degree[s] * degree[i])
        rows.append(total if is_molecule else total + conv.bias)
    return torch.stack(rows)


def slow(model: Any, graph: Data) -> Tensor:
    h = graph.x
    if isinstance(model, molecules.MoleculeNetwork):
        tables = model.atom_encoder.atom_embedding_list
        h = torch.stack(
            [sum(t.weight[v] for t, v in zip(tables, row, strict=True)) for row in graph.x.tolist()]
        )
    for layer, conv in enumerate(model.convs):
        h = norm(model.norms[layer], slow_conv(conv, h, graph))
        h = h.relu() if layer < len(model.convs) - 1 else h
    return model.head.weight @ h.mean(0) + model.head.bias


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_its_graphs_one_by_one(name: str) -> None:
    model, graphs = form(name)
    shaken(model).eval()
    with torch.no_grad():
        together = called(model, Batch.from_data_list(graphs))
        alone = torch.stack([slow(model, graph) for graph in graphs])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    assert together.std(0).min() > 1e-4  # graphs differ


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_graph_gets_the_heads_bias(name: str) -> None:
    model, graphs = form(name)
    empty = graphs[0].clone()
    empty.x, empty.edge_index = empty.x[:0], empty.edge_index[:, :0]
    if "edge_attr" in empty:
        empty.edge_attr = empty.edge_attr[:0]
    data = Batch.from_data_list([graphs[0], empty])
    output = called(model.eval(), data, num_graphs=2)
    torch.testing.assert_close(output[1], model.head.bias)


def test_dropout_falls_in_every_layer_and_only_in_training() -> None:
    for name in NAMES:
        model, graphs = form(name)
        data = Batch.from_data_list(graphs)
        model.dropout = 0.5
        asked: list[bool] = []

        def drop(h: Tensor, relu: bool, asked: list[bool] = asked) -> Tensor:
            asked.append(relu)
            return h

        convs: Any = model.convs
        rest = (convs[0].kinds_of(data.edge_attr),) if "molecule" in name else ()
        start = model.atom_encoder(data.x) if rest else data.x

        def convolve(layer: int, h: Tensor, convs: Any = convs, rest: Any = rest) -> Tensor:
            return convs[layer](h, data.edge_index, *rest)  # noqa: B023

        model.run(start, convolve, data.batch, drop=drop)
        assert asked == [True, True, False]  # the last layer keeps its signs
        assert not torch.equal(called(model.train(), data), called(model, data))
        assert torch.equal(called(model.eval(), data), called(model, data))


# --- initialisation -----------------------------------------------------------------------------

WEIGHTS = {
    "gcn": ["lin.weight"],
    "gin": ["nn.0.weight", "nn.3.weight"],
    "molecule-gcn": ["linear.weight"],
    "molecule-gin": ["mlp.0.weight", "mlp.3.weight"],
}
BIASES = {
    "gcn": ["bias"],
    "gin": ["nn.0.bias", "nn.3.bias"],
    "molecule-gcn": ["linear.bias"],
    "molecule-gin": ["mlp.0.bias", "mlp.3.bias"],
}


@pytest.mark.parametrize("method", ["xavier", "virgo-forward", "virgo-backward"])
@pytest.mark.parametrize("name", NAMES)
def test_init_plans_every_message_passing_weight_and_nothing_else(name: str, method: str) -> None:
    model, graphs = form(name)
    shaken(model)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    plan = virgo.init_(model, graphs, method, num_classes=False)
    layers = range(3)
    planned = {f"convs.{layer}.{weight}" for layer in layers for weight in WEIGHTS[name]}
    zeroed = {f"convs.{layer}.{bias}" for layer in layers for bias in BIASES[name]}
    assert set(plan.variances) == planned
    assert set(plan.biases) == zeroed
    assert plan.graph["sampled"] == {"graphs": len(graphs), "of": len(graphs), "seed": None}
    for key, value in model.state_dict().items():
        if key in zeroed:
            assert not value.any()
        else:
            assert torch.equal(value, before[key]) == (key not in planned), key


def operator(name: str, data: Any) -> Tensor:
    a = torch.zeros(data.num_nodes, data.num_nodes, dtype=torch.float64)
    a.index_put_((data.edge_index[1], data.edge_index[0]), torch.ones(()).double(), accumulate=True)
    a += torch.eye(data.num_nodes)
    if name.endswith("gin"):
        return a
    root = a.sum(1).rsqrt()
    return root[:, None] * a * root


@pytest.mark.parametrize("name", NAMES)
def test_the_plan_is_the_theorems_on_the_merged_graph(name: str) -> None:
    """One-hot rows have one mean and embedded atoms amplitude 1: both start with equal nodes."""
    model, graphs = form(name)
    data = Batch.from_data_list(graphs)
    p, ones = operator(name, data), torch.ones(data.num_nodes, dtype=torch.float64)
    norms = [float((torch.linalg.matrix_power(p, k) @ ones).square().sum()) for k in range(4)]
    ratio = [norms[k] / norms[k + 1] for k in range(3)]
    forward = virgo.plan(model, graphs, "virgo-forward", num_classes=False)
    backward = virgo.plan(model, graphs, "virgo-backward", num_classes=False)
    for layer in range(3):
        first, *rest = (f"convs.{layer}.{weight}" for weight in WEIGHTS[name])
        fan_out, fan_in = model.get_parameter(first).shape
        assert forward.variances[first] == pytest.approx(2 / fan_in * ratio[layer])
        assert backward.variances[first] == pytest.approx(2 / fan_out * ratio[2 - layer])
        for inner in rest:
            fan_out, fan_in = model.get_parameter(inner).shape
            assert forward.variances[inner] == pytest.approx(2 / fan_in)
            assert backward.variances[inner] == pytest.approx(2 / fan_out)


@pytest.mark.parametrize("name", NAMES)
def test_a_measured_plan_evens_out_what_was_uneven(name: str) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_channels": 64, "num_layers": 4}
    if name.startswith("molecule"):
        model, graphs = build_molecules(name.split("-")[1], 3, sizes), atoms(graphs=12)
    else:
        model, graphs = build_pooled(name, 9, 2, sizes), social(graphs=12)
    plan = virgo.init_(model, graphs, "virgo-forward", estimate="measured", num_classes=False)
    assert plan.measured["achieved"]["forward"]["range"] < 1.1
    virgo.init_(model, graphs, "lecun", num_classes=False)
    uneven = virgo.measure(model, graphs, loss=lambda output, data: output.square().sum()).forward
    assert max(uneven) / min(uneven) > 2


# --- mistakes -----------------------------------------------------------------------------------


def test_bonds_beyond_ogbs_are_an_error() -> None:
    """They would otherwise be looked up as bonds of another kind."""
    model, graphs = form("molecule-gin")
    wrong = Batch.from_data_list(graphs)
    wrong.edge_attr = wrong.edge_attr.clone()
    wrong.edge_attr[0, 2] = 2
    with pytest.raises(virgo.GraphError, match=r"data.edge_attr: expected integers below \[5, 6"):
        called(model, wrong)
    wrong.edge_attr = wrong.edge_attr[:, :2]
    with pytest.raises(virgo.GraphError, match=r"expected 3 integers per bond, got the shape"):
        called(model, wrong)


def test_every_kind_of_bond_has_its_own_number() -> None:
    conv = MoleculeGCNConv(4)
    every = torch.cartesian_prod(*[torch.arange(size) for size in BONDS])
    assert conv.kinds_of(every).tolist() == list(range(60))
    torch.testing.assert_close(conv.kinds, every)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_channels": 0}, "hidden_channels: expected a whole number"),
        ({"num_layers": 2.5}, "num_layers: expected a whole number"),
        ({"dropout": 1.0}, "dropout: expected at least 0 and below 1"),
    ],
    ids=["width", "depth", "dropout"],
)
def test_sizes_that_are_none_are_errors(config: dict[str, Any], message: str) -> None:
    for make in (
        lambda: build_pooled("gcn", 4, 2, config),
        lambda: build_molecules("gin", 1, config),
    ):
        with pytest.raises(virgo.OptionError, match=message):
            make()


def test_unknown_names_are_errors() -> None:
    with pytest.raises(virgo.OptionError, match="expected gcn or gin for graph classification"):
        build_pooled("sage", 4, 2, {})
    with pytest.raises(virgo.OptionError, match="got 'ngnn-gcn'"):
        build_molecules("ngnn-gcn", 1, {})

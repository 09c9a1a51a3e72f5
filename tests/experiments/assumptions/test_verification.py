"""The five assumption tables against explicit enumeration, and what they say on real data."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCN

import virgo
from virgo.errors import GraphError, OptionError
from virgo.experiments.assumptions import observations as stats
from virgo.experiments.assumptions import released
from virgo.experiments.assumptions.observations import ObservedNetwork
from virgo.experiments.assumptions.paper import APPENDIX, printed
from virgo.experiments.assumptions.paths import Paths, Walks, between_pairs
from virgo.experiments.assumptions.tables import PRINTED, AssumptionCell, Verified, refresh
from virgo.experiments.assumptions.verification import LOGITS, NORMALISED, verify
from virgo.graph.operators import Graph, Operator

CHECKOUT = Path(__file__).resolve().parents[3]
# two ways round, a node of its own (5), an edge in one direction only (4 -> 0)
EDGES = torch.tensor([[0, 1, 1, 2, 2, 0, 2, 3, 3, 4, 4], [1, 0, 2, 1, 0, 2, 3, 2, 4, 3, 0]])
NODES, WIDTH = 6, 8


def operator() -> Operator:
    return Graph(EDGES, NODES).gcn()


def dense() -> np.ndarray:
    """The operator as a matrix, column by column."""
    return np.stack([operator()(column) for column in np.eye(NODES)], axis=1)


def all_paths(length: int) -> list[tuple[int, ...]]:
    matrix = dense()
    return [
        walk
        for walk in itertools.product(range(NODES), repeat=length + 1)
        if all(matrix[a, b] != 0 for a, b in itertools.pairwise(walk))
    ]


@pytest.fixture(scope="module")
def network() -> ObservedNetwork:
    rng = np.random.default_rng(3)
    x = rng.random((NODES, 5)) * (rng.random((NODES, 5)) < 0.7)
    weights = [rng.normal(size=(5, WIDTH)), *rng.normal(size=(2, WIDTH, WIDTH))]
    return ObservedNetwork.run(x, weights, operator())


def enumerated(length: int) -> Paths:
    walks = all_paths(length)
    matrix = dense()
    scale = [math.prod(matrix[a, b] for a, b in itertools.pairwise(walk)) for walk in walks]
    return Paths(np.array(walks), np.array(scale))


def slow_message(
    network: ObservedNetwork, walk: tuple[int, ...]
) -> tuple[list[int], list[float], float]:
    """delta_p, z_p and d_p of one path by the formula, number by number."""
    length, matrix = len(walk) - 1, dense()
    layers, h = [], network.x
    for weight in network.weights:
        hat = matrix @ h @ weight
        layers.append(hat)
        h = np.where(hat > 0, hat, 0)
    delta = [
        math.prod(int(layers[length - k - 1][walk[k], t] > 0) for k in range(length))
        for t in range(WIDTH)
    ]
    z = network.x[walk[-1]]
    for weight in network.weights[:length]:
        z = np.array([sum(z[a] * weight[a, b] for a in range(len(z))) for b in range(WIDTH)])
    d = math.prod(matrix[walk[k], walk[k + 1]] for k in range(length))
    return delta, list(z), d


def pearson(a: list[float], b: list[float]) -> float:
    if len(set(a)) == 1 or len(set(b)) == 1:
        return math.nan
    return float(np.corrcoef(a, b)[0, 1])


@pytest.mark.parametrize("length", [1, 2, 3])
def test_every_statistic_agrees_with_explicit_products(
    network: ObservedNetwork, length: int
) -> None:
    walks = all_paths(length)[:60]
    paths = enumerated(length)[slice(60)]
    seen = stats.observe(network, paths, np.arange(WIDTH), np.random.default_rng(0))
    parts = [slow_message(network, walk) for walk in walks]
    messages = [[o * d * v for o, v in zip(delta, z, strict=True)] for delta, z, d in parts]
    half = WIDTH // 2
    pairs = list(itertools.combinations(range(len(walks)), 2))
    expected = {
        ("A1", PRINTED): [pearson(messages[p], messages[q]) for p, q in pairs],
        ("A1", stats.NO_DELTA): [pearson(parts[p][1], parts[q][1]) for p, q in pairs],
        ("A2", PRINTED): [pearson(messages[p][:half], messages[q][half:]) for p, q in pairs],
        ("A3", PRINTED): [pearson(delta, z) for delta, z, _ in parts],
        ("A3", stats.SQUARES): [pearson(delta, [v * v for v in z]) for delta, z, _ in parts],
        ("A4", PRINTED): [o for delta, _, _ in parts for o in delta],
    }
    for key, values in expected.items():
        np.testing.assert_allclose(seen[key], values, rtol=0, atol=1e-9, err_msg=str(key))
    assert np.isnan(seen["A2", PRINTED]).any() or length == 1  # shut paths have no correlation
    for table in ("A2", "A3"):
        np.testing.assert_array_equal(seen[table, stats.ABSOLUTE], np.abs(seen[table, PRINTED]))


@pytest.mark.parametrize("length", [1, 2, 3])
def test_paths_add_up_to_the_forward_pass(network: ObservedNetwork, length: int) -> None:
    # with masks only for one layer: beyond, the paper multiplies masks of the same neuron t at all
    # layers, where the network has those of the neurons that a weight path passes
    paths = enumerated(length)
    arriving = np.zeros((NODES, WIDTH))
    np.add.at(arriving, paths.nodes[:, 0], paths.scale[:, None] * network.source(paths))
    matrix = np.linalg.matrix_power(dense(), length)
    np.testing.assert_allclose(arriving, matrix @ network.linear[length - 1], atol=1e-9)
    if length == 1:
        opened = np.zeros((NODES, WIDTH))
        np.add.at(opened, paths.nodes[:, 0], network.message(paths))
        np.testing.assert_allclose(opened, np.maximum(network.before[0], 0), atol=1e-9)


def test_a_weight_path_is_one_product_of_the_sum(network: ObservedNetwork) -> None:
    paths = enumerated(2)
    rows = network.weight_path(paths, np.random.default_rng(0))
    first, second, _ = network.weights
    for row, source in zip(rows, paths.nodes[:, -1], strict=True):
        there = np.flatnonzero(network.x[source])
        candidates = [
            network.x[source, a] * first[a, b] * second[b] for a in there for b in range(WIDTH)
        ] or [np.zeros(WIDTH)]
        assert min(np.abs(row - each).max() for each in candidates) < 1e-12


@pytest.mark.parametrize("length", [1, 2, 3])
def test_counts_and_full_samples_are_the_enumeration(length: int) -> None:
    walks, every = Walks.over(operator()), enumerated(length)
    assert int(walks.counts(length).sum()) == len(every)
    taken = walks.sample(length, len(every), np.random.default_rng(0))
    assert set(map(tuple, taken.nodes.tolist())) == set(all_paths(length))
    scales = dict(zip(map(tuple, every.nodes.tolist()), every.scale, strict=True))
    for nodes, scale in zip(taken.nodes.tolist(), taken.scale, strict=True):
        assert scale == pytest.approx(scales[tuple(nodes)], rel=1e-12)


def assert_uniform(counts: Counter[object], outcomes: int, draws: int) -> None:
    """Pearson's chi-square below mean + 5 sd: mean k-1, variance 2(k-1)."""
    assert len(counts) == outcomes
    share = draws / outcomes
    chi = sum((n - share) ** 2 / share for n in counts.values())
    assert chi < outcomes - 1 + 5 * math.sqrt(2 * (outcomes - 1))


def test_every_path_is_equally_likely() -> None:
    walks, rng = Walks.over(operator()), np.random.default_rng(0)
    for length in (1, 2, 3):
        drawn = np.concatenate([walks.sample_few(length, rng).nodes for _ in range(300)])
        assert_uniform(Counter(map(tuple, drawn.tolist())), len(all_paths(length)), len(drawn))
    # a naive walk (uniform end, uniform neighbour) is not uniform, and this test would say so
    matrix = dense() != 0
    naive: Counter[object] = Counter()
    for _ in range(5000):
        end = rng.integers(NODES)
        naive[int(end), int(rng.choice(np.flatnonzero(matrix[end])))] += 1
    with pytest.raises(AssertionError):
        assert_uniform(naive, len(all_paths(1)), 5000)


def test_samples_without_replacement_hold_every_path_equally_often() -> None:
    walks, rng, total = Walks.over(operator()), np.random.default_rng(1), len(all_paths(2))
    counts: Counter[tuple[int, ...]] = Counter()
    rounds, number = 1500, total // 2
    for _ in range(rounds):
        nodes = list(map(tuple, walks.sample(2, number, rng).nodes.tolist()))
        assert len(set(nodes)) == number
        counts.update(nodes)
    p = number / total
    bound = 5 * math.sqrt(rounds * p * (1 - p))
    assert all(abs(counts[walk] - rounds * p) < bound for walk in all_paths(2))


def test_walks_from_a_node_and_against_the_edges() -> None:
    walks, rng = Walks.over(operator()), np.random.default_rng(2)
    drawn = walks.sample_from(np.full(9000, 2), 2, rng).nodes
    mine = [walk for walk in all_paths(2) if walk[0] == 2]
    assert_uniform(Counter(map(tuple, drawn.tolist())), len(mine), 9000)
    drawn = walks.T.sample_from(np.full(9000, 2), 2, rng).reversed.nodes
    mine = [walk for walk in all_paths(2) if walk[-1] == 2]
    assert_uniform(Counter(map(tuple, drawn.tolist())), len(mine), 9000)


def test_the_papers_sample_takes_uniform_pairs_with_all_their_paths() -> None:
    walks, rng = Walks.over(operator()), np.random.default_rng(3)
    by_pair: dict[tuple[int, int], set[tuple[int, ...]]] = {}
    for walk in all_paths(3):
        by_pair.setdefault((walk[0], walk[-1]), set()).add(walk)
    for (end, start), members in by_pair.items():
        found = walks.between(end, start, 3, 1000, rng).nodes.tolist()
        assert set(map(tuple, found)) == members
        assert len(found) == len(members) == walks.number_between(end, start, 3)
        assert len(walks.between(end, start, 3, 1, rng)) == 1
    firsts = Counter(
        (int(nodes[0]), int(nodes[-1]))
        for nodes in (between_pairs(walks, 3, 1, rng).nodes[0] for _ in range(1000))
    )
    assert_uniform(Counter(dict(firsts)), len(by_pair), 1000)
    every = between_pairs(walks, 3, len(all_paths(3)), rng).nodes.tolist()
    assert set(map(tuple, every)) == set(all_paths(3))


def test_propagation_is_the_operator() -> None:
    weights = torch.rand(EDGES.size(1), generator=torch.Generator().manual_seed(0)) + 0.1
    for graph in (Graph(EDGES, NODES), Graph(EDGES, NODES, weights)):
        seen = Walks.over(graph.gcn()).propagate(np.eye(NODES))
        expected = np.stack([graph.gcn()(column) for column in np.eye(NODES)], axis=1)
        np.testing.assert_allclose(seen, expected, atol=1e-15)


def test_double_edges_are_two_paths() -> None:
    graph = Graph(torch.tensor([[0, 0], [1, 1]]), 2)
    walks = Walks.over(graph.gcn())
    np.testing.assert_allclose(walks.propagate(np.eye(2))[:, 0], graph.gcn()(np.eye(2)[0]))
    assert walks.counts(1).tolist() == [1, 3]
    assert len(walks.sample(1, 4, np.random.default_rng(0))) == 4


def test_one_layer_end_to_end_against_pyg() -> None:
    """All paths and all neurons: the public function equals PyG's layer and numpy's corrcoef."""
    torch.manual_seed(0)
    x = torch.rand(NODES, 5)
    data = Data(x=x, edge_index=EDGES, y=torch.tensor([0, 1, 2, 0, 1, 2]))
    walks = all_paths(1)
    found = verify(data, paths=len(walks), neurons=16, width=16, num_layers=1, seeds=1, seed=5)
    model = GCN(5, 16, 1, out_channels=16, bias=False).double()
    virgo.plan(model, data, "xavier").apply_(model, seed=5)
    with torch.no_grad():
        before = model(x.double(), EDGES).numpy()
        linear = model.convs[0].lin(x.double()).numpy()
    delta = np.array([before[end] > 0 for end, _ in walks], dtype=float)
    source = np.array([linear[start] for _, start in walks])
    table = np.corrcoef(delta * source)[np.triu_indices(len(walks), 1)]
    a3 = [np.corrcoef(d, z)[0, 1] for d, z in zip(delta, source, strict=True)]
    model = GCN(5, 16, 1, out_channels=3, bias=False).double()
    virgo.plan(model, data, "xavier").apply_(model, seed=5)
    with torch.no_grad():
        a5 = model(x.double(), EDGES).softmax(1).numpy()
    cells = [
        found.message_paths.row(),
        found.delta_and_weight_path.row(),
        found.delta.row(),
        found.softmax.row(LOGITS),
    ]
    for row, values in zip(cells, (table, np.array(a3), delta, a5), strict=True):
        cell = row.cells[0]
        assert cell is not None
        assert cell.mean == pytest.approx(values.mean(), abs=1e-9)
        assert cell.sd == pytest.approx(values.std(ddof=1), abs=1e-9)
        assert cell.count == values.size


@pytest.fixture(scope="module")
def generated() -> Data:
    return virgo.data.citation_like(num_nodes=300, num_features=60, seed=0)


def test_same_seed_same_tables_and_no_global_state(generated: Data) -> None:
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    first = verify(generated, paths=40, seeds=2)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002
    assert verify(generated, paths=40, seeds=2).to_json() == first.to_json()
    assert verify(generated, paths=40, seeds=2, seed=1).to_json() != first.to_json()


def test_features_decide_how_alike_paths_are() -> None:
    """Equal features: A1 is 1. Features of random sign: near 0, and A3 stays what it was."""
    ring = torch.arange(40)
    edges = torch.cat([torch.stack([ring, ring.roll(1)]), torch.stack([ring.roll(1), ring])], 1)
    generator = torch.Generator().manual_seed(0)
    options = {"paths": 60, "seeds": 3, "num_classes": 3}
    equal = verify(Data(x=torch.ones(40, 30), edge_index=edges), **options)
    mixed = verify(Data(x=torch.randn(40, 30, generator=generator), edge_index=edges), **options)
    for length in range(3):
        assert equal.message_paths.row().cells[length].mean == pytest.approx(1, abs=1e-12)
        # independent rows of 30 features: cosines of mean 0 and sd 1/sqrt(30), their mean over the
        # 780 pairs of nodes far below; the 1 pair of paths in 40 with one source adds at most 1/40
        assert abs(mixed.message_paths.row().cells[length].mean) < 0.1
        assert mixed.message_paths.row(stats.OUT_OF).cells[length].mean > 0.3


def test_biased_weights_open_every_path(network: ObservedNetwork) -> None:
    positive = ObservedNetwork.run(network.x, [np.abs(w) for w in network.weights], operator())
    live = network.x.any(axis=1)
    for length in (1, 2, 3):
        paths = enumerated(length)
        paths = paths[live[paths.nodes[:, -1]]]
        rng = np.random.default_rng(0)
        opened = stats.observe(positive, paths, np.arange(WIDTH), rng)["A4", PRINTED].mean()
        usual = stats.observe(network, paths, np.arange(WIDTH), rng)["A4", PRINTED].mean()
        assert opened == 1.0
        assert usual < 0.8


def test_chance_is_what_independent_neurons_give() -> None:
    rng = np.random.default_rng(0)
    seen = np.abs(stats.correlation(rng.normal(size=(4000, 100)), rng.normal(size=(4000, 100))))
    mean, sd = stats.absolute_by_chance(100)
    # the half-normal is off by O(1/n); the sample by sd / sqrt(4000)
    assert seen.mean() == pytest.approx(mean, abs=5 * sd / math.sqrt(4000) + mean / 100)
    assert seen.std() == pytest.approx(sd, rel=0.08)


def test_undefined_correlations_are_left_out_and_counted() -> None:
    cell = AssumptionCell.of([np.array([1.0, np.nan, 3.0]), np.array([2.0, 4.0])])
    assert (cell.mean, cell.count, cell.undefined) == (2.5, 4, 1)
    assert cell.between == pytest.approx(math.sqrt(0.5))
    nothing = AssumptionCell.of([np.array([np.nan])])
    assert math.isnan(nothing.mean)
    assert nothing.undefined == 1


def test_text_json_and_markdown_show_the_papers_cells(generated: Data) -> None:
    found = verify(generated, paths=30, seeds=1, name="Cora")
    text = str(found)
    assert "0.83 ± 0.13" in text
    assert "expected" in text
    assert "0.125" in text
    plain = json.loads(found.to_json())
    assert plain["message_paths"]["rows"][0]["paper"] == [[0.83, 0.13], [0.86, 0.12], [0.84, 0.15]]
    assert found.to_markdown() == Verified({"datasets": {"Cora": plain}}).to_markdown()
    assert found.to_markdown().count("### A") == 5
    assert "paper" in str(verify(generated, paths=30, seeds=1))  # a column without entries


def test_the_papers_numbers_are_complete() -> None:
    for table, rows in APPENDIX.items():
        assert set(rows) == {"cora", "citeseer", "pubmed", "arxiv"}
        assert all(len(cells) == (1 if table == "est_1c" else 3) for cells in rows.values())
    assert printed("est_delta", "ogbn-arxiv") == APPENDIX["est_delta"]["arxiv"]


@pytest.mark.parametrize(
    ("change", "options", "error", "match"),
    [
        ({"x": None}, {}, GraphError, "data.x: expected node features, got none"),
        ({"y": None}, {}, GraphError, "data.y: expected class labels.*Pass num_classes="),
        ({"y": torch.rand(300)}, {}, GraphError, "data.y: expected class labels"),
        ({"x": torch.full((300, 3), math.nan)}, {}, GraphError, "expected finite features"),
        ({}, {"paths": 10**6}, GraphError, "expected at least 1000000 message paths of length 1"),
        ({}, {"paths": 1}, OptionError, "paths: expected at least 2, got 1"),
        ({}, {"width": 64}, OptionError, "width: expected at least neurons=100, got 64"),
        ({}, {"num_layers": 0}, OptionError, "num_layers: expected at least 1"),
        ({}, {"num_classes": 1}, OptionError, "num_classes: expected at least 2"),
    ],
)
def test_bad_input(
    generated: Data, change: dict[str, object], options: dict[str, int], error: type, match: str
) -> None:
    data = generated.clone()
    for key, value in change.items():
        data[key] = value
    data.num_nodes = generated.num_nodes
    with pytest.raises(error, match=match):
        verify(data, **options)


def test_other_bad_input() -> None:
    with pytest.raises(GraphError, match="expected one kind of node"):
        verify(HeteroData())
    wide = torch.combinations(torch.arange(80)).T
    data = Data(x=torch.rand(80, 3), edge_index=torch.cat([wide, wide.flip(0)], 1))
    with pytest.raises(OptionError, match="expected paths that 64 bits can count"):
        verify(data, num_layers=12, num_classes=2, seeds=1)
    with pytest.raises(OptionError, match="reading: expected one of"):
        verify(data, num_layers=1, num_classes=2, seeds=1).delta.row("none")


@pytest.mark.data
def test_cora(cora: Data) -> None:
    found = verify(cora, name="cora", width=128, seeds=3)
    for length, cell in enumerate(found.delta.row().cells, start=1):
        assert cell is not None
        # neurons are independent draws, paths of one draw nearly the same: 5 sd of 300 neurons
        p = 0.5**length
        assert abs(cell.mean - p) < 5 * math.sqrt(p * (1 - p) / 300)
    a1 = found.message_paths
    for row in (PRINTED, stats.BETWEEN, stats.INTO):  # what the paper calls 0.83 and more
        assert all(cell is not None and cell.mean < 0.4 for cell in a1.row(row).cells)
    assert all(cell is not None and cell.mean > 0.4 for cell in a1.row(stats.OUT_OF).cells)
    measured = found.delta_and_weight_path.row().cells[0]
    predicted = found.delta_and_weight_path.row(stats.PREDICTED).cells[0]
    assert measured is not None
    assert predicted is not None
    assert abs(measured.mean - predicted.mean) < 5 * 0.1 / math.sqrt(30)  # sd of r at 100 neurons
    for label in (PRINTED, LOGITS, NORMALISED):  # rows of a softmax sum to 1
        cell = found.softmax.row(label).cells[0]
        assert cell is not None
        assert cell.mean == pytest.approx(1 / 7, abs=1e-12)


def test_the_documents_tables_are_those_of_the_results() -> None:
    document = (CHECKOUT / "docs" / "theory_assumptions.md").read_text(encoding="utf-8")
    results = json.loads((CHECKOUT / "results" / "verify.json").read_text(encoding="utf-8"))
    assert refresh(document, results) == document
    assert all(f"<!-- A{n} -->" in document for n in range(1, 6))


# --- as released --------------------------------------------------------------------------------


def test_simple_paths_are_all_of_them_by_their_last_node() -> None:
    walks = Walks.over(operator())
    for start, length in itertools.product(range(NODES), (1, 2, 3)):
        expected = [
            path for path in all_paths(length) if path[0] == start and len(set(path)) == length + 1
        ]
        found = [tuple(path) for path in released.simple_paths(walks, start, length).tolist()]
        assert sorted(found) == sorted(expected)
        assert [path[-1] for path in found] == sorted(path[-1] for path in expected)


def test_a1_as_released_has_the_diagonal_of_ones_in_its_mean() -> None:
    data = virgo.data.citation_like(num_nodes=300, seed=0)
    tables = verify(data, seeds=2)
    whole = tables.message_paths.row(released.IN_ORDER).cells
    # the script prints its list backwards
    assert tables.message_paths.row(released.RELEASED).cells == whole[::-1]
    off = tables.message_paths.row(released.OFF_DIAGONAL).cells
    for first, second in zip(whole, off, strict=True):
        assert first is not None
        assert second is not None
        # nine entries of a 3 x 3 matrix, of which three are ones
        assert first.mean == pytest.approx((6 * second.mean + 3) / 9)
        assert first.low <= first.mean <= first.high
    # the products are of weights picked at random: what is left is the absolute value of noise
    noise, spread = stats.absolute_by_chance(256)
    for cell in tables.delta_and_weight_path.row(released.RELEASED).cells:
        assert cell is not None
        assert abs(cell.mean - noise) < spread


def test_delta_as_released_reads_each_layer_at_its_node() -> None:
    before = (np.array([[1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]]), np.array([[1.0, 1.0]] * 3))
    network = ObservedNetwork(np.zeros((3, 1)), (), before, ())
    path = np.array([[0, 1, 2]])
    assert released.delta_of(network, path, 1).tolist() == [[1.0, 1.0]]  # at the second node
    assert released.delta_of(network, path, 2).tolist() == [[1.0, 1.0]]
    assert released.delta_of(network, path, 2, (0, 1)).tolist() == [[1.0, 0.0]]
    assert released.delta_of(network, path, 2, (2, 1)).tolist() == [[0.0, 1.0]]


def test_the_spread_of_a_matrix_is_that_within_its_rows() -> None:
    rows = np.array([[0.0, 2.0], [10.0, 12.0]])
    cell = AssumptionCell.of([rows, rows + 1.0])
    assert cell.sd == pytest.approx(math.sqrt(2.0))  # the rows' distance of 10 does not enter
    assert cell.mean == pytest.approx(6.5)
    assert (cell.low, cell.high) == pytest.approx((6.025, 6.975))  # 2.5 % from 6, 97.5 % to 7
    # a row with an undefined correlation has no spread, and leaves the others theirs
    assert AssumptionCell.of([np.array([[0.0, 2.0], [np.nan, 1.0]])]).sd == cell.sd


def test_a_deep_network_has_no_rows_as_released() -> None:
    tables = verify(virgo.data.citation_like(num_nodes=60, seed=0), num_layers=5, seeds=1)
    assert tables.weight_paths.row(released.RELEASED).cells == (None,) * 5

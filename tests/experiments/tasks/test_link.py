"""Link prediction: encoder, decoder, negatives, ranking and whole runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit import miniatures
from scipy import stats
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.sampler import NodeSamplerInput

import virgo
from virgo.data import Dataset
from virgo.experiments.data.neighbours import NeighborSampler
from virgo.experiments.models.convolutions import operator_entries
from virgo.experiments.models.link import LINK_MODELS, LinkModel, Predictor, build_link, link_loss
from virgo.experiments.tasks import Seeds, Settings, Training, checkpoint
from virgo.experiments.tasks.encoding import Encoding
from virgo.experiments.tasks.fused import Constant
from virgo.experiments.tasks.link import LinkTask, pairs, ranking
from virgo.experiments.tasks.link import batches as link_batches
from virgo.experiments.tasks.link.batches import ClusterBatches, SampledLinkBatches, WholeGraphLinks
from virgo.experiments.tasks.link.negatives import NonEdges, Pairs, Targets, negatives_for

CONFIG = {
    "hidden_channels": 8,
    "num_layers": 2,
    "epochs": 6,
    "patience": None,
    "batch_size": 40,
    "lr": 0.01,
    "dropout": 0.3,
}


def uneven(nodes: int, edges: int, seed: int = 0) -> Tensor:
    """Both directions of random pairs, of which low nodes have many more than high ones."""
    rng = np.random.default_rng(seed)
    ends = (nodes * rng.random((2, edges)) ** 2.5).astype(np.int64)
    ends = ends[:, ends[0] != ends[1]]
    keys = np.unique(np.minimum(*ends) * nodes + np.maximum(*ends))
    low, high = np.divmod(keys, nodes)
    return torch.from_numpy(np.stack([np.r_[low, high], np.r_[high, low]]))


def tiny(name: str = "ogbl-ddi", nodes: int = 40, edges: int = 400, seed: int = 0) -> Dataset:
    """A dataset in the form of one of OGB's; there are three kinds of nodes, and edges in them."""
    rng = np.random.default_rng(seed)
    both = uneven(nodes, 3 * edges, seed)
    both = both[:, (both[0] - both[1]) % 3 == 0]
    once = both[:, : both.size(1) // 2]
    data = Data(edge_index=both, num_nodes=nodes)
    metric = {"ogbl-ddi": "hits@20", "ogbl-collab": "hits@50", "ogbl-citation2": "mrr"}[name]
    if name != "ogbl-ddi":
        data.x = torch.from_numpy(rng.normal(1, 1, (nodes, 5)).astype(np.float32))
        data.x[:, :3] += 3 * torch.eye(3)[torch.arange(nodes) % 3]
    if name == "ogbl-collab":
        once = torch.cat([once, once[:, :9]], 1)  # the same two again
        data.edge_index = torch.cat([once, once.flip(0)], 1)
        data.edge_weight = torch.from_numpy(rng.integers(1, 5, once.size(1))).float().repeat(2)

    def part() -> dict[str, Tensor]:
        shapes: dict[str, tuple[int, ...]]
        if name == "ogbl-citation2":
            shapes = {"source_node": (7,), "target_node": (7,), "target_node_neg": (7, 30)}
        else:
            shapes = {"edge": (30, 2), "edge_neg": (70, 2)}
        return {key: torch.from_numpy(rng.integers(0, nodes, size)) for key, size in shapes.items()}

    train = {"edge": once.t().contiguous()}
    if name == "ogbl-citation2":
        train = {"source_node": once[0], "target_node": once[1]}
    split = {"train": train, "valid": part(), "test": part()}
    return Dataset(f"like:{name}@0.01", "link", data, split, metric, 0, "generated: for a test")


def model_for(task: LinkTask, name: str = "gcn", **change: Any) -> LinkModel:
    model = task.start(name, "xavier", Settings.of(CONFIG | change), Seeds.of(0))
    for parameter in model.parameters():  # biases are zero at the start
        if parameter.dim() == 1:
            torch.nn.init.uniform_(parameter, -0.1, 0.1)
    return model


# --- the model ----------------------------------------------------------------------------------


def test_the_predictor_is_an_mlp_on_the_product() -> None:
    predictor = Predictor(4, 6, num_layers=3).double()
    x, y = torch.randn(2, 5, 4, dtype=torch.double)
    by_hand = x * y
    for number, lin in enumerate(predictor.lins):
        by_hand = by_hand @ lin.weight.t() + lin.bias
        by_hand = by_hand.clamp(min=0) if number < 2 else by_hand
    assert [tuple(lin.weight.shape) for lin in predictor.lins] == [(6, 4), (6, 6), (1, 6)]
    torch.testing.assert_close(predictor(x, y), by_hand[:, 0])
    torch.testing.assert_close(predictor(x, y), predictor(y, x))


def test_the_loss_is_ogbs() -> None:
    positive, negative = torch.randn(2, 50, dtype=torch.double)
    expected = -torch.log(torch.sigmoid(positive)).mean()
    expected -= torch.log(1 - torch.sigmoid(negative)).mean()
    torch.testing.assert_close(link_loss(positive, negative), expected)
    assert math.isfinite(link_loss(torch.tensor([-1e4]), torch.tensor([1e4])).item())


@pytest.mark.parametrize(
    ("ngnn_type", "expected"),
    [("input", [2, 0, 0]), ("hidden", [0, 2, 0]), ("output", [0, 0, 2]), ("all", [2, 2, 2])],
)
@pytest.mark.parametrize("name", ["ngnn-gcn", "ngnn-sage"])
def test_ngnn_layers_are_where_they_belong(name: str, ngnn_type: str, expected: list[int]) -> None:
    config = {"hidden_channels": 8, "num_layers": 3, "ngnn_type": ngnn_type, "num_ngnn_layers": 2}
    model = build_link(name, 0, 30, config).eval()
    assert [len(inserted) for inserted in model.encoder.inserted] == expected
    # By hand: convolution, then each inserted layer behind a ReLU, a ReLU between layers.
    edges = uneven(30, 100)
    assert model.embedding is not None
    h = model.embedding.weight
    for layer, conv in enumerate(model.encoder.convs):
        h = conv(h.relu() if layer else h, edges)
        for linear in model.encoder.inserted[layer]:
            h = h.relu() @ linear.weight.t() + linear.bias
    torch.testing.assert_close(model(None, edges), h)


def test_a_model_is_sized_by_the_graph() -> None:
    config = {"hidden_channels": 8, "num_layers": 3}
    learned, given = build_link("gcn", 0, 30, config), build_link("sage", 5, 30, config)
    assert learned.embedding is not None
    assert learned.embedding.weight.shape == (30, 8)
    assert given.embedding is None
    assert len(given.predictor.lins) == 3
    with pytest.raises(virgo.OptionError, match="x: expected features"):
        given(None, uneven(30, 100))
    with pytest.raises(virgo.OptionError, match=r"ngnn-sage for link prediction, got 'gin'"):
        build_link("gin", 5, 30, config)


# --- operators ----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_products_have_gradients(form: str) -> None:
    edges = uneven(150, 9000)
    value = torch.rand(edges.size(1))
    dense = torch.zeros(150, 150).index_put_(tuple(edges), value, accumulate=True)
    sparse = Constant.sparse(*edges, value, (150, 150))
    constant = Constant.dense(dense) if form == "dense" else sparse
    x, probe = torch.randn(150, 6, requires_grad=True), torch.randn(150, 6)
    ((constant @ x) * probe).sum().backward()
    torch.testing.assert_close(x.grad, dense.t() @ probe, rtol=1e-5, atol=1e-4)


def test_an_empty_operator_costs_nothing() -> None:
    empty = torch.zeros(2, 0, dtype=torch.long)
    assert Constant.sparse(*empty, torch.ones(0), (5, 5)).work == 0


# --- the encoder --------------------------------------------------------------------------------


def test_weights_enter_gcn_as_in_pyg() -> None:
    edges = torch.tensor([[0, 1, 1, 2, 2, 0, 0], [1, 0, 2, 1, 2, 1, 1]])  # a loop, and one twice
    weight = torch.tensor([2.0, 2.0, 3.0, 3.0, 5.0, 1.0, 1.0])
    expected_edges, expected = gcn_norm(edges, weight, 4)
    dense = torch.zeros(4, 4).index_put_(tuple(expected_edges.flip(0)), expected, accumulate=True)
    target, source, value = operator_entries("gcn", edges, 4, weight)
    found = torch.zeros(4, 4).index_put_((target, source), value, accumulate=True)
    torch.testing.assert_close(found, dense)
    assert torch.equal(
        operator_entries("mean", edges, 4, weight)[2], operator_entries("mean", edges, 4)[2]
    )


@pytest.mark.parametrize("model_name", LINK_MODELS)
@pytest.mark.parametrize(
    ("dataset", "size"),
    [("ogbl-ddi", (150, 6000)), ("ogbl-ddi", (400, 300)), ("ogbl-collab", (60, 300))],
    ids=["ddi", "thin", "collab"],
)
def test_the_encoding_is_pygs_pass(dataset: str, size: tuple[int, int], model_name: str) -> None:
    whole = tiny(dataset, *size)
    task, data = LinkTask(whole), whole.data
    model = model_for(task, model_name, num_layers=3, ngnn_type="all").eval()
    encoding = task.encoding(model)
    weight = data.get("edge_weight")
    learned = None if model.embedding is None else model.embedding.weight
    reference = model(data.x, data.edge_index, weight)
    found = encoding(model.encoder, learned)
    torch.testing.assert_close(found, reference, rtol=1e-4, atol=1e-5)
    probe = torch.randn(reference.shape)
    grads = []
    for out in (reference, found):
        model.zero_grad()
        (out * probe).sum().backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(grads[0]) == len(grads[1])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_weights_of_edges_matter() -> None:
    whole = tiny("ogbl-collab", 60, 300)
    model = model_for(LinkTask(whole), "gcn").eval()
    data = whole.data
    weighted = model(data.x, data.edge_index, data.edge_weight)
    assert not torch.allclose(weighted, model(data.x, data.edge_index), atol=1e-3)


def test_encoding_draws_dropout_from_its_generator() -> None:
    task = LinkTask(tiny())
    model = model_for(task)
    encoding = task.encoding(model)
    learned = model.embedding.weight  # type: ignore[union-attr]
    one, other, third = (
        encoding(model.encoder, learned, np.random.default_rng(s)) for s in (0, 0, 1)
    )
    assert torch.equal(one, other)
    assert not torch.equal(one, third)


@pytest.mark.parametrize("model_name", ["gcn", "sage", "ngnn-sage"])
@pytest.mark.parametrize("is_learned", [False, True], ids=["features", "embeddings"])
def test_the_sampled_encoding_is_pygs_pass(model_name: str, is_learned: bool) -> None:
    whole = tiny("ogbl-citation2", 80, 500)
    model = model_for(LinkTask(whole), model_name, num_layers=3).eval()
    sampler = NeighborSampler(whole.data, [4, 3, 2], seed=0)
    out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([3, 50, 7])))
    x = whole.data.x[out.node].requires_grad_()
    edges = torch.stack([out.row, out.col])
    counts = (out.num_sampled_nodes, out.num_sampled_edges)
    reference = model.encoder(x, edges, *counts)[:3]
    given = None if is_learned else x.detach()
    found = Encoding.sampled(out, model.operators, 3, given)(model.encoder, x)
    assert found.shape == (3, 8)
    torch.testing.assert_close(found, reference, rtol=1e-4, atol=1e-5)
    if is_learned:
        one, other = (torch.autograd.grad(out.square().sum(), x)[0] for out in (found, reference))
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


# --- the decoder --------------------------------------------------------------------------------


@pytest.fixture(params=[1, 2], ids=["thread", "threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_products_of_pairs() -> None:
    h = torch.randn(20, 9, requires_grad=True)
    ends = torch.randint(20, (2, 300))
    ends[:, :5] = 3  # a node with itself, and more than once
    probe = torch.randn(300, 9)
    found, expected = pairs.products(h, ends), h[ends[0]] * h[ends[1]]
    assert torch.equal(found, expected)
    one, other = (torch.autograd.grad((out * probe).sum(), h)[0] for out in (found, expected))
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_a_batch_in_pieces_has_the_whole_ones_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_link("gcn", 0, 20, {"hidden_channels": 8, "num_layers": 3, "dropout": 0.0})
    h = torch.randn(20, 8, requires_grad=True)
    positive, negative = torch.randint(20, (2, 70)), torch.randint(20, (2, 70))
    expected = link_loss(model.score(h * 2, positive), model.score(h * 2, negative))
    expected.backward()
    grads = [h.grad, *(p.grad for p in model.predictor.parameters())]
    h.grad = None
    model.zero_grad(set_to_none=True)
    monkeypatch.setattr(pairs, "PIECE", 16)
    loss = pairs.backward(model, h * 2, positive, negative, np.random.default_rng(0))
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    found = [h.grad, *(p.grad for p in model.predictor.parameters())]
    for one, other in zip(found, grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_scores_are_the_predictors() -> None:
    model = build_link("gcn", 0, 20, {"hidden_channels": 8, "num_layers": 3, "dropout": 0.5}).eval()
    h, ends = torch.randn(20, 8), torch.randint(20, (2, 50))
    plain = pairs.scores(model.predictor, h, ends)
    torch.testing.assert_close(plain, model.score(h, ends))
    dropped = pairs.scores(model.predictor, h, ends, np.random.default_rng(0))
    assert not torch.allclose(plain, dropped)


# --- negatives ----------------------------------------------------------------------------------


def is_uniform(counts: Any) -> bool:
    return bool(stats.chisquare(counts).pvalue > 1e-3)


def test_negatives_without_an_edge_are_uniform_over_the_others() -> None:
    edges, nodes = uneven(12, 30), 12
    positive = torch.zeros(2, 200_000, dtype=torch.long)
    left, right = NonEdges(edges, nodes)(positive, np.random.default_rng(0))
    counts = torch.bincount(left * nodes + right, minlength=nodes**2).view(nodes, nodes)
    allowed = ~torch.eye(nodes, dtype=torch.bool)
    allowed[tuple(edges)] = False
    assert counts[~allowed].sum() == 0
    assert is_uniform(counts[allowed].numpy())
    assert not is_uniform(counts.sum(1).numpy())  # that is what uneven degrees leave of the rows


def test_other_negatives_are_uniform_over_nodes() -> None:
    positive = torch.randint(12, (2, 100_000), generator=torch.Generator().manual_seed(0))
    both = Pairs(12)(positive, np.random.default_rng(0))
    assert is_uniform(torch.bincount(both[0] * 12 + both[1], minlength=144).numpy())
    source, target = Targets(12)(positive, np.random.default_rng(0))
    assert torch.equal(source, positive[0])
    assert is_uniform(torch.bincount(target, minlength=12).numpy())
    for node in range(12):  # whatever the source
        assert is_uniform(torch.bincount(target[source == node], minlength=12).numpy())


@pytest.mark.parametrize("name", ["ogbl-ddi", "ogbl-collab", "ogbl-ppa", "ogbl-citation2"])
def test_negatives_follow_from_the_generator(name: str) -> None:
    draw = negatives_for(name, uneven(12, 30), 12)
    kinds = {"ogbl-ddi": NonEdges, "ogbl-citation2": Targets}
    assert type(draw) is kinds.get(name, Pairs)
    positive = torch.randint(12, (2, 100))
    one, other, third = (draw(positive, np.random.default_rng(s)) for s in (0, 0, 1))
    assert torch.equal(one, other)
    assert not torch.equal(one, third)
    assert one.shape == (2, 100)


def test_a_complete_graph_has_no_negatives() -> None:
    complete = torch.ones(4, 4).nonzero().t()
    with pytest.raises(virgo.DataError, match="got a complete graph of 4 nodes"):
        NonEdges(complete, 4)


# --- ranking ------------------------------------------------------------------------------------


def slow_hits(positive: list[float], negative: list[float], k: int) -> float:
    return sum(sum(n >= p for n in negative) < k for p in positive) / len(positive)


def slow_mrr(positive: list[float], negative: list[list[float]]) -> float:
    total = 0.0
    for p, others in zip(positive, negative, strict=True):
        above, level = sum(n > p for n in others), sum(n == p for n in others)
        total += 1 / (1 + above + level / 2)
    return total / len(positive)


def lookup(table: Tensor) -> ranking.Score:
    return lambda ends: table[ends[0], ends[1]]


@pytest.mark.parametrize(("name", "k"), [("ogbl-ddi", 20), ("ogbl-collab", 50), ("ogbl-ppa", 100)])
@pytest.mark.parametrize("levels", [10_000, 15], ids=["distinct", "ties"])
def test_hits_are_those_by_hand(name: str, k: int, levels: int) -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randint(levels, (30, 30), generator=generator).float()
    part = {
        "edge": torch.randint(30, (57, 2), generator=generator),
        "edge_neg": torch.randint(30, (233, 2), generator=generator),
    }
    scores = {key: table[ends[:, 0], ends[:, 1]].tolist() for key, ends in part.items()}
    expected = slow_hits(scores["edge"], scores["edge_neg"], k)
    for piece in (1, 10, 64, 1000):
        assert ranking.evaluate(f"like:{name}@2", part, lookup(table), piece) == expected


@pytest.mark.parametrize("levels", [10_000, 15], ids=["distinct", "ties"])
def test_reciprocal_ranks_are_those_by_hand(levels: int) -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randint(levels, (30, 30), generator=generator).float()
    source, target = torch.randint(30, (2, 23), generator=generator)
    others = torch.randint(30, (23, 40), generator=generator)
    part = {"source_node": source, "target_node": target, "target_node_neg": others}
    expected = slow_mrr(table[source, target].tolist(), table[source[:, None], others].tolist())
    for piece in (1, 80, 100, 10_000):
        found = ranking.evaluate("ogbl-citation2", part, lookup(table), piece)
        assert found == pytest.approx(expected, rel=1e-6)  # the evaluator's ranks are float32


def test_what_is_not_a_number_is_ranked_last() -> None:
    nothing = torch.full((30, 30), torch.nan)
    ends = torch.randint(30, (50, 2))
    hits = ranking.evaluate("ogbl-ddi", {"edge": ends, "edge_neg": ends}, lookup(nothing))
    part = {"source_node": ends[:, 0], "target_node": ends[:, 1], "target_node_neg": ends}
    assert hits == 0
    assert ranking.evaluate("ogbl-citation2", part, lookup(nothing)) == pytest.approx(1 / 3)


def test_fewer_negatives_than_k_are_all_hits_as_in_ogb() -> None:
    ends = torch.randint(30, (19, 2))
    part = {"edge": ends, "edge_neg": ends}
    assert ranking.evaluate("ogbl-ddi", part, lookup(torch.rand(30, 30))) == 1


# --- initialisation -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gcn", "ngnn-sage"])
@pytest.mark.parametrize("dataset", ["ogbl-ddi", "ogbl-collab"])
def test_methods_draw_the_message_passing_weights_only(dataset: str, name: str) -> None:
    task = LinkTask(tiny(dataset))
    settings = Settings.of(CONFIG | {"hidden_channels": 64})
    inits = ("xavier", "virgo-forward", "virgo-backward", "virgo-backward+measured")
    starts = [task.start(name, init, settings, Seeds.of(3)) for init in inits]
    for model in starts[1:]:
        for (key, one), other in zip(
            starts[0].state_dict().items(), model.state_dict().values(), strict=True
        ):
            is_message_passing = "convs" in key and key.endswith("weight")
            assert torch.equal(one, other) == (not is_message_passing), key
    again = task.start(name, inits[1], settings, Seeds.of(3)).state_dict()
    assert all(torch.equal(again[key], one) for key, one in starts[1].state_dict().items())


def test_variances_are_those_of_the_graph_with_its_weights() -> None:
    whole = tiny("ogbl-collab", 60, 300)
    task = LinkTask(whole)
    model = task.start(
        "gcn", "virgo-forward", Settings.of(CONFIG | {"hidden_channels": 128}), Seeds.of(0)
    )
    data = whole.data
    edges, value = gcn_norm(data.edge_index, data.edge_weight, 60)
    operator = torch.zeros(60, 60).index_put_(tuple(edges.flip(0)), value, accumulate=True).double()
    signal = data.x.double().mean(1)
    for conv in model.encoder.convs:
        after = operator @ signal
        expected = 2 / conv.lin.weight.size(1) * (signal @ signal) / (after @ after)
        # a uniform draw's variance over w weights varies by sqrt(0.8 / w): four of these
        tolerance = 4 * math.sqrt(0.8 / conv.lin.weight.numel())
        assert conv.lin.weight.var().item() == pytest.approx(expected.item(), rel=tolerance)
        signal = after


# --- runs ---------------------------------------------------------------------------------------

WAYS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ddi": ("ogbl-ddi", "gcn", {}),
    "ngnn": ("ogbl-ddi", "ngnn-sage", {"ngnn_type": "all"}),
    "collab": ("ogbl-collab", "gcn", {}),
    "clusters": ("ogbl-citation2", "ngnn-gcn", {"num_parts": 5, "batch_size": 2}),
    "learned-clusters": ("ogbl-ddi", "gcn", {"num_parts": 3, "batch_size": 2}),
    "weighted-clusters": ("ogbl-collab", "gcn", {"num_parts": 3, "batch_size": 2}),
    "sampled": ("ogbl-citation2", "ngnn-sage", {"num_neighbors": [4, 3], "batch_size": 20}),
    "learned-sampled": ("ogbl-ddi", "sage", {"num_neighbors": [4, 3], "batch_size": 20}),
}


def begin(way: str, seed: int = 0, **change: Any) -> Training:
    name, model, extra = WAYS[way]
    settings = Settings.of(CONFIG | extra | change)
    return Training(LinkTask(tiny(name)), model, "virgo-backward", settings, seed)


@pytest.mark.parametrize("way", WAYS)
def test_a_continued_run_is_an_undisturbed_one(way: str, tmp_path: Path) -> None:
    whole = begin(way)
    state = torch.random.get_rng_state()
    expected = [whole.advance() for _ in range(6)]
    assert torch.equal(state, torch.random.get_rng_state())
    first = begin(way)
    curve = [first.advance() for _ in range(2)]
    path = checkpoint.save(first, tmp_path / "run.safetensors", curve)
    torch.manual_seed(99)
    second = checkpoint.load(path).resume(LinkTask(tiny(WAYS[way][0])))
    assert curve + [second.advance() for _ in range(4)] == expected
    one, other = second.finish(), whole.finish()
    assert (one.valid, one.test, one.epoch) == (other.valid, other.test, other.epoch)
    assert begin(way, seed=1).advance() != expected[0]


@pytest.mark.parametrize("way", WAYS)
def test_training_lowers_the_loss(way: str) -> None:
    training = begin(way, epochs=15, eval_step=15, dropout=0.0, lr=0.02)
    losses = [training.advance().loss for _ in range(15)]
    assert losses[-1] < min(losses[0], 2 * math.log(2)) - 0.05  # better than a coin for each kind


@pytest.mark.parametrize("way", WAYS)
def test_evaluation_sees_the_whole_graph(way: str) -> None:
    training = begin(way, dropout=0.9)
    training.advance()
    data, model = training.task.dataset.data, training.model.eval()
    with torch.no_grad():
        found = training.batches.embeddings(model)  # type: ignore[attr-defined]
        expected = model(data.x, data.edge_index, data.get("edge_weight"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    part = training.task.dataset.split["valid"]
    slow = ranking.evaluate(
        training.task.dataset.name, part, lambda ends: model.score(expected, ends).detach()
    )
    assert training.batches.evaluate(model, "valid") == pytest.approx(slow, abs=0.04)


def test_one_epoch_meets_every_edge_once() -> None:
    task = LinkTask(tiny())
    model, settings = model_for(task), Settings.of(CONFIG)
    batches = task.batches(model, settings, Seeds.of(0))
    assert isinstance(batches, WholeGraphLinks)
    met = [step.positive for step in batches.steps(model, np.random.default_rng(0), 1)]
    assert [part.size(1) for part in met[:-1]] == [40] * (len(met) - 1)
    edges = torch.cat(met, 1)
    expected = task.positive
    assert sorted(map(tuple, edges.t().tolist())) == sorted(map(tuple, expected.t().tolist()))


def test_an_epoch_of_samples_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_batches, "MAX_BATCHES", 7)
    task = LinkTask(tiny("ogbl-citation2"))
    settings = Settings.of(CONFIG | {"num_neighbors": [1, 1], "batch_size": 3})
    model = model_for(task, "sage")
    batches = task.batches(model, settings, Seeds.of(0))
    assert isinstance(batches, SampledLinkBatches)
    sizes = [s.positive.size(1) for s in batches.steps(model, np.random.default_rng(0), 1)]
    assert sizes == [3] * 7


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("ogbl-ddi", None, 1.0),
        ("ogbl-collab", None, 1.0),
        ("ogbl-citation2", None, None),
        ("ogbl-ddi", 0.01, 0.01),
    ],
)
def test_gradients_are_clipped_part_by_part(
    name: str, given: float | None, expected: float | None
) -> None:
    task = LinkTask(tiny(name))
    settings = Settings.of(CONFIG | {"max_grad_norm": given, "batch_size": 10_000})
    model = model_for(task)
    for parameter in model.parameters():
        parameter.data *= 4  # gradients worth clipping
    batches = task.batches(model, settings, Seeds.of(0))
    assert batches.max_grad_norm == expected
    before = [[p.detach().clone() for p in group] for group in model.groups()]
    batches.train_epoch(model, torch.optim.SGD(model.parameters(), lr=1.0), 1)
    moved = [
        math.sqrt(sum(float((p - q).detach().square().sum()) for p, q in zip(g, b, strict=True)))
        for g, b in zip(model.groups(), before, strict=True)
    ]
    if expected is None:
        assert max(moved) > 1
    else:
        assert max(moved) == pytest.approx(expected, rel=1e-3)


def test_a_loss_that_is_not_finite_ends_the_run() -> None:
    training = begin("ddi", lr=1e30, epochs=5)
    while not training.done:
        training.advance()
    assert training.diverged
    assert training.finish().status == "diverged"


# --- real loaders, miniature files --------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("ogbl-ddi", {"gcn": {}, "ngnn-sage": {}}),
        ("ogbl-collab", {"gcn": {}, "ngnn-sage": {"ngnn_type": "hidden", "num_layers": 3}}),
        ("ogbl-ppa", {"ngnn-gcn": {}, "sage": {}}),
        (
            "ogbl-citation2",
            {"ngnn-gcn": {"num_parts": 4, "batch_size": 2}, "sage": {"num_neighbors": [3, 2]}},
        ),
    ],
    ids=["ddi", "collab", "ppa", "citation2"],
)
def test_datasets_in_ogbs_layout_train(
    name: str, models: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    miniatures.write(name, tmp_path)
    task = LinkTask(virgo.data.load(name, tmp_path))
    for model, extra in models.items():
        settings = Settings.of(CONFIG | {"epochs": 2} | extra)
        training = Training(task, model, "virgo-backward", settings, 0)
        while not training.done:
            training.advance()
        outcome = training.finish()
        assert outcome.status == "ok"
        assert 0 <= outcome.test <= 1


@pytest.mark.slow
@pytest.mark.data
def test_ddi_is_encoded_as_by_pyg(data_root: Path) -> None:
    if not (data_root / "ogbl_ddi" / "raw").is_dir():
        pytest.skip(f"no real data: {data_root} has no ogbl_ddi/raw")
    task = LinkTask(virgo.data.load("ogbl-ddi", data_root))
    model = model_for(task, hidden_channels=16).eval()
    operator = task.encoding(model).hops[0]["gcn"]
    assert isinstance(operator, Constant)
    assert operator.work == task.dataset.data.num_edges + 4267
    with torch.no_grad():
        found = task.encoding(model)(model.encoder, model.learned())
        expected = model(None, task.dataset.data.edge_index)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


# --- mistakes -----------------------------------------------------------------------------------


def without(dataset: Dataset, part: str, *fields: str) -> Dataset:
    left = {key: value for key, value in dataset.split[part].items() if key not in fields}
    split = {**dataset.split, part: left}
    return Dataset(dataset.name, "link", dataset.data, split, dataset.metric, 0)


@pytest.mark.parametrize("part", ["valid", "test"])
@pytest.mark.parametrize(
    ("name", "field"), [("ogbl-ddi", "edge_neg"), ("ogbl-citation2", "target_node_neg")]
)
def test_a_split_without_negatives_is_an_error(name: str, field: str, part: str) -> None:
    with pytest.raises(virgo.DataError, match=f"{part}: expected negatives under '{field}'"):
        LinkTask(without(tiny(name), part, field))
    whole = tiny(name)
    whole.split[part][field] = whole.split[part][field][:0]
    with pytest.raises(virgo.DataError, match=f"{part}: expected negatives under '{field}'"):
        LinkTask(whole)


def test_a_split_without_links_is_an_error() -> None:
    with pytest.raises(virgo.DataError, match="valid: expected links under 'edge'"):
        LinkTask(without(tiny(), "valid", "edge"))
    with pytest.raises(virgo.DataError, match="train: expected edges to learn from, got none"):
        LinkTask(without(tiny(), "train", "edge"))
    lonely = tiny()
    lonely.data.edge_index = torch.zeros(2, 0, dtype=torch.long)
    with pytest.raises(virgo.DataError, match="train: expected edges to learn from, got none"):
        LinkTask(lonely)


def test_nodes_of_another_graph_are_an_error() -> None:
    whole = tiny()
    whole.split["test"]["edge"][3, 1] = 40
    with pytest.raises(virgo.DataError, match=r"test: expected nodes in \[0, 40\) under 'edge'"):
        LinkTask(whole)


def test_another_task_is_an_error() -> None:
    with pytest.raises(virgo.OptionError, match="expected a link prediction dataset, got a node"):
        LinkTask(virgo.data.load("like:cora@0.1"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_parts": 41}, r"num_parts: expected a whole number from 1 to the 40 nodes"),
        ({"num_parts": 2.5}, r"num_parts: expected a whole number"),
        ({"num_parts": 3, "num_neighbors": [2, 2]}, "num_parts: expected none beside"),
    ],
)
def test_mistaken_settings_are_errors(change: dict[str, Any], message: str) -> None:
    with pytest.raises(virgo.OptionError, match=message):
        begin("ddi", **change)


def test_clusters_without_edges_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tiny("ogbl-citation2")
    whole.data.edge_index = torch.tensor([[0, 1], [1, 0]])  # 38 nodes are alone
    each = torch.arange(40)
    monkeypatch.setattr("virgo.experiments.tasks.link.clusters.partition", lambda *args: each)
    task = LinkTask(whole)
    together, alone = (
        Training(task, "gcn", "xavier", Settings.of(CONFIG | {"num_parts": 40, "batch_size": k}), 0)
        for k in (40, 1)
    )
    assert isinstance(together.batches, ClusterBatches)
    assert math.isfinite(together.advance().loss)
    with pytest.raises(virgo.DataError, match="expected edges inside the batches, got none"):
        alone.advance()

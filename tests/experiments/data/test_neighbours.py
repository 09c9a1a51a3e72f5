"""Neighbour sampling: against a slow reference on the same random stream, and by its statistics."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import random
import time
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.nn import GraphSAGE, SAGEConv
from torch_geometric.sampler import NegativeSampling, NodeSamplerInput, SamplerOutput

from virgo.errors import GraphError, OptionError
from virgo.experiments.data.neighbours import InNeighbours, NeighborSampler

MASK = (1 << 64) - 1
# Python 3.12 warns of a fork beside threads, which is how torch's loaders start their workers.
forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def power_law(num_nodes: int, num_edges: int, seed: int = 0) -> Data:
    """A directed graph with skewed degrees, self-loops, repeated edges and isolated nodes."""
    rng = np.random.default_rng(seed)
    share = np.cumsum(rng.pareto(1.2, num_nodes))
    ends = np.searchsorted(share / share[-1], rng.random((2, num_edges)))
    edge_index = torch.from_numpy(np.minimum(ends, num_nodes - 1).astype(np.int64))
    return Data(
        x=torch.randn(num_nodes, 4, generator=torch.Generator().manual_seed(seed)),
        edge_index=edge_index,
        edge_attr=torch.arange(num_edges, dtype=torch.float32),
        num_nodes=num_nodes,
    )


def sample(sampler: NeighborSampler, nodes: Any) -> SamplerOutput:
    return sampler.sample_from_nodes(NodeSamplerInput(None, torch.as_tensor(nodes)))


def same(one: SamplerOutput, other: SamplerOutput) -> bool:
    tensors = ("node", "row", "col", "edge")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in tensors) and (
        one.num_sampled_nodes == other.num_sampled_nodes
        and one.num_sampled_edges == other.num_sampled_edges
    )


# --- the slow reference --------------------------------------------------------------------------


def mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


class Stream:
    """splitmix64 in Python's whole numbers, started as the documentation says."""

    STEP = 0x9E3779B97F4A7C15

    def __init__(self, seed: int, epoch: int, nodes: list[int]) -> None:
        self.state = 0
        for number in [seed & MASK, epoch, 0, *nodes]:
            self.state = mix(((self.state ^ number) + self.STEP) & MASK)

    def below(self, bound: int) -> int:
        while True:
            self.state = (self.state + self.STEP) & MASK
            product = (mix(self.state) >> 32) * bound
            if product % 2**32 >= 2**32 % bound:
                return product >> 32


def reference(
    data: Data, seeds: list[int], fanouts: list[int], seed: int = 0, epoch: int = 0
) -> dict[str, Any]:
    """Dictionaries and sets; a subset by Floyd's algorithm as its paper states it."""
    incoming: dict[int, list[tuple[int, int]]] = {}
    for edge, (source, target) in enumerate(data.edge_index.t().tolist()):
        incoming.setdefault(target, []).append((source, edge))
    stream = Stream(seed, epoch, seeds)
    node, row, col, ids = list(seeds), [], [], []
    place: dict[int, int] = {}
    for index, one in enumerate(seeds):
        place.setdefault(one, index)
    nodes_per_hop, edges_per_hop, begin = [len(seeds)], [], 0
    for fanout in fanouts:
        end, edges = len(node), len(ids)
        for target in range(begin, end):
            choices = incoming.get(node[target], [])
            chosen = list(range(len(choices)))
            if 0 <= fanout < len(choices):
                chosen = []
                for last in range(len(choices) - fanout, len(choices)):
                    drawn = stream.below(last + 1)
                    chosen.append(last if drawn in chosen else drawn)
            for source, edge in (choices[index] for index in chosen):
                if source not in place:
                    place[source] = len(node)
                    node.append(source)
                row.append(place[source])
                col.append(target)
                ids.append(edge)
        begin = end
        nodes_per_hop.append(len(node) - end)
        edges_per_hop.append(len(ids) - edges)
    return {
        "node": node,
        "row": row,
        "col": col,
        "edge": ids,
        "num_sampled_nodes": nodes_per_hop,
        "num_sampled_edges": edges_per_hop,
    }


def as_lists(out: SamplerOutput) -> dict[str, Any]:
    names = ("node", "row", "col", "edge", "num_sampled_nodes", "num_sampled_edges")
    found = {name: getattr(out, name) for name in names}
    return {k: v.tolist() if isinstance(v, Tensor) else v for k, v in found.items()}


@pytest.mark.parametrize("fanouts", [[3], [4, 2], [10, 5, 5], [-1], [2, -1, 3], [-1, -1]], ids=str)
@pytest.mark.parametrize("seeds", [[0], [7, 3, 150], [5, 5, 9, 5], list(range(0, 200, 3))])
def test_equals_the_slow_reference_on_the_same_stream(fanouts: list[int], seeds: list[int]) -> None:
    data = power_law(200, 1500)
    sampler = NeighborSampler(data, fanouts, seed=11)
    sampler.set_epoch(3)
    assert as_lists(sample(sampler, seeds)) == reference(data, seeds, fanouts, 11, 3)


@settings(max_examples=60, deadline=None)
@given(
    edges=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=60),
    seeds=st.lists(st.integers(0, 12), min_size=1, max_size=8),
    fanouts=st.lists(st.sampled_from([-1, 1, 2, 5]), min_size=1, max_size=3),
    seed=st.integers(-(2**63), 2**64),
)
def test_equals_the_slow_reference_on_any_small_graph(
    edges: list[tuple[int, int]], seeds: list[int], fanouts: list[int], seed: int
) -> None:
    """Self-loops, repeated edges, isolated nodes and repeated seeds among them."""
    edge_index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t()
    data = Data(edge_index=edge_index, num_nodes=13)
    out = sample(NeighborSampler(data, fanouts, seed), seeds)
    assert as_lists(out) == reference(data, seeds, fanouts, seed)


def test_the_reference_would_see_another_stream() -> None:
    data = power_law(200, 1500)
    out = as_lists(sample(NeighborSampler(data, [3], seed=1), [0, 1, 2, 3, 4, 5]))
    assert out != reference(data, [0, 1, 2, 3, 4, 5], [3], seed=2)
    assert out != reference(data, [0, 1, 2, 3, 4, 5], [3], seed=1, epoch=1)


def test_edges_are_edges_of_the_graph() -> None:
    data = power_law(300, 4000)
    out = sample(NeighborSampler(data, [5, 5]), range(20))
    assert torch.equal(
        data.edge_index[:, out.edge], torch.stack([out.node[out.row], out.node[out.col]])
    )
    assert out.edge.unique().numel() == out.edge.numel()
    assert out.node.unique().numel() == out.node.numel()
    assert out.node[:20].tolist() == list(range(20))
    assert sum(out.num_sampled_nodes) == out.node.numel()
    assert sum(out.num_sampled_edges) == out.edge.numel()


# --- uniform, without replacement, independent ---------------------------------------------------

DEGREE, WANTED, STARS = 6, 3, 20_000
SUBSETS = math.comb(DEGREE, WANTED)


def stars() -> Data:
    """``STARS`` centres, each with ``DEGREE`` in-neighbours of its own."""
    target = torch.arange(STARS).repeat_interleave(DEGREE)
    source = STARS + torch.arange(STARS * DEGREE)
    return Data(edge_index=torch.stack([source, target]), num_nodes=STARS * (DEGREE + 1))


def chosen(out: SamplerOutput) -> Tensor:
    """Which of its neighbours each centre got: ``[STARS, DEGREE]``, 0 or 1."""
    hit = torch.zeros(STARS, DEGREE)
    hit[out.col, out.edge % DEGREE] = 1
    return hit


def chi_square(hit: Tensor) -> float:
    """Of the counts of all subsets of the right size; others add their whole share."""
    counts = Counter(map(tuple, hit.int().tolist()))
    expected = STARS / SUBSETS
    every = [s for s in itertools.product((0, 1), repeat=DEGREE) if sum(s) == WANTED]
    return sum((counts[subset] - expected) ** 2 / expected for subset in every)


# Under uniformity chi-square has mean SUBSETS - 1 and variance twice that, whatever the sample
# size; five standard deviations of a single fixed draw.
CHI_BOUND = (SUBSETS - 1) + 5 * math.sqrt(2 * (SUBSETS - 1))


def test_every_subset_is_equally_likely() -> None:
    sampler = NeighborSampler(stars(), [WANTED], seed=0)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        hit = chosen(sample(sampler, range(STARS)))
        assert (hit.sum(1) == WANTED).all()
        assert chi_square(hit) < CHI_BOUND


def test_a_slightly_biased_choice_is_seen() -> None:
    """Floyd's algorithm with the bound off by one in its last draw, the classic mistake."""
    rng = np.random.default_rng(0)
    hit = torch.zeros(STARS, DEGREE)
    for star in range(STARS):
        picked: set[int] = set()
        for last in range(DEGREE - WANTED, DEGREE):
            drawn = int(rng.integers(0, last if last == DEGREE - 1 else last + 1))
            picked.add(last if drawn in picked else drawn)
        hit[star, list(picked)] = 1
    assert chi_square(hit) > CHI_BOUND


@pytest.mark.parametrize("other", ["epoch", "seed", "exchange", "batch", "order"])
def test_streams_do_not_resemble_each_other(other: str) -> None:
    """Two independent subsets share WANTED^2/DEGREE neighbours on average (hypergeometric)."""
    data, nodes = stars(), torch.arange(STARS)
    one = chosen(sample(NeighborSampler(data, [WANTED], seed=5), nodes))
    sampler = NeighborSampler(data, [WANTED], seed={"seed": 6, "exchange": 0}.get(other, 5))
    sampler.set_epoch({"epoch": 1, "exchange": 5}.get(other, 0))  # seed and epoch change places
    if other == "order":
        nodes = nodes.flip(0)
    if other == "batch":
        nodes = nodes[1:]
    out = sample(sampler, nodes)
    out.col = out.node[out.col]
    shared = (one * chosen(out)).sum(1)[1:]
    mean = WANTED**2 / DEGREE
    variance = mean * (1 - WANTED / DEGREE) * (DEGREE - WANTED) / (DEGREE - 1)
    assert abs(shared.mean() - mean) < 5 * math.sqrt(variance / (STARS - 1))


def test_a_stream_resembles_itself() -> None:
    sampler = NeighborSampler(stars(), [WANTED], seed=5)
    one, two = (chosen(sample(sampler, range(STARS))) for _ in range(2))
    assert torch.equal(one, two)


# --- with PyG's loaders --------------------------------------------------------------------------


def stop(loader: Any) -> None:
    """End long-lived workers now: torch waits five seconds for each if garbage collection does."""
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()


def alike(one: list[Data], other: list[Data]) -> bool:
    keys = ("n_id", "e_id", "edge_index", "x", "edge_attr", "input_id")
    return len(one) == len(other) and all(
        torch.equal(a[key], b[key]) for a, b in zip(one, other, strict=True) for key in keys
    )


def test_node_loader_brings_features_of_nodes_and_edges() -> None:
    data = power_law(300, 4000)
    mask = torch.arange(300) % 3 == 0
    loader = NodeLoader(data, NeighborSampler(data, [4, 3]), input_nodes=mask, batch_size=32)
    found = list(loader)
    assert torch.cat([b.n_id[: b.batch_size] for b in found]).tolist() == list(range(0, 300, 3))
    for batch in found:
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])


def test_without_edge_ids_there_are_no_edge_features() -> None:
    data = power_law(100, 800)
    loader = NodeLoader(data, NeighborSampler(data, [4], edge_ids=False), batch_size=10)
    batch = next(iter(loader))
    assert batch.edge_attr is None
    assert "e_id" not in batch
    with_ids = next(iter(NodeLoader(data, NeighborSampler(data, [4]), batch_size=10)))
    assert torch.equal(batch.edge_index, with_ids.edge_index)


@pytest.mark.parametrize("trim", [False, True])
def test_all_neighbours_give_the_output_of_the_whole_graph(trim: bool) -> None:
    data = power_law(200, 1200)
    model = GraphSAGE(4, 8, num_layers=3, out_channels=5).double().eval()
    data.x = data.x.double()
    whole = model(data.x, data.edge_index)
    for batch in NodeLoader(data, NeighborSampler(data, [-1, -1, -1]), batch_size=64):
        hops = {
            "num_sampled_nodes_per_hop": batch.num_sampled_nodes,
            "num_sampled_edges_per_hop": batch.num_sampled_edges,
        }
        out = model(batch.x, batch.edge_index, **(hops if trim else {}))
        seeds = batch.n_id[: batch.batch_size]
        # Sums of up to 1200 doubles in another order.
        torch.testing.assert_close(out[: batch.batch_size], whole[seeds], rtol=1e-11, atol=1e-11)


def test_trimming_changes_nothing_for_sampled_neighbours() -> None:
    data = power_law(400, 4000)
    model = GraphSAGE(4, 8, num_layers=3, out_channels=5).double().eval()
    data.x = data.x.double()
    batch = next(iter(NodeLoader(data, NeighborSampler(data, [4, 3, 2]), batch_size=16)))
    out = model(batch.x, batch.edge_index)[:16]
    trimmed = model(
        batch.x,
        batch.edge_index,
        num_sampled_nodes_per_hop=batch.num_sampled_nodes,
        num_sampled_edges_per_hop=batch.num_sampled_edges,
    )
    assert trimmed.size(0) < batch.num_nodes
    torch.testing.assert_close(trimmed[:16], out, rtol=1e-11, atol=1e-11)


@forks
def test_workers_and_epochs() -> None:
    """The same batches from none, one and two workers, and from workers that outlive an epoch."""
    data = power_law(300, 4000)

    # Torch's own shuffling with long-lived workers takes another order, so the order is given.
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))

    def epochs(**options: Any) -> list[list[Data]]:
        sampler = NeighborSampler(data, [4, 3], seed=2)
        loader = NodeLoader(data, sampler, input_nodes=order, batch_size=64, **options)
        out = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            out.append(list(loader))
        stop(loader)
        return out

    plain = epochs()
    assert not alike(plain[0], plain[1])
    for options in ({"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}):
        for one, other in zip(plain, epochs(**options), strict=True):
            assert alike(one, other)


@forks
def test_long_lived_workers_see_the_epoch() -> None:
    data = power_law(300, 4000)
    sampler = NeighborSampler(data, [2], seed=2)
    loader = NodeLoader(data, sampler, batch_size=300, num_workers=1, persistent_workers=True)
    first = list(loader)
    assert alike(first, list(loader))  # without set_epoch the same nodes get the same
    sampler.set_epoch(1)
    assert not alike(first, list(loader))
    sampler.set_epoch(0)
    assert alike(first, list(loader))
    stop(loader)


def test_threads_do_not_disturb_each_other() -> None:
    data = power_law(2000, 40_000)
    sampler = NeighborSampler(data, [10, 10, 10])
    parts = torch.arange(2000).split(50)
    serial = [sample(sampler, part) for part in parts]
    with ThreadPoolExecutor(8) as pool:
        threaded = list(pool.map(lambda part: sample(sampler, part), parts))
    assert all(same(one, other) for one, other in zip(serial, threaded, strict=True))


def test_an_interrupted_batch_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    from virgo.experiments.data import sampling_kernels

    data = power_law(200, 1500)
    sampler = NeighborSampler(data, [5, 5])
    before = sample(sampler, range(10))

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sampling_kernels, "clear_positions", interrupt)
        with pytest.raises(KeyboardInterrupt):
            sample(sampler, range(10))
    assert same(before, sample(sampler, range(10)))


def test_global_random_state_is_neither_read_nor_changed() -> None:
    data = power_law(200, 1500)
    sampler = NeighborSampler(data, [3, 3])
    loader = LinkLoader(data, sampler, neg_sampling="binary", batch_size=2000)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    first, negatives = sample(sampler, range(50)), loader(list(range(50)))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
    assert random.getstate() == states[2]
    torch.manual_seed(1)
    assert same(first, sample(sampler, range(50)))
    assert torch.equal(loader(list(range(50))).edge_label_index, negatives.edge_label_index)


@pytest.mark.parametrize("move", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_copies_sample_the_same(move: Any) -> None:
    sampler = NeighborSampler(power_law(200, 1500), [3, 3], seed=4)
    sampler.set_epoch(2)
    assert same(sample(sampler, range(30)), sample(move(sampler), range(30)))


# --- links ---------------------------------------------------------------------------------------


def link_batches(mode: str | None, **options: Any) -> tuple[Data, list[Data]]:
    data = power_law(300, 2000)
    sampler = NeighborSampler(data, [4, 3], seed=1)
    negatives = None if mode is None else NegativeSampling(mode, options.pop("amount", 2))
    loader = LinkLoader(data, sampler, neg_sampling=negatives, batch_size=128, **options)
    return data, list(loader)


def test_link_loader_without_negatives() -> None:
    data, found = link_batches(None)
    links = torch.cat([b.n_id[b.edge_label_index] for b in found], dim=1)
    assert torch.equal(links, data.edge_index)


def test_link_loader_with_binary_negatives() -> None:
    data, found = link_batches("binary", amount=1.5)
    start = 0
    for batch in found:
        positive = int(batch.edge_label.sum())
        links = batch.n_id[batch.edge_label_index]
        assert torch.equal(links[:, :positive], data.edge_index[:, start : start + positive])
        assert links.size(1) - positive == math.ceil(1.5 * positive)
        assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
        start += positive
    assert start == data.num_edges


def test_link_loader_with_triplets() -> None:
    data, found = link_batches("triplet")
    source = torch.cat([b.n_id[b.src_index] for b in found])
    target = torch.cat([b.n_id[b.dst_pos_index] for b in found])
    assert torch.equal(torch.stack([source, target]), data.edge_index)
    assert all(b.dst_neg_index.shape == (b.src_index.numel(), 2) for b in found)


@forks
def test_negatives_do_not_depend_on_workers() -> None:
    _, plain = link_batches("binary")
    _, other = link_batches("binary", num_workers=2)
    for one, two in zip(plain, other, strict=True):
        assert torch.equal(one.n_id[one.edge_label_index], two.n_id[two.edge_label_index])


def test_negatives_are_uniform() -> None:
    data = Data(edge_index=torch.zeros(2, 1, dtype=torch.int64), num_nodes=20)
    sampler = NeighborSampler(data, [1])
    links = torch.zeros(2, 10_000, dtype=torch.int64)
    loader = LinkLoader(data, sampler, links, neg_sampling="binary", batch_size=10_000)
    batch = next(iter(loader))
    drawn = batch.n_id[batch.edge_label_index[:, 10_000:]]
    for end in drawn:
        counts = torch.bincount(end, minlength=20).double()
        assert ((counts - 500) ** 2 / 500).sum() < 19 + 5 * math.sqrt(2 * 19)
    # Both ends of their own: a correlation of 10 000 pairs has standard error 1/100.
    assert abs(np.corrcoef(drawn.numpy())[0, 1]) < 0.05


def test_negatives_by_weight() -> None:
    data = power_law(50, 300)
    weight = torch.zeros(50)
    weight[7] = 1
    negatives = NegativeSampling("triplet", 1, dst_weight=weight)
    batch = next(iter(LinkLoader(data, NeighborSampler(data, [2]), neg_sampling=negatives)))
    assert batch.n_id[batch.dst_neg_index].tolist() == [7]
    short = NegativeSampling("triplet", 1, dst_weight=weight[:9])
    with pytest.raises(OptionError, match="one weight for each of 50 nodes, got 9"):
        next(iter(LinkLoader(data, NeighborSampler(data, [2]), neg_sampling=short)))


# --- blocks for layer-wise inference -------------------------------------------------------------


def test_blocks_give_a_layers_output() -> None:
    data = power_law(300, 3000)
    conv = SAGEConv(4, 6).double()
    x = data.x.double()
    sampler = NeighborSampler(data, [-1])
    whole = conv(x, data.edge_index)
    for nodes in torch.randperm(300, generator=torch.Generator().manual_seed(0)).split(70):
        block = sample(sampler, nodes)
        targets = block.node[: block.num_sampled_nodes[0]]
        assert torch.equal(targets, nodes)
        out = conv((x[block.node], x[targets]), torch.stack([block.row, block.col]))
        torch.testing.assert_close(out, whole[nodes], rtol=1e-11, atol=1e-11)


def test_blocks_hold_every_edge_once() -> None:
    data = power_law(300, 3000)
    sampler = NeighborSampler(data, [-1])
    edges = torch.cat([sample(sampler, nodes).edge for nodes in torch.arange(300).split(41)])
    assert edges.sort().values.tolist() == list(range(3000))
    without = NeighborSampler(InNeighbours.of(data, edge_ids=False), [-1])
    assert sample(without, [0]).edge is None


# --- the CSR form ------------------------------------------------------------------------


@pytest.mark.parametrize("is_sorted", [False, True])
def test_compressed_edges(is_sorted: bool) -> None:
    data = power_law(100, 900)
    if is_sorted:
        data.edge_index = data.edge_index[:, data.edge_index[1].argsort(stable=True)]
    graph = InNeighbours.of(data)
    order = data.edge_index[1].argsort(stable=True)
    assert graph.columns.tolist() == data.edge_index[0, order].tolist()
    assert graph.edges(np.arange(900)).tolist() == order.tolist()  # type: ignore[union-attr]
    assert (graph.ids is None) == is_sorted
    assert graph.pointer.dtype == np.int64
    assert graph.columns.dtype == np.int32


def test_a_batch_costs_what_it_samples() -> None:
    """A million nodes, of which a batch touches forty: nothing of the graph's size is made."""
    source = torch.arange(40)
    data = Data(edge_index=torch.stack([source, source // 4]), num_nodes=1_000_000)
    sampler = NeighborSampler(data, [2, 2])
    whole = NeighborSampler(sampler.graph, [-1])
    tracemalloc.start()
    sample(sampler, range(10))
    sample(whole, range(10))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000  # the marker alone is four million bytes


# --- documented behaviour at the edges -----------------------------------------------------------


def test_isolated_nodes_come_without_edges() -> None:
    data = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=3)
    out = sample(NeighborSampler(data, [2, -1]), [2, 0])
    assert out.node.tolist() == [2, 0]
    assert out.num_sampled_nodes == [2, 0, 0]
    assert out.num_sampled_edges == [0, 0]


def test_loops_and_repeated_edges_are_edges_of_their_own() -> None:
    data = Data(edge_index=torch.tensor([[0, 1, 1, 1], [0, 0, 0, 0]]), num_nodes=2)
    out = sample(NeighborSampler(data, [-1]), [0])
    assert out.node.tolist() == [0, 1]
    assert out.row.tolist() == [0, 1, 1, 1]
    assert out.edge.tolist() == [0, 1, 2, 3]
    two = sample(NeighborSampler(data, [2]), [0])
    assert two.edge.unique().numel() == 2


def test_a_repeated_seed_has_two_places() -> None:
    data = Data(edge_index=torch.tensor([[1, 2], [0, 0]]), num_nodes=3)
    out = sample(NeighborSampler(data, [-1]), [0, 0])
    assert out.node.tolist() == [0, 0, 1, 2]
    assert out.col.tolist() == [0, 0, 1, 1]


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fanouts", [[0], [5, 0], [-2], [], [1.5], 5, "15", {"a": [1]}], ids=str)
def test_bad_fanouts(fanouts: Any) -> None:
    with pytest.raises(OptionError, match="num_neighbors must be"):
        NeighborSampler(power_law(10, 20), fanouts)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (torch.tensor([0, 10]), r"in \[0, 10\), got 0 to 10"),
        (torch.tensor([-1]), r"in \[0, 10\), got -1 to -1"),
        (torch.empty(0, dtype=torch.int64), "at least one node, got none"),
        (torch.tensor([0.5]), "vector of node ids, got torch.float32"),
        (torch.ones(10, dtype=torch.bool), "vector of node ids, got torch.bool"),
        (torch.zeros(2, 2, dtype=torch.int64), "vector of node ids"),
    ],
    ids=["high", "low", "empty", "float", "mask", "matrix"],
)
def test_bad_nodes(nodes: Tensor, message: str) -> None:
    sampler = NeighborSampler(power_law(10, 20), [2])
    with pytest.raises(OptionError, match=message):
        sample(sampler, nodes)
    with pytest.raises(OptionError, match=message):
        sample(NeighborSampler(sampler.graph, [-1]), nodes)


def test_bad_edges_of_a_link_batch() -> None:
    data = power_law(10, 20)
    loader = LinkLoader(data, NeighborSampler(data, [2]), torch.tensor([[0], [10]]))
    with pytest.raises(OptionError, match=r"in \[0, 10\), got 0 to 10"):
        next(iter(loader))


@pytest.mark.parametrize("edge", [[0, 10], [10, 0], [-1, 0], [0, -1]], ids=str)
def test_edges_out_of_range(edge: list[int]) -> None:
    with pytest.raises(GraphError, match=r"edge_index must be in \[0, 10\)"):
        InNeighbours.build(torch.tensor([[0, edge[0]], [0, edge[1]]]), 10)


@pytest.mark.parametrize(
    "bad", [torch.zeros(3, 4).long(), torch.zeros(2, 4)], ids=["shape", "type"]
)
def test_bad_edge_index(bad: Tensor) -> None:
    with pytest.raises(GraphError, match=r"integers of shape \[2, E\]"):
        InNeighbours.build(bad, 10)


def test_several_kinds_of_nodes() -> None:
    with pytest.raises(GraphError, match=r"got a HeteroData. Pass data.to_homogeneous"):
        NeighborSampler(HeteroData(), [2])
    sampler = NeighborSampler(power_law(10, 20), [2])
    node = torch.tensor([0])
    with pytest.raises(GraphError, match="HeteroData"):
        sampler.sample_from_nodes(NodeSamplerInput(None, node, input_type="paper"))
    with pytest.raises(OptionError, match="without timestamps"):
        sampler.sample_from_nodes(NodeSamplerInput(None, node, time=node))


def test_no_edges_and_bad_epoch() -> None:
    with pytest.raises(GraphError, match=r"expected data\.edge_index"):
        NeighborSampler(Data(x=torch.zeros(3, 1)), [2])
    with pytest.raises(OptionError, match="epoch must be 0 or more, got -1"):
        NeighborSampler(power_law(10, 20), [2]).set_epoch(-1)


# --- speed ---------------------------------------------------------------------------------------


def numpy_offsets(degree: Any, fanout: int, rng: Any) -> tuple[Any, Any]:
    """Which edges of which node, in whole-array steps.

    Many more edges than wanted: draw, and draw a row again while it repeats itself. Few more: give
    every edge a random key and take the smallest.
    """
    many = np.flatnonzero(degree > 4 * fanout)
    drawn, open_ = np.empty((many.size, fanout), dtype=np.int64), np.arange(many.size)
    while open_.size:
        draw = np.sort((rng.random((open_.size, fanout)) * degree[many[open_], None]).astype(int))
        drawn[open_] = draw
        open_ = open_[(np.diff(draw) == 0).any(axis=1)]
    few = np.flatnonzero(degree <= 4 * fanout)
    owner = np.repeat(np.arange(few.size), degree[few])
    first = np.concatenate([[0], np.cumsum(degree[few])])[owner]
    order = np.lexsort([rng.random(owner.size), owner])
    keep = order[np.arange(owner.size) - first < fanout]
    node = np.concatenate([np.repeat(many, fanout), few[owner[keep]]])
    return node, np.concatenate([drawn.reshape(-1), keep - first[keep]])


def numpy_sample(graph: InNeighbours, seeds: Any, fanouts: list[int], rng: Any) -> int:
    """Relabelled edges of a batch, as whole-array steps make them."""
    local = np.full(graph.num_nodes, -1)
    local[seeds] = np.arange(seeds.size)
    frontier, known, edges = seeds, seeds.size, 0
    for fanout in fanouts:
        begin = graph.pointer[frontier]
        node, offset = numpy_offsets(graph.pointer[frontier + 1] - begin, fanout, rng)
        at = begin[node] + offset
        source = graph.columns[at]
        fresh = np.unique(source[local[source] < 0])
        local[fresh] = known + np.arange(fresh.size)
        known += fresh.size
        row, col, edge = local[source], local[frontier[node]], graph.edges(at)
        assert row.size == col.size == edge.numel()  # type: ignore[union-attr]
        edges += row.size
        frontier = fresh
    return edges


@pytest.mark.slow
def test_faster_than_whole_array_steps() -> None:
    """Side by side; the bound is far below what is seen, as machines are busy."""
    data = power_law(200_000, 4_000_000)
    sampler = NeighborSampler(data, [15, 10, 5])
    parts = torch.randperm(200_000, generator=torch.Generator().manual_seed(0))[:10240].split(1024)
    rng, seconds, edges = np.random.default_rng(0), np.zeros(2), np.zeros(2)
    runs = (
        lambda part: sample(sampler, part).row.numel(),
        lambda part: numpy_sample(sampler.graph, part.numpy(), [15, 10, 5], rng),
    )
    for part, (which, run) in itertools.product(parts, enumerate(runs)):  # in turn: noise for both
        begin = time.perf_counter()
        edges[which] += run(part)
        seconds[which] += time.perf_counter() - begin
    ours, theirs = edges / seconds
    print(f"sampled edges a second: {ours:.3g} compiled, {theirs:.3g} numpy, x{ours / theirs:.1f}")
    assert ours > 2 * theirs

"""Partitions by METIS, their cache, and the subgraphs of some of their parts."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

import virgo
from virgo.experiments.tasks.link import clusters
from virgo.experiments.tasks.link.clusters import Clusters, partition


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VIRGO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "partitions"


def ring(nodes: int) -> Tensor:
    one = torch.arange(nodes)
    other = (one + 1) % nodes
    return torch.stack([torch.cat([one, other]), torch.cat([other, one])])


def blobs(groups: int = 4, size: int = 20, seed: int = 0) -> Tensor:
    """Groups with many edges inside and one from each to the next; node ids are shuffled."""
    rng = np.random.default_rng(seed)
    inside = rng.integers(0, size, (2, groups, 6 * size)) + np.arange(groups)[:, None] * size
    ends = inside.reshape(2, -1)
    between = np.arange(groups - 1) * size
    ends = np.concatenate([ends, np.stack([between, between + size])], 1)
    ends = rng.permutation(groups * size)[ends]
    return torch.from_numpy(np.concatenate([ends, ends[::-1]], 1))


def cut(edge_index: Tensor, part: Tensor) -> int:
    return int((part[edge_index[0]] != part[edge_index[1]]).sum())


@pytest.mark.parametrize("num_parts", [1, 2, 4, 7, 40, 80])
def test_every_node_is_in_one_part(num_parts: int) -> None:
    part = partition(blobs(), 80, num_parts)
    assert part.shape == (80,)
    assert part.dtype == torch.long
    assert part.min() >= 0
    assert part.max() < num_parts
    batches = Clusters(Data(edge_index=blobs(), num_nodes=80), num_parts)
    whole = torch.cat([batches.batch(torch.tensor([k])).nodes for k in range(num_parts)])
    assert sorted(whole.tolist()) == list(range(80))


def test_few_edges_are_cut() -> None:
    edges = blobs()
    part = partition(edges, 80, 4)
    assert cut(edges, part) <= 12  # three edges, both directions, and a node or two astray
    random = torch.randint(4, (80,), generator=torch.Generator().manual_seed(0))
    assert cut(edges, random) > 10 * cut(edges, part)
    assert torch.bincount(part, minlength=4).max() <= 26


def test_loops_directions_and_repetitions_do_not_matter() -> None:
    edges = ring(30)
    half = edges[:, :30]
    loops = torch.arange(30).repeat(2, 1)
    for other in (half, torch.cat([edges, edges, loops], 1)):
        part = partition(other, 30, 3)
        assert torch.bincount(part, minlength=3).min() >= 5


def test_a_graph_without_edges_has_parts() -> None:
    part = partition(torch.zeros(2, 0, dtype=torch.long), 9, 3)
    assert part.shape == (9,)


@pytest.mark.parametrize("num_parts", [0, -1, 81, 2.0, "4"])
def test_more_parts_than_nodes_are_an_error(num_parts: int) -> None:
    with pytest.raises(virgo.OptionError, match="num_parts: expected a whole number from 1 to the"):
        partition(blobs(), 80, num_parts)


# --- the cache ----------------------------------------------------------------------------------


def test_the_second_time_needs_no_metis(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = partition(blobs(), 80, 4)
    (kept,) = empty_cache.iterdir()
    monkeypatch.setitem(sys.modules, "pymetis", None)
    assert torch.equal(partition(blobs(), 80, 4), first)
    with pytest.raises(virgo.VirgoError, match=r"pip install 'virgo-gnn\[clusters\]'"):
        partition(blobs(), 80, 5)
    with pytest.raises(virgo.VirgoError, match="requires pymetis"):  # another graph
        partition(blobs(seed=1), 80, 4)
    with pytest.raises(virgo.VirgoError, match="requires pymetis"):  # one more node
        partition(blobs(), 81, 4)
    assert [path.name for path in empty_cache.iterdir()] == [kept.name]


def test_two_calls_agree_without_the_cache(empty_cache: Path) -> None:
    first = partition(blobs(), 80, 4)
    for path in empty_cache.iterdir():
        path.unlink()
    assert torch.equal(partition(blobs(), 80, 4), first)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text",
        None,
        np.zeros(79, dtype=np.int32),
        np.full(80, 4, dtype=np.int32),
        np.zeros(80),
    ],
    ids=["empty", "text", "cut", "short", "range", "kind"],
)
def test_a_damaged_copy_is_made_again(empty_cache: Path, content: object) -> None:
    first = partition(blobs(), 80, 4)
    (kept,) = empty_cache.iterdir()
    if isinstance(content, np.ndarray):
        np.save(kept, content)
    else:
        kept.write_bytes(kept.read_bytes()[:100] if content is None else content)  # type: ignore[arg-type]
    assert torch.equal(partition(blobs(), 80, 4), first)
    np.testing.assert_array_equal(np.load(kept), first.numpy())


def test_an_interrupted_write_leaves_nothing(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*args: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(clusters.np, "save", full_disk)
    with pytest.raises(virgo.DataError, match=r"expected a writable cache, got No space left"):
        partition(blobs(), 80, 4)
    assert list(empty_cache.iterdir()) == []


# --- batches ------------------------------------------------------------------------------------


def test_batches_keep_the_edges_between_their_parts() -> None:
    edges = blobs()
    data = Data(edge_index=edges, num_nodes=80, x=torch.arange(80.0).view(-1, 1))
    data.edge_weight = torch.arange(edges.size(1)).float()
    found = Clusters(data, 4)
    part = partition(edges, 80, 4)
    crossing = 0
    for chosen in ([0], [2, 1], [3, 0, 2], [0, 1, 2, 3]):
        batch = found.batch(torch.tensor(chosen))
        inside = torch.isin(part, torch.tensor(chosen))
        assert torch.equal(batch.nodes.sort().values, inside.nonzero().view(-1))
        assert torch.equal(batch.x, data.x[batch.nodes])
        kept = inside[edges].all(0).nonzero().view(-1)
        whole = [tuple(row) for row in torch.cat([edges[:, kept], kept[None]]).t().tolist()]
        ends = batch.nodes[batch.edge_index]
        rows = torch.cat([ends, batch.edge_weight.long()[None]]).t().tolist()
        assert sorted(map(tuple, rows)) == sorted(whole)
        crossing += cut(ends, part)
    assert crossing > 0


def test_all_parts_are_the_graph() -> None:
    edges = ring(12)
    batch = Clusters(Data(edge_index=edges, num_nodes=12), 3).batch(torch.arange(3))
    ends = batch.nodes[batch.edge_index]
    assert sorted(map(tuple, ends.t().tolist())) == sorted(map(tuple, edges.t().tolist()))


def test_a_batch_may_have_no_edges() -> None:
    found = Clusters(Data(edge_index=ring(6), num_nodes=6), 6)
    for k in range(6):
        batch = found.batch(torch.tensor([k]))
        assert batch.edge_index.shape[0] == 2
        assert batch.num_nodes == batch.nodes.numel()

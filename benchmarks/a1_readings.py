"""Which reading of the released script gives the paper's A1? Writes out/a1_readings.json.

    python benchmarks/a1_readings.py                 # cora, citeseer, pubmed; a few minutes
    python benchmarks/a1_readings.py --publish       # writes results/a1_readings.json

The script stops as it stands, so what made the paper's table has to be guessed: each reading below
changes one thing of ``virgo.experiments.assumptions.released``. Twenty draws of weights and paths
each; for every length the mean over draws and the range that holds 95 % of them. A network has one
hidden layer per length, and paths have one edge more, as in the script.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from publishing import output_file
from torch_geometric.nn import GCN

import virgo
from virgo.experiments.assumptions.observations import ObservedNetwork
from virgo.experiments.assumptions.paper import printed
from virgo.experiments.assumptions.paths import Walks
from virgo.experiments.assumptions.released import (
    LISTED,
    NODES,
    PER_NODE,
    half_sums,
    simple_paths,
    whole,
)
from virgo.experiments.data import load_citation
from virgo.network import reading

SUMMARY = output_file("a1_readings.json")
GRAPHS = ("cora", "citeseer", "pubmed")
LENGTHS, EDGES, WIDTH, DRAWS = 3, 4, 256, 20

Rows = np.ndarray
Pick = Callable[[Rows, np.random.Generator], Rows]


def first_paths(paths: Rows, rng: np.random.Generator) -> Rows:
    return paths


def random_paths(paths: Rows, rng: np.random.Generator) -> Rows:
    return rng.permutation(paths)


def different_first_steps(paths: Rows, rng: np.random.Generator) -> Rows:
    return paths[np.sort(np.unique(paths[:, 1], return_index=True)[1])]


def disjoint(paths: Rows, rng: np.random.Generator) -> Rows:
    kept: list[Rows] = []
    for path in paths[:3000]:
        if all(not set(path[1:]) & set(other[1:]) for other in kept):
            kept.append(path)
        if len(kept) == PER_NODE:
            break
    return np.array(kept, dtype=np.int64).reshape(-1, paths.shape[1])


@dataclass(frozen=True)
class Reading:
    """One change: ``nodes[k]`` is the path's node at which hidden layer k decides delta."""

    words: str
    nodes: tuple[int, ...] = (1, 2, 3)
    pick: Pick = first_paths
    width: int = WIDTH
    features: bool = False
    normalised: bool = False
    epochs: int = 0
    edges: int = EDGES


READINGS = (
    Reading("as released, repaired: the first factor is the first hidden layer at the second node"),
    Reading("each hidden layer one node further along the path", nodes=(2, 3, 4)),
    Reading("each hidden layer one node earlier: all paths share their first factor", (0, 1, 2)),
    Reading("not repaired: hidden layers as wide as the features, which stay a factor",
            features=True),
    Reading("the path read from its other end", nodes=(3, 2, 1)),
    Reading("the appendix's order of layers: the last one at the first node", nodes=(2, 1, 0)),
    Reading("paths with one edge per hidden layer", edges=3),
    Reading("three random paths of a node", pick=random_paths),
    Reading("three paths with different second nodes", pick=different_first_steps),
    Reading("three paths with no common node after the first", pick=disjoint),
    Reading("64 neurons", width=64),
    Reading("128 neurons", width=128),
    Reading("512 neurons", width=512),
    Reading("features divided by their row sums, as DGL loads them", normalised=True),
    Reading("weights trained for 100 epochs", epochs=100),
)  # fmt: skip


class Graph:
    """Features, operator and the simple paths of each node, listed once."""

    def __init__(self, name: str) -> None:
        self.data = load_citation(name)
        inputs = reading.read(self.data)
        self.walks = Walks.over(inputs.graph(None).gcn())
        self.x = self.data.x.double().numpy()
        self._paths: dict[tuple[int, int], Rows] = {}
        self._networks: dict[tuple, ObservedNetwork] = {}
        self._xavier: dict[int, tuple[GCN, virgo.Plan]] = {}

    def features(self, normalised: bool) -> Rows:
        sums = self.x.sum(axis=1, keepdims=True)
        return self.x / np.where(sums > 0, sums, 1.0) if normalised else self.x

    def groups(self, one: Reading, rng: np.random.Generator) -> Rows:
        """Three paths of each of ten nodes."""
        return np.stack(list(self._groups(one, rng)))

    def _groups(self, one: Reading, rng: np.random.Generator) -> Iterator[Rows]:
        number, counts = 0, self.walks.counts(one.edges)
        for start in rng.permutation(len(self.x)).tolist():
            if counts[start] > LISTED:
                continue
            key = (start, one.edges)
            if key not in self._paths:
                self._paths[key] = simple_paths(self.walks, start, one.edges)
            paths = one.pick(self._paths[key], rng)
            if len(paths) >= PER_NODE:
                yield paths[:PER_NODE]
                number += 1
            if number == NODES:
                return

    def network(self, one: Reading, seed: int) -> ObservedNetwork:
        """Most readings look at the same network."""
        width = self.x.shape[1] if one.features else one.width
        key = (width, one.normalised, one.epochs, seed)
        if key not in self._networks:
            self._networks = {k: v for k, v in self._networks.items() if k[-1] == seed}
            self._networks[key] = self._network(one, width, seed)
        return self._networks[key]

    def _network(self, one: Reading, width: int, seed: int) -> ObservedNetwork:
        if width not in self._xavier:
            classes = int(self.data.y.max()) + 1
            model = GCN(self.x.shape[1], width, LENGTHS + 1, classes, bias=False)
            self._xavier[width] = (model, virgo.plan(model, self.data, "xavier"))
        model, plan = self._xavier[width]
        plan.apply_(model, seed=seed)
        if one.epochs:
            self._train(model, one.epochs)
        weights = [conv.lin.weight.detach().double().numpy().T.copy() for conv in model.convs[:-1]]
        return ObservedNetwork.run(self.features(one.normalised), weights, self.walks.propagate)

    def _train(self, model: GCN, epochs: int) -> None:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        mask = self.data.train_mask
        for _ in range(epochs):
            optimizer.zero_grad()
            out = model(self.data.x, self.data.edge_index)
            torch.nn.functional.cross_entropy(out[mask], self.data.y[mask]).backward()
            optimizer.step()


def drawn(graph: Graph, one: Reading, draw: int) -> list[float]:
    """A1 of one draw, by the number of factors of delta."""
    rng = np.random.default_rng([11, draw])
    network, paths = graph.network(one, seed=draw), graph.groups(one, rng)
    layers = [network.x, *network.before[:-1]] if one.features else list(network.before)
    neurons = network.before[0].shape[1]
    is_open = np.ones((*paths.shape[:-1], neurons), dtype=bool)
    products, found = np.ones(neurons), []
    for layer, node, weight in zip(layers, one.nodes, network.weights, strict=True):
        is_open &= layer[paths[..., node]] > 0
        products = products * weight.ravel()[rng.choice(weight.size, neurons, replace=False)]
        sums = half_sums(is_open * products, rng)
        found.append(float(np.nanmean([whole(rows) for rows in sums])))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", nargs="+", default=GRAPHS)
    parser.add_argument("--draws", type=int, default=DRAWS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    began, readings = time.perf_counter(), {one.words: {} for one in READINGS}
    for name in args.graphs:
        graph = Graph(name)
        found: dict[str, list[list[float]]] = {one.words: [] for one in READINGS}
        for draw in range(args.draws):
            for one in READINGS:
                # thousands of neurons and training take long; three draws show where they are
                if draw < 3 or not (one.features or one.epochs):
                    found[one.words].append(drawn(graph, one, draw))
        for words, draws in found.items():
            low, high = np.quantile(draws, [0.025, 0.975], axis=0)
            readings[words][name] = {
                "mean": np.mean(draws, axis=0).round(4).tolist(),
                "low": low.round(4).tolist(),
                "high": high.round(4).tolist(),
                "draws": len(draws),
            }
            print(name, words, np.mean(draws, axis=0).round(2), flush=True)
    summary = {
        "command": "python benchmarks/a1_readings.py --publish",
        "paper": {name: printed("est_mpaths", name) for name in args.graphs},
        "readings": readings,
        "seconds": round(time.perf_counter() - began, 1),
    }
    SUMMARY.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

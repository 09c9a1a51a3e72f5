"""What an epoch of graph classification costs, by how batches of graphs are made.

    python benchmarks/graph_batches.py --threads 1  # some minutes
    python benchmarks/graph_batches.py --rounds 1   # a look; writes nothing

One network from the same weights, the same graphs in the same order, no dropout, one training epoch
each in turn, whoever is first changing from round to round:

ours:   what ``virgo train`` does: batches cut from the merged graphs by index arithmetic, layers as
        products with the operator's rows (imdb-b), bonds embedded by kind (ogbg-molhiv)
pyg:    PyG's ``DataLoader`` over a list of ``Data`` with their features made beforehand, and layers
        as PyG and OGB's examples have them on ``edge_index``
module: (ogbg-molhiv) the ``DataLoader``, but our layers: what the layers alone are worth

A ratio is the median over rounds of an epoch's time to the same round's ``ours``; ``cpu_`` is the
processor time of all threads, in which neighbours on the machine do not count. ``batches`` is the
making of an epoch's batches without a network. ``loss`` is the first epoch's mean training loss of
each, ``disagreement`` its relative difference to ours in the first step and in the mean over the
epoch: the same network, with additions in another order.
Rewrites results/graph_batches.json.
Without ``--publish`` the file goes to out/, and the published one stays as it is.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from publishing import output_file
from torch import Tensor, nn
from torch_geometric.loader import DataLoader
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import degree
from turns import in_turns

import virgo
from virgo.experiments.models.molecules import MoleculeGCNConv, MoleculeNetwork
from virgo.experiments.tasks import Settings
from virgo.experiments.tasks.graph import GraphTask
from virgo.experiments.tasks.starts import transposed_in_memory

SUMMARY = output_file("graph_batches.json")
MODELS = ("gcn", "gin")
#: A configuration of each dataset's grid. At most so many training graphs are used, and so many
#: times the rounds asked for, as an epoch on imdb-b is short.
CONFIGS: dict[str, dict[str, Any]] = {
    "imdb-b": {"hidden_channels": 64, "num_layers": 5, "batch_size": 128, "lr": 0.001},
    "ogbg-molhiv": {"hidden_channels": 300, "num_layers": 5, "batch_size": 32, "lr": 0.001},
}
MOST = 1024
TIMES = {"imdb-b": 5, "ogbg-molhiv": 1}
#: Relative difference of a step's losses that additions in another order may leave, at most.
SAME_STEP, SAME_EPOCH = 1e-4, 1e-2


class Plain(MessagePassing):
    """A molecule layer as OGB's examples have it, with the weights of ours."""

    def __init__(self, conv: Any) -> None:
        super().__init__(aggr="add")
        self.conv, self.is_gcn = conv, isinstance(conv, MoleculeGCNConv)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """The layer's output: three look-ups and two sums a bond."""
        bonds = self.conv.bond_encoder(edge_attr)
        if not self.is_gcn:
            norm = x.new_ones(edge_index.size(1))
            own = (1 + self.conv.eps) * x
            out: Tensor = self.conv.mlp(
                own + self.propagate(edge_index, x=x, bonds=bonds, norm=norm)
            )
            return out
        x = self.conv.linear(x)
        row, col = edge_index
        deg = degree(row, x.size(0), dtype=x.dtype) + 1
        norm = deg.pow(-0.5)[row] * deg.pow(-0.5)[col]
        own = (x + self.conv.root_emb.weight).relu() / deg.view(-1, 1)
        added: Tensor = self.propagate(edge_index, x=x, bonds=bonds, norm=norm)
        return added + own

    def message(self, x_j: Tensor, bonds: Tensor, norm: Tensor) -> Tensor:
        """A neighbour with its bond."""
        return norm.view(-1, 1) * (x_j + bonds).relu()


class Run:
    """A network in training that can be asked for one more epoch."""

    def __init__(self, task: GraphTask, model: nn.Module, graphs: Tensor, config: dict) -> None:
        self.task, self.model, self.size = task, copy.deepcopy(model), config["batch_size"]
        self.graphs, self.rounds = graphs, 0
        self.losses: list[list[float]] = []
        self.prepare()
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=config["lr"], fused=True)

    def prepare(self) -> None:
        """What a run makes once."""

    def order(self) -> Tensor:
        """The graphs of the next epoch, as numbers of ``self.graphs``."""
        rng = np.random.default_rng([0, self.rounds])
        return torch.from_numpy(rng.permutation(self.graphs.numel()))

    def outputs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Output and labels, batch by batch."""
        raise NotImplementedError

    def batches(self) -> None:
        """The making of an epoch's batches alone."""
        raise NotImplementedError

    def epoch(self) -> None:
        """One epoch."""
        self.model.train()
        losses = []
        for output, y in self.outputs():
            self.optimiser.zero_grad()
            loss = self.task.loss(output, y)
            losses.append(loss.item())
            loss.backward()
            self.optimiser.step()
        self.losses.append(losses)
        self.rounds += 1


class Ours(Run):
    """Cut from the merged graphs."""

    def prepare(self) -> None:
        if self.task.merged.ids is not None:
            transposed_in_memory(self.model.convs[0])

    def outputs(self) -> Iterator[tuple[Tensor, Tensor]]:
        for graphs in self.graphs[self.order()].split(self.size):
            yield self.task.output(self.model, graphs), self.task.y[graphs]

    def batches(self) -> None:
        for graphs in self.graphs[self.order()].split(self.size):
            if isinstance(self.model, MoleculeNetwork):
                self.task.merged.take(graphs)
            else:
                self.task.merged.batch(graphs)
                for name in self.model.operators:
                    self.task.merged.operator(name, graphs)


class Pyg(Run):
    """PyG's loader, and its layers."""

    plain = True

    def prepare(self) -> None:
        self.data = [self.task.dataset.data[i] for i in self.graphs.tolist()]
        self.molecules = isinstance(self.model, MoleculeNetwork)
        if self.plain and self.molecules:
            self.model.convs = nn.ModuleList(Plain(conv) for conv in self.model.convs)

    def loader(self) -> DataLoader:
        """The epoch's batches."""
        return DataLoader(self.data, batch_size=self.size, sampler=self.order().tolist())

    def outputs(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.loader():
            y = batch.y.float() if self.molecules else batch.y
            yield self.output(batch), y

    def output(self, batch: Any) -> Tensor:
        """The network's output."""
        model: Any = self.model
        ends = (batch.batch, batch.num_graphs)
        if not self.molecules:
            return model(batch.x, batch.edge_index, *ends)
        if not self.plain:
            return model(batch.x, batch.edge_index, batch.edge_attr, *ends)
        return model.run(
            model.atom_encoder(batch.x),
            lambda layer, h: model.convs[layer](h, batch.edge_index, batch.edge_attr),
            *ends,
        )

    def batches(self) -> None:
        for _ in self.loader():
            pass


class Module(Pyg):
    """PyG's loader, and our layers."""

    plain = False


def agreement(runs: dict[str, Run]) -> dict[str, Any]:
    """The first epoch's losses; an error if the engines train different networks."""
    ours = np.array(runs["ours"].losses[0])
    found: dict[str, Any] = {"loss": {}, "disagreement": {}}
    for key, run in runs.items():
        losses = np.array(run.losses[0])
        found["loss"][key] = round(float(losses.mean()), 6)
        if key == "ours":
            continue
        first = abs(float(losses[0] / ours[0]) - 1)
        mean = abs(float(losses.mean() / ours.mean()) - 1)
        found["disagreement"][key] = {
            "first_step": float(f"{first:.1e}"),
            "epoch": float(f"{mean:.1e}"),
        }
        if not (first < SAME_STEP and mean < SAME_EPOCH):
            sys.exit(f"{key} and ours differ: {losses[0]} and {ours[0]} in the first step")
    return found


def measure(task: GraphTask, name: str, rounds: int) -> dict[str, Any]:
    """Epochs of one network by every way of making batches."""
    config = CONFIGS[task.dataset.name]
    settings = Settings(dropout=0.0, **{k: v for k, v in config.items() if k != "batch_size"})
    torch.manual_seed(0)
    model = task.build(name, settings)
    train = task.split_of(0)["train"]
    chosen = np.random.default_rng(0).permutation(train.numel())[:MOST]
    graphs = train[torch.from_numpy(np.sort(chosen))]
    kinds: dict[str, type[Run]] = {"ours": Ours, "pyg": Pyg}
    if task.is_molecules:
        kinds["module"] = Module
    runs = {key: kind(task, model, graphs, config) for key, kind in kinds.items()}
    label = f"{task.dataset.name} {name}"
    epochs = in_turns(label, {key: run.epoch for key, run in runs.items()}, rounds)
    made = {key: runs[key].batches for key in ("ours", "pyg")}
    batches = in_turns(f"{label}, batches", made, rounds)
    return {"epoch": epochs, "batches": batches, **agreement(runs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", nargs="*", choices=list(CONFIGS), default=list(CONFIGS))
    parser.add_argument(
        "--rounds",
        type=int,
        default=4,
        help="epochs of each (default 4; on imdb-b five times as many)",
    )
    parser.add_argument("--root", type=Path, help="data root")
    parser.add_argument("--threads", type=int, help="of PyTorch (default: all cores)")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    found: dict[str, Any] = {}
    for dataset in args.datasets:
        task = GraphTask(virgo.data.load(dataset, args.root))
        number = min(MOST, task.split_of(0)["train"].numel())
        rounds = TIMES[dataset] * args.rounds
        found[dataset] = {**CONFIGS[dataset], "graphs": number, "rounds": rounds}
        for name in MODELS:
            cell = found[dataset][name] = measure(task, name, rounds)
            line = ", ".join(
                f"{key} {one['cpu_ms']:.0f} ms (cpu x{one['cpu_ratio']:.2f}, x{one['ratio']:.2f})"
                for key, one in cell["epoch"].items()
            )
            print(f"{dataset} {name}, an epoch: {line}; {cell['disagreement']}")
    if set(args.datasets) == set(CONFIGS) and args.rounds > 1:
        facts = {
            "command": "python benchmarks/graph_batches.py --threads 1",
            "dropout": 0.0,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "machine": platform.machine(),
        }
        SUMMARY.parent.mkdir(exist_ok=True)
        SUMMARY.write_text(json.dumps({**facts, "datasets": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What a training step on ogbl-ddi costs, by how the graph is multiplied with.

    python benchmarks/ddi_step.py               # some minutes, on all cores
    python benchmarks/ddi_step.py --rounds 1    # a look; writes nothing

One network (2 layers of width 256), one batch size (32,768 edges and as many negatives), one step
each in turn, whoever is first changing from round to round:

sparse:  what ``virgo train`` does: one CSR matrix
dense:   one dense matrix
pyg:     PyG's layers as they are on ``edge_index``, the decoder and its dropout as PyTorch has them

A ratio is the median over rounds of a step's time to the same round's ``sparse``; ``cpu_`` is the
processor time of all threads, in which neighbours on the machine do not count. ``encoder`` is the
encoder's part alone (forward and backward, no decoder), ``product`` one multiplication of the
operator with a matrix of width 256. ``advantage`` is how many multiplications of a dense product
take the time of one of a sparse product.

Writes results/ddi_step_csr.json. results/ddi_step.json is the record of what was measured while
there was a third form, dense blocks of the fuller corner of the matrix beside a sparse rest: a step
with one CSR matrix took x1.2 as long on this one dataset, which did not pay for its code.
Without ``--publish`` the file goes to out/, and the published one stays as it is.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
from pathlib import Path
from typing import Any

import numpy as np
import torch
from publishing import output_file
from torch import nn
from turns import in_turns

import virgo
from virgo.experiments.models.convolutions import operator_entries
from virgo.experiments.models.link import LinkModel, build_link, link_loss
from virgo.experiments.tasks.encoding import Encoding
from virgo.experiments.tasks.fused import Constant, csr
from virgo.experiments.tasks.link import LinkTask, pairs

SUMMARY = output_file("ddi_step_csr.json")
FORMS = ("sparse", "dense")
CONFIG = {"hidden_channels": 256, "num_layers": 2, "dropout": 0.5}
BATCH, CLIP = 32768, 1.0


class Run:
    """A model in training that can be asked for one more step, or for its encoder's part of it."""

    def __init__(self, task: LinkTask, name: str, form: str | None) -> None:
        torch.manual_seed(0)
        data = task.dataset.data
        self.task, self.data = task, data
        self.model: LinkModel = build_link(name, 0, data.num_nodes, CONFIG)
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=0.005, fused=True)
        self.rng = np.random.default_rng(0)
        self.encoding = None
        if form is not None:
            self.encoding = Encoding.whole(data, self.model.operators, 2)
        if form == "dense":
            hop = {name: dense(matrix) for name, matrix in self.encoding.hops[0].items()}
            self.encoding = Encoding(None, [hop, hop])

    def encode(self) -> torch.Tensor:
        """Every node's embedding, as in training."""
        if self.encoding is None:
            return self.model(None, self.data.edge_index)
        return self.encoding(self.model.encoder, self.model.learned(), self.rng)

    def encoder(self) -> None:
        """The encoder's forward and backward pass."""
        self.encode().sum().backward()

    def step(self) -> None:
        """One step."""
        edges = self.task.positive
        positive = edges[:, torch.from_numpy(self.rng.integers(edges.size(1), size=BATCH))]
        negative = self.task.negatives(positive, self.rng)
        self.optimiser.zero_grad()
        h = self.encode()
        if self.encoding is None:
            link_loss(self.model.score(h, positive), self.model.score(h, negative)).backward()
        else:
            pairs.backward(self.model, h, positive, negative, self.rng)
        for group in self.model.groups():
            nn.utils.clip_grad_norm_(group, CLIP)
        self.optimiser.step()


def dense(operator: Constant | int) -> Constant | int:
    """An operator as a dense matrix; a number of leading rows stays one."""
    if isinstance(operator, int):
        return operator
    return Constant.dense(operator.matrix.to_dense())


def products(task: LinkTask, rounds: int) -> dict[str, Any]:
    """One multiplication with the GCN operator in every form."""
    data, number = task.dataset.data, int(task.dataset.data.num_nodes)
    entries = operator_entries("gcn", data.edge_index, number)
    x = torch.randn(number, CONFIG["hidden_channels"])
    matrix = csr(*entries, (number, number))
    full = matrix.to_dense()
    actions = {"sparse": lambda: matrix @ x, "dense": lambda: full @ x}
    times: dict[str, Any] = in_turns("product", actions, 10 * rounds)
    density = entries[0].numel() / number**2
    advantage = times["sparse"]["cpu_ms"] / times["dense"]["cpu_ms"] / density
    return times | {"density": round(density, 4), "advantage": round(advantage, 2)}


def measure(task: LinkTask, name: str, rounds: int) -> dict[str, Any]:
    """Steps of one model in every form, and of its encoder alone."""
    runs = {form: Run(task, name, form) for form in FORMS} | {"pyg": Run(task, name, None)}
    steps = in_turns(f"{name}, step", {key: run.step for key, run in runs.items()}, rounds)
    encoders = {key: run.encoder for key, run in runs.items()}
    return {"step": steps, "encoder": in_turns(f"{name}, encoder", encoders, rounds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", choices=("gcn", "sage"), default=["gcn", "sage"])
    parser.add_argument("--rounds", type=int, default=9, help="steps of each (default 9)")
    parser.add_argument("--root", type=Path, help="data root")
    parser.add_argument("--threads", type=int, help="of PyTorch (default: all cores)")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    task = LinkTask(virgo.data.load("ogbl-ddi", args.root))
    found: dict[str, Any] = {"product": products(task, args.rounds)}
    for name in args.models:
        found[name] = measure(task, name, args.rounds)
        line = ", ".join(
            f"{key} {cell['ms']:.0f} ms (x{cell['ratio']:.2f}, cpu x{cell['cpu_ratio']:.2f})"
            for key, cell in found[name]["step"].items()
        )
        print(f"{name}, a step: {line}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps(found["product"]), f"peak {peak:.1f} GB")
    if set(args.models) == {"gcn", "sage"} and args.rounds > 1:
        command = "python benchmarks/ddi_step.py"
        command += f" --threads {args.threads}" if args.threads else ""
        facts = {"command": command, "rounds": args.rounds, "batch": BATCH}
        facts |= CONFIG | {"threads": torch.get_num_threads(), "torch": torch.__version__}
        facts |= {"machine": platform.machine(), "peak_gb": round(peak, 2)}
        SUMMARY.parent.mkdir(exist_ok=True)
        SUMMARY.write_text(json.dumps({**facts, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

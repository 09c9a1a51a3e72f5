"""How deep can a plain GNN be, by initialisation? The study of docs/depth.md.

    python benchmarks/depth.py                          # goes on where it stopped
    python benchmarks/depth.py --datasets cora --depths 8 16 --inits spectral lsuv --seeds 10
    python benchmarks/depth.py --publish                # results/ and the picture

One study on the engine of the sweeps (`virgo.experiments.study`): stopped at any moment, the same
command goes on. Networks are PyG's own, 64 wide, without residuals or norms; Adam, weight decay
5e-4; features row-normalised; at most 200 epochs, patience 30, the epoch by validation accuracy,
tested once there. Per cell (dataset, network, depth, method) one small grid of learning rates and
dropout, the same for every method, is screened by validation with two seeds (at 2 layers, where
configurations differ by less than seeds do, with five), and the best one runs with all seeds.
Citation graphs have their public split; Photo, Computers and CS one split per seed, 20 nodes of
each class to train and 30 to validate. GCNII, which has residuals, is the ceiling. Without the
datasets it refuses: an accuracy on a generated graph means nothing.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gat_layer import gat
from plain_gcn import Workspace
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN, GIN, GCN2Conv, GraphSAGE
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import add_self_loops, to_scipy_sparse_matrix

import virgo
from virgo.experiments import study
from virgo.experiments.sweep import records
from virgo.experiments.sweep.tables import build_study
from virgo.experiments.tasks.fused import Constant, relu_dropout
from virgo.report.results import accuracy_over_depth

ROOT = Path(__file__).resolve().parent.parent
NAME = "depth_study"
RECORDS = ROOT / "results" / f"{NAME}.jsonl"
#: The picture: datasets, and at most seven lines.
PANELS = ("cora", "citeseer", "pubmed", "cs")
SHOWN = (
    "classes held", "spectral", "mirrored", "kaiming-backward", "lsuv", "orthogonal", "g-init",
)  # fmt: skip
CITATION, SEEDED = ("cora", "citeseer", "pubmed"), ("photo", "computers", "cs")
DEPTHS = (2, 4, 8, 16, 32, 64)
SPLITS, WIDTH, EPOCHS, PATIENCE, WEIGHT_DECAY = 10, 64, 200, 30, 5e-4
FEWEST = 5  # seeds of a cell that is drawn
SCREENED, SCREENED_AT_TWO = 2, 5  # seeds that screen a configuration
#: A deep network moves by the product of its layers' steps, so rates fall with depth; dropout
#: multiplies its noise by every layer too.
GRIDS: dict[int, dict[str, list[float]]] = {
    2: {"lr": [0.05, 0.01, 0.003], "dropout": [0.8, 0.5, 0.0]},
    4: {"lr": [0.01, 0.003], "dropout": [0.5, 0.0]},
    8: {"lr": [0.01, 0.003, 0.001, 0.0003], "dropout": [0.25, 0.0]},
    16: {"lr": [0.003, 0.001, 0.0003], "dropout": [0.0]},
    32: {"lr": [0.001, 0.0003], "dropout": [0.0]},
    64: {"lr": [0.001, 0.0003, 0.0001], "dropout": [0.0]},
}
#: The ceiling has its paper's settings at every depth: residuals let it take large steps.
CEILING = {"lr": [0.01, 0.003], "dropout": [0.6]}


def latched(model: nn.Module, data: Data, seed: int) -> None:
    """Most channels hold a sign (:func:`virgo.latch_`)."""
    virgo.latch_(model, data, seed=seed)


def spectral_fitted(model: nn.Module, data: Data, seed: int) -> None:
    """Spectral weights, the last layer by ridge regression on the training labels."""
    virgo.init_(model, data, "virgo+spectral", seed=seed)
    virgo.fit_last_(model, data)


def latched_fitted(model: nn.Module, data: Data, seed: int) -> None:
    """Latches, the last layer by ridge regression on the training labels."""
    virgo.latch_(model, data, seed=seed)
    virgo.fit_last_(model, data)


def classes_held(model: nn.Module, data: Data, seed: int, **options: Any) -> None:
    """Latches that hold the class the first layers tell, the last layer by ridge regression."""
    virgo.latch_(model, data, hold="classes", seed=seed, **options)
    virgo.fit_last_(model, data)


def spectral_unit_logits(model: nn.Module, data: Data, seed: int) -> None:
    """Spectral weights, every layer times one factor, so that logits deviate by one."""
    if not isinstance(model, GCN):
        raise virgo.LayerError(f"spectral, unit logits: expected a GCN, got {type(model)}.")
    virgo.init_(model, data, "virgo+spectral", seed=seed)
    with torch.no_grad():
        logits = model.eval()(data.x, data.edge_index)
        deviation = (logits - logits.mean(0)).square().mean().sqrt()
        for conv in model.convs:  # without biases a ReLU network is homogeneous
            conv.lin.weight /= deviation ** (1 / len(model.convs))


#: Ours and the related work's; the first twelve are run first. What is fitted uses training labels.
INITS: dict[str, Any] = {
    "spectral": "virgo+spectral",
    "latched": latched,
    "spectral, fitted": spectral_fitted,
    "latched, fitted": latched_fitted,
    "classes held": classes_held,
    "mirrored": "virgo-backward+mirrored",
    "virgo-backward": "virgo-backward",
    "kaiming-backward": "kaiming-backward",
    "PyG's default": "default",
    "lsuv": "lsuv",
    "orthogonal": "orthogonal",
    "g-init": "g-init",
    "auto": "auto",
    "xavier": "xavier",
    "virgo-forward": "virgo-forward",
    "measured": "virgo-backward+measured",
    "isometric": "isometric",
    "identity": "identity",
    "random-walk": "random-walk",
    "spog": "spog",
    "gat-balanced": "gat-balanced",
    "spectral, unit logits": spectral_unit_logits,
}


class GCNII(nn.Module):
    """The ceiling: initial residuals and identity maps (Chen et al. 2020)."""

    def __init__(
        self, in_channels: int, hidden_channels: int, num_layers: int, out_channels: int,
        dropout: float = 0.6,
    ) -> None:  # fmt: skip
        super().__init__()
        self.first = nn.Linear(in_channels, hidden_channels)
        self.last = nn.Linear(hidden_channels, out_channels)
        self.convs = nn.ModuleList(
            GCN2Conv(hidden_channels, 0.1, 0.5, layer) for layer in range(1, num_layers + 1)
        )
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        drop = partial(functional.dropout, p=self.dropout, training=self.training)
        h = start = self.first(x).relu()
        for conv in self.convs:
            h = conv(drop(h), start, edge_index).relu()
        return self.last(drop(h))


def network(kind: type[nn.Module], **options: Any) -> Any:
    """A function that makes one of PyG's networks, with the arguments that a study gives."""

    def make(
        in_channels: int, hidden_channels: int, num_layers: int, out_channels: int, dropout: float
    ) -> nn.Module:
        return kind(
            in_channels, hidden_channels, num_layers, out_channels, dropout=dropout, **options
        )

    return make


MODELS = {
    "gcn": network(GCN, cached=True),
    "sage": network(GraphSAGE),
    "gin": network(GIN),
    "gat": network(GAT, heads=4),
    "gcnii": network(GCNII),
}


def load(name: str) -> Data:
    """A dataset with row-normalised features, and the splits of all seeds.

    Nodes are put in an order in which neighbours are close (reverse Cuthill-McKee), so that a
    product with the operator finds their rows in the processor's cache: half of its time.
    """
    if name in CITATION:
        data = virgo.data.load(name).data
    else:
        data = virgo.data.load(name, split=0).data
        masks = {key: [data[key]] for key in ("train_mask", "val_mask", "test_mask")}
        for seed in range(1, SPLITS):  # one at a time: CS has half a gigabyte of features
            split = virgo.data.load(name, split=seed).data
            for key, parts in masks.items():
                parts.append(split[key])
        for key, parts in masks.items():
            data[key] = torch.stack(parts, 1)
    data.x = data.x / data.x.sum(1, keepdim=True).clamp(min=1e-12)
    adjacency = to_scipy_sparse_matrix(data.edge_index, num_nodes=data.num_nodes).tocsr()
    order = reverse_cuthill_mckee(adjacency, symmetric_mode=True)
    return with_constants(data.subgraph(torch.from_numpy(order.copy()).long()))


def with_constants(data: Data) -> Data:
    """The data with its features and operators as matrices that :func:`output` multiplies with."""
    row, col = data.x.nonzero().t()
    sparse = Constant.sparse(row, col, data.x[row, col], tuple(data.x.shape))
    data.constant_x = min(sparse, Constant.dense(data.x), key=attrgetter("work"))
    square = (data.num_nodes,) * 2
    (source, target), weight = gcn_norm(data.edge_index, num_nodes=data.num_nodes)
    data.operator = Constant.sparse(target, source, weight, square)
    data.workspace = Workspace(data.operator, data.constant_x)
    source, target = data.edge_index
    count = torch.bincount(target, minlength=data.num_nodes)
    data.mean = Constant.sparse(target, source, 1 / count[target], square)
    row, col = add_self_loops(data.edge_index, num_nodes=data.num_nodes)[0].flip(0)
    data.sum = Constant.sparse(row, col, torch.ones(row.numel()), square)
    return data


Times = Callable[[Tensor], Tensor]
Drop = Callable[[Tensor, float], Tensor]


def output(model: nn.Module, data: Data, rng: np.random.Generator | None = None) -> Tensor:
    """All logits, with dropout in training; PyG's layers by hand.

    Autograd would transpose a sparse matrix at every step, and PyTorch's dropout would take most
    of a shallow network's time (:mod:`virgo.experiments.tasks.fused`).
    """

    def drop(h: Tensor, p: float) -> Tensor:  # every h is behind a ReLU
        return relu_dropout(h, p, rng) if model.training and p else h

    if isinstance(model, GCNII):
        return _gcnii(model, data, drop)
    layer, p = LAYERS[type(model)], model.dropout.p
    if isinstance(model, GCN) and model.training and not p:
        return data.workspace.logits(model.convs)
    times, last = data.constant_x.__matmul__, model.convs[-1]
    for conv in model.convs:
        h = layer(conv, data, times, conv is not last, drop)
        times = drop(h, p).matmul if conv is not last else None
    return h


def _gcn(conv: nn.Module, data: Data, times: Times, relu: bool, drop: Drop) -> Tensor:
    return data.operator.propagate(times(conv.lin.weight.t()), conv.bias, relu=relu)


def _sage(conv: nn.Module, data: Data, times: Times, relu: bool, drop: Drop) -> Tensor:
    own = times(conv.lin_r.weight.t()) + conv.lin_l.bias
    return data.mean.propagate(times(conv.lin_l.weight.t()), own, relu=relu)


def _gin(conv: nn.Module, data: Data, times: Times, relu: bool, drop: Drop) -> Tensor:
    first, second = conv.nn.lins
    h = second(data.sum.propagate(times(first.weight.t()), first.bias, relu=True))
    return h.relu() if relu else h


def _gat(conv: nn.Module, data: Data, times: Times, relu: bool, drop: Drop) -> Tensor:
    h = gat(conv, times(conv.lin.weight.t()), data.operator, drop) + conv.bias
    return h.relu() if relu else h


def _gcnii(model: GCNII, data: Data, drop: Drop) -> Tensor:
    """A layer is ``((1 - alpha) P h + alpha h_0) ((1 - beta) I + beta W)``: two products."""
    p = model.dropout
    h = start = data.constant_x.propagate(model.first.weight.t(), model.first.bias, relu=True)
    for conv in model.convs:
        kept, weight = 1 - conv.alpha, conv.beta * conv.weight1
        weight = weight + (1 - conv.beta) * torch.eye(WIDTH)
        h = data.operator.propagate(drop(h, p), conv.alpha / kept * start) @ (kept * weight)
        h = h if model.training and p else h.relu()  # dropout has its own
    return model.last(drop(h, p))


LAYERS = {GCN: _gcn, GraphSAGE: _sage, GIN: _gin, GAT: _gat}


def train(model: nn.Module, data: Data, config: dict[str, Any], seed: int) -> dict[str, Any]:
    """Full batches, the epoch with the best validation accuracy tested."""
    masks = [data[name] for name in ("train_mask", "val_mask", "test_mask")]
    train_mask, val_mask, test_mask = (m if m.ndim == 1 else m[:, seed % SPLITS] for m in masks)
    optimiser = torch.optim.Adam(model.parameters(), lr=config["lr"], weight_decay=WEIGHT_DECAY)
    best: dict[str, Any] = {"valid": -math.inf, "test": math.nan, "epoch": 0}  # as if diverged
    curve = []
    rng = np.random.default_rng(seed)
    for epoch in range(EPOCHS):
        model.train()
        optimiser.zero_grad()
        logits = output(model, data, rng)
        loss = functional.cross_entropy(logits[train_mask], data.y[train_mask])
        if not torch.isfinite(loss):
            break
        if config["dropout"]:  # otherwise the training pass is the evaluation pass
            model.eval()
            with torch.no_grad():
                logits = output(model, data)
        right = logits.detach().argmax(1) == data.y
        valid, test = (right[mask].float().mean().item() for mask in (val_mask, test_mask))
        curve.append((epoch, valid))
        if valid > best["valid"]:
            best = {"valid": valid, "test": test, "epoch": epoch}
        if epoch - best["epoch"] >= PATIENCE:
            break
        loss.backward()
        optimiser.step()
    reached = next(e for e, v in curve if v >= 0.95 * best["valid"]) if curve else 0
    return {**best, "epochs": len(curve), "curve": [(reached, 0.95 * best["valid"])]}


def _place(record: records.Record) -> tuple[object, ...]:
    return record.dataset, record.model, record.init, record.config["num_layers"]


def publish(out: Path) -> None:
    """Merge what was run into results/ and draw it; `python docs/refresh.py` fills the tables."""
    new = records.read(out / f"{NAME}.jsonl")
    old = records.read(RECORDS) if RECORDS.is_file() else []
    found = records.merge(old, new)
    records.write(RECORDS, found)
    full = {_place(r) for r in found if len(r.seeds) >= FEWEST}
    shown = [r for r in found if _place(r) in full and r.dataset in PANELS and r.init in SHOWN]
    shown = [r for r in shown if r.model == "gcn"]
    depths = {name: {_place(r)[-1] for r in shown if r.dataset == name} for name in PANELS}
    shown = [r for r in shown if len(depths[r.dataset]) > 2]  # fewer make no line
    methods = [init for init in SHOWN if any(r.init == init for r in shown)]
    table = build_study(NAME, shown, methods, ["num_layers"]).to_dict()
    table["cells"] = sorted(table["cells"], key=lambda cell: PANELS.index(cell["dataset"]))
    figure = accuracy_over_depth(table)
    figure.savefig(ROOT / "docs" / "images" / "depth.png", dpi=200)
    print(f"{len(found)} records in {RECORDS.relative_to(ROOT)}")


def main() -> None:
    warnings.filterwarnings("ignore", "Sparse (CSR|invariant)")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", nargs="*", choices=CITATION + SEEDED, default=list(CITATION))
    parser.add_argument("--models", nargs="*", choices=MODELS, default=["gcn"])
    parser.add_argument("--depths", type=int, nargs="*", choices=DEPTHS, default=DEPTHS)
    parser.add_argument("--inits", nargs="*", choices=INITS, default=list(INITS)[:12])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "out")
    parser.add_argument(
        "--publish", action="store_true", help="run nothing; write results/ from what was run"
    )
    args = parser.parse_args()
    if args.publish:
        publish(args.out)
        return
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # vanished gradients are denormal, and denormals are slow
    began = time.monotonic()

    def report(progress: Any) -> None:
        words = f"{progress.seeds} of {progress.total} seeds, {progress.failed} failed"
        print(f"{time.monotonic() - began:7.0f} s  {words}", file=sys.stderr, flush=True)

    for depth, model in product(args.depths, args.models):
        grid = CEILING if model == "gcnii" else GRIDS[depth]
        few = SCREENED if depth > 2 else SCREENED_AT_TWO
        result = study(
            {name: partial(load, name) for name in args.datasets},
            {model: MODELS[model]},
            {name: INITS[name] for name in args.inits},
            {"num_layers": depth, "hidden_channels": WIDTH, **grid},
            name=NAME,
            seeds=args.seeds,
            columns=["num_layers"],
            screen=(few, 1) if few < args.seeds else None,
            train=train,
            out=args.out,
            curves=True,
            report=report,
        )
        print(result)


if __name__ == "__main__":
    main()

"""Does ``virgo.check`` predict training? Trains what it judged, and counts how often it was right.

    python benchmarks/verdict.py --jobs 2     # trains what is missing, judges everything
    python benchmarks/verdict.py --judge      # trains nothing
    python benchmarks/verdict.py --publish    # writes results/verdict.jsonl, not out/verdict.jsonl

A combination is a dataset, a network (PyG's GCN, GraphSAGE, GIN or GAT of width 64, without norms,
residuals or dropout), a depth and an initialisation. It is trained with Adam, weight decay 5e-4, at
most 60 epochs, patience 20, learning rate 0.01, one seed; from 8 layers on at most 40 epochs,
patience 15, at the better of the rates 0.01 and 0.001 by validation accuracy. GCNs on Cora and on
PubMed come from an earlier study of depth, whose records are kept, and ``virgo sweep table1``,
which trained them for longer.

It *trained* where its test accuracy is within 5 points of the best of all combinations of its
dataset and network. A run that did not train but was still improving in its last epochs is
*unfinished*, and counts as neither. The verdict is that of ``virgo.check(model, data)`` before the
first step.

A fixed hash puts every combination in one of two halves. Thresholds were set on the half ``set``;
the share of right answers that counts is that on the half ``held out``.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import math
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN, GIN, GraphSAGE
from torch_geometric.nn.conv.gcn_conv import gcn_norm

import virgo
from virgo.network.profile import extent

ROOT = Path(__file__).resolve().parent.parent
NETWORKS = {"GCN": GCN, "SAGE": GraphSAGE, "GIN": GIN, "GAT": GAT}
METHODS = ("xavier", "kaiming-backward", "virgo-backward", "virgo-backward+mirrored")
#: Datasets and depths in the order in which they are run: an early end leaves a balanced set.
ORDER = (
    ("cora", 2),
    ("cora", 16),
    ("citeseer", 8),
    ("citeseer", 2),
    ("photo", 2),
    ("photo", 8),
    ("cora", 8),
    ("pubmed", 2),
    ("pubmed", 8),
    ("citeseer", 16),
    ("cora", 32),
    ("cora", 64),
)
WIDTH, WEIGHT_DECAY = 64, 5e-4
EPOCHS, PATIENCE = {True: 60, False: 40}, {True: 20, False: 15}
RATES = {True: (0.01,), False: (0.001, 0.01)}  # up to 4 layers, deeper
#: GCNs on Cora were trained for longer and on several seeds, by a study whose script is gone.
TRAINED = ROOT / "results" / "depth_benchmark.jsonl"
NAMES = dict(zip(("Xavier", "Kaiming", "Virgo", "mirrored"), METHODS, strict=True))
#: GCNs on PubMed were trained by ``virgo sweep table1``, up to 4 layers.
SWEPT = ROOT / "results" / "table1.jsonl"
HALVES = ("held out", "set")
LAST = 5  # epochs: where the best one is among these, more training would help
NEAR = 0.05  # from the best accuracy of its kind

Key = tuple[str, str, int, str]
KEY = ("dataset", "network", "depth", "method")


def combinations() -> list[Key]:
    """Every combination: dataset, network, depth, method."""
    return [
        (dataset, network, depth, method)
        for dataset, depth in ORDER
        for network, method in product(NETWORKS, METHODS)
        if (dataset, network) not in (("cora", "GCN"), ("pubmed", "GCN"))  # trained elsewhere
        and (network != "GAT" or (depth <= 32 and "mirrored" not in method))
    ]


def trained_before() -> list[dict[str, Any]]:
    """Cora's GCNs, the mean over seeds at the rate that is best by validation."""
    cells: dict[tuple[str, int], dict[float, list[dict[str, Any]]]] = {}
    for trial in read_records(TRAINED):
        if trial["name"] in NAMES:
            cell = cells.setdefault((trial["name"], trial["depth"]), {})
            cell.setdefault(trial["rate"], []).append(trial)
    records = []
    for (name, depth), by_rate in cells.items():
        rate, trials = max(by_rate.items(), key=lambda item: fmean(t["val"] for t in item[1]))
        accuracies = {key: round(fmean(t[key] for t in trials), 4) for key in ("val", "test")}
        kind = {"dataset": "cora", "network": "GCN", "depth": depth, "method": NAMES[name]}
        records.append({**kind, "estimate": "analytic", **accuracies, "rate": rate})
    return records + _swept()


def _swept() -> list[dict[str, Any]]:
    """PubMed's GCNs of width 64: of every sweep's configurations the best by validation."""
    best: dict[tuple[int, str], dict[str, Any]] = {}
    for trial in read_records(SWEPT):
        config, seeds = trial["config"], trial["seeds"]
        wanted = trial["dataset"] == "pubmed" and trial["init"] in METHODS
        if not wanted or config["hidden_channels"] != WIDTH or config["num_layers"] not in (2, 4):
            continue
        val, test = (round(fmean(seed[part] for seed in seeds), 4) for part in ("valid", "test"))
        key = config["num_layers"], trial["init"]
        if key not in best or val > best[key]["val"]:
            kind = {"dataset": "pubmed", "network": "GCN", "depth": key[0], "method": key[1]}
            rate = {"rate": config["lr"]}
            best[key] = {**kind, "estimate": "analytic", "val": val, "test": test, **rate}
    return list(best.values())


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a file; none if it is not there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def key_of(record: dict[str, Any]) -> Key:
    dataset, network, depth, method = (record[name] for name in KEY)
    return dataset, network, depth, method


def half(key: Key) -> str:
    """The half of a combination, by a hash that does not change."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return HALVES[digest[0] % 2]


@cache
def load(dataset: str, root: str | None) -> Data:
    return virgo.data.load(dataset, root=root).data


def build(key: Key, data: Data) -> tuple[nn.Module, str]:
    """The network with its initial weights, and the estimate its plan needed."""
    _, network, depth, method = key
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = NETWORKS[network](data.num_features, WIDTH, depth, int(data.y.max()) + 1)
    try:
        virgo.init_(model, data, method, seed=0)
        return model, "analytic"
    except virgo.VirgoError:  # a layer without a closed form
        if method.startswith("virgo"):
            virgo.init_(model, data, method, seed=0, estimate="measured")
            return model, "measured"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for conv in model.convs:
            if method == "xavier":
                nn.init.xavier_uniform_(conv.lin.weight)
            else:
                nn.init.kaiming_uniform_(conv.lin.weight, mode="fan_out", nonlinearity="relu")
    return model, "torch.nn.init"


def adjacency(data: Data, network: str) -> Tensor:
    """The operator of a layer as a CSR matrix, whose product is much faster than a scatter."""
    edges, nodes = data.edge_index, data.num_nodes
    if network == "GCN":
        edges, values = gcn_norm(edges, num_nodes=nodes)
    else:
        degree = torch.bincount(edges[1], minlength=nodes).clamp(min=1).float()
        values = 1.0 / degree[edges[1]] if network == "SAGE" else torch.ones(edges.size(1))
    coo = torch.sparse_coo_tensor(edges.flip(0), values, (nodes, nodes), check_invariants=False)
    return coo.to_sparse_csr()


class Fast(nn.Module):
    """The same function as PyG's model, in a form that trains several times faster.

    Features are sparse, and their first hop is computed once.
    """

    def __init__(self, model: nn.Module, network: str, data: Data) -> None:
        super().__init__()
        self.model, self.network = model, network
        self.operator = adjacency(data, network)
        hop = self.operator @ data.x
        self.hop = _sparse(hop + data.x if network == "GIN" else hop)
        self.own = _sparse(data.x)

    def forward(self) -> Tensor:
        x = self._apply_layer(self.model.convs[0], None)
        for conv in self.model.convs[1:]:
            x = self._apply_layer(conv, x.relu())
        return x

    def _apply_layer(self, conv: nn.Module, x: Tensor | None) -> Tensor:
        first = x is None
        if self.network == "GCN":
            if first:
                return self.hop @ conv.lin.weight.t() + conv.bias
            return self.operator @ conv.lin(x) + conv.bias
        if self.network == "SAGE":
            if first:
                out = self.hop @ conv.lin_l.weight.t() + self.own @ conv.lin_r.weight.t()
                return out + conv.lin_l.bias
            return conv.lin_l(self.operator @ x) + conv.lin_r(x)
        one, two = conv.nn.lins
        inner = self.hop @ one.weight.t() + one.bias if first else one(self.operator @ x + x)
        return two(inner.relu())


def _sparse(x: Tensor) -> Tensor:
    """A CSR matrix where that is faster."""
    return x.to_sparse_csr() if float((x != 0).float().mean()) < 0.1 else x


def runner(model: nn.Module, key: Key, data: Data) -> Callable[[], Tensor]:
    """A training pass of the model. Where it is not PyG's own, that it is the same is checked."""
    if key[1] == "GAT":
        return lambda: model(data.x, data.edge_index)
    fast = Fast(model, key[1], data)
    with torch.no_grad():
        expected, computed = model(data.x, data.edge_index), fast()
    scale = expected.abs().max()
    if bool(torch.isfinite(scale)) and float((computed - expected).abs().max()) > 1e-3 * scale:
        raise AssertionError(f"{key}: the fast pass differs from PyG's")
    return fast


def train(model: nn.Module, key: Key, data: Data, rate: float) -> dict[str, Any]:
    """Brief training; accuracies at the best epoch by validation."""
    forward = runner(model, key, data)
    optimiser = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=WEIGHT_DECAY)
    shallow = key[2] <= 4
    best = {"val": -1.0, "test": 0.0, "epoch": 0, "rate": rate}
    for epoch in range(EPOCHS[shallow]):
        optimiser.zero_grad()
        logits = forward()
        loss = functional.cross_entropy(logits[data.train_mask], data.y[data.train_mask])
        right = logits.detach().argmax(1) == data.y
        val = right[data.val_mask].float().mean().item()
        if val > best["val"]:
            test = right[data.test_mask].float().mean().item()
            best |= {"val": val, "test": test, "epoch": epoch}
        if epoch - best["epoch"] >= PATIENCE[shallow] or not torch.isfinite(loss):
            break
        loss.backward()
        optimiser.step()
    return best


def run(key: Key, root: str | None) -> dict[str, Any]:
    """Train one combination at both rates, and keep the better."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # vanished gradients are denormal, and denormals are slow
    warnings.simplefilter("ignore")
    data, start = load(key[0], root), time.process_time()
    model, estimate = build(key, data)
    start_weights = copy.deepcopy(model.state_dict())
    trials = []
    for rate in RATES[key[2] <= 4]:
        model.load_state_dict(start_weights)
        trials.append(train(model, key, data, rate))
    dataset, network, depth, method = key
    best = max(trials, key=lambda trial: trial["val"])
    numbers = {name: float(f"{value:.4g}") for name, value in best.items()}
    seconds = round(time.process_time() - start, 2)
    return {
        "dataset": dataset,
        "network": network,
        "depth": depth,
        "method": method,
        "estimate": estimate,
        **numbers,
        "cpu_seconds": seconds,
    }


def judge(key: Key, root: str | None) -> dict[str, Any]:
    """The verdict before the first step, and the numbers it rests on."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    warnings.simplefilter("ignore")
    data = load(key[0], root)
    report = virgo.check(build(key, data)[0], data, advice=False)
    hidden = report.measurement.hidden
    numbers = {
        "forward_range": extent([layer.forward for layer in hidden]),
        "backward_range": extent([layer.backward for layer in hidden]),
        "rank": hidden[-1].effective_rank,
        "distance": hidden[-1].mean_average_distance,
        "dead": max(layer.dead for layer in hidden),
    }
    shown = {k: float(f"{v:.3g}") if math.isfinite(v) else None for k, v in numbers.items()}
    causes = [finding.cause for finding in report.findings]
    return {"verdict": report.level, "causes": causes, **shown}


def finished(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records with their half, whether they trained, and whether the verdict said so."""
    best: dict[tuple[str, str], float] = {}
    for record in records:
        kind = record["dataset"], record["network"]
        best[kind] = max(best.get(kind, 0.0), record["test"])
    for record in records:
        trained = record["test"] >= best[record["dataset"], record["network"]] - NEAR
        unfinished = not trained and record.get("epoch", 0) >= EPOCHS[record["depth"] <= 4] - LAST
        said = {"good": True, "bad": False}.get(record["verdict"])
        record |= {"half": half(key_of(record)), "trained": trained, "unfinished": unfinished}
        record["right"] = None if said is None or unfinished else said == trained
    return sorted(records, key=key_of)


def summary(records: list[dict[str, Any]], part: str) -> str:
    """How often the verdict was right on one half."""
    mine = [record for record in records if record["half"] == part]
    answered = [record for record in mine if record["right"] is not None]
    right = sum(record["right"] for record in answered)
    share = f"{100 * right / max(1, len(answered)):.0f} %"
    rest = len(mine) - len(answered)
    return f"{part}: {right} of {len(answered)} right ({share}), {rest} watch or unfinished"


def train_missing(path: Path, args: argparse.Namespace) -> None:
    """Train what is not in the file yet, and append it."""
    done = set(map(key_of, read_records(path)))
    wanted = [k for k in combinations() if k[0] in args.datasets and k[2] <= args.deepest]
    todo = [key for key in wanted if key not in done]
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(run, key, args.root) for key in todo]):
            record = future.result()
            with path.open("a") as out:
                out.write(json.dumps(record) + "\n")
            print(json.dumps(record), flush=True)


def judge_all(path: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The verdict on everything that was trained, with how it ended."""
    records = {key_of(record): record for record in [*trained_before(), *read_records(path)]}
    cache = path.with_name("verdict-judged.jsonl")  # delete it if check has changed
    judged = {key_of(record) for record in read_records(cache)}
    todo = [key for key in records if key not in judged]
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(judge, key, args.root): key for key in todo}
        for future in as_completed(futures):
            kind = dict(zip(KEY, futures[future], strict=True))
            with cache.open("a") as out:
                out.write(json.dumps({**kind, **future.result()}) + "\n")
    verdicts = {key_of(record): record for record in read_records(cache)}
    return finished([{**record, **verdicts[key]} for key, record in records.items()])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--root", help="the data root; see virgo.data.find_root")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--datasets", nargs="*", default=[dataset for dataset, _ in ORDER])
    parser.add_argument("--deepest", type=int, default=64, help="layers of the deepest to train")
    parser.add_argument("--judge", action="store_true", help="train nothing; judge what is there")
    parser.add_argument("--publish", action="store_true", help="write results/verdict.jsonl")
    args = parser.parse_args()
    path = ROOT / "out" / "verdict-trained.jsonl"
    path.parent.mkdir(exist_ok=True)
    if not args.judge:
        train_missing(path, args)
    records = judge_all(path, args)
    target = ROOT / ("results" if args.publish else "out") / "verdict.jsonl"
    target.write_text("".join(json.dumps(record) + "\n" for record in records))
    print(f"{len(records)} combinations", *(summary(records, p) for p in HALVES), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

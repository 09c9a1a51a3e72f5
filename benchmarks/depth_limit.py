"""What is left for a linear classifier after L hops, and after L layers that were not trained.

    python benchmarks/depth_limit.py [--datasets cora cs] [--kinds "classes held"] [--publish]

Per dataset and depth the test accuracy of ridge regression on the training labels (the penalty by
leave-one-out, nothing trained): on all columns of P^L X, which is the most that a linear GCN of any
width has; and on the last hidden layer of a plain GCN, 64 wide (`virgo.fit_last_`), with spectral
weights, with latches, and with latches that hold classes. Splits and features are those of
benchmarks/depth.py, one split per seed where there is no public one. Writes depth_limit.json;
docs/depth.md has the tables. Kinds such as "gain 3" are held classes with other numbers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from typing import Any

import torch
from depth import CITATION, DEPTHS, INITS, MODELS, SEEDED, SPLITS, WIDTH, classes_held, load, output
from publishing import output_file
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Data

from virgo.ridge import ridge

KINDS = ("linear", "spectral, fitted", "latched, fitted", "classes held")
#: Held classes with other numbers; latch_'s own are a gain of 6 after the second layer.
VARIANTS: dict[str, dict[str, Any]] = {
    "gain 2": {"gain": 2.0},
    "gain 3": {"gain": 3.0},
    "gain 20": {"gain": 20.0},
    "after 1": {"after": 1},
    "after 3": {"after": 3},
    "after 4": {"after": 4},
    "a quarter linear": {"linear": 0.25},
}


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["dataset"], row["layers"], row["kind"]


def split(data: Data, part: str, seed: int) -> Tensor:
    mask: Tensor = data[f"{part}_mask"]
    return mask if mask.ndim == 1 else mask[:, seed % SPLITS]


Shares = tuple[float, float]  # of validation and of test nodes that are right


def _shares(logits: Tensor, data: Data, seed: int) -> Shares:
    right = (logits.argmax(1) == data.y).double()
    valid, test = (float(right[split(data, part, seed)].mean()) for part in ("val", "test"))
    return valid, test


def linear(hops: Tensor, data: Data, seed: int) -> Shares:
    """Accuracies of ridge regression on the rows of ``P^L X``."""
    train = split(data, "train", seed)
    targets = functional.one_hot(data.y[train]).double()
    weight, bias, _ = ridge(hops[train].double(), targets)
    return _shares(hops @ weight.float() + bias.float(), data, seed)


def untrained(kind: str, layers: int, data: Data, seed: int) -> Shares:
    """Accuracies of a network whose last layer was fitted, before any step."""
    model = MODELS["gcn"](data.num_features, WIDTH, layers, int(data.y.max()) + 1, 0.0)
    seen = Data(
        x=data.x, edge_index=data.edge_index, y=data.y, train_mask=split(data, "train", seed)
    )
    if kind in VARIANTS:
        classes_held(model, seen, seed, **VARIANTS[kind])
    else:
        INITS[kind](model, seen, seed)
    with torch.no_grad():
        return _shares(output(model, data), data, seed)


def measured(name: str, depths: list[int], kinds: list[str], seeds: int) -> list[dict[str, Any]]:
    """One row per depth and kind."""
    data = load(name)
    hops, done, rows = data.x, 0, []
    for depth in sorted(depths):
        if "linear" in kinds:
            for _ in range(depth - done):
                hops = data.operator @ hops
            done = depth
        for kind in kinds:
            if depth == 2 and kind not in ("linear", "spectral, fitted"):
                continue  # latches need a layer more
            values = [
                linear(hops, data, seed) if kind == "linear" else untrained(kind, depth, data, seed)
                for seed in range(seeds)
            ]
            valid, test = zip(*values, strict=True)
            row = {"dataset": name, "layers": depth, "kind": kind, "valid": valid, "test": test}
            rows.append(row)
            print(f"{name}, {depth} layers, {kind}: {100 * statistics.mean(test):.1f}", flush=True)
    return rows


def main() -> None:
    warnings.filterwarnings("ignore", "Sparse (CSR|invariant)")
    file = output_file("depth_limit.json")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--datasets", nargs="*", choices=CITATION + SEEDED, default=CITATION + SEEDED
    )
    parser.add_argument("--depths", type=int, nargs="*", choices=DEPTHS, default=list(DEPTHS))
    parser.add_argument("--kinds", nargs="*", choices=[*KINDS, *VARIANTS], default=list(KINDS))
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = json.loads(file.read_text()) if file.is_file() else []
    for name in args.datasets:
        new = measured(name, args.depths, args.kinds, args.seeds)
        done = {place(row) for row in new}
        rows = [row for row in rows if place(row) not in done] + new
        file.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

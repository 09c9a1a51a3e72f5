"""What is left for a linear classifier after L hops, and after L layers that were not trained.

    python benchmarks/depth_limit.py [--datasets cora cs] [--publish]

Per dataset and depth the test accuracy of ridge regression on the training labels (the penalty by
leave-one-out, nothing trained): on all columns of P^L X, which is the most that a linear GCN of any
width has; on the last hidden layer of a plain GCN, 64 wide, with spectral weights; and with latches
(`virgo.fit_last_`). Splits and features are those of benchmarks/depth.py, one split per seed where
there is no public one. Writes depth_limit.json; docs/depth.md has the table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from typing import Any

import torch
from depth import CITATION, DEPTHS, INITS, MODELS, SEEDED, SPLITS, WIDTH, load, output
from publishing import output_file
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Data

from virgo.ridge import ridge


def split(data: Data, part: str, seed: int) -> Tensor:
    mask: Tensor = data[f"{part}_mask"]
    return mask if mask.ndim == 1 else mask[:, seed % SPLITS]


def linear(hops: Tensor, data: Data, seed: int) -> float:
    """Test accuracy of ridge regression on the rows of ``P^L X``."""
    train, test = (split(data, part, seed) for part in ("train", "test"))
    targets = functional.one_hot(data.y[train]).double()
    weight, bias, _ = ridge(hops[train].double(), targets)
    right = (hops @ weight.float() + bias.float()).argmax(1) == data.y
    return float(right[test].double().mean())


def untrained(init: str, layers: int, data: Data, seed: int) -> float:
    """Test accuracy of a network whose last layer was fitted, before any step."""
    model = MODELS["gcn"](data.num_features, WIDTH, layers, int(data.y.max()) + 1, 0.0)
    seen = Data(
        x=data.x, edge_index=data.edge_index, y=data.y, train_mask=split(data, "train", seed)
    )
    INITS[init](model, seen, seed)
    with torch.no_grad():
        right = output(model, data).argmax(1) == data.y
    return float(right[split(data, "test", seed)].double().mean())


def measured(name: str, depths: list[int], seeds: int) -> list[dict[str, Any]]:
    """One row per depth and kind."""
    data = load(name)
    hops, done, rows = data.x, 0, []
    for depth in sorted(depths):
        while done < depth:
            hops, done = data.operator @ hops, done + 1
        kinds = {"linear": [linear(hops, data, seed) for seed in range(seeds)]}
        for init in ("spectral, fitted", "latched, fitted"):
            if depth > 2 or init.startswith("spectral"):
                kinds[init] = [untrained(init, depth, data, seed) for seed in range(seeds)]
        for kind, values in kinds.items():
            rows.append({"dataset": name, "layers": depth, "kind": kind, "test": values})
            print(
                f"{name}, {depth} layers, {kind}: {100 * statistics.mean(values):.1f}", flush=True
            )
    return rows


def main() -> None:
    warnings.filterwarnings("ignore", "Sparse (CSR|invariant)")
    file = output_file("depth_limit.json")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--datasets", nargs="*", choices=CITATION + SEEDED, default=CITATION + SEEDED
    )
    parser.add_argument("--depths", type=int, nargs="*", choices=DEPTHS, default=list(DEPTHS))
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = json.loads(file.read_text()) if file.is_file() else []
    for name in args.datasets:
        new = measured(name, args.depths, args.seeds)
        done = {(row["dataset"], row["layers"]) for row in new}
        rows = [row for row in rows if (row["dataset"], row["layers"]) not in done] + new
        file.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

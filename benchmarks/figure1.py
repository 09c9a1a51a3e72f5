"""The paper's Figure 1 on every node graph at hand. Writes out/figure1.json.

    python benchmarks/figure1.py                     # cora, citeseer, pubmed, photo, computers, cs
    python benchmarks/figure1.py --publish           # writes results/figure1.json

A GCN of 5 layers and width 128 before training, five draws a method: the variance of every layer's
output and of its gradient (virgo.compare), and the factor between the largest and the smallest over
the layers. The paper's figure has ogbn-arxiv and ogbn-proteins, one draw; the features of the first
and the second dataset itself are not at hand. Graphs without files are left out and named.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from publishing import output_file
from torch_geometric.nn import GCN

import virgo
from virgo.report.saving import versions

SUMMARY = output_file("figure1.json")
GRAPHS = ("cora", "citeseer", "pubmed", "photo", "computers", "cs")
METHODS = (
    "lecun",
    "xavier",
    "kaiming-forward",
    "kaiming-backward",
    "virgo-forward",
    "virgo-backward",
)
LAYERS, WIDTH, DRAWS = 5, 128, 5


def measured(name: str) -> dict:
    data = virgo.data.load(name).data
    classes = int(data.y.max()) + 1
    began = time.perf_counter()
    comparison = virgo.compare(
        lambda depth: GCN(data.num_features, WIDTH, depth, classes),
        data,
        METHODS,
        [LAYERS],
        DRAWS,
    )
    found = json.loads(comparison.to_json())
    ranges = {direction: {} for direction in ("forward", "backward")}
    for curve in found["curves"]:
        ranges[curve["direction"]][curve["method"]] = curve["stability"]
    return {
        "ranges": ranges,
        "claims": found["claims"],
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", nargs="*", default=GRAPHS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    path = SUMMARY
    before = json.loads(path.read_text()) if path.is_file() else {"graphs": {}, "absent": {}}
    for name in args.graphs:
        if name in before["graphs"]:
            continue  # resumes
        try:
            before["graphs"][name] = measured(name)
        except virgo.DataError as error:
            before["absent"][name] = str(error)
        document = {
            "command": "python benchmarks/figure1.py --publish",
            "layers": LAYERS,
            "width": WIDTH,
            "draws": DRAWS,
            "versions": versions(),
            **before,
        }
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(name, json.dumps(before["graphs"].get(name, {}).get("ranges")), flush=True)


if __name__ == "__main__":
    main()

"""``virgo bench``: plan, step and sweep beside PyG's plain loop, on this machine."""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path

from virgo.cli.arguments import (
    SIZE,
    Subparsers,
    add_command,
    add_device,
    add_root,
    check_output,
    chosen_compute,
    write_text,
)
from virgo.cli.progress import loading, working
from virgo.report.text import text_table
from virgo.vocabulary import MODELS


def bench(args: argparse.Namespace) -> int:
    """Time, print and write."""
    import virgo
    from virgo.experiments.tasks import Settings
    from virgo.experiments.tasks.timing import time_loops
    from virgo.report.saving import versions

    check_output("--json", args.json, ".json")
    compute = chosen_compute(args)
    with loading(args.dataset) as progress:
        dataset = virgo.data.load(args.dataset, args.root, progress)
    settings = Settings.of({"num_layers": args.layers, "hidden_channels": args.hidden})
    with working(f"timing {args.rounds} rounds"):
        timings = time_loops(dataset, args.model, settings, compute, args.rounds)
    rows = [
        (t.name, f"{1e3 * t.ours:.2f} ms", f"{1e3 * t.plain:.2f} ms", f"x{t.ratio:.2f}", t.beside)
        for t in timings
    ]
    size = f"{dataset.data.num_nodes:,} nodes, {dataset.data.num_edges:,} edges"
    print(
        f"{args.model}, {args.layers} layers of {args.hidden}, on {dataset.name} ({size}), "
        f"{compute.device}, {compute.precision}, PyTorch {versions()['torch']}"
    )
    print("\n".join(text_table(("", "virgo", "PyG's plain loop", "ratio", "beside"), rows)))
    if args.json:
        document = {
            "dataset": dataset.name,
            "model": args.model,
            "settings": settings.to_dict(),
            "device": str(compute.device),
            "processor": platform.processor() or platform.machine(),
            "precision": compute.precision,
            "rounds": args.rounds,
            "timings": [t.to_dict() for t in timings],
            "versions": versions(),
        }
        write_text("--json", args.json, json.dumps(document, indent=1))
    return 0


def add_to(commands: Subparsers) -> None:
    """Add ``virgo bench``."""
    command = add_command(
        commands,
        "bench",
        bench,
        "Times a plan, a training step and a seed of a sweep beside PyG's plain loop, in turns, "
        "and prints ratios. Numbers from GPUs are welcome: send the file that --json writes.",
        "virgo bench --device cuda --json bench.json",
        "virgo bench --dataset like:ogbn-arxiv --hidden 256 --layers 3 --device cuda",
    )
    add = command.add_argument
    add("--dataset", default="like:cora", help="of node classification (default like:cora)")
    add_root(command)
    add("--model", default="gcn", choices=MODELS, help="default gcn")
    add("--layers", type=SIZE, default=2, help="default 2")
    add("--hidden", type=SIZE, default=64, help="width (default 64)")
    add("--rounds", type=SIZE, default=20, help="how often each is timed (default 20)")
    add_device(command, training=True)
    add("--json", type=Path, help="write the numbers here")

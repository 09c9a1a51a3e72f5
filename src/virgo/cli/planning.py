"""``virgo plan``: the variances for a graph of any size, from its edges alone."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from virgo.cli.arguments import (
    SEED,
    SIZE,
    Subparsers,
    add_command,
    check_output,
    write_text,
)
from virgo.cli.progress import working
from virgo.errors import OptionError
from virgo.vocabulary import DISTRIBUTIONS

if TYPE_CHECKING:
    from torch import Tensor, nn


OPERATORS = {
    "gcn": "GCNConv: D^-1/2 (A + I) D^-1/2",
    "sage": "SAGEConv: mean over neighbours, and the node itself by a second weight",
    "mean": "the mean over neighbours alone",
    "sum": "the sum over neighbours alone",
    "gin": "GINConv: A + I, then a network of two layers",
    "graph": "GraphConv: sum over neighbours, and the node itself by a second weight",
}


def plan(args: argparse.Namespace) -> int:
    import virgo

    check_output("--json", args.json, ".json")
    method, options = virgo.rules.parse_method(args.method)
    if args.nodes is not None and options.get("estimate") != "measured" and method != "auto":
        raise OptionError(
            f"--nodes: expected it beside a measured method, got {args.method}, which needs no "
            f"sample. Leave it out, or write --method {args.method}+measured."
        )
    graph = _graph(args)
    try:
        model = chain(args.operator, args.widths, weighted=graph.is_weighted)
    except RuntimeError as error:  # of PyTorch, which has no class of its own for it
        raise OptionError(
            f"--widths: expected weights that fit into memory, got "
            f"{' '.join(map(str, args.widths))}. Take smaller ones."
        ) from error
    hops, edges = len(args.widths) - 1, graph.num_edges
    if args.nodes is not None:
        options = {"nodes": args.nodes, **options}
    if args.power is not None:
        options = {"power": args.power, **options}
    mean = args.mean_features
    with working(f"walking {edges:,} edges, {hops} hops per direction"):
        variances = virgo.plan(
            model,
            graph,
            method,
            # without a file of that name it may be a table of the engine
            mean_features=Path(mean) if mean is not None and args.engine is None else mean,
            features=args.features,
            num_classes=args.widths[-1] if args.softmax else False,
            seed=args.seed,
            **{"distribution": args.distribution, **options},
        )
    print(variances)
    if args.json is not None:
        write_text("--json", args.json, variances.to_json(indent=1))
    return 0


def _graph(args: argparse.Namespace) -> Any:
    """Open a graph of ``virgo graph build``, or the edges that an engine has."""
    import virgo

    if args.engine is None:
        for option in (
            "source_column",
            "target_column",
            "weight_column",
            "num_nodes",
            "checkpoint",
        ):
            if getattr(args, option) is not None:
                name = f"--{option.replace('_', '-')}"
                raise OptionError(
                    f"{name}: expected it beside --engine, got a graph on disk, where it does "
                    f"nothing. Leave it out."
                )
        return virgo.Graph.open(args.graph, in_memory=args.in_memory)
    if args.in_memory:
        raise OptionError("--in-memory: expected a graph on disk, got --engine. Leave one out.")
    from virgo.graph import sql

    return sql.open(
        args.engine,
        args.graph,
        source=args.source_column or "src",
        target=args.target_column or "dst",
        weight=args.weight_column,
        num_nodes=args.num_nodes,
        checkpoint=args.checkpoint,
    )


def chain(operator: str, widths: Sequence[int], *, weighted: bool = False) -> nn.Module:
    """A stack of layers of one kind with ReLU between them, to plan for.

    Args:
        operator: a key of ``OPERATORS``.
        widths: features, hidden widths, outputs.
        weighted: whether the graph has edge weights.

    Returns:
        The network.

    Raises:
        OptionError: if the widths are too few or not positive.

    >>> [layer.out_channels for layer in chain("gcn", [16, 32, 4]).convs]
    [32, 4]
    """
    from torch import nn
    from torch_geometric import nn as pyg

    if len(widths) < 2 or min(widths) < 1:
        raise OptionError(
            f"--widths: expected the features, the hidden widths and the outputs, such as "
            f"128 256 40, got {' '.join(map(str, widths))}."
        )

    makers: dict[str, Callable[[int, int], nn.Module]] = {
        "gcn": pyg.GCNConv,
        "sage": pyg.SAGEConv,
        "mean": lambda a, b: pyg.SAGEConv(a, b, root_weight=False),
        "sum": lambda a, b: pyg.SAGEConv(a, b, aggr="sum", root_weight=False),
        "gin": lambda a, b: pyg.GINConv(nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b))),
        "graph": pyg.GraphConv,
    }
    uses_weights = weighted and operator in ("gcn", "graph")

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(makers[operator](a, b) for a, b in pairwise(widths))

        def forward(
            self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None
        ) -> Tensor:
            inputs = (edge_index, edge_weight) if uses_weights else (edge_index,)
            for conv in self.convs[:-1]:
                x = conv(x, *inputs).relu()
            return self.convs[-1](x, *inputs)  # type: ignore[no-any-return]

    return Chain()


def add_to(commands: Subparsers) -> None:
    """Add ``virgo plan``."""
    command = add_command(
        commands,
        "plan",
        plan,
        "Prints the variance of every weight of a network on a graph of any size. The closed form "
        "needs the edges and one number per node, and memory for a few vectors.",
        "virgo graph build edges.parquet papers --symmetric",
        "virgo plan --graph papers --mean-features mean.npy --widths 128 256 256 172 "
        "--method virgo-forward --json plan.json",
        "virgo plan --graph 's3/edges/*.parquet' --engine duckdb --widths 128 256 172",
    )
    add = command.add_argument
    add(
        "--graph",
        required=True,
        help="a folder of virgo graph build; with --engine Parquet files or the name of a table",
    )
    add(
        "--widths",
        type=SIZE,
        nargs="+",
        required=True,
        metavar="W",
        help="features, hidden widths, outputs",
    )
    add(
        "--method",
        default="virgo-backward",
        help="a name of virgo methods, with options after a plus (default virgo-backward)",
    )
    add(
        "--operator",
        default="gcn",
        choices=list(OPERATORS),
        help="; ".join(f"{name}: {what}" for name, what in OPERATORS.items()) + " (default gcn)",
    )
    add(
        "--mean-features",
        metavar="FILE.npy",
        help="one number per node, the mean of its features (default: ones); with --engine a table",
    )
    add(
        "--features",
        type=Path,
        metavar="FILE.npy",
        help="the feature matrix instead, memory-mapped; needed for +measured",
    )
    add(
        "--softmax",
        action="store_true",
        help="the outputs are the classes of a softmax: use Theorem 4 for the last layer",
    )
    add("--nodes", type=int, help="size of a sampled neighbourhood, for +measured")
    add("--distribution", default="uniform", choices=DISTRIBUTIONS)
    add(
        "--power",
        type=float,
        help="of the singular values by which spectral directions are scaled: 0 (default) to -1",
    )
    add("--seed", type=SEED, default=0, help="default 0")
    add("--in-memory", action="store_true", help="read the edges into memory (default: map them)")
    add("--json", type=Path, metavar="FILE.json", help="save the plan here")
    _add_engine(command)


def _add_engine(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("where the graph lives").add_argument
    add(
        "--engine",
        help="duckdb, spark, spark://host:port or an Ibis connection string: runs hops as joins",
    )
    add("--source-column", help="default src")
    add("--target-column", help="default dst")
    add("--weight-column", help="edge weights (default: none)")
    add("--num-nodes", type=int, help="default: the largest id plus one")
    add("--checkpoint", type=Path, help="save every hop here, to resume after the last one")

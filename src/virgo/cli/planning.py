"""``virgo plan``: the variances for a graph that fits in no memory, from its edges alone."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from virgo.cli.progress import errors, writable_folder
from virgo.draws import DISTRIBUTIONS
from virgo.errors import OptionError

if TYPE_CHECKING:
    from torch import nn

    from virgo.plans import Plan

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

    if args.json is not None and args.json.suffix != ".json":
        raise OptionError(f"--json: expected a path ending in .json, got {args.json}.")
    if args.json is not None:  # before hours of work
        writable_folder(args.json.parent, "--json")
    graph = _graph(args)
    model = chain(args.operator, args.widths, weighted=graph.is_weighted)
    method, options = virgo.rules.parse_method(args.method)
    hops, edges = len(args.widths) - 1, graph.num_edges
    with errors.status(f"walking {edges:,} edges, {hops} hops in each direction asked for"):
        made = virgo.plan(
            model,
            graph,
            method,
            mean_features=_features(args),
            features=args.features,
            num_classes=args.widths[-1] if args.softmax else False,
            seed=args.seed,
            **_nodes(args),
            **{"distribution": args.distribution, **options},
        )
    print(made)
    _write(made, args.json)
    return 0


def _graph(args: argparse.Namespace) -> Any:
    """On disk as ``virgo graph build`` writes it, or where an engine finds its edges."""
    import virgo

    if args.engine is None:
        return virgo.Graph.open(args.graph, in_memory=args.in_memory)
    if args.in_memory:
        raise OptionError("--in-memory: expected a graph on disk, got --engine. Leave one out.")
    from virgo.graph import sql

    return sql.open(
        args.engine,
        args.graph,
        source=args.source_column,
        target=args.target_column,
        weight=args.weight_column,
        num_nodes=args.num_nodes,
        checkpoint=args.checkpoint,
    )


def _features(args: argparse.Namespace) -> Any:
    """A path; what is no file may be the name of a table to an engine."""
    given = args.mean_features
    return Path(given) if given is not None and args.engine is None else given


def _nodes(args: argparse.Namespace) -> dict[str, Any]:
    return {} if args.nodes is None else {"nodes": args.nodes}


def _write(made: Plan, path: Path | None) -> None:
    if path is not None:
        path.write_text(made.to_json(indent=1), encoding="utf-8")
        print(f"wrote {path}")


def chain(operator: str, widths: Sequence[int], *, weighted: bool = False) -> nn.Module:
    """A network of one kind of layer after another, ReLU between them, to plan for.

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

    def gin(a: int, b: int) -> nn.Module:
        made: nn.Module = pyg.GINConv(nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b)))
        return made

    makers: dict[str, Callable[[int, int], nn.Module]] = {
        "gcn": pyg.GCNConv,
        "sage": pyg.SAGEConv,
        "mean": lambda a, b: pyg.SAGEConv(a, b, root_weight=False),
        "sum": lambda a, b: pyg.SAGEConv(a, b, aggr="sum", root_weight=False),
        "gin": gin,
        "graph": pyg.GraphConv,
    }
    weighs = weighted and operator in ("gcn", "graph")

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(makers[operator](a, b) for a, b in pairwise(widths))

        def forward(self, x: Any, edge_index: Any, edge_weight: Any = None) -> Any:
            more = (edge_weight,) if weighs else ()
            for conv in self.convs[:-1]:
                x = conv(x, edge_index, *more).relu()
            return self.convs[-1](x, edge_index, *more)

    return Chain()


def add_to(commands: Any) -> None:
    """The command and its options."""
    command = commands.add_parser(
        "plan",
        description="Prints the variance of every weight of a network on a graph of any size. The "
        "closed form needs the edges and one number per node; memory stays near a few vectors.",
        epilog="virgo graph build edges.parquet papers --symmetric\n"
        "virgo plan --graph papers --mean-features mean.npy --widths 128 256 256 172 "
        "--method virgo-forward --json plan.json\n"
        "virgo plan --graph 's3/edges/*.parquet' --engine duckdb --widths 128 256 172",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "--graph",
        required=True,
        help="a folder of virgo graph build; with --engine Parquet files or the name of a table",
    )
    command.add_argument(
        "--widths",
        type=int,
        nargs="+",
        required=True,
        metavar="W",
        help="features, hidden widths, outputs",
    )
    command.add_argument(
        "--method",
        default="virgo-backward",
        help="a name of virgo.methods(), options after a plus (default virgo-backward)",
    )
    command.add_argument(
        "--operator",
        default="gcn",
        choices=list(OPERATORS),
        help="; ".join(f"{name}: {what}" for name, what in OPERATORS.items()) + " (default gcn)",
    )
    command.add_argument(
        "--mean-features",
        metavar="FILE.npy",
        help="one number per node, the mean of its features (default: ones); a table to an engine",
    )
    command.add_argument(
        "--features",
        type=Path,
        metavar="FILE.npy",
        help="the feature matrix in its place, memory-mapped; needed for +measured",
    )
    command.add_argument(
        "--softmax",
        action="store_true",
        help="the last layer's outputs are the classes of a softmax: Theorem 4's rule for it",
    )
    command.add_argument("--nodes", type=int, help="of a sampled neighbourhood, for +measured")
    command.add_argument("--distribution", default="uniform", choices=DISTRIBUTIONS)
    command.add_argument("--seed", type=int, default=0, help="default 0")
    command.add_argument(
        "--in-memory",
        action="store_true",
        help="read the edges once and keep them, four bytes each (default: memory-mapped)",
    )
    command.add_argument("--json", type=Path, metavar="FILE.json", help="save the plan here")
    _add_engine(command)
    command.set_defaults(run=plan)


def _add_engine(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("where the graph lives")
    group.add_argument(
        "--engine",
        help="duckdb, spark, spark://host:port or an Ibis connection string: hops are joins there",
    )
    group.add_argument("--source-column", default="src", help="default src")
    group.add_argument("--target-column", default="dst", help="default dst")
    group.add_argument("--weight-column", help="edge weights (default: none)")
    group.add_argument("--num-nodes", type=int, help="default: the largest id and one")
    group.add_argument(
        "--checkpoint",
        type=Path,
        help="keep every hop here; the same command goes on from the last one",
    )

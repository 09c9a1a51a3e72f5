"""``virgo demo | methods | check | compare | verify``: measure a model on a graph."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import virgo
from virgo.cli import github, networks
from virgo.cli.arguments import (
    SEED,
    SIZE,
    Subparsers,
    add_command,
    add_device,
    add_root,
    check_output,
    chosen_device,
)
from virgo.cli.progress import reporting, track, working
from virgo.cli.subjects import (
    KNOWN_MODELS,
    WIDTH,
    check_model,
    chosen_target,
    load_data,
    load_object,
    model_maker,
    refuse,
)
from virgo.errors import DataError, needed
from virgo.experiments.data.roots import CITATION
from virgo.report.text import text_table
from virgo.vocabulary import CHANGE, COMPARED, WATCHED

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from virgo import Thresholds

CHECKED_LAYERS, COMPARED_LAYERS = 2, 5  # defaults


# --- output -------------------------------------------------------------------------------------


def write(result: Any, args: argparse.Namespace) -> None:
    """Write the files that were asked for, and print their paths."""
    for path in outputs(args):
        print(f"wrote {result.save(path)}")


def outputs(args: argparse.Namespace) -> list[Path]:
    """The files that were asked for, after checking their endings."""
    options = ("json", "html", "png")
    for option in options:
        check_output(f"--{option}", getattr(args, option), f".{option}")
    if args.png is not None:
        needed("matplotlib", "A figure", "plot")
    return [path for option in options if (path := getattr(args, option)) is not None]


# --- commands -----------------------------------------------------------------------------------


def demo(args: argparse.Namespace) -> int:
    """Run the demonstration."""
    from virgo.cli import demo as demonstration

    device = chosen_device(args)
    demonstration.run(args.out, lambda line: print(line, flush=True), track, device)
    return 0


def methods(args: argparse.Namespace) -> int:
    """Print the initialisation methods."""
    rows = list(virgo.methods().items())
    print("\n".join(text_table(("method", "what it does"), rows, left=2)))
    return 0


def check(args: argparse.Namespace) -> int:
    """Print the report on a model; exit code 1 if it is bad."""
    args.on = chosen_device(args)
    outputs(args)
    args.target = chosen_target(args)
    check_model(args.model)
    given = {k: v for k, v in (("change", args.change), ("watch", args.watch)) if v}
    limits = virgo.Thresholds(**given)
    dataset = networks.find(args)
    if dataset is None:
        report, name, notes = _check_graph(args, limits)
    else:
        with working("measuring one pass"):
            report, notes = networks.check(args, dataset, limits)
        name = dataset.name
    own = f"with {args.method}" if args.method else "as it is"
    report = replace(report, title=f"{args.model} {own} on {name}", notes=(*report.notes, *notes))
    if args.format == "github":
        own_model = load_object(args.model) if ":" in args.model else None
        print("\n".join(github.of_report(report, own_model)))
    else:
        print(f"{report.title}\n{report}")
    write(report, args)
    return 0 if report.ok else 1


def _check_graph(args: argparse.Namespace, limits: Thresholds) -> tuple[Any, str, Any]:
    from virgo.devices import forked_rng
    from virgo.diagnostics.comparing import wants_depth
    from virgo.rules import parse_method

    if args.method:
        parse_method(args.method)  # a misspelt name shows before the data is read
    data, name, notes = load_data(args)
    make = model_maker(args, data)
    layers = CHECKED_LAYERS if args.layers is None else args.layers
    if not wants_depth(make):
        refuse(args, "layers", f"a function that takes a depth, got {args.model}")
    with forked_rng([args.on], seed=args.seed):  # a model's own weights are random, too
        model = make(layers) if wants_depth(make) else make()
    with working("measuring one pass"):
        plan = None
        if args.method:
            method, options = parse_method(args.method)
            plan = virgo.plan(model, data, method, seed=args.seed, **options)
        report = virgo.check(model, data, plan, thresholds=limits, nodes=args.nodes)
    return report, name, notes


def compare(args: argparse.Namespace) -> int:
    """Print the comparison of all methods."""
    from virgo.rules import parse_method

    args.on = chosen_device(args)
    outputs(args)
    args.target = chosen_target(args)
    check_model(args.model)
    dataset = networks.find(args)
    for method in args.methods:
        parse_method(method)
    graph = load_data(args) if dataset is None else None
    with reporting("measuring") as progress:
        if graph is None:
            study = networks.compare(args, dataset, progress)
        else:
            study = _compare_graph(args, *graph, progress)
    print(study)
    write(study, args)
    return 0


def _compare_graph(
    args: argparse.Namespace,
    data: Data,
    name: str,
    notes: list[str],
    progress: Callable[..., None],
) -> Any:
    from virgo.diagnostics.comparing import wants_depth

    make = model_maker(args, data)
    if not wants_depth(make):
        refuse(args, "layers", f"a function that takes a depth, got {args.model}")
    depths = (args.layers or [COMPARED_LAYERS]) if wants_depth(make) else None
    return virgo.compare(
        make,
        data,
        args.methods,
        depths,
        args.seeds,
        nodes=args.nodes,
        title=f"{args.model} on {name}",
        notes=notes,
        progress=progress,
    )


def verify(args: argparse.Namespace) -> int:
    """Print the paper's assumption tables."""
    from virgo.experiments.assumptions.tables import Verified, refresh
    from virgo.experiments.assumptions.verification import verify_all

    outputs(args)
    graphs = {}
    for target in args.targets or [None]:
        data, name, notes = load_data(argparse.Namespace(**{**vars(args), "target": target}))
        if notes:
            raise DataError(f"{name}: {'; '.join(notes)}. Assumptions need real features.")
        graphs[name] = data
    with reporting("sampling paths") as progress:
        results = verify_all(graphs, progress=progress, seeds=args.seeds)
    verified = Verified(results)
    print(verified.to_markdown())
    write(verified, args)
    if args.refresh:
        text = args.refresh.read_text(encoding="utf-8")
        args.refresh.write_text(refresh(text, results), encoding="utf-8")
        print(f"refreshed the tables of {args.refresh}")
    return 0


# --- options ------------------------------------------------------------------------------------


def add_to(commands: Subparsers) -> None:
    """Add the commands that look at a model and a graph."""
    command = add_command(
        commands,
        "demo",
        demo,
        "Initialises a GCN with every method, prints its variances layer by layer and a short "
        "accuracy comparison, and draws a figure. Takes under a minute.",
    )
    command.add_argument("--out", type=Path, default=Path("out"), help="folder for the figure")
    add_device(command)
    add_command(commands, "methods", methods, "Lists the initialisation methods.")
    _add_check(commands)
    _add_compare(commands)
    _add_verify(commands)


def _add_check(commands: Subparsers) -> None:
    command = add_command(
        commands,
        "check",
        check,
        "Measures one pass of a model on a graph, prints predicted beside measured variances and a "
        "verdict, and exits with 1 if it is bad, for use in CI.",
        "virgo check cora --layers 16 --method xavier",
        "virgo check --model my_pkg.my_mod:make_model --data my_pkg.my_mod:make_data",
    )
    add = command.add_argument
    _add_subject(command)
    add(
        "--layers",
        type=SIZE,
        help="depth of a built-in model, or given to a function that takes it (default "
        f"{CHECKED_LAYERS}; for a link or graph dataset the paper's)",
    )
    add(
        "--method",
        help="check the weights that this method would draw, e.g. xavier, virgo-forward+measured "
        "(default: the model's own weights)",
    )
    add("--seed", type=SEED, default=0, help="seed of the draw (default 0)")
    add(
        "--change",
        type=float,
        help=f"factor over the hidden layers that is bad (default {CHANGE:g})",
    )
    add("--watch", type=float, help=f"factor that is mentioned (default {WATCHED:g})")
    add(
        "--format",
        choices=("text", "github"),
        default="text",
        help="github: annotations for a workflow of GitHub Actions, the report folded below them",
    )


def _add_compare(commands: Subparsers) -> None:
    command = add_command(
        commands,
        "compare",
        compare,
        "Forward and backward variance over layers for all methods, mean and spread over draws, "
        "and whether the paper's claim holds.",
        "virgo compare cora --layers 5 16 --png figure.png --html figure.html",
        "virgo compare --dataset ogbl-ddi --model ngnn-sage",
    )
    add = command.add_argument
    _add_subject(command)
    add(
        "--layers",
        type=SIZE,
        nargs="+",
        help=f"depths (default {COMPARED_LAYERS}; for a link or graph dataset the paper's)",
    )
    add(
        "--methods",
        nargs="+",
        default=list(COMPARED),
        help=f"names, with options after a plus (default: {' '.join(COMPARED)})",
    )
    add("--seeds", type=int, default=3, help="draws per method (default 3)")


def _add_verify(commands: Subparsers) -> None:
    command = add_command(
        commands,
        "verify",
        verify,
        "Samples message paths and weight paths of a 3-layer Xavier GCN and prints tables A1-A5 "
        "beside the paper's.",
    )
    add = command.add_argument
    add("targets", nargs="*", help=f"{', '.join(CITATION)}, or files with a saved Data")
    add("--data", help="module:function that returns the data, instead of targets")
    add("--seeds", type=int, default=10, help="draws (default 10)")
    _add_outputs(command)
    add("--refresh", type=Path, help="update the tables of this markdown file")


def _add_subject(command: argparse.ArgumentParser) -> None:
    """Add the options for the model, the graph and the output."""
    add = command.add_argument
    add(
        "target",
        nargs="?",
        help=f"{', '.join(CITATION)}, ogbn-arxiv (generated features), another dataset of virgo "
        "data list, like:NAME[@scale], or a file with a saved Data",
    )
    add("--dataset", help="the same as target")
    add("--data", help="module:function that returns the data, instead of target")
    add(
        "--model",
        default="gcn",
        help=f"{', '.join(KNOWN_MODELS)} or module:function; for a link or graph dataset one of "
        "the paper's (default gcn)",
    )
    add(
        "--width",
        type=int,
        help=f"width of a built-in model (default {WIDTH}; for a link or graph dataset the "
        "paper's)",
    )
    add(
        "--graphs",
        type=int,
        help="for a graph dataset: measure on at most this many training graphs (default: what "
        "half a gigabyte holds)",
    )
    add(
        "--norms",
        choices=("batch", "fresh"),
        help="for a graph dataset: BatchNorm as in training (default), or as in evaluation, where "
        "before training it changes nothing",
    )
    add("--nodes", type=int, help="measure on a sample of this many nodes")
    add(
        "--all-nodes",
        action="store_true",
        help="loss over all nodes, as in the paper's theorem, not over the training nodes",
    )
    add_device(command)
    _add_outputs(command)


def _add_outputs(command: argparse.ArgumentParser) -> None:
    """Add the options for the data root and the output files."""
    add = command.add_argument
    add_root(command)
    add("--json", type=Path, help="write the numbers here")
    add("--html", type=Path, help="write a self-contained page here")
    add("--png", type=Path, help="write a figure here")

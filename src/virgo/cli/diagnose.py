"""``virgo demo | methods | check | compare | verify``: measure a model on a graph."""

from __future__ import annotations

import argparse
import copy
import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import virgo
from virgo.cli import demo as demonstration
from virgo.cli import github, networks
from virgo.cli.arguments import (
    Subparsers,
    add_command,
    add_device,
    add_root,
    check_ending,
    chosen_device,
)
from virgo.cli.progress import errors, reporting, track
from virgo.diagnostics.comparing import METHODS, wants_depth
from virgo.errors import DataError, OptionError
from virgo.experiments.assumptions.tables import Verified, refresh
from virgo.experiments.assumptions.verification import verify_all
from virgo.experiments.data.roots import CITATION
from virgo.graph.torch_files import load_saved
from virgo.report.text import text_table
from virgo.rules import parse_method

if TYPE_CHECKING:
    from torch_geometric.data import Data


MODELS = {"gcn": "GCN", "sage": "GraphSAGE", "gin": "GIN", "gat": "GAT"}
WIDTH, CHECKED_LAYERS, COMPARED_LAYERS = 128, 2, 5  # defaults


# --- models and graphs --------------------------------------------------------------------------


def load_data(args: argparse.Namespace) -> tuple[Data, str, list[str]]:
    """The graph that a command names, its name, and remarks on it."""
    data, name, notes = _find_data(args)
    if getattr(args, "all_nodes", False) and "train_mask" in data:
        data = copy.copy(data)
        del data.train_mask
        notes = [*notes, "the loss is over all nodes, not over the training nodes"]
    return data.to(getattr(args, "on", "cpu")), name, notes


def _target(args: argparse.Namespace) -> str | None:
    """The dataset that was named, with or without ``--dataset``."""
    if args.target and args.dataset:
        raise OptionError(
            f"--dataset: expected one name, got {args.dataset!r} beside {args.target!r}. Name one."
        )
    name: str | None = args.target or args.dataset
    return name


def _find_data(args: argparse.Namespace) -> tuple[Data, str, list[str]]:
    if args.data:
        return load_object(args.data)(), args.data, []
    name = args.target or "demo"
    if name.lower() in CITATION:
        return virgo.data.load_citation(name, args.root), name.lower(), []
    if name.lower() == "ogbn-arxiv":
        graph, remark = virgo.data.load_arxiv(args.root)
        return graph, "ogbn-arxiv", [remark] if remark else []
    if name == "demo":
        graph, description = virgo.data.demo_graph()
        generated = "generated" in description
        return graph, "generated" if generated else "cora", [description] if generated else []
    if name.lower() in virgo.data.names() or name.lower().startswith("like:"):
        dataset = virgo.data.load(name, args.root)
        if dataset.task != "node":
            raise DataError(
                f"{name}: expected a dataset of one graph with classes, got one for {dataset.task} "
                f"tasks. Choose a node classification dataset."
            )
        return dataset.data, dataset.name, [dataset.generated] if dataset.generated else []
    path = Path(name)
    if not path.is_file():
        raise DataError(
            f"target: expected {', '.join(CITATION)}, ogbn-arxiv or a file with a saved Data, got "
            f"{name!r}. Name one of these, or pass --data module:function."
        )
    return load_file(path), path.stem, []


def load_file(path: Path) -> Data:
    """Load a ``Data`` saved with ``torch.save``, without running code that a pickle may hold."""
    from torch_geometric.data import Data

    try:
        saved = load_saved(path)
    except Exception as error:
        raise DataError(
            f"{path}: expected a torch_geometric Data saved with torch.save, got "
            f"{type(error).__name__}. Save data.to_dict() (a Data that was in use may hold a cache "
            f"that cannot be read safely), or pass --data module:function."
        ) from error
    return Data(**saved) if isinstance(saved, dict) else saved


def load_object(spec: str) -> Callable[..., Any]:
    """Import ``package.module:function``; the working directory is searched as well."""
    module, _, name = spec.partition(":")
    if not name:
        raise OptionError(f"{spec}: expected module:function, got no colon. Write it with one.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            f"{spec}: expected a function to import, got {error}. Run virgo where the module can "
            f"be imported."
        ) from error
    finally:
        sys.path.pop(0)
    if not callable(function):
        raise OptionError(f"{spec}: expected a function, got {type(function).__name__}.")
    return function


def model_maker(args: argparse.Namespace, data: Data) -> Callable[..., Any]:
    """A function ``depth -> model`` with the data's features and classes, or the user's own."""
    if args.model not in MODELS:
        make = load_object(args.model)
        if wants_depth(make):
            return lambda depth: make(depth).to(args.on)
        return lambda: make().to(args.on)
    from torch_geometric import nn

    kind = getattr(nn, MODELS[args.model])
    if getattr(data, "x", None) is None or getattr(data, "y", None) is None:
        raise OptionError(
            f"--model {args.model}: expected data with x and y to size it by, got none. "
            f"Pass --model module:function."
        )
    classes = int(data.y.max()) + 1
    width = WIDTH if args.width is None else args.width
    return lambda depth: kind(data.num_features, width, depth, classes).to(args.on)


def write(result: Any, args: argparse.Namespace) -> None:
    """Write the files that were asked for, and print their paths."""
    for path in outputs(args):
        print(f"wrote {result.save(path)}")


def outputs(args: argparse.Namespace) -> list[Path]:
    """The files that were asked for, after checking their endings."""
    options = ("json", "html", "png")
    for option in options:
        check_ending(f"--{option}", getattr(args, option), f".{option}")
    return [path for option in options if (path := getattr(args, option)) is not None]


# --- commands -----------------------------------------------------------------------------------


def demo(args: argparse.Namespace) -> int:
    """Run the demonstration."""
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
    args.target = _target(args)
    given = {k: v for k, v in (("change", args.change), ("watch", args.watch)) if v}
    limits = virgo.Thresholds(**given)
    dataset = networks.find(args)
    if dataset is None:
        report, name, notes = _check_graph(args, limits)
    else:
        with errors.status("measuring one pass"):
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


def _check_graph(args: argparse.Namespace, limits: virgo.Thresholds) -> tuple[Any, str, Any]:
    data, name, notes = load_data(args)
    make = model_maker(args, data)
    layers = CHECKED_LAYERS if args.layers is None else args.layers
    model = make(layers) if wants_depth(make) else make()
    with errors.status("measuring one pass"):
        plan = None
        if args.method:
            method, options = parse_method(args.method)
            plan = virgo.plan(model, data, method, seed=args.seed, **options)
        report = virgo.check(model, data, plan, thresholds=limits, nodes=args.nodes)
    return report, name, notes


def compare(args: argparse.Namespace) -> int:
    """Print the comparison of all methods."""
    args.on = chosen_device(args)
    outputs(args)
    args.target = _target(args)
    dataset = networks.find(args)
    run = _compare_graph if dataset is None else networks.compare
    with reporting("measuring") as progress:
        study = run(args, dataset, progress)
    print(study)
    write(study, args)
    return 0


def _compare_graph(args: argparse.Namespace, _: Any, progress: Callable[..., None]) -> Any:
    data, name, notes = load_data(args)
    make = model_maker(args, data)
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
        type=int,
        help="depth of a built-in model, or given to a function that takes it (default "
        f"{CHECKED_LAYERS}; for a link or graph dataset the paper's)",
    )
    add(
        "--method",
        help="check the weights that this method would draw, e.g. xavier, virgo-forward+measured "
        "(default: the model's own weights)",
    )
    add("--seed", type=int, default=0, help="seed of the draw")
    add("--change", type=float, help="factor over the hidden layers that is bad (default 1000)")
    add("--watch", type=float, help="factor that is mentioned (default 30)")
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
        type=int,
        nargs="+",
        help=f"depths (default {COMPARED_LAYERS}; for a link or graph dataset the paper's)",
    )
    add(
        "--methods",
        nargs="+",
        default=list(METHODS),
        help="names, with options after a plus (default: %(default)s)",
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
        help=f"{', '.join(MODELS)} or module:function; for a link or graph dataset the paper's, "
        "e.g. ngnn-gcn (default gcn)",
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
        default="batch",
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

"""``virgo demo | methods | check | compare | verify``: look at a model on a graph."""

from __future__ import annotations

import argparse
import copy
import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import virgo
from virgo.cli import demo as demonstration
from virgo.cli import networks
from virgo.cli.progress import errors, reporting, track
from virgo.diagnostics.comparing import METHODS, wants_depth
from virgo.errors import DataError, OptionError
from virgo.experiments.assumptions.tables import Verified, refresh
from virgo.experiments.assumptions.verification import verify_all
from virgo.experiments.data.roots import CITATION
from virgo.graph.torch_files import load_saved
from virgo.report.text import text_table
from virgo.rules import parse_method

MODELS = {"gcn": "GCN", "sage": "GraphSAGE", "gin": "GIN", "gat": "GAT"}
WIDTH, CHECKED_LAYERS, COMPARED_LAYERS = 128, 2, 5  # of these, unless others are asked for


# --- what to work on ----------------------------------------------------------------------------


def load_data(args: argparse.Namespace) -> tuple[Any, str, list[str]]:
    """The graph a command was asked to look at, its name, and what must be said about it."""
    data, name, notes = _find_data(args)
    if getattr(args, "all_nodes", False) and "train_mask" in data:
        data = copy.copy(data)
        del data.train_mask
        notes = [*notes, "the loss is over all nodes, not over the training nodes"]
    return data, name, notes


def _target(args: argparse.Namespace) -> str | None:
    """What was named, with or without --dataset."""
    if args.target and args.dataset:
        raise OptionError(
            f"--dataset: expected one name, got {args.dataset!r} beside {args.target!r}. Name one."
        )
    found: str | None = args.target or args.dataset
    return found


def _find_data(args: argparse.Namespace) -> tuple[Any, str, list[str]]:
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


def load_file(path: Path) -> Any:
    """A ``Data`` saved with ``torch.save``, read without running code that a pickle may hold."""
    from torch_geometric.data import Data

    try:
        found = load_saved(path)
    except Exception as error:
        raise DataError(
            f"{path}: expected a torch_geometric Data saved with torch.save, got "
            f"{type(error).__name__}. Save data.to_dict() (a Data that was in use may hold a cache "
            f"that cannot be read safely), or pass --data module:function."
        ) from error
    return Data(**found) if isinstance(found, dict) else found


def load_object(spec: str) -> Callable[..., Any]:
    """``package.module:function`` as the function."""
    module, _, name = spec.partition(":")
    if not name:
        raise OptionError(f"{spec}: expected module:function, got no colon. Write it with one.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            f"{spec}: expected a function to import, got {error}. Run virgo where the module can "
            f"be imported."
        ) from error
    finally:
        sys.path.pop(0)
    if not callable(found):
        raise OptionError(f"{spec}: expected a function, got {type(found).__name__}.")
    return found  # type: ignore[no-any-return]


def model_maker(args: argparse.Namespace, data: Any) -> Callable[..., Any]:
    """``depth -> model``, or the user's own function."""
    if args.model not in MODELS:
        return load_object(args.model)
    from torch_geometric import nn

    kind = getattr(nn, MODELS[args.model])
    if getattr(data, "x", None) is None or getattr(data, "y", None) is None:
        raise OptionError(
            f"--model {args.model}: expected data with x and y to size it by, got none. "
            f"Pass --model module:function."
        )
    classes = int(data.y.max()) + 1
    width = WIDTH if args.width is None else args.width

    def make(depth: int) -> Any:
        return kind(data.num_features, width, depth, classes)

    return make


def write(result: Any, args: argparse.Namespace) -> None:
    """Save what was asked for, and say where it is."""
    for path in outputs(args):
        print(f"wrote {result.save(path)}")


def outputs(args: argparse.Namespace) -> list[Path]:
    """The files that were asked for; a wrong ending is said before any work is done."""
    paths = []
    for option in ("json", "html", "png"):
        path = getattr(args, option, None)
        if path is not None:
            if path.suffix.lower() != f".{option}":
                raise OptionError(f"--{option}: expected a path ending in .{option}, got {path}.")
            paths.append(path)
    return paths


# --- commands -----------------------------------------------------------------------------------


def demo(args: argparse.Namespace) -> int:
    demonstration.run(args.out, lambda line: print(line, flush=True), track)
    return 0


def methods(args: argparse.Namespace) -> int:
    rows = list(virgo.methods().items())
    print("\n".join(text_table(("method", "what it does"), rows, left=2)))
    return 0


def check(args: argparse.Namespace) -> int:
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
    print(f"{report.title}\n{report}")
    write(report, args)
    return 0 if report.ok else 1


def _check_graph(args: argparse.Namespace, limits: virgo.Thresholds) -> tuple[Any, str, Any]:
    data, name, notes = load_data(args)
    make = model_maker(args, data)
    layers = CHECKED_LAYERS if args.layers is None else args.layers
    model = make(layers) if wants_depth(make) else make()
    with errors.status("measuring one pass"):
        found = None
        if args.method:
            method, options = parse_method(args.method)
            found = virgo.plan(model, data, method, seed=args.seed, **options)
        report = virgo.check(model, data, found, thresholds=limits, nodes=args.nodes)
    return report, name, notes


def compare(args: argparse.Namespace) -> int:
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


def add_to(commands: Any) -> None:
    """The commands that look at a model and a graph."""
    one = commands.add_parser(
        "demo",
        description="Initialises a GCN with every method, prints its variances layer by layer and "
        "a short accuracy comparison, and draws a picture. Takes under a minute.",
    )
    one.add_argument("--out", type=Path, default=Path("out"), help="folder for the picture")
    one.set_defaults(run=demo)

    two = commands.add_parser("methods", description="Lists the initialisation methods.")
    two.set_defaults(run=methods)

    three = commands.add_parser(
        "check",
        description="Measures one pass of a model on a graph, prints predicted beside measured "
        "variances and a verdict, and exits with 1 if it is bad, so that it serves in CI.",
        epilog="virgo check cora --layers 16 --method xavier\n"
        "virgo check --model my_pkg.my_mod:make_model --data my_pkg.my_mod:make_data",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_subject(three)
    three.add_argument(
        "--layers",
        type=int,
        help="of a built-in model, or given to a function "
        f"that takes it (default {CHECKED_LAYERS}; of a link or graph dataset the "
        "paper's)",
    )
    three.add_argument(
        "--method",
        help="check what this method would draw, e.g. xavier, "
        "virgo-forward+measured (default: the model's own weights)",
    )
    three.add_argument("--seed", type=int, default=0, help="of the draw")
    three.add_argument(
        "--change", type=float, help="factor over the hidden layers that is bad (default 1000)"
    )
    three.add_argument("--watch", type=float, help="factor that is mentioned (default 30)")
    three.set_defaults(run=check)

    four = commands.add_parser(
        "compare",
        description="Forward and backward variance over layers for all methods, mean and spread "
        "over draws, and whether the paper's claim holds.",
        epilog="virgo compare cora --layers 5 16 --png figure.png --html figure.html\n"
        "virgo compare --dataset ogbl-ddi --model ngnn-sage",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_subject(four)
    four.add_argument(
        "--layers",
        type=int,
        nargs="+",
        help=f"depths (default {COMPARED_LAYERS}; of a link or graph dataset the paper's)",
    )
    four.add_argument(
        "--methods",
        nargs="+",
        default=list(METHODS),
        help="names, with options after a plus (default: %(default)s)",
    )
    four.add_argument("--seeds", type=int, default=3, help="draws per method (default 3)")
    four.set_defaults(run=compare)

    five = commands.add_parser(
        "verify",
        description="Samples message paths and weight paths of a 3-layer Xavier GCN and prints "
        "tables A1-A5 beside the paper's.",
    )
    five.add_argument(
        "targets", nargs="*", help=f"{', '.join(CITATION)}, or files with a saved Data"
    )
    five.add_argument("--data", help="module:function that returns the data, instead of targets")
    five.add_argument("--seeds", type=int, default=10, help="draws (default 10)")
    _add_outputs(five)
    five.add_argument("--refresh", type=Path, help="refill the tables of this markdown file")
    five.set_defaults(run=verify)


def _add_subject(command: argparse.ArgumentParser) -> None:
    """Which model, which graph, and where to write."""
    command.add_argument(
        "target",
        nargs="?",
        help=f"{', '.join(CITATION)}, ogbn-arxiv (generated "
        "features), another dataset of virgo data list, like:NAME[@scale], or a "
        "file with a saved Data",
    )
    command.add_argument("--dataset", help="the same as target")
    command.add_argument("--data", help="module:function that returns the data, instead of target")
    command.add_argument(
        "--model",
        default="gcn",
        help=f"{', '.join(MODELS)} or module:function; of a link or graph dataset "
        "the paper's, e.g. ngnn-gcn (default gcn)",
    )
    command.add_argument(
        "--width",
        type=int,
        help=f"of a built-in model (default {WIDTH}; of a link or graph dataset the paper's)",
    )
    command.add_argument(
        "--graphs",
        type=int,
        help="of a graph dataset: measure on at most so "
        "many training graphs (default: what half a gigabyte holds)",
    )
    command.add_argument(
        "--norms",
        default="batch",
        choices=("batch", "fresh"),
        help="of a graph "
        "dataset: BatchNorm as in training (default), or as it is in evaluation, "
        "where before training it changes nothing",
    )
    command.add_argument("--nodes", type=int, help="measure on a sample of this many nodes")
    command.add_argument(
        "--all-nodes",
        action="store_true",
        help="loss over all nodes, as in the paper's theorem, not over the training nodes",
    )
    _add_outputs(command)


def _add_outputs(command: argparse.ArgumentParser) -> None:
    """Where to read from and to write to."""
    command.add_argument("--root", type=Path, help="data root (default: VIRGO_DATA, user cache)")
    command.add_argument("--json", type=Path, help="write the numbers here")
    command.add_argument("--html", type=Path, help="write a self-contained page here")
    command.add_argument("--png", type=Path, help="write a picture here")

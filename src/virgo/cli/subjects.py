"""What commands look at: the graph and the model that a command line names."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from virgo.cli.progress import loading
from virgo.errors import DataError, OptionError, suggestion
from virgo.experiments.data.catalogue import names
from virgo.experiments.data.roots import CITATION
from virgo.vocabulary import MODELS

if TYPE_CHECKING:
    from torch_geometric.data import Data

#: Models that ``--model`` knows by name beside those of the paper, and their classes in PyG.
OTHERS = {"gat": "GAT"}
KNOWN_MODELS = (*MODELS, *OTHERS)
_OF_PYG = {"gcn": "GCN", "sage": "GraphSAGE", "gin": "GIN", **OTHERS}
WIDTH = 128  # by default


def load_data(args: argparse.Namespace) -> tuple[Data, str, list[str]]:
    """The graph that a command names, its name, and remarks on it."""
    with loading(args.data or args.target or "the demonstration's graph") as progress:
        data, name, notes = _find_data(args, progress)
    if getattr(args, "all_nodes", False) and "train_mask" in data:
        data = copy.copy(data)
        del data.train_mask
        notes = [*notes, "the loss is over all nodes, not over the training nodes"]
    return data.to(getattr(args, "on", "cpu")), name, notes


def chosen_target(args: argparse.Namespace) -> str | None:
    """The dataset that was named, with or without ``--dataset``."""
    named = {"target": args.target, "--dataset": args.dataset, "--data": args.data}
    given = {option: value for option, value in named.items() if value}
    if len(given) > 1:
        both = " beside ".join(map(repr, given.values()))
        raise OptionError(f"{list(given)[-1]}: expected one name, got {both}. Name one.")
    name: str | None = args.target or args.dataset
    return name


def _find_data(
    args: argparse.Namespace, progress: Callable[..., None]
) -> tuple[Data, str, list[str]]:
    from virgo.experiments.data import demo_graph, load, load_arxiv, load_citation

    if args.data:
        return load_object(args.data)(), args.data, []
    name = args.target or "demo"
    if name.lower() in CITATION:
        return load_citation(name, args.root), name.lower(), []
    if name.lower() == "ogbn-arxiv":
        graph, remark = load_arxiv(args.root)
        return graph, "ogbn-arxiv", [remark] if remark else []
    if name == "demo":
        graph, description = demo_graph()
        generated = "generated" in description
        return graph, "generated" if generated else "cora", [description] if generated else []
    if name.lower() in names() or name.lower().startswith("like:"):
        dataset = load(name, args.root, progress)
        if dataset.task != "node":
            raise DataError(
                f"{name}: expected a dataset of one graph with classes, got one for {dataset.task} "
                f"tasks. Choose a node classification dataset."
            )
        return dataset.data, dataset.name, [dataset.generated] if dataset.generated else []
    path = Path(name)
    if not path.is_file():
        raise DataError(
            f"target: expected a file with a saved Data, or one of {', '.join(names())}, got "
            f"{name!r}.{suggestion(name, names())} Name one of these, or pass --data "
            f"module:function."
        )
    return load_file(path), path.stem, []


def load_file(path: Path) -> Data:
    """Load a ``Data`` saved with ``torch.save``, without running code that a pickle may hold."""
    from torch_geometric.data import Data

    from virgo.graph.torch_files import load_saved

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
    """The function that ``package.module:function`` names; the current folder is searched, too."""
    from virgo.experiments.tasks.calling import imported

    function: Callable[..., Any] = imported(spec, spec)
    if not callable(function):
        raise OptionError(f"{spec}: expected a function, got {type(function).__name__}. Name one.")
    return function


def refuse(args: argparse.Namespace, option: str, expected: str) -> None:
    """Raise if an option was given that does nothing here."""
    if getattr(args, option, None) is not None:
        raise OptionError(f"--{option}: expected {expected}. Leave it out.")


def check_model(name: str) -> None:
    """Raise unless ``--model`` names a model, or a function that may make one."""
    if name not in KNOWN_MODELS and ":" not in name:
        raise OptionError(
            f"--model: expected one of {', '.join(KNOWN_MODELS)}, or module:function, got "
            f"{name!r}.{suggestion(name, KNOWN_MODELS)} Choose one."
        )


def model_maker(args: argparse.Namespace, data: Data) -> Callable[..., Any]:
    """A function ``depth -> model`` with the data's features and classes, or the user's own."""
    from virgo.diagnostics.comparing import wants_depth

    check_model(args.model)
    if args.model not in KNOWN_MODELS:
        refuse(args, "width", f"a built-in model, got {args.model}, which sizes itself")
        make = load_object(args.model)
        if wants_depth(make):
            return lambda depth: make(depth).to(args.on)
        return lambda: make().to(args.on)
    if getattr(data, "x", None) is None or getattr(data, "y", None) is None:
        raise OptionError(
            f"--model {args.model}: expected data with x and y to size it by, got none. "
            f"Pass --model module:function."
        )
    width = WIDTH if args.width is None else args.width
    sizes = data.num_features, width, int(data.y.max()) + 1
    return lambda depth: _known_model(args.model, depth, *sizes).to(args.on)


def _known_model(name: str, depth: int, features: int, width: int, classes: int) -> Any:
    if name in _OF_PYG:
        from torch_geometric import nn

        return getattr(nn, _OF_PYG[name])(features, width, depth, classes)
    from virgo.experiments.models import build

    return build(name, features, classes, {"hidden_channels": width, "num_layers": depth})

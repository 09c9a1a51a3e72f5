"""``check`` and ``compare`` for the networks of link prediction and graph classification."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import virgo
from virgo.cli.progress import loading
from virgo.cli.subjects import refuse
from virgo.errors import OptionError
from virgo.experiments.data.catalogue import CATALOGUE

if TYPE_CHECKING:
    from virgo import Thresholds

_TABLES = {"link": "table2", "graph": "table3"}


def find(args: argparse.Namespace) -> Any:
    """Load the dataset that a command names if it is one of links or graphs, else None."""
    from virgo.experiments.sweep.grids import base_name

    name = (args.target or "").lower()
    entry = CATALOGUE.get(base_name(name))
    if args.data or entry is None or entry.task not in _TABLES:
        if args.graphs is not None:
            raise OptionError("--graphs: expected a dataset of graphs, got another. Leave it out.")
        refuse(args, "norms", "a dataset of graphs, got another")
        return None
    for option in ("nodes", "all_nodes"):
        if getattr(args, option):
            raise OptionError(
                f"--{option.replace('_', '-')}: expected a dataset of node classification, got "
                f"{name} for {entry.task} tasks. Leave it out."
            )
    if entry.task == "link" and args.graphs is not None:
        raise OptionError(f"--graphs: expected a dataset of graphs, got {name}. Leave it out.")
    with loading(name) as progress:
        return virgo.data.load(name, args.root, progress)


def subject(args: argparse.Namespace, dataset: Any, layers: int | None) -> Any:
    """The task's network before training, of the size asked for or the paper's."""
    from virgo.experiments.sweep.grids import ARCHITECTURE, grid
    from virgo.experiments.tasks import Compute, Settings, task_of

    own = grid(_TABLES[dataset.task], dataset.name, args.model).configurations()[0]
    sizes = {key: own[key] for key in ARCHITECTURE if key in own}
    given = {"num_layers": layers, "hidden_channels": args.width}
    settings = Settings.of(sizes | {k: value for k, value in given.items() if value is not None})
    task = task_of(dataset, Compute(args.on))
    how = {"norms": args.norms or "batch"} if dataset.task == "graph" else {}
    if args.graphs is not None:
        how["max_graphs"] = args.graphs
    found = task.subject(args.model, settings, getattr(args, "seed", 0), **how)
    width = settings.hidden_channels
    notes = [*found.notes, *([dataset.generated] if dataset.generated else [])]
    facts = {**found.facts, "width": width, "generated": dataset.generated}
    return replace(found, notes=(f"layers of width {width}", *notes), facts=facts)


def compare(args: argparse.Namespace, dataset: Any, progress: Callable[..., None]) -> Any:
    """Compare all methods on the task's networks, one depth after the other."""
    depths = list(dict.fromkeys(args.layers or [None]))
    studies = []
    for number, depth in enumerate(depths):
        network = subject(args, dataset, depth)

        def advance(done: int, total: int, what: str, before: int = number) -> None:
            progress(before * total + done, len(depths) * total, what)

        study = virgo.compare(
            lambda network=network: network.model,
            network.data,
            args.methods,
            seeds=args.seeds,
            loss=network.loss,
            forward=network.forward,
            planner=network.plan,
            title=f"{args.model} on {dataset.name}",
            notes=network.notes,
            progress=advance,
        )
        failures = {
            f"{name}, {depth} layers" if depth else name: why
            for name, why in study.failures.items()
        }
        studies.append(replace(study, failures=failures, facts={**study.facts, **network.facts}))
    from virgo.diagnostics.comparison import joined

    return joined(studies)


def check(
    args: argparse.Namespace, dataset: Any, thresholds: Thresholds
) -> tuple[Any, tuple[str, ...]]:
    """The report on the task's network, and remarks on it."""
    network = subject(args, dataset, args.layers)
    plan = network.plan(network.model, args.method, args.seed) if args.method else None
    report = virgo.check(
        network.model,
        network.data,
        plan,
        thresholds=thresholds,
        loss=network.loss,
        forward=network.forward,
        norms=network.facts.get("norms", "batch"),
    )
    notes = network.notes
    if network.facts.get("norms") == "batch":
        notes = (*notes, "the prediction is of the network without BatchNorm")
    return report, notes

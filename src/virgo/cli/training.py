"""``virgo train``: one run with a live curve."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from virgo.cli.curve import curve
from virgo.cli.progress import errors, writable_folder
from virgo.draws import DISTRIBUTIONS
from virgo.errors import OptionError
from virgo.experiments.models import MODELS, NGNN_TYPES
from virgo.rules import OPTIONS

#: Seconds from one picture to the next: drawing must not slow down an epoch of two milliseconds.
REFRESH = 0.1
_SETTINGS = (
    "hidden_channels",
    "num_layers",
    "lr",
    "weight_decay",
    "dropout",
    "epochs",
    "patience",
    "eval_step",
    "batch_size",
    "num_neighbors",
    "num_parts",
    "max_grad_norm",
    "ngnn_type",
    "num_ngnn_layers",
)


def train(args: argparse.Namespace) -> int:
    import torch

    import virgo
    from virgo.experiments.tasks import Settings, Training, checkpoint, task_of

    if args.threads:
        torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)  # vanished gradients are denormal, and denormals are slow
    _check_outputs(args)
    if args.resume:
        saved = checkpoint.load(args.resume)
        dataset = virgo.data.load(saved.header["dataset"], args.root)
        training = saved.resume(task_of(dataset), args.epochs)
        epochs = saved.curve
    else:
        if not args.dataset:
            raise OptionError("--dataset: expected a name, got none. See virgo data list.")
        dataset = virgo.data.load(args.dataset, args.root)
        settings = Settings.of(
            {name: getattr(args, name) for name in _SETTINGS if getattr(args, name) is not None}
            | ({"patience": None} if args.no_early_stopping else {})
        )
        training = Training(task_of(dataset), args.model, _init(args), settings, args.seed)
        epochs = []
    try:
        _show(training, epochs)
    except KeyboardInterrupt:
        errors.print(f"stopped after epoch {training.epoch}", style="yellow")
    if args.save:
        print(f"wrote {checkpoint.save(training, args.save, epochs)}")
    outcome = training.finish()
    _report(args, training, outcome, epochs)
    return 0 if outcome.status == "ok" else 1


def _check_outputs(args: argparse.Namespace) -> None:
    for option, ending in (("save", ".safetensors"), ("json", ".json"), ("png", ".png")):
        path = getattr(args, option)
        if path is not None and path.suffix != ending:
            raise OptionError(f"--{option}: expected a path ending in {ending}, got {path}.")


def _init(args: argparse.Namespace) -> str:
    """``--init`` with the options that were given as flags."""
    words = [args.init]
    if args.variant == "released":
        words.append("released")
    if args.estimate == "measured":
        words.append("measured")
    if args.signal == "rms":
        words.append("rms")
    if args.bias == "keep":
        words.append("keep-bias")
    if args.distribution != "uniform":
        words.append(args.distribution)
    return "+".join(words)


def _show(training: Any, epochs: list[Any]) -> None:
    """Train to the end, drawing as it goes."""
    drawn = 0.0
    with Live(console=errors, auto_refresh=False, transient=True) as live:
        while not training.done:
            epochs.append(training.advance())
            now = time.perf_counter()
            if now - drawn >= REFRESH:
                live.update(_picture(training, epochs), refresh=True)
                drawn = now


def _picture(training: Any, epochs: Sequence[Any]) -> Group:
    scores = [100 * e.valid for e in epochs if e.valid is not None]
    lines = [
        f"epoch {training.epoch} of at most {training.settings.epochs}, "
        f"{training.seconds / training.epoch * 1e3:.1f} ms an epoch",
        f"training loss, now {epochs[-1].loss:.4g}",
        *curve([e.loss for e in epochs], height=5),
    ]
    if scores:
        lines += [
            f"validation, now {scores[-1]:.2f} %, best {100 * training.best_valid:.2f} % in "
            f"epoch {training.best_epoch}",
            *curve(scores, height=7),
        ]
    return Group(*map(Text, lines))


def _report(args: argparse.Namespace, training: Any, outcome: Any, epochs: Sequence[Any]) -> None:
    dataset = training.task.dataset
    print(f"{training.name} with {training.init} on {dataset.name}, seed {training.seed}")
    if dataset.generated:
        print(f"note: {dataset.generated}; an accuracy on it means nothing")
    if outcome.status == "ok":
        print(
            f"validation {100 * outcome.valid:.2f} %, test {100 * outcome.test:.2f} % "
            f"({dataset.metric}) with the weights of epoch {outcome.epoch}"
        )
    else:
        print(f"{outcome.status} in epoch {outcome.epochs}: no result. Try a smaller --lr.")
    print(f"{outcome.epochs} epochs in {outcome.seconds:.2f} s")
    if args.json:
        from virgo.report.saving import versions
        from virgo.report.text import plain_numbers

        document = {
            "dataset": dataset.name,
            "generated": dataset.generated,
            "model": training.name,
            "init": training.init,
            "settings": training.settings.to_dict(),
            "seed": training.seed,
            "outcome": {k: v for k, v in asdict(outcome).items() if k != "curve"},
            "curve": [e._asdict() for e in epochs],
            "versions": versions(),
        }
        writable_folder(args.json.parent, "--json")
        args.json.write_text(json.dumps(plain_numbers(document), indent=1), encoding="utf-8")
        print(f"wrote {args.json}")
    if args.png:
        from virgo.report.plots import training_figure

        writable_folder(args.png.parent, "--png")
        said = " (generated)" if dataset.generated else ""
        title = f"{training.name}, {training.init}, {dataset.name}{said}"
        training_figure(epochs, outcome.epoch, title).savefig(args.png, dpi=200)
        print(f"wrote {args.png}")


def add_to(commands: Any) -> None:
    """The command and its options."""
    command = commands.add_parser(
        "train",
        description="Trains a network by the paper's protocol (Adam, validation after every epoch, "
        "early stopping) and tests the weights of the best epoch once.",
        epilog="virgo train --dataset cora --model gcn --init virgo-backward --layers 4\n"
        "virgo train --dataset cora --init virgo-backward+mirrored --layers 64 --dropout 0 "
        "--save run.safetensors\n"
        "virgo train --resume run.safetensors --epochs 2000",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--dataset", help="a name of virgo data list, or like:NAME[@scale]")
    command.add_argument("--root", type=Path, help="data root (default: VIRGO_DATA, user cache)")
    command.add_argument("--model", default="gcn", choices=MODELS, help="default gcn")
    _add_initialisation(command)
    _add_settings(command)
    command.add_argument("--seed", type=int, default=0, help="of everything random (default 0)")
    command.add_argument("--threads", type=int, help="of PyTorch; 1 is best on a small graph")
    command.add_argument(
        "--save",
        type=Path,
        metavar="FILE.safetensors",
        help="write weights, optimiser and settings here",
    )
    command.add_argument(
        "--resume",
        type=Path,
        metavar="FILE.safetensors",
        help="continue a saved run; other options but --epochs are its own",
    )
    command.add_argument("--json", type=Path, help="write the outcome and the curve here")
    command.add_argument("--png", type=Path, help="write a picture of the curve here")
    command.set_defaults(run=train)


def _add_initialisation(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("initialisation")
    group.add_argument(
        "--init",
        default="virgo-backward",
        metavar="METHOD",
        help="a name of virgo methods, options after a plus: "
        f"{', '.join(OPTIONS)} (default virgo-backward)",
    )
    group.add_argument("--variant", default="theorem", choices=("theorem", "released"))
    group.add_argument("--estimate", default="analytic", choices=("analytic", "measured"))
    group.add_argument("--signal", default="mean", choices=("mean", "rms"))
    group.add_argument("--distribution", default="uniform", choices=DISTRIBUTIONS)
    group.add_argument("--bias", default="zero", choices=("zero", "keep"))


def _add_settings(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("hyper-parameters")
    group.add_argument("--layers", dest="num_layers", type=int, help="default 2")
    group.add_argument("--hidden", dest="hidden_channels", type=int, help="width (default 64)")
    group.add_argument("--lr", type=float, help="learning rate (default 0.01)")
    group.add_argument("--weight-decay", type=float, help="default 0")
    group.add_argument("--dropout", type=float, help="default 0.5")
    group.add_argument("--epochs", type=int, help="at most (default 1000)")
    group.add_argument("--patience", type=int, help="epochs without a better one (default 20)")
    group.add_argument("--no-early-stopping", action="store_true")
    group.add_argument("--eval-step", type=int, help="epochs between validations (default 1)")
    group.add_argument(
        "--num-neighbors",
        type=int,
        nargs="+",
        metavar="K",
        help="sample so many neighbours in each layer (-1: all)",
    )
    group.add_argument("--num-parts", type=int, help="clusters for ClusterGCN (link prediction)")
    group.add_argument(
        "--batch-size",
        type=int,
        help="nodes (when sampling), edges, graphs or clusters of a step (default 1024)",
    )
    group.add_argument(
        "--max-grad-norm",
        type=float,
        help="clip gradients (default: as OGB's example of the dataset; inf: not at all)",
    )
    group.add_argument("--ngnn-type", choices=NGNN_TYPES, help="of an ngnn model (default input)")
    group.add_argument("--num-ngnn-layers", type=int, help="inserted layers (default 1)")

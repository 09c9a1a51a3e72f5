"""``virgo train``: train one network, with a live curve."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from virgo.cli.arguments import (
    SEED,
    Subparsers,
    add_command,
    add_device,
    add_root,
    check_output,
    chosen_compute,
    writable_folder,
    write_text,
)
from virgo.cli.curve import curve
from virgo.cli.progress import LogLines, errors, loading, note, working
from virgo.cli.signals import Interruption, deferred
from virgo.cli.subjects import KNOWN_MODELS, OTHERS, check_model, load_object
from virgo.cli.wording import given_options
from virgo.errors import OptionError, needed
from virgo.vocabulary import DISTRIBUTIONS, MODELS, NGNN_TYPES, OPTIONS

if TYPE_CHECKING:
    from virgo.experiments.tasks import Compute, Epoch, Outcome, Settings, Training

#: Seconds between two frames: drawing must not slow down an epoch of two milliseconds.
REFRESH = 0.1
#: Seconds between two checkpoints of a run with ``--save``.
KEEP = 30.0


def train(args: argparse.Namespace) -> int:
    """Train a network or resume a run, and print and write the outcome."""
    import torch

    from virgo.experiments.tasks import checkpoint

    compute = chosen_compute(args)
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)  # vanished gradients are denormal, and denormals are slow
    check_output("--save", args.save, ".safetensors")
    check_output("--json", args.json, ".json")
    check_output("--png", args.png, ".png")
    if args.save or args.resume:
        needed("safetensors", "A checkpoint", "train")
    if args.png:
        needed("matplotlib", "A figure", "plot")
    training, epochs = _resumed(args, compute) if args.resume else (_new(args, compute), [])
    try:
        with _fitting(args):
            _run(training, epochs, args.save)
    except KeyboardInterrupt as error:
        return _stopped(Interruption.of(error), training, args.save, epochs)
    if args.save:
        print(f"wrote {checkpoint.save(training, args.save, epochs)}")
    with _fitting(args):
        outcome = training.finish()
    _print(training, outcome)
    _write(args, training, outcome, epochs)
    return 0 if outcome.status == "ok" else 1


def _resumed(args: argparse.Namespace, compute: Compute) -> tuple[Training, list[Epoch]]:
    from virgo.experiments.tasks import checkpoint, task_of

    applies = ["--resume", "--epochs", "--root", "--save", "--json", "--png", "--device"]
    applies += ["--precision", "--compile", "--threads"]
    idle = [option for option in given_options(args.parser, args) if option not in applies]
    if idle:
        raise OptionError(
            f"{', '.join(idle)}: expected only --epochs beside --resume, which keeps the run's own "
            f"settings. Leave it out."
        )
    saved = checkpoint.load(args.resume)
    dataset = _load(saved.header["dataset"], args)
    return saved.resume(task_of(dataset, compute), args.epochs), saved.curve


def _new(args: argparse.Namespace, compute: Compute) -> Training:
    from virgo.experiments.tasks import Settings, Training, task_of
    from virgo.rules import parse_method

    if not args.dataset:
        raise OptionError("--dataset: expected a name, got none. See virgo data list.")
    check_model(args.model)
    is_own = args.model not in MODELS
    if not args.model.startswith("ngnn-"):
        for option in ("ngnn_type", "num_ngnn_layers"):
            if getattr(args, option) is not None:
                raise OptionError(
                    f"--{option.replace('_', '-')}: expected an ngnn model, got --model "
                    f"{args.model}. Leave it out, or write --model ngnn-gcn."
                )
    if is_own and args.save:
        raise OptionError(
            f"--save: expected one of {', '.join(MODELS)}, which a checkpoint can build again, got "
            f"--model {args.model}. Leave it out."
        )
    init = _init(args)
    parse_method(init)  # a misspelt name shows before the data is read
    dataset = _load(args.dataset, args)
    names = [field.name for field in fields(Settings)]
    given = {name: value for name in names if (value := getattr(args, name, None)) is not None}
    given |= {"patience": None} if args.no_early_stopping else {}
    settings = Settings.of(_paper_settings(args, given) | given)
    task = (
        _own_task(args, dataset, settings, init, compute) if is_own else task_of(dataset, compute)
    )
    with _fitting(args), working(f"initialising by {init}"):
        return Training(task, args.model, init, settings, args.seed)


def _load(name: str, args: argparse.Namespace) -> Any:
    from virgo.experiments.data import load

    with loading(name) as progress:
        return load(name, args.root, progress)


def _own_task(
    args: argparse.Namespace, dataset: Any, settings: Settings, init: str, compute: Compute
) -> Any:
    """The task of a model that is not one of the paper's: PyG's own, or the user's."""
    from torch_geometric import nn

    from virgo.experiments.tasks.own import OwnData, OwnTask

    if dataset.task == "link":
        raise OptionError(
            f"--model {args.model}: expected one of {', '.join(MODELS)} for link prediction, got "
            f"another. Choose one."
        )
    make = getattr(nn, OTHERS[args.model]) if args.model in OTHERS else load_object(args.model)
    sizes = ("hidden_channels", "num_layers", "dropout")
    config = {key: value for key, value in settings.to_dict().items() if key in sizes}
    own = OwnData.of(dataset.name, dataset)
    return OwnTask(own, make, init, config, f"--model {args.model}", compute=compute)


def _paper_settings(args: argparse.Namespace, given: Mapping[str, object]) -> dict[str, Any]:
    """The middle of the paper's grid for this pair, and a line that says so."""
    from virgo.experiments.sweep.grids import middle

    paper = middle(args.dataset, args.model)
    if paper is None:
        note(f"the paper has no {args.model} on {args.dataset}: general defaults", style="dim")
        return {}
    table, config = paper
    layers, neighbours = given.get("num_layers"), given.get("num_neighbors")
    if isinstance(neighbours, list) and layers is None:  # one number per layer
        config = {**config, "num_layers": len(neighbours)}
    if layers not in (None, config.get("num_layers")) and config.get("num_neighbors"):
        config = {key: value for key, value in config.items() if key != "num_neighbors"}
    taken = {key: value for key, value in config.items() if key not in given}
    words = ", ".join(f"{key} {'none' if v is None else v}" for key, v in taken.items())
    if words:
        note(f"from the middle of the paper's grid ({table}): {words}", style="dim")
    return dict(config)


@contextmanager
def _fitting(args: argparse.Namespace) -> Iterator[None]:
    """A lack of memory as one line that says what to change."""
    from virgo.experiments.tasks.outcome import is_out_of_memory

    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        size = "the default" if args.batch_size is None else args.batch_size
        reason = (str(error).splitlines() or [f"{type(error).__name__}."])[0]
        raise OptionError(
            f"--batch-size: expected batches that fit in memory, got {size} and: "
            f"{reason} Lower --batch-size, sample with --num-neighbors, or "
            f"narrow the network with --hidden."
        ) from error


def _init(args: argparse.Namespace) -> str:
    """``--init`` with the options that were given as flags."""
    given = {
        "released": args.variant == "released",
        "measured": args.estimate == "measured",
        "rms": args.signal == "rms",
        "keep-bias": args.bias == "keep",
        args.distribution: args.distribution != "uniform",
    }
    return "+".join([args.init, *(word for word, is_given in given.items() if is_given)])


def _stopped(
    interruption: Interruption, training: Training, save: Path | None, epochs: list[Epoch]
) -> int:
    """Keep the run as it was after its last whole epoch, and say how to go on."""
    from virgo.experiments.tasks import checkpoint

    said = f"stopped by {interruption} after epoch {training.epoch}"
    if save is None:
        note(f"{said}; nothing was kept, which --save FILE.safetensors does")
        return interruption.code
    checkpoint.save(training, save, epochs)
    note(f"{said}; go on with: virgo train --resume {save}")
    return interruption.code


def _run(training: Training, epochs: list[Epoch], save: Path | None) -> None:
    """Train to the end with a live curve, and keep it now and then."""
    from virgo.experiments.tasks import checkpoint

    kept = time.perf_counter()
    with _shown(training, epochs) as show:
        while not training.done:
            with deferred():  # half an epoch cannot be continued
                epochs.append(training.advance())
            now = time.perf_counter()
            if save is not None and now - kept >= KEEP:
                checkpoint.save(training, save, epochs)
                kept = time.perf_counter()
            show(now)


@contextmanager
def _shown(training: Training, epochs: Sequence[Epoch]) -> Iterator[Callable[[float], None]]:
    """A live curve on a terminal, lines elsewhere; yields what is called after every epoch."""
    drawn = 0.0
    if not errors.is_interactive:
        with LogLines(f"training {training.name} on {training.task.dataset.name}") as lines:

            def log(now: float) -> None:
                nonlocal drawn
                if now - drawn >= REFRESH:
                    lines.update(_line(training, epochs))
                    drawn = now

            yield log
        return
    with Live(console=errors, auto_refresh=False, transient=True) as live:

        def draw(now: float) -> None:
            nonlocal drawn
            if now - drawn >= REFRESH:
                live.update(_picture(training, epochs), refresh=True)
                drawn = now

        yield draw


def _line(training: Training, epochs: Sequence[Epoch]) -> str:
    """Where the training is, in one line."""
    scores = [100 * e.valid for e in epochs if e.valid is not None]
    words = f"epoch {training.epoch} of at most {training.settings.epochs}, "
    words += f"training loss {epochs[-1].loss:.4g}"
    return words + (f", validation {scores[-1]:.2f} %" if scores else "")


def _picture(training: Training, epochs: Sequence[Epoch]) -> Group:
    scores = [100 * e.valid for e in epochs if e.valid is not None]
    lines = [
        f"epoch {training.epoch} of at most {training.settings.epochs}, "
        f"{training.seconds / training.epoch * 1e3:.1f} ms per epoch",
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


def _print(training: Training, outcome: Outcome) -> None:
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


def _write(
    args: argparse.Namespace, training: Training, outcome: Outcome, epochs: Sequence[Epoch]
) -> None:
    dataset = training.task.dataset
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
            **training.task.compute.words(),
            "outcome": {k: v for k, v in asdict(outcome).items() if k != "curve"},
            "curve": [e._asdict() for e in epochs],
            "versions": versions(),
        }
        write_text("--json", args.json, json.dumps(plain_numbers(document), indent=1))
    if args.png:
        from virgo.report.plots import training_figure

        writable_folder(args.png.parent, "--png")
        said = " (generated)" if dataset.generated else ""
        title = f"{training.name}, {training.init}, {dataset.name}{said}"
        training_figure(epochs, outcome.epoch, title).savefig(args.png, dpi=200)
        print(f"wrote {args.png}")


def add_to(commands: Subparsers) -> None:
    """Add ``virgo train``."""
    command = add_command(
        commands,
        "train",
        train,
        "Trains a network by the paper's protocol (Adam, validation after every epoch, early "
        "stopping) and tests the weights of the best epoch once.",
        "virgo train --dataset cora --model gcn --init virgo-backward --layers 4",
        "virgo train --dataset cora --init virgo-backward+mirrored --layers 64 --dropout 0 "
        "--save run.safetensors",
        "virgo train --resume run.safetensors --epochs 2000",
        "virgo train --dataset ogbl-collab --model sage --device cuda --precision bf16",
    )
    command.set_defaults(parser=command)
    add = command.add_argument
    add("--dataset", help="a name of virgo data list, or like:NAME[@scale]")
    add_root(command)
    add(
        "--model",
        default="gcn",
        help=f"{', '.join(KNOWN_MODELS)} or module:function, which is given in_channels, "
        "hidden_channels, num_layers, out_channels and dropout as far as it takes them (default "
        "gcn)",
    )
    _add_initialisation(command)
    _add_settings(command)
    add("--seed", type=SEED, default=0, help="seed of all random draws (default 0)")
    add_device(command, training=True)
    add("--threads", type=int, help="threads of PyTorch; 1 is best on a small graph")
    add("--save", type=Path, metavar="FILE.safetensors", help="write the run here")
    add(
        "--resume",
        type=Path,
        metavar="FILE.safetensors",
        help="continue a run; only --epochs applies",
    )
    add("--json", type=Path, help="write the outcome and the curve here")
    add("--png", type=Path, help="write a figure of the curve here")


def _add_initialisation(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("initialisation").add_argument
    add(
        "--init",
        default="virgo-backward",
        metavar="METHOD",
        help="a name of virgo methods, options after a plus: "
        f"{', '.join(OPTIONS)} (default virgo-backward)",
    )
    add("--variant", default="theorem", choices=("theorem", "released"))
    add("--estimate", default="analytic", choices=("analytic", "measured"))
    add("--signal", default="mean", choices=("mean", "rms"))
    add("--distribution", default="uniform", choices=DISTRIBUTIONS)
    add("--bias", default="zero", choices=("zero", "keep"))


def _add_settings(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group(
        "hyper-parameters", "by default the middle of the paper's grid for the dataset and model"
    )
    add = group.add_argument
    add("--layers", dest="num_layers", type=int, help="message-passing layers")
    add("--hidden", dest="hidden_channels", type=int, help="width")
    add("--lr", type=float, help="learning rate")
    add("--weight-decay", type=float, help="of Adam")
    add("--dropout", type=float, help="between layers")
    add("--epochs", type=int, help="maximum number")
    add("--patience", type=int, help="epochs without improvement")
    add("--no-early-stopping", action="store_true")
    add(
        "--strict",
        action="store_const",
        const=True,
        help="an epoch counts as better only if it is (released script)",
    )
    add("--eval-step", type=int, help="epochs between validations")
    add("--num-neighbors", type=int, nargs="+", metavar="K", help="neighbours per layer (-1: all)")
    add("--num-parts", type=int, help="clusters for ClusterGCN (link prediction)")
    add("--batch-size", type=int, help="sampled nodes, edges, graphs or clusters")
    add(
        "--max-grad-norm", type=float, help="clip gradients (default: as OGB's example; inf: never)"
    )
    add("--ngnn-type", choices=NGNN_TYPES, help="of an ngnn model (default input)")
    add("--num-ngnn-layers", type=int, help="inserted layers (default 1)")

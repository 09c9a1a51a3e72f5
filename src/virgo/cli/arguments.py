"""Options, checks and output files that several commands share."""

from __future__ import annotations

import argparse
import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from virgo.errors import OptionError
from virgo.report.files import write_text_atomically

if TYPE_CHECKING:
    import torch

    from virgo.experiments.tasks.compute import Compute

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_command(
    commands: Subparsers,
    name: str,
    run: Callable[[argparse.Namespace], int] | None,
    description: str,
    *examples: str,
    **options: str,
) -> argparse.ArgumentParser:
    """Add a command with a description and examples below its options.

    Args:
        commands: the parser's commands.
        name: the command.
        run: the function to call with the parsed arguments; None for a group of commands.
        description: what the command does.
        examples: command lines.
        options: further options of ``add_parser``.

    Returns:
        The parser of the command.
    """
    command = commands.add_parser(
        name,
        description=textwrap.fill(description, 80),
        epilog="\n".join(examples) or None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **options,  # type: ignore[arg-type]
    )
    if run is not None:
        command.set_defaults(run=run)
    return command


def whole(least: int, most: int) -> Callable[[str], int]:
    """The type of an option that takes a whole number within bounds.

    Args:
        least: the smallest.
        most: the largest.

    Returns:
        A function for ``add_argument(type=...)``.

    >>> whole(1, 9)("4")
    4
    """

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(
                f"expected a whole number from {least} to {most}, got {text[:40]!r}"
            )
        return number

    return read


#: What a generator of PyTorch can be seeded with, and depths and widths that a model can have.
SEED, SIZE = whole(0, 2**63 - 1), whole(1, 2**31 - 1)


def add_root(command: argparse.ArgumentParser) -> None:
    """Add ``--root``."""
    command.add_argument("--root", type=Path, help="data root (default: VIRGO_DATA, user cache)")


def key_values(given: list[str] | None, option: str = "--where") -> dict[str, str]:
    """``KEY=VALUE`` words as a mapping.

    Args:
        given: the words.
        option: what errors call them.

    Returns:
        The mapping.

    Raises:
        OptionError: a word without a key, a value or the sign between them.

    >>> key_values(["lr=0.01", "dropout=0.5"])
    {'lr': '0.01', 'dropout': '0.5'}
    """
    for word in given or ():
        if not all(word.partition("=")):
            raise OptionError(f"{option}: expected KEY=VALUE, got {word!r}.")
    return dict(word.split("=", 1) for word in given or ())


def add_device(command: argparse.ArgumentParser, *, training: bool = False) -> None:
    """Add ``--device``, and for commands that train ``--precision`` and ``--compile``."""
    add = command.add_argument
    add(
        "--device",
        metavar="auto|cpu|cuda|cuda:N|mps",
        help="where to compute (default auto: CUDA, then MPS, then the CPU)",
    )
    if training:
        add(
            "--precision",
            default="fp32",
            choices=("fp32", "bf16"),
            help="bf16: linear maps in bfloat16 (default fp32)",
        )
        add("--compile", action="store_true", help="torch.compile networks that run PyG's layers")


def chosen_device(args: argparse.Namespace) -> torch.device:
    """The device that ``--device`` names; says which one where that is not plain."""
    from virgo.cli.progress import note
    from virgo.devices import choose_device

    device = choose_device(args.device)
    if args.device == "auto" or (args.device is None and device.type != "cpu"):
        note(f"device: {device}", style="dim")
    return device


def chosen_compute(args: argparse.Namespace) -> Compute:
    """Device, precision and compilation, as options give them."""
    from virgo.experiments.tasks.compute import Compute

    return Compute(chosen_device(args), args.precision, args.compile)


def check_output(option: str, path: Path | None, *endings: str) -> None:
    """Reject, before any work is done, a path with another ending or that nothing is written to.

    Args:
        option: that names the path.
        path: of the file to be written; None is no path.
        *endings: those it may have.

    Raises:
        OptionError: for another ending, a folder in its place, and a folder that is none or is
            not to be written to.
    """
    if path is None:
        return
    if path.suffix.lower() not in endings:
        expected = " or ".join(filter(None, (", ".join(endings[:-1]), endings[-1])))
        raise OptionError(f"{option}: expected a path ending in {expected}, got {path}.")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        actual = path if path.is_dir() else folder
        kind = "a folder" if path.is_dir() else "no folder that can be written to"
        raise OptionError(
            f"{option}: expected a file that can be written, got {path}, where {actual} is {kind}. "
            f"Name another."
        )


def writable_folder(folder: Path, option: str) -> None:
    """Create the folder of a file that an option names, or raise ``OptionError``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(
            f"{option}: expected a folder that can be written to, got {folder} ({error.strerror}). "
            f"Name another."
        ) from error


def write_text(option: str, path: Path, text: str) -> None:
    """Write the file that an option names, and print its path."""
    writable_folder(path.parent, option)
    try:
        if path.exists() and not path.is_file():  # such as /dev/stdout
            path.write_text(text, encoding="utf-8")
        else:
            write_text_atomically(path, text)
    except OSError as error:
        raise OptionError(
            f"{option}: expected a place to write to, got {path} ({error.strerror}). Free some "
            f"space, or name another."
        ) from error
    print(f"wrote {path}")

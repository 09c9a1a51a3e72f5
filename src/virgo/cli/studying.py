"""``virgo sweep --dataset my:data --model my:model``: the study on a user's own data and model."""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from virgo.cli.arguments import add_root
from virgo.cli.progress import note
from virgo.cli.signals import Interruption
from virgo.errors import OptionError

if TYPE_CHECKING:
    from virgo.experiments.sweep.studies import StudyResult

STORAGE, OUT = "out/sweeps.db", Path("out")
_ENDINGS = (".toml", ".json")


def own_study(args: argparse.Namespace) -> int:
    """Run what is missing of a study, print its table and write it beside its records."""
    for option in ("dataset", "model"):
        if not getattr(args, option):
            raise OptionError(
                f"--{option}: expected module:function for a study of your own, got none. Name it, "
                f"or one of the paper's tables: virgo sweep table1."
            )
    import virgo.experiments.sweep.storage  # noqa: F401  (names a missing extra)
    from virgo.cli.sweeping import bar, read_screen
    from virgo.experiments.sweep.studies import study

    screen = read_screen(args)
    grid = read_grid(args.grid)
    try:
        with bar(args.name) as show:
            result = study(
                args.dataset,
                args.model,
                args.init or ("auto", "xavier"),
                grid,
                name=args.name,
                seeds=args.seeds,
                columns=args.columns or (),
                train=args.train,
                baseline=args.baseline,
                screen=screen,
                storage=args.storage,
                out=args.out,
                jobs=args.jobs,
                curves=args.curves,
                retry_failed=args.retry_failed,
                root=str(args.root) if args.root else None,
                report=show,
            )
    except KeyboardInterrupt as error:
        interruption = Interruption.of(error)
        note(interruption.words("sweep"))
        return interruption.code
    return _show(result, args)


def _show(result: StudyResult, args: argparse.Namespace) -> int:
    print(result)
    path = result.table.save(args.out / f"{args.name}.md")
    print(f"wrote {path} and {result.path}")
    for message, count in result.failed.items():
        note(f"{count} seeds without a number: {message}", style="yellow")
    if any(s["status"] == "failed" for record in result.records for s in record.seeds):
        note("correct the cause, then run only these again by the same command and --retry-failed")
    return 0


def read_grid(path: Path | None) -> dict[str, Any] | list[dict[str, Any]]:
    """The grid in a TOML or JSON file.

    Args:
        path: keys with a value or a list of values; in TOML several ``[[grid]]``, in JSON a list,
            are grids that are not multiplied with each other. None for no keys.

    Returns:
        What :func:`virgo.experiments.study` takes.

    Raises:
        OptionError: the file is missing, damaged or of another kind.
    """
    if path is None:
        return {}
    if path.suffix.lower() not in _ENDINGS:
        raise OptionError(f"--grid: expected a file ending in {' or '.join(_ENDINGS)}, got {path}.")
    try:
        text = path.read_text(encoding="utf-8-sig")
        document = json.loads(text) if path.suffix.lower() == ".json" else _toml(text)
    except OSError as error:
        raise OptionError(
            f"--grid: expected a file, got {error.strerror}: {path}. Write one, for example: "
            f"lr = [0.01, 0.001]"
        ) from error
    except (ValueError, RecursionError) as error:
        raise OptionError(f"--grid {path}: expected keys and values, got {error}.") from error
    if isinstance(document, dict) and set(document) == {"grid"}:
        document = document["grid"]
    if not isinstance(document, (dict, list)):
        raise OptionError(f"--grid {path}: expected keys and values, got {document!r:.40}.")
    grid: dict[str, Any] | list[dict[str, Any]] = document
    return grid


def _toml(text: str) -> Any:
    for module in ("tomllib", "tomli"):  # the first is part of Python from 3.11 on
        try:
            return import_module(module).loads(text)
        except ImportError:
            continue
    raise OptionError(
        "--grid: expected the package tomli to read TOML on Python 3.10, got none. "
        "pip install tomli, or write the grid as JSON."
    )


def add_study(command: argparse.ArgumentParser) -> None:
    """Add the options of a study to ``virgo sweep`` itself."""
    group = command.add_argument_group("a study of your own, without the name of a table")
    add = group.add_argument
    add(
        "--dataset", nargs="+", metavar="DATA", help="module:function, or a name of virgo data list"
    )
    add("--model", nargs="+", help="module:function or module:Class, or a model of the paper")
    add("--init", nargs="+", help="methods, module:function, or default (default auto xavier)")
    add("--grid", type=Path, metavar="FILE", help="grid as TOML or JSON: lr = [0.01, 0.001]")
    add("--train", metavar="FUNCTION", help="module:function that trains and tests")
    add("--columns", nargs="+", metavar="KEY", help="grid keys with a column per value")
    add("--baseline", help="the method to compare with (default: the first classic one)")
    add("--name", default="study", help="of the study and its files (default %(default)s)")
    add("--seeds", type=int, default=5, help="seeds per configuration (default 5)")
    add("--screen", type=int, metavar="K", help="run all configurations with K seeds")
    add("--top", type=int, metavar="M", help="then the best M of a cell with all seeds")
    add("--jobs", type=int, default=1, help="worker processes (default 1: none)")
    add("--curves", action="store_true", help="keep validation curves in the records")
    add("--retry-failed", action="store_true", help="run seeds again that failed")
    add("--storage", help="an SQLite file or postgresql://... (default OUT/NAME.db)")
    add("--out", type=Path, default=OUT, help="folder of the results (default %(default)s)")
    add_root(command)

"""The command line: parse, call, print."""

from __future__ import annotations

import argparse
import errno
import os
import platform
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module, metadata

from virgo import __version__
from virgo.cli.progress import begin, note, working
from virgo.cli.signals import STOPPED, Interruption, end_children, stoppable
from virgo.cli.wording import Parser, spoken
from virgo.errors import VirgoError

__all__ = ["main", "parser"]

#: Each command with its module and help. Only the module of the given command is imported, and no
#: module imports PyTorch or PyG, which take seconds, before it knows what to do.
COMMANDS = {
    "demo": ("diagnose", "every method on Cora, or on a generated graph if Cora is missing"),
    "methods": ("diagnose", "list the initialisation methods"),
    "check": ("diagnose", "whether signal and gradient survive in a model; exit code 1 if not"),
    "compare": ("diagnose", "variance over layers for all methods (the paper's Figure 1)"),
    "verify": ("diagnose", "the paper's five assumption tables on real graphs"),
    "graph": ("graphs", "build a graph on disk from an edge list in bounded memory, describe it"),
    "plan": (
        "planning",
        "the variances for a graph on disk or in a database, from its edges alone",
    ),
    "data": ("datasets", "the paper's datasets and others: list, prepare and check them"),
    "train": ("training", "train one network, with a live curve"),
    "sweep": ("sweeping", "run the paper's grids over methods and seeds; resumes after a stop"),
    "bench": ("benching", "plan, step and sweep beside PyG's plain loop, on this machine"),
    "table": ("tables", "the paper's tables beside the measured ones, with statistical tests"),
    "completion": ("completion", "print a script that completes commands and options in a shell"),
}
#: Those that run without PyTorch and PyG.
WITHOUT_TORCH = ("graph", "table", "completion")


class Version(argparse.Action):
    """``--version``: those of Virgo and of what it runs on, none of which is imported."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        others = [f"{name} {_installed(name)}" for name in ("torch", "torch_geometric")]
        print(", ".join([f"virgo {__version__}", *others, f"Python {platform.python_version()}"]))
        parser.exit()


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "is not installed"


def parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of the command that ``words`` begin with, or one that lists all commands.

    Args:
        words: the command line.

    Returns:
        The parser.
    """
    top = Parser(
        prog="virgo",
        description="Initialise graph neural networks so that signal and gradient survive.",
        epilog="exit codes: 0 good; 1 the verdict is bad (check, data check, a run that diverged); "
        "2 wrong use, or something is missing; 130 interrupted (143 and 129 by other signals); 141 "
        "the reader of the output has closed it. In Python: virgo.init_(model, data) initialises "
        "any PyTorch Geometric model.",
    )
    top.add_argument("--version", action=Version, help="show the versions and exit")
    commands = top.add_subparsers(required=True, metavar="command")
    if words and words[0] in COMMANDS:
        module, _ = COMMANDS[words[0]]
        import_module(f"virgo.cli.{module}").add_to(commands)
    else:
        for name, (_, what) in COMMANDS.items():
            commands.add_parser(name, help=what)
    return top


def _ended(code: int, is_process: bool) -> int:
    """After a signal: nothing is left to be done, not even what Python does when it ends.

    It would wait for threads, which may be in the middle of something long.

    Args:
        code: the exit code.
        is_process: whether this is the whole process, which then ends here.

    Returns:
        The exit code.
    """
    end_children()
    if is_process:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    return code


#: Disks that are full, read-only, over their quota or broken, files that are not the user's, and
#: paths that cannot be: a file where a folder should be, or the reverse, or a name too long.
_OF_THE_MACHINE = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.EMFILE,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a user's mistake is one line on stderr and exit code 2.

    SIGINT, SIGTERM and SIGHUP stop it within two seconds, with the exit codes 130, 143 and 129.

    Args:
        argv: the command line; that of the process by default.

    Returns:
        The exit code.

    Raises:
        OSError: one that is neither the machine's nor the user's doing.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    with stoppable(words[0] if words else ""):
        try:
            begin()
            args = parser(words).parse_args(words)
            if words[0] not in WITHOUT_TORCH:
                with working("loading PyTorch and PyG"):
                    import_module("torch_geometric.nn")
            code: int = args.run(args)
            sys.stdout.flush()
            return _ended(code, argv is None) if code in STOPPED else code
        except VirgoError as error:
            note(" ".join(f"virgo: {spoken(str(error))}".split()), style="red")
            return 2
        except ImportError as error:  # of a library, within a library
            note(f"virgo: expected libraries that can be imported, got {error}.", style="red")
            return 2
        except MemoryError as error:
            words_of = " ".join(str(error).split()) or "none"
            note(f"virgo: expected more memory, got {words_of}. Free some.", style="red")
            return 2
        except KeyboardInterrupt as error:
            interruption = Interruption.of(error)
            with suppress(OSError):  # a terminal that was closed
                note(interruption.words(words[0]))
            return _ended(interruption.code, argv is None)
        except BrokenPipeError:  # the reader, such as `head`, has enough
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + 13
        except OSError as error:
            if error.errno not in _OF_THE_MACHINE:
                raise
            where = error.filename or "a file"
            note(
                f"virgo: {where}: expected to read or write it, got {error.strerror}. Free some "
                f"space, or name another folder.",
                style="red",
            )
            return 2

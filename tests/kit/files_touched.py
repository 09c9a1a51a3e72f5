"""How many of the package's files a few everyday calls run through: ``python files_touched.py``.

A file counts if one of its functions runs, which is what a reader has to open to follow the call.
Code that only runs on import does not count: everything is imported first. Each call has a
process of its own, forked after the imports, so that no cache of one shortens another.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import io
import multiprocessing
import os
import pkgutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import virgo

PACKAGE = Path(virgo.__file__).parent
SMALL = "like:cora@0.1"


def _gcn() -> tuple[Any, Any]:
    from torch_geometric.nn import GCN

    data = virgo.data.citation_like(num_nodes=200, seed=0)
    return GCN(data.num_features, 16, num_layers=3, out_channels=7), data


def init_() -> Callable[[], object]:
    return partial(virgo.init_, *_gcn())


def init_named() -> Callable[[], object]:
    return partial(virgo.init_, *_gcn(), "virgo-forward")


def check() -> Callable[[], object]:
    return partial(virgo.check, *_gcn())


def train() -> Callable[[], object]:
    from virgo import cli

    return partial(cli.main, ["train", "--dataset", SMALL, "--hidden", "8", "--epochs", "1"])


def sweep_table1() -> Callable[[], object]:
    from virgo import cli

    options = ["--dataset", SMALL, "--model", "gcn", "--init", "xavier", "virgo-backward"]
    options += ["--limit", "1", "--seeds", "1", "--epochs", "1", "--jobs", "1"]
    options += ["--storage", "sweeps.db", "--out", "results"]
    return partial(cli.main, ["sweep", "table1", *options])


CALLS: dict[str, Callable[[], Callable[[], object]]] = {
    "virgo.init_": init_,
    "virgo-forward": init_named,
    "virgo.check": check,
    "virgo train": train,
    "virgo sweep table1": sweep_table1,
}


def import_everything() -> None:
    """Import all modules of the package but those of extras that are not installed."""
    for module in pkgutil.walk_packages([str(PACKAGE)], "virgo."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(module.name)


def touched(call: Callable[[], object]) -> list[str]:
    """The files of the package in which ``call`` runs a function, in all threads."""
    files: set[str] = set()
    prefix = str(PACKAGE) + os.sep

    def profile(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        # the bodies of modules and classes are not optimised: they run on import
        is_function = code.co_flags & inspect.CO_OPTIMIZED
        if event == "call" and is_function and code.co_filename.startswith(prefix):
            files.add(code.co_filename.removeprefix(prefix))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted(files)


def measured(name: str) -> list[str]:
    """The files that one of :data:`CALLS` touches, without its output."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        os.chdir(folder)
        os.environ["VIRGO_CACHE"] = folder
        return touched(CALLS[name]())


def main() -> None:
    """Print the table, or with ``--list`` the files as well."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--list", action="store_true", help="print the files of every call")
    wants_list = parser.parse_args().list
    import_everything()
    print(f"{'call':20}{'files touched':>14}")
    for name in CALLS:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            files = pool.apply(measured, [name])
        print(f"{name:20}{len(files):>14}")
        if wants_list:
            print(*(f"    {file}" for file in files), sep="\n")


if __name__ == "__main__":
    main()

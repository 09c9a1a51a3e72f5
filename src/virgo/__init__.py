"""Virgo: initialise graph neural networks so that signal and gradient survive the graph."""

from importlib import import_module
from threading import RLock
from typing import TYPE_CHECKING, Any

from virgo.errors import DataError, GraphError, LayerError, OptionError, PlanError, VirgoError

if TYPE_CHECKING:
    from virgo import data
    from virgo.diagnostics import (
        Comparison,
        LightningMonitor,
        Measurement,
        Monitor,
        Report,
        Thresholds,
        check,
        compare,
        measure,
        summary,
    )
    from virgo.experiments.assumptions import verify
    from virgo.graph.operators import Graph, Operator
    from virgo.init import init_, plan
    from virgo.latch import latch_
    from virgo.latched_layers import Latches
    from virgo.layers import LayerView, Stage, Term, register_layer
    from virgo.peer import WarmStart, warm_start
    from virgo.plans import Plan, Row
    from virgo.ridge import fit_last_
    from virgo.rules import methods, register_method

__version__ = "0.1.0"
__all__ = [
    "Comparison",
    "DataError",
    "Graph",
    "GraphError",
    "Latches",
    "LayerError",
    "LayerView",
    "LightningMonitor",
    "Measurement",
    "Monitor",
    "Operator",
    "OptionError",
    "Plan",
    "PlanError",
    "Report",
    "Row",
    "Stage",
    "Term",
    "Thresholds",
    "VirgoError",
    "WarmStart",
    "check",
    "compare",
    "data",
    "fit_last_",
    "init_",
    "latch_",
    "measure",
    "methods",
    "plan",
    "register_layer",
    "register_method",
    "summary",
    "verify",
    "warm_start",
]

#: Where names are that are imported when they are first used. PyTorch and PyG take seconds to
#: import, and `virgo graph build` needs neither.
_HOMES = {
    "diagnostics": (
        "Comparison",
        "LightningMonitor",
        "Measurement",
        "Monitor",
        "Report",
        "Thresholds",
        "check",
        "compare",
        "measure",
        "summary",
    ),
    "experiments.assumptions": ("verify",),
    "graph.operators": ("Graph", "Operator"),
    "init": ("init_", "plan"),
    "latch": ("latch_",),
    "latched_layers": ("Latches",),
    "layers": ("LayerView", "Stage", "Term", "register_layer"),
    "peer": ("WarmStart", "warm_start"),
    "plans": ("Plan", "Row"),
    "ridge": ("fit_last_",),
    "rules": ("methods", "register_method"),
}
#: Modules that are attributes of the package without having been imported.
_MODULES = ("auto", "data", "errors", "experiments", "graph", "layers", "rules", "theory")
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_ONE_AT_A_TIME = RLock()  # PyG's modules import each other, which two threads at once break


def __getattr__(name: str) -> Any:
    """A public name from its module, or one of the modules listed above."""
    with _ONE_AT_A_TIME:
        if name in _HOME_OF:
            value = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
            globals()[name] = value
            return value
        if name in _MODULES:
            return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

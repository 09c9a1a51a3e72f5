"""Virgo: initialise graph neural networks so that signal and gradient survive the graph."""

from . import data
from .diagnostics import (
    Comparison,
    LightningMonitor,
    Measurement,
    Monitor,
    Report,
    Thresholds,
    check,
    compare,
    measure,
    verify,
)
from .errors import DataError, GraphError, LayerError, OptionError, PlanError, VirgoError
from .init import init_, plan
from .layers import LayerView, Stage, Term, register_layer
from .plans import Plan, Row
from .propagation import Graph, Operator
from .schemes import methods, register_method

__version__ = "0.1.0"
__all__ = [
    "Comparison",
    "DataError",
    "Graph",
    "GraphError",
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
    "check",
    "compare",
    "data",
    "init_",
    "measure",
    "methods",
    "plan",
    "register_layer",
    "register_method",
    "verify",
]

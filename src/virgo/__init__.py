"""Virgo: initialise graph neural networks so that signal and gradient survive the graph."""

from . import data
from .diagnostics import Measurement, measure
from .errors import DataError, GraphError, LayerError, OptionError, PlanError, VirgoError
from .init import init_, plan
from .layers import LayerView, Stage, Term, register_layer
from .plans import Plan, Row
from .propagation import Graph, Operator
from .schemes import methods, register_method

__version__ = "0.1.0"
__all__ = [
    "DataError",
    "Graph",
    "GraphError",
    "LayerError",
    "LayerView",
    "Measurement",
    "Operator",
    "OptionError",
    "Plan",
    "PlanError",
    "Row",
    "Stage",
    "Term",
    "VirgoError",
    "data",
    "init_",
    "measure",
    "methods",
    "plan",
    "register_layer",
    "register_method",
]

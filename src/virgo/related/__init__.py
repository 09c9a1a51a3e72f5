"""The related work: initialisers of other papers that plan a model by themselves.

They need no description of any layer. A *unit* is an outermost message-passing layer, another
module that owns a matrix, or a matrix that no layer holds (:func:`virgo.network.profile.units_of`);
every weight of every unit is drawn. The formulas are in :mod:`virgo.literature`, the names in
:mod:`virgo.rules`, and those that are a rule on a described layer's operator (``g-init``,
``isometric``) need nothing from here.
"""

from collections.abc import Callable

from virgo.plans import Plan
from virgo.related.gat_balanced import plan_gat_balanced
from virgo.related.lsuv import plan_lsuv
from virgo.related.spog import plan_spog
from virgo.related.units import PlanRequest, drawn_everywhere

__all__ = ["PLANNERS", "PlanRequest"]

#: How a method plans, from a plan without rows that has everything else.
PLANNERS: dict[str, Callable[[Plan, PlanRequest], Plan]] = {
    "orthogonal": drawn_everywhere,
    "random-walk": drawn_everywhere,
    "identity": drawn_everywhere,
    "relu-slope": drawn_everywhere,
    "lsuv": plan_lsuv,
    "spog": plan_spog,
    "gat-balanced": plan_gat_balanced,
}

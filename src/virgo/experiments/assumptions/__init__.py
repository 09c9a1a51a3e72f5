"""Appendix A of the paper: its five assumptions, measured."""

from virgo.experiments.assumptions.tables import Assumptions
from virgo.experiments.assumptions.verification import verify

__all__ = ["Assumptions", "verify"]

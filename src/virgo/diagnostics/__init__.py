"""What is: variances and gradients layer by layer, predicted beside measured, with a verdict."""

from virgo.diagnostics.check import Finding, Report, Thresholds, check
from virgo.diagnostics.compare import Comparison, compare
from virgo.diagnostics.measure import Measurement, measure

__all__ = [
    "Comparison",
    "Finding",
    "Measurement",
    "Report",
    "Thresholds",
    "check",
    "compare",
    "measure",
]

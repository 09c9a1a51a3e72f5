"""What is: variances and gradients layer by layer, predicted beside measured, with a verdict."""

from virgo.diagnostics.check import Report, check
from virgo.diagnostics.compare import Comparison, compare
from virgo.diagnostics.integrations import LightningMonitor
from virgo.diagnostics.measure import Measurement, measure
from virgo.diagnostics.monitor import Monitor
from virgo.diagnostics.tables import Assumptions
from virgo.diagnostics.verdict import Finding, Thresholds
from virgo.diagnostics.verify import verify

__all__ = [
    "Assumptions",
    "Comparison",
    "Finding",
    "LightningMonitor",
    "Measurement",
    "Monitor",
    "Report",
    "Thresholds",
    "check",
    "compare",
    "measure",
    "verify",
]

"""What is: variances and gradients layer by layer, predicted beside measured, with a verdict."""

from virgo.diagnostics.checking import Report, check
from virgo.diagnostics.comparing import compare
from virgo.diagnostics.comparison import Comparison
from virgo.diagnostics.integrations import LightningMonitor
from virgo.diagnostics.measurement import Measurement, measure
from virgo.diagnostics.monitor import Monitor
from virgo.diagnostics.summarising import summary
from virgo.diagnostics.verdict import Finding, Thresholds

__all__ = [
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
    "summary",
]

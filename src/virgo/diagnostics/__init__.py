"""What is: variances and gradients layer by layer, predicted beside measured, with a verdict."""

from virgo.diagnostics.measure import Measurement, measure

__all__ = ["Measurement", "measure"]

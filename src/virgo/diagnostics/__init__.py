"""What is: variances and gradients layer by layer, predicted beside measured, with a verdict."""

from .measure import Measurement, measure

__all__ = ["Measurement", "measure"]

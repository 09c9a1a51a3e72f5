"""The one family of errors a user of Virgo can meet.

Every message reads ``<where>: <expected>, got <actual>. <what to do>.``
"""

from __future__ import annotations


class VirgoError(ValueError):
    """Base of all errors raised for bad input."""


class OptionError(VirgoError):
    """An option has a value that Virgo does not know or cannot combine."""


class GraphError(VirgoError):
    """The graph or its features cannot be planned for."""


class LayerError(VirgoError):
    """A layer of the model cannot be planned for."""


class PlanError(VirgoError):
    """A plan does not fit the model it is applied to."""


class DataError(VirgoError):
    """A dataset is absent or damaged."""

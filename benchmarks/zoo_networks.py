"""The networks of the zoo (:mod:`zoo` runs them): importing this module fills the registry."""

from __future__ import annotations

import zoo_convs
from zoo_data import NETWORKS, Network

UNAVAILABLE = zoo_convs.UNAVAILABLE

__all__ = ["NETWORKS", "UNAVAILABLE", "Network"]

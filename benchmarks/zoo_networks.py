"""The networks of the zoo (:mod:`zoo` runs them).

Each of the four modules enters its networks in the registry when it is imported.
"""

from __future__ import annotations

import zoo_hetero  # noqa: F401
import zoo_models  # noqa: F401
import zoo_user  # noqa: F401
from zoo_convs import UNAVAILABLE
from zoo_data import NETWORKS, Network

__all__ = ["NETWORKS", "UNAVAILABLE", "Network"]

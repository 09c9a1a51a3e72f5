"""A graph by itself, without a feature matrix: what a plan needs of one that fits in no memory.

The closed form takes one number per node. A model is watched on a toy graph, since the order of its
layers does not depend on the edges, and its operators are those of the real one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import nn
from torch_geometric.data import Data

from virgo.errors import GraphError, LayerError, OptionError, VirgoError
from virgo.graph.operators import Graph
from virgo.graph.vectors import Vector, load_array, unread_column
from virgo.layers import is_layer
from virgo.network.inputs import NO_FEATURES, Forward, Inputs
from virgo.network.modules import is_linear
from virgo.network.trace import watch

_RING = 8  # nodes of the toy graph
_CHUNK = 1 << 22  # features reduced at a time


def is_graph(data: Any) -> TypeGuard[Any]:
    """Whether this is a :class:`virgo.Graph`, stored or not, or one in a lake."""
    return isinstance(data, Graph) or all(hasattr(data, name) for name in ("gcn", "signal", "ones"))


@dataclass(frozen=True)
class GraphInputs(Inputs):
    """A graph with at most one number per node.

    Attributes:
        home: the graph whose operators count.
        mean_features: one number per node, as given; None for ones.
        features: the feature matrix or the path of it, for what only that can tell.
    """

    home: Any = None
    mean_features: Any = None
    features: Any = None

    @classmethod
    def of(
        cls,
        graph: Any,
        model: nn.Module,
        mean_features: Any,
        features: Any,
        forward: Forward | None = None,
    ) -> GraphInputs:
        """The inputs for one model, whose first width the toy graph's features have."""
        if features is not None and mean_features is not None:
            raise OptionError("mean_features: expected it or features, got both. Pass one of them.")
        if isinstance(features, str) or hasattr(features, "__fspath__"):
            features = load_array(features, "features")
        if features is not None and (features.ndim != 2 or len(features) != graph.num_nodes):
            raise GraphError(
                f"features: expected a matrix of {graph.num_nodes:,} rows, one per node, got shape "
                f"{list(features.shape)}. Pass one number per node as mean_features."
            )
        if isinstance(graph, Graph) and mean_features is not None:
            unread_column(mean_features, graph.num_nodes)  # also for a method that reads none
        width = _width(model, features, graph.is_weighted, forward)
        return cls(_toy(width, graph.is_weighted), None, graph, mean_features, features)

    @property
    def num_nodes(self) -> int:
        return int(self.home.num_nodes)

    @property
    def num_edges(self) -> int:
        return int(self.home.num_edges)

    @property
    def x(self) -> None:
        return None

    @property
    def feature_matrix(self) -> Any:
        return self.features

    signal_is_new = True

    def ones(self) -> Any:
        return self.home.ones()

    def check_signal(self, looks_up: bool) -> list[str]:
        """Features are looked at when they are needed."""
        given = self.mean_features is not None or self.features is not None
        return [] if given else [NO_FEATURES]

    def label_gradient(self, num_classes: int) -> None:
        return None

    def check_distribution(self, distribution: str, estimate: str) -> None:
        """Refuse weights that follow every feature through the graph."""
        runs_here = isinstance(self.home, Graph) and estimate == "analytic"
        if distribution == "spectral" and not (runs_here and self.features is not None):
            raise OptionError(
                "distribution: 'spectral' follows every feature through the graph, expected "
                "features= (a matrix or the path of a .npy file), a graph in memory or on disk "
                "and estimate='analytic'. Pass them, or choose uniform, normal, truncated or "
                "orthogonal."
            )
        if distribution == "mirrored":
            raise OptionError(
                "distribution: 'mirrored' follows every feature through the graph, expected "
                "another for a graph without features. Choose uniform, normal, truncated or "
                "orthogonal."
            )

    def few_nodes(self) -> Inputs:
        return Inputs(self.data)

    def graph(self, edge_weight: Any = None) -> Any:
        """The graph; with its own weights only if a layer was given some."""
        return self.home if edge_weight is not None else self.home.unweighted

    def signal(self, kind: str) -> Any:
        """A new vector each time, so that a hop may use its memory."""
        if self.features is not None:
            return self.home.signal(_reduced(self.features, kind))
        if self.mean_features is None:
            return self.home.ones()
        if kind == "rms":
            raise OptionError(
                "signal='rms': expected features, whose squares it averages, got mean_features. "
                "Pass features, or the root mean square of each node's as mean_features with "
                "signal='mean'."
            )
        return self.home.signal(self.mean_features)

    def neighbourhood(self, nodes: int, seed: int = 0) -> Inputs:
        raise GraphError(
            "nodes: expected data in memory, got a graph without features. Use virgo.plan."
        )


def _width(model: nn.Module, features: Any, weighted: bool, forward: Forward | None) -> int:
    """Of the features that the model takes.

    Modules are declared in any order, so of several widths it is the first that runs.

    Returns:
        The number of features.

    Raises:
        LayerError: no layer says, or the given features have another width.
    """
    declared = [width for module in model.modules() if (width := _width_of(module)) is not None]
    widths = [width for width in dict.fromkeys(declared) if width > 0]
    is_lazy = len(widths) < len(set(declared))
    if features is not None and (is_lazy or features.shape[1] in widths):
        return int(features.shape[1])
    if not widths or declared[0] < 0:
        raise LayerError(
            f"{type(model).__name__}: expected a layer with known in_channels, got none (lazy "
            f"layers learn theirs from features). Give the first layer its width."
        )
    found = widths[0]
    if not is_lazy and len(widths) > 1:  # a pass would settle lazy widths for good
        found = next((w for w in widths if _runs(model, _toy(w, weighted), forward)), found)
    if features is not None:
        raise LayerError(
            f"features: expected {found} columns, as many as the model takes, got "
            f"{features.shape[1]}. Build the model for these features."
        )
    return found


def _width_of(module: nn.Module) -> int | None:
    """What a layer or linear map takes; -1 if it is to be learned, None for other modules."""
    if not (is_layer(module) or is_linear(module)):
        return None
    width = getattr(module, "in_channels", getattr(module, "in_features", None))
    width = width[0] if isinstance(width, (tuple, list)) else width
    if not isinstance(width, int):
        return None
    return width if width > 0 else -1


def _runs(model: nn.Module, data: Data, forward: Forward | None) -> bool:
    try:
        watch(model, Inputs(data), forward)
    except VirgoError:
        return False
    return True


def _toy(width: int, weighted: bool) -> Data:
    """A ring walked both ways."""
    one = torch.arange(_RING)
    edges = torch.stack([torch.cat([one, (one + 1) % _RING]), torch.cat([(one + 1) % _RING, one])])
    data = Data(x=torch.ones(_RING, width), edge_index=edges)
    if weighted:
        data.edge_weight = torch.linspace(0.5, 1.5, edges.size(1))
    return data


def _reduced(features: Any, kind: str) -> Vector:
    """The mean or the root mean square of each row, some rows at a time."""
    out = np.empty(len(features))
    rows = max(1, _CHUNK // max(1, features.shape[1]))
    for begin in range(0, len(features), rows):
        chunk = np.asarray(features[begin : begin + rows], dtype=np.float64)
        found = chunk.mean(1) if kind == "mean" else np.sqrt(np.square(chunk).mean(1))
        out[begin : begin + rows] = found
    return out

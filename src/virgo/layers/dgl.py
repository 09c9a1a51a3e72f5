"""What DGL's layers compute, as stages of terms; see :mod:`virgo.layers`.

They are registered by name, since DGL is optional. Unlike PyG's, they add no self-loops, count
edges at both ends, and treat a count of zero as one. Attention (``GATConv``), relations
(``RelGraphConv``) and reducers other than a sum or mean have no description here: they are
measured.
"""

from __future__ import annotations

from typing import Any

from virgo.errors import LayerError
from virgo.graph.operators import Graph, Operator
from virgo.layers.registry import LayerView, Stage, Term, register_layer

_HOME = "dgl.nn.pytorch.conv"


def _clamped(graph: Graph, power: float) -> Any:
    """``max(count, 1) ** power`` of the edges that enter each node."""
    return graph.at_least_one(graph.in_count) ** power


@register_layer(f"{_HOME}.graphconv.GraphConv")
def _graph_conv(layer: Any, view: LayerView) -> list[Stage]:
    operator = _normalised(view.graph, layer._norm)
    weight = None if layer.weight is None else "weight"
    return [(Term(operator, weight, in_first=True),)]


def _normalised(graph: Graph, norm: str) -> Operator:
    """``D_in^-1/2 A D_out^-1/2`` (both), ``D_in^-1 A`` (right), ``A D_out^-1`` (left) or ``A``."""
    power = -0.5 if norm == "both" else -1.0
    left = _clamped(graph, power) if norm in ("both", "right") else 1.0
    right = _clamped(graph.reversed, power) if norm in ("both", "left") else 1.0
    return Operator(graph, left=left, right=right)


@register_layer(f"{_HOME}.sageconv.SAGEConv")
def _sage(layer: Any, view: LayerView) -> list[Stage]:
    graph, aggregator = view.graph, layer._aggre_type
    if layer.norm is not None:
        raise LayerError("SAGEConv(norm=...), which scales its output by itself")
    if aggregator == "mean":
        root = Term(graph.identity(), "fc_self.weight")
        return [(Term(graph.mean(), "fc_neigh.weight"), root)]
    if aggregator == "gcn":
        operator = Operator(graph, left=(graph.in_count + 1.0) ** -1.0, loop=1.0)
        return [(Term(operator, "fc_neigh.weight"),)]
    raise LayerError(f"SAGEConv(aggregator_type={aggregator!r}) has no constant coefficients")


@register_layer(f"{_HOME}.ginconv.GINConv")
def _gin(layer: Any, view: LayerView) -> list[Stage]:
    self_weight, aggregator = 1.0 + float(layer.eps.detach()), layer._aggregator_type
    if aggregator == "sum":
        return view.mlp(view.graph.sum(self_weight), "apply_func")
    if aggregator == "mean":
        return view.mlp(view.graph.mean_with_self(self_weight), "apply_func")
    raise LayerError(f"GINConv(aggregator_type={aggregator!r}) has no constant coefficients")


@register_layer(f"{_HOME}.sgconv.SGConv")
def _sg(layer: Any, view: LayerView) -> list[Stage]:
    """Without weights the number of incoming edges counts on both sides, unlike in GraphConv."""
    graph = view.graph
    if layer.norm is not None:
        raise LayerError("SGConv(norm=...), which scales its features by itself")
    if graph.is_weighted:
        back = graph.reversed
        left, right = graph.inverse_root(graph.in_weight), back.inverse_root(back.in_weight)
    else:
        left = right = _clamped(graph, -0.5)
    operator = Operator(graph, left=left, right=right).times(layer._k)
    return [(Term(operator, "fc.weight"),)]

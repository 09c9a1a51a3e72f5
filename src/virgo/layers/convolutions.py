"""Layers with constant coefficients and weights of their own."""

from __future__ import annotations

from torch_geometric.nn import conv as pyg

from virgo.errors import LayerError
from virgo.layers.registry import (
    LayerView,
    Stage,
    Term,
    aggregation,
    register_layer,
    require_sum,
)


@register_layer(pyg.GCNConv)
def _gcn(layer: pyg.GCNConv, view: LayerView) -> list[Stage]:
    require_sum(layer)
    if not layer.normalize:
        return [(Term(view.graph.sum(), "lin.weight"),)]
    operator = view.graph.gcn(improved=layer.improved, add_self_loops=layer.add_self_loops)
    return [(Term(operator, "lin.weight"),)]


@register_layer(pyg.SGConv)
def _sg(layer: pyg.SGConv, view: LayerView) -> list[Stage]:
    require_sum(layer)
    operator = view.graph.gcn(add_self_loops=layer.add_self_loops).times(layer.K)
    return [(Term(operator, "lin.weight"),)]


@register_layer(pyg.SAGEConv)
def _sage(layer: pyg.SAGEConv, view: LayerView) -> list[Stage]:
    if layer.normalize:
        raise LayerError("SAGEConv(normalize=True) divides each row by its own norm")
    terms = [Term(aggregation(layer, view.graph), "lin_l.weight")]
    if layer.root_weight:
        terms.append(Term(view.graph.identity(), "lin_r.weight"))
    project = [(Term(view.graph.identity(), "lin.weight"),)] if layer.project else []
    return [*project, tuple(terms)]


@register_layer(pyg.GraphConv)
def _graph(layer: pyg.GraphConv, view: LayerView) -> list[Stage]:
    neighbours = Term(aggregation(layer, view.graph), "lin_rel.weight")
    return [(neighbours, Term(view.graph.identity(), "lin_root.weight"))]


@register_layer(pyg.GINConv)
def _gin(layer: pyg.GINConv, view: LayerView) -> list[Stage]:
    return view.mlp(aggregation(layer, view.graph, 1.0 + float(layer.eps.detach())), "nn")


@register_layer(pyg.GINEConv)
def _gine(layer: pyg.GINEConv, view: LayerView) -> list[Stage]:
    """Messages are ``relu(x_j + e_ij)``; the plan follows the nodes and leaves the edges out."""
    return view.mlp(aggregation(layer, view.graph, 1.0 + float(layer.eps.detach())), "nn")


@register_layer(pyg.ClusterGCNConv)
def _cluster(layer: pyg.ClusterGCNConv, view: LayerView) -> list[Stage]:
    require_sum(layer)
    operator = view.graph.cluster_gcn(
        diag_lambda=layer.diag_lambda,
        add_self_loops=layer.add_self_loops,
        by_source=layer.flow == "target_to_source",  # PyG counts the same end for either flow
    )
    root = Term(view.graph.identity(), "lin_root.weight")
    return [(Term(operator, "lin_out.weight"), root)]


@register_layer(pyg.LEConv)
def _le(layer: pyg.LEConv, view: LayerView) -> list[Stage]:
    require_sum(layer)
    graph = view.graph
    return [
        (
            Term(graph.sum(), "lin1.weight"),
            Term(graph.degree(), "lin2.weight"),  # its sign does not matter to a variance
            Term(graph.identity(), "lin3.weight"),
        )
    ]

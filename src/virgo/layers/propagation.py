"""Layers whose operator is a power, a polynomial or a product of simpler ones."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from torch_geometric.nn import conv as pyg

from virgo.errors import LayerError
from virgo.graph.composites import Composite, Polynomial
from virgo.graph.operators import Graph, Operator
from virgo.layers.registry import (
    LayerView,
    Stage,
    Term,
    aggregation,
    describe_kind,
    register_layer,
    require_sum,
)


def _in_memory(layer: Any, view: LayerView) -> Graph:
    """For operators that a database does not have."""
    if not isinstance(view.graph, Graph):
        raise LayerError(f"{type(layer).__name__} on a graph in a database")
    return view.graph


def _normalised(layer: Any, graph: Graph, *, add_self_loops: bool = False) -> Operator:
    require_sum(layer)
    if not getattr(layer, "normalize", True):
        return graph.sum()
    return graph.gcn(add_self_loops=add_self_loops)


@register_layer(pyg.TAGConv)
def _tag(layer: pyg.TAGConv, view: LayerView) -> list[Stage]:
    """``sum_k P^k x W_k``."""
    operator = _normalised(layer, view.graph)
    powers = [view.graph.identity(), *(operator.times(k) for k in range(1, layer.K + 1))]
    return [tuple(Term(power, f"lins.{k}.weight") for k, power in enumerate(powers))]


@register_layer(pyg.MixHopConv)
def _mixhop(layer: pyg.MixHopConv, view: LayerView) -> list[Stage]:
    """``P^k x W_k`` side by side, so that the output's mean square is the mean of theirs."""
    graph = view.graph
    operator = _normalised(layer, graph, add_self_loops=layer.add_self_loops)
    count = len(layer.powers)
    return [
        tuple(
            Term(
                Composite.scaled(count**-0.5, operator.times(k) if k else graph.identity()),
                f"lins.{k}.weight",
                outputs=count,
            )
            for k in layer.powers
        )
    ]


@register_layer(pyg.ChebConv)
def _cheb(layer: pyg.ChebConv, view: LayerView) -> list[Stage]:
    """``sum_k T_k(2 L / lambda - I) x W_k``."""
    require_sum(layer)
    view.refuse(layer, "lambda_max")
    graph = _in_memory(layer, view)
    if _has_negative(graph):
        raise LayerError("ChebConv with negative edge weights, whose largest eigenvalue is another")
    by_source = layer.flow == "source_to_target"  # PyG counts the same end for either flow
    base = graph.rescaled_laplacian(layer.normalization, by_source=by_source)
    polynomials = [
        Polynomial(base, (*[0.0] * k, 1.0), chebyshev=True) if k else graph.identity()
        for k in range(len(layer.lins))
    ]
    return [tuple(Term(p, f"lins.{k}.weight") for k, p in enumerate(polynomials))]


def _has_negative(graph: Graph) -> bool:
    weights = graph.by_target.weights
    return weights is not None and bool((weights < 0).any())


@register_layer(pyg.SSGConv)
def _ssg(layer: pyg.SSGConv, view: LayerView) -> list[Stage]:
    """``(alpha I + (1 - alpha) / K sum_k P^k) x W``."""
    base = _normalised(layer, view.graph, add_self_loops=layer.add_self_loops)
    coefficients = (layer.alpha, *[(1 - layer.alpha) / layer.K] * layer.K)
    return [(Term(Polynomial(base, coefficients), "lin.weight"),)]


@register_layer(pyg.APPNP)
def _appnp(layer: pyg.APPNP, view: LayerView) -> list[Stage]:
    """Personalised PageRank after ``K`` steps; no weight of its own."""
    alpha = layer.alpha
    base = _normalised(layer, view.graph, add_self_loops=layer.add_self_loops)
    steps = [alpha * (1 - alpha) ** k for k in range(layer.K)]
    return [(Term(Polynomial(base, (*steps, (1 - alpha) ** layer.K))),)]


@register_layer(pyg.LGConv)
def _lg(layer: pyg.LGConv, view: LayerView) -> list[Stage]:
    return [(Term(_normalised(layer, view.graph)),)]


@register_layer(pyg.SimpleConv)
def _simple(layer: pyg.SimpleConv, view: LayerView) -> list[Stage]:
    if layer.combine_root == "cat":
        raise LayerError("SimpleConv(combine_root='cat'), which puts two signals side by side")
    if layer.combine_root == "self_loop":
        operator = aggregation(layer, view.graph, 1.0)
        if str(layer.aggr) == "mean":
            operator = _in_memory(layer, view).mean_with_loops()
        return [(Term(operator),)]
    return [(Term(aggregation(layer, view.graph, 1.0 if layer.combine_root else 0.0)),)]


@register_layer(pyg.ARMAConv)
def _arma(layer: pyg.ARMAConv, view: LayerView) -> list[Stage]:
    """``P x W + x V``, the mean of several such stacks.

    With more layers the root term of each reads the layer's input and not the stage before it,
    and the mean of several stacks behind an activation is no linear map: both are left to the
    measured estimate.

    Returns:
        One stage.

    Raises:
        LayerError: for options that are not described.
    """
    if layer.num_layers > 1:
        raise LayerError("ARMAConv(num_layers > 1), every layer of which reads the first's input")
    if layer.num_stacks > 1 and layer.act is not None:
        raise LayerError("ARMAConv(num_stacks > 1), which averages its stacks after the activation")
    share = layer.num_stacks**-0.5
    propagated = Composite.scaled(share, _normalised(layer, view.graph))
    return [
        (
            Term(propagated, "init_weight", in_first=True, heads=layer.num_stacks),
            Term(
                Composite.scaled(share, view.graph.identity()),
                "root_weight",
                in_first=True,
                heads=layer.num_stacks,
            ),
        )
    ]


@register_layer(pyg.HypergraphConv)
def _hypergraph(layer: pyg.HypergraphConv, view: LayerView) -> list[Stage]:
    """``D^-1 H B^-1 H^T x W``: the mean over a node's hyperedges of the mean over their nodes.

    ``H`` is read as edges from nodes to hyperedges, numbered like nodes.

    Returns:
        One stage.

    Raises:
        LayerError: for options that are not described.
    """
    require_sum(layer)
    view.refuse(layer, "hyperedge_weight")
    if layer.use_attention:
        raise LayerError("HypergraphConv(use_attention=True)")
    graph = view.graph.unweighted
    operator = Composite(((1.0, (graph.reversed.mean(), graph.mean())),))
    return [(Term(operator, "lin.weight"),)]


@register_layer(pyg.DirGNNConv)
def _directed(layer: pyg.DirGNNConv, view: LayerView) -> list[Stage]:
    """``(1 - alpha) conv_in(A) + alpha conv_out(A^T) + x W``."""
    graph, terms = view.graph, []
    for name, edges, share in (
        ("conv_in", graph, 1 - layer.alpha),
        ("conv_out", graph.reversed, layer.alpha),
    ):
        inner = getattr(layer, name)
        description = describe_kind(inner)
        if description is None:
            raise LayerError(f"DirGNNConv of {type(inner).__name__}, which is not registered")
        walked = edges.reversed if inner.flow == "target_to_source" else edges
        linears = [n.removeprefix(f"{name}.") for n in view.linears if n.startswith(f"{name}.")]
        stages = description(inner, LayerView(walked, tuple(linears)))
        if len(stages) > 1:
            raise LayerError(f"DirGNNConv of {type(inner).__name__}, a layer of several stages")
        terms += [
            replace(
                term,
                operator=Composite.scaled(share, term.operator),
                weight=term.weight and f"{name}.{term.weight}",
            )
            for term in stages[0]
            if not math.isclose(share, 0.0)
        ]
    if layer.root_weight:
        terms.append(Term(graph.identity(), "lin.weight"))
    return [tuple(terms)]

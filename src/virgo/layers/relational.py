r"""Layers with a weight per relation: a term per relation, its operator that of its own edges.

With bases, :math:`W_r = \sum_b c_{rb} V_b`, the layer is

.. math:: \sum_r P_r H W_r = \sum_b \Bigl(\sum_r c_{rb} P_r\Bigr) H V_b

a term per basis, whose operator joins the relations with the coefficients that the layer has. The
coefficients are left as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch_geometric
from torch import Tensor
from torch_geometric.nn import conv as pyg

from virgo.errors import LayerError
from virgo.graph.composites import Composite
from virgo.graph.operators import Graph, NodeOperator
from virgo.layers.attention import value_term
from virgo.layers.registry import (
    LayerView,
    Stage,
    Term,
    aggregation,
    register_layer,
    require_sum,
)


def _joined(operators: Sequence[NodeOperator], shares: Tensor | None) -> list[NodeOperator]:
    """An operator per weight: each relation's, or per basis the sum of all with its shares."""
    if shares is None:
        return list(operators)
    columns = shares.detach().T.tolist()
    return [
        Composite(tuple((c, (p,)) for c, p in zip(column, operators, strict=True)))
        for column in columns
    ]


@register_layer(pyg.RGCNConv)
def _rgcn(layer: pyg.RGCNConv, view: LayerView) -> list[Stage]:
    plain = layer.num_bases is None and layer.num_blocks is None
    if plain and torch_geometric.typing.WITH_SEGMM and str(layer.aggr) == "mean":
        raise LayerError("RGCNConv with pyg_lib, which may average over all relations together")
    return _relational(layer, view)


@register_layer(pyg.FastRGCNConv)
def _fast_rgcn(layer: pyg.FastRGCNConv, view: LayerView) -> list[Stage]:
    return _relational(layer, view)


def _relational(layer: Any, view: LayerView) -> list[Stage]:
    if view.width is None:
        raise LayerError(f"{type(layer).__name__} that looks nodes up by their ids")
    operators = [aggregation(layer, graph) for graph in view.relations(layer.num_relations)]
    terms = [Term(p, "weight", in_first=True) for p in _joined(operators, layer.comp)]
    if layer.root is not None:
        terms.append(Term(view.graph.identity(), "root", in_first=True))
    return [tuple(terms)]


@register_layer(pyg.RGATConv)
def _rgat(layer: pyg.RGATConv, view: LayerView) -> list[Stage]:
    """Attention over all neighbours or over those of one relation: :mod:`virgo.layers.attention`.

    All relations share one softmax by default, so each has the coefficients of its edges among all.

    Returns:
        One stage.

    Raises:
        LayerError: for options that are not described.
    """
    require_sum(layer)
    if layer.mod is not None or layer.attention_mode != "additive-self-attention":
        raise LayerError(f"RGATConv(mod={layer.mod!r}, attention_mode={layer.attention_mode!r})")
    graphs = view.relations(layer.num_relations)
    whole: Graph = view.graph
    across = layer.attention_mechanism == "across-relation"
    operators = [graph.shares_of(whole) if across else graph.mean() for graph in graphs]
    weight, shares = ("weight", None) if layer.num_bases is None else ("basis", layer.att)
    return [tuple(value_term(layer, p, weight, in_first=True) for p in _joined(operators, shares))]

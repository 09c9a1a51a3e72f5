r"""Attention, by the coefficients that it has in expectation.

At initialisation the attention vectors (or queries and keys) are drawn with mean zero and
independently of the rest, so a score has the same mean for every neighbour, and to first order in
the scores their softmax has the expectation of a mean, :math:`E[\alpha_{ij}] = 1/d_i`. The
descriptions here put the mean in place of the softmax.

**Assumption.** The coefficients' own variance is neglected. It adds
:math:`\sum_j \mathrm{var}(\alpha_{ij}) x_j^2` to a node's second moment, which is small as long as
scores are (features of order one or less, as row-normalised ones are) and vanishes where neighbours
are alike. ``tests/test_layers.py`` measures by how much it is off. The gradient through the
coefficients is neglected in the same way. Edge features only enter the scores (GAT, GATv2, RGAT);
TransformerConv also adds them to its messages, which the plan leaves out, as it does for GINE.

Weights that only make scores (``att``, ``lin_r`` of GATv2, keys and queries) are left alone, but
for paired weights (mirrored, spectral) of several heads: there the vectors of GAT and GATv2 start
at zero, as :mod:`virgo.related.gat_balanced` has them, and the mean is exact.
"""

from __future__ import annotations

from typing import Any

from torch_geometric.nn import conv as pyg

from virgo.errors import LayerError
from virgo.graph.composites import Composite
from virgo.graph.operators import NodeOperator
from virgo.layers.registry import LayerView, Stage, Term, register_layer, require_sum


def _mean(view: LayerView, *, add_self_loops: bool) -> NodeOperator:
    """The mean over neighbours, counting edges; with one self-loop per node in place of its own."""
    return view.graph.cluster_gcn() if add_self_loops else view.graph.unweighted.mean()


def value_term(
    layer: Any,
    operator: NodeOperator,
    weight: str,
    share: float = 1.0,
    *,
    in_first: bool = False,
    scores: tuple[str, ...] = (),
) -> Term:
    """Values of all heads, side by side or averaged.

    The mean of independent heads has the variance of one over their number; going backward, each
    of them receives its share of the same gradient.

    Args:
        layer: with ``heads`` and ``concat``.
        operator: the coefficients.
        weight: its name.
        share: what they are multiplied by.
        in_first: how it is stored.
        scores: what a plan may set to zero so that every head takes the mean.

    Returns:
        The term.
    """
    averaged = 1 if layer.concat else layer.heads
    scaled = Composite.scaled(share * averaged**-0.5, operator)
    return Term(scaled, weight, in_first, heads=layer.heads, outputs=1 / averaged, scores=scores)


@register_layer(pyg.GATConv)
def _gat(layer: pyg.GATConv, view: LayerView) -> list[Stage]:
    require_sum(layer)
    weight = "lin.weight" if layer.lin is not None else "lin_src.weight"
    return _attention(layer, view, weight)


@register_layer(pyg.GATv2Conv)
def _gatv2(layer: pyg.GATv2Conv, view: LayerView) -> list[Stage]:
    require_sum(layer)
    return _attention(layer, view, "lin_l.weight")


@register_layer(pyg.SuperGATConv)
def _supergat(layer: pyg.SuperGATConv, view: LayerView) -> list[Stage]:
    """Dot products of values as scores (``"SD"``) favour a node itself: not those of a mean."""
    require_sum(layer)
    if layer.attention_type != "MX":
        raise LayerError(f"SuperGATConv(attention_type={layer.attention_type!r})")
    return _attention(layer, view, "lin.weight")


def _attention(layer: Any, view: LayerView, weight: str) -> list[Stage]:
    mean = _mean(view, add_self_loops=layer.add_self_loops)
    _, scores = value_and_scores(layer) or (weight, [])
    vectors = tuple(name for name in scores if name.startswith("att"))
    terms = [value_term(layer, mean, weight, scores=vectors)]
    if getattr(layer, "res", None) is not None:
        terms.append(Term(view.graph.identity(), "res.weight"))
    return [tuple(terms)]


@register_layer(pyg.TransformerConv)
def _transformer(layer: pyg.TransformerConv, view: LayerView) -> list[Stage]:
    """Values and the skip; ``beta``, a sigmoid of a small number, gives each of them a half."""
    require_sum(layer)
    share = 0.5 if layer.beta else 1.0
    terms = [value_term(layer, _mean(view, add_self_loops=False), "lin_value.weight", share)]
    if layer.root_weight:
        terms.append(Term(Composite.scaled(share, view.graph.identity()), "lin_skip.weight"))
    return [tuple(terms)]


def value_and_scores(layer: object) -> tuple[str, list[str]] | None:
    """Of GAT and GATv2, the name of the weight that makes values, and what to set to zero.

    Attention is uniform if its vectors are zero. GATv2's second weight, where it is not the first
    one again, only makes scores; GAT's maps of edges and targets only matter through the vectors.

    Args:
        layer: any module.

    Returns:
        None for another layer.
    """
    if isinstance(layer, pyg.GATConv):
        names = [n for n in ("att_src", "att_dst", "att_edge") if getattr(layer, n) is not None]
        return ("lin.weight" if layer.lin is not None else "lin_src.weight"), names
    if isinstance(layer, pyg.GATv2Conv):
        return "lin_l.weight", ["att", *([] if layer.share_weights else ["lin_r.weight"])]
    return None

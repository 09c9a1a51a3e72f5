"""What each kind of layer computes, as data. The only room that knows PyG's layer classes.

A layer is a chain of *stages*; a stage is a sum of *terms* ``P H W``, an operator over nodes and
a weight over features. Whoever can say this about a layer can initialise it:

=================== =====================================================================
GCNConv             ``[(D^-1/2 (A+I) D^-1/2, W)]``
SAGEConv            ``[(D^-1 A, W_l) + (I, W_r)]``
GINConv             ``[(A + (1+eps) I, W_1)], [(I, W_2)], ...``
LEConv              ``[(A, W_1) + (deg, W_2) + (I, W_3)]``
=================== =====================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn
from torch_geometric.nn import conv as pyg
from torch_geometric.nn.conv import MessagePassing

from virgo.errors import LayerError
from virgo.graph.operators import Graph, Operator


@dataclass(frozen=True)
class Term:
    """``P H W``: an operator over the nodes and the name of a weight, as the layer calls it.

    ``in_first`` is for weights stored as ``[in, out]`` and used as ``x @ W``; the default is
    ``torch.nn.Linear``'s ``[out, in]``. A term without a weight only moves the signal.
    """

    operator: Operator
    weight: str | None = None
    in_first: bool = False


Stage = tuple[Term, ...]


@dataclass(frozen=True)
class LayerView:
    """What a layer's description may use: its edges, and the ``Linear``s it ran, in order.

    >>> import torch
    >>> view = LayerView(Graph(torch.tensor([[0, 1], [1, 0]]), 2), linears=("nn.0", "nn.2"))
    >>> [term.weight for stage in view.mlp(view.graph.sum(1.0), "nn") for term in stage]
    ['nn.0.weight', 'nn.2.weight']
    """

    graph: Graph
    linears: tuple[str, ...] = ()

    def mlp(self, operator: Operator, prefix: str) -> list[Stage]:
        """An operator, then the linear layers that ran below ``prefix``, one stage each."""
        names = [name for name in self.linears if (name + ".").startswith(prefix + ".")]
        first = names[0] + ".weight" if names else None
        rest = [(Term(self.graph.identity(), name + ".weight"),) for name in names[1:]]
        return [(Term(operator, first),), *rest]


Description = Callable[[Any, LayerView], list[Stage]]
F = TypeVar("F", bound=Description)
#: What a subclass may not override if the description of its base is to hold for it.
_COMPUTES = {
    "forward",
    "message",
    "update",
    "aggregate",
    "propagate",
    "edge_update",
    "message_and_aggregate",
}
#: By class, or by its full name where the library need not be installed.
_REGISTRY: dict[type[nn.Module] | str, Description] = {}


def register_layer(kind: type[nn.Module] | str) -> Callable[[F], F]:
    """Teach Virgo a layer: a decorator for ``(layer, view) -> list of stages``.

    Subclasses are covered unless they override ``forward``, ``message`` or their like, since then
    nobody knows what they compute. Registering a class again replaces its description. In place
    of the class its full name will do (``"package.module.MyConv"``), which imports nothing.

    >>> from torch_geometric.nn import MessagePassing
    >>> class Half(MessagePassing):
    ...     def __init__(self, channels):
    ...         super().__init__(aggr="mean")
    ...         self.lin = nn.Linear(channels, channels)
    >>> @register_layer(Half)
    ... def half(layer, view):
    ...     return [(Term(view.graph.mean(), "lin.weight"),)]
    >>> describe_kind(Half(3)) is half
    True
    """
    is_name = isinstance(kind, str) and "." in kind
    if not is_name and not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise LayerError(
            f"register_layer: expected a torch.nn.Module class, got {kind!r}. "
            f"Use it as @virgo.register_layer(MyConv)."
        )

    def remember(description: F) -> F:
        _REGISTRY[kind] = description
        return description

    return remember


def describe_kind(layer: nn.Module) -> Description | None:
    """The description that holds for ``layer``, if any."""
    for base in type(layer).__mro__:
        for key in (base, f"{base.__module__}.{base.__qualname__}"):
            if key in _REGISTRY:
                return _REGISTRY[key]
        if _COMPUTES & set(vars(base)):
            return None
    return None


def is_layer(module: nn.Module) -> bool:
    """Whether ``module`` passes messages: one row of a trace, one unit of a plan."""
    home = type(module).__module__
    return (
        isinstance(module, MessagePassing)
        or describe_kind(module) is not None
        or is_dgl_layer(module)
        or home.startswith("torch_geometric.nn.conv")
        or (home.startswith("torch_geometric.nn.dense.dense_") and home.endswith("_conv"))
    )


def is_dgl_layer(module: nn.Module) -> bool:
    """Whether this is a layer of DGL, or derived from one. DGL itself is not needed to tell."""
    return any(
        base.__module__.startswith("dgl.nn.pytorch.conv.") and base.__name__.endswith("Conv")
        for base in type(module).__mro__
    )


def is_message_passing(module: nn.Module) -> bool:
    """Whether this is a layer of PyG (sparse or dense) or DGL that passes messages."""
    home, name = type(module).__module__, type(module).__name__
    is_dense = home.startswith("torch_geometric.nn.dense.") and name.endswith("Conv")
    return isinstance(module, MessagePassing) or is_dense or is_dgl_layer(module)


def _aggregation(layer: Any, graph: Graph, self_weight: float = 0.0) -> Operator:
    """The sum or mean over neighbours; anything else has no constant coefficients."""
    aggregation = str(layer.aggr).lower()
    if aggregation in ("add", "sum"):
        return graph.sum(self_weight)
    if aggregation == "mean":
        return graph.mean_with_self(self_weight) if self_weight else graph.mean()
    raise LayerError(f"{type(layer).__name__}(aggr={layer.aggr!r}) has no constant coefficients")


def _require_sum(layer: Any) -> None:
    """For layers whose normalisation already is their coefficients."""
    if str(layer.aggr).lower() not in ("add", "sum"):
        raise LayerError(
            f"{type(layer).__name__}(aggr={layer.aggr!r}) in place of a sum, whose coefficients "
            f"are not described"
        )


@register_layer(pyg.GCNConv)
def _gcn(layer: pyg.GCNConv, view: LayerView) -> list[Stage]:
    _require_sum(layer)
    if not layer.normalize:
        return [(Term(view.graph.sum(), "lin.weight"),)]
    operator = view.graph.gcn(improved=layer.improved, add_self_loops=layer.add_self_loops)
    return [(Term(operator, "lin.weight"),)]


@register_layer(pyg.SGConv)
def _sg(layer: pyg.SGConv, view: LayerView) -> list[Stage]:
    _require_sum(layer)
    operator = view.graph.gcn(add_self_loops=layer.add_self_loops).times(layer.K)
    return [(Term(operator, "lin.weight"),)]


@register_layer(pyg.SAGEConv)
def _sage(layer: pyg.SAGEConv, view: LayerView) -> list[Stage]:
    if layer.normalize:
        raise LayerError("SAGEConv(normalize=True) divides each row by its own norm")
    terms = [Term(_aggregation(layer, view.graph), "lin_l.weight")]
    if layer.root_weight:
        terms.append(Term(view.graph.identity(), "lin_r.weight"))
    project = [(Term(view.graph.identity(), "lin.weight"),)] if layer.project else []
    return [*project, tuple(terms)]


@register_layer(pyg.GraphConv)
def _graph(layer: pyg.GraphConv, view: LayerView) -> list[Stage]:
    neighbours = Term(_aggregation(layer, view.graph), "lin_rel.weight")
    return [(neighbours, Term(view.graph.identity(), "lin_root.weight"))]


@register_layer(pyg.GINConv)
def _gin(layer: pyg.GINConv, view: LayerView) -> list[Stage]:
    return view.mlp(_aggregation(layer, view.graph, 1.0 + float(layer.eps.detach())), "nn")


@register_layer(pyg.GINEConv)
def _gine(layer: pyg.GINEConv, view: LayerView) -> list[Stage]:
    """Messages are ``relu(x_j + e_ij)``; the plan follows the nodes and leaves the edges out."""
    return view.mlp(_aggregation(layer, view.graph, 1.0 + float(layer.eps.detach())), "nn")


@register_layer(pyg.ClusterGCNConv)
def _cluster(layer: pyg.ClusterGCNConv, view: LayerView) -> list[Stage]:
    _require_sum(layer)
    operator = view.graph.cluster_gcn(
        diag_lambda=layer.diag_lambda,
        add_self_loops=layer.add_self_loops,
        by_source=layer.flow == "target_to_source",  # PyG counts the same end for either flow
    )
    root = Term(view.graph.identity(), "lin_root.weight")
    return [(Term(operator, "lin_out.weight"), root)]


@register_layer(pyg.LEConv)
def _le(layer: pyg.LEConv, view: LayerView) -> list[Stage]:
    _require_sum(layer)
    graph = view.graph
    return [
        (
            Term(graph.sum(), "lin1.weight"),
            Term(graph.degree(), "lin2.weight"),  # its sign does not matter to a variance
            Term(graph.identity(), "lin3.weight"),
        )
    ]


from virgo import dgl_layers as dgl_layers  # noqa: E402  (registers DGL's layers, by name)

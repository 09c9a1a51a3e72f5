"""Terms and stages, what a description may use of a call, and which description holds for which
layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor, nn
from torch_geometric.nn.conv import MessagePassing

from virgo.errors import LayerError, named_options
from virgo.graph.operators import Graph, NodeOperator, Operator


@dataclass(frozen=True)
class Term:
    """``P H W``: an operator over the nodes and the name of a weight, as the layer calls it.

    ``in_first`` is for weights stored as ``[in, out]`` and used as ``x @ W``; the default is
    ``torch.nn.Linear``'s ``[out, in]``. A term without a weight only moves the signal. Leading
    dimensions of a weight are independent matrices, each with a term of its own.

    Attributes:
        operator: over the nodes.
        weight: the name of the weight.
        in_first: how it is stored.
        heads: the number of parts of its output that have coefficients of their own (attention).
        outputs: the width of the layer's output over that of the weight: ``1 / heads`` where heads
            are averaged, the number of terms where their outputs stand side by side.
        scores: the names of what makes the coefficients differ between heads; where all of it is
            zero, every head has the same (attention: those of a mean).
    """

    operator: NodeOperator
    weight: str | None = None
    in_first: bool = False
    heads: int = 1
    outputs: float = 1.0
    scores: tuple[str, ...] = ()

    def fans(self, shape: Sequence[int]) -> tuple[int, int]:
        """Fan in and fan out of a weight of this shape.

        Args:
            shape: of the parameter.

        Returns:
            The two numbers that a rule takes.

        >>> import torch
        >>> term = Term(Graph(torch.tensor([[0], [1]]), 2).mean(), "w", outputs=0.25)
        >>> term.fans((32, 16))  # four heads of 8, averaged
        (16, 8)
        """
        fan_in, fan_out = shape[-2:] if self.in_first else (shape[-1], shape[-2])
        return int(fan_in), round(fan_out * self.outputs)

    @property
    def can_mirror(self) -> bool:
        """Whether units of its output can come in pairs of opposite sign.

        Both units of a pair need the same coefficients, so several heads need zero ``scores``.
        """
        return (self.heads == 1 or bool(self.scores)) and self.outputs == 1.0


Stage = tuple[Term, ...]
"""A sum of terms: what a layer computes in one step, as a tuple of :class:`virgo.Term`."""


@dataclass(frozen=True)
class LayerView:
    """What a layer's description may use: its edges, and the ``Linear``s it ran, in order.

    Attributes:
        graph: the edges that it walked.
        linears: the ``Linear``s that it ran, by its own names for them.
        given: the names of the arguments that it was called with, those that were ``None`` left
            out.
        edge_type: the relation of each edge, if it was given one of the data's tensors.
        width: of the features that it received; ``None`` for ids.

    >>> import torch
    >>> view = LayerView(Graph(torch.tensor([[0, 1], [1, 0]]), 2), linears=("nn.0", "nn.2"))
    >>> [term.weight for stage in view.mlp(view.graph.sum(1.0), "nn") for term in stage]
    ['nn.0.weight', 'nn.2.weight']
    """

    graph: Graph
    linears: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()
    edge_type: Tensor | None = None
    width: int | None = None

    def refuse(self, layer: nn.Module, *arguments: str) -> None:
        """Arguments of a call that the description leaves out.

        Args:
            layer: the one that was called.
            arguments: the names that must not have been given.

        Raises:
            LayerError: if one was given.
        """
        for name in arguments:
            if name in self.given:
                raise LayerError(
                    f"{type(layer).__name__} called with {name}, which is not described"
                )

    def relations(self, count: int) -> list[Graph]:
        """The edges of each relation.

        Args:
            count: how many relations there are, numbered from 0.

        Returns:
            One graph per relation.

        Raises:
            LayerError: if the relations are not in the data, or the edges not in memory.
        """
        if self.edge_type is None:
            raise LayerError("relations of edges (edge_type) that are none of the data's tensors")
        if not self.graph.has_edges_in_memory:
            raise LayerError("relations of edges that are not in memory")
        kinds = self.edge_type.detach().reshape(-1)
        return [self.graph.where(kinds == relation) for relation in range(count)]

    def mlp(self, operator: NodeOperator, prefix: str) -> list[Stage]:
        """An operator, then the linear layers that ran below a name, one stage each.

        Args:
            operator: of the first stage.
            prefix: the layer's name for its MLP, such as ``"nn"``.

        Returns:
            The stages.
        """
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


@named_options
def register_layer(kind: type[nn.Module] | str) -> Callable[[F], F]:
    """Teach Virgo a layer: a decorator for ``(layer, view) -> list of stages``.

    Subclasses are covered unless they override ``forward``, ``message`` or their like, since then
    nobody knows what they compute. Registering a class again replaces its description. In place
    of the class its full name will do (``"package.module.MyConv"``), which imports nothing.

    Args:
        kind: the class of the layer, or its full name.

    Returns:
        The decorator.

    Raises:
        LayerError: if this is neither.

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


def aggregation(layer: Any, graph: Graph, self_weight: float = 0.0) -> Operator:
    """The sum or mean over neighbours; anything else has no constant coefficients."""
    aggregation = str(layer.aggr).lower()
    if aggregation in ("add", "sum"):
        return graph.sum(self_weight)
    if aggregation == "mean":
        return graph.mean_with_self(self_weight) if self_weight else graph.mean()
    raise LayerError(f"{type(layer).__name__}(aggr={layer.aggr!r}) has no constant coefficients")


def require_sum(layer: Any) -> None:
    """For layers whose normalisation already is their coefficients."""
    if str(layer.aggr).lower() not in ("add", "sum"):
        raise LayerError(
            f"{type(layer).__name__}(aggr={layer.aggr!r}) in place of a sum, whose coefficients "
            f"are not described"
        )

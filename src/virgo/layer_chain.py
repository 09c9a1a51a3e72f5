"""A model as a chain of linear maps with activations between them, each reading the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from virgo.errors import LayerError
from virgo.graph.composites import Composite
from virgo.graph.operators import NodeOperator
from virgo.layers import Stage
from virgo.network.modules import arguments_of, hooked, received
from virgo.plans import Plan, Row
from virgo.study import Study


@dataclass(frozen=True)
class ChainLayer:
    """One linear map between two activations.

    Attributes:
        rows: its weights; several where a layer sums terms, such as neighbours and the node itself.
        votes: what each of them counts where latches vote.
        bias: its name, where there is one.
        module: the path of the module whose output it is.
        reader: the path of the module that is given what the layer before returned.
    """

    rows: tuple[Row, ...]
    votes: tuple[float, ...]
    bias: str | None
    module: str
    reader: str


def votes_of(stage: Stage, num_nodes: int) -> tuple[float, ...]:
    """What each term of a layer counts: one vote per neighbour and one for the node itself.

    Args:
        stage: the terms.
        num_nodes: of the graph.

    Returns:
        One factor per term; on average they sum to one vote.
    """
    # A mean over neighbours beside the node itself would let a node outvote all of them.
    if len(stage) == 1:
        return (1.0,)
    graphs = [term.operator.graph for term in stage]
    asked = [1.0 if graph is None else graph.num_edges / num_nodes for graph in graphs]
    sizes = [float(np.abs(term.operator(np.ones(num_nodes))).mean()) for term in stage]
    return tuple(
        votes / sum(asked) / size if size else 0.0 for votes, size in zip(asked, sizes, strict=True)
    )


def voting(stage: Stage, num_nodes: int) -> NodeOperator:
    """The operator of a vote: the terms of a layer, each with what it counts.

    Args:
        stage: the terms.
        num_nodes: of the graph.

    Returns:
        Their sum.
    """
    votes = votes_of(stage, num_nodes)
    if len(stage) == 1:
        return stage[0].operator
    return Composite(tuple((v, (term.operator,)) for v, term in zip(votes, stage, strict=True)))


def chain_of(study: Study, plan: Plan) -> Iterator[ChainLayer]:
    """The maps of a chain of calls in the order they run.

    Args:
        study: of the model.
        plan: whose rows are its weights.

    Yields:
        One map after the other, those inside an MLP too.

    Raises:
        LayerError: the calls are no chain, heads attend on their own, or a weight is not a layer's
            own.
    """
    rows = {row.weight: row for row in plan.rows}
    for at, (call, stages) in enumerate(zip(study.trace.calls, study.stages, strict=True)):
        is_next = call.parents == ({at - 1} if at else set()) and call.from_input == (at == 0)
        is_simple = len(stages) == 1 or all(len(stage) == 1 for stage in stages)
        if not is_next or not is_simple or call.through_linear:
            raise LayerError(
                f"{call.path}: expected a chain in which each layer reads the one before, got "
                f"another path. Use virgo.init_(model, data)."
            )
        if any(term.heads > 1 for stage in stages for term in stage):
            raise LayerError(
                f"latch_: expected layers whose channels share their coefficients, got heads side "
                f"by side in {call.path}. Use virgo.init_(model, data)."
            )
        for stage in stages:
            names = [study.full_name(call, term.weight) for term in stage if term.weight]
            own = [rows[name] for name in dict.fromkeys(names) if name in rows]
            if len(own) < len(stage) or any(row.uses > 1 for row in own):
                raise LayerError(
                    f"{call.path}: expected one weight of its own for each term, got a frozen or "
                    f"shared one, or none. Use virgo.init_(model, data)."
                )
            homes = [row.weight.rpartition(".")[0] for row in own]
            biases = [*(f"{home}.bias" for home in homes), f"{call.path}.bias"]
            yield ChainLayer(
                tuple(own),
                votes_of(stage, study.features.shape[0]),
                next((name for name in biases if name in plan.biases), None),
                call.path if stage is stages[-1] else homes[0],
                call.path if stage is stages[0] else homes[0],
            )


def seen_by(
    model: nn.Module, layers: Sequence[ChainLayer], call: Callable[[nn.Module], Any]
) -> list[tuple[Tensor, Tensor]]:
    """What layers read and return in one pass.

    Args:
        model: the layers' model.
        layers: some of them.
        call: runs the model.

    Returns:
        Input and output of each.
    """
    read: dict[str, Tensor] = {}
    returned: dict[str, Tensor] = {}

    def note_read(path: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        return lambda module, args, kwargs: read.__setitem__(
            path, received(arguments_of(module, args, kwargs))[0]
        )

    def note_returned(path: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda module, given, output: returned.__setitem__(path, output)

    handles = []
    for layer in layers:
        reader, module = (model.get_submodule(path) for path in (layer.reader, layer.module))
        handles.append(reader.register_forward_pre_hook(note_read(layer.reader), with_kwargs=True))
        handles.append(module.register_forward_hook(note_returned(layer.module)))
    with hooked(handles):
        call(model)
    return [(read[layer.reader], returned[layer.module]) for layer in layers]

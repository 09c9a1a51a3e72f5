"""``variant="released"``: what the authors' code computes, difference by difference.

Against the theorems (docs/theory.md lists this too):

- forward, the first layer gets plain ``2 / fan_in``; later ones the graph ratio;
- the first hidden width stands for the fan of every later layer, also of a last one of another
  width;
- the operator is always GCN's, without edge weights, and never transposed;
- the last layer's softmax rule always applies, so the number of classes is needed;
- GraphSAGE's two weights share one variance; of GIN's inner layers the first and the last get it;
- biases are left alone, and the gain is 2 whatever the activation.
"""

from __future__ import annotations

from virgo import rules, theory
from virgo.errors import GraphError, LayerError, OptionError
from virgo.graph.operators import Operator
from virgo.graph.vectors import Vector, squared_norm
from virgo.plans import Row
from virgo.study import Study


def rows(study: Study, method: rules.Method) -> list[Row]:
    """The rows of a Virgo method as the released code would have them."""
    depth = len(study.stages)
    groups = [_weights(study, call) for call in range(depth)]
    operator = study.inputs.graph().unweighted.gcn()
    fan_in, hidden = study.fans(groups[0][0])
    per_direction = []
    if "forward" in method.directions:
        norms = _norms(operator, study.inputs.signal("mean"), depth)
        later = [theory.virgo_forward(hidden, norms[i] / norms[i + 1]) for i in range(1, depth)]
        per_direction.append([theory.virgo_forward(fan_in), *later])
    if "backward" in method.directions:
        if study.num_classes is None:
            raise OptionError(
                "num_classes: the released code needs it for virgo-backward, got none and could "
                "not infer it. Pass num_classes=."
            )
        norms = _norms(operator, study.inputs.graph().ones(), depth)
        last = theory.virgo_backward_last(study.inputs.num_nodes, study.num_classes, norms[1])
        general = [theory.virgo_backward(hidden, norms[i] / norms[i + 1]) for i in range(1, depth)]
        per_direction.append([last, *general][::-1])
    variances = per_direction[0]
    if len(per_direction) == 2:
        variances = [theory.harmonic_mean(a, b) for a, b in zip(*per_direction, strict=True)]
    made: dict[str, Row] = {}
    for group, variance in zip(groups, variances, strict=True):
        for name in group:
            plain = method.rule(rules.WithoutGraph(*study.fans(name), theory.RELU_GAIN))
            made[name] = study.row(name, variance, variance / plain)  # used twice: the last stays
    return list(made.values())


def _weights(study: Study, call: int) -> list[str]:
    """GCN's one, GraphSAGE's two (not its projection), GIN's first and last inner layer."""
    chain = list(study.stages[call])
    while chain and all(term.operator.graph is None for term in chain[0]):
        chain.pop(0)
    weighted = [stage for stage in chain if any(term.weight for term in stage)]
    ends = weighted if len(weighted) < 2 else [weighted[0], weighted[-1]]
    names = [
        study.full_name(study.trace.calls[call], term.weight)
        for stage in ends
        for term in stage
        if term.weight is not None
    ]
    trainable = [name for name in names if name in study.uses]
    if not trainable:
        raise LayerError(
            f"{study.trace.calls[call].path}: variant='released' expects a trainable weight in "
            f"every layer, got none. Use variant='theorem'."
        )
    return trainable


def _norms(operator: Operator, start: Vector, depth: int) -> list[float]:
    """Squared norms of ``start`` after 0, 1, ..., depth hops."""
    norms, x = [squared_norm(start)], start
    for _ in range(depth):
        x = operator(x)
        norms.append(squared_norm(x))
    if min(norms) <= 0:
        raise GraphError(
            "data.x: expected mean features other than zero, got a signal that cancels. "
            "Use variant='theorem' with signal='rms' or estimate='measured'."
        )
    return norms

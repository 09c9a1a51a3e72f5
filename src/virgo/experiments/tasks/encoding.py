"""One network's output on one graph, with all that is constant about it computed once.

The loss of a citation graph is over 140 of 2708 nodes and its features are 1 % full. An
:class:`Encoding` holds for every layer the rows and columns of its operators that matter, and for
the first layer the operators applied to constant features, in the form that is cheapest to
multiply with. Where the input is learned, nothing of the first layer is constant but its operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import SamplerOutput

from virgo.experiments.models import Network
from virgo.experiments.models.convolutions import Entries, operator_entries
from virgo.experiments.tasks.fused import DENSE_ADVANTAGE, Constant, csr, relu_dropout

Hop = Mapping[str, Constant | int]
"""A layer's operators; an integer is the number of leading rows that the operator "self" keeps."""

#: Features are treated as sparse below this share of nonzeros.
SPARSE = 0.1


class OperatorCache:
    """The operators of a network on a graph, and the features, sparse if they are.

    Args:
        data: a graph with features.
        operators: names of the operators.
    """

    def __init__(self, data: Data, operators: Iterable[str]) -> None:
        self.num_nodes = int(data.num_nodes or 0)
        self.edges = {
            name: operator_entries(name, data.edge_index, self.num_nodes) for name in operators
        }
        self.x: Tensor = data.x
        self.is_sparse = bool(torch.count_nonzero(self.x) < SPARSE * self.x.numel())

    def rows(self, name: str, targets: Tensor) -> Entries:
        """An operator's nonzeros in the rows ``targets``."""
        target, source, value = self.edges[name]
        if targets.numel() == self.num_nodes:
            return target, source, value
        kept = _mask(self.num_nodes, targets)[target]
        return target[kept], source[kept], value[kept]


class Encoding:
    """What is constant about a network's pass over one graph.

    Args:
        first: the first layer's operators applied to constant features, as factors to multiply a
            weight by from the left; ``None`` if the input is learned.
        hops: operators of the layers; without the first one's if there is ``first``.
    """

    def __init__(self, first: Mapping[str, Sequence[Constant]] | None, hops: list[Hop]) -> None:
        self.first, self.hops = first, hops

    @classmethod
    def at_nodes(cls, graph: OperatorCache, num_layers: int, nodes: Tensor) -> Encoding:
        """The output at some nodes, at the cost of what those nodes can see.

        Args:
            graph: what to compute on.
            num_layers: of the network.
            nodes: where the output is needed, without repetition.

        Returns:
            The encoding, rows in the order of ``nodes``.
        """
        layers: list[dict[str, Constant]] = []
        targets, was_closed = nodes, False
        for _ in range(num_layers):
            rows = {name: graph.rows(name, targets) for name in graph.edges}
            seen = _mask(graph.num_nodes, targets)
            for _, source, _ in rows.values():
                seen[source] = True
            sources = seen.nonzero().view(-1)
            closed = torch.equal(targets, sources)  # all that can be seen is seen
            if closed and was_closed:
                layers.append(layers[-1])
            else:
                layers.append(_renumbered(rows, targets, sources, graph.num_nodes))
            targets, was_closed = sources, closed
        layers.reverse()
        x = graph.x if targets.numel() == graph.num_nodes else graph.x[targets]
        first = {name: _factors(op, x, graph.is_sparse) for name, op in layers[0].items()}
        return cls(first, list(layers[1:]))

    @classmethod
    def whole(cls, data: Data, operators: tuple[str, ...], num_layers: int) -> Encoding:
        """The output at all nodes of a graph; with constant features if ``data.x`` has some.

        Args:
            data: a graph.
            operators: of the network.
            num_layers: of the network.

        Returns:
            The encoding, rows in the order of the nodes.
        """
        number = int(data.num_nodes or 0)
        hop: dict[str, Constant | int] = {"self": number}
        for name in set(operators) - {"self"}:
            entries = operator_entries(name, data.edge_index, number, data.get("edge_weight"))
            hop[name] = Constant.sparse(*entries, (number, number))
        if data.x is None:
            return cls(None, [hop] * num_layers)
        first = {name: (_on_features(hop[name], data.x),) for name in operators}
        return cls(first, [hop] * (num_layers - 1))

    @classmethod
    def sampled(
        cls, out: SamplerOutput, operators: tuple[str, ...], num_layers: int, x: Tensor | None
    ) -> Encoding:
        """The output at the seeds of a neighbour sample, each layer on what the next one needs.

        Args:
            out: what :class:`virgo.experiments.data.neighbours.NeighborSampler` returned.
            operators: of the network.
            num_layers: of the network.
            x: the sampled nodes' features, ``None`` if they are learned.

        Returns:
            The encoding, rows in the order of the seeds.
        """
        edge_index = torch.stack([out.row, out.col])
        nodes = np.cumsum(out.num_sampled_nodes).tolist()
        edges = np.cumsum([0, *(out.num_sampled_edges or [])]).tolist()
        hops: list[Hop] = []
        first = None
        for left in range(num_layers, 0, -1):
            inputs, targets = nodes[left], nodes[left - 1]
            blocks = {}
            for name in set(operators) - {"self"}:
                target, source, value = operator_entries(name, edge_index[:, : edges[left]], inputs)
                row = target < targets
                blocks[name] = (target[row], source[row], value[row], (targets, inputs))
            if left == num_layers and x is not None:
                dense = {name: csr(*block) @ x for name, block in blocks.items()}
                dense["self"] = x[:targets]
                first = {name: (Constant.dense(dense[name]),) for name in operators}
            else:
                sparse = {name: Constant.sparse(*block) for name, block in blocks.items()}
                hops.append({"self": targets, **sparse})
        return cls(first, hops)

    def to(self, device: torch.device) -> Encoding:
        """The same on a device; layers that share their operators still do."""
        if device.type == "cpu":
            return self
        memo: dict[int, Constant] = {}

        def put(operator: Constant) -> Constant:
            if id(operator) not in memo:
                memo[id(operator)] = operator.to(device)
            return memo[id(operator)]

        hops = [
            {name: put(op) if isinstance(op, Constant) else op for name, op in hop.items()}
            for hop in self.hops
        ]
        first = self.first and {name: tuple(map(put, ops)) for name, ops in self.first.items()}
        return Encoding(first, list(hops))

    def __call__(
        self,
        network: Network,
        learned: Tensor | None = None,
        rng: np.random.Generator | None = None,
    ) -> Tensor:
        """The network's output; with dropout if ``rng`` is given.

        Args:
            network: whose operators these are.
            learned: the input where there are no constant features.
            rng: of the dropout masks.

        Returns:
            One row per node.
        """
        hops = self.hops
        if self.first is not None:
            h = network.combine(0, self._first_layer)
        else:
            assert learned is not None
            h = network.combine(0, partial(_apply, hops[0], learned))
            hops = hops[1:]
        for layer, hop in enumerate(hops, 1):
            h = relu_dropout(h, network.dropout, rng) if rng and network.dropout else h.relu()
            h = network.combine(layer, partial(_apply, hop, h))
        return h

    def _first_layer(self, name: str, weight: Tensor) -> Tensor:
        assert self.first is not None
        h = weight.t()
        for factor in reversed(self.first[name]):
            h = factor @ h
        return h


def _apply(hop: Hop, h: Tensor, name: str, weight: Tensor) -> Tensor:
    """``P H W^T`` in the cheaper order."""
    operator = hop[name]
    if isinstance(operator, int):
        return (h if operator == h.size(0) else h[:operator]) @ weight.t()
    fan_out, fan_in = weight.shape
    rows, columns = operator.matrix.shape
    gemm = fan_in * fan_out / DENSE_ADVANTAGE
    if operator.work * fan_in + rows * gemm <= operator.work * fan_out + columns * gemm:
        return (operator @ h) @ weight.t()
    return operator @ (h @ weight.t())


def _mask(size: int, chosen: Tensor) -> Tensor:
    mask = torch.zeros(size, dtype=torch.bool)
    mask[chosen] = True
    return mask


def _renumbered(
    rows: Mapping[str, Entries], targets: Tensor, sources: Tensor, num_nodes: int
) -> dict[str, Constant]:
    """Each operator's rows ``targets`` and columns ``sources``, renumbered."""
    at_target, at_source = torch.empty(2, num_nodes, dtype=torch.long)
    at_target[targets] = torch.arange(targets.numel())
    at_source[sources] = torch.arange(sources.numel())
    shape = (targets.numel(), sources.numel())
    return {
        name: Constant.sparse(at_target[target], at_source[source], value, shape)
        for name, (target, source, value) in rows.items()
    }


def _on_features(operator: Constant | int, x: Tensor) -> Constant:
    """``P X``, dense."""
    return Constant.dense(x[:operator] if isinstance(operator, int) else operator.matrix @ x)


def _factors(operator: Constant, x: Tensor, is_sparse: bool) -> tuple[Constant, ...]:
    """``P X`` as the factors that are cheapest to multiply a weight by from the left."""
    if is_sparse:
        row, col = x.nonzero().unbind(1)
        if (operator.work + row.numel()) * DENSE_ADVANTAGE < operator.matrix.shape[0] * x.size(1):
            return operator, Constant.sparse(row, col, x[row, col], (x.size(0), x.size(1)))
    return (_on_features(operator, x),)

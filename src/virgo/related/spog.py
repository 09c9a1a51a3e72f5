r"""Signal propagation on graph: a search for the scale of every layer.

Reference: Wang, Chen, Zhang, Sun, Ding, *Exploring and improving initialization for deep
graph neural networks: A signal propagation perspective* (SPoGInit), TMLR 2025 (arXiv:2506.16790).
The text was not at hand beyond its abstract; followed is the published code, as it is called for
GCN on ogbn-arxiv (``divide_old``, weights 1, 10, 1, 40 steps of 0.05, patience 20, Xavier's start).
It looks for factors of the layers' weights that make

.. math::
    \Bigl(\frac{\|h^1\|}{\|h^L\|} - 1\Bigr)^2
    + 10 \Bigl(\frac{\|\partial_{W^2}\|}{\|\partial_{W^{L-1}}\|} - 1\Bigr)^2
    + \bigl(\mathrm{GEV}(x) - \mathrm{GEV}(h^L)\bigr)^2

small, where the graph embedding variation
:math:`\mathrm{GEV}(h) = \tfrac12 \operatorname{mean}_k h_k^\top (I - \hat A) h_k / h_k^\top h_k`
says how much neighbours differ. Each step looks in three random directions of all factors at once
and moves every factor against the sign of what that tells of it.

Where this differs from the code: the search has the model's own features and loss in place of
random ones, factors are moved on a log scale so that none reaches zero, norms are root mean squares
so that widths do not matter, the three directions are averaged (there the last one decides), and
the difference is taken over 1e-3 and not 1e-5, which is lost in float32.

Assumption: one kind of node. It costs four passes per step; a start that overflows is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn

from virgo.balance import Unit, find_units
from virgo.devices import widest
from virgo.draws import generator_for
from virgo.errors import GraphError, LayerError
from virgo.graph.device import vector_of
from virgo.graph.operators import NodeOperator
from virgo.graph.vectors import AnyVector
from virgo.network.bare_weights import bare_weights_called
from virgo.network.inputs import Inputs, run
from virgo.network.losses import InferredLoss
from virgo.network.modules import float_tensors, hooked, own_gradients
from virgo.network.probe import Loss, call_users_code
from virgo.network.profile import as_in_training, mean_square, units_of
from virgo.plans import Plan
from virgo.related.units import PlanRequest, planned

STEPS, STEP, PATIENCE, DIRECTIONS = 40, 0.05, 20, 3
DECAY, DECAY_EVERY = 0.7, 20
WEIGHTS = (1.0, 10.0, 1.0)
_PROBE = 1e-3


def plan_spog(base: Plan, request: PlanRequest) -> Plan:
    """Xavier's weights with a searched factor for every unit; the model is left as it was."""
    request.refuse_without_features()
    if request.inputs.is_hetero:
        raise GraphError(
            "spog: expected one kind of node, whose neighbours it compares, got a HeteroData. "
            "Use lsuv."
        )
    units = [u for u in find_units(request.model, redraw=True) if u.weights]
    start = planned(base, request, find_units(request.model, redraw=True))
    with as_in_training(request.model, weights=True):
        inputs = request.inputs.prepared_for(request.model)
        start.apply_(request.model)
        search = _Search(request, inputs, units, request.loss or InferredLoss(base.seed))
        search.refuse_what_cannot_be_searched()
        search.run(base.seed)
    factors = search.by_weight()
    rows = [
        replace(
            row, variance=row.variance * factors[row.weight] ** 2, ratio=factors[row.weight] ** 2
        )
        for row in start.rows
    ]
    return replace(
        start,
        rows=tuple(rows),
        estimate="measured",
        measured={
            "passes": search.passes,
            "achieved": {},
            "objective": {"start": search.history[0], "best": search.best},
        },
    )


@dataclass
class _Search:
    """Log factors of the units that ran, and the best that were seen."""

    request: PlanRequest
    inputs: Inputs
    units: list[Unit]
    loss: Loss
    passes: int = 0
    best: float = math.inf
    best_logs: Tensor = field(default_factory=lambda: torch.zeros(0))
    history: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        model = self.request.model
        self.operator: NodeOperator = self.request.inputs.graph().unweighted.gcn()
        self.own = {
            name: model.get_parameter(name).detach().clone()
            for unit in self.units
            for name in unit.weights
        }
        self.modules = units_of(model)
        with torch.no_grad():
            order = list(self._seen()[0])
        self.units = sorted(
            (unit for unit in self.units if unit.path in order), key=lambda u: order.index(u.path)
        )
        x = self.inputs.x
        self.wanted = math.nan if x is None or not x.is_floating_point() else self._variation(x)

    def refuse_what_cannot_be_searched(self) -> None:
        if len(self.units) < 2:
            raise LayerError(
                f"spog: expected at least two layers, whose signals it compares, got "
                f"{len(self.units)}. Use kaiming-forward."
            )

    def run(self, seed: int) -> None:
        """The sign descent; keeps the best factors."""
        generator = generator_for(seed, "spog")
        logs = torch.zeros(len(self.units), dtype=torch.float64)
        step, waited = STEP, 0
        for taken in range(STEPS):
            value = self.objective(logs)
            self.history.append(value)
            if not math.isfinite(value) and taken == 0:
                raise LayerError(
                    "spog: expected a finite signal and gradient to start from, got an overflow or "
                    "a layer that nothing reaches. Use lsuv."
                )
            if value < self.best:
                self.best, self.best_logs, waited = value, logs.clone(), 0
            else:
                waited += 1
                if waited >= PATIENCE:
                    break
            slope = torch.zeros_like(logs)
            for _ in range(DIRECTIONS):
                direction = torch.randn(len(logs), generator=generator, dtype=torch.float64)
                change = self.objective(logs + _PROBE * direction) - value
                slope += (change if math.isfinite(change) else 0.0) / direction
            logs = logs - step * torch.sign(slope)
            if (taken + 1) % DECAY_EVERY == 0:
                step *= DECAY

    def by_weight(self) -> dict[str, float]:
        factors = dict.fromkeys(self.own, 1.0)
        for unit, log in zip(self.units, self.best_logs.tolist(), strict=True):
            factors |= dict.fromkeys(unit.weights, math.exp(log))
        return factors

    def objective(self, logs: Tensor) -> float:
        """What the search makes small, for weights times ``exp(logs)``; one pass each way."""
        model, self.passes = self.request.model, self.passes + 1
        with torch.no_grad():
            for unit, log in zip(self.units, logs.tolist(), strict=True):
                for name in unit.weights:
                    model.get_parameter(name).copy_(self.own[name] * math.exp(log))
        with torch.enable_grad():
            outputs, output = self._seen()
            value = call_users_code("loss", lambda: self.loss(output, self.inputs.data))
            with own_gradients(value, model):
                value.backward()
                gradients = [mean_square(_gradients(model, unit)) for unit in self.units]
        signals = [mean_square([outputs[u.path]]) for u in self.units if u.path in outputs]
        terms = (
            _imbalance(signals[0], signals[-1]),
            _imbalance(gradients[1], gradients[-2]),
            self._lost_variation(list(outputs.values())),
        )
        return sum(weight * term for weight, term in zip(WEIGHTS, terms, strict=True))

    def _seen(self) -> tuple[dict[str, Tensor], object]:
        """What each unit returned on its first call, and what the model did."""
        request, outputs = self.request, dict[str, Tensor]()
        modules = {unit.path: self.modules[unit.path] for unit in self.units}

        def keep(path: str, module: nn.Module, args: object, output: object) -> None:
            tensors = float_tensors(output)
            if tensors:
                outputs.setdefault(path, tensors[0].detach())

        hooks = (m.register_forward_hook(partial(keep, path)) for path, m in modules.items())
        with bare_weights_called(modules.values()), hooked(hooks):
            output = call_users_code(
                type(request.model).__name__,
                lambda: run(request.model, self.inputs.data, request.forward),
            )
        return outputs, output

    def _lost_variation(self, outputs: list[Tensor]) -> float:
        """How far the last output over nodes is from the features in how neighbours differ."""
        over_nodes = [h for h in outputs if h.dim() == 2 and h.size(0) == self.inputs.num_nodes]
        if math.isnan(self.wanted) or not over_nodes:
            return 0.0
        return (self.wanted - self._variation(over_nodes[-1])) ** 2

    def _variation(self, h: Tensor) -> float:
        dense = h.detach().to_dense() if h.layout != torch.strided else h.detach()
        return graph_embedding_variation(dense.to(widest(dense)), self.operator)


def _gradients(model: nn.Module, unit: Unit) -> list[Tensor]:
    found = [model.get_parameter(name).grad for name in unit.weights]
    return [gradient for gradient in found if gradient is not None]


def _imbalance(first: float, last: float) -> float:
    """``(|first| / |last| - 1)^2`` of two mean squares; infinite where one is zero or none."""
    if not (math.isfinite(first) and math.isfinite(last) and last > 0):
        return math.inf
    return (math.sqrt(first / last) - 1) ** 2


def graph_embedding_variation(h: AnyVector, operator: NodeOperator) -> float:
    r"""Half the mean over columns of :math:`h_k^\top (I - \hat A) h_k / h_k^\top h_k`.

    A column that is zero counts as zero, as in the authors' code.

    Args:
        h: one row per node.
        operator: GCN's.

    Returns:
        0 where neighbours are alike up to their degrees, 1 at most.

    >>> from virgo.graph.operators import Graph
    >>> pair = Graph(torch.tensor([[0, 1], [1, 0]]), 2).gcn()
    >>> round(graph_embedding_variation(torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double(), pair), 9)
    0.25
    """
    h = torch.as_tensor(h)
    scale = h.abs().amax(0)
    h = (h / torch.where(scale > 0, scale, 1.0)).contiguous()
    squares = h.square().sum(0)
    left = squares - (h * torch.as_tensor(operator(vector_of(h)))).sum(0)
    return float(0.5 * (left / torch.where(squares > 0, squares, 1.0)).mean())

"""One model on one graph: everything a method or a measurement asks about the pair."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from . import inputs as reading
from . import schemes, theory
from .amplitudes import Hops, check_cancellation, hops
from .errors import GraphError, LayerError, OptionError
from .inputs import Inputs
from .layers import LayerView, Stage, Term, describe_kind
from .plans import Plan, Row
from .propagation import Graph, Operator, Vector, squared_norm
from .sampling import generator_for, standard
from .tracing import Call, Trace, is_linear, layers_of


@dataclass
class Study:
    """A model, its graph, and what one pass showed of them."""

    model: nn.Module
    inputs: Inputs
    trace: Trace
    gain: float
    signal: str
    distribution: str
    seed: int
    strict: bool = True  # whether a layer that cannot be described is an error
    num_classes: int | None = None
    notes: list[str] = field(default_factory=list)

    @cached_property
    def names(self) -> dict[int, str]:
        """Parameter identity -> its first name, so that tied weights are one weight."""
        return {id(p): name for name, p in self.model.named_parameters()}

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        return dict(self.model.named_parameters(remove_duplicate=False))

    def full_name(self, call: Call, weight: str) -> str:
        """A layer's name for a weight, as the model's name for it."""
        path = f"{call.path}.{weight}" if call.path else weight
        parameter = self.parameters.get(path)
        if parameter is None:
            raise LayerError(
                f"{call.path}: its description names a weight {weight!r} that it does not have. "
                f"Correct the description given to virgo.register_layer."
            )
        return self.names[id(parameter)]

    # --- what the graph says -------------------------------------------------------------

    @cached_property
    def _graphs(self) -> dict[str, Graph]:
        return {}

    def _graph_of(self, call: Call) -> Graph:
        """The edges a call walked, weighted by whichever of the data's tensors it was given."""
        if not call.own_edges:
            raise LayerError(
                f"{call.path}: it received edges other than the data's (pooled, sampled or "
                f"rewired inside the model), so its operator is unknown. "
                f"Use estimate='measured'."
            )
        key = ""
        if call.edge_weight is not None and self.inputs.adjacency is None:
            key = self._weight_key(call)
        if key not in self._graphs:
            weight = self.inputs.data.get(key) if key else None
            self._graphs[key] = self.inputs.graph(weight)
        graph = self._graphs[key]
        flow = getattr(call.layer, "flow", "source_to_target")
        return graph.reversed if flow == "target_to_source" else graph

    def _weight_key(self, call: Call) -> str:
        assert self.trace.inputs is not None and call.edge_weight is not None
        seen = call.edge_weight.reshape(-1)
        for key, value in self.trace.inputs.data.to_dict().items():
            if isinstance(value, Tensor) and value.layout == torch.strided:
                flat = value.reshape(-1)
                if flat.shape == seen.shape and bool((flat == seen).all()) and key != "x":
                    return str(key)
        raise LayerError(
            f"{call.path}: it received edge weights that are none of the data's tensors (computed "
            f"inside the model), so its operator is unknown. Use estimate='measured', or store "
            f"them as data.edge_weight."
        )

    @cached_property
    def stages(self) -> list[list[Stage]]:
        """Every call as stages. Unknown ones are an error that names the layer, or empty."""
        if self.strict:
            self._refuse_strangers()
        return [self._describe(call) for call in self.trace.calls]

    def _describe(self, call: Call) -> list[Stage]:
        if not self.strict:
            try:
                return replace(self, strict=True)._describe(call)
            except LayerError:
                return []
        description = describe_kind(call.layer)
        ways_out = (
            f"Describe it with virgo.register_layer({type(call.layer).__name__}), or use "
            f"estimate='measured', which needs no description."
        )
        if description is None:
            raise LayerError(
                f"{call.path or 'model'}: expected a layer with constant coefficients, got "
                f"{type(call.layer).__name__}, which is not registered. {ways_out}"
            )
        try:
            return description(call.layer, LayerView(self._graph_of(call), call.linears))
        except LayerError as error:
            if "estimate='measured'" in str(error):
                raise
            raise LayerError(
                f"{call.path or 'model'}: expected constant coefficients, got {error}. {ways_out}"
            ) from error

    def _refuse_strangers(self) -> None:
        """Modules of unknown make that own matrices might be layers; never guess silently."""
        layers = layers_of(self.model)
        for path, module in self.model.named_modules():
            inside = any(path == p or path.startswith(p + ".") or not p for p in layers)
            contains = any(p.startswith(path + ".") or not path for p in layers)
            home = type(module).__module__
            known = home.startswith(("torch.nn.", "torch_geometric.nn.", "ogb."))
            owns = any(p.dim() > 1 for p in module.parameters(recurse=False))
            if owns and not (inside or contains or known):
                raise LayerError(
                    f"{path}: {type(module).__name__} owns parameters and is not registered, so "
                    f"whether it passes messages is unknown. Describe it with "
                    f"virgo.register_layer({type(module).__name__}), or use estimate='measured'."
                )

    # --- signals ---------------------------------------------------------------------------

    @cached_property
    def node_signal(self) -> Vector:
        if self._looks_up_features:
            return np.ones(self.inputs.num_nodes)
        return reading.node_signal(self.inputs, self.signal)

    @property
    def _looks_up_features(self) -> bool:
        x = self.inputs.x
        embeds = any(isinstance(m, nn.Embedding) for m in self.model.modules())
        return x is not None and not x.is_floating_point() and embeds

    def check_features(self) -> None:
        """NaN, infinite and all-zero features are wrong for every method."""
        if self.inputs.is_hetero:
            return
        signal = self.node_signal
        if self.inputs.x is None or self._looks_up_features:
            self.notes.append("no features to average: every node starts with amplitude 1")
        elif not np.any(signal) and not np.any(reading.node_signal(self.inputs, "rms")):
            raise GraphError(
                "data.x: expected features, got only zeros. Virgo scales what the features send "
                "through the graph; pass real features (or ones)."
            )

    @cached_property
    def forward_hops(self) -> Hops:
        if self.distribution == "mirrored" and self.inputs.x is not None:
            return hops(self.trace, self.stages, self._projected_features(), "forward")
        signal = self.node_signal
        if self.signal == "mean" and self.inputs.x is not None:
            rms = reading.node_signal(self.inputs, "rms") if signal.min() < 0 else None
            if not np.any(signal) or (
                rms is not None and squared_norm(signal) < 1e-12 * squared_norm(rms)
            ):
                raise GraphError(
                    "data.x: expected mean features other than zero, got a signal that cancels "
                    "within every node (standardised rows do this). "
                    "Use signal='rms' or estimate='measured'."
                )
        found = hops(self.trace, self.stages, signal, "forward")
        check_cancellation(self.trace, self.stages, signal, found)
        return found

    def _projected_features(self) -> Vector:
        """``X M``, the signal of a mirrored network: it is linear, so its amplitudes are exact."""
        x = self.inputs.x
        assert x is not None
        call = self.trace.calls[0]
        weight = next(
            (t for stage in self.stages[0] for t in stage if t.weight is not None), None
        )
        if weight is None or call.width != x.size(-1):
            return self.node_signal
        assert weight.weight is not None
        name = self.full_name(call, weight.weight)
        shape = tuple(self.parameters[name].shape)
        mirrored = standard(
            shape, "mirrored", generator_for(self.seed, name),
            mirror_out=not self._is_last(0, len(self.stages[0]) - 1), in_first=weight.in_first,
        )  # fmt: skip
        matrix = (mirrored.T if weight.in_first else mirrored)[: max(1, mirrored.shape[0] // 2)]
        dense = x.detach().to("cpu", torch.float32)
        product = dense @ matrix.T.contiguous() if dense.layout == torch.strided else (
            torch.sparse.mm(dense, matrix.T.contiguous())
        )
        return np.asarray(product.double().numpy())

    @cached_property
    def backward_hops(self) -> Hops:
        return hops(self.trace, self.stages, self._output_gradient(), "backward")

    def _output_gradient(self) -> Vector:
        r"""Theorem 4's :math:`\mathbf 1`; for a mirrored (linear) network what it stands for.

        Lemma 1 with assumption 5: the gradient at the logits is ``1/C`` minus the one-hot label,
        on the training nodes. Classes pull in different directions, and where nothing is
        rectified those directions cancel over neighbours.
        """
        ones = np.ones(self.inputs.num_nodes)
        y = self.inputs.data.get("y")
        if self.distribution != "mirrored" or self.num_classes is None or not _is_classes(y):
            return ones
        gradient = np.full((ones.size, self.num_classes), 1.0 / self.num_classes)
        gradient[np.arange(ones.size), y.reshape(-1).cpu().numpy()] -= 1.0
        mask = self.inputs.data.get("train_mask")
        if isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.dim() == 1:
            gradient[~mask.cpu().numpy()] = 0.0
        return gradient if np.any(gradient) else ones

    # --- the last layer --------------------------------------------------------------------

    def infer_classes(self, said: int | bool | None) -> int | None:
        """Whether, and with how many classes, the last layer's own output is the logits."""
        if said is False:
            return None
        width = self._last_width()
        if said is not None and said is not True:
            if said < 2:
                raise OptionError(
                    f"num_classes: expected at least 2 for the softmax rule, got {said}. "
                    f"Pass num_classes=False if there is no softmax on the last layer."
                )
            if width is not None and width != said:
                raise OptionError(
                    f"num_classes: expected {width}, the width of the last layer "
                    f"({self.trace.calls[-1].path}), got {said}. Pass num_classes=False if "
                    f"logits are made elsewhere."
                )
            return int(said)
        if not self.trace.logits or width is None or self.inputs.is_hetero:
            return None
        y = self.inputs.data.get("y")
        labelled = _is_classes(y) and y.numel() == self.inputs.num_nodes and int(y.max()) < width
        if said is True or labelled:
            if width < 2:
                raise OptionError(
                    f"num_classes: expected at least 2 for the softmax rule, got a last layer of "
                    f"{width}. Pass num_classes=False."
                )
            return width
        return None

    def _last_width(self) -> int | None:
        outputs = self.trace.output
        if self.trace.logits and isinstance(outputs, Tensor):
            return int(outputs.size(-1))
        channels = getattr(self.trace.calls[-1].layer, "out_channels", None)
        return channels if isinstance(channels, int) else None

    def _is_last(self, call: int, stage: int) -> bool:
        return call == len(self.trace.calls) - 1 and stage == len(self.stages[call]) - 1

    # --- rows ------------------------------------------------------------------------------

    @cached_property
    def uses(self) -> dict[str, list[tuple[int, int, Term]]]:
        """Weight -> every (call, stage, term) that uses it, frozen ones left out."""
        found: dict[str, list[tuple[int, int, Term]]] = {}
        for c, chain in enumerate(self.stages):
            for s, stage in enumerate(chain):
                for term in stage:
                    if term.weight is None:
                        continue
                    name = self.full_name(self.trace.calls[c], term.weight)
                    if self.parameters[name].requires_grad:
                        found.setdefault(name, []).append((c, s, term))
        return found

    def row(self, name: str, variance: float, ratio: float) -> Row:
        """The row of a weight of a registered layer."""
        uses = self.uses[name]
        call, stage, term = uses[0]
        shape = tuple(self.parameters[name].shape)
        fan_out, fan_in = (shape[1], shape[0]) if term.in_first else (shape[0], shape[1])
        if not math.isfinite(variance) or variance <= 0:
            raise LayerError(
                f"{name}: expected a positive finite variance, got {variance}. "
                f"Check the method, the edge weights and the features."
            )
        mirrored = self.distribution == "mirrored"
        mirror_in = mirrored and self._mirror_in(call, stage, name)
        mirror_out = mirrored and not self._is_last(call, stage)
        if (mirror_in and fan_in < 2) or (mirror_out and fan_out < 2):
            raise OptionError(
                f"{name}: distribution='mirrored' pairs hidden units, expected a width of at "
                f"least 2, got {fan_in} -> {fan_out}. Widen it or use another distribution."
            )
        return Row(
            layer=self.trace.calls[call].path,
            weight=name,
            shape=shape,
            fan_in=fan_in,
            fan_out=fan_out,
            ratio=ratio,
            variance=variance,
            uses=len(uses),
            in_first=term.in_first,
            mirror_in=mirror_in,
            mirror_out=mirror_out,
        )

    def _mirror_in(self, call: int, stage: int, name: str) -> bool:
        """Whether a weight's input comes in pairs: from an earlier stage, through no Linear."""
        used = self.trace.calls[call]
        first_stage_in = bool(used.parents) and not used.from_input and not used.through_linear
        if stage == 0:
            return first_stage_in
        # SAGE's root term skips the projection stage before it and sees the layer's own input
        projected = {t.weight for t in self.stages[call][0]} == {"lin.weight"}
        skips = projected and name.endswith("lin_r.weight")
        return first_stage_in if skips else True

    def rows(self, method: schemes.Method) -> list[Row]:
        """A row a weight. A weight used twice gets the geometric mean of what its uses ask for,
        which leaves the variance at the far end unchanged."""
        made = []
        for name in self.uses:
            views = [_View(self, c, s, name) for c, s, _ in self.uses[name]]
            logs = [math.log(_checked(method, view, name)) for view in views]
            variance = math.exp(sum(logs) / len(logs)) if len(logs) > 1 else (
                method.rule(views[0])
            )
            plain = method.rule(
                schemes.WithoutGraph(views[0].fan_in, views[0].fan_out, self.gain)
            )
            made.append(self.row(name, variance, variance / plain))
        return made

    def released_rows(self, method: schemes.Method) -> list[Row]:
        """What the authors' code computes, difference by difference (docs/theory.md lists them)."""
        operator = self.inputs.graph().unweighted.gcn()
        depth = len(self.trace.calls)
        groups = [self._released_weights(c) for c in range(depth)]
        first = self.parameters[groups[0][0]]
        fan_in, hidden = first.shape[1], first.shape[0]
        per_layer: dict[str, list[float]] = {}
        if "forward" in method.directions:
            norms = _norms(operator, reading.node_signal(self.inputs, "mean"), depth)
            later = [
                theory.virgo_forward(hidden, norms[i] / norms[i + 1]) for i in range(1, depth)
            ]
            per_layer["forward"] = [theory.virgo_forward(fan_in), *later]
        if "backward" in method.directions:
            if self.num_classes is None:
                raise OptionError(
                    "num_classes: the released code needs it for virgo-backward, got none and "
                    "could not infer it. Pass num_classes=."
                )
            norms = _norms(operator, np.ones(self.inputs.num_nodes), depth)
            last = theory.virgo_backward_last(self.inputs.num_nodes, self.num_classes, norms[1])
            general = [
                theory.virgo_backward(hidden, norms[i] / norms[i + 1]) for i in range(1, depth)
            ]
            per_layer["backward"] = [last, *general][::-1]
        both = list(per_layer.values())
        variances = both[0] if len(both) == 1 else list(map(theory.harmonic_mean, *both))
        made: dict[str, Row] = {}
        for group, variance in zip(groups, variances, strict=True):
            for name in group:
                shape = self.parameters[name].shape
                plain = method.rule(schemes.WithoutGraph(shape[1], shape[0], self.gain))
                if name in self.uses:  # a layer used twice keeps its last value, as there
                    made[name] = self.row(name, variance, variance / plain)
        return list(made.values())

    def _released_weights(self, call: int) -> list[str]:
        """GCN's one, GraphSAGE's two; of GIN's inner layers the first and the last."""
        chain = [stage for stage in self.stages[call] if any(t.weight for t in stage)]
        ends = chain if len(chain) == 1 else [chain[0], chain[-1]]
        return [
            self.full_name(self.trace.calls[call], term.weight)
            for stage in ends
            for term in stage
            if term.weight is not None
        ]

    # --- the plan's surroundings -----------------------------------------------------------

    def graph_facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"nodes": self.inputs.num_nodes}
        facts["edges"] = int(self.inputs.data.num_edges) if self.inputs.is_hetero else (
            self.inputs.edges()[0].size(1)
        )
        if self.inputs.sampled is not None:
            facts["sampled"] = self.inputs.sampled
        return facts

    def complete(self, made: Plan) -> Plan:
        """Add the biases to zero, what is left alone and why, and the notes."""
        planned = {row.weight for row in made.rows}
        layers = {row.layer for row in made.rows}
        biases: list[str] = []
        left: list[tuple[str, str]] = []
        for name, parameter in self.model.named_parameters():
            if name in planned:
                continue
            layer = next((p for p in layers if not p or name.startswith(p + ".")), None)
            is_bias = layer is not None and name.endswith("bias") and self._is_weights_bias(
                name, planned
            )
            if not parameter.requires_grad:
                left.append((name, "frozen (requires_grad=False)"))
            elif is_bias and made.bias == "zero":
                biases.append(name)
            elif is_bias:
                left.append((name, "bias='keep'"))
            else:
                left.append((name, self._reason(name, layer)))
        return replace(
            made,
            biases=tuple(biases),
            left_alone=tuple(left),
            notes=(*made.notes, *self.inputs.notes, *self.notes),
        )

    def _is_weights_bias(self, name: str, planned: set[str]) -> bool:
        """A bias of a layer or of a linear map inside it, not of a norm."""
        owner = name.rpartition(".")[0]
        return f"{owner}.weight" in planned or owner in {c.path for c in self.trace.calls}

    def _reason(self, name: str, layer: str | None) -> str:
        owner = name.rpartition(".")[0]
        module = self.model.get_submodule(owner)
        if layer is not None:
            return f"not a weight of the layer's message passing ({type(module).__name__})"
        if any(owner == p or owner.startswith(p + ".") for p in layers_of(self.model)):
            return "its layer did not run"
        if is_linear(module):
            return "a linear layer outside message passing"
        return f"{type(module).__name__} is not a message-passing layer"


@dataclass(frozen=True)
class _View:
    """One use of one weight, as a method sees it."""

    study: Study
    call: int
    stage: int
    name: str

    @property
    def _shape(self) -> tuple[int, int]:
        shape = self.study.parameters[self.name].shape
        term = next(t for _, _, t in self.study.uses[self.name])
        return (shape[1], shape[0]) if term.in_first else (shape[0], shape[1])

    @property
    def fan_in(self) -> int:
        return self._shape[1]

    @property
    def fan_out(self) -> int:
        return self._shape[0]

    @property
    def gain(self) -> float:
        return self.study.gain

    @property
    def forward_ratio(self) -> float:
        return self.study.forward_hops.ratios[self.call, self.stage]

    @property
    def backward_ratio(self) -> float:
        return self.study.backward_hops.ratios[self.call, self.stage]

    @property
    def softmax_variance(self) -> float | None:
        study = self.study
        if study.num_classes is None or not study._is_last(self.call, self.stage):
            return None
        norm = study.backward_hops.last_squared_norm * study.inputs.num_nodes
        return theory.virgo_backward_last(study.inputs.num_nodes, study.num_classes, norm)


def _checked(method: schemes.Method, view: _View, name: str) -> float:
    value = method.rule(view)
    if not (math.isfinite(value) and value > 0):
        raise LayerError(
            f"{name}: expected a positive finite variance from {method.name}, got {value}. "
            f"Check the method, the edge weights and the features."
        )
    return value


def _is_classes(y: Any) -> bool:
    return isinstance(y, Tensor) and not y.is_floating_point() and y.numel() == y.size(0) > 0 and (
        int(y.min()) >= 0
    )


def _norms(operator: Operator, start: Vector, depth: int) -> list[float]:
    """Squared norms of ``start`` after 0, 1, ..., depth hops."""
    norms, x = [squared_norm(start)], start
    for _ in range(depth):
        x = operator(x)
        norms.append(squared_norm(x))
    return norms

"""One model on one graph: everything a method or a measurement asks about the pair."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from virgo.draws import PAIRED, SPECTRAL_POWER, generator_for, read_basis, scaled_basis, standard
from virgo.errors import GraphError, LayerError, OptionError, UnfitError
from virgo.graph.amplitudes import Hops, check_cancellation, hops
from virgo.graph.device import vector_of
from virgo.graph.operators import Graph, NodeOperator
from virgo.graph.spectrum import Features, surviving_directions
from virgo.graph.vectors import AnyVector, extent, squared_norm
from virgo.layers import LayerView, Stage, Term, describe_kind
from virgo.network.inputs import Inputs, is_classes, node_signal
from virgo.network.modules import layers_of, owner
from virgo.network.trace import Call, Trace
from virgo.plans import Row


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
    power: float = SPECTRAL_POWER
    strict: bool = True  # whether a layer that cannot be described is an error
    activation: str = "relu"  # the name of what the gain is of
    num_classes: int | None = None
    notes: list[str] = field(default_factory=list)

    @cached_property
    def names(self) -> dict[int, str]:
        """Parameter identity -> its first name, so that tied weights are one weight."""
        return {id(p): name for name, p in self.model.named_parameters()}

    @cached_property
    def modules(self) -> set[str]:
        return {path for path, _ in self.model.named_modules()}

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        return dict(self.model.named_parameters(remove_duplicate=False))

    @cached_property
    def layers(self) -> dict[str, nn.Module]:
        """The message-passing layers by path."""
        return layers_of(self.model)

    def full_name(self, call: Call, weight: str) -> str:
        """A layer's name for a weight, as the model's name for it."""
        path = f"{call.path}.{weight}" if call.path else weight
        parameter = self.parameters.get(path)
        if parameter is None and path.rpartition(".")[0] + ".parametrizations" in self.modules:
            raise LayerError(
                f"{path}: it is parametrised (weight norm or the like), so its own variance cannot "
                f"be set. Initialise before parametrising it."
            )
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
        if self.inputs.has_more_hyperedges:
            raise LayerError(
                f"{call.path}: its graph has more hyperedges than nodes, for which there is no "
                f"closed form. Use estimate='measured'."
            )
        key = ""
        if call.edge_weight is not None and self.inputs.adjacency is None:
            key = self._data_key(call, call.edge_weight)
        if key not in self._graphs:
            weight = self.inputs.data.get(key) if key else None
            if weight is not None and not bool(torch.isfinite(weight).all()):
                raise GraphError(
                    f"data.{key}: expected finite edge weights, got NaN or infinity. Clean them."
                )
            self._graphs[key] = self.inputs.graph(weight)
        graph = self._graphs[key]
        flow = getattr(call.layer, "flow", "source_to_target")
        return graph.reversed if flow == "target_to_source" else graph

    def _edge_type(self, call: Call) -> Tensor | None:
        """The relation of each edge of the whole graph, for layers that were given one."""
        if call.edge_type is None:
            return None
        relations: Tensor = self.inputs.data[self._data_key(call, call.edge_type, "relations")]
        return relations

    def _data_key(self, call: Call, seen: Tensor, what: str = "weights") -> str:
        """The name of the data's tensor that a layer was given as one number per edge."""
        assert self.trace.inputs is not None
        data = self.trace.inputs.data
        edges = self.inputs.edges()[0].size(1)
        candidates = {
            key: value
            for key, value in data.to_dict().items()
            if isinstance(value, Tensor) and self.inputs.data[key].numel() == edges
        }
        for key, value in candidates.items():
            if value is seen or value.data_ptr() == seen.data_ptr():
                return str(key)
        for key, value in candidates.items():
            if value.numel() == seen.numel() and bool(
                (value.reshape(-1) == seen.reshape(-1)).all()
            ):
                return str(key)
        raise LayerError(
            f"{call.path}: it received edge {what} that are none of the data's tensors (computed "
            f"inside the model), so its operator is unknown. Use estimate='measured', or store "
            f"them as data.edge_{'type' if what == 'relations' else 'weight'}."
        )

    @cached_property
    def mean_degree(self) -> float:
        """Mean number of neighbours, a node itself counted, whether or not it has a loop."""
        graph, nodes = self.inputs.graph().unweighted, self.inputs.num_nodes
        added = float(graph.missing_loops(1.0).sum()) if isinstance(graph, Graph) else nodes
        return (self.inputs.num_edges + added) / nodes

    @cached_property
    def gcn_row_sum(self) -> float:
        """Mean row sum of GCN's operator without edge weights."""
        graph = self.inputs.graph()
        if not isinstance(graph, Graph):
            raise GraphError(
                "isometric: expected a graph in memory or on disk, got one in a database. Build "
                "it with virgo graph build."
            )
        return extent(graph.unweighted.gcn()(self.inputs.ones())).total / self.inputs.num_nodes

    def is_average(self, operator: NodeOperator) -> bool:
        """Whether an operator keeps a constant signal's size, as a mean and GCN's do."""
        ones = self.inputs.ones()
        return float(squared_norm(operator(ones)) / self.inputs.num_nodes) < 2.0

    @cached_property
    def stages(self) -> list[list[Stage]]:
        """Every call as stages. Unknown ones are an error that names the layer, or empty."""
        if self.strict:
            self._refuse_strangers()
            return [self._describe(call) for call in self.trace.calls]
        return [self._describe_if_known(call) for call in self.trace.calls]

    @property
    def operators(self) -> list[list[list[NodeOperator]]]:
        """The operators of all terms, by call and stage."""
        return [[[term.operator for term in stage] for stage in chain] for chain in self.stages]

    def _describe_if_known(self, call: Call) -> list[Stage]:
        try:
            return self._describe(call)
        except LayerError:
            return []

    def _describe(self, call: Call) -> list[Stage]:
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
        view = LayerView(
            self._graph_of(call), call.linears, call.given, self._edge_type(call), call.width
        )
        try:
            return description(call.layer, view)
        except LayerError as error:
            raise LayerError(
                f"{call.path or 'model'}: expected constant coefficients, got {error}. {ways_out}"
            ) from error

    def _refuse_strangers(self) -> None:
        """Modules of unknown make that own matrices might be layers; never guess silently."""
        containers = {
            ".".join(path.split(".")[:i])
            for path in self.layers
            for i in range(path.count(".") + 1)
        }
        for path, module in self.model.named_modules():
            home = type(module).__module__
            known = home.startswith(("torch.nn.", "torch_geometric.nn.", "dgl.nn.", "ogb."))
            owns = any(p.dim() > 1 for p in module.parameters(recurse=False))
            if owns and not known and path not in containers and owner(path, self.layers) is None:
                raise LayerError(
                    f"{path}: {type(module).__name__} owns parameters and is not registered, so "
                    f"whether it passes messages is unknown. Describe it with "
                    f"virgo.register_layer({type(module).__name__}), or use estimate='measured'."
                )

    # --- signals ---------------------------------------------------------------------------

    @property
    def node_signal(self) -> Any:
        """One number per node."""
        return self.inputs.ones() if self.looks_up_features else self.inputs.signal(self.signal)

    @property
    def looks_up_features(self) -> bool:
        """Whether features are ids that the model looks up in an embedding."""
        return looks_up_features(self.model, self.inputs)

    @cached_property
    def forward_hops(self) -> Hops:
        if self.distribution == "spectral":
            return hops(self.trace.calls, self.operators, self._spectral_start, "forward")
        if self.distribution == "mirrored" and self.inputs.x is not None:
            return hops(self.trace.calls, self.operators, self._projected_features(), "forward")
        if self.signal == "mean" and self.inputs.x is not None:
            self._refuse_empty_means(self.node_signal)
        found = hops(
            self.trace.calls,
            self.operators,
            self.node_signal,
            "forward",
            consume=self.inputs.signal_is_new,
        )
        if found.start is not None and found.start.least < 0:
            check_cancellation(
                self.trace.calls, self.operators, self.node_signal, found, self._rounding
            )
        return found

    @property
    def _rounding(self) -> float:
        """The relative precision of the features."""
        x = self.inputs.x
        return torch.finfo(x.dtype).eps if x is not None and x.is_floating_point() else 0.0

    def _refuse_empty_means(self, signal: AnyVector) -> None:
        """Rows that sum to nothing leave Theorem 3 nothing to go by."""
        least, _, magnitude = extent(signal)
        negligible = not magnitude
        if not negligible and least < 0:
            rms = node_signal(self.inputs, "rms")
            limit = max(1e-12, self._rounding**2)
            negligible = squared_norm(signal) < limit * squared_norm(rms)
        if negligible:
            raise GraphError(
                "data.x: expected mean features other than zero, got a signal that cancels within "
                "every node (standardised rows do this). "
                "Use signal='rms' or estimate='measured'."
            )

    @cached_property
    def _spectral_start(self) -> AnyVector:
        """``X M`` with spectral ``M`` of unit variance."""
        weight = self._half_weight(self.feature_weights[0], "spectral")
        return self.features.times(weight.T.contiguous().double().numpy())

    @cached_property
    def _spectral_excess(self) -> float:
        r"""How much stronger :math:`X M` is than with random directions.

        A method's variance of the first weight is for random ones, where the mean of
        :math:`\lVert X M\rVert^2` is :math:`k \lVert X\rVert^2`. Dividing by the excess makes
        Theorem 3 exact again. It costs Theorem 4 nothing, as the gradient at the features trains
        nothing; without it the logits of 16 layers on Cora are four times mirrored ones.
        """
        start = self._spectral_start
        return float(squared_norm(start) / (start.shape[1] * self.features.squares))

    def _projected_features(self) -> Any:
        """``X M``, the signal of a mirrored network: it is linear, so its amplitudes are exact."""
        x, first = self.inputs.x, next(iter(self.uses.items()), None)
        assert x is not None
        if first is None or self.trace.calls[0].width != x.size(-1) or first[1][0][0] != 0:
            return self.node_signal
        matrix = self._half_weight(first[0], "mirrored")
        features, matrix = x.detach().float(), matrix.to(x.device)
        if features.layout == torch.strided:
            return vector_of(features @ matrix.T)
        return vector_of(torch.sparse.mm(features, matrix.T.contiguous()))

    def _half_weight(self, name: str, distribution: str) -> Tensor:
        """``M``, of unit variance: the rows of a weight without those of opposite sign."""
        in_first = self.uses[name][0][2].in_first
        mirror_in, mirror_out = self._mirrors(name)
        weight = standard(
            tuple(self.parameters[name].shape),
            distribution,
            generator_for(self.seed, name),
            mirror_in=mirror_in,
            mirror_out=mirror_out,
            in_first=in_first,
            basis=read_basis(self.basis) if distribution == "spectral" else None,
        )
        matrix = weight.T if in_first else weight
        return matrix[: matrix.size(0) // 2] if mirror_out else matrix

    # --- the features' directions ------------------------------------------------------------

    @cached_property
    def features(self) -> Features:
        """The features as products."""
        return Features(self.inputs.feature_matrix)

    @cached_property
    def feature_weights(self) -> list[str]:
        """The weights that read the features and nothing else."""
        matrix = None if self.inputs.is_hetero else self.inputs.feature_matrix
        if matrix is None or matrix.ndim != 2 or self.looks_up_features:
            return []
        return [
            name
            for name, uses in self.uses.items()
            if all(self._reads_features(*use) for use in uses)
            and self.fans(name)[0] == matrix.shape[1]
        ]

    def _reads_features(self, call: int, stage: int, term: Term) -> bool:
        used = self.trace.calls[call]
        only = used.from_input and not used.parents and not used.through_linear
        return only and not self._is_paired(call, stage, term)

    @cached_property
    def basis(self) -> dict[str, Any]:
        """The directions of spectral weights, as a plan stores them."""
        if not self.feature_weights:
            raise UnfitError(
                "distribution='spectral': expected features and a message-passing layer that reads "
                "them alone, got none (no features, ids to look up, or a Linear before the first "
                "layer). Use distribution='mirrored'."
            )
        widths = {
            name: fan_out // 2 if self._mirrors(name)[1] else fan_out
            for name in self.feature_weights
            for fan_out in [self.fans(name)[1]]
        }
        wanted = max(widths.values())
        seed = generator_for(self.seed, "spectrum").initial_seed()
        spectrum = surviving_directions(
            self.trace.calls,
            self.operators,
            self.features,
            min(wanted, *self.features.shape),
            seed,
        )
        kept, weakest = len(spectrum.values), spectrum.values[-1] / spectrum.values[0]
        self.notes.append(
            f"spectral: {', '.join(widths)} in the {kept} strongest directions of the features "
            f"after all layers, the last with x{weakest:.2g} of the first's singular value"
        )
        if kept < wanted:
            self.notes.append(
                f"spectral: {kept} directions survive, fewer than the {wanted} pairs of units: the "
                f"rest as mirrored"
            )
        return scaled_basis(spectrum.values, spectrum.vectors, self.power)

    @cached_property
    def backward_hops(self) -> Hops:
        return hops(
            self.trace.calls, self.operators, self._output_gradient(), "backward", consume=True
        )

    def _output_gradient(self) -> Any:
        r"""Theorem 4's :math:`\mathbf 1`; for a mirrored (linear) network what it stands for.

        Lemma 1 with assumption 5: the gradient at the logits is ``1/C`` minus the one-hot label,
        on the training nodes. Classes pull in different directions, and where nothing is
        rectified those directions cancel over neighbours.

        Returns:
            One number per node, or one column per class.
        """
        ones = self.inputs.ones()
        if self.distribution not in PAIRED or self.num_classes is None:
            return ones
        gradient = self.inputs.label_gradient(self.num_classes)
        return gradient if gradient is not None and squared_norm(gradient) else ones

    # --- the last layer --------------------------------------------------------------------

    def infer_classes(self, said: int | bool | None) -> int | None:
        """Whether, and with how many classes, the last layer's own output is the logits."""
        if said is False:
            return None
        if said is not None and not isinstance(said, (int, np.integer)):
            raise OptionError(
                f"num_classes: expected a number, True, False or None, got {said!r}. Pass one."
            )
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
            if said is True:
                raise OptionError(
                    "num_classes: expected a model whose output is its last layer's own, got one "
                    "that ends otherwise. Pass num_classes=False."
                )
            return None
        y = self.inputs.data.get("y")
        labelled = is_classes(y) and y.numel() == self.inputs.num_nodes and int(y.max()) < width
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

    def is_last(self, call: int, stage: int) -> bool:
        """Whether a stage is the end of the network."""
        return self.trace.ends(call) and stage == len(self.stages[call]) - 1

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
                    uses = found.setdefault(name, []) if self.parameters[name].requires_grad else []
                    if (c, s) not in [use[:2] for use in uses[-1:]]:  # relations share a tensor
                        uses.append((c, s, term))
        return found

    def row(self, name: str, variance: float, ratio: float) -> Row:
        """The row of a weight of a registered layer."""
        uses = self.uses[name]
        call, _, term = uses[0]
        shape = tuple(self.parameters[name].shape)
        fan_in, fan_out = self.fans(name)
        mirror_in, mirror_out = self._mirrors(name)
        if self.distribution == "spectral" and name in self.feature_weights:
            variance, ratio = variance / self._spectral_excess, ratio / self._spectral_excess
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
            distribution=self._row_distribution(name),
        )

    def _row_distribution(self, name: str) -> str | None:
        """Where it differs from the plan's: of spectral weights, all but those of features."""
        is_hidden = self.distribution == "spectral" and name not in self.feature_weights
        return "mirrored" if is_hidden else None

    def _mirrors(self, name: str) -> tuple[bool, bool]:
        """Whether a weight's input and output come in pairs of opposite sign.

        Of a weight used in several places, one that needs pairs decides: pairs of blocks are
        linear on other input too.

        Returns:
            Of the input, of the output.

        Raises:
            UnfitError: if there is no room for pairs.
        """
        if self.distribution not in PAIRED:
            return False, False
        uses = self.uses[name]
        fixed = [score for score in self.zero_scores if not self.parameters[score].requires_grad]
        can_mirror = not fixed and all(
            term.can_mirror or (term.scores and self.is_last(call, stage))  # the end has no pairs
            for call, stage, term in uses
        )
        if self.parameters[name].dim() > 2 or not can_mirror:
            raise UnfitError(
                f"{name}: distribution={self.distribution!r} pairs hidden units, expected one "
                f"matrix whose outputs share their coefficients, got relations, heads or parts "
                f"side by side. Use another distribution."
            )
        mirror_in = any(self._is_paired(call, stage, term) for call, stage, term in uses)
        mirror_out = any(not self.is_last(call, stage) for call, stage, _ in uses)
        fan_in, fan_out = self.fans(name)
        if (mirror_in and fan_in < 2) or (mirror_out and fan_out < 2):
            raise UnfitError(
                f"{name}: distribution={self.distribution!r} pairs hidden units, expected a "
                f"width of at least 2, got {fan_in} -> {fan_out}. Widen it or use another "
                f"distribution."
            )
        return mirror_in, mirror_out

    @cached_property
    def zero_scores(self) -> frozenset[str]:
        """What paired weights set to zero, so that heads share their coefficients."""
        if self.distribution not in PAIRED:
            return frozenset()
        return frozenset(
            self.full_name(self.trace.calls[call], score)
            for uses in self.uses.values()
            for call, _, term in uses
            if term.heads > 1
            for score in term.scores
        )

    def _is_paired(self, call: int, stage: int, term: Term) -> bool:
        """Whether a use reads pairs: from an earlier stage, through no Linear of another kind."""
        used = self.trace.calls[call]
        layer_input = bool(used.parents) and not used.from_input and not used.through_linear
        if stage == 0:
            return layer_input
        # SAGE's root term skips the projection before it and reads the layer's own input
        projects = all(t.operator.graph is None for t in self.stages[call][0])
        skips = projects and len(self.stages[call][stage]) > 1 and term.operator.graph is None
        return layer_input if skips else True

    def fans(self, name: str) -> tuple[int, int]:
        """Fan in and fan out of a weight of a registered layer."""
        return self.uses[name][0][2].fans(self.parameters[name].shape)


def looks_up_features(model: nn.Module, inputs: Inputs) -> bool:
    """Whether the features are ids that the model looks up in an embedding."""
    x = inputs.x
    embeds = any(isinstance(module, nn.Embedding) for module in model.modules())
    return x is not None and not x.is_floating_point() and embeds

r"""``latch_()``: a deep plain GNN most of whose channels hold what the first layers found.

A network of mirrored pairs is linear, so at its end is what the graph has left of the features,
and on a connected graph that tends to one direction. A pair of units can do more than be linear:

.. math:: \mathrm{relu}(gz + 1) - \mathrm{relu}(gz - 1) - 1 = \mathrm{clip}(gz, -1, 1)

With a gain :math:`g > 1` this is a latch. Layer after layer, :math:`x' = \mathrm{clip}(g P x)` puts
a node on the side that most of its neighbours are on, and regions of one sign settle instead of
fading: after 64 layers they are about those of the first few. The 1 that is taken off before the
next hop is a unit with a bias and no weights, one for all latches. Both units of a latch see
:math:`gz`, and what is above 1 cancels in their difference only; so the last hidden layer has a
gain of :data:`LAST_GAIN`, and the layer that is trained to read it learns from the sign.

A latch keeps a sign and passes little gradient where it is settled, so a share of the pairs stays
linear: a unit signal after the first layer, then the scales that Virgo has for mirrored weights.
Both look in the directions of the features that survive the first :data:`HOPS` layers, not all of
them (:mod:`virgo.graph.spectrum`). At layer ``after`` each latch is centred at its median over
nodes and brought to unit mean deviation, as one pass measures them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from virgo import rules
from virgo.draws import generator_for, standard
from virgo.errors import GraphError, LayerError, OptionError, named_options
from virgo.graph.spectrum import surviving_directions
from virgo.network import reading
from virgo.network.graph_inputs import is_graph
from virgo.network.inputs import Forward, Inputs, run
from virgo.network.modules import (
    hooked,
    is_uninitialised,
    materialise,
    preserved,
    unchanged_on_error,
    unwrap,
)
from virgo.network.profile import is_norm
from virgo.network.replicas import fill
from virgo.planning import Options, plan_of, studied
from virgo.plans import Plan, Row, choose_seed
from virgo.study import Study

#: Layers whose surviving directions are looked in: more average away what latches could hold.
HOPS = 4
#: The gain of the last hidden layer, little of whose signal is above 1.
LAST_GAIN = 1.2


@dataclass(frozen=True)
class Latches:
    """What was made of a model.

    Attributes:
        first: the path of the first layer whose channels are latches.
        layers: how many layers have latches.
        held: channels that are latches.
        linear: channels that are linear.
        gain: of a latch.
    """

    first: str
    layers: int
    held: int
    linear: int
    gain: float

    def __str__(self) -> str:
        return (
            f"{self.layers} layers from {self.first} on hold the sign of {self.held} channels "
            f"(gain {self.gain:g}); {self.linear} channels are linear"
        )


@named_options
def latch_(
    model: nn.Module,
    data: Any,
    *,
    linear: float = 0.25,
    after: int = 2,
    gain: float = 3.0,
    seed: int = 0,
    generator: torch.Generator | None = None,
    forward: Forward | None = None,
) -> Latches:
    """Initialise a deep plain GNN with latches beside spectral weights, in place.

    It replaces :func:`virgo.init_` for networks of many layers without residuals or norms, and uses
    no label. Weights and biases of all layers change; on an error nothing does.

    Args:
        model: a chain of message-passing layers with ReLU between them, all hidden ones of one
            width and with a bias.
        data: a ``Data`` or ``Batch`` with features.
        linear: the share of the pairs of hidden units that stay linear.
        after: the layer at whose output latches begin, from 1; before it all channels are linear.
        gain: of a latch, above 1.
        seed: of the draws.
        generator: take the seed from this generator instead.
        forward: ``lambda model, data: ...`` for models called in an unusual way.

    Returns:
        What was made of it.

    Raises:
        OptionError: an option is out of range, or hidden layers are too narrow.
        GraphError: the data has no features, or several kinds of nodes.
        LayerError: the model is no such chain.

    >>> import virgo
    >>> from torch_geometric.nn import GCN
    >>> data = virgo.data.citation_like(num_nodes=200, seed=0)
    >>> model = GCN(data.num_features, 32, num_layers=16, out_channels=7)
    >>> print(virgo.latch_(model, data))
    14 layers from convs.1 on hold the sign of 11 channels (gain 3); 4 channels are linear
    """
    _check(linear, after, gain)
    bare, seed = unwrap(model), choose_seed(seed, generator)
    inputs = _read(data)
    if is_uninitialised(bare):
        materialise(bare, inputs, forward)
    options = Options(distribution="mirrored", seed=seed, forward=forward)
    study = studied(bare, inputs, options)
    try:
        plan = plan_of(study, rules.find("virgo"), options)
    except (LayerError, OptionError) as error:  # its advice is on options that are not here
        reason = str(error).partition(". ")[0]
        raise LayerError(f"latch_: {reason}. Use virgo.init_(model, data).") from error
    chain = _Chain(study, plan, linear, after, gain)
    with unchanged_on_error(bare), preserved(bare), torch.no_grad():
        return chain.write(inputs, forward)


def _check(linear: object, after: object, gain: object) -> None:
    def refuse(name: str, expected: str, got: object) -> None:
        raise OptionError(f"{name}: expected {expected}, got {got!r}. Leave it out.")

    if not isinstance(linear, (int, float)) or not 0 <= linear < 1:
        refuse("linear", "a share of at least 0 and below 1", linear)
    if isinstance(after, bool) or not isinstance(after, int) or after < 1:
        refuse("after", "a number of layers of at least 1", after)
    if not isinstance(gain, (int, float)) or not 1 < gain < math.inf:
        refuse("gain", "a finite number above 1", gain)


def _read(data: Any) -> Inputs:
    inputs = None if is_graph(data) else reading.read(data)
    if inputs is None or inputs.is_hetero or inputs.x is None:
        raise GraphError(
            "latch_: expected features of one kind of node, got none or several kinds. Pass a Data "
            "with x, or use virgo.init_(model, data)."
        )
    return inputs


@dataclass(frozen=True)
class _Layer:
    """One linear map between two activations.

    Attributes:
        rows: its weights; several where a layer sums terms, such as neighbours and the node itself.
        bias: its name, where there is one.
        module: the path of the module whose output it is.
        reader: the path of the module that is given what the layer before returned.
    """

    rows: tuple[Row, ...]
    bias: str | None
    module: str
    reader: str


class _Chain:
    """A network of equally wide hidden layers, and what latches make of it."""

    def __init__(self, study: Study, plan: Plan, linear: float, after: int, gain: float) -> None:
        self._study, self._seed, self._gain = study, plan.seed, gain
        self._layers = list(_layers(study, plan))
        self._refuse_misfits(plan)
        self._width = self._layers[0].rows[0].fan_out
        self._pairs = self._width // 2
        self._linear = round(linear * self._pairs)
        if self._pairs < self._linear + 2:
            raise OptionError(
                f"latch_: expected room for a latch beside {self._linear} linear pairs and one for "
                f"the constant, got hidden layers of {self._width}. Widen them or lower linear."
            )
        self._directions = self._nearby(self._pairs - 1 - self._linear)
        self._linear, self._held = (len(part) for part in self._directions)
        if not self._held:
            raise GraphError(
                "latch_: expected features that differ between nodes, got the same for all. Use "
                "virgo.init_(model, data)."
            )
        self._unit = 1.0  # by which the first layer is scaled
        self._first = min(after, len(self._layers) - 1) - 1  # whose output is the first held

    @property
    def _channels(self) -> int:
        return self._linear + self._held

    def _refuse_misfits(self, plan: Plan) -> None:
        hidden = self._layers[:-1]
        widths = {row.fan_out for layer in hidden for row in layer.rows}
        if len(self._layers) < 3 or len(widths) > 1:
            raise LayerError(
                f"latch_: expected at least 3 layers with hidden ones of one width, got "
                f"{len(self._layers)} layers of {sorted(widths)}. Use virgo.init_(model, data)."
            )
        if plan.nonlinearity != "relu":
            raise LayerError(
                f"latch_: expected ReLU between layers, got {plan.nonlinearity}. Use "
                f"virgo.init_(model, data)."
            )
        norms = [path for path, module in self._study.model.named_modules() if is_norm(module)]
        if norms:
            raise LayerError(
                f"{norms[0]}: expected no norms, which undo a bias, got one. Use "
                f"virgo.init_(model, data)."
            )
        bare = [layer.module for layer in hidden if layer.bias is None]
        if bare:
            raise LayerError(
                f"{bare[0]}: expected a bias, with which latches are made, got none. Build the "
                f"layer with bias=True."
            )

    def _nearby(self, held: int) -> tuple[Tensor, Tensor]:
        """Directions that survive the first layers, for linear channels and for latches.

        Returns:
            Both; latches do without the strongest where all nodes share it, having nothing to hold.
        """
        study = self._study
        found = surviving_directions(
            study.trace.calls[:HOPS],
            study.operators[:HOPS],
            study.features,
            min(max(held + 1, self._linear), *study.features.shape),
            generator_for(self._seed, "latches").initial_seed(),
        ).vectors
        strongest = np.asarray(study.features.times(np.ascontiguousarray(found[:1].T)))
        is_shared = float(strongest.mean()) ** 2 > float(strongest.var())
        directions = torch.from_numpy(np.ascontiguousarray(found))
        return directions[: self._linear], directions[int(is_shared) :][:held]

    def write(self, inputs: Inputs, forward: Forward | None) -> Latches:
        """Write all weights and biases, measuring after the first layer and where latches begin."""
        prepared = inputs.prepared_for(self._study.model).data
        results: list[Any] = []

        def seen(layers: Sequence[_Layer]) -> list[tuple[Tensor, Tensor]]:
            return _seen(
                self._study.model, layers, lambda m: results.append(run(m, prepared, forward))
            )

        self._write(0, latched=False)
        channels = seen(self._layers[:1])[0][1][:, : self._channels].double()
        self._unit = 1 / max(float(channels.square().mean().sqrt()), 1e-30)
        for at in range(self._first + 1):
            self._write(at, latched=False)
        start = self._layers[self._first]
        held = seen([start])[0][1][:, self._linear : self._channels].double()
        middle = held.median(0).values
        spread = (held - middle).abs().mean(0)
        scale = torch.where(spread > 1e-12 * spread.max(), 1 / spread, torch.zeros_like(spread))
        self._write(self._first, latched=True, scale=scale.cpu(), middle=middle.cpu())
        for at in range(self._first + 1, len(self._layers)):
            self._write(at, latched=True)
        passes = seen(self._layers)
        self._refuse_detours(passes)
        if getattr(results[-1], "shape", None) != passes[-1][1].shape:
            raise LayerError(
                f"{self._layers[-1].module}: expected the last layer's output to be the model's, "
                f"got a head behind it. Use virgo.init_(model, data)."
            )
        held_in = len(self._layers) - 1 - self._first
        return Latches(start.module, held_in, self._held, self._linear, self._gain)

    def _refuse_detours(self, passes: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Each layer has to read the ReLU of the one before, to which its bias was added."""
        for at, layer in enumerate(self._layers[:-1]):
            output, following = passes[at][1], passes[at + 1][0]
            if not torch.allclose(following, output.relu(), atol=1e-4, rtol=1e-4):
                raise LayerError(
                    f"{layer.module}: expected the next layer to read its ReLU, got something in "
                    f"between, such as a norm. Use virgo.init_(model, data)."
                )
            constant = output[:, self._pairs - 1]
            if at >= self._first and not torch.allclose(constant, output.new_ones(()), atol=1e-2):
                raise LayerError(
                    f"{layer.module}: expected its bias to be added to its output as it is, got a "
                    f"layer that changes it. Use virgo.init_(model, data)."
                )

    def _write(
        self, at: int, *, latched: bool, scale: Tensor | float = 1.0, middle: Tensor | float = 0.0
    ) -> None:
        """Write one layer, whose latches see ``scale * (z - middle)``."""
        layer, is_last = self._layers[at], at == len(self._layers) - 1
        factor = torch.ones(self._channels, 1, dtype=torch.float64)
        factor[self._linear :, 0] = (self._gain_at(at) if latched else 1.0) * scale
        for row in layer.rows:
            source = generator_for(self._seed, row.weight)
            if at == 0:
                weight = self._in_pairs(factor * self._looking(source), source, latched)
            elif is_last:
                weight = self._last(row, len(layer.rows), source) @ self._read(at)
            else:
                mixed = self._mixing(row, len(layer.rows), source) @ self._read(at)
                weight = self._in_pairs(factor * mixed, source, latched)
            parameter = self._study.parameters[row.weight]
            weight = (weight.T if row.in_first else weight).to(parameter.dtype)
            fill(parameter, weight.reshape(parameter.shape))
        if layer.bias is not None:
            bias = self._study.parameters[layer.bias]
            value = torch.zeros(bias.shape, dtype=torch.float64)
            if latched and not is_last:
                held, shift = (
                    slice(self._linear, self._channels),
                    factor[self._linear :, 0] * middle,
                )
                value[held] = 1 - shift
                value[self._pairs :][held] = -1 - shift
                value[self._pairs - 1] = 1
            fill(bias, value.to(bias.dtype))

    def _gain_at(self, at: int) -> float:
        is_last_hidden = self._first < at == len(self._layers) - 2
        return LAST_GAIN if is_last_hidden else self._gain

    def _looking(self, source: torch.Generator) -> Tensor:
        """The first layer's channels: directions of the features, each kind rotated at random."""
        parts = []
        for directions in self._directions:
            unit = directions / directions.norm(dim=1, keepdim=True)
            parts.append(_orthogonal(len(unit), len(unit), source) @ unit)
        return torch.cat(parts) * self._unit

    def _read(self, at: int) -> Tensor:
        """Channels from the units of the layer before: ``u - v``, of latches less the constant."""
        read = torch.zeros(self._channels, self._width, dtype=torch.float64)
        read[:, : self._channels] = torch.eye(self._channels)
        read[:, self._pairs : self._pairs + self._channels] = -torch.eye(self._channels)
        if at > self._first:
            read[self._linear :, self._pairs - 1] = -1
        return read

    def _mixing(self, row: Row, terms: int, source: torch.Generator) -> Tensor:
        """Linear channels are rotated with Virgo's scale; a latch keeps to itself."""
        rotation = _orthogonal(self._linear, self._linear, source)
        scale = row.std * math.sqrt(self._pairs)  # that of a mirrored block
        held = torch.eye(self._held, dtype=torch.float64) / terms
        mixed: Tensor = torch.block_diag(rotation * scale, held)
        return mixed

    def _last(self, row: Row, terms: int, source: torch.Generator) -> Tensor:
        weight = _orthogonal(row.fan_out, self._channels, source)
        weight[:, : self._linear] *= row.std * math.sqrt(max(row.fan_out, self._pairs))
        weight[:, self._linear :] /= terms
        return weight

    def _in_pairs(self, signal: Tensor, source: torch.Generator, latched: bool) -> Tensor:
        """Units from channels; one that is left over hears a little, and is not read yet."""
        weight = torch.zeros(self._width, signal.size(1), dtype=torch.float64)
        weight[: self._channels] = signal
        second = -signal
        if latched:
            second[self._linear :] *= -1
        weight[self._pairs : self._pairs + self._channels] = second
        spare = [*range(self._pairs + self._channels, self._width)]
        spare += [*range(self._channels, self._pairs - 1)]
        drawn = standard((len(spare), signal.size(1)), "normal", source, dtype=torch.float64)
        weight[spare] = 0.1 * drawn * signal.square().mean().sqrt()
        return weight


def _orthogonal(rows: int, columns: int, source: torch.Generator) -> Tensor:
    """A random matrix with orthonormal rows or columns, whichever are fewer."""
    if not rows or not columns:
        return torch.zeros(rows, columns, dtype=torch.float64)
    drawn = standard((rows, columns), "orthogonal", source, dtype=torch.float64)
    return drawn / math.sqrt(max(rows, columns))


def _layers(study: Study, plan: Plan) -> Iterator[_Layer]:
    """The maps of a chain of calls in the order they run."""
    rows = {row.weight: row for row in plan.rows}
    for at, (call, stages) in enumerate(zip(study.trace.calls, study.stages, strict=True)):
        is_next = call.parents == ({at - 1} if at else set()) and call.from_input == (at == 0)
        is_simple = len(stages) == 1 or all(len(stage) == 1 for stage in stages)
        if not is_next or not is_simple or call.through_linear:
            raise LayerError(
                f"{call.path}: expected a chain in which each layer reads the one before, got "
                f"another path. Use virgo.init_(model, data)."
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
            yield _Layer(
                tuple(own),
                next((name for name in biases if name in plan.biases), None),
                call.path if stage is stages[-1] else homes[0],
                call.path if stage is stages[0] else homes[0],
            )


def _seen(
    model: nn.Module, layers: Sequence[_Layer], call: Callable[[nn.Module], Any]
) -> list[tuple[Tensor, Tensor]]:
    """What layers read and return in one pass."""
    read: dict[str, Tensor] = {}
    returned: dict[str, Tensor] = {}

    def note_read(path: str) -> Callable[[nn.Module, Any], None]:
        return lambda module, given: read.__setitem__(path, given[0])

    def note_returned(path: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda module, given, output: returned.__setitem__(path, output)

    handles = []
    for layer in layers:
        reader, module = (model.get_submodule(path) for path in (layer.reader, layer.module))
        handles.append(reader.register_forward_pre_hook(note_read(layer.reader)))
        handles.append(module.register_forward_hook(note_returned(layer.module)))
    with hooked(handles):
        call(model)
    return [(read[layer.reader], returned[layer.module]) for layer in layers]

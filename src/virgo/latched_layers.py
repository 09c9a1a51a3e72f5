r"""Latches: layers most of whose channels hold the sign of what the first layers found.

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

With training labels latches can hold more than signs of directions: ``hold="classes"`` decides at
layer ``after`` which class a node is in, by ridge regression written into that layer, and holds the
decision as signs, half of the classes against the other half in each latch
(:mod:`virgo.class_codes`). The layers behind it pass it on among neighbours. It is a warm start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from virgo.class_codes import balanced_codes
from virgo.draws import generator_for, standard
from virgo.errors import GraphError, LayerError, OptionError
from virgo.graph.spectrum import surviving_directions
from virgo.layer_chain import ChainLayer, chain_of, seen_by, voting
from virgo.network.inputs import Forward, Inputs, run
from virgo.network.profile import is_norm
from virgo.network.replicas import fill
from virgo.plans import Plan, Row
from virgo.ridge import Wanted, ridge, wanted
from virgo.study import Study

#: Layers whose surviving directions are looked in: more average away what latches could hold.
HOPS = 4
#: The gain of the last hidden layer, little of whose signal is above 1.
LAST_GAIN = 1.2
#: The least share of signs that neighbours of one class keep; one half is chance.
KEPT = 0.75
#: What latches hold -> their gain and the least share of linear pairs.
DEFAULTS = {"directions": (3.0, 0.25), "classes": (6.0, 0.0)}


@dataclass(frozen=True)
class Latches:
    """What was made of a model.

    Attributes:
        first: the path of the first layer whose channels are latches.
        layers: how many layers have latches, those inside an MLP counted too.
        held: channels that are latches.
        linear: channels that are linear.
        gain: of a latch.
        classes: whose codes are held, or none where directions of the features are.
        kept: the share of signs in training rows that are at the end what they were at the start;
            a half is chance.
    """

    first: str
    layers: int
    held: int
    linear: int
    gain: float
    classes: int | None = None
    kept: float = math.nan

    @property
    def is_outvoted(self) -> bool:
        """Whether neighbours turn many signs, as those of other classes do."""
        return self.kept < KEPT

    def __str__(self) -> str:
        what = f" that tell {self.classes} classes apart" if self.classes else ""
        kept = f"; {self.kept:.0%} of the signs of training rows are kept" if self.classes else ""
        return (
            f"{self.layers} layers from {self.first} on hold the sign of {self.held} channels"
            f"{what} (gain {self.gain:g}); {self.linear} channels are linear{kept}"
        )


@dataclass(frozen=True)
class LatchOptions:
    """What a user asked for.

    Attributes:
        hold: ``"directions"`` or ``"classes"``.
        linear: the least share of the pairs that stay linear.
        after: the layer at whose output latches begin, from 1.
        gain: of a latch.
    """

    hold: str
    linear: float
    after: int
    gain: float

    @classmethod
    def checked(cls, hold: object, linear: object, after: object, gain: object) -> LatchOptions:
        """The options with their defaults; raises :class:`OptionError` for any out of range."""

        def refuse(name: str, expected: str, got: object) -> None:
            raise OptionError(f"{name}: expected {expected}, got {got!r}. Leave it out.")

        if not isinstance(hold, str) or hold not in DEFAULTS:
            refuse("hold", '"directions" or "classes"', hold)
        its_gain, its_linear = DEFAULTS[str(hold)]
        linear = its_linear if linear is None else linear
        gain = its_gain if gain is None else gain
        if not isinstance(linear, (int, float)) or not 0 <= linear < 1:
            refuse("linear", "a share of at least 0 and below 1", linear)
        if isinstance(after, bool) or not isinstance(after, int) or after < 1:
            refuse("after", "a number of layers of at least 1", after)
        if not isinstance(gain, (int, float)) or not 1 < gain < math.inf:
            refuse("gain", "a finite number above 1", gain)
        return cls(str(hold), linear, after, gain)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Classes:
    """The labels of the training rows, and a code of the classes for each latch."""

    labels: Wanted
    codes: Tensor


class LatchedLayers:
    """A network of equally wide hidden layers, and what latches make of it."""

    def __init__(self, study: Study, plan: Plan, options: LatchOptions, data: Any) -> None:
        self._study, self._seed, self._gain = study, plan.seed, options.gain
        self._layers = list(chain_of(study, plan))
        self._end = self._first_to_read(options.hold)
        self._refuse_misfits(plan)
        self._width = self._layers[0].rows[0].fan_out
        self._pairs = self._width // 2
        self._linear = round(options.linear * self._pairs)
        if self._pairs < self._linear + 2:
            raise OptionError(
                f"latch_: expected room for a latch beside {self._linear} linear pairs and one for "
                f"the constant, got hidden layers of {self._width}. Widen them or lower linear."
            )
        self._classes = self._read_classes(data) if options.hold == "classes" else None
        self._directions = self._everywhere() if self._classes else self._nearby()
        self._linear, self._held = (len(part) for part in self._directions)
        if not self._held:
            raise GraphError(
                "latch_: expected features that differ between nodes, got the same for all. Use "
                "virgo.init_(model, data)."
            )
        self._unit = 1.0  # by which the first layer is scaled
        self._first = min(options.after, self._end) - 1  # whose output is the first held

    def _first_to_read(self, hold: str) -> int:
        """The layer from which on nothing is held.

        Returns:
            Which it is: the last, or the one before where that is of another width, as in the last
            MLP of a GIN. It is to say how much of each class there is.
        """
        widths = [layer.rows[0].fan_out for layer in self._layers]
        first, inner, last = widths[0], widths[-2:][0], widths[-1]
        has_scores = hold == "classes" and inner != first and inner >= last
        return len(self._layers) - (2 if has_scores else 1)

    def _read_classes(self, data: Any) -> _Classes:
        """The classes of the training rows, and a code of them for each latch there is room for."""
        width = self._layers[-1].rows[0].fan_out
        labels = wanted(data, self._study.features.shape[0], width)
        if labels.kind != "classes":
            raise GraphError(
                f"data.y: expected one class per row to hold, got {labels.kind}. Leave hold out."
            )
        room = self._pairs - 1 - self._linear
        if 2**room < width:
            raise OptionError(
                f"latch_: expected room for {math.ceil(math.log2(width))} latches, which "
                f"{width} classes take, got {room}. Widen the hidden layers or lower linear."
            )
        source = generator_for(self._seed, "codes")
        return _Classes(labels, balanced_codes(width, room, source))

    @property
    def _channels(self) -> int:
        return self._linear + self._held

    def _refuse_misfits(self, plan: Plan) -> None:
        hidden = self._layers[: self._end]
        widths = {row.fan_out for layer in hidden for row in layer.rows}
        if self._end < 2 or len(widths) > 1:
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

    def _surviving(self, count: int) -> Tensor:
        """The strongest directions of the features after the first layers."""
        study = self._study
        num_nodes = study.features.shape[0]
        found = surviving_directions(
            study.trace.calls[:HOPS],
            [[[voting(stage, num_nodes)] for stage in chain] for chain in study.stages[:HOPS]],
            study.features,
            min(count, *study.features.shape),
            generator_for(self._seed, "latches").initial_seed(),
        ).vectors
        return torch.from_numpy(np.ascontiguousarray(found))

    def _nearby(self) -> tuple[Tensor, Tensor]:
        """Directions that survive the first layers, for linear channels and for latches.

        Returns:
            Both; latches do without the strongest where all nodes share it, having nothing to hold.
        """
        held = self._pairs - 1 - self._linear
        directions = self._surviving(max(held + 1, self._linear))
        column = np.ascontiguousarray(directions[:1].T)
        strongest = np.asarray(self._study.features.times(column))
        is_shared = float(strongest.mean()) ** 2 > float(strongest.var())
        return directions[: self._linear], directions[int(is_shared) :][:held]

    def _everywhere(self) -> tuple[Tensor, Tensor]:
        """A direction for every channel, zeros where there are fewer: classes are told by all."""
        assert self._classes is not None
        held, channels = len(self._classes.codes), self._pairs - 1
        found = self._surviving(channels)
        directions = found.new_zeros(channels, found.size(1))
        directions[: len(found)] = found
        return directions[: channels - held], directions[channels - held :]

    def write(self, inputs: Inputs, forward: Forward | None) -> Latches:
        """Write all weights and biases, measuring after the first layer and where latches begin."""
        prepared = inputs.prepared_for(self._study.model).data
        results: list[Any] = []

        def seen(layers: Sequence[ChainLayer]) -> list[tuple[Tensor, Tensor]]:
            return seen_by(
                self._study.model, layers, lambda m: results.append(run(m, prepared, forward))
            )

        self._write(0, latched=False)
        channels = seen(self._layers[:1])[0][1][:, : self._channels].double()
        self._unit = 1 / max(float(channels.square().mean().sqrt()), 1e-30)
        for at in range(self._first + 1):
            self._write(at, latched=False)
        start = self._layers[self._first]
        channels = seen([start])[0][1][:, : self._channels].double()
        turn, middle = self._what_to_hold(channels)
        spread = (channels @ turn.T - middle).abs().mean(0)
        scale = torch.where(spread > 1e-12 * spread.max(), 1 / spread, torch.zeros_like(spread))
        turn, middle, scale = (value.cpu() for value in (turn, middle, scale))
        self._write(self._first, latched=True, turn=turn, scale=scale, middle=middle)
        for at in range(self._first + 1, len(self._layers)):
            self._write(at, latched=True)
        passes = seen(self._layers)
        self._refuse_detours(passes)
        if getattr(results[-1], "shape", None) != passes[-1][1].shape:
            raise LayerError(
                f"{self._layers[-1].module}: expected the last layer's output to be the model's, "
                f"got a head behind it. Use virgo.init_(model, data)."
            )
        held_in = self._end - self._first
        sizes = (start.module, held_in, self._held, self._linear, self._gain)
        if self._classes is None:
            return Latches(*sizes)
        rows = self._classes.labels.rows.to(channels.device)
        decided, last = (
            self._held_signs(passes[at][0][rows], at) for at in (self._first + 1, self._end)
        )
        kept = float((decided == last).double().mean())
        return Latches(*sizes, self._classes.codes.size(1), kept)

    def _held_signs(self, hidden: Tensor, at: int) -> Tensor:
        """What latches hold in the units that layer ``at`` reads."""
        return (hidden @ self._read(at).to(hidden).T)[:, self._linear :] > 0

    def _what_to_hold(self, channels: Tensor) -> tuple[Tensor, Tensor]:
        """What each latch is to hold, as a sum of the channels, and the middle to hold it against.

        Args:
            channels: of all nodes where latches begin, all of them linear still.

        Returns:
            ``turn`` of shape ``[held, channels]`` and ``middle`` of shape ``[held]``.
        """
        if self._classes is None:
            every = torch.eye(self._channels, dtype=channels.dtype, device=channels.device)
            return every[self._linear :], channels[:, self._linear :].median(0).values
        labels, codes = self._classes.labels, self._classes.codes.to(channels.device)
        targets = labels.targets(codes.size(1)).to(channels.device)
        weight, bias, _ = ridge(channels[labels.rows.to(channels.device)], targets)
        return codes @ weight.T, -codes @ bias

    def _refuse_detours(self, passes: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Each layer has to read the ReLU of the one before, to which its bias was added."""
        for at, layer in enumerate(self._layers[:-1]):
            output, following = passes[at][1], passes[at + 1][0]
            if not torch.allclose(following, output.relu(), atol=1e-4, rtol=1e-4):
                raise LayerError(
                    f"{layer.module}: expected the next layer to read its ReLU, got something in "
                    f"between, such as a norm. Use virgo.init_(model, data)."
                )
            is_held = self._first <= at < self._end
            if is_held and not _is_one(output[:, self._pairs - 1]):
                raise LayerError(
                    f"{layer.module}: expected its bias to be added to its output as it is, got a "
                    f"layer that changes it. Use virgo.init_(model, data)."
                )

    def _write(
        self,
        at: int,
        *,
        latched: bool,
        turn: Tensor | None = None,
        scale: Tensor | float = 1.0,
        middle: Tensor | float = 0.0,
    ) -> None:
        """Write one layer, whose latches see ``scale * (turn @ z - middle)``."""
        layer, is_read = self._layers[at], at >= self._end
        factor = torch.ones(self._channels, 1, dtype=torch.float64)
        factor[self._linear :, 0] = (self._gain_at(at) if latched else 1.0) * scale
        for row, votes in zip(layer.rows, layer.votes, strict=True):
            source = generator_for(self._seed, layer.rows[0].weight)  # alike for all terms
            if is_read:
                weight = self._reading(at, row, votes, source)
            else:
                # Virgo's scale is for terms whose weights are independent, and these are alike
                mirrored = row.std * math.sqrt(self._pairs) if len(layer.rows) == 1 else votes
                mixed = self._mixing(mirrored, votes, source) @ self._read(at) if at else None
                signal = votes * self._looking(source) if mixed is None else mixed
                if turn is not None:
                    signal = torch.cat([signal[: self._linear], turn @ signal])
                weight = self._in_pairs(factor * signal, source, latched)
            parameter = self._study.parameters[row.weight]
            weight = (weight.T if row.in_first else weight).to(parameter.dtype)
            fill(parameter, weight.reshape(parameter.shape))
        if layer.bias is not None:
            bias = self._study.parameters[layer.bias]
            value = torch.zeros(bias.shape, dtype=torch.float64)
            if latched and not is_read:
                held, shift = (
                    slice(self._linear, self._channels),
                    factor[self._linear :, 0] * middle,
                )
                value[held] = 1 - shift
                value[self._pairs :][held] = -1 - shift
                value[self._pairs - 1] = 1
            fill(bias, value.to(bias.dtype))

    def _gain_at(self, at: int) -> float:
        is_last_hidden = self._first < at == self._end - 1
        return LAST_GAIN if is_last_hidden else self._gain

    def _looking(self, source: torch.Generator) -> Tensor:
        """The first layer's channels: directions of the features, each kind rotated at random."""
        parts = []
        for directions in self._directions:
            unit = directions / directions.norm(dim=1, keepdim=True).clamp(min=1e-30)
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

    def _mixing(self, scale: float, votes: float, source: torch.Generator) -> Tensor:
        """Linear channels are rotated and scaled, as mirrored ones are; a latch keeps to itself."""
        rotation = _orthogonal(self._linear, self._linear, source)
        held = torch.eye(self._held, dtype=torch.float64) * votes
        mixed: Tensor = torch.block_diag(rotation * scale, held)
        return mixed

    def _reading(self, at: int, row: Row, votes: float, source: torch.Generator) -> Tensor:
        """The last layer; where it is an MLP, classes from their codes and then as they are."""
        if at > self._end:
            return torch.eye(row.fan_out, row.fan_in, dtype=torch.float64)
        if at == len(self._layers) - 1:
            weight = _orthogonal(row.fan_out, self._channels, source)
            weight[:, : self._linear] *= row.std * math.sqrt(max(row.fan_out, self._pairs))
            weight[:, self._linear :] *= votes
        else:
            assert self._classes is not None
            codes = self._classes.codes
            weight = torch.zeros(row.fan_out, self._channels, dtype=torch.float64)
            weight[: codes.size(1), self._linear :] = votes * codes.T / len(codes)
        return weight @ self._read(at)

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


def _is_one(values: Tensor) -> bool:
    return torch.allclose(values, values.new_ones(()), atol=1e-2)


def _orthogonal(rows: int, columns: int, source: torch.Generator) -> Tensor:
    """A random matrix with orthonormal rows or columns, whichever are fewer."""
    if not rows or not columns:
        return torch.zeros(rows, columns, dtype=torch.float64)
    drawn = standard((rows, columns), "orthogonal", source, dtype=torch.float64)
    return drawn / math.sqrt(max(rows, columns))

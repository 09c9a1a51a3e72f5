r"""``Monitor``: the variance of every layer while a model trains, from its own training steps.

The same definitions as :mod:`virgo.diagnostics.measurement` (:math:`h^l` is what layer :math:`l+1`
receives, the last one what the last layer returns), with two differences that come from looking at
a real training step: dropout is on, and :math:`h^0` has a gradient only if the features do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from virgo.diagnostics.integrations import Writer, check_writer, write_scalars
from virgo.errors import LayerError, OptionError
from virgo.network.modules import (
    arguments_of,
    float_tensors,
    is_uninitialised,
    layers_of,
    received,
    unwrap,
)
from virgo.network.probe import LayerHooks, gradient_norm, variance
from virgo.report.text import plain_numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = 1


@dataclass(frozen=True)
class StepRecord:
    """One recorded step, input first: L+1 entries for L calls of layers.

    NaN marks values that do not exist (a gradient that was not computed, one neuron), infinity
    values that overflowed. ``gradient_norms`` are of the layers' parameters, as the last
    ``backward()`` of the step left them: accumulated, before any clipping, still scaled under a
    ``GradScaler``.
    """

    step: int
    names: tuple[str, ...]  # where each was taken: input, into <layer>, ..., output
    forward: list[float]
    backward: list[float]
    gradient_norms: dict[str, float]
    nodes: int  # rows that the first layer received

    def scalars(self) -> dict[str, float]:
        """The record as a logger takes it: tag -> number, without those that do not exist."""
        digits = len(str(len(self.names) - 1))
        tags = [f"{i:0{digits}d}_{name.replace(' ', '_')}" for i, name in enumerate(self.names)]
        scalars: dict[str, float] = {}
        for kind, values in (("forward", self.forward), ("backward", self.backward)):
            scalars |= {f"virgo/{kind}/{tag}": v for tag, v in zip(tags, values, strict=True)}
        scalars |= {f"virgo/gradient_norm/{n}": v for n, v in self.gradient_norms.items()}
        return {tag: value for tag, value in scalars.items() if not math.isnan(value)}


class Monitor:
    """Record forward and backward variance of every layer, every so many training steps.

    Reads the step's own forward and backward pass: nothing is run again and nothing of the
    training changes, to the last bit. Hooks exist only during a recorded step, and are gone after
    the ``with`` block, also when it raises.

    - Call ``step()`` once per optimiser step. Steps 0, ``every``, 2 ``every``, ... are recorded.
    - Passes in eval mode or without gradients are ignored. A step without a training pass is
      counted and not recorded; the next one that has a pass is recorded in its place.
    - With gradient accumulation the variances are of the step's first forward and backward pass
      and the gradient norms of what has been accumulated.
    - Every call of a layer before ``backward()`` is its own row, also when a module is reused.

    Models that ``torch.compile`` compiled run no hooks and are refused.

    Args:
        model: the model that is trained, as it is or in a ``DataParallel`` wrapper.
        every: steps from one record to the next.
        writer: a ``torch.utils.tensorboard.SummaryWriter`` (or whatever has its ``add_scalar``)
            that gets every record as it is made.

    >>> import torch, virgo
    >>> from torch.nn.functional import cross_entropy
    >>> from torch_geometric.nn import GCN
    >>> data = virgo.data.citation_like(num_nodes=200, seed=0)
    >>> model = GCN(data.num_features, 16, num_layers=3, out_channels=7)
    >>> optimiser = torch.optim.Adam(model.parameters())
    >>> with Monitor(model, every=2) as monitor:
    ...     for _ in range(5):
    ...         optimiser.zero_grad()
    ...         cross_entropy(model(data.x, data.edge_index), data.y).backward()
    ...         optimiser.step()
    ...         monitor.step()
    >>> [record.step for record in monitor.records], len(monitor.records[0].forward)
    ([0, 2, 4], 4)
    """

    def __init__(self, model: nn.Module, every: int = 20, *, writer: Writer | None = None) -> None:
        if every < 1:
            raise OptionError(f"every: expected at least 1, got {every}.")
        self.every = every
        self.records: list[StepRecord] = []
        self.steps = 0  # that have ended
        self.running = False
        self._writer = check_writer(writer) if writer is not None else None
        self._model = _watchable(model)
        layers_of(self._model)  # says so now if there is nothing to watch
        self._recorder: StepRecorder | None = None

    def __enter__(self) -> Monitor:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        name = type(self._model).__name__
        return f"Monitor({name}, every={self.every}, records={len(self.records)})"

    def start(self, step: int | None = None) -> None:
        """What ``with`` does on entry; ``step`` is the number of the first step, on resuming."""
        self.stop()
        if step is not None:
            self.steps = step
        self.running = True
        self._arm()

    def stop(self) -> None:
        """Remove every hook. A step that has not ended is not recorded."""
        self.running = False
        self._disarm()

    def step(self) -> None:
        """End a training step: call it after ``loss.backward()``, once per optimiser step."""
        if not self.running:
            raise OptionError(
                "monitor.step: expected a running monitor, got one that is not. "
                "Call it inside `with virgo.Monitor(model) as monitor:`."
            )
        record = self._recorder.record(self.steps) if self._recorder is not None else None
        if record is not None:
            self._disarm()
            self.records.append(record)
            if self._writer is not None:
                write_scalars(record, self._writer)
        self.steps += 1
        self._arm()

    def to_json(self, indent: int | None = None) -> str:
        """All records as JSON (infinite values as strings, undefined ones as null)."""
        from virgo import __version__

        head = {"format": FORMAT, "virgo": __version__, "model": type(self._model).__name__}
        records = [asdict(record) for record in self.records]
        return json.dumps(
            plain_numbers({**head, "every": self.every, "records": records}), indent=indent
        )

    def to_tensorboard(self, writer: Writer) -> None:
        """Write all records so far; ``Monitor(writer=)`` writes each as it is made instead."""
        check_writer(writer)
        for record in self.records:
            write_scalars(record, writer)

    def plot(self) -> Figure:
        """Variance over layers, forward and backward: one line per record, coloured by step."""
        try:
            import matplotlib.figure  # noqa: F401
        except ImportError as error:
            raise ImportError(
                "monitor.plot: expected matplotlib, got none. pip install 'virgo-gnn[plot]'."
            ) from error
        if not self.records:
            raise OptionError(
                f"monitor.plot: expected at least one record, got none in {self.steps} steps. "
                f"Train in the `with` block, in train mode, uncompiled, and call monitor.step()."
            )
        from virgo.report.plots import variance_over_steps

        return variance_over_steps({record.step: asdict(record) for record in self.records})

    def _arm(self) -> None:
        """Place the hooks if the step that begins is to be recorded, or an earlier one is due."""
        if self._recorder is None and self.steps % self.every == 0:
            self._recorder = StepRecorder(self._model)

    def _disarm(self) -> None:
        if self._recorder is not None:
            self._recorder.remove()
            self._recorder = None


def _watchable(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None):
            raise LayerError(
                f"{type(unwrap(model)).__name__}: expected a model that is not compiled, got "
                f"torch.compile's, which runs no hooks. Monitor a run without torch.compile, or "
                f"call virgo.measure(model, data) between epochs."
            )
    bare = unwrap(model)
    if is_uninitialised(bare):
        raise LayerError(
            f"{type(bare).__name__}: expected initialised parameters, got lazy ones. "
            f"Run it once on a batch, or virgo.init_(model, data), before monitoring."
        )
    return bare


@dataclass
class _Signal:
    """``h^l`` on its way: its variance, and that of its gradient once it arrives."""

    name: str
    forward: float
    backward: float = math.nan
    handles: list[RemovableHandle] = field(default_factory=list)


class StepRecorder:
    """Records the next training pass of ``model`` through hooks; it never runs anything itself."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.paths = {id(layer): path for path, layer in layers_of(model).items()}
        self.signals: list[_Signal] = []
        self.output: _Signal | None = None
        self.norms: dict[str, Tensor] = {}
        self.nodes = 0
        self.running: nn.Module | None = None
        self.backward_began = False
        self.hooks = LayerHooks(model, self._enter, self._leave)
        inside = {id(p) for layer in layers_of(model).values() for p in layer.parameters()}
        for name, parameter in model.named_parameters():
            if id(parameter) in inside and parameter.requires_grad:
                self.norms[name] = torch.tensor(math.nan)
                hook = _norm_into(self.norms, name)
                self.hooks.handles.append(parameter.register_post_accumulate_grad_hook(hook))

    def remove(self) -> None:
        """Take every hook away, those on tensors included."""
        self.hooks.remove()

    def record(self, step: int) -> StepRecord | None:
        """What was recorded, or None if no layer ran in a training pass."""
        if self.output is None:
            return None
        signals = [*self.signals, self.output]
        return StepRecord(
            step=step,
            names=tuple(signal.name for signal in signals),
            forward=[signal.forward for signal in signals],
            backward=[signal.backward for signal in signals],
            gradient_norms={name: float(norm) for name, norm in self.norms.items()},
            nodes=self.nodes,
        )

    def _enter(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.backward_began or not self._is_training(layer):
            return
        tensors = received(arguments_of(layer, args, kwargs))
        path = self.paths[id(layer)] or type(layer).__name__
        if not self.signals:
            self.nodes = sum(map(_rows, tensors))
        self.signals.append(self._watch(f"into {path}" if self.signals else "input", tensors))
        self.running = layer

    def _leave(self, layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self.running is not layer:
            return
        self.running = None
        if self.output is not None:  # it was not the last layer's
            for handle in self.output.handles:
                handle.remove()
        self.output = self._watch("output", float_tensors(output))

    def _is_training(self, layer: nn.Module) -> bool:
        """Whether this call is part of a training pass of the model, and not of a copy of it."""
        return (
            self.model.training
            and torch.is_grad_enabled()
            and id(layer) in self.paths
            and not torch.compiler.is_compiling()
            and not _is_recomputing()
        )

    def _watch(self, name: str, tensors: list[Tensor]) -> _Signal:
        signal = _Signal(name, variance(tensors))
        watched = [tensor for tensor in tensors if tensor.requires_grad]
        rows, arrived = sum(map(_rows, watched)), set[int]()

        def arrive(index: int, gradient: Tensor) -> None:
            self.backward_began = True
            if (
                index not in arrived
            ):  # of several backward passes through one forward pass, the first
                arrived.add(index)
                share = variance([gradient]) * _rows(gradient) / rows
                signal.backward = share + (0.0 if math.isnan(signal.backward) else signal.backward)

        signal.handles = self.hooks.on_gradients(watched, arrive)
        return signal


def _is_recomputing() -> bool:
    """Whether a backward pass runs: activation checkpointing calls layers again during it."""
    current = getattr(torch._C, "_current_graph_task_id", None)
    return current is not None and current() != -1


def _norm_into(norms: dict[str, Tensor], name: str) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        if parameter.grad is not None:
            norms[name] = gradient_norm(parameter.grad)

    return hook


def _rows(tensor: Tensor) -> int:
    return tensor.numel() // tensor.size(-1) if tensor.dim() and tensor.size(-1) else 0

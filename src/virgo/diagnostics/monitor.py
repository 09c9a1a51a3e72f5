r"""``Monitor``: the variance of every layer while a model trains, from its own training steps.

The same definitions as :mod:`virgo.diagnostics.measurement` (:math:`h^l` is what layer :math:`l+1`
receives, the last one what the last layer returns), with two differences that come from looking at
a real training step: dropout is on, and :math:`h^0` has a gradient only if the features do.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from torch import nn

from virgo.diagnostics.integrations import Writer, check_writer, write_scalars
from virgo.diagnostics.step_recorder import StepRecord, StepRecorder
from virgo.errors import LayerError, OptionError, named_options, needed
from virgo.network.modules import is_uninitialised, layers_of, unwrap
from virgo.report.text import plain_numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = 1


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
        writer: gets every record as it is made: a ``torch.utils.tensorboard.SummaryWriter`` (or
            whatever has its ``add_scalar``), a run of Weights & Biases (``wandb.init(...)``), or
            the module ``mlflow``, for its active run.

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

    @named_options
    def __init__(self, model: nn.Module, every: int = 20, *, writer: Writer | None = None) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise OptionError(
                f"every: expected at least 1, a whole number of steps, got {every!r}. Try 20."
            )
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
        """What ``with`` does on entry.

        Args:
            step: the number of the first step, on resuming.
        """
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
        """All records as JSON (infinite values as strings, undefined ones as null).

        Args:
            indent: spaces per level; ``None`` for one line.

        Returns:
            The text.
        """
        from virgo import __version__

        head = {"format": FORMAT, "virgo": __version__, "model": type(self._model).__name__}
        records = [asdict(record) for record in self.records]
        return json.dumps(
            plain_numbers({**head, "every": self.every, "records": records}), indent=indent
        )

    def write_to(self, writer: Writer) -> None:
        """Write all records so far; ``Monitor(writer=)`` writes each as it is made instead.

        Args:
            writer: a ``SummaryWriter``, a run of Weights & Biases, or the module ``mlflow``.
        """
        check_writer(writer)
        for record in self.records:
            write_scalars(record, writer)

    def to_tensorboard(self, writer: Writer) -> None:
        """The same as :meth:`write_to`.

        Args:
            writer: as there.
        """
        self.write_to(writer)

    def plot(self) -> Figure:
        """Variance over layers, forward and backward: one line per record, coloured by step."""
        needed("matplotlib.figure", "monitor.plot", "plot")
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

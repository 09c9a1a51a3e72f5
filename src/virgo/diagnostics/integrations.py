"""Where a :class:`virgo.Monitor` reports to: TensorBoard, Weights & Biases, MLflow, Lightning.

What a writer is, is told by its methods. No package is imported before it is used, so
``import virgo`` needs none of them.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from torch import nn

from virgo.errors import MissingExtra, OptionError

if TYPE_CHECKING:
    from virgo.diagnostics.monitor import Monitor
    from virgo.diagnostics.step_recorder import StepRecord


class ScalarWriter(Protocol):
    """``torch.utils.tensorboard.SummaryWriter``, or what has the same ``add_scalar``."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, /) -> object: ...


class MetricsWriter(Protocol):
    """The module ``mlflow``, which writes to its active run, or a logger of Lightning."""

    def log_metrics(self, metrics: dict[str, float], /, *, step: int) -> object: ...


class RunWriter(Protocol):
    """A run of Weights & Biases: what ``wandb.init(...)`` returns."""

    def define_metric(self, name: str, /, *, step_metric: str) -> object: ...

    def log(self, data: dict[str, float], /) -> object: ...


Writer = ScalarWriter | MetricsWriter | RunWriter
#: The horizontal axis of the charts of Weights & Biases. Its own step is left to the user's calls
#: of ``run.log``: a step that is lower than the last one would be dropped.
STEP = "virgo/step"


class Trainer(Protocol):
    """What is asked of Lightning's ``Trainer``."""

    global_step: int
    loggers: Sequence[Any]


def check_writer(writer: Writer) -> Writer:
    """The writer itself; raises if it is none."""
    if _has(writer, "add_scalar") or _has(writer, "log_metrics"):
        return writer
    if _has(writer, "define_metric") and _has(writer, "log"):
        return writer
    raise OptionError(
        f"writer: expected a SummaryWriter, a run of wandb or the module mlflow, got "
        f"{type(writer).__name__}. Pass torch.utils.tensorboard.SummaryWriter(folder), "
        f"wandb.init(...) or mlflow."
    )


def _has(writer: object, method: str) -> bool:
    return callable(getattr(writer, method, None))


def write_scalars(record: StepRecord, writer: Writer) -> None:
    """``virgo/forward/<layer>``, ``virgo/backward/<layer>``, ``virgo/gradient_norm/<weight>``."""
    scalars = record.scalars()
    if _has(writer, "add_scalar"):
        for tag, value in scalars.items():
            cast(ScalarWriter, writer).add_scalar(tag, value, record.step)
    elif _has(writer, "log_metrics"):
        cast(MetricsWriter, writer).log_metrics(scalars, step=record.step)
    else:
        run = cast(RunWriter, writer)
        run.define_metric("virgo/*", step_metric=STEP)
        run.log({**scalars, STEP: record.step})


class LightningMonitor:
    """A Lightning callback that runs a :class:`virgo.Monitor` over the whole of ``fit()``.

    Steps are the trainer's optimiser steps, so gradient accumulation needs no care. The records
    are in ``callback.monitor`` during and after training (a new monitor each ``fit()``), and go to
    the trainer's loggers as they are made unless ``log=False``.

    Works with ``lightning`` and with ``pytorch_lightning``: an instance is a ``Callback`` of the
    one that has been imported, of ``lightning`` if both have or neither. ::

        callback = virgo.LightningMonitor(every=20)
        lightning.pytorch.Trainer(callbacks=[callback]).fit(module, loader)
        callback.monitor.plot().savefig("variance.pdf")

    Args:
        every: a record every so many optimiser steps.
        log: whether records go to the trainer's loggers.
    """

    monitor: Monitor | None = None

    def __new__(cls, *args: object, **kwargs: object) -> LightningMonitor:
        base = _callback()
        bound = cls if issubclass(cls, base) else type(cls.__name__, (cls, base), {})
        return object.__new__(bound)

    def __init__(self, every: int = 20, *, log: bool = True) -> None:
        if every < 1:
            raise OptionError(f"every: expected at least 1, got {every}.")
        self.every, self.log = every, log

    def __reduce__(self) -> tuple[object, ...]:
        # its class was made at run time, so it is pickled as the call that makes it again
        return functools.partial(type(self).__mro__[1], self.every, log=self.log), ()

    def on_train_start(self, trainer: Trainer, pl_module: nn.Module) -> None:
        from virgo.diagnostics.monitor import Monitor

        self.monitor = Monitor(pl_module, self.every)
        self.monitor.start(trainer.global_step)
        self._at = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: object, outputs: object, batch: object, batch_idx: int
    ) -> None:
        if self.monitor is None or trainer.global_step == self._at:
            return  # gradients still accumulate
        self._at = trainer.global_step
        before = len(self.monitor.records)
        self.monitor.step()
        for record in self.monitor.records[before:] if self.log else ():
            for logger in trainer.loggers:
                logger.log_metrics(record.scalars(), step=record.step)

    def on_train_end(self, trainer: object, pl_module: object) -> None:
        self._stop()

    def on_exception(self, trainer: object, pl_module: object, exception: BaseException) -> None:
        self._stop()

    def teardown(self, trainer: object, pl_module: object, stage: str) -> None:
        self._stop()

    def _stop(self) -> None:
        if self.monitor is not None:
            self.monitor.stop()


def _callback() -> type:
    """The ``Callback`` of the Lightning that is in use; there are two, under two names."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise
            continue
        callback: type = module.Callback
        return callback
    raise MissingExtra("LightningMonitor", "lightning", "lightning")

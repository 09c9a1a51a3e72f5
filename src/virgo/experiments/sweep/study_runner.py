"""One seed of a study of a user's own: their data, model, initialisation and training."""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Dataset
from torch_geometric.data.data import BaseData

from virgo.errors import OptionError
from virgo.experiments.data import load
from virgo.experiments.sweep.grids import GridCell
from virgo.experiments.sweep.records import Config
from virgo.experiments.sweep.study_inputs import Method, is_known
from virgo.experiments.tasks.calling import call, imported
from virgo.experiments.tasks.outcome import Outcome, Seeds
from virgo.experiments.tasks.own import OwnData, OwnTask
from virgo.experiments.tasks.settings import Settings
from virgo.experiments.tasks.training import Training


@dataclass(frozen=True)
class OwnLoader:
    """Loads a study's data by name, and keeps the last in this process."""

    sources: Mapping[str, Any]
    _last: dict[str, OwnData] = field(default_factory=dict, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"sources": self.sources, "_last": {}}  # a worker loads its own

    def __call__(self, name: str, root: str | None = None) -> OwnData:
        """The data of one name, made by its function if it is one."""
        if name in self._last:
            return self._last[name]
        source = self.sources[name]
        if isinstance(source, str):
            source = load(source, root) if is_known(source) else imported(source, f"data {name}")
        if callable(source) and not hasattr(source, "edge_index"):
            source = call(f"data {name}", source, {}, {"root": root}, first="root")
        self._last.clear()
        self._last[name] = OwnData.of(name, source)
        return self._last[name]


@dataclass(frozen=True)
class OwnRunner:
    """Runs one seed of a study.

    Attributes:
        models: what makes each model.
        inits: the initialisations.
        train: what trains and tests, where the user does.
        sources: a hash of what each dataset comes from, see :func:`source_of`.
    """

    models: Mapping[str, Callable[..., Any]]
    inits: Mapping[str, Method]
    train: Callable[..., Any] | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    def facts(self, cell: GridCell) -> dict[str, object]:
        """What a record of a cell keeps of the user's code and data: a hash."""
        functions = [self.models[cell.model], self.inits[cell.init], self.train]
        return {"code": _digest([*functions, self.sources.get(cell.dataset, "")])}

    def task(self, dataset: OwnData, model: str, init: str, config: Config) -> OwnTask:
        """The task of one configuration."""
        return OwnTask(
            dataset, self.models[model], self.inits[init], config, f"model {model}", not self.train
        )

    def __call__(
        self, dataset: OwnData, model: str, init: str, config: Config, seed: int
    ) -> Outcome:
        """Train and test once."""
        task = self.task(dataset, model, init, config)
        settings = self.settings(config)
        if self.train is None:
            return Training(task, model, init, settings, seed).complete()
        began = time.perf_counter()
        network = task.start(model, init, settings, Seeds.of(seed))
        offered = {"model": network, "data": dataset.data, "config": dict(config), "seed": seed}
        result = call("train", self.train, {}, offered, first="model")
        return _outcome(result, time.perf_counter() - began)

    def settings(self, config: Config) -> Settings:
        """The keys of a configuration that training takes."""
        if self.train is not None:
            return Settings()
        known = {k: v for k, v in config.items() if k in Settings.__dataclass_fields__}
        return Settings.of({k: v for k, v in known.items() if k != "num_neighbors"})


def _outcome(result: Any, seconds: float) -> Outcome:
    if isinstance(result, Outcome):
        return result
    if not isinstance(result, Mapping) or not {"valid", "test"} <= set(result):
        raise OptionError(
            f"train: expected {{'valid': ..., 'test': ...}} from it, got {result!r:.80}. "
            f"Return both, higher being better; add 'epoch' if there is one."
        )
    valid, test = float(result["valid"]), float(result["test"])
    epoch = int(result.get("epoch", 0))
    status = str(result.get("status", "ok"))
    if status == "ok" and not (math.isfinite(valid) and math.isfinite(test)):
        return Outcome.failed("diverged", int(result.get("epochs", epoch)), seconds)
    curve = tuple((int(e), float(v)) for e, v in result.get("curve", ()))
    return Outcome(
        valid,
        test,
        epoch,
        int(result.get("epochs", epoch)),
        seconds,
        status,
        curve,
    )


def rehearse(
    cells: Sequence[GridCell], loader: OwnLoader, runner: OwnRunner, root: str | None
) -> None:
    """Build one model of every kind, so that a mistake shows before hours of work."""
    for dataset in dict.fromkeys(cell.dataset for cell in cells):
        own = loader(dataset, root)
        if runner.train is None:
            own.check()
        for cell in cells:
            if cell.dataset == dataset and cell.init == cells[0].init:
                config = cell.configurations[0]
                task = runner.task(own, cell.model, cell.init, config)
                settings = runner.settings(config)
                model = task.build(0)
                if runner.train is None:
                    task.batches(model, settings, Seeds.of(0)).evaluate(model, "valid")


def source_of(name: str, data: Any) -> str:
    """What tells a study that its data changed: a name, a function's source, or the numbers.

    Args:
        name: of the data, for errors.
        data: as the study was given it.

    Returns:
        Text.
    """
    if isinstance(data, str):
        return data if is_known(data) else _source(imported(data, f"data {name}"))
    if callable(data) and not hasattr(data, "edge_index"):
        return _source(data)
    digest = hashlib.sha256()
    for tensor in _tensors(data):
        digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
        flat = tensor.detach().cpu()
        flat = flat if flat.layout == torch.strided else flat.to_sparse_coo().coalesce().values()
        digest.update(flat.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
        return
    if isinstance(value, BaseData):
        value = value.to_dict()
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple, Dataset)):  # a loader would draw random numbers
        for part in value:
            yield from _tensors(part)


def _source(function: object) -> str:
    """A function's source and what it was partly applied to, as far as they are to be had."""
    given = ""
    while isinstance(function, functools.partial):
        given += f"{function.args!r}{sorted(function.keywords.items())!r}"
        function = function.func
    try:
        text = inspect.getsource(function)  # type: ignore[arg-type]
    except (OSError, TypeError):
        text = function if isinstance(function, str) else ""
    return text + re.sub(r" at 0x\w+", "", given)  # an address is another in each process


def _digest(functions: Sequence[object]) -> str:
    """A short hash of functions, or of text that stands for some."""
    texts = "\0".join(map(_source, functions))
    return hashlib.sha256(texts.encode()).hexdigest()[:12]

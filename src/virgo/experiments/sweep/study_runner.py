"""One seed of a study of a user's own: their data, model, initialisation and training."""

from __future__ import annotations

import functools
import hashlib
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    """Runs one seed of a study."""

    models: Mapping[str, Callable[..., Any]]
    inits: Mapping[str, Method]
    train: Callable[..., Any] | None = None

    def facts(self, cell: GridCell) -> dict[str, object]:
        """What a record of a cell keeps of the user's code: a hash."""
        return {"code": _digest([self.models[cell.model], self.inits[cell.init], self.train])}

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
    epoch = int(result.get("epoch", 0))
    curve = tuple((int(e), float(v)) for e, v in result.get("curve", ()))
    return Outcome(
        float(result["valid"]),
        float(result["test"]),
        epoch,
        int(result.get("epochs", epoch)),
        seconds,
        str(result.get("status", "ok")),
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


def _digest(functions: Sequence[object]) -> str:
    """A short hash of the functions' sources, as far as they are to be had."""
    texts = []
    for function in functions:
        bare = function.func if isinstance(function, functools.partial) else function
        try:
            texts.append(inspect.getsource(bare))  # type: ignore[arg-type]
        except (OSError, TypeError):
            texts.append(str(function) if isinstance(function, str) else "")
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]

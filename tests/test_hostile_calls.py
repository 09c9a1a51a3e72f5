"""Every public function with every kind of bad argument: one ``VirgoError``, all as it was.

Each case replaces one argument of a good call. A bad argument may turn out to be harmless; what
must not happen is any other exception, or a model, a random state or a default that was changed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.snapshots import same, tensors, untouched, unusual
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCN, GCNConv

import virgo

FEATURES, CLASSES, NODES = 6, 3, 20
#: Seconds of processor time that a call may take, which others on the machine do not lengthen, and
#: seconds after which one that only waits is given up.
PATIENCE, DEADLOCK = 30, 300


def graph(**changes: Any) -> Data:
    generator = torch.Generator().manual_seed(0)
    ring = torch.arange(NODES)
    edges = torch.stack([ring, (ring + 1) % NODES])
    edges = torch.cat([edges, torch.randint(NODES, (2, 40), generator=generator)], 1)
    data = Data(
        x=torch.rand(NODES, FEATURES, generator=generator),
        edge_index=torch.cat([edges, edges.flip(0)], 1),
        y=torch.arange(NODES) % CLASSES,
        train_mask=torch.arange(NODES) < 12,
    )
    for key, value in changes.items():
        data[key] = value
    return data


def network() -> nn.Module:
    torch.manual_seed(0)
    return GCN(FEATURES, 8, 3, CLASSES)


def inference_network() -> nn.Module:
    with torch.inference_mode():
        return network()


def grumpy(*args: Any, **kwargs: Any) -> Any:
    raise ZeroDivisionError("a bug of the user's")


class Grumpy(nn.Module):
    """Breaks in the middle of a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GCNConv(FEATURES, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.conv(x, edge_index)
        raise ZeroDivisionError("a bug of the user's")


class Odd:
    """Answers every question with something else."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


#: What can be given in place of anything.
ANYTHING: dict[str, Any] = {
    "none": None,
    "true": True,
    "zero": 0,
    "minus one": -1,
    "huge": 10**30,
    "half": 0.5,
    "nan": float("nan"),
    "infinity": float("inf"),
    "text": "nonsense",
    "empty text": "",
    "bytes": b"\x00",
    "list": [],
    "list of none": [None],
    "dictionary": {},
    "tuple": (1, 2, 3),
    "object": object(),
    "odd object": Odd(),
    "class": GCN,
    "function": grumpy,
    "generator expression": (i for i in ()),
    "array": np.zeros(3),
    "array of objects": np.array([None, "a"], dtype=object),
    "scalar tensor": torch.tensor(1.0),
    "empty tensor": torch.empty(0),
    "nan tensor": torch.full((NODES, FEATURES), float("nan")),
    "meta tensor": torch.empty(NODES, FEATURES, device="meta"),
    "complex tensor": torch.zeros(NODES, FEATURES, dtype=torch.complex64),
    "sparse tensor": torch.eye(NODES).to_sparse(),
    "path": Path("/nowhere/at/all"),
    "device": torch.device("cpu"),
    "generator": torch.Generator(),
    "module": nn.Linear(3, 3),
    "data": Data(),
    "hetero": HeteroData(),
}
MODELS: dict[str, Callable[[], Any]] = {
    "class": lambda: GCN,
    "factory": lambda: network,
    "state": lambda: network().state_dict(),
    "meta": lambda: network().to("meta"),
    "inference": inference_network,
    "no parameters": lambda: nn.Identity(),
    "no layers": lambda: nn.Linear(FEATURES, CLASSES),
    "half": lambda: network().half(),
    "grumpy": Grumpy,
    "frozen": lambda: network().requires_grad_(False),
    "nan weights": lambda: spoiled(network()),
    "other width": lambda: GCN(FEATURES + 1, 8, 3, CLASSES),
    "scripted": lambda: nn.Sequential(),
}
DATA: dict[str, Callable[[], Any]] = {
    "zero-dimensional x": lambda: graph(x=torch.tensor(1.0)),
    "vector x": lambda: graph(x=torch.rand(NODES)),
    "meta x": lambda: graph(x=torch.empty(NODES, FEATURES, device="meta")),
    "inference x": lambda: made_in_inference(),
    "integer x": lambda: graph(x=torch.ones(NODES, FEATURES, dtype=torch.long)),
    "boolean x": lambda: graph(x=torch.ones(NODES, FEATURES, dtype=torch.bool)),
    "complex x": lambda: graph(x=torch.zeros(NODES, FEATURES, dtype=torch.complex64)),
    "x text": lambda: graph(x="features"),
    "x list": lambda: graph(x=[[1.0] * FEATURES] * NODES),
    "x array": lambda: graph(x=np.ones((NODES, FEATURES))),
    "short x": lambda: graph(x=torch.rand(3, FEATURES)),
    "boolean y": lambda: graph(y=torch.arange(NODES) % 2 == 0),
    "float y": lambda: graph(y=torch.rand(NODES)),
    "short y": lambda: graph(y=torch.zeros(3, dtype=torch.long)),
    "huge y": lambda: graph(y=torch.full((NODES,), 10**12)),
    "negative y": lambda: graph(y=torch.full((NODES,), -7)),
    "y text": lambda: graph(y="labels"),
    "meta y": lambda: graph(y=torch.empty(NODES, dtype=torch.long, device="meta")),
    "short mask": lambda: graph(train_mask=torch.ones(3, dtype=torch.bool)),
    "empty mask": lambda: graph(train_mask=torch.zeros(NODES, dtype=torch.bool)),
    "float mask": lambda: graph(train_mask=torch.rand(NODES)),
    "mask text": lambda: graph(train_mask="train"),
    "mask of two splits": lambda: graph(train_mask=torch.ones(NODES, 2, dtype=torch.bool)),
    "meta edges": lambda: graph(edge_index=torch.empty(2, 9, dtype=torch.long, device="meta")),
    "float edges": lambda: graph(edge_index=torch.rand(2, 9)),
    "boolean edges": lambda: graph(edge_index=torch.ones(2, 9, dtype=torch.bool)),
    "three rows": lambda: graph(edge_index=torch.zeros(3, 9, dtype=torch.long)),
    "edges out of range": lambda: graph(edge_index=torch.full((2, 9), 99)),
    "negative edges": lambda: graph(edge_index=torch.full((2, 9), -1)),
    "huge edges": lambda: graph(edge_index=torch.full((2, 9), 2**62)),
    "edge list": lambda: graph(edge_index=[[0, 1], [1, 0]]),
    "text weights": lambda: graph(edge_weight="heavy"),
    "short weights": lambda: graph(edge_weight=torch.rand(2)),
    "nan weights": lambda: graph(edge_weight=torch.full((120,), float("nan"))),
    "num_nodes text": lambda: graph(num_nodes="many"),
    "num_nodes small": lambda: graph(num_nodes=2),
    "mixed list": lambda: [graph(), None],
    "tuple of none": lambda: (None, None),
    "a model": network,
}
LOSSES: dict[str, Any] = {
    "no scalar": lambda output, data: output,
    "none": lambda output, data: None,
    "number": lambda output, data: 1.0,
    "text": lambda output, data: "loss",
    "detached": lambda output, data: output.detach().sum(),
    "constant": lambda output, data: torch.tensor(1.0, requires_grad=True),
    "integer": lambda output, data: output.argmax(),
    "nan": lambda output, data: output.sum() * float("nan"),
    "complex": lambda output, data: output.sum() * 1j,
    "raises": grumpy,
    "no arguments": lambda: None,
    "backward": lambda output, data: output.sum().backward(),
}
FORWARDS: dict[str, Any] = {
    "none": lambda model, data: None,
    "text": lambda model, data: "output",
    "tuple": lambda model, data: (model(data.x, data.edge_index), None),
    "raises": grumpy,
    "no arguments": lambda: None,
    "nothing runs": lambda model, data: torch.zeros(NODES, CLASSES),
    "no gradient": lambda model, data: model(data.x, data.edge_index).detach(),
    "inference": lambda model, data: torch.inference_mode()(model)(data.x, data.edge_index),
}


def spoiled(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    return model


def made_in_inference() -> Data:
    with torch.inference_mode():
        return graph()


def _monitored(model: Any, data: Any, every: Any = 1, writer: Any = None) -> None:
    with virgo.Monitor(model, every, writer=writer) as monitor:
        model(data.x, data.edge_index).sum().backward()
        monitor.step()
        monitor.stop()


#: Methods of other authors: they read the model and the data in ways of their own.
RELATED = (
    "orthogonal",
    "lsuv",
    "isometric",
    "spog",
    "gat-balanced",
    "g-init",
    "identity",
    "random-walk",
    "relu-slope",
)
#: Each function as a good call, with the arguments that can be spoiled.
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "plan": (virgo.plan, {"method": "virgo-backward"}),
    "plan measured": (virgo.plan, {"method": "virgo-backward", "estimate": "measured"}),
    "plan mirrored": (virgo.plan, {"method": "virgo-forward", "distribution": "mirrored"}),
    "plan released": (virgo.plan, {"method": "virgo-forward", "variant": "released"}),
    "plan auto": (virgo.plan, {}),
    "init_": (virgo.init_, {"method": "xavier"}),
    "init_ auto": (virgo.init_, {}),
    "measure": (virgo.measure, {}),
    "check": (virgo.check, {"advice": False}),
    "summary": (virgo.summary, {}),
    "fit_last_": (virgo.fit_last_, {}),
    "latch_": (virgo.latch_, {}),
    "warm_start": (virgo.warm_start, {"epochs": 2}),
    **{f"init_ {name}": (virgo.init_, {"method": name}) for name in RELATED},
}
#: What changes weights, unless it ends in an error.
IN_PLACE = ("init_", "fit_last_", "latch_", "warm_start")
OPTIONS = {
    "plan": [
        "method",
        "variant",
        "distribution",
        "signal",
        "estimate",
        "num_classes",
        "nonlinearity",
        "bias",
        "seed",
        "generator",
        "forward",
        "max_graphs",
        "mean_features",
        "features",
        "nodes",
        "loss",
        "tolerance",
    ],
    "measure": ["loss", "backward", "plan", "seeds", "nodes", "forward", "seed", "progress"],
    "check": [
        "plan",
        "thresholds",
        "loss",
        "backward",
        "forward",
        "nodes",
        "seed",
        "advice",
        "norms",
    ],
    "summary": ["max_depth", "loss", "backward", "forward", "nodes", "seed"],
    "fit_last_": ["penalty", "forward"],
    "latch_": ["linear", "after", "gain", "seed", "generator", "forward"],
    "warm_start": ["epochs", "lr", "weight_decay", "seed", "generator", "forward", "loss"],
    "related": ["seed", "generator", "nonlinearity", "forward", "loss", "distribution"],
}
OTHERS: dict[str, Callable[[Any], Any]] = {
    "Graph.open": lambda bad: virgo.Graph.open(bad),
    "Graph edges": lambda bad: virgo.Graph(bad, 5),
    "Graph nodes": lambda bad: virgo.Graph(torch.tensor([[0], [1]]), bad),
    "Graph weights": lambda bad: virgo.Graph(torch.tensor([[0], [1]]), 2, bad),
    "data.load": lambda bad: virgo.data.load(bad),
    "data.load root": lambda bad: virgo.data.load("cora", bad),
    "Plan.from_json": lambda bad: virgo.Plan.from_json(bad),
    "apply_": lambda bad: virgo.plan(network(), graph(), "xavier").apply_(bad),
    "apply_ seed": lambda bad: virgo.plan(network(), graph(), "xavier").apply_(network(), bad),
    "Monitor model": lambda bad: virgo.Monitor(bad),
    "Monitor every": lambda bad: virgo.Monitor(network(), bad),
    "Monitor writer": lambda bad: virgo.Monitor(network(), writer=bad),
    "compare make_model": lambda bad: virgo.compare(bad, graph(), ["xavier"], seeds=1),
    "compare data": lambda bad: virgo.compare(network, bad, ["xavier"], seeds=1),
    "compare methods": lambda bad: virgo.compare(network, graph(), bad, seeds=1),
    "compare depths": lambda bad: virgo.compare(network, graph(), ["xavier"], bad, seeds=1),
    "compare seeds": lambda bad: virgo.compare(network, graph(), ["xavier"], seeds=bad),
    "register_method": lambda bad: virgo.register_method("hostile", bad),
    "register_layer": lambda bad: virgo.register_layer(bad, lambda layer: None),
    "verify": lambda bad: virgo.verify(bad),
    "study data": lambda bad: _studied(data=bad),
    "study model": lambda bad: _studied(model=bad),
    "study inits": lambda bad: _studied(inits=bad),
    "study grid": lambda bad: _studied(grid=bad),
    "study name": lambda bad: _studied(name=bad),
    "study seeds": lambda bad: _studied(seeds=bad),
    "study columns": lambda bad: _studied(columns=bad),
    "study train": lambda bad: _studied(train=bad),
    "study baseline": lambda bad: _studied(baseline=bad),
    "study screen": lambda bad: _studied(screen=bad),
    "study storage": lambda bad: _studied(storage=bad),
    "study out": lambda bad: _studied(out=bad),
    "study jobs": lambda bad: _studied(jobs=bad),
    "study report": lambda bad: _studied(report=bad),
    "study root": lambda bad: _studied(data="like:cora@0.02", root=bad),
    "Comparison.plot": lambda bad: compared().plot(bad),
    "Comparison.save": lambda bad: compared().save(bad),
}


@functools.cache
def compared() -> virgo.Comparison:
    return virgo.compare(network, graph(), ["xavier"], seeds=1)


@contextlib.contextmanager
def _inside(folder: str) -> Iterator[None]:
    """``contextlib.chdir``, which Python 3.10 does not have."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _studied(**changes: Any) -> None:
    """A study of one seed; what it writes lies in a folder that goes away."""
    ring = torch.arange(NODES)
    data = graph(val_mask=(ring >= 12) & (ring < 16), test_mask=ring >= 16)
    grid = {"hidden_channels": 4, "num_layers": 1, "epochs": 1}
    with tempfile.TemporaryDirectory() as folder, _inside(folder):
        good = {"data": data, "model": GCN, "inits": ["xavier"], "grid": grid, "seeds": 1}
        virgo.experiments.study(**{**good, "out": folder, **changes})


def cases() -> Iterator[tuple[str, Callable[[], Any], nn.Module | None]]:
    """Name, call, and the model that must come out of it as it went in."""
    for name, (function, good) in CALLS.items():
        kind = name if name in OPTIONS else "plan"
        if name.removeprefix("init_ ") in RELATED:
            kind = "related"
        for bad, value in {**ANYTHING, **MODELS}.items():
            model = value() if bad in MODELS else value
            watched = model if isinstance(model, nn.Module) and bad != "inference" else None
            if bad == "meta":
                watched = None
            yield f"{name}(model={bad})", partial(function, model, graph(), good), watched
        for bad, value in {**ANYTHING, **DATA}.items():
            model = unusual(network())
            data = value() if bad in DATA else value
            yield f"{name}(data={bad})", partial(function, model, data, good), model
        for option in OPTIONS[kind]:
            more = {"loss": LOSSES, "forward": FORWARDS}.get(option, {})
            for bad, value in {**ANYTHING, **more}.items():
                model = unusual(network())
                options = {**good, option: value}
                yield f"{name}({option}={bad})", partial(function, model, graph(), options), model
    for name, call in OTHERS.items():
        for bad, value in ANYTHING.items():
            yield f"{name}({bad})", lambda call=call, value=value: call(value), None


def partial(function: Callable[..., Any], model: Any, data: Any, options: Any) -> Callable[[], Any]:
    return lambda: function(model, data, **options)


def outcome(call: Callable[[], Any], model: nn.Module | None, changes: bool = False) -> str:
    """Empty if all is well; ``changes`` says that the call may change weights if it succeeds."""
    kept = tensors(model) if model is not None else {}
    before = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if model is None:
                call()
            else:
                with untouched(model, weights=not changes):
                    call()
    except virgo.VirgoError as error:
        text = str(error)
        if "\n" in text.strip() or len(text) < 20:
            return f"a message of several lines, or none: {text!r}"
        if model is not None and not all(same(kept[k], t) for k, t in tensors(model).items()):
            return f"weights were changed in spite of {text!r}"
    except AssertionError as error:
        return f"changed: {error}"
    except Late:
        return f"no answer within {PATIENCE} s of processor time"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:120]}"
    after = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
    return "" if after == before else "a default of torch was changed"


class Late(BaseException):
    """No error that a library would turn into one of its own."""


def _late(*_: Any) -> None:
    raise Late


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """A hang ends in ``Late``."""
    timers = {
        signal.SIGPROF: (signal.ITIMER_PROF, PATIENCE),
        signal.SIGALRM: (signal.ITIMER_REAL, DEADLOCK),
    }
    before = {number: signal.signal(number, _late) for number in timers}
    try:
        for timer, seconds in timers.values():
            signal.setitimer(timer, seconds)
        yield
    finally:
        for timer, _ in timers.values():
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def run(
    share: float, seed: int = 0, *, only: str = "", verbose: bool = False
) -> tuple[int, list[str]]:
    """A share of all cases, or of those whose name begins so; how many, and what ended badly."""
    choose = random.Random(seed)
    bad, count = [], 0
    for name, call, model in cases():
        if choose.random() > share or not name.startswith(only):
            continue
        count += 1
        with _limited():
            trouble = outcome(call, model, name.startswith(IN_PLACE))
        if trouble:
            bad.append(f"{name}: {trouble}")
            if verbose:
                print(bad[-1], flush=True)
    return count, bad


def selfish(output: Tensor, data: Data) -> Tensor:
    """A good loss that runs backward itself, as a training loop would."""
    loss = nn.functional.cross_entropy(output, data.y)
    loss.backward(retain_graph=True)
    return loss


@pytest.mark.parametrize("name", ["summary", "measure", "check", "warm_start"])
def test_a_loss_that_runs_backward_leaves_gradients(name: str) -> None:
    function, options = CALLS[name]
    model = unusual(network())
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    assert any(g is not None for g in gradients)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function(model, graph(), **options, loss=selfish)
    assert all(
        (p.grad is None) if g is None else same(p.grad, g)
        for p, g in zip(model.parameters(), gradients, strict=True)
    )


@pytest.mark.slow
def test_some_hostile_calls() -> None:
    count, bad = run(0.04)
    assert count > 80
    assert not bad, "\n".join(bad)


@pytest.mark.slow
def test_all_hostile_calls() -> None:
    count, bad = run(1.0)
    assert count > 2500
    assert not bad, "\n".join(bad)


if __name__ == "__main__":
    import sys

    total, failures = run(float(sys.argv[1]), only="".join(sys.argv[2:]), verbose=True)
    print(total, len(failures))

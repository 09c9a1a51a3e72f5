"""``virgo.init_(model, data)`` on the networks of the zoo, beside PyG's own weights.

    python benchmarks/zoo.py                      # all of them; writes out/zoo.json
    python benchmarks/zoo.py --only GATConv       # those whose name contains this
    python benchmarks/zoo.py --kind hetero --seeds 1
    python benchmarks/zoo.py --jobs 2 --publish   # rewrites results/zoo.json

Every network is built with the weights PyG gives it and measured by this benchmark's own hooks
(:mod:`zoo_measure`); then built again, initialised by the one-liner, and measured again. A network
is *served* where ``init_`` returns, *refused* where it raises a ``VirgoError``, *crashed* where it
raises anything else or breaks what it must leave alone, and *worse* where the wider of its two
ranges grew by more than half on any seed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch_geometric
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn.parameter import is_lazy as is_uninitialized
from zoo_measure import Ranges, first_batch, is_lazy, materialise, measure
from zoo_networks import NETWORKS, UNAVAILABLE, Network

import virgo

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("conv", "model", "hetero", "user")
WORSE = 1.5  # the factor by which the wider range may grow
#: What the one-liner did on 148 networks tried by hand before this benchmark was written.
BASELINE = {"networks": 148, "served": 47, "refused": 101, "worse": 7}


@dataclass
class Record:
    """What became of one network."""

    name: str
    kind: str
    status: str = "served"  # or refused, crashed
    worse: bool = False
    error: str = ""
    check_ran: bool = False
    check_error: str = ""
    method: str = ""
    broken: list[str] = field(default_factory=list)
    layers: int = 0
    before: list[dict[str, float | None]] = field(default_factory=list)  # one per seed
    after: list[dict[str, float | None]] = field(default_factory=list)
    init_seconds: float = 0.0
    seconds: float = 0.0
    convolutions: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class State:
    """What ``init_`` and ``check`` must leave as it was."""

    training: list[bool]
    buffers: dict[str, Tensor]
    hooks: list[int]
    gradients: list[bool]
    random: Tensor
    data: list[Tensor]

    @classmethod
    def of(cls, model: nn.Module, data: Any) -> State:
        modules = list(model.modules())
        kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        return cls(
            [m.training for m in modules],
            {name: b.clone() for name, b in model.named_buffers()},
            [len(getattr(m, kind)) for m in modules for kind in kinds],
            [p.grad is None and p.requires_grad for p in model.parameters()],
            torch.get_rng_state(),
            [t.clone() for t in _data_tensors(data)],
        )

    def differences(self, other: State) -> list[str]:
        """The names of what changed."""
        pairs = {
            "training flags": self.training == other.training,
            "hooks": self.hooks == other.hooks,
            "gradients": self.gradients == other.gradients,
            "random state": torch.equal(self.random, other.random),
            "buffers": _same(self.buffers, other.buffers),
            "data": _same(dict(enumerate(self.data)), dict(enumerate(other.data))),
        }
        return [name for name, same in pairs.items() if not same]


def _data_tensors(data: Any) -> Iterator[Tensor]:
    for store in getattr(data, "stores", ()):
        yield from (value for value in store.values() if isinstance(value, Tensor))


def _same(a: dict[Any, Tensor], b: dict[Any, Tensor]) -> bool:
    def comparable(t: Tensor) -> Tensor:
        return torch.nan_to_num(t if t.layout == torch.strided else t.to_dense())

    return a.keys() == b.keys() and all(torch.equal(comparable(a[k]), comparable(b[k])) for k in a)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """A copy of all weights that have a shape yet."""
    shaped = ((name, p) for name, p in model.named_parameters() if not is_uninitialized(p))
    return {name: p.detach().clone() for name, p in shaped}


def initialised(network: Network, seed: int) -> tuple[nn.Module, Any, Any, Any, list[str]]:
    """The network after the one-liner: model, data, forward, plan, and what it disturbed."""
    model, data, forward = network.build(seed)
    lazy = is_lazy(model)
    before = State.of(model, data) if not lazy else None
    options = {} if forward is None else {"forward": forward}
    plan = virgo.init_(model, data, seed=seed, **options)
    broken = before.differences(State.of(model, data)) if before else []
    return model, data, forward, plan, broken


def compact(r: Ranges) -> dict[str, float | None]:
    """For JSON, which has no infinity: None."""
    values = {"forward": r.forward, "gradient": r.gradient, "wider": r.wider, "alike": r.alike}
    return {key: float(f"{v:.4g}") if math.isfinite(v) else None for key, v in values.items()}


def run(network: Network, seeds: Iterable[int]) -> Record:
    """Everything about one network."""
    torch.set_num_threads(1)
    start, record = time.perf_counter(), Record(network.name, network.kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in seeds:
            before = _run_before(network, seed, record)
            try:
                _run_after(network, seed, record, before)
            except virgo.VirgoError as error:
                record.status, record.error = "refused", str(error)[:200]
            except Exception as error:
                record.status, record.error = "crashed", _described(error)
            if record.status != "served":
                break
        _run_check(network, record)
    if record.broken and record.status == "served":
        record.status, record.error = "crashed", "disturbed: " + ", ".join(record.broken)
    record.seconds = round(time.perf_counter() - start, 2)
    return record


def _described(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(last.filename).name}:{last.lineno}"
    return f"{type(error).__name__} at {where}: {error}"[:200]


def _run_before(network: Network, seed: int, record: Record) -> Ranges:
    """PyG's own weights. An error here is one of this benchmark, and ends it."""
    model, data, forward = network.build(seed)
    before = measure(model, data, forward, seed)
    record.layers = before.layers
    record.before.append(compact(before))
    own = torch_geometric.nn.conv.__all__
    record.convolutions = sorted({type(m).__name__ for m in model.modules()} & set(own))
    return before


def _run_after(network: Network, seed: int, record: Record, before: Ranges) -> None:
    start = time.perf_counter()
    model, data, forward, plan, broken = initialised(network, seed)
    record.init_seconds = round(max(record.init_seconds, time.perf_counter() - start), 3)
    record.method = plan.choice["chosen"]
    if not record.after:  # once per network
        again = weights(initialised(network, seed)[0])
        if not _same(weights(model), again):
            broken = [*broken, "same bits for the same seed"]
    record.broken = sorted({*record.broken, *broken})
    after = measure(model, data, forward, seed)
    record.after.append(compact(after))
    grew = after.wider > WORSE * before.wider
    record.worse |= grew or (math.isinf(after.wider) and math.isfinite(before.wider))


def _run_check(network: Network, record: Record) -> None:
    """Whether ``virgo.check`` runs on the network as it is built, and disturbs nothing."""
    model, data, forward = network.build(0)
    options = {} if forward is None else {"forward": forward}
    if is_lazy(model):
        with torch.random.fork_rng(devices=[]):
            materialise(model, first_batch(data), forward, 0)
        model.train()
    state, drawn = State.of(model, data), weights(model)
    try:
        str(virgo.check(model, data, **options))
        record.check_ran = True
    except virgo.VirgoError as error:
        record.check_error = str(error)[:200]
    except Exception as error:
        record.check_error = "crashed: " + _described(error)
    broken = state.differences(State.of(model, data))
    broken += [] if _same(drawn, weights(model)) else ["weights"]
    record.broken = sorted({*record.broken, *(f"{what} by check" for what in broken)})


def run_named(name: str, seeds: tuple[int, ...]) -> Record:
    return run(NETWORKS[name], seeds)


def records(names: list[str], seeds: tuple[int, ...], jobs: int) -> Iterator[Record]:
    """All networks' records, in order."""
    if jobs == 1:
        yield from (run_named(name, seeds) for name in names)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(run_named, names, [seeds] * len(names), chunksize=2)


def median(entries: list[dict[str, float | None]], key: str = "wider") -> float:
    values = [math.inf if entry[key] is None else entry[key] for entry in entries]
    return statistics.median(values) if values else math.nan


def summary(rows: list[Record]) -> dict[str, Any]:
    """Counts, and medians over networks of each network's median over seeds."""
    served = [r for r in rows if r.status == "served"]
    counts = Counter(r.status for r in rows)
    shown = {
        "networks": len(rows),
        **{status: counts[status] for status in ("served", "refused", "crashed")},
        "worse": sum(r.worse for r in rows),
        "check_ran": sum(r.check_ran for r in rows),
        "served_percent": round(100 * len(served) / max(1, len(rows)), 1),
    }
    for when in ("before", "after"):
        for key in ("wider", "alike"):
            per_network = [median(getattr(r, when), key) for r in served if getattr(r, when)]
            value = statistics.median(per_network) if per_network else math.inf
            shown[f"median_{key}_{when}"] = round(value, 2) if math.isfinite(value) else None
    return shown


def show(rows: list[Record], console: Console) -> None:
    """The summary by kind, then every network that is not well."""
    columns = {
        "kind": "kind",
        "networks": "all",
        "served": "served",
        "refused": "refused",
        "crashed": "crashed",
        "worse": "worse",
        "check_ran": "check ran",
        "median_wider_before": "range before",
        "median_wider_after": "after",
        "median_alike_after": "after, alike",
    }
    keys = list(columns)[1:]
    table = Table(*columns.values(), title="virgo.init_(model, data)")
    for kind in [*dict.fromkeys(r.kind for r in rows), "all"]:
        numbers = summary([r for r in rows if kind in ("all", r.kind)])
        table.add_row(kind, *(str(numbers[c]) for c in keys))
    table.add_row("by hand, before", *(str(BASELINE.get(c, "")) for c in keys))
    console.print(table)
    lines = []
    for r in rows:
        mark = "worse" if r.worse and r.status == "served" else r.status
        if mark != "served":
            growth = f"x{median(r.before):.3g} -> x{median(r.after):.3g}" if r.after else ""
            lines.append(f"{mark:8} {r.name}: {growth or r.error[:120]}")
    for r in rows:
        if r.broken or r.check_error:
            lines.append(f"check    {r.name}: {'; '.join([*r.broken, r.check_error[:120]])}")
    print("\n".join(lines))


def uncovered(rows: list[Record]) -> list[str]:
    """Classes of ``torch_geometric.nn.conv`` that no network has and no reason excuses."""
    covered = {name for r in rows for name in r.convolutions}
    abstract = {"MessagePassing"}
    return sorted({*torch_geometric.nn.conv.__all__} - covered - UNAVAILABLE.keys() - abstract)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--publish", action="store_true", help="rewrite results/zoo.json")
    args = parser.parse_args()
    wanted = args.only.lower()
    names = [
        n.name
        for n in sorted(NETWORKS.values(), key=lambda n: KINDS.index(n.kind))
        if wanted in n.name.lower() and args.kind in (None, n.kind)
    ]
    whole = len(names) == len(NETWORKS) and args.seeds >= 3
    if args.publish and not whole:
        parser.error("--publish: expected all networks on at least 3 seeds. Leave the others out.")
    console, start = Console(width=110), time.perf_counter()
    found = records(names, tuple(range(args.seeds)), args.jobs)
    rows = list(track(found, "networks", total=len(names), console=Console(file=sys.stderr)))
    seconds = round(time.perf_counter() - start, 1)
    show(rows, console)
    missing = uncovered(rows) if len(names) == len(NETWORKS) else []
    console.print(f"{len(rows)} networks in {seconds} s; convolutions missing: {missing}")
    document = {
        "command": "python benchmarks/zoo.py --publish",
        "versions": {"torch": torch.__version__, "torch_geometric": torch_geometric.__version__},
        "seeds": args.seeds,
        "seconds": seconds,
        "summary": summary(rows),
        "kinds": {k: summary([r for r in rows if r.kind == k]) for k in {r.kind: 0 for r in rows}},
        "by_hand_before": BASELINE,
        "unavailable": UNAVAILABLE,
        "networks": [asdict(r) for r in rows],
    }
    path = ROOT / ("results" if args.publish else "out") / "zoo.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    console.print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

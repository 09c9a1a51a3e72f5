"""The demonstration behind ``virgo demo``: every method on one graph, in under a minute.

A deep GCN is initialised by each method and checked: how far signal and gradient range over its
layers, and whether it will train. Where Cora is at hand each network is also trained for a short
while; an accuracy on a generated graph would mean nothing. A figure and a conclusion follow.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from virgo.devices import CPU, forked_rng, has_csr
from virgo.diagnostics import Report, check
from virgo.errors import install
from virgo.experiments import data as datasets
from virgo.init import plan
from virgo.report.text import text_table

DEPTH, WIDTH, EPOCHS = 16, 64, 40
METHODS = (
    "lecun",
    "xavier",
    "kaiming-forward",
    "kaiming-backward",
    "virgo-forward",
    "virgo-backward",
    "virgo",
    "virgo+spectral",
    "auto",
)
#: The methods in the picture, each one call that both panels show.
PICTURED = (
    "xavier",
    "kaiming-backward",
    "virgo-forward",
    "virgo-backward",
    "virgo+spectral",
    "auto",
)


def run(
    out: Path,
    say: Callable[[str], None],
    track: Callable[[Iterable[str], str], Iterable[str]],
    device: torch.device = CPU,
) -> None:
    """Run the demonstration.

    Args:
        out: folder for the figure.
        say: prints a line.
        track: iterates with a progress bar.
        device: where it is run.
    """
    graph, description = datasets.demo_graph()
    graph = graph.to(device)
    say(description)
    torch.set_num_threads(1)  # the matrices are small: more threads would wait for each other
    real = not description.startswith("a generated")
    reports: dict[str, Report] = {}
    tests: dict[str, float] = {}
    for name in track(METHODS, f"a {DEPTH}-layer GCN by each method"):
        model = _model(graph, name)
        reports[name] = check(model, graph, advice=False)
        if real:
            tests[name] = _train(graph, model)
    header = ["method", "signal over layers", "gradient over layers", "check"]
    header += [f"test after {EPOCHS} epochs"] * real
    rows = [
        (name, *(f"x{r:.3g}" for r in _ranges(report)), report.level)
        + ((f"{100 * tests[name]:.1f} %",) if real else ())
        for name, report in reports.items()
    ]
    say(f"\nplain GCN, {DEPTH} layers, {WIDTH} wide: largest over smallest variance of all layers")
    say("\n".join(text_table(header, rows)))
    say(f"\npicture: {_picture(reports, out)}")
    say(f"\n{conclusion(reports)}")


def conclusion(reports: Mapping[str, Report]) -> str:
    """What the numbers say, in two sentences.

    Args:
        reports: by method.

    Returns:
        The sentences.
    """
    wider = {name: max(_ranges(report)) for name, report in reports.items()}
    best, worst = min(wider, key=wider.__getitem__), max(wider, key=wider.__getitem__)
    bad = [name for name, report in reports.items() if report.level == "bad"]
    call = "virgo.init_(model, data)" if best == "auto" else f'virgo.init_(model, data, "{best}")'
    words = (
        f"Over {DEPTH} layers signal or gradient ranges over x{wider[worst]:.3g} with {worst}, and "
        f"over x{wider[best]:.3g} with {best}: {call}."
    )
    if bad:
        words += f" By virgo.check this network will not train well with {', '.join(bad)}."
    return words


def _model(graph: Data, method: str) -> GCN:
    classes = int(graph.y.max()) + 1
    with forked_rng([graph.x.device], seed=0):
        model = GCN(graph.num_features, WIDTH, DEPTH, classes, cached=True).to(graph.x.device)
    plan(model, graph, method).apply_(model)
    return model


def _ranges(report: Report) -> tuple[float, float]:
    """Of the signal and of the gradient over the outputs of layers."""
    measured = report.measurement
    return _range(measured.forward[1:]), _range(measured.backward[1:])


def _range(values: Iterable[float]) -> float:
    smallest, largest = min(values), max(values)
    return largest / smallest if smallest > 0 else math.inf


def _sparse(graph: Data) -> torch.Tensor:
    """The adjacency as a CSR matrix, several times as fast as scattering, where there is one."""
    edges, n = graph.edge_index, graph.num_nodes
    if not has_csr(edges.device):
        return torch.as_tensor(edges)
    ones = torch.ones(edges.size(1), device=edges.device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_coo_tensor(
            edges.flip(0), ones, (n, n), check_invariants=False
        ).to_sparse_csr()


def _train(graph: Data, model: GCN) -> float:
    with forked_rng([graph.x.device], seed=0), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse invariant checks")
        optimiser = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
        adjacency = _sparse(graph)
        best, test = -1.0, 0.0
        for _ in range(EPOCHS):
            model.train()
            optimiser.zero_grad()
            logits = model(graph.x, adjacency)[graph.train_mask]
            functional.cross_entropy(logits, graph.y[graph.train_mask]).backward()
            optimiser.step()
            model.eval()
            with torch.no_grad():
                right = model(graph.x, adjacency).argmax(1) == graph.y
            validation = right[graph.val_mask].float().mean().item()
            if validation > best:
                best, test = validation, right[graph.test_mask].float().mean().item()
    return test


def _picture(reports: Mapping[str, Report], out: Path) -> str:
    try:
        import matplotlib
    except ImportError:
        return f"not drawn, matplotlib is missing. {install('plot')}"
    matplotlib.use("Agg")
    from virgo.report.plots import variance_over_depth

    measured = {name: reports[name].measurement for name in PICTURED if name in reports}
    curves = {name: {"forward": m.forward, "backward": m.backward} for name, m in measured.items()}
    out.mkdir(parents=True, exist_ok=True)
    path = out / "demo.png"
    variance_over_depth(curves).savefig(path, dpi=200)
    return str(path)

"""The demonstration behind ``virgo demo``: every method on one graph, in under a minute.

Measured variances layer by layer, then a short training run of each method, then a figure.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from virgo.devices import CPU, forked_rng, has_csr
from virgo.diagnostics import measure
from virgo.experiments import data as datasets
from virgo.init import plan
from virgo.report.text import text_table

DEPTH, WIDTH, DEEP, EPOCHS = 6, 64, 16, 40
#: Column title -> method and options.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Lecun": ("lecun", {}),
    "Xavier": ("xavier", {}),
    "KaiFor": ("kaiming-forward", {}),
    "KaiBack": ("kaiming-backward", {}),
    "VirgoFor": ("virgo-forward", {}),
    "VirgoBack": ("virgo-backward", {}),
    "Virgo": ("virgo", {}),
    "measured": ("virgo-forward", {"estimate": "measured"}),
    "mirrored": ("virgo-backward", {"distribution": "mirrored"}),
}
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
    columns = {}
    for name in track(CASES, f"variances of a {DEPTH}-layer GCN"):
        columns[name] = measure(_model(graph, CASES[name], DEPTH), graph)
    for direction in ("forward", "backward"):
        rows = [
            (str(layer), *(f"{getattr(columns[name], direction)[layer]:.1e}" for name in CASES))
            for layer in range(DEPTH + 1)
        ]
        ranges = [_range(getattr(columns[name], direction)) for name in CASES]
        rows.append(("max/min", *(f"x{value:.3g}" for value in ranges)))
        say(f"\n{direction} variance by layer (0 is the input), GCN of width {WIDTH}")
        say("\n".join(text_table(("layer", *CASES), rows)))
    accuracy = [
        (name, f"{100 * _train(graph, _model(graph, CASES[name], DEPTH)):.1f} %")
        for name in track(CASES, f"training each {DEPTH}-layer GCN for {EPOCHS} epochs")
    ]
    say(f"\ntest accuracy of the {DEPTH}-layer GCN (best of {EPOCHS} epochs by validation)")
    say("\n".join(text_table(("init", "test"), accuracy)))
    say(f"\npicture: {_picture(graph, out, track)}")


def _model(graph: Data, case: tuple[str, dict[str, Any]], depth: int) -> GCN:
    method, options = case
    classes = int(graph.y.max()) + 1
    model = GCN(graph.num_features, WIDTH, depth, classes, dropout=0.5, cached=True).to(
        graph.x.device
    )
    plan(model, graph, method, **options).apply_(model)
    return model


def _range(values: list[float]) -> float:
    return max(values) / min(values) if min(values) > 0 else math.inf


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


def _picture(graph: Data, out: Path, track: Callable[[Iterable[str], str], Iterable[str]]) -> str:
    try:
        import matplotlib
    except ImportError:
        return "not drawn, matplotlib is missing: pip install 'virgo-gnn[plot]'"
    matplotlib.use("Agg")
    from virgo.report.plots import variance_over_depth

    curves = {}
    for name in track(PICTURED, f"variances of a {DEEP}-layer GCN"):
        measured = measure(_model(graph, (name, {}), DEEP), graph)
        curves[name] = {"forward": measured.forward, "backward": measured.backward}
    out.mkdir(parents=True, exist_ok=True)
    path = out / "demo.png"
    variance_over_depth(curves).savefig(path, dpi=200)
    return str(path)

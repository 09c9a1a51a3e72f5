"""``verify()``: do the paper's five assumptions hold on a graph? Its appendix A, for any data.

The first row of each table is the definition as the appendix prints it; the further rows are other
readings of it, to tell a difference in definition from one in estimation:

A1. correlation of two message paths over neurons, all pairs of paths;
A2. the same between one half of the neurons of one path and the other half of the other;
A3. correlation of delta_p and the features times the weights, and of their squares, path by path;
A4. mean of delta_p over paths and neurons;
A5. softmax of the last layer's output, over nodes and classes.

The rows *as released* (A1 to A3) are what the authors' scripts compute: ``released.py``.

A1-A4 need as many neurons in the last layer as in the others, since delta_p multiplies them one by
one: all layers have ``width`` outputs there. For A5 the last layer has one output per class; the
weights before it are the same.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.nn import GCN

from virgo.errors import GraphError, OptionError, named_options
from virgo.experiments.assumptions import observations as stats
from virgo.experiments.assumptions.observations import Observations, ObservedNetwork, Propagate
from virgo.experiments.assumptions.paper import printed
from virgo.experiments.assumptions.paths import Walks
from virgo.experiments.assumptions.released import (
    APPENDIX_ORDER,
    DIFFERENT_NODES,
    IN_ORDER,
    OFF_DIAGONAL,
    RELEASED,
    RELEASED_SQUARES,
    observe_released,
)
from virgo.experiments.assumptions.tables import (
    PRINTED,
    AssumptionCell,
    AssumptionRow,
    Assumptions,
    AssumptionTable,
)
from virgo.experiments.data import load_citation
from virgo.graph.operators import Vector
from virgo.init import plan
from virgo.network import reading
from virgo.network.inputs import Inputs

#: Simple paths of one more edge than there are layers are listed, which a deep network forbids.
DEEPEST = 4
LOGITS = "without the last ReLU"
NORMALISED = "features divided by their row sums"
Progress = Callable[[int, int], None]
#: (length, table, reading) -> the observations of each draw; A5 has no length: 0
Draws = dict[tuple[int, str, str], list[Vector]]


@named_options
def verify(
    data: Any,
    *,
    paths: int = 100,
    neurons: int = 100,
    width: int = 256,
    num_layers: int = 3,
    seeds: int = 10,
    seed: int = 0,
    num_classes: int | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> Assumptions:
    """The five assumption tables of the paper's appendix A on the graph in ``data``.

    A GCN without biases is drawn with Xavier's weights ``seeds`` times; each time new message
    paths (different ones, all equally likely; see ``paths.py``) and neurons are drawn. Global
    random state is untouched. A cell's ``±`` is the standard deviation of observations within a
    draw, as in the paper; ``AssumptionCell.between`` that of the mean from draw to draw.

    Args:
        data: a graph with features, as :func:`virgo.plan` takes it.
        paths: message paths of each length 1 .. ``num_layers``.
        neurons: how many neurons are compared.
        width: outputs of each layer, at least ``neurons``. The appendix does not say how
            wide; 256 is the paper's usual width on the OGB datasets.
        num_layers: of the GCN.
        seeds: number of draws. The paper shows one.
        seed: of the first draw.
        num_classes: outputs of the last layer for A5; from ``data.y`` if not given.
        name: ``"cora"``, ``"citeseer"``, ``"pubmed"`` or ``"arxiv"`` to show the paper's cells.
        progress: called with (draws done, draws in all).

    Returns:
        The tables, with the paper's cells beside ours.

    >>> import virgo
    >>> data = virgo.data.citation_like(num_nodes=300, seed=0)
    >>> assumptions = verify(data, seeds=2)
    >>> [abs(cell.mean - 0.5**length) < 0.1 for length, cell in
    ...  enumerate(assumptions.delta.row().cells, start=1)]
    [True, True, True]
    """
    _check_options(paths, neurons, width, num_layers, seeds, num_classes)
    inputs = reading.read(data) if not isinstance(data, Inputs) else data
    x = _features(inputs)
    classes = _classes(inputs) if num_classes is None else num_classes
    walks = Walks.over(inputs.graph(inputs.data.get("edge_weight")).gcn())
    counts = [int(walks.counts(length).sum()) for length in range(1, num_layers + 1)]
    weights = _Weights(inputs, x.shape[1], width, num_layers, classes)
    draws: Draws = defaultdict(list)
    for draw in range(seeds):
        rng = np.random.default_rng([seed, draw])
        hidden, last = weights.at(seed + draw)
        network = ObservedNetwork.run(x, hidden, walks.propagate)
        order = rng.permutation(width)
        for length in range(1, num_layers + 1):
            seen = _on_paths(network, walks, length, paths, order, neurons, rng)
            for (table, row), values in seen.items():
                draws[length, table, row].append(values)
        if num_layers <= DEEPEST:
            extra = np.random.default_rng([seed, draw, 1])  # leaves the draws above as they were
            for length, seen in observe_released(network, walks, extra).items():
                for (table, row), values in seen.items():
                    draws[length, table, row].append(values)
        for row, values in _on_nodes(network, last, walks.propagate).items():
            draws[0, "A5", row].append(values)
        if progress is not None:
            progress(draw + 1, seeds)
    settings = {
        "paths": paths,
        "neurons": neurons,
        "width": width,
        "num_layers": num_layers,
        "seeds": seeds,
        "seed": seed,
        "num_classes": classes,
        "nodes": inputs.num_nodes,
        "edges": int(inputs.edges()[0].size(1)),
        "path_counts": counts,
    }
    a1, a2, a3, a4, a5 = _tables(draws, name, settings)
    return Assumptions(name, a1, a2, a3, a4, a5, settings)


def verify_all(
    graphs: Sequence[str] | Mapping[str, Any], *, progress: Progress | None = None, **options: Any
) -> dict[str, Any]:
    """:func:`verify` on several graphs, as one dictionary that JSON can hold.

    Args:
        graphs: names of :func:`virgo.data.load_citation`, or data by name.
        progress: called with (draws done, draws in all), dataset by dataset.
        options: of :func:`verify`.

    Returns:
        The command, and the tables by the name of the graph.
    """
    datasets: dict[str, Any] = {}
    for name in graphs:
        data = graphs[name] if isinstance(graphs, Mapping) else load_citation(name)
        began = time.perf_counter()
        tables = verify(data, name=name.lower(), progress=progress, **options).to_dict()
        datasets[name.lower()] = {**tables, "seconds": round(time.perf_counter() - began, 1)}
    return {"command": f"virgo verify {' '.join(graphs)}", "datasets": datasets}


def _on_paths(
    network: ObservedNetwork,
    walks: Walks,
    length: int,
    number: int,
    order: npt.NDArray[np.int64],
    neurons: int,
    rng: np.random.Generator,
) -> Observations:
    sampled = walks.sample(length, number, rng)
    seen = stats.observe(network, sampled, order[:neurons], rng)
    seen |= stats.observe_clusters(network, walks, sampled, order[:neurons], rng)
    if length == 1:
        seen["A3", stats.PREDICTED] = stats.predicted_first(network, walks, sampled)
    wide = stats.observe(network, sampled, order, rng)
    seen |= {(table, _all(row)): wide[table, row] for table, row in stats.WIDTH_MATTERS}
    return seen


def _all(label: str) -> str:
    return f"{label}, {stats.ALL}"


def _on_nodes(network: ObservedNetwork, last: Vector, propagate: Propagate) -> dict[str, Vector]:
    """A5 at all nodes: the paper does not say at which, and all have no sampling error."""
    below = np.maximum(network.before[-2], 0.0) if len(network.weights) > 1 else network.x
    logits = propagate(below @ last)
    return {
        PRINTED: stats.softmax(np.maximum(logits, 0.0)).ravel(),
        LOGITS: stats.softmax(logits).ravel(),
        NORMALISED: stats.softmax(_normalised_output(network, last, propagate)).ravel(),
    }


def _normalised_output(network: ObservedNetwork, last: Vector, propagate: Propagate) -> Vector:
    """The network's output for features whose rows sum to one, as DGL's loaders make them."""
    weights = [*network.weights[:-1], last]
    sums = np.abs(network.x).sum(axis=1, keepdims=True)
    # dividing rows of the features divides the rows of their product with the first weight
    start = network.linear[0] if len(weights) > 1 else network.x @ last
    h = np.maximum(propagate(start / np.where(sums > 0, sums, 1.0)), 0.0)
    for weight in weights[1:]:
        h = np.maximum(propagate(h @ weight), 0.0)
    return h


class _Weights:
    """Xavier's weights of the two networks, draw by draw, in float64 and as ``[in, out]``."""

    def __init__(
        self, inputs: Inputs, features: int, width: int, num_layers: int, classes: int
    ) -> None:
        self._planned = []
        with torch.random.fork_rng(devices=[]):  # making a layer draws from the global state
            for outputs in (width, classes):
                model = GCN(features, width, num_layers, out_channels=outputs, bias=False).double()
                planned = plan(model, inputs.data, "xavier", num_classes=False)
                self._planned.append((model, planned))

    def at(self, seed: int) -> tuple[list[Vector], Vector]:
        """All weights of the network of equal widths, and the last of the one with classes."""
        drawn: list[list[Vector]] = []
        for model, planned in self._planned:
            planned.apply_(model, seed=seed)
            drawn.append([conv.lin.weight.detach().numpy().T.copy() for conv in model.convs])
        return drawn[0], drawn[1][-1]


def _tables(draws: Draws, name: str | None, settings: Mapping[str, Any]) -> list[AssumptionTable]:
    """A1 to A5, each row from the observations of its reading."""
    neurons, width, classes = (settings[key] for key in ("neurons", "width", "num_classes"))
    lengths = range(1, settings["num_layers"] + 1)
    zero = (0.0,) * len(lengths)

    def row(table: str, reading: str, paper: str | None = None) -> AssumptionRow:
        values = [draws.get((n, table, reading)) for n in (lengths if table != "A5" else [0])]
        cells = tuple(None if v is None else AssumptionCell.of(v) for v in values)
        return AssumptionRow(reading, cells, printed(paper, name) if paper else ())

    def rows(table: str, paper: str, *others: str | AssumptionRow) -> tuple[AssumptionRow, ...]:
        others_rows = (row(table, each) if isinstance(each, str) else each for each in others)
        return (row(table, PRINTED, paper), *others_rows)

    def chance(number: int, reading: str = stats.CHANCE) -> AssumptionRow:
        """The absolute value that the correlation of independent normal neurons has by chance."""
        cell = AssumptionCell(*stats.absolute_by_chance(number), 0.0, 0, 0)
        return AssumptionRow(reading, (cell,) * len(lengths))

    a1 = rows(
        "A1",
        "est_mpaths",
        row("A1", RELEASED, "est_mpaths"),
        row("A1", IN_ORDER, "est_mpaths"),
        row("A1", APPENDIX_ORDER, "est_mpaths"),
        *(OFF_DIAGONAL, DIFFERENT_NODES),
        *(stats.BETWEEN, stats.INTO, stats.OUT_OF, stats.NO_DELTA, stats.COSINE),
    )
    a2 = rows(
        "A2",
        "est_wpaths",
        row("A2", RELEASED, "est_wpaths"),
        stats.ABSOLUTE,
        chance(neurons // 2),
        _all(stats.ABSOLUTE),
        chance(width // 2, _all(stats.CHANCE)),
    )
    a3 = rows(
        "A3",
        "est_delta_wpaths_1",
        row("A3", stats.SQUARES, "est_delta_wpaths_2"),
        row("A3", RELEASED, "est_delta_wpaths_1"),
        row("A3", RELEASED_SQUARES, "est_delta_wpaths_2"),
        *(stats.PREDICTED, stats.ONE_WEIGHT_PATH, stats.ABSOLUTE, stats.SQUARES_ABSOLUTE),
        chance(neurons),
        *(_all(stats.ABSOLUTE), _all(stats.SQUARES_ABSOLUTE)),
        chance(width, _all(stats.CHANCE)),
    )
    a4 = rows("A4", "est_delta", stats.PER_PATH, _all(stats.PER_PATH))
    a5 = rows("A5", "est_1c", LOGITS, NORMALISED)
    columns = tuple(f"length {length}" for length in lengths)
    halves = tuple(0.5**length for length in lengths)
    squares = "Pearson correlation between δ_p and a weight path, and of their squares"
    ones = (1.0,) * len(lengths)
    return [
        AssumptionTable("A1", "Pearson correlation between message paths", columns, ones, a1),
        AssumptionTable("A2", "Pearson correlation between weight paths", columns, zero, a2),
        AssumptionTable("A3", squares, columns, zero, a3),
        AssumptionTable("A4", "success probability of δ_p", columns, halves, a4, digits=3),
        AssumptionTable(
            "A5", "softmax output beside 1/C", ("softmax",), (1 / classes,), a5, digits=3
        ),
    ]


def _check_options(
    paths: int, neurons: int, width: int, num_layers: int, seeds: int, num_classes: int | None
) -> None:
    lowest = {
        "paths": (paths, 2),
        "neurons": (neurons, 4),
        "num_layers": (num_layers, 1),
        "seeds": (seeds, 1),
        "num_classes": (num_classes, 2),
    }
    for option, (value, least) in lowest.items():
        if value is not None and value < least:
            raise OptionError(f"{option}: expected at least {least}, got {value}. Raise it.")
    if width < neurons:
        raise OptionError(
            f"width: expected at least neurons={neurons}, got {width}. Widen the layers or "
            f"compare fewer neurons."
        )


def _features(inputs: Inputs) -> Vector:
    if inputs.is_hetero:
        raise GraphError(
            "data: expected one kind of node, got a HeteroData. Pass data.to_homogeneous()."
        )
    x = inputs.x
    if x is None:
        raise GraphError(
            "data.x: expected node features, got none. The assumptions are about features passing "
            "through weights; set data.x."
        )
    dense = x.detach().to_dense() if x.layout != torch.strided else x.detach()
    features: Vector = dense.reshape(dense.size(0), -1).double().cpu().numpy()
    if not np.isfinite(features).all():
        raise GraphError(
            "data.x: expected finite features, got NaN or infinity. Clean the features, e.g. "
            "torch.nan_to_num(data.x)."
        )
    return features


def _classes(inputs: Inputs) -> int:
    y = inputs.data.get("y")
    if not isinstance(y, Tensor) or y.is_floating_point() or y.dim() != 1:
        got = "none" if y is None else f"{type(y).__name__} {getattr(y, 'dtype', '')}".strip()
        raise GraphError(
            f"data.y: expected class labels to count for A5, got {got}. Pass num_classes=."
        )
    return max(2, int(y.max()) + 1)

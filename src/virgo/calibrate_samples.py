"""A measured estimate where the whole graph cannot be run: on sampled neighbourhoods of it.

What a sample tells is off in two ways, and both are stated. Samples differ from each other: the
spread of their variances. And every sample lacks the edges that leave it, the more the smaller it
is: the change from samples of half the size, which is about what is left to come.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean
from typing import Any

import numpy as np
from torch_geometric.data import Data

from virgo.errors import OptionError
from virgo.graph import neighbourhoods
from virgo.network.graph_inputs import GraphInputs
from virgo.plans import Plan

#: Nodes of a neighbourhood, and how many of them are measured.
NODES, SAMPLES = 20_000, 4


def measured_on_samples(
    measure: Callable[[Data], Plan], inputs: GraphInputs, nodes: int, seed: int
) -> Plan:
    """A plan from a few neighbourhoods of a graph that is not run as a whole.

    Args:
        measure: the measured plan for one sample.
        inputs: the graph, with its feature matrix.
        nodes: of each neighbourhood.
        seed: of the first sample; the others follow.

    Returns:
        One plan for the whole graph, with the error of sampling in it.

    Raises:
        OptionError: there are no features, or the graph is one of a database.
    """
    if inputs.features is None or not hasattr(inputs.home, "by_target"):
        raise OptionError(
            "estimate='measured': expected features= (a matrix or the path of a .npy file) and a "
            "graph in memory or on disk, got a graph alone. Pass them, or use "
            "estimate='analytic'."
        )

    def on_samples(size: int) -> list[Plan]:
        seeds = range(seed, seed + SAMPLES)
        return [
            measure(neighbourhoods.sample(inputs.home, inputs.features, size, s)) for s in seeds
        ]

    return _combined(on_samples(nodes), on_samples(max(2, nodes // 2)), inputs.facts())


def _combined(plans: Sequence[Plan], halves: Sequence[Plan], facts: Mapping[str, Any]) -> Plan:
    """One plan from those of several samples, with the error of sampling in it.

    Args:
        plans: measured on each sample.
        halves: measured on samples of half the size.
        facts: nodes and edges of the whole graph.

    Returns:
        A plan with the geometric mean of each row's variances.
    """
    first = plans[0]
    variances = [[plan.rows[i].variance for plan in plans] for i in range(len(first.rows))]
    half = [
        geometric_mean(plan.rows[i].variance for plan in halves) for i in range(len(first.rows))
    ]
    means = [geometric_mean(row) for row in variances]
    errors = [float(np.log(row).std(ddof=1)) / math.sqrt(len(row)) for row in variances]
    spread = max(math.expm1(error) for error in errors)
    change = max(abs(small / large - 1) for small, large in zip(half, means, strict=True))
    rows = [
        replace(row, variance=mean, ratio=row.ratio * mean / row.variance)
        for row, mean in zip(first.rows, means, strict=True)
    ]
    nodes = int(first.graph["nodes"])
    sampling = {
        "neighbourhoods": len(plans),
        "nodes": nodes,
        "standard_error": spread,
        "change_from_half_size": change,
    }
    note = (
        f"measured on {len(plans)} sampled neighbourhoods of {nodes:,} nodes: standard error up to "
        f"{100 * spread:.1f} % of a variance, {100 * change:.1f} % from samples of half the size"
    )
    measured = {**(first.measured or {}), "sampling": sampling}
    return replace(
        first, rows=tuple(rows), graph=dict(facts), measured=measured, notes=(*first.notes, note)
    )

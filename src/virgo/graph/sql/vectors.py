"""One number per node, as a table: what :mod:`virgo.graph.vectors` asks of a vector, in queries.

A node that has no row has the number zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from virgo.errors import OptionError
from virgo.graph import vectors
from virgo.graph.sql.checkpoints import Kept, Results, digest
from virgo.graph.sql.connections import Connection, Table, fetch, one_row
from virgo.graph.vectors import Extent, Vector


@dataclass(eq=False)
class Home:
    """The nodes that the graphs and vectors of one lake share, and who keeps their results."""

    con: Connection
    results: Results
    num_nodes: int
    nodes: Kept | None  # None: they are the numbers from 0


@dataclass(frozen=True, eq=False)
class LakeVector:
    """Columns ``node`` and ``value``, times a factor that is applied when it is next used.

    A hop keeps its norm in the manifest and the factor here, so that scaling costs no query.
    """

    home: Home
    kept: Kept
    factor: float = 1.0
    absolute: bool = False

    @property
    def key(self) -> str:
        """What this was computed from. Factors come from sums, which another run may round
        otherwise in the last digits."""
        return digest(self.kept.key, f"{self.factor:.9e}", self.absolute)

    @property
    def table(self) -> Table:
        """The expression, not computed."""
        table = self.kept.table
        value = table.value.abs() if self.absolute else table.value
        return table.select(
            node=table.node, value=value if self.factor == 1.0 else value * self.factor
        )

    def to_numpy(self) -> Vector:
        """All numbers in memory, for nodes that are the numbers from 0."""
        if self.home.nodes is not None:
            raise OptionError(
                "to_numpy: expected nodes numbered from 0, got ids of their own. Use .table."
            )
        rows = fetch(self.table)
        out = np.zeros(self.home.num_nodes)
        out[rows["node"].to_numpy()] = rows["value"].to_numpy()
        return out


@vectors.squared_norm.register
def _(x: LakeVector) -> float:
    return x.kept.squares * x.factor**2


@vectors.scaled.register
def _(x: LakeVector, factor: float) -> LakeVector:
    return replace(x, factor=x.factor * factor)


@vectors.magnitudes.register
def _(x: LakeVector) -> LakeVector:
    return replace(x, factor=abs(x.factor), absolute=True)


@vectors.extent.register
def _(x: LakeVector) -> Extent:
    table = x.table
    row = one_row(
        table.aggregate(
            least=table.value.min(), total=table.value.sum(), magnitude=table.value.abs().sum()
        )
    )
    least = row["least"] if row["least"] is not None else 0.0
    if x.kept.rows < x.home.num_nodes:
        least = min(least, 0.0)
    return Extent(float(least), float(row["total"] or 0.0), float(row["magnitude"] or 0.0))


@vectors._root_of_squares.register
def _(first: LakeVector, parts: Sequence[LakeVector]) -> LakeVector:
    """One union and one group-by, whatever rows each part has."""
    tables = [part.table for part in parts]
    both = tables[0].union(*tables[1:]) if len(tables) > 1 else tables[0]
    squares = both.group_by("node").agg(value=(both.value * both.value).sum())
    roots = squares.select(node=squares.node, value=squares.value.sqrt())
    key = digest("root of squares", [part.key for part in parts])
    kept = first.home.results.keep(key, roots, f"{len(parts)} terms together")
    return LakeVector(first.home, kept)

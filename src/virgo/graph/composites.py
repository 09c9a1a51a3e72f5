"""Operators made of operators: weighted sums of products, and polynomials.

They have the interface of :class:`virgo.graph.operators.Operator` that hops need. Their vectors
are arrays: a graph in memory or on disk, not in a database.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from torch import Tensor

from virgo.errors import OptionError
from virgo.graph.operators import GraphOperators, NodeOperator
from virgo.graph.vectors import AnyVector, Vector


@dataclass(frozen=True)
class Composite:
    r""":math:`\sum_i c_i P_{i1} P_{i2} \cdots`.

    Attributes:
        parts: each coefficient with its factors, in the order in which they are written: the last
            one is applied first.

    >>> import torch
    >>> from virgo.graph.operators import Graph
    >>> ring = Graph(torch.tensor([[0, 1, 2], [1, 2, 0]]), num_nodes=3)
    >>> shift, x = ring.sum(), np.array([1.0, 2.0, 3.0])
    >>> Composite(((0.5, (shift,)), (1.0, (shift, shift))))(x)
    array([3.5, 3.5, 2. ])
    """

    parts: tuple[tuple[float, tuple[NodeOperator, ...]], ...]

    @classmethod
    def scaled(cls, coefficient: float, operator: NodeOperator) -> NodeOperator:
        """``coefficient * operator``; the operator itself if the coefficient is one."""
        return operator if coefficient == 1.0 else cls(((float(coefficient), (operator,)),))

    @property
    def graph(self) -> GraphOperators | None:
        """Some graph that it walks, or none for an operator that stays on the node."""
        graphs = (factor.graph for _, factors in self.parts for factor in factors)
        return next((graph for graph in graphs if graph is not None), None)

    @property
    def T(self) -> Composite:
        """The transpose: every factor's, in reverse order."""
        return Composite(
            tuple((c, tuple(factor.T for factor in factors[::-1])) for c, factors in self.parts)
        )

    def __call__(
        self, x: AnyVector, *, overwrite: bool = False, out: AnyVector | None = None
    ) -> AnyVector:
        """Apply it; every part reads ``x``, so its memory is never used."""
        given = _array(x)
        total: Any = 0.0
        for coefficient, factors in self.parts:
            total = total + coefficient * reduce(lambda y, factor: factor(y), factors[::-1], given)
        return total


@dataclass(frozen=True)
class Polynomial:
    r""":math:`\sum_k c_k P^k`, or :math:`\sum_k c_k T_k(P)` in Chebyshev's basis.

    Evaluated by Horner's rule, or Clenshaw's for :math:`T_k`, in as many hops as its degree:
    :math:`b_k = c_k x + P b_{k+1}` for powers, :math:`b_k = c_k x + 2 P b_{k+1} - b_{k+2}` for
    Chebyshev's, whose last step has no factor 2.

    Attributes:
        base: the operator ``P``.
        coefficients: ``c_0, c_1, ...``
        chebyshev: whether they belong to :math:`T_k(P)`.

    >>> import torch
    >>> from virgo.graph.operators import Graph
    >>> ring = Graph(torch.tensor([[0, 1, 2], [1, 2, 0]]), num_nodes=3)
    >>> Polynomial(ring.sum(), (1.0, 0.0, 1.0))(np.array([1.0, 2.0, 3.0]))
    array([3., 5., 4.])
    >>> Polynomial(ring.sum(), (0.0, 0.0, 1.0), chebyshev=True)(np.array([1.0, 2.0, 3.0]))
    array([ 3.,  4., -1.])
    """

    base: NodeOperator
    coefficients: tuple[float, ...]
    chebyshev: bool = False

    @property
    def graph(self) -> GraphOperators | None:
        """The graph that its base walks."""
        return self.base.graph

    @property
    def T(self) -> Polynomial:
        """The transpose: the polynomial of the base's."""
        return Polynomial(self.base.T, self.coefficients, self.chebyshev)

    def __call__(
        self, x: AnyVector, *, overwrite: bool = False, out: AnyVector | None = None
    ) -> AnyVector:
        """Apply it; ``x`` is read in every hop, so its memory is never used."""
        given = _array(x)
        b1: Vector = self.coefficients[-1] * given
        b2: Any = 0.0
        for k in range(len(self.coefficients) - 2, -1, -1):
            hop = self.base(b1)
            step = self.coefficients[k] * given + hop
            if self.chebyshev:
                step = step + ((hop if k else 0.0) - b2)
            b1, b2 = step, b1
        return b1


def _array(x: AnyVector) -> AnyVector:
    if not isinstance(x, (np.ndarray, Tensor)):
        raise OptionError(
            f"operator: expected an array for a sum of operators, got {type(x).__name__}. Load the "
            f"graph as virgo.Graph."
        )
    return x

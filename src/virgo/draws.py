r"""Weights from variances: every distribution has mean 0 and the variance it is asked for.

Each weight's draw depends on (seed, its name) and nothing else, so that adding, dropping or
reordering other layers changes no bit of it, and the global random state is never touched.

**Mirrored weights.** Since :math:`\mathrm{relu}(z) - \mathrm{relu}(-z) = z`, a ReLU network whose
units come in pairs of opposite sign is exactly linear at initialisation:

.. math::
    W_0 = \begin{bmatrix} M \\ -M \end{bmatrix}, \qquad
    W_l = \begin{bmatrix} Q & -Q \\ -Q & Q \end{bmatrix}, \qquad
    W_{L-1} = \begin{bmatrix} V & -V \end{bmatrix}

with orthogonal blocks (rows are outputs). The pair carries :math:`(z_+, z_-)`, and
:math:`W_l (z_+, z_-) = (Qz, -Qz)`. An odd width leaves one unit without a partner: it receives
an ordinary random row, so that it is alive and can learn, and sends zeros, so that the network
stays linear.

**Spectral weights** are mirrored, with the rows of :math:`M` not in random directions but in those
of the features that survive the network: :math:`M = R\,\Sigma^{p} V^\top` with the largest
singular values :math:`\Sigma` and right singular vectors :math:`V` of
:math:`P_{L-1} \cdots P_0 X` (:mod:`virgo.graph.spectrum`), :math:`R` a random rotation and
:math:`p` the power, 0 by default. Random directions spend most of the width on what the first few
hops average away.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from virgo.errors import OptionError
from virgo.vocabulary import DISTRIBUTIONS

#: Those that belong to one method each and so are nobody's choice: the padded identity, and weights
#: whose rows have all the same norm and whose columns have too.
STRUCTURED = ("identity", "balanced")
#: Those that pair hidden units, so that a ReLU network is linear at initialisation, the better
#: one first.
PAIRED = ("spectral", "mirrored")
#: Of a singular value, by which a spectral direction is scaled: -1 makes all directions equally
#: strong at the far end, 0 takes the principal directions as they are. On Cora 0, -1/4 and -1/2
#: are alike, on CiteSeer and PubMed 0 is better (docs/depth.md).
SPECTRAL_POWER = 0.0
#: Variance of a standard normal cut off at two standard deviations.
_TRUNCATED_VARIANCE = 1.0 - 2 * 2.0 * math.exp(-2.0) / math.sqrt(2 * math.pi) / math.erf(
    math.sqrt(2.0)
)


def generator_for(seed: int, name: str) -> torch.Generator:
    """The generator of one weight.

    Args:
        seed: of the whole draw.
        name: the weight's.

    Returns:
        A generator on the CPU that depends on the two and nothing else.

    >>> a = torch.rand(1, generator=generator_for(0, "convs.0.lin.weight"))
    >>> b = torch.rand(1, generator=generator_for(0, "convs.0.lin.weight"))
    >>> bool(a == b)
    True
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def standard(
    shape: tuple[int, ...],
    distribution: str,
    generator: torch.Generator,
    *,
    mirror_in: bool = False,
    mirror_out: bool = False,
    in_first: bool = False,
    basis: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """A weight of unit variance; a planned weight is ``sqrt(variance)`` times this.

    Args:
        shape: ``[..., out, in]``, or ``[..., in, out]`` with ``in_first``; leading dimensions
            are independent matrices.
        distribution: one of ``DISTRIBUTIONS`` but ``"own"``, or of ``STRUCTURED``.
        generator: of the draw.
        mirror_in: for ``"mirrored"``, whether the input comes in pairs of opposite sign.
        mirror_out: for ``"mirrored"``, whether the output shall. Both also for ``"balanced"``, of
            an even number of rows or columns.
        in_first: whether the weight is stored as ``[in, out]``.
        dtype: of the result.
        basis: for ``"spectral"``, one direction of the features per row, see :func:`scaled_basis`.

    Returns:
        The weight.

    Raises:
        OptionError: if the distribution is unknown or does not fit the shape.
    """
    if distribution not in (*DISTRIBUTIONS, *STRUCTURED):
        raise OptionError(
            f"distribution: expected one of {', '.join(DISTRIBUTIONS)}, got {distribution!r}. "
            f"Choose one."
        )
    if distribution == "own":
        raise OptionError("distribution='own': expected a weight that is there, got none to scale.")
    if distribution == "spectral" and basis is None:
        raise OptionError(
            "distribution='spectral': expected the features' directions, got no basis. Draw it "
            "from a plan, or use 'mirrored'."
        )
    empty = torch.empty(shape, dtype=dtype, device="cpu")  # whatever the default device is
    if distribution == "uniform":
        return empty.uniform_(-math.sqrt(3), math.sqrt(3), generator=generator)
    if distribution == "normal":
        return empty.normal_(generator=generator)
    if distribution == "truncated":
        torch.nn.init.trunc_normal_(empty, a=-2.0, b=2.0, generator=generator)
        return empty / math.sqrt(_TRUNCATED_VARIANCE)
    *many, rows, columns = shape
    if in_first:
        rows, columns = columns, rows

    def matrix() -> Tensor:
        if distribution == "orthogonal":
            return _orthogonal(rows, columns, generator)
        if distribution == "identity":
            return _identity(rows, columns)
        if distribution == "balanced":
            block = _equal_norms(rows // (1 + mirror_out), columns // (1 + mirror_in), generator)
            block = torch.cat([block, -block], 1) if mirror_in else block
            return torch.cat([block, -block]) if mirror_out else block
        return _mirrored(rows, columns, generator, mirror_in, mirror_out, basis)

    matrices = [matrix() for _ in range(math.prod(many))]
    stacked = torch.stack([m.T for m in matrices] if in_first else matrices)
    return stacked.reshape(shape).to(dtype)


def _orthogonal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """A Haar-random semi-orthogonal matrix, scaled so that the mean square of an entry is 1."""
    normal = torch.randn(
        max(rows, columns),
        min(rows, columns),
        generator=generator,
        dtype=torch.float64,
        device="cpu",
    )
    q, r = torch.linalg.qr(normal)
    q = q * torch.sign(torch.diagonal(r))
    q = q if rows >= columns else q.T
    return torch.mul(q, math.sqrt(max(rows, columns)))


def _equal_norms(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """A random orthogonal matrix, then all rows and all columns to mean square 1 in turn.

    Returns:
        A matrix of ``rows`` by ``columns``; of a square one nothing changes.
    """
    matrix = _orthogonal(rows, columns, generator)
    for _ in range(1000):
        matrix = matrix / matrix.square().mean(1, keepdim=True).sqrt()
        columns_rms = matrix.square().mean(0).sqrt()
        matrix = matrix / columns_rms
        if float((columns_rms - 1).abs().max()) < 1e-9:
            break
    return matrix


def _identity(rows: int, columns: int) -> Tensor:
    """Identity matrices side by side or on top of each other, cut to the shape.

    It has no randomness; the mean *square* of an entry is 1.

    Returns:
        A matrix of ``rows`` by ``columns``.
    """
    side = min(rows, columns)
    row, column = (torch.arange(size, device="cpu") % side for size in (rows, columns))
    return (row[:, None] == column).double() * math.sqrt(side)


def _spectral(rows: int, columns: int, generator: torch.Generator, basis: Tensor) -> Tensor:
    """The leading directions, rotated at random, scaled so that the mean square of an entry is 1.

    If there are fewer of them than rows, random directions orthogonal to them make up the rest.

    Returns:
        A matrix of ``rows`` by ``columns``.
    """
    count = min(rows, columns)
    rotation = _orthogonal(rows, count, generator)
    directions = basis[:count].double()
    directions = directions / directions.square().mean().sqrt()
    if len(directions) < count:
        orthonormal = torch.linalg.qr(directions.T).Q.T
        rest = torch.randn(
            count - len(directions), columns, generator=generator, dtype=torch.float64, device="cpu"
        )
        rest -= rest @ orthonormal.T @ orthonormal
        rest = torch.linalg.qr(rest.T).Q.T * math.sqrt(columns)
        directions = torch.cat([directions, rest])
    return rotation @ directions / math.sqrt(count)


def scaled_basis(
    values: np.ndarray, vectors: np.ndarray, power: float = SPECTRAL_POWER
) -> dict[str, Any]:
    """Singular directions times a power of their values, as a plan stores them.

    Args:
        values: singular values, largest first.
        vectors: one direction of the features per row.
        power: of the singular values.

    Returns:
        ``shape`` and ``float32``, the rows of unit mean square in base64, little-endian.

    >>> stored = scaled_basis(np.array([4.0, 1.0]), np.eye(2), power=-0.5)
    >>> read_basis(stored)[1, 1] / read_basis(stored)[0, 0]
    tensor(2.)
    """
    rows = vectors * (values / values[0])[:, None] ** power
    rows = rows / np.sqrt(np.square(rows).mean())
    text = base64.b64encode(rows.astype("<f4").tobytes()).decode("ascii")
    return {"shape": list(rows.shape), "float32": text}


def read_basis(stored: Mapping[str, Any]) -> Tensor:
    """The rows that :func:`scaled_basis` stored.

    Returns:
        One direction per row.

    Raises:
        ValueError: it is not such a record.
    """
    raw = np.frombuffer(base64.b64decode(stored["float32"], validate=True), dtype="<f4")
    rows = raw.reshape([int(size) for size in stored["shape"]]).astype(np.float32)
    if rows.ndim != 2 or not rows.size or not np.isfinite(rows).all():
        raise ValueError(f"basis: expected finite rows, got shape {list(rows.shape)}")
    return torch.from_numpy(rows)


def _mirrored(
    rows: int,
    columns: int,
    generator: torch.Generator,
    mirror_in: bool,
    mirror_out: bool,
    basis: Tensor | None = None,
) -> Tensor:
    half_rows = rows // 2 if mirror_out else rows
    half_columns = columns // 2 if mirror_in else columns
    if half_rows == 0 or half_columns == 0:
        raise OptionError(
            f"distribution='mirrored': expected hidden widths of at least 2, got a weight of "
            f"{rows} x {columns}. Widen the layer or use another distribution."
        )
    if basis is None:
        block = _orthogonal(half_rows, half_columns, generator)
    else:
        block = _spectral(half_rows, half_columns, generator, basis)
    wide = torch.cat([block, -block], 1) if mirror_in else block
    whole = torch.cat([wide, -wide], 0) if mirror_out else wide
    out = torch.zeros(rows, columns, dtype=torch.float64, device="cpu")
    out[: whole.size(0), : whole.size(1)] = whole
    if whole.size(0) < rows:  # the unit without a partner listens ...
        out[-1, : whole.size(1)] = torch.randn(
            whole.size(1), generator=generator, dtype=torch.float64, device="cpu"
        )
    return out  # ... and, its column being zero, says nothing yet

"""The numbers of one layer: moments, dead units, and how alike its nodes are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from virgo.devices import widest
from virgo.network.inputs import Inputs
from virgo.network.probe import Pass
from virgo.network.profile import effective_rank

_AT_A_TIME = 1 << 20  # numbers converted to float64, so that memory stays that of a training step
#: Of more edges than this, Dirichlet energies are estimated from so many drawn at random.
SAMPLED_EDGES = 1 << 17


@dataclass(frozen=True)
class Layer:
    """``h^l``: where it was taken, and what it looks like. Index 0 is the input.

    ``dirichlet_normalized`` is :math:`\\mathrm{tr}(H^\\top (I - \\hat A) H)` with
    :math:`\\hat A = \\tilde D^{-1/2}(A+I)\\tilde D^{-1/2}`; ``dirichlet_plain`` is
    :math:`\\mathrm{tr}(H^\\top (D - A) H)`; both divided by :math:`\\|H\\|_F^2`, so that they tell
    how alike neighbours are and not how large the numbers are. ``mean_average_distance`` is the
    mean of one minus the cosine over all pairs of nodes. ``effective_rank`` is the participation
    ratio of the singular values (:func:`virgo.network.profile.effective_rank`): 1 where all nodes
    point in one direction. ``near_zero`` is the share of numbers below a thousandth of the layer's
    root mean square, exact zeros included.
    """

    index: int
    name: str
    width: int
    forward: float
    backward: float
    mean: float
    second_moment: float
    dead: float  # share of units that are zero at every node
    dirichlet_normalized: float
    dirichlet_plain: float
    mean_average_distance: float
    ratio_to_next: float = math.nan  # forward variance of the next layer over this one
    forward_sd: float = 0.0  # over draws
    backward_sd: float = 0.0
    effective_rank: float = math.nan
    near_zero: float = 0.0
    non_finite: float = 0.0  # share of numbers that are NaN or infinite
    rows: int = 0


class LayerProbe:
    """Computes each layer's numbers as its tensors pass, so that none of them is kept.

    Args:
        inputs: the graph of the pass.
        names: of the layers that run, in order of their calls.
    """

    def __init__(self, inputs: Inputs, names: Sequence[str]) -> None:
        self.inputs = inputs
        self.names = ["input", *(f"into {name}" for name in names[1:]), "output"]
        self._layers: dict[int, Layer] = {}

    def __call__(self, index: int, kind: str, tensors: list[Tensor]) -> None:
        last = len(self.names) - 2
        if index <= last and (kind == "received" or index == last):
            position = index + (kind == "returned")
            self._layers[position] = look(position, self.names[position], tensors, self.inputs)

    def layers(self, seen: Pass) -> list[Layer]:
        """``h^0 .. h^L`` with the variances of the pass."""
        forward = [*seen.received, seen.returned[-1]]
        backward = [*seen.grad_received, seen.grad_returned[-1]]
        return [
            replace(self._layers[i], forward=forward[i], backward=backward[i])
            for i in range(len(self.names))
        ]


def look(index: int, name: str, tensors: list[Tensor], inputs: Inputs) -> Layer:
    """The numbers of one layer, but for its variances.

    Args:
        index: its position, 0 for the input.
        name: where it was taken.
        tensors: what passes there; several of a heterogeneous graph, none if it is not a number.
        inputs: the graph of the pass.

    Returns:
        The layer.
    """
    dead, rank, distance, normalized, plain = 0.0, math.nan, math.nan, math.nan, math.nan
    total = energy = 0.0
    for tensor in tensors:
        for rows in _in_pieces(tensor):
            total += float(rows.sum())
            energy += float(rows.square().sum())
    count = sum(tensor.numel() for tensor in tensors) or math.nan
    if len(tensors) == 1 and tensors[0].dim() == 2:
        h = tensors[0].detach()
        h = h if h.layout == torch.strided else h.to_dense()
        dead = float((h == 0).all(0).to(widest(h)).mean())
        rank = effective_rank(h)
        distance = _mean_average_distance(h)
        if energy > 0:
            normalized, plain = (value / energy for value in _dirichlet(h, inputs))
    near, undefined = _small_and_undefined(tensors, energy / count)
    return Layer(
        index=index,
        name=name,
        width=tensors[0].size(-1) if tensors and tensors[0].dim() else 0,
        forward=math.nan,
        backward=math.nan,
        mean=total / count,
        second_moment=energy / count,
        dead=dead,
        dirichlet_normalized=normalized,
        dirichlet_plain=plain,
        mean_average_distance=distance,
        effective_rank=rank,
        near_zero=near / count,
        non_finite=undefined / count,
        rows=sum(tensor.size(0) for tensor in tensors if tensor.dim()),
    )


def _small_and_undefined(tensors: Sequence[Tensor], mean_square: float) -> tuple[float, float]:
    """How many numbers are below a thousandth of the root mean square, and how many are not any."""
    limit = 1e-3 * math.sqrt(mean_square) if math.isfinite(mean_square) else 0.0
    near = undefined = 0.0
    for tensor in tensors:
        for rows in _in_pieces(tensor):
            near += float((rows.abs() <= limit).sum())
            undefined += float((~torch.isfinite(rows)).sum())
    return near, undefined


def average(draws: Sequence[Layer]) -> Layer:
    """One layer over several draws: the mean of each number, the variances' deviations."""
    if len(draws) == 1:
        return draws[0]
    numbers = [f.name for f in fields(Layer) if isinstance(getattr(draws[0], f.name), float)]
    columns = {name: [getattr(layer, name) for layer in draws] for name in numbers}
    values = {name: mean(column) for name, column in columns.items()}
    for name in ("forward", "backward"):
        finite = all(map(math.isfinite, columns[name]))
        values[f"{name}_sd"] = statistics.stdev(columns[name]) if finite else math.nan
    return replace(draws[0], **values)  # type: ignore[arg-type]


def mean(column: Sequence[float]) -> float:
    """The arithmetic mean; ``statistics.fmean`` refuses infinities of both signs."""
    return sum(column) / len(column)


def _in_pieces(h: Tensor) -> Iterator[Tensor]:
    """A tensor in float64, some rows at a time: a second copy of it would be a large one."""
    dense = h.detach() if h.layout == torch.strided else h.detach().to_dense()
    rows = dense.flatten(0, -2) if h.dim() > 1 else dense.reshape(1, -1)
    for piece in rows.split(max(1, _AT_A_TIME // max(1, rows.size(1)))):
        yield piece.to(widest(piece))


def _dirichlet(h: Tensor, inputs: Inputs) -> tuple[float, float]:
    """Both Dirichlet energies, over the edges a few at a time, or over a sample of very many."""
    if inputs.is_hetero or not inputs.has_edges or h.size(0) != inputs.num_nodes:
        return math.nan, math.nan
    edges = inputs.edges()[0]
    degree = torch.bincount(edges[1], minlength=h.size(0)).add(1).to(h.dtype)
    scale = degree.rsqrt()[:, None]
    total = edges.size(1)
    if total > SAMPLED_EDGES:
        generator = torch.Generator("cpu").manual_seed(0)
        picks = torch.randint(total, (SAMPLED_EDGES,), generator=generator, device="cpu")
        edges = edges[:, picks.to(edges.device)]
    normalized = plain = 0.0
    for part in edges.split(max(1, _AT_A_TIME // max(1, h.size(1))), dim=1):
        a, b = h[part[0]], h[part[1]]
        plain += float((a - b).to(widest(h)).square().sum())
        difference = a * scale[part[0]] - b * scale[part[1]]
        normalized += float(difference.to(widest(h)).square().sum())
    # both ends of an undirected edge are stored, hence the half
    half = 0.5 * total / edges.size(1)
    return half * normalized, half * plain


def _mean_average_distance(h: Tensor) -> float:
    r"""Mean of ``1 - cos`` over all pairs, through :math:`\|\sum_i u_i\|^2`: linear in nodes."""
    total, count = torch.zeros(h.size(1), dtype=widest(h), device=h.device), 0
    for rows in _in_pieces(h):  # the squares of small numbers vanish in a narrower type
        norms = rows.norm(dim=1)
        alive = norms > 0
        count += int(alive.sum())
        total += (rows[alive] / norms[alive, None]).sum(0)
    if count < 2:
        return 0.0
    return (count**2 - float(total @ total)) / (count * (count - 1))

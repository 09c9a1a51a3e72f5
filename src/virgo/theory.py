r"""The paper's formulas, as pure functions of numbers.

Reference: Li, Song, Song, Wipf, *On the Initialization of Graph Neural Networks*, ICML 2023.

Layers count from 0. :math:`P_l` is the operator of layer :math:`l` on the nodes (GCN:
:math:`D^{-1/2}(A+I)D^{-1/2}`), :math:`h^0` the vector of mean features, :math:`\mathbf 1` the
all-ones vector. The *graph ratio* of a layer is what message passing does to the sum of squares:

.. math::
    \text{forward: } \frac{\|P_{l-1}\cdots P_0 h^0\|^2}{\|P_l\cdots P_0 h^0\|^2} \qquad
    \text{backward: } \frac{\|P_{l+1}^\top\cdots P_{L-1}^\top \mathbf 1\|^2}
                          {\|P_l^\top\cdots P_{L-1}^\top \mathbf 1\|^2}

Nothing here knows a network or a graph; :mod:`virgo.graph.operators` supplies the norms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

RELU_GAIN = 2.0


def gain(phi: Callable[[Tensor], Tensor]) -> float:
    r"""The factor that undoes an activation, :math:`1 / E[\phi(z)^2]` for :math:`z \sim N(0, 1)`.

    ReLU keeps half of the second moment, which is the 2 in Kaiming's and the paper's formulas.
    The integral is a composite Gauss-Legendre rule on [-12, 12]; panels end at integers because
    that is where the kinks of the usual activations are (0, 1, 3, 6).

    >>> round(gain(torch.relu), 12)
    2.0
    >>> round(gain(lambda z: z), 12)
    1.0
    """
    nodes, weights = np.polynomial.legendre.leggauss(24)
    left = np.arange(-12, 12)[:, None]
    z = (left + 0.5 * (nodes + 1)).ravel()
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    values = phi(torch.from_numpy(z)).detach().double().numpy()
    second_moment = float(np.sum(np.tile(0.5 * weights, 24) * density * values**2))
    return 1.0 / second_moment if second_moment > 0 else math.inf


def lecun(fan_in: float) -> float:
    """LeCun's variance as the paper writes it, ``1 / (3 fan_in)``.

    >>> lecun(100) == 1 / 300
    True
    """
    return 1.0 / (3.0 * fan_in)


def xavier(fan_in: float, fan_out: float) -> float:
    """Xavier: the harmonic mean of ``1 / fan_in`` and ``1 / fan_out``.

    >>> xavier(100, 300)
    0.005
    """
    return harmonic_mean(1.0 / fan_in, 1.0 / fan_out)


def virgo_forward(fan_in: float, ratio: float = 1.0, gain: float = RELU_GAIN) -> float:
    r"""Theorem 3: :math:`\mathrm{var}(w^l) = \frac{g}{m_1} \cdot` forward graph ratio.

    Keeps :math:`\sum_i \mathrm{var}(h_i^l)` equal over layers under assumptions 1-4. With a
    ratio of 1 (regular graph, constant features) it is Kaiming's forward variance.

    >>> virgo_forward(100, ratio=0.5)
    0.01
    """
    return gain / fan_in * ratio


def virgo_backward(fan_out: float, ratio: float = 1.0, gain: float = RELU_GAIN) -> float:
    r"""Theorem 4: :math:`\mathrm{var}(w^l) = \frac{g}{m_2} \cdot` backward graph ratio.

    Keeps :math:`\sum_i \mathrm{var}(\partial \mathrm{Loss} / \partial h_i^l)` equal over layers.
    With a ratio of 1 it is Kaiming's backward variance.

    >>> virgo_backward(100, ratio=0.5)
    0.01
    """
    return gain / fan_out * ratio


def virgo_backward_last(num_nodes: int, num_classes: int, squared_norm: float) -> float:
    r"""Theorem 4 for the last layer: :math:`\frac{N}{(C-1)\,\|P^\top \mathbf 1\|^2}`.

    Holds where the layer's own output is the logits of a softmax cross-entropy: the gradient
    there has variance :math:`1/(N^2 C)` per node (Lemma 1 with assumption 5, softmax = 1/C).

    >>> virgo_backward_last(num_nodes=10, num_classes=6, squared_norm=10.0)
    0.2
    """
    if num_classes < 2:
        raise ValueError(f"num_classes: expected at least 2, got {num_classes}.")
    return num_nodes / ((num_classes - 1) * squared_norm)


def harmonic_mean(a: float, b: float) -> float:
    """The mean by which Xavier joins its two directions, and by which ``virgo`` joins its two.

    >>> harmonic_mean(1.0, 3.0)
    1.5
    """
    return 2.0 / (1.0 / a + 1.0 / b)


def transfer(fan: float, variance: float, gain: float = RELU_GAIN) -> float:
    r"""What a weight and an activation do to a variance: :math:`m \, \mathrm{var}(w) / g`.

    Forward :math:`m` is the fan in, backward the fan out. Kaiming's variance makes it 1.

    >>> transfer(100, virgo_forward(100))
    1.0
    """
    return fan * variance / gain


def forward_variance(
    fan_ins: Sequence[float],
    variances: Sequence[float],
    squared_norms: Sequence[float],
    num_nodes: int,
    gain: float = RELU_GAIN,
) -> list[float]:
    r"""Theorem 1, averaged over nodes: the forward variance after each layer.

    .. math:: \mathrm{var}(h^l) = \frac{1}{N} \Bigl(\prod_{k<l} \frac{m_1^{(k)}}{g}
              \mathrm{var}(w^k)\Bigr) \|P_{l-1} \cdots P_0 h^0\|^2

    ``squared_norms`` has one entry more than there are layers (the first is ``||h0||^2``).

    >>> forward_variance([4, 4], [0.5, 0.5], [3.0, 3.0, 3.0], num_nodes=3)
    [1.0, 1.0, 1.0]
    """
    scale, out = 1.0, [squared_norms[0] / num_nodes]
    for fan_in, variance, norm in zip(fan_ins, variances, squared_norms[1:], strict=True):
        scale *= transfer(fan_in, variance, gain)
        out.append(scale * norm / num_nodes)
    return out


def backward_variance(
    fan_outs: Sequence[float],
    variances: Sequence[float],
    squared_norms: Sequence[float],
    num_nodes: int,
    num_classes: int,
    gain: float = RELU_GAIN,
    num_labelled: int | None = None,
) -> list[float]:
    r"""Theorem 2, averaged over nodes: the backward variance before each layer, input first.

    .. math:: \mathrm{var}\Bigl(\frac{\partial \mathrm{Loss}}{\partial h^l}\Bigr) =
        \frac{C-1}{N^3 C}\, \mathrm{var}(w^{L-1}) \Bigl(\prod_{k=l}^{L-2} \frac{m_2^{(k)}}{g}
        \mathrm{var}(w^k)\Bigr) \|P_l^\top \cdots P_{L-1}^\top \mathbf 1\|^2

    and :math:`1/(N^2 C)` at the logits themselves. This is the form of the paper's proof, from
    which Theorem 4 follows; the statement of Theorem 2 in its main text has the product start
    one layer late. ``squared_norms[k]`` belongs to :math:`h^k`, so the last one is ``N``.

    The paper's loss averages over all nodes. Over ``num_labelled`` of them, the indicator of
    these takes the place of :math:`\mathbf 1` in the norms, and their number that of ``N`` in
    Lemma 1.

    >>> backward_variance([4, 3], [0.5, 0.5], [2.0, 2.0, 2.0], num_nodes=2, num_classes=3)
    ... # doctest: +ELLIPSIS
    [0.0833..., 0.0833..., 0.0833...]
    """
    labelled = num_nodes if num_labelled is None else num_labelled
    logits = 1.0 / (num_nodes * labelled * num_classes)
    scale = (num_classes - 1) / num_classes / (labelled**2 * num_nodes)
    out = [logits]
    last = len(variances) - 1
    for layer in range(last, -1, -1):
        variance = variances[layer]
        scale *= variance if layer == last else transfer(fan_outs[layer], variance, gain)
        out.append(scale * squared_norms[layer])
    return out[::-1]

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
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

RELU_GAIN = 2.0


def gain(phi: Callable[[Tensor], Tensor]) -> float:
    r"""The factor that undoes an activation, :math:`1 / E[\phi(z)^2]` for :math:`z \sim N(0, 1)`.

    ReLU keeps half of the second moment, which is the 2 in Kaiming's and the paper's formulas.
    The integral is a composite Gauss-Legendre rule on [-12, 12]; panels end at integers because
    that is where the kinks of the usual activations are (0, 1, 3, 6).

    Args:
        phi: the activation, applied elementwise.

    Returns:
        The gain; infinite for an activation that is zero everywhere.

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

    Args:
        fan_in: the number of input features.

    Returns:
        The variance of each weight.

    >>> lecun(100) == 1 / 300
    True
    """
    return 1.0 / (3.0 * fan_in)


def xavier(fan_in: float, fan_out: float) -> float:
    """Xavier: the harmonic mean of ``1 / fan_in`` and ``1 / fan_out``.

    Args:
        fan_in: the number of input features.
        fan_out: the number of output features.

    Returns:
        The variance of each weight.

    >>> xavier(100, 300)
    0.005
    """
    return harmonic_mean(1.0 / fan_in, 1.0 / fan_out)


def virgo_forward(fan_in: float, ratio: float = 1.0, gain: float = RELU_GAIN) -> float:
    r"""Theorem 3: :math:`\mathrm{var}(w^l) = \frac{g}{m_1} \cdot` forward graph ratio.

    Keeps :math:`\sum_i \mathrm{var}(h_i^l)` equal over layers under assumptions 1-4. With a
    ratio of 1 (regular graph, constant features) it is Kaiming's forward variance.

    Args:
        fan_in: :math:`m_1`, the number of input features.
        ratio: the squared norm of the signal before the layer's operator over that after it.
        gain: of the activation, see :func:`gain`.

    Returns:
        The variance of each weight.

    >>> virgo_forward(100, ratio=0.5)
    0.01
    """
    return gain / fan_in * ratio


def virgo_backward(fan_out: float, ratio: float = 1.0, gain: float = RELU_GAIN) -> float:
    r"""Theorem 4: :math:`\mathrm{var}(w^l) = \frac{g}{m_2} \cdot` backward graph ratio.

    Keeps :math:`\sum_i \mathrm{var}(\partial \mathrm{Loss} / \partial h_i^l)` equal over layers.
    With a ratio of 1 it is Kaiming's backward variance.

    Args:
        fan_out: :math:`m_2`, the number of output features.
        ratio: the squared norm of the gradient before the transposed operator over that after it.
        gain: of the activation, see :func:`gain`.

    Returns:
        The variance of each weight.

    >>> virgo_backward(100, ratio=0.5)
    0.01
    """
    return gain / fan_out * ratio


def virgo_backward_last(num_nodes: int, num_classes: int, squared_norm: float) -> float:
    r"""Theorem 4 for the last layer: :math:`\frac{N}{(C-1)\,\|P^\top \mathbf 1\|^2}`.

    Holds where the layer's own output is the logits of a softmax cross-entropy: the gradient
    there has variance :math:`1/(N^2 C)` per node (Lemma 1 with assumption 5, softmax = 1/C).

    Args:
        num_nodes: :math:`N`, the number of nodes.
        num_classes: :math:`C`, at least 2.
        squared_norm: :math:`\|P^\top \mathbf 1\|^2`.

    Returns:
        The variance of each weight.

    Raises:
        ValueError: fewer than two classes.

    >>> virgo_backward_last(num_nodes=10, num_classes=6, squared_norm=10.0)
    0.2
    """
    if num_classes < 2:
        raise ValueError(f"num_classes: expected at least 2, got {num_classes}.")
    return num_nodes / ((num_classes - 1) * squared_norm)


def harmonic_mean(a: float, b: float) -> float:
    """The mean by which Xavier joins its two directions, and by which ``virgo`` joins its two.

    Args:
        a: a positive number.
        b: another.

    Returns:
        ``2 / (1/a + 1/b)``.

    >>> harmonic_mean(1.0, 3.0)
    1.5
    """
    return 2.0 / (1.0 / a + 1.0 / b)


def transfer(fan: float, variance: float, gain: float = RELU_GAIN) -> float:
    r"""What a weight and an activation do to a variance: :math:`m \, \mathrm{var}(w) / g`.

    Forward :math:`m` is the fan in, backward the fan out. Kaiming's variance makes it 1.

    Args:
        fan: :math:`m`.
        variance: of each weight.
        gain: of the activation, see :func:`gain`.

    Returns:
        The factor by which the variance changes.

    >>> transfer(100, virgo_forward(100))
    1.0
    """
    return fan * variance / gain


class TermShare(NamedTuple):
    """One term ``P H W`` of a stage, as Theorems 1 and 2 need it.

    Attributes:
        norm: :math:`\\|P a\\|^2 / \\|a\\|^2`, where ``a`` is the amplitude that reaches the term.
        fan: the weight's fan in going forward, its fan out going backward.
        variance: of the weight; ``None`` for a term without one, which only moves the signal.
    """

    norm: float
    fan: float = 1.0
    variance: float | None = None


#: A layer is a chain of stages, a stage a sum of terms.
LayerShares = Sequence[Sequence[TermShare]]


def forward_variance(
    layers: Sequence[LayerShares], start: float, gain: float = RELU_GAIN
) -> list[float]:
    r"""Theorem 1, averaged over nodes: the forward variance of :math:`h^0 \dots h^L`.

    .. math:: \mathrm{var}(h^l) = \frac{1}{N} \Bigl(\prod_{k<l} \frac{m_1^{(k)}}{g}
              \mathrm{var}(w^k)\Bigr) \|P_{l-1} \cdots P_0 h^0\|^2

    The norm is the product of what each layer does to it, so each layer multiplies the variance
    by :math:`\frac{m_1}{g} \mathrm{var}(w) \|P a\|^2 / \|a\|^2`. The terms of a stage have
    independent weights, so their variances add; the stages of a layer multiply.

    Args:
        layers: the stages of each layer, first layer first, with fans in.
        start: the variance of the input, :math:`\|h^0\|^2 / N`.
        gain: of the activation between stages.

    Returns:
        One variance per layer and one for the input, which is first.

    >>> kaiming = [[TermShare(norm=1.0, fan=4, variance=0.5)]]
    >>> forward_variance([kaiming, kaiming], start=1.0)
    [1.0, 1.0, 1.0]
    >>> sage = [[TermShare(0.25, 4, 0.5), TermShare(1.0, 4, 0.5)]]  # neighbours and root
    >>> forward_variance([sage, kaiming], start=1.0)
    [1.0, 1.25, 1.25]
    """
    variances = [start]
    for layer in layers:
        variance = variances[-1]
        for stage in layer:
            variance *= _stage_factor(stage, gain)
        variances.append(variance)
    return variances


def logits_gradient_variance(
    num_nodes: float, num_classes: int, num_labelled: float | None = None
) -> float:
    r"""Lemma 1 with assumption 5: the backward variance at the logits, :math:`1/(N^2 C)`.

    The paper's loss averages over all nodes. Over :math:`M` labelled ones it is
    :math:`1/(N M C)`, and the indicator of these takes the place of :math:`\mathbf 1` in the
    norms of Theorem 2.

    Args:
        num_nodes: :math:`N`.
        num_classes: :math:`C`.
        num_labelled: :math:`M`, where not all nodes are.

    Returns:
        The variance.

    >>> logits_gradient_variance(num_nodes=2, num_classes=5)
    0.05
    """
    labelled = num_nodes if num_labelled is None else num_labelled
    return 1.0 / (num_nodes * labelled * num_classes)


def backward_variance(
    layers: Sequence[LayerShares],
    output: float,
    num_classes: int | None = None,
    gain: float = RELU_GAIN,
) -> list[float]:
    r"""Theorem 2, averaged over nodes: the backward variance of :math:`h^0 \dots h^L`.

    .. math:: \mathrm{var}\Bigl(\frac{\partial \mathrm{Loss}}{\partial h^l}\Bigr) =
        \frac{C-1}{N^3 C}\, \mathrm{var}(w^{L-1}) \Bigl(\prod_{k=l}^{L-2} \frac{m_2^{(k)}}{g}
        \mathrm{var}(w^k)\Bigr) \|P_l^\top \cdots P_{L-1}^\top \mathbf 1\|^2

    and :math:`1/(N^2 C)` at the logits (:func:`logits_gradient_variance`). This is the form of
    the paper's proof, from which Theorem 4 follows; the statement of Theorem 2 in its main text
    has the product start one layer late. Stages and terms are counted as in
    :func:`forward_variance`, with transposed operators.

    Args:
        layers: the stages of each layer, first layer first, with fans out.
        output: the backward variance of the last layer's output.
        num_classes: where this output is the logits of a softmax cross-entropy: the last weight
            then has :math:`C - 1` of the :math:`C` classes for a fan, and no activation.
        gain: of the activation between stages.

    Returns:
        One variance per layer and one for the output, which is last.

    >>> layers = [[[TermShare(1.0, fan=4, variance=0.5)]], [[TermShare(1.0, fan=3, variance=0.5)]]]
    >>> backward_variance(layers, logits_gradient_variance(2, num_classes=3), num_classes=3)
    ... # doctest: +ELLIPSIS
    [0.0833..., 0.0833..., 0.0833...]
    """
    variances = [output]
    for layer in reversed(layers):
        variance = variances[-1]
        for stage in reversed(layer):
            if num_classes is None:
                variance *= _stage_factor(stage, gain)
            else:
                bare = [share._replace(fan=1.0) for share in stage]
                variance *= (num_classes - 1) * _stage_factor(bare, gain=1.0)
                num_classes = None
        variances.append(variance)
    return variances[::-1]


def _stage_factor(stage: Sequence[TermShare], gain: float) -> float:
    """What a stage multiplies a variance by: the sum over its terms."""
    return sum(
        share.norm * (1.0 if share.variance is None else transfer(share.fan, share.variance, gain))
        for share in stage
    )

r"""Initialisers of other papers, as pure functions of numbers.

Each returns the variance of a weight's entries, or the gain that goes into it. Which text or code
was followed stands with each; ``docs/related.md`` has all of it in one table. Nothing here knows a
network or a graph.
"""

from __future__ import annotations

import math

from virgo.errors import OptionError
from virgo.theory import RELU_GAIN, virgo_forward, xavier

#: Of the ReLU of Kelesis et al. (2023). Their text was not at hand beyond its abstract, which says
#: that the slope is raised and not to what: 2 is this library's choice.
RELU_SLOPE = 2.0
#: Squared norm of each unit's incoming weights in the first layer, in the code of Mustafa et al.
BALANCED_NORM = 2.0


def orthogonal(fan_in: int, fan_out: int, gain: float = RELU_GAIN) -> float:
    r"""Mean square of an entry of :math:`\sqrt{g}\,Q` with semi-orthogonal :math:`Q`.

    Reference: Saxe, McClelland, Ganguli, *Exact solutions to the nonlinear dynamics of learning in
    deep linear neural networks*, ICLR 2014. There the network is linear and the gain 1. As
    ``torch.nn.init.orthogonal_`` advises, the gain here is that of the activation, so all singular
    values are :math:`\sqrt 2` under ReLU.

    Args:
        fan_in: columns of the weight.
        fan_out: rows of the weight.
        gain: of the activation, squared as in :func:`virgo.theory.gain`.

    Returns:
        ``gain / max(fan_in, fan_out)``.

    >>> orthogonal(4, 16, gain=1.0)
    0.0625
    """
    return gain / max(fan_in, fan_out)


def random_walk(width: int, gain: float = RELU_GAIN) -> float:
    r"""The variance that makes the log of the gradient's norm a random walk without drift.

    .. math::
        \operatorname{Var} w = \frac{g^2}{N}, \qquad
        g_{\text{ReLU}} = \sqrt 2 \exp\frac{1.2}{\max(N, 6) - 2.4}, \qquad
        g_{\text{linear}} = \exp\frac{1}{2N}

    Kaiming's variance keeps the mean of the *square* of the norm; the mean of its *log* is smaller,
    by an amount that adds up over layers and that the exponential undoes.

    Reference: Sussillo, Abbott, *Random walk initialization for training very deep feedforward
    networks*, 2014 (arXiv:1412.6558): their two closed forms, as known; the text at hand ended
    before them, and a simulation in the tests confirms both. All their layers have the same width;
    of a weight that is not square the fan in is taken.

    Args:
        width: the number of units ``N``.
        gain: 2 for ReLU, 1 for a linear network.

    Returns:
        The variance.

    Raises:
        OptionError: for another activation, which the paper has no formula for.

    >>> round(64 * random_walk(64), 4)
    2.0795
    """
    if math.isclose(gain, RELU_GAIN, rel_tol=1e-6):
        return RELU_GAIN * math.exp(2.4 / (max(width, 6) - 2.4)) / width
    if math.isclose(gain, 1.0, rel_tol=1e-6):
        return math.exp(1.0 / width) / width
    raise OptionError(
        f"random-walk: expected ReLU or a linear network, for which the paper has formulas, got an "
        f"activation of gain {gain:.4g}. Use lsuv or orthogonal, which take any."
    )


def identity(fan_in: int, fan_out: int) -> float:
    r"""Mean square of an entry of the padded identity, :math:`w_{ij} = 1` where
    :math:`i \equiv j` modulo the smaller side.

    Reference: Pan et al., *IDInit: A universal and stable initialization method for neural network
    training*, ICLR 2025 (arXiv:2503.04626): the identity-preserving part with :math:`\tau = 1`, for
    plain layers. What was at hand is the abstract and a description of its Figure 3. The
    zero-preserving part for residual branches and the small noise against dead units are left out.

    Args:
        fan_in: columns of the weight.
        fan_out: rows of the weight.

    Returns:
        ``1 / min(fan_in, fan_out)``.

    >>> identity(4, 16)
    0.25
    """
    return 1.0 / min(fan_in, fan_out)


def g_init(fan_in: int, ratio: float, gain: float = RELU_GAIN) -> float:
    r"""Kaiming's condition on a graph where what neighbours send is independent.

    With :math:`\operatorname{Var} h_i = n \operatorname{Var} w \sum_j P_{ij}^2 E[x_j^2]`, each
    :math:`P_{ij}` of GCN about one over the mean number :math:`\bar d` of neighbours, a node itself
    counted, and ReLU,

    .. math:: \operatorname{Var} w = \frac{2 \bar d}{n}

    Assumptions: features of neighbours are independent (after a few hops they are not, so a deep
    network's signal grows), all degrees are near their mean. Reference: Kelesis, Fotakis,
    Paliouras, *Reducing oversmoothing through informed weight initialization in graph neural
    networks* (G-Init), Applied Intelligence 2025 (arXiv:2410.23830). Only its abstract was at hand,
    which says that Kaiming's ideas are carried over to convolutional GNNs and simplified to GCN;
    the formula is derived here from that, and its constants may differ from the paper's.

    Args:
        fan_in: columns of the weight.
        ratio: :math:`\bar d`, or what stands for it where several terms are added.
        gain: of the activation.

    Returns:
        The variance.

    >>> g_init(64, ratio=5.0)
    0.15625
    """
    return virgo_forward(fan_in, ratio, gain)


def isometric(row_sum: float) -> float:
    r"""The variance of a uniform draw that depends on the graph and not on the width.

    .. math::
        w \sim U(-b, b), \qquad
        b = \frac{N}{\sqrt{3 \sum_{ij} (1 + r_i)(1 + r_j)}} = \frac{1}{\sqrt 3\,(1 + \bar r)}

    with :math:`r_i` the row sums of GCN's operator :math:`D^{-1/2}(A+I)D^{-1/2}`.

    Reference: Jaiswal et al., *Old can be gold: Better gradient flow can make vanilla-GCNs great
    again*, NeurIPS 2022 (arXiv:2210.08122). The text was not at hand; this is what the published
    code computes (VITA-Group/GradientGCN, ``layers.py``), which passes the normalised adjacency
    where its variable names speak of degrees. Near width 64 it is close to Kaiming's variance, for
    other widths it is not.

    Args:
        row_sum: the mean row sum :math:`\bar r`.

    Returns:
        :math:`b^2 / 3`.

    >>> round(1 / isometric(1.0), 9)
    36.0
    """
    return 1.0 / (3.0 * (1.0 + row_sum)) ** 2


def relu_slope(fan_in: int, fan_out: int, slope: float = RELU_SLOPE) -> float:
    r"""Xavier's variance times the square of a slope.

    A ReLU of slope :math:`s` lets oversmoothing set in later. As
    :math:`s\,\mathrm{relu}(z) = \mathrm{relu}(s z)`, a network of them is at initialisation the
    plain ReLU network with :math:`s` times the weights, which is what this gives any model (the
    last layer, which has no activation after it, included).

    Reference: Kelesis, Vogiatzis, Katsimpras, Fotakis, Paliouras, *Reducing oversmoothing in graph
    neural networks by changing the activation function*, ECAI 2023. Only the abstract was at hand:
    neither the slope (:data:`RELU_SLOPE`) nor Xavier's as the start could be checked.

    Args:
        fan_in: columns of the weight.
        fan_out: rows of the weight.
        slope: of the ReLU.

    Returns:
        The variance.

    >>> relu_slope(64, 64)
    0.0625
    """
    return slope**2 * xavier(fan_in, fan_out)


def balanced(fan_in: int, fan_out: int, first_width: int) -> float:
    r"""The variance at which every unit of a GAT is balanced, with attention zero.

    Gradient flow conserves, for every hidden unit :math:`i` of layer :math:`l`,
    :math:`\|W^l_{i:}\|^2 - \|a^l_i\|^2 - \|W^{l+1}_{:i}\|^2`; where it is large, weights of deep
    layers can hardly change. It is zero if attention is and every unit's incoming and outgoing
    weights have the same norm. With all rows of a weight of one norm and all columns of one norm,
    that asks for the same sum of squares in every layer, which the first one sets:
    :math:`\|W^1_{i:}\|^2 = 2`.

    Reference: Mustafa, Bojchevski, Burkholz, *Are GATs out of balance?*, NeurIPS 2023
    (arXiv:2310.07235). Followed: the published code (RelationalML/GAT_Balanced_Initialization),
    ``LLortho`` with ``balLtoRconst`` and norm 2. There the columns of one layer follow the rows of
    the one before; here rows and columns both get equal norms, which is the same condition.

    Args:
        fan_in: columns of the weight.
        fan_out: rows of the weight.
        first_width: rows of the first layer's weight.

    Returns:
        The variance.

    >>> 16 * balanced(16, 8, first_width=8)  # the first layer's rows
    2.0
    >>> 4 * balanced(8, 4, first_width=8)  # the columns of the next
    2.0
    """
    return BALANCED_NORM * first_width / (fan_in * fan_out)

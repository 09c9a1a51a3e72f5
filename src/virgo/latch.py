r"""``latch_()``: a deep plain GNN most of whose channels hold what the first layers found.

What latches are, and how a network is made of them, is in :mod:`virgo.latched_layers`.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal

import torch
from torch import nn

from virgo import rules
from virgo.errors import GraphError, LayerError, OptionError, VirgoWarning, named_options
from virgo.latched_layers import LatchedLayers, Latches, LatchOptions
from virgo.network import reading
from virgo.network.graph_inputs import is_graph
from virgo.network.inputs import Forward, Inputs
from virgo.network.modules import (
    given_shapes,
    preserved,
    unchanged_on_error,
    unwrap,
)
from virgo.planning import Options, plan_of, studied
from virgo.plans import choose_seed


@named_options
def latch_(
    model: nn.Module,
    data: Any,
    *,
    hold: Literal["directions", "classes"] = "directions",
    linear: float | None = None,
    after: int = 2,
    gain: float | None = None,
    seed: int = 0,
    generator: torch.Generator | None = None,
    forward: Forward | None = None,
) -> Latches:
    """Initialise a deep plain GNN with latches beside spectral weights, in place.

    It replaces :func:`virgo.init_` for networks of many layers without residuals or norms; call
    :func:`virgo.fit_last_` after it. Weights and biases of all layers change; on an error nothing
    does. Held classes rest on neighbours being of one class; where they are not, it warns.

    Args:
        model: a chain of message-passing layers with ReLU between them, all hidden ones of one
            width and with a bias. Where classes are held, the last layer may be an MLP of its own
            width inside, as PyG's GIN has it.
        data: a ``Data`` or ``Batch`` with features.
        hold: ``"directions"`` of the features, for which no label is used, or ``"classes"``, as the
            first layers tell them from ``y`` in the rows of ``train_mask``.
        linear: the least share of the pairs of hidden units that stay linear, by default a quarter,
            or what is left over where classes are held.
        after: the layer at whose output latches begin, from 1, those inside an MLP counted too;
            before it all channels are linear.
        gain: of a latch, above 1; by default 3, or 6 where classes are held.
        seed: of the draws.
        generator: take the seed from this generator instead.
        forward: ``lambda model, data: ...`` for models called in an unusual way.

    Returns:
        What was made of it.

    Raises:
        OptionError: an option is out of range, or hidden layers are too narrow.
        GraphError: the data has no features, or several kinds of nodes, or classes are to be held
            and it has none.
        LayerError: the model is no such chain.

    >>> import virgo
    >>> from torch_geometric.nn import GCN
    >>> data = virgo.data.citation_like(num_nodes=200, seed=0)
    >>> model = GCN(data.num_features, 32, num_layers=16, out_channels=7)
    >>> print(virgo.latch_(model, data))
    14 layers from convs.1 on hold the sign of 11 channels (gain 3); 4 channels are linear
    """
    wish = LatchOptions.checked(hold, linear, after, gain)
    bare, seed = unwrap(model), choose_seed(seed, generator)
    inputs = _read(data)
    options = Options(distribution="mirrored", seed=seed, forward=forward)
    with given_shapes(bare, inputs, forward, seed) as shaped:
        study = studied(shaped, inputs, options)
        try:
            plan = plan_of(study, rules.find("virgo"), options)
        except (LayerError, OptionError) as error:  # its advice is on options that are not here
            reason = str(error).partition(". ")[0]
            raise LayerError(f"latch_: {reason}. Use virgo.init_(model, data).") from error
        layers = LatchedLayers(study, plan, wish, inputs.data)
        with unchanged_on_error(shaped), preserved(shaped), torch.no_grad():
            made = layers.write(inputs, forward)
    if made.is_outvoted:
        warnings.warn(
            f"latch_: {made.kept:.0%} of the signs of training rows outlive the vote of "
            f"neighbours, who seem to be of other classes. Use "
            f'virgo.init_(model, data, "virgo+spectral") here.',
            VirgoWarning,
            stacklevel=3,
        )
    return made


def _read(data: Any) -> Inputs:
    inputs = None if is_graph(data) else reading.read(data)
    if inputs is None or inputs.is_hetero or inputs.x is None:
        raise GraphError(
            "latch_: expected features of one kind of node, got none or several kinds. Pass a Data "
            "with x, or use virgo.init_(model, data)."
        )
    return inputs

"""What each kind of layer computes, as data. The only room that knows PyG's layer classes.

A layer is a chain of *stages*; a stage is a sum of *terms* ``P H W``, an operator over nodes and
a weight over features. Whoever can say this about a layer can initialise it:

=================== =====================================================================
GCNConv             ``[(D^-1/2 (A+I) D^-1/2, W)]``
SAGEConv            ``[(D^-1 A, W_l) + (I, W_r)]``
GINConv             ``[(A + (1+eps) I, W_1)], [(I, W_2)], ...``
LEConv              ``[(A, W_1) + (deg, W_2) + (I, W_3)]``
TAGConv             ``[(I, W_0) + (P, W_1) + (P^2, W_2) + ...]``
GATConv             ``[(D^-1 (A+I), W)]``, as its coefficients are in expectation
RGCNConv            ``[(D_1^-1 A_1, W_1) + (D_2^-1 A_2, W_2) + ... + (I, W_root)]``
=================== =====================================================================
"""

from virgo.layers import attention, convolutions, dgl, propagation, relational
from virgo.layers.registry import (
    Description,
    LayerView,
    Stage,
    Term,
    describe_kind,
    is_dgl_layer,
    is_layer,
    is_message_passing,
    register_layer,
)

__all__ = [
    "Description",
    "LayerView",
    "Stage",
    "Term",
    "attention",
    "convolutions",
    "describe_kind",
    "dgl",
    "is_dgl_layer",
    "is_layer",
    "is_message_passing",
    "propagation",
    "register_layer",
    "relational",
]

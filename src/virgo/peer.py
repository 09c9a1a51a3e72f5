r"""``warm_start()``: weights from a network that was trained without the graph.

Reference: Han, Zhao, Liu, Hu, Shah, *MLPInit: Embarrassingly simple GNN training acceleration with
MLP initialization*, ICLR 2023 (arXiv:2210.00102), with the authors' code
(snap-research/MLPInit-for-GNNs). A GNN and the MLP with the same weights, its *peer*, differ only
in the operator over nodes. The peer trains faster, and its weights are a good start for the GNN.

The peer here is the model itself on a graph where every node's only neighbour is itself. A mean, a
softmax over neighbours and GCN's operator are then the identity, so GCN is exactly its peer MLP and
GraphSAGE the authors' ``lin_l(x) + lin_r(x)``. A sum that also counts the node (GIN) sees its
features twice, which is a scale. Whatever the model does besides (norms, dropout, residuals) it
does here too, and no description of a layer is needed.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from virgo.errors import GraphError, LayerError, OptionError, named_options
from virgo.network import reading
from virgo.network.graph_inputs import is_graph
from virgo.network.inputs import Forward, Inputs, run, training_rows
from virgo.network.losses import InferredLoss
from virgo.network.modules import (
    given_shapes,
    own_gradients,
    preserved,
    unchanged_on_error,
    unwrap,
)
from virgo.network.probe import Loss, call_users_code
from virgo.plans import choose_seed

#: More is a mistake: the peer is trained briefly, for the GNN to be trained afterwards.
MOST_EPOCHS = 1_000_000


@dataclass(frozen=True)
class WarmStart:
    """What training the peer did: the loss before and after, and its name.

    Attributes:
        epochs: of the peer.
        before: the loss at its start.
        after: the loss at its end.
        loss: its name.
    """

    epochs: int
    before: float
    after: float
    loss: str

    def __str__(self) -> str:
        return (
            f"peer MLP trained for {self.epochs} epochs: {self.loss} {self.before:.4g} -> "
            f"{self.after:.4g}"
        )


@named_options
def warm_start(
    model: nn.Module,
    data: Any,
    *,
    epochs: int = 50,
    lr: float = 0.001,
    weight_decay: float = 0.0,
    seed: int = 0,
    generator: torch.Generator | None = None,
    forward: Forward | None = None,
    loss: Loss | None = None,
) -> WarmStart:
    """Train the model in place as an MLP, without its graph, for a few epochs of Adam.

    Call it after :func:`virgo.init_`, as the peer starts from the weights that are there. Buffers,
    training mode and the random state are left as they were; on an error the weights are too.

    Args:
        model: any model that takes ``edge_index`` or ``adj_t``.
        data: a ``Data`` or ``Batch`` with labels; only rows in ``train_mask`` count.
        epochs: full-batch steps; 50 and the learning rate are the authors' for ogbn-arxiv.
        lr: of Adam.
        weight_decay: of Adam.
        seed: of dropout.
        generator: take the seed from this generator instead.
        forward: ``lambda model, data: ...`` for models called in an unusual way.
        loss: ``lambda output, data: ...``; by default cross-entropy or squared error on ``data.y``.

    Returns:
        The loss before and after.

    Raises:
        GraphError: there are no labels that fit, ``train_mask`` is not one boolean per row, or the
            data is of another kind.

    >>> import virgo
    >>> from torch_geometric.nn import GCN
    >>> data = virgo.data.citation_like(num_nodes=200, seed=0)
    >>> model = GCN(data.num_features, 32, num_layers=2, out_channels=7)
    >>> _ = virgo.init_(model, data, "kaiming-forward")
    >>> result = virgo.warm_start(model, data, epochs=20, lr=0.01)
    >>> result.after < result.before
    True
    """
    _check(epochs, lr)
    bare, seed = unwrap(model), choose_seed(seed, generator)
    if is_graph(data):
        raise GraphError(
            "warm_start: expected data with features and labels, got a graph without any. Pass a "
            "Data with x and y."
        )
    inputs = reading.read(data)
    if inputs.is_hetero:
        raise GraphError(
            "warm_start: expected one kind of node, got a HeteroData, whose relations lead from "
            "one kind to another and have no peer MLP. Train without it."
        )
    if loss is None and inputs.data.get("edge_label") is None:
        training_rows(inputs.data)  # refuses a mask that would let other labels in
    chosen = loss or InferredLoss(seed)
    with (
        given_shapes(bare, inputs, forward, seed) as shaped,
        unchanged_on_error(shaped),
        preserved(shaped),
    ):
        torch.manual_seed(seed)  # of the random state that `preserved` puts back
        peer = without_edges(inputs).prepared_for(shaped)
        losses = _train(shaped, peer, chosen, epochs, lr, weight_decay, forward)
    return WarmStart(epochs, losses[0], losses[-1], getattr(chosen, "name", "given"))


def _check(epochs: int, lr: float) -> None:
    if isinstance(epochs, bool) or not isinstance(epochs, int) or not 1 <= epochs <= MOST_EPOCHS:
        raise OptionError(
            f"epochs: expected a whole number from 1 to {MOST_EPOCHS:,}, got {epochs!r}. Try 50."
        )
    if not lr > 0 or not math.isfinite(lr):
        raise OptionError(f"lr: expected a positive number, got {lr!r}. Try 0.001.")


def without_edges(inputs: Inputs) -> Inputs:
    """The same data with one edge from every node to itself in place of all others.

    Args:
        inputs: of one kind of node.

    Returns:
        New inputs. Edge weights are one, other numbers of edges zero.
    """
    nodes, edges = inputs.num_nodes, inputs.edges()[0]
    total, adjacency = edges.size(1), inputs.adjacency
    loops = torch.arange(nodes, device=edges.device).repeat(2, 1)
    data = copy.copy(inputs.data)
    for key, value in inputs.data.to_dict().items():
        if not isinstance(value, Tensor):
            continue
        if adjacency is not None and value is adjacency:
            ones = torch.ones(nodes, dtype=value.dtype, device=value.device)
            eye = torch.sparse_coo_tensor(
                loops, ones, (nodes, nodes), check_invariants=False
            ).coalesce()
            data[key] = eye if value.layout == eye.layout else eye.to_sparse(layout=value.layout)
        elif key == "edge_index":
            data[key] = loops
        elif key.startswith("edge_label"):
            continue  # pairs of nodes to be predicted, not edges to walk
        elif key.startswith("edge_") and value.dim() and value.size(0) == total:
            fill = 1 if key == "edge_weight" else 0
            data[key] = torch.full_like(value[:1], fill).expand(nodes, *value.shape[1:]).clone()
    data.num_nodes = nodes
    return Inputs(data, inputs.sampled)


def _train(
    model: nn.Module,
    inputs: Inputs,
    loss: Loss,
    epochs: int,
    lr: float,
    weight_decay: float,
    forward: Forward | None,
) -> list[float]:
    """Adam on the whole of the data; the loss of each step and, last, of the end."""
    model.train()
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trainable:
        raise LayerError("warm_start: expected a trainable parameter, got none. Unfreeze some.")
    optimizer = torch.optim.Adam(trainable, lr=lr, weight_decay=weight_decay)
    losses = []
    for epoch in range(epochs + 1):
        value = _loss(model, inputs, loss, forward)
        losses.append(float(value.detach()))
        if not math.isfinite(losses[-1]):
            raise GraphError(
                f"warm_start: expected a finite loss, got {losses[-1]} in epoch {epoch}. Lower lr, "
                f"or initialise the model first: virgo.init_(model, data)."
            )
        if epoch < epochs:
            with own_gradients(value, model):
                call_users_code("a backward pass", value.backward)
                optimizer.step()
    return losses


def _loss(model: nn.Module, inputs: Inputs, loss: Loss, forward: Forward | None) -> Tensor:
    with torch.enable_grad():
        name = type(model).__name__
        output = call_users_code(name, lambda: run(model, inputs.data, forward), model)
        value = call_users_code("loss", lambda: loss(output, inputs.data))
    if isinstance(loss, InferredLoss) and not loss.has_labels:
        raise GraphError(
            "warm_start: expected labels in data.y that fit the model's output, got none. Set "
            "data.y, or pass loss=lambda output, data: ..."
        )
    return value

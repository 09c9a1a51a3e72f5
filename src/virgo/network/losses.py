"""The loss that a user most likely trains with, inferred from the labels and the output."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import HeteroData

from virgo.draws import generator_for
from virgo.errors import LayerError
from virgo.network.inputs import counted_rows
from virgo.network.modules import float_tensors

_PROBE = "a random linear probe of the output"


class InferredLoss:
    """Cross-entropy, binary cross-entropy or squared error where labels fit, or a random probe.

    Labels are ``data.edge_label`` or ``data.y``, of a ``HeteroData`` those of the node type whose
    number of rows the output has. Only rows in ``train_mask`` count (of several splits side by side
    those of the first), and of several outputs the first that labels fit. ``name`` says which loss
    it was, once it has been called.

    >>> from torch_geometric.data import Data
    >>> loss = InferredLoss()
    >>> _ = loss(torch.zeros(3, 2), Data(y=torch.tensor([0, 1, 1])))
    >>> loss.name
    'cross-entropy'
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.name = seed, "not called yet"

    @property
    def has_labels(self) -> bool:
        """Whether labels fitted the last output that it was called with."""
        return self.name != _PROBE

    def __call__(self, output: object, data: object) -> Tensor:
        tensors = float_tensors(output)
        if not tensors:
            raise LayerError(
                "loss: expected a model that returns a floating tensor, got none. Pass "
                "loss=lambda output, data: ... that returns one number."
            )
        for scores, labels, mask in _pairs(output, tensors, data):
            value = self._fitted(scores, labels, mask)
            if value is not None:
                return value
        self.name = _PROBE
        generator = generator_for(self.seed, "probe")
        total = tensors[0].new_zeros(())
        for tensor in tensors:
            probe = torch.randn(tensor.shape, generator=generator, device="cpu").to(tensor)
            total = total + (tensor * probe).sum() / max(1, tensor.size(0) if tensor.dim() else 1)
        return total

    def _fitted(self, scores: Tensor, labels: Tensor, mask: object) -> Tensor | None:
        """The loss of one output against one set of labels; None if they do not fit."""
        picked = counted_rows(mask, scores.size(0))
        if picked is not None and labels.size(0) == scores.size(0):
            scores, labels = scores[picked], labels[picked]
        scores = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
        if not labels.is_floating_point() and labels.numel():
            classes = labels.long()
            flat = classes.reshape(-1)
            fits = scores.dim() > 1 and scores.numel() // scores.size(-1) == flat.numel()
            if fits and int(flat.min()) >= 0 and int(flat.max()) < scores.size(-1) > 1:
                self.name = "cross-entropy"
                return functional.cross_entropy(scores.reshape(-1, scores.size(-1)), flat)
        if scores.numel() != labels.numel() or not labels.numel():
            return None
        wanted = labels.reshape(scores.shape).to(scores.dtype)
        known = torch.isfinite(wanted)
        if not bool(known.any()):
            return None
        scores, wanted = scores[known], wanted[known]
        if bool(((wanted == 0) | (wanted == 1)).all()):
            self.name = "binary cross-entropy"
            return functional.binary_cross_entropy_with_logits(scores, wanted)
        self.name = "squared error"
        return functional.mse_loss(scores, wanted)


def _pairs(
    output: object, tensors: list[Tensor], data: object
) -> list[tuple[Tensor, Tensor, object]]:
    """(output, labels, mask) that may belong together, most likely first."""
    get = getattr(data, "get", None)
    if isinstance(data, HeteroData):
        pairs = []
        for kind in data.node_types:
            labels = data[kind].get("y")
            if not isinstance(labels, Tensor):
                continue
            mine = output.get(kind) if isinstance(output, dict) else None
            candidates = [mine] if isinstance(mine, Tensor) else tensors
            mask = data[kind].get("train_mask")
            pairs += [(t, labels, mask) for t in candidates]
        return pairs
    if get is None:
        return []
    pairs = []
    for key, mask in (("edge_label", None), ("y", get("train_mask"))):
        labels = get(key)
        if isinstance(labels, Tensor) and labels.dim():
            pairs += [(t, labels, mask) for t in tensors if t.dim()]
    return pairs

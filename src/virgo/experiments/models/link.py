"""Link prediction: an encoder of nodes and a predictor of links between them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from virgo.errors import OptionError
from virgo.experiments.models import build
from virgo.experiments.models.network import Config, Network

#: The encoders of the paper's link prediction.
LINK_MODELS = ("gcn", "sage", "ngnn-gcn", "ngnn-sage")


class Predictor(nn.Module):
    r"""Scores a pair of nodes by :math:`\mathrm{MLP}(h_i \odot h_j)`.

    The score is the logit of the probability of a link: ranking by it is ranking by the
    probability, without the ties of probabilities that round to one.

    Args:
        in_channels: width of a node's embedding.
        hidden_channels: width of the inner layers.
        num_layers: linear layers; one makes it a weighted inner product.
        dropout: probability, after every activation.
    """

    def __init__(
        self, in_channels: int, hidden_channels: int, num_layers: int = 2, dropout: float = 0.0
    ) -> None:
        super().__init__()
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), 1]
        self.lins = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(widths))
        self.dropout = dropout

    def forward(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        """The logits of pairs of embeddings, ``[pairs]``."""
        *inner, last = self.lins
        x = x_i * x_j
        for lin in inner:
            x = functional.dropout(lin(x).relu(), self.dropout, self.training)
        score: Tensor = last(x)
        return score.view(-1)


class LinkModel(nn.Module):
    """An encoder, a predictor, and embeddings to learn where nodes have no features.

    Args:
        encoder: from features or embeddings to one embedding per node.
        predictor: from two nodes' embeddings to a score.
        num_nodes: nodes whose embeddings are learned; 0 if they have features.
    """

    def __init__(self, encoder: Network, predictor: Predictor, num_nodes: int = 0) -> None:
        super().__init__()
        self.encoder = encoder
        self.predictor = predictor
        self.embedding = None
        if num_nodes:
            self.embedding = nn.Embedding(num_nodes, encoder.convs[0].in_channels)  # type: ignore[arg-type]
            nn.init.xavier_uniform_(self.embedding.weight)

    @property
    def operators(self) -> tuple[str, ...]:
        """The encoder's operators."""
        return self.encoder.operators

    @property
    def num_layers(self) -> int:
        """The encoder's message-passing layers."""
        return self.encoder.num_layers

    def inputs(self, x: Tensor | None) -> Tensor:
        """What the encoder starts from: the embeddings to learn, otherwise the features."""
        if self.embedding is not None:
            return self.embedding.weight
        if x is None:
            raise OptionError(
                "x: expected features for a model without embeddings of its own, got none. "
                "Pass num_nodes= to learn embeddings."
            )
        return x

    def learned(self, nodes: Tensor | None = None) -> Tensor | None:
        """The embeddings to learn, of all nodes or of some; ``None`` where nodes have features."""
        if self.embedding is None:
            return None
        return self.embedding.weight if nodes is None else self.embedding.weight[nodes]

    def forward(
        self, x: Tensor | None, edge_index: Tensor, edge_weight: Tensor | None = None
    ) -> Tensor:
        """Every node's embedding, through PyG's own layers, from ``x`` or learned embeddings."""
        return self.encode(self.inputs(x), edge_index, edge_weight)

    def encode(self, h: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """:meth:`forward` from the input ``h``; edge weights enter GCN's normalisation only."""
        weight = edge_weight if "gcn" in self.operators else None
        out: Tensor = self.encoder(h, edge_index, edge_weight=weight)
        return out

    def score(self, h: Tensor, pairs: Tensor) -> Tensor:
        """The logits of ``pairs`` (``[2, pairs]``) of nodes with embeddings ``h``."""
        out: Tensor = self.predictor(h[pairs[0]], h[pairs[1]])
        return out

    def groups(self) -> Iterable[list[nn.Parameter]]:
        """Parameters whose gradients are clipped together: each of the three parts by itself."""
        parts = (self.embedding, self.encoder, self.predictor)
        return [list(part.parameters()) for part in parts if part is not None]


def build_link(name: str, num_features: int, num_nodes: int, config: Config) -> LinkModel:
    """The link model with the encoder called ``name``, sized by ``config``.

    As in OGB's examples the encoder's output is as wide as its inner layers, and the predictor has
    as many layers as the encoder.

    Args:
        name: one of :data:`LINK_MODELS`.
        num_features: of a node; 0 to learn embeddings as wide as the inner layers.
        num_nodes: of the graph; matters only where embeddings are learned.
        config: what :func:`virgo.experiments.models.build` takes.

    Returns:
        The model with PyTorch's initialisation.

    Raises:
        OptionError: ``name`` is not in :data:`LINK_MODELS`.

    >>> build_link("sage", 0, 50, {"hidden_channels": 16, "num_layers": 2}).embedding
    Embedding(50, 16)
    """
    if name not in LINK_MODELS:
        raise OptionError(
            f"model: expected one of {', '.join(LINK_MODELS)} for link prediction, got {name!r}. "
            f"Choose one."
        )
    width, layers = int(config["hidden_channels"]), int(config["num_layers"])
    encoder = build(name, num_features or width, width, config)
    predictor = Predictor(width, width, layers, config.get("dropout", 0.0))
    return LinkModel(encoder, predictor, 0 if num_features else num_nodes)


def link_loss(positive: Tensor, negative: Tensor) -> Tensor:
    r"""Binary cross-entropy: mean of :math:`-\log\sigma(s)` and of :math:`-\log(1 - \sigma(s))`."""
    return functional.softplus(-positive).mean() + functional.softplus(negative).mean()

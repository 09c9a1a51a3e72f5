"""The hyper-parameters of a run, with the names that PyG's users know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

from virgo.errors import OptionError
from virgo.experiments.models.network import Config


@dataclass(frozen=True)
class Settings:
    """One configuration.

    Attributes:
        hidden_channels: width of the inner layers.
        num_layers: message-passing layers.
        lr: learning rate of Adam.
        weight_decay: of Adam, added to the gradient.
        dropout: between layers.
        epochs: at most.
        patience: stop after this many epochs without a validation score at least as good as the
            best; none if ``None``.
        strict: whether an epoch has to be better than the best to count as better; by default one
            that is as good counts, because a small step may change no prediction for long.
        halve_every: halve the learning rate after every so many epochs; never if ``None``.
        eval_step: epochs from one validation to the next.
        batch_size: training nodes, edges, graphs or clusters of a step; of node classification
            only with ``num_neighbors``.
        num_neighbors: neighbours to sample in each layer; the whole graph at once if ``None``.
        num_parts: clusters that a graph is partitioned into for ClusterGCN; none if ``None``.
        max_grad_norm: clip gradients to this norm; ``None``: as the task does, infinity: never.
        ngnn_type: where NGNN inserts linear layers.
        num_ngnn_layers: how many it inserts.
    """

    hidden_channels: int = 64
    num_layers: int = 2
    lr: float = 0.01
    weight_decay: float = 0.0
    dropout: float = 0.5
    epochs: int = 1000
    patience: int | None = 20
    strict: bool = False
    halve_every: int | None = None
    eval_step: int = 1
    batch_size: int = 1024
    num_neighbors: tuple[int, ...] | None = None
    num_parts: int | None = None
    max_grad_norm: float | None = None
    ngnn_type: str = "input"
    num_ngnn_layers: int = 1

    def __post_init__(self) -> None:
        for name in ("hidden_channels", "num_layers", "epochs", "eval_step", "batch_size"):
            self._require(name, "a whole number of at least 1", lambda v: v == int(v) and v >= 1)
        self._require("lr", "a positive number", lambda v: 0 < v < float("inf"))
        self._require("weight_decay", "0 or more", lambda v: 0 <= v < float("inf"))
        self._require("dropout", "at least 0 and below 1", lambda v: 0 <= v < 1)
        if self.num_parts is not None:
            self._require("num_parts", "a whole number, or none", lambda v: v == int(v) and v >= 1)
        if self.halve_every is not None:
            self._require(
                "halve_every", "a whole number, or none", lambda v: v == int(v) and v >= 1
            )
        if self.max_grad_norm is not None:
            self._require("max_grad_norm", "a positive number, or none", lambda v: v > 0)
        if self.patience is not None:
            self._require("patience", "at least 1, or none", lambda v: v >= 1)
        if self.num_neighbors is not None:
            object.__setattr__(self, "num_neighbors", tuple(self.num_neighbors))
            if len(self.num_neighbors) != self.num_layers:
                raise OptionError(
                    f"num_neighbors: expected one number for each of {self.num_layers} layers, got "
                    f"{list(self.num_neighbors)}. Give as many."
                )

    def _require(self, name: str, expected: str, test: Callable[[Any], bool]) -> None:
        value = getattr(self, name)
        try:
            is_valid = test(value)
        except (TypeError, ValueError, OverflowError):
            is_valid = False
        if not is_valid:
            raise OptionError(f"{name}: expected {expected}, got {value!r}. Choose another.")

    @classmethod
    def of(cls, config: Config) -> Settings:
        """Settings from a mapping; a name that is not one of theirs is an error."""
        known = [field.name for field in fields(cls)]
        unknown = [name for name in config if name not in known]
        if unknown:
            raise OptionError(
                f"config: expected {', '.join(known)}, got {', '.join(unknown)}. Correct the name."
            )
        return cls(**config)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as :meth:`of` takes them."""
        return asdict(self)

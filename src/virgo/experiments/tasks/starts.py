"""Networks before training: built from the seed, initialised once, cached for later runs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from virgo.devices import CPU
from virgo.experiments.models import from_recipe
from virgo.experiments.models.network import Config
from virgo.experiments.tasks.settings import Settings

#: How many are kept: ten seeds of one network, and some of the one before.
KEPT = 16


class Starts:
    """Initial weights by network, method and seed.

    A grid's configurations differ in learning rate, decay and dropout more often than in what the
    initial weights depend on, and a measured initialisation takes as long as many epochs.

    Args:
        recipe: what :func:`virgo.experiments.models.from_recipe` builds the networks from.
        device: where they are used; their numbers are drawn on the CPU.
    """

    def __init__(self, recipe: Config, device: torch.device = CPU) -> None:
        self.recipe, self.device = recipe, device
        self._kept: OrderedDict[Hashable, dict[str, Tensor]] = OrderedDict()

    def build(self, name: str, settings: Settings, seed: int) -> Any:
        """The network, with what a method leaves alone drawn from ``seed``."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return from_recipe(name, self.recipe, settings.to_dict()).to(self.device)

    def initialised(
        self,
        name: str,
        init: str,
        settings: Settings,
        seed: int,
        initialise: Callable[[Any], object],
    ) -> Any:
        """The network with the weights that ``initialise(model)`` gives it, or gave it before."""
        model = self.build(name, settings, seed)
        sized = attrgetter("hidden_channels", "num_layers", "ngnn_type", "num_ngnn_layers")
        key = (name, init, sized(settings), seed)
        if key not in self._kept:
            initialise(model)
            self._kept[key] = {k: v.clone() for k, v in model.state_dict().items()}
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        model.load_state_dict(self._kept[key])
        return model


def transposed_in_memory(module: nn.Module) -> None:
    """Store weights as ``W^T``: sparse features are multiplied with, or look up, its rows."""
    for parameter in module.parameters():
        parameter.data = parameter.data.t().contiguous().t()

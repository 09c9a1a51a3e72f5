"""The paper's networks, by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from virgo.errors import OptionError
from virgo.experiments.models.network import (
    GCN,
    GIN,
    Config,
    GraphSAGE,
    Network,
    sizes_in,
)
from virgo.vocabulary import MODELS, NGNN_TYPES

__all__ = ["GCN", "GIN", "MODELS", "NGNN_TYPES", "GraphSAGE", "Network", "build", "from_recipe"]

FAMILIES: dict[str, type[Network]] = {"gcn": GCN, "sage": GraphSAGE, "gin": GIN}


def build(name: str, in_channels: int, out_channels: int, config: Config) -> Network:
    """The network called ``name``, sized by ``config``.

    Args:
        name: one of :data:`MODELS`; ``ngnn-`` inserts linear layers.
        in_channels: features per node.
        out_channels: outputs per node.
        config: ``hidden_channels``, ``num_layers``, ``dropout``; for NGNN also ``ngnn_type`` and
            ``num_ngnn_layers``; other keys are ignored.

    Returns:
        The network with PyTorch's initialisation.

    Raises:
        OptionError: ``name`` is not in :data:`MODELS`.

    >>> build("ngnn-gcn", 8, 3, {"hidden_channels": 16, "num_layers": 2}).inserted[0]
    ModuleList(
      (0): Linear(in_features=16, out_features=16, bias=True)
    )
    """
    if name not in MODELS:
        raise OptionError(f"model: expected one of {', '.join(MODELS)}, got {name!r}. Choose one.")
    sizes = sizes_in(config)
    if name.startswith("ngnn-"):
        sizes["ngnn_type"] = config.get("ngnn_type", "input")
        sizes["num_ngnn_layers"] = config.get("num_ngnn_layers", 1)
    return FAMILIES[name.removeprefix("ngnn-")](in_channels, out_channels=out_channels, **sizes)


def from_recipe(name: str, recipe: Config, config: Config) -> Any:
    """A network of any task, from the few facts about its dataset that a checkpoint holds.

    Args:
        name: of the network.
        recipe: ``form``, which is ``"node"``, ``"link"``, ``"pooled"`` (graphs) or ``"molecule"``,
            and the sizes that the form needs.
        config: its sizes, as :func:`build` takes them.

    Returns:
        The network with PyTorch's initialisation.

    Raises:
        OptionError: there is no network of this name in this form.

    >>> recipe = {"form": "node", "in_channels": 8, "out_channels": 3}
    >>> from_recipe("gcn", recipe, {"num_layers": 2}).convs[1]
    GCNConv(64, 3)
    """
    form, sizes = recipe["form"], {key: recipe[key] for key in recipe if key != "form"}
    if form == "node":
        return build(name, **sizes, config=config)
    # Each other form is imported when it is asked for: molecules need an extra.
    if form == "link":
        from virgo.experiments.models.link import build_link

        return build_link(name, **sizes, config=config)
    module = {"pooled": "pooled", "molecule": "molecules"}[form]
    families = import_module(f"{__name__}.{module}").FAMILIES
    if name not in families:
        known = " or ".join(families)
        raise OptionError(
            f"model: expected {known} for graph classification, got {name!r}. Choose one."
        )
    return families[name](**sizes, **sizes_in(config))

"""Virgo in PyG's GraphGym: ``import virgo.graphgym``, and a YAML file can name a method.

.. code-block:: yaml

    virgo:
      init: virgo-backward   # any of virgo.methods(), "auto", options after a plus; "" leaves it
      seed: -1               # of the draw; -1 takes cfg.seed

The group ``virgo`` is registered with GraphGym's configuration. GraphGym makes a model before it
has seen data, so the weights are set when training begins: by :func:`train` in place of
GraphGym's, by :func:`init_` where a training loop is your own, or by the command that runs a file,
``python -m virgo.graphgym --cfg FILE.yaml``.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from virgo.errors import MissingExtra, OptionError
from virgo.init import init_ as _init
from virgo.report.files import write_text_atomically

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what is missing; said below, as an error
    from torch_geometric.graphgym import register
    from torch_geometric.graphgym.config import cfg, dump_cfg, load_cfg, set_out_dir, set_run_dir

if TYPE_CHECKING:
    from virgo.plans import Plan

__all__ = ["init_", "main", "set_config", "train"]

if cfg is None:
    raise MissingExtra("virgo.graphgym", "yacs", "graphgym")


def set_config(node: Any) -> None:
    """Add the group ``virgo`` to a configuration, with its defaults.

    Args:
        node: GraphGym's ``cfg``.
    """
    from yacs.config import CfgNode

    node.virgo = CfgNode({"init": "", "seed": -1})


if "virgo" not in register.config_dict:
    register.register_config("virgo", set_config)
if "virgo" not in cfg:  # GraphGym fills its cfg when it is imported
    set_config(cfg)


def init_(model: nn.Module, loaders: Any) -> Plan | None:
    """Initialise a GraphGym model as ``cfg.virgo`` says.

    The first batch of the training loader stands for the data, and GraphGym's own loss is the one
    that gradients are measured with.

    Args:
        model: what GraphGym's ``create_model`` returns, or a network of its kind.
        loaders: what its ``create_loader`` returns, or a data module with ``.loaders``.

    Returns:
        The plan that was applied; ``None`` if ``cfg.virgo.init`` is empty.

    Raises:
        OptionError: if there is no loader, or it gives no batch.
    """
    method = str(cfg.virgo.init).strip()
    if not method:
        return None
    loaders = getattr(loaders, "loaders", loaders)
    batch = next(iter(loaders[0]), None) if len(loaders) else None
    if batch is None:
        raise OptionError(
            "loaders: expected GraphGym's loaders with a batch to train on, got none. Pass what "
            "create_loader() returns."
        )
    inner = getattr(model, "model", None)
    network = inner if isinstance(inner, nn.Module) else model
    call = _Call()
    seed = int(cfg.virgo.seed) if cfg.virgo.seed >= 0 else int(cfg.seed)
    device = next(network.parameters()).device
    plan = _init(network, batch.to(device), method, seed=seed, forward=call.forward, loss=call.loss)
    logging.info("virgo: %s, %s", method, plan.coverage)
    return plan


class _Call:
    """How GraphGym calls a network: it returns what it predicts and what is true."""

    def __init__(self) -> None:
        self.true: Tensor | None = None

    def forward(self, network: nn.Module, data: Any) -> Tensor:
        data.split = "train"  # the data are a copy, as its layers write into them
        predicted: Tensor
        predicted, self.true = network(data)
        return predicted

    def loss(self, output: Tensor, data: Any) -> Tensor:
        from torch_geometric.graphgym.loss import compute_loss

        value: Tensor = compute_loss(output, self.true)[0]
        return value


def train(model: nn.Module, datamodule: Any, **options: Any) -> None:
    """GraphGym's ``train``, with the weights set as ``cfg.virgo`` says before it begins.

    Args:
        model: what GraphGym's ``create_model`` returns.
        datamodule: a ``GraphGymDataModule``.
        options: ``logger`` and ``trainer_config``, as GraphGym's takes them.
    """
    from torch_geometric.graphgym.train import train as graphgym_train

    init_(model, datamodule)
    graphgym_train(model, datamodule, **options)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a GraphGym configuration, as the ``main.py`` of its examples does.

    Args:
        argv: ``--cfg FILE [--repeat N] [KEY VALUE ...]``; the command line's by default.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(
        prog="python -m virgo.graphgym", description="Run a GraphGym file that may name `virgo`."
    )
    parser.add_argument("--cfg", dest="cfg_file", required=True, help="the YAML file")
    parser.add_argument("--repeat", type=int, default=1, help="runs, each with the next seed")
    parser.add_argument("opts", nargs=argparse.REMAINDER, help="KEY VALUE pairs over the file's")
    args = parser.parse_args(argv)
    load_cfg(cfg, args)
    set_out_dir(cfg.out_dir, args.cfg_file)
    dump_cfg(cfg)
    for _ in range(args.repeat):
        _run()
        cfg.seed = cfg.seed + 1
    return 0


def _run() -> None:
    """One run of the configuration, with its seed."""
    import torch_geometric
    from torch_geometric.graphgym.logger import set_printing
    from torch_geometric.graphgym.model_builder import create_model
    from torch_geometric.graphgym.train import GraphGymDataModule, train
    from torch_geometric.graphgym.utils.comp_budget import params_count
    from torch_geometric.graphgym.utils.device import auto_select_device

    set_run_dir(cfg.out_dir)
    set_printing()
    torch_geometric.seed_everything(cfg.seed)
    auto_select_device()
    datamodule = GraphGymDataModule()
    model = create_model()
    cfg.params = params_count(model)
    plan = init_(model, datamodule)
    if plan is not None:
        write_text_atomically(Path(cfg.run_dir) / "plan.json", plan.to_json(indent=1))
    train(model, datamodule)


if __name__ == "__main__":
    sys.exit(main())

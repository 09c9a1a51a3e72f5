"""virgo.graphgym: GraphGym's own configuration, loaders and training, Virgo by name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import virgo

pytest.importorskip("yacs", reason="needs virgo-gnn[graphgym]")
pytest.importorskip("lightning", reason="needs virgo-gnn[graphgym]")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

FILE = """
out_dir: {out}
accelerator: cpu
dataset: {{format: generated, name: citations, task: node, task_type: classification}}
model: {{type: gnn, loss_fun: cross_entropy}}
gnn:
  layers_pre_mp: 0
  layers_mp: {layers}
  layers_post_mp: 1
  dim_inner: 32
  layer_type: gcnconv
  stage_type: stack
  batchnorm: false
  dropout: 0.0
  head: node
optim: {{max_epoch: 1, base_lr: 0.01}}
train: {{batch_size: 1, enable_ckpt: false}}
virgo: {{init: "{init}"}}
"""


@pytest.fixture
def gym(tmp_path: Path) -> Iterator[Any]:
    """GraphGym with a generated dataset, and its configuration as it was afterwards."""
    from torch_geometric.data import InMemoryDataset
    from torch_geometric.graphgym import register
    from torch_geometric.graphgym.config import cfg

    import virgo.graphgym

    class Generated(InMemoryDataset):
        def __init__(self) -> None:
            super().__init__(None)
            data = virgo.data.citation_like(num_nodes=120, num_features=40, seed=0)
            self.data, self.slices = self.collate([data])

    def loader(kind: str, name: str, folder: str) -> Generated | None:
        return Generated() if kind == "generated" else None

    before = cfg.clone()
    register.loader_dict["generated"] = loader
    yield virgo.graphgym
    del register.loader_dict["generated"]
    cfg.clear()
    cfg.update(before)


def written(folder: Path, init: str, layers: int = 4) -> Path:
    path = folder / "run.yaml"
    path.write_text(FILE.format(out=folder / "out", init=init, layers=layers), encoding="utf-8")
    return path


def loaded(path: Path) -> tuple[Any, Any]:
    """The model and the loaders that GraphGym makes of a file."""
    from argparse import Namespace

    from torch_geometric.graphgym.config import cfg, load_cfg
    from torch_geometric.graphgym.loader import create_loader
    from torch_geometric.graphgym.model_builder import create_model

    load_cfg(cfg, Namespace(cfg_file=str(path), opts=[]))
    loaders = create_loader()
    return create_model(), loaders


def test_the_file_names_a_method_and_the_weights_are_its(gym: Any, tmp_path: Path) -> None:
    model, loaders = loaded(written(tmp_path, "virgo-backward", layers=3))
    plan = gym.init_(model, loaders)
    data = virgo.data.citation_like(num_nodes=120, num_features=40, seed=0)
    for row in plan.rows:
        weight = model.model.get_parameter(row.weight)
        # a uniform draw of n weights has a variance off by a factor of 1 +- 0.9 / sqrt(n)
        assert weight.var().item() == pytest.approx(row.variance, rel=5 / weight.numel() ** 0.5)
    assert sum("mp.layer" in row.layer for row in plan.rows) >= 3
    assert plan.method == "virgo-backward"
    assert plan.graph["nodes"] == data.num_nodes


def test_an_empty_name_leaves_graphgyms_weights(gym: Any, tmp_path: Path) -> None:
    model, loaders = loaded(written(tmp_path, ""))
    before = {name: p.clone() for name, p in model.named_parameters()}
    assert gym.init_(model, loaders) is None
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


def test_auto_measures_with_graphgyms_own_loss(gym: Any, tmp_path: Path) -> None:
    model, loaders = loaded(written(tmp_path, "auto", layers=8))
    plan = gym.init_(model, loaders)
    assert plan.choice is not None
    report = virgo.check(
        model.model, next(iter(loaders[0])), forward=lambda net, batch: net(batch.clone())[0]
    )
    assert report.level != "bad"


def test_a_misspelt_method_is_named(gym: Any, tmp_path: Path) -> None:
    model, loaders = loaded(written(tmp_path, "virgo-bakward"))
    with pytest.raises(virgo.OptionError, match="virgo-backward"):
        gym.init_(model, loaders)


def test_no_loader_is_an_error(gym: Any, tmp_path: Path) -> None:
    model, _ = loaded(written(tmp_path, "virgo"))
    with pytest.raises(virgo.OptionError, match=r"create_loader\(\)"):
        gym.init_(model, [])


@pytest.mark.slow
def test_the_command_trains_a_file(gym: Any, tmp_path: Path) -> None:
    assert gym.main(["--cfg", str(written(tmp_path, "virgo-forward")), "seed", "3"]) == 0
    plan = json.loads((tmp_path / "out" / "run" / "3" / "plan.json").read_text())
    assert plan["method"] == "virgo-forward"
    assert plan["seed"] == 3


@pytest.mark.slow
def test_without_yacs_the_extra_is_named() -> None:
    code = "import sys; sys.modules['yacs'] = sys.modules['yacs.config'] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "import virgo.graphgym"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "pip install '.[graphgym]'" in done.stderr

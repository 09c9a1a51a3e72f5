"""One of two processes that train together on the CPU: what each has after ``virgo.init_``.

Run as ``python two_processes.py rank folder``; writes ``<folder>/<rank>.pt``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch_geometric.nn import GCN

import virgo

METHODS = ("virgo-backward", "virgo-backward+mirrored", "auto")


def data() -> Any:
    """The same graph in every process."""
    return virgo.data.citation_like(num_nodes=120, num_features=24, words_per_node=4, seed=0)


def model(device: str = "cpu") -> GCN:
    """The same network in every process."""
    torch.manual_seed(3)
    with torch.device(device):
        return GCN(24, 15, 7, 7, norm="batch_norm")


def shard(network: GCN) -> GCN:
    """Every layer by itself, then the rest."""
    from torch.distributed.fsdp import fully_shard  # public from PyTorch 2.6 on

    for conv in network.convs:
        fully_shard(conv)
    fully_shard(network)
    return network


def numbers(network: torch.nn.Module) -> dict[str, Tensor]:
    """Every parameter, gathered where it is sharded."""
    return {
        name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
        for name, p in network.named_parameters()
    }


def shards(network: torch.nn.Module) -> int:
    """Numbers of the parameters that this process holds itself."""
    return sum(p.to_local().numel() for p in network.parameters() if isinstance(p, DTensor))


def main(rank: int, folder: Path) -> None:
    """Initialise in every way, and write what came of it."""
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    graph, result = data(), {}
    for method in METHODS:
        wrapped = torch.nn.parallel.DistributedDataParallel(model())
        virgo.init_(wrapped, graph, method)
        result[f"ddp {method}"] = numbers(wrapped.module)
        sharded = shard(model())
        virgo.init_(sharded, graph, method)
        result[f"fsdp {method}"] = numbers(sharded)
        result[f"held {method}"] = shards(sharded)
    from_meta = shard(model("meta"))
    virgo.init_(from_meta, graph)
    result["fsdp meta"] = numbers(from_meta)
    result["check"] = str(virgo.check(from_meta, graph).verdict)
    for network in (wrapped, sharded, from_meta):  # they still train
        optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
        output = network(graph.x, graph.edge_index)
        torch.nn.functional.cross_entropy(output, graph.y).backward()
        optimiser.step()
        assert all(torch.isfinite(value).all() for value in numbers(network).values())
    torch.save(result, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))

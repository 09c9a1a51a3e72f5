"""Power-law graphs of any size: R-MAT, drawn edge by edge, the same whatever the machine.

    python benchmarks/rmat.py --edges 100e6 --out edges.npy

R-MAT picks a quadrant of the adjacency matrix over and over (Graph500's shares: 0.57, 0.19, 0.19,
0.05, to a 256th), which gives both ends heavy-tailed degrees. Node ids are scattered by a
bijection, so that hubs are not neighbours in memory; ids in the wild are mostly kinder to a cache.
The average degree is that of ogbn-papers100M: 1,615,685,872 directed edges on 111,059,956 nodes.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba
import numpy as np

from virgo.report.files import atomic_write

PAPERS_NODES, PAPERS_EDGES = 111_059_956, 1_615_685_872
_CHUNK = 1 << 22


@numba.njit(cache=True, nogil=True)
def _mix(x: Any) -> Any:
    """The output function of splitmix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _two_levels() -> Any:
    """16 random bits -> two levels: two bits of the source, two of the target.

    A share is a number of 256ths: 146, 49, 48, 13.
    """
    quadrant = np.repeat(np.arange(4, dtype=np.uint8), [146, 49, 48, 13])
    first, second = quadrant[:, None], quadrant[None, :]
    source, target = (first >> 1) << 1 | second >> 1, (first & 1) << 1 | second & 1
    return (source << 2 | target).reshape(-1)


@numba.njit(cache=True, nogil=True)
def _draw(
    sources: Any, targets: Any, first: int, seed: int, levels: int, nodes: int, table: Any
) -> None:
    """Edges ``first ..`` of the graph; each has a random stream of its own."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    mask, odd = np.uint64((1 << levels) - 1), np.uint64(0x9E3779B1)
    for edge in range(sources.size):
        state = _mix(np.uint64(seed) * golden + np.uint64(first + edge) + np.uint64(1))
        while True:
            source, target, bits = np.uint64(0), np.uint64(0), np.uint64(0)
            for pair in range((levels + 1) // 2):
                if pair % 4 == 0:
                    state += golden
                    bits = _mix(state)
                found = np.uint64(table[bits & np.uint64(0xFFFF)])
                bits >>= np.uint64(16)
                source = (source << np.uint64(2)) | (found >> np.uint64(2))
                target = (target << np.uint64(2)) | (found & np.uint64(3))
            source = (source * odd) & mask  # an odd factor permutes the ids
            target = (target * odd) & mask
            if source < np.uint64(nodes) and target < np.uint64(nodes):
                break
        sources[edge], targets[edge] = source, target


def nodes_for(edges: int) -> int:
    """As many as give the average degree of ogbn-papers100M."""
    return max(2, round(edges * PAPERS_NODES / PAPERS_EDGES))


def draw(edges: int, nodes: int | None = None, seed: int = 0, out: Any = None) -> Any:
    """``edge_index`` of shape [2, edges], int32; ``out`` may be a memory-mapped array."""
    nodes = nodes or nodes_for(edges)
    levels = max(1, (nodes - 1).bit_length())
    index = np.empty((2, edges), dtype=np.int32) if out is None else out
    table = _two_levels()

    def part(begin: int) -> None:
        end = min(begin + _CHUNK, edges)
        made = np.empty((2, end - begin), dtype=index.dtype)
        _draw(made[0], made[1], begin, seed, levels, nodes, table)
        index[:, begin:end] = made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(part, range(0, edges, _CHUNK)))
    return index


def write(path: Path, edges: int, nodes: int | None = None, seed: int = 0) -> Path:
    """The edges as a ``.npy`` file of shape [2, edges], written atomically."""
    with atomic_write(path) as temporary:
        array = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.int32, shape=(2, edges))
        draw(edges, nodes, seed, array)
        array.flush()
        del array
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--edges", type=float, required=True)
    parser.add_argument("--nodes", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    write(args.out, int(args.edges), int(args.nodes) if args.nodes else None, args.seed)
    print(f"wrote {args.out}")

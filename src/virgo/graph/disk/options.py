"""What a build can be asked for."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from virgo.errors import OptionError

#: An edge is one 64-bit number in a build, half of it a node.
MOST_NODES = 2**32
LEAST_MEMORY = 2**16
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
#: What decides where and how a graph is built, but not which graph.
_CIRCUMSTANCES = ("memory", "tmp", "force")


def memory_of(text: str | int) -> int:
    """Bytes of a size such as ``"2GB"``, ``"512 MB"`` or ``1_000_000``.

    >>> memory_of("512MB") == 512 * 2**20
    True

    Returns:
        The number of bytes.

    Raises:
        OptionError: it is no size, or too small to work in.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", str(text), re.IGNORECASE)
    if match is None:
        raise OptionError(f"memory: expected a size such as 2GB or 512MB, got {text!r}.")
    size = int(float(match[1]) * _UNITS[match[2].upper()])
    if size < LEAST_MEMORY:
        raise OptionError(
            f"memory: expected at least {LEAST_MEMORY // 2**10}KB, got {text!r}. Give more."
        )
    return size


@dataclass(frozen=True)
class BuildOptions:
    """All options of a build; see :func:`virgo.graph.disk.build`."""

    symmetric: bool = False
    deduplicate: bool = False
    self_loops: str = "keep"
    relabel: bool = False
    num_nodes: int | None = None
    source_column: str | None = None
    target_column: str | None = None
    weight_column: str | None = None
    header: str = "auto"
    id_type: str = "auto"
    memory: str | int = "2GB"
    tmp: str | Path | None = None
    force: bool = False

    def __post_init__(self) -> None:
        _one_of("self_loops", self.self_loops, ("keep", "drop"))
        _one_of("header", self.header, ("auto", "yes", "no"))
        _one_of("id_type", self.id_type, ("auto", "int64", "string"))
        memory_of(self.memory)
        if self.num_nodes is not None and self.num_nodes < 1:
            raise OptionError(f"num_nodes: expected at least 1, got {self.num_nodes}.")
        if self.num_nodes is not None and self.num_nodes > MOST_NODES:
            raise OptionError(
                f"num_nodes: expected at most {MOST_NODES:,}, got {self.num_nodes:,}. Give fewer."
            )
        if self.num_nodes is not None and self.relabel:
            raise OptionError(
                "num_nodes: expected none with relabel, which counts the nodes itself, got "
                f"{self.num_nodes}. Leave one of them out."
            )
        if (self.source_column is None) != (self.target_column is None):
            raise OptionError(
                "source_column, target_column: expected both or neither, got one. Name the other."
            )

    @property
    def merges(self) -> bool:
        """Whether equal edges become one."""
        return self.symmetric or self.deduplicate

    def asked(self) -> dict[str, object]:
        """What decides the graph, as the header keeps it."""
        given = asdict(self)
        return {name: given[name] for name in given if name not in _CIRCUMSTANCES}


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OptionError(f"{name}: expected one of {', '.join(known)}, got {value!r}.")

"""Where and how a run computes: device, precision, compilation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from virgo.devices import CPU as HOST
from virgo.devices import choose_device, count_devices, moved
from virgo.errors import OptionError

PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class Compute:
    """Where and how a run computes; its results differ from another's by rounding only.

    Attributes:
        device: where the network and its batches are.
        precision: ``"fp32"``, or ``"bf16"`` for linear maps in bfloat16 by autocast; products with
            the graph, norms and losses stay in float32.
        compile: whether the network is compiled by ``torch.compile``.
    """

    device: torch.device = HOST
    precision: str = "fp32"
    compile: bool = False

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise OptionError(
                f"precision: expected {' or '.join(PRECISIONS)}, got {self.precision!r}. "
                f"Choose one."
            )

    @classmethod
    def of(
        cls, device: str | torch.device = "cpu", precision: str = "fp32", compile: bool = False
    ) -> Compute:
        """From the words of a command line.

        Args:
            device: as :func:`virgo.devices.choose_device` takes it.
            precision: see the class.
            compile: see the class.

        Returns:
            The same with a device that is here.
        """
        return cls(choose_device(device), precision, compile)

    @property
    def is_cpu(self) -> bool:
        return self.device.type == "cpu"

    def devices(self) -> list[torch.device]:
        """All devices of the kind, or the one that was named by its number."""
        number: int | None = self.device.index
        if self.is_cpu or number is not None:
            return [self.device]
        count = max(1, count_devices(self.device.type))
        return [torch.device(self.device.type, number) for number in range(count)]

    def put(self, value: Tensor) -> Tensor:
        """A tensor on the device, copied while the device works where that is possible."""
        return moved(value, self.device)

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """The precision of a pass."""
        if self.precision == "fp32":
            yield
            return
        with torch.autocast(self.device.type, torch.bfloat16):
            yield

    def words(self) -> dict[str, object]:
        """What a record keeps of it; nothing for float32 on the CPU."""
        words: dict[str, object] = {} if self.is_cpu else {"device": str(self.device)}
        if self.precision != "fp32":
            words["precision"] = self.precision
        return words | ({"compile": True} if self.compile else {})


CPU = Compute()

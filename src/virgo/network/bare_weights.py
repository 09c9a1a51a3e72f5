"""Weights that no layer holds, watched as if each were a layer.

A model may keep matrices in a ``ParameterList``, or as its own parameters, and multiply with them
in its ``forward``. No module runs then, and no hook. Here every product of such a weight with
something that is no weight is a call of a stand-in, a module on which hooks are placed as on any
layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from virgo.layers import is_message_passing
from virgo.network.modules import PARAMETER_CONTAINERS

#: Names of the functions that multiply with a matrix.
_PRODUCTS = frozenset(
    "matmul __matmul__ __rmatmul__ mm bmm addmm addbmm baddbmm _sparse_mm inner tensordot "  # noqa: SIM905
    "linear bilinear einsum".split()
)


class BareWeight(nn.Module):
    """Stands for a weight in the place of a layer: called for every product with it."""

    def __init__(self, name: str, weight: nn.Parameter) -> None:
        super().__init__()
        self.register_parameter(name, weight)

    def forward(self, x: Tensor, product: Callable[[], Tensor]) -> Tensor:
        """The product.

        Args:
            x: what is multiplied with the weight.
            product: computes it.

        Returns:
            What ``product`` returns.
        """
        return product()


def bare_weights(path: str, module: nn.Module) -> dict[str, BareWeight]:
    """Stand-ins for the matrices of a module that does not multiply with them as a layer would.

    Such are a container of parameters, which is never called, and of people's own modules the model
    itself and those that have layers inside.

    Args:
        path: of the module in the model.
        module: no message-passing layer, and not inside of one.

    Returns:
        Modules by the names of the parameters.
    """
    if not isinstance(module, PARAMETER_CONTAINERS):
        is_library = type(module).__module__.startswith(("torch.nn.", "torch_geometric."))
        others = (part for part in module.modules() if part is not module)
        if is_library or (
            path and not any(is_message_passing(m) or owns_matrix(m) for m in others)
        ):
            return {}
    return {
        f"{path}.{name}" if path else name: BareWeight(name, parameter)
        for name, parameter in module.named_parameters(recurse=False)
        if is_matrix(parameter)
    }


def owns_matrix(module: nn.Module) -> bool:
    """Whether a module itself has a trainable parameter of two or more dimensions."""
    return any(is_matrix(p) for p in module.parameters(recurse=False))


def is_matrix(parameter: nn.Parameter) -> bool:
    """Whether it is trainable and has two dimensions or more."""
    return parameter.requires_grad and parameter.dim() > 1 and parameter.is_floating_point()


def bare_weights_called(units: Iterable[nn.Module]) -> AbstractContextManager[object]:
    """A context in which the stand-ins among ``units`` are called, and their hooks run."""
    stand_ins = [unit for unit in units if isinstance(unit, BareWeight)]
    return _ProductWatcher(stand_ins) if stand_ins else nullcontext()


class _ProductWatcher(TorchFunctionMode):
    """Follows weights, and what is computed from one alone (a row, a transpose), to products."""

    def __init__(self, stand_ins: list[BareWeight]) -> None:
        super().__init__()
        self.stand_ins = {id(w): stand_in for stand_in in stand_ins for w in stand_in.parameters()}
        self.followed: list[Tensor] = []  # kept, as the ids of others may come again

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        call = partial(func, *args, **(kwargs or {}))
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        found = {id(stand_in): stand_in for t in tensors if (stand_in := self.stand_ins.get(id(t)))}
        if len(found) != 1:
            return call()
        (stand_in,) = found.values()
        others = [t for t in tensors if id(t) not in self.stand_ins and t.is_floating_point()]
        if not others:
            return self._follow(call(), stand_in)
        operands = [t for t in others if not isinstance(t, nn.Parameter)]
        if not operands or getattr(func, "__name__", "") not in _PRODUCTS:
            return call()
        return stand_in(max(operands, key=torch.numel), call)

    def _follow(self, result: Any, stand_in: BareWeight) -> Any:
        if isinstance(result, Iterator):  # `for weight in self.weights`
            result = list(result)
            return iter(self._follow(result, stand_in))
        for part in tree_leaves(result):
            if isinstance(part, Tensor) and part.is_floating_point():
                self.stand_ins[id(part)] = stand_in
                self.followed.append(part)
        return result

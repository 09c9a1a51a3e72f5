"""``summary()``: the modules of a model with shapes, parameters, signal and gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten
from torch.utils.hooks import RemovableHandle

from virgo.diagnostics.checking import with_shapes
from virgo.diagnostics.measurement import loss_name, read_subject
from virgo.errors import OptionError, named_options, shown
from virgo.layers import is_message_passing
from virgo.network.inputs import Forward
from virgo.network.losses import InferredLoss
from virgo.network.modules import hooked
from virgo.network.probe import Loss
from virgo.network.profile import as_in_training, profile
from virgo.report.text import show, text_table

_COLUMNS = ("layer", "input shape", "output shape", "parameters", "signal", "gradient")
_NONE = "--"


@dataclass
class _Line:
    """One module of the table."""

    label: str
    path: str
    module: nn.Module
    received: str = ""
    returned: str = ""


@named_options
def summary(
    model: nn.Module,
    data: Any,
    *,
    max_depth: int = 3,
    loss: Loss | None = None,
    backward: bool = True,
    forward: Forward | None = None,
    nodes: int | None = None,
    seed: int = 0,
) -> str:
    """The table of ``torch_geometric.nn.summary``, with the signal and the gradient of one pass.

    *Signal* is the mean square of what a part with weights returns, *gradient* the mean square of
    the loss's gradient there. Of a module that runs several times the first call is shown. The
    pass is that of :func:`virgo.check`, and the model comes out as it went in.

    Args:
        model: any model.
        data: as for :func:`virgo.plan`.
        max_depth: how deep nested modules are shown; message-passing layers are never opened.
        loss: ``lambda output, data: ...``; inferred as in :func:`virgo.check` by default.
        backward: whether to run backward at all.
        forward: ``lambda model, data: ...`` for models called in an unusual way.
        nodes: run on a connected sample of about this many nodes.
        seed: of the sample and of a random probe.

    Returns:
        The table as text.

    Raises:
        OptionError: if ``max_depth`` is negative.

    >>> import virgo
    >>> from torch_geometric.nn import GCN
    >>> data = virgo.data.citation_like(num_nodes=100, num_features=20, words_per_node=5, seed=0)
    >>> model = GCN(20, 8, num_layers=2, out_channels=7)
    >>> print(virgo.summary(model, data).splitlines()[0])
    layer input shape output shape parameters signal gradient
    """
    depth: object = max_depth
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 0:
        raise OptionError(f"max_depth: expected a number from 0 on, got {shown(depth)}. Pass 3.")
    subject = read_subject(with_shapes(model, data, forward), data, nodes, forward, seed)
    chosen = (loss or InferredLoss(seed)) if backward else None
    lines = list(_lines(subject.model, max_depth))
    with as_in_training(subject.model):
        prepared = subject.inputs.prepared_for(subject.model)
        with hooked(_shape_hooks(lines)):
            seen = profile(subject.model, prepared, subject.forward, chosen)
    calls = {call.path: call for call in reversed(seen.calls)}  # the first call of each wins
    body = []
    for line in lines:
        count = sum(parameter.numel() for parameter in line.module.parameters())
        call = calls.get(line.path)
        body.append(
            (
                line.label,
                line.received or _NONE,
                line.returned or _NONE,
                f"{count:,}" if count else _NONE,
                _NONE if call is None else show(call.signal),
                _NONE if call is None else show(call.gradient),
            )
        )
    notes = [f"note: {note}" for note in subject.notes]
    return "\n".join([*text_table(_COLUMNS, body, left=3), f"loss: {loss_name(chosen)}", *notes])


def _lines(model: nn.Module, max_depth: int) -> Iterator[_Line]:
    """The modules to show, in order of declaration, as PyG's summary indents them."""

    def below(module: nn.Module, path: str, depth: int) -> Iterator[_Line]:
        if depth > max_depth or is_message_passing(module):
            return
        for name, child in module.named_children():
            if not name.startswith("_"):
                indent = "├─" if depth == 1 else "│    " * (depth - 1) + "└─"
                inner = f"{path}.{name}" if path else name
                yield _Line(f"{indent}({name}){type(child).__name__}", inner, child)
                yield from below(child, inner, depth + 1)

    yield _Line(type(model).__name__, "", model)
    yield from below(model, "", 1)


def _shape_hooks(lines: list[_Line]) -> Iterator[RemovableHandle]:
    for line in lines:
        if not isinstance(line.module, torch.jit.ScriptModule):  # takes no hooks with keywords
            yield line.module.register_forward_hook(_shapes_into(line), with_kwargs=True)


def _shapes_into(line: _Line) -> Callable[..., None]:
    def hook(module: nn.Module, args: object, kwargs: object, output: object) -> None:
        if not line.returned:
            line.received, line.returned = _shapes((args, kwargs)), _shapes(output)

    return hook


def _shapes(value: object) -> str:
    leaves, _ = tree_flatten(value)
    return ", ".join(str(list(leaf.shape)) for leaf in leaves if isinstance(leaf, Tensor))

r"""``fit_last_()``: the last layer in closed form from the training labels.

A layer's output is linear in its own weight: :math:`Y = Z W^\top + 1 b^\top`, where row :math:`i`
of :math:`Z` is what the layer makes of node :math:`i` before the weight. Ridge regression on the
training labels is therefore a warm start that costs a few passes of one layer and one small SVD:

.. math:: W^\top = (Z_c^\top Z_c + \lambda I)^{-1} Z_c^\top Y_c

with centred :math:`Z` and one-hot labels, :math:`\lambda` by the leave-one-out error, which for
ridge regression has a closed form too, and, for classes, the scale that makes the cross-entropy on
the training labels least. It leaves every other layer alone: spectral weights and this last layer
make a deep network accurate before its first step (docs/depth.md).

:math:`Z` is read off the layer itself by giving it unit weights, so that any layer is served whose
output is linear in its weights, and others are noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from virgo.errors import GraphError, LayerError, OptionError, named_options
from virgo.network import reading
from virgo.network.graph_inputs import is_graph
from virgo.network.inputs import Forward, is_classes, run
from virgo.network.modules import hooked, is_linear, is_uninitialised, layers_of, preserved, unwrap
from virgo.network.probe import call_users_code

#: Penalties that are tried, as shares of the largest squared singular value, and scales of logits.
PENALTIES = torch.logspace(-6, 2, 33, dtype=torch.float64)
SCALES = (1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0)


@dataclass(frozen=True)
class LastFit:
    """What was fitted.

    Attributes:
        layer: the path of the last layer.
        penalty: of ridge regression.
        scale: by which the fitted outputs were multiplied.
        before: share of the training labels that were met, or the squared error, before.
        after: the same, after.
    """

    layer: str
    penalty: float
    scale: float
    before: float
    after: float

    def __str__(self) -> str:
        return (
            f"{self.layer} fitted to the training labels by ridge regression (penalty "
            f"{self.penalty:.3g}): {self.before:.3g} -> {self.after:.3g}"
        )


@named_options
def fit_last_(
    model: nn.Module, data: Any, *, penalty: float | None = None, forward: Forward | None = None
) -> LastFit:
    """Fit the last layer to the training labels by ridge regression, in place.

    Call it after :func:`virgo.init_`. Only the weights and the bias of the last layer change; on an
    error nothing does.

    Args:
        model: any model whose last layer's output is its own, with or without a (log-)softmax.
        data: a ``Data`` or ``Batch`` with ``y``: classes, or numbers to be met; only rows in
            ``train_mask`` count.
        penalty: of ridge regression; by default the one with the least leave-one-out error.
        forward: ``lambda model, data: ...`` for models called in an unusual way.

    Returns:
        What was fitted, and how well.

    Raises:
        OptionError: the penalty is not positive.
        GraphError: there are no labels that fit the last layer.
        LayerError: something learned follows the last layer, or it is not linear in its weights.

    >>> import virgo
    >>> from torch_geometric.nn import GCN
    >>> data = virgo.data.citation_like(num_nodes=200, seed=0)
    >>> model = GCN(data.num_features, 32, num_layers=4, out_channels=7)
    >>> _ = virgo.init_(model, data, "virgo+spectral")
    >>> fit = virgo.fit_last_(model, data)
    >>> fit.layer, fit.after > fit.before
    ('convs.3', True)
    """
    if penalty is not None and not penalty > 0:
        raise OptionError(f"penalty: expected a positive number, got {penalty!r}. Leave it out.")
    bare = unwrap(model)
    if is_graph(data) or is_uninitialised(bare):
        raise GraphError(
            "fit_last_: expected data with features and labels and a model whose parameters have "
            "their shapes, got others. Pass a Data with x and y, after virgo.init_(model, data)."
        )
    inputs = reading.read(data)
    if inputs.is_hetero:
        raise GraphError("fit_last_: expected one kind of node, got a HeteroData. Fit it yourself.")
    with preserved(bare), torch.no_grad():
        calls = _last_calls(bare, partial(run, bare, inputs.prepared_for(bare).data, forward))
        labels, mask, classes = _labels(inputs.data, calls[0].output)
        last, columns = _linear_call(calls)
        features, wanted = columns[mask].double(), labels[mask]
        before = _met(last.output[mask].double(), wanted, classes)
        targets = functional.one_hot(wanted, last.width).double() if classes else wanted.double()
        weight, bias, penalty = ridge(features, targets, penalty, with_bias=last.bias is not None)
        scale = _best_scale(features @ weight + bias, wanted) if classes else 1.0
    with torch.no_grad():
        last.write(weight * scale, bias * scale)
    after = _met((features @ weight + bias) * scale, wanted, classes)
    return LastFit(last.path, penalty, scale, before, after)


def ridge(
    features: Tensor, targets: Tensor, penalty: float | None = None, *, with_bias: bool = True
) -> tuple[Tensor, Tensor, float]:
    """Ridge regression with the penalty of the least leave-one-out error.

    Args:
        features: ``[rows, columns]``, float64.
        targets: ``[rows, outputs]``.
        penalty: the penalty, where it is not to be chosen.
        with_bias: whether there is a bias, which is not penalised.

    Returns:
        The weight ``[columns, outputs]``, the bias and the penalty.

    >>> x = torch.arange(6, dtype=torch.float64)[:, None]
    >>> weight, bias, _ = ridge(x, 2 * x + 1, penalty=1e-9)
    >>> round(float(weight), 6), round(float(bias), 6)
    (2.0, 1.0)
    """
    means = features.mean(0), targets.mean(0)
    if not with_bias:
        means = torch.zeros_like(means[0]), torch.zeros_like(means[1])
    left, values, right = torch.linalg.svd(features - means[0], full_matrices=False)
    projected = left.T @ (targets - means[1])
    squares = values.square()

    def left_out_error(candidate: float) -> float:
        shrink = squares / (squares + candidate)
        residual = targets - means[1] - left @ (shrink[:, None] * projected)
        leverage = left.square() @ shrink + with_bias / len(features)
        return float((residual / (1 - leverage).clamp(min=1e-9)[:, None]).square().mean())

    if penalty is None:
        penalty = min((PENALTIES * max(float(squares[0]), 1e-30)).tolist(), key=left_out_error)
    weight = right.T @ ((values / (squares + penalty))[:, None] * projected)
    return weight, means[1] - means[0] @ weight, float(penalty)


@dataclass
class _LastCall:
    """The last layer's call: what it received, and what it returned."""

    path: str
    layer: nn.Module
    call: Callable[[], Tensor]
    output: Tensor

    @property
    def width(self) -> int:
        return self.output.size(-1)

    @property
    def bias(self) -> nn.Parameter | None:
        """One bias per output; where a layer has several, they add up and the first serves."""
        return next((p for p in self.layer.parameters() if p.shape == (self.width,)), None)

    @property
    def weights(self) -> list[tuple[nn.Parameter, bool]]:
        """The matrices, each with whether its outputs come last."""
        found = []
        for name, parameter in self.layer.named_parameters():
            module = self.layer.get_submodule(name.rpartition(".")[0])
            in_first = not is_linear(module)
            if parameter.dim() == 2 and parameter.size(int(in_first)) == self.width:
                found.append((parameter, in_first))
        return found

    def design(self) -> Tensor:
        """``Z``, by unit weights; it has to give the layer's output with the layer's weights."""
        if not self.weights:
            raise LayerError(
                f"{self.path}: expected a layer with one matrix per output, got "
                f"{type(self.layer).__name__}, which has none. Fit it yourself."
            )
        parameters = list(self.layer.parameters())
        saved = [p.detach().clone() for p in parameters]
        matrices = [(w.T if f else w).detach().clone() for w, f in self.weights]
        for p in parameters:
            p.zero_() if p.dim() == 2 or p.shape == (self.width,) else None
        try:
            columns = torch.cat([self._columns(w.T if f else w) for w, f in self.weights], 1)
        finally:
            for p, value in zip(parameters, saved, strict=True):
                p.copy_(value)
        biases = [p for p in parameters if p.shape == (self.width,)]
        rebuilt = columns @ torch.cat(matrices, 1).T + sum(biases, start=torch.zeros(()))
        if not torch.allclose(rebuilt, self.output, rtol=1e-3, atol=1e-4 * float(rebuilt.std())):
            raise LayerError(
                f"{self.path}: expected an output that is linear in the layer's weights, got "
                f"{type(self.layer).__name__}, whose is not. Fit it yourself."
            )
        return columns

    def _columns(self, weight: Tensor) -> Tensor:
        """What the layer makes of its input before one weight, a block of outputs at a time."""
        parts = []
        for begin in range(0, weight.size(1), self.width):
            count = min(self.width, weight.size(1) - begin)
            weight.zero_()
            weight[range(count), range(begin, begin + count)] = 1.0
            parts.append(self.call()[:, :count])
        weight.zero_()
        return torch.cat(parts, 1)

    def write(self, weight: Tensor, bias: Tensor) -> None:
        """Put the fitted rows into the layer."""
        begin = 0
        for parameter, in_first in self.weights:
            matrix = parameter.T if in_first else parameter
            matrix.copy_(weight[begin : begin + matrix.size(1)].T)
            begin += matrix.size(1)
        for parameter in self.layer.parameters():
            if parameter.shape == (self.width,):
                parameter.zero_()
        if self.bias is not None:
            self.bias.copy_(bias)


def _last_calls(model: nn.Module, forward: Callable[[], Any]) -> list[_LastCall]:
    """The calls whose output is the model's, outermost first: a layer, a Linear at its end."""
    modules = layers_of(model) | {p: m for p, m in model.named_modules() if is_linear(m)}
    calls: list[_LastCall] = []

    def record(path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.dim() == 2:
            calls.append(_LastCall(path, module, partial(module.forward, *args, **kwargs), output))

    handles = [
        module.register_forward_hook(partial(record, path), with_kwargs=True)
        for path, module in modules.items()
    ]
    with hooked(handles):
        output = call_users_code(type(model).__name__, forward)

    def is_output(value: Tensor) -> bool:
        same = (value, value.log_softmax(-1), value.softmax(-1))
        return any(output.shape == s.shape and torch.allclose(output, s) for s in same)

    last = [
        call for call in reversed(calls) if isinstance(output, Tensor) and is_output(call.output)
    ]
    if not last:
        raise LayerError(
            f"{type(model).__name__}: expected a model that returns its last layer's output, with "
            f"or without a softmax, got something after it. Fit it yourself."
        )
    return last


def _linear_call(calls: list[_LastCall]) -> tuple[_LastCall, Tensor]:
    """The outermost of them that is linear in its weights, and its design matrix."""
    for call in calls[:-1]:
        try:
            return call, call.design()
        except LayerError:
            continue
    return calls[-1], calls[-1].design()


def _labels(data: Any, output: Tensor) -> tuple[Tensor, Tensor, bool]:
    """Labels, the rows that count, and whether they are classes."""
    y, mask = data.get("y"), data.get("train_mask")
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.dim() != 1:
        mask = torch.ones(output.size(0), dtype=torch.bool, device=output.device)
    if isinstance(y, Tensor) and y.dim() and y.size(0) == output.size(0) == mask.size(0):
        classes = is_classes(y) and int(y.max()) < output.size(1)
        if classes or y.numel() == output.numel():
            known = mask if classes else mask & torch.isfinite(y.float()).reshape(len(y), -1).all(1)
            if bool(known.any()):
                return (y.reshape(-1) if classes else y.reshape(output.shape)), known, classes
    raise GraphError(
        f"data.y: expected a class or {output.size(1)} numbers for each of {output.size(0)} rows, "
        f"some of them in train_mask, got {'none' if y is None else list(y.shape)}. Set data.y."
    )


def _met(outputs: Tensor, wanted: Tensor, classes: bool) -> float:
    if classes:
        return float((outputs.argmax(1) == wanted).double().mean())
    return float((outputs - wanted).square().mean())


def _best_scale(outputs: Tensor, classes: Tensor) -> float:
    return min(SCALES, key=lambda scale: float(functional.cross_entropy(outputs * scale, classes)))

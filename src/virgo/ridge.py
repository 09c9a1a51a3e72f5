r"""``fit_last_()``: the last layer in closed form from the training labels.

A layer's output is linear in its own weight: :math:`Y = Z W^\top + 1 b^\top`, where row :math:`i`
of :math:`Z` is what the layer makes of node :math:`i` before the weight. Ridge regression on the
training labels is therefore a warm start that costs a few passes of one layer and one small SVD:

.. math:: W^\top = (Z_c^\top Z_c + \lambda I)^{-1} Z_c^\top Y_c

with centred :math:`Z` and one-hot labels (:math:`\pm 1` where a row may have several labels),
:math:`\lambda` by the leave-one-out error, which for ridge regression has a closed form too, and,
for classes and labels, the scale that makes the cross-entropy on the training rows least. It leaves
every other layer alone: spectral weights and this last layer make a deep network accurate before
its first step (docs/depth.md).

:math:`Z` is read off the layer itself by giving it unit weights, so that any layer is served whose
output is linear in its weights, and others are noticed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from virgo.errors import GraphError, LayerError, OptionError, named_options, shown
from virgo.network import reading
from virgo.network.graph_inputs import is_graph
from virgo.network.inputs import Forward, is_classes, run, training_rows
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
        before: share of the training labels that were met, or of numbers the squared error.
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

    Call it after :func:`virgo.init_`. Only the weights and the biases of the last layer change; on
    an error nothing does.

    Args:
        model: any model whose last layer's output is its own, with or without a (log-)softmax.
        data: a ``Data`` or ``Batch`` with ``y``: classes, zeros and ones for labels of which a row
            may have several, or numbers to be met; only rows in ``train_mask`` count.
        penalty: of ridge regression; by default the one with the least leave-one-out error.
        forward: ``lambda model, data: ...`` for models called in an unusual way.

    Returns:
        What was fitted, and how well.

    Raises:
        OptionError: the penalty is not positive.
        GraphError: there are no labels that fit the last layer, or ``train_mask`` is not one
            boolean per row.
        LayerError: something learned follows the last layer, it is not linear in its weights, or
            they are frozen or used elsewhere too.

    >>> import virgo
    >>> from torch_geometric.nn import GCN
    >>> data = virgo.data.citation_like(num_nodes=200, seed=0)
    >>> model = GCN(data.num_features, 32, num_layers=4, out_channels=7)
    >>> _ = virgo.init_(model, data, "virgo+spectral")
    >>> fit = virgo.fit_last_(model, data)
    >>> fit.layer, fit.after > fit.before
    ('convs.3', True)
    """
    given: object = penalty
    if given is not None and not (isinstance(given, (int, float)) and 0 < given < math.inf):
        raise OptionError(
            f"penalty: expected a positive finite number, got {shown(given)}. Leave it out."
        )
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
        labels = wanted(inputs.data, *calls[0].output.shape)
        last, columns = _linear_call(calls)
        last.refuse_what_others_need(bare)
        features = columns[labels.rows].double()
        before = labels.met(last.output[labels.rows].double())
        weight, bias, penalty = ridge(
            features, labels.targets(last.width), penalty, with_bias=last.bias is not None
        )
        scale = labels.best_scale(features @ weight + bias)
    with torch.no_grad():
        last.write(weight * scale, bias * scale)
    after = labels.met((features @ weight + bias) * scale)
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
    uses: int = 1  # how often the pass called this layer

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
        rebuilt = columns.double() @ torch.cat(matrices, 1).double().T
        rebuilt = rebuilt + sum(biases, start=torch.zeros(()))
        rounding = 4 * torch.finfo(self.output.dtype).eps  # which bfloat16 has much of
        rtol, atol = (
            max(1e-3, rounding),
            max(1e-4, rounding) * float(rebuilt.square().mean().sqrt()),
        )
        if not torch.allclose(rebuilt, self.output.double(), rtol=rtol, atol=atol):
            raise LayerError(
                f"{self.path}: expected an output that is linear in the layer's weights, got "
                f"{type(self.layer).__name__}, whose is not. Fit it yourself."
            )
        return columns

    def refuse_what_others_need(self, model: nn.Module) -> None:
        """Frozen weights are not to be changed, shared ones not without changing ``Z`` itself."""
        mine = {id(p): name for name, p in self.layer.named_parameters()}
        inside = f"{self.path}." if self.path else ""
        shared = [
            name
            for name, p in model.named_parameters(remove_duplicate=False)
            if id(p) in mine and not name.startswith(inside)
        ]
        frozen = [name for name, p in self.layer.named_parameters() if not p.requires_grad]
        if frozen or shared or self.uses > 1:
            once = f"one that runs {self.uses} times"
            tied = f"one whose weight is {shared[0]} too" if shared else once
            got = f"a frozen {frozen[0]}" if frozen else tied
            raise LayerError(
                f"{self.path}: expected a last layer that is trained and used once, got {got}. "
                f"Leave fit_last_ out."
            )

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
    if isinstance(output, Tensor) and not bool(torch.isfinite(output).all()):
        raise GraphError(
            f"{type(model).__name__}: expected a finite output, got NaN or infinity. Clean data.x, "
            f"or initialise the model first: virgo.init_(model, data)."
        )
    for call in calls:
        call.uses = sum(other.layer is call.layer for other in calls)

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


@dataclass(frozen=True)
class Wanted:
    """What the training rows are to be: a class each, labels of zero and one, or numbers."""

    kind: str
    rows: Tensor
    values: Tensor  # of these rows

    def targets(self, width: int) -> Tensor:
        """What ridge regression is to meet; a label's logit is to be above or below zero."""
        if self.kind == "classes":
            return functional.one_hot(self.values, width).double()
        return 2 * self.values - 1 if self.kind == "labels" else self.values

    def met(self, outputs: Tensor) -> float:
        """The share of classes or labels that outputs meet, or the squared error of numbers."""
        if self.kind == "classes":
            return float((outputs.argmax(1) == self.values).double().mean())
        if self.kind == "labels":
            return float(((outputs > 0) == (self.values > 0)).double().mean())
        return float((outputs - self.values).square().mean())

    def best_scale(self, outputs: Tensor) -> float:
        """The scale of logits with the least cross-entropy; numbers are met as they are."""
        if self.kind == "numbers":
            return 1.0
        binary = functional.binary_cross_entropy_with_logits
        loss = functional.cross_entropy if self.kind == "classes" else binary
        return min(SCALES, key=lambda scale: float(loss(outputs * scale, self.values)))


def wanted(data: Any, count: int, width: int) -> Wanted:
    """The labels of the rows that count, by the same reading as the inferred loss.

    Args:
        data: with ``y``, and ``train_mask`` if not all rows count.
        count: of the rows that the model returns.
        width: of such a row.

    Returns:
        What the training rows are to be.

    Raises:
        GraphError: there are no labels that fit.
    """
    y, mask = data.get("y"), training_rows(data)
    rows = torch.ones(count, dtype=torch.bool) if mask is None else mask
    rows = rows.to(y.device) if isinstance(y, Tensor) else rows
    if isinstance(y, Tensor) and y.dim() and y.size(0) == count == rows.size(0):
        if is_classes(y[rows]) and width > 1 and int(y[rows].max()) < width:
            return Wanted("classes", rows, y[rows].reshape(-1).long())
        numbers = y.reshape(count, -1).double()
        rows = rows & torch.isfinite(numbers).all(1)
        if numbers.shape == (count, width) and bool(rows.any()):
            values = numbers[rows]
            is_label = bool(((values == 0) | (values == 1)).all())
            return Wanted("labels" if is_label else "numbers", rows, values)
    raise GraphError(
        f"data.y: expected a class or {width} numbers for each of {count} rows, "
        f"some of them in train_mask, got {'none' if y is None else list(y.shape)}. Set data.y."
    )

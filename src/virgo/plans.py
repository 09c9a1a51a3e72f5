"""Initialisation as data: a frozen table of variances that can be stored, compared and applied."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from virgo import plan_views
from virgo.draws import STRUCTURED, generator_for, read_basis, standard
from virgo.errors import OptionError, PlanError, named_options, shown
from virgo.network.modules import has_shared_memory, is_uninitialised, unwrap
from virgo.network.replicas import fill, whole
from virgo.report.json_types import check_types
from virgo.report.notebook import NotebookView
from virgo.report.page import Document
from virgo.vocabulary import DISTRIBUTIONS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = 1


@dataclass(frozen=True)
class Row:
    """One weight of a plan.

    ``ratio`` is what the graph adds: the variance over that of the same method without a graph
    (Kaiming's, for Virgo), so it is 1 for the classic methods.

    Attributes:
        layer: the path of the layer in the model.
        weight: the name of the parameter.
        shape: of the parameter.
        fan_in: how many inputs a unit sums.
        fan_out: how many units read an input.
        ratio: of the graph, see above.
        variance: to draw from.
        uses: how often the model runs the layer.
        in_first: whether the weight's first axis is its input, as in layers that keep ``x @ W``.
        mirror_in: whether its inputs are pairs of mirrored units.
        mirror_out: whether its outputs are.
        distribution: where it differs from the plan's.
    """

    layer: str
    weight: str
    shape: tuple[int, ...]
    fan_in: int
    fan_out: int
    ratio: float
    variance: float
    uses: int = 1
    in_first: bool = False
    mirror_in: bool = False
    mirror_out: bool = False
    distribution: str | None = None

    def __post_init__(self) -> None:
        number = isinstance(self.variance, (int, float)) and not isinstance(self.variance, bool)
        if not number or not (math.isfinite(self.variance) and self.variance > 0):
            raise PlanError(
                f"{self.weight}: expected a positive finite variance, got {self.variance!r}. "
                f"Check the method, the edge weights and the features."
            )

    @property
    def std(self) -> float:
        """The square root of the variance."""
        return math.sqrt(self.variance)


@dataclass(frozen=True)
class Plan(NotebookView):
    """What to draw each weight from, how it was arrived at, and what is left alone and why.

    Attributes:
        method: its name, as :func:`virgo.methods` has it.
        rows: one per weight.
        biases: the names of those that are set to zero.
        left_alone: name and reason of every parameter that is not touched.
        variant: ``"theorem"`` or ``"released"``.
        estimate: ``"analytic"`` or ``"measured"``.
        distribution: of all weights whose row names no other.
        signal: how features became one number per node.
        nonlinearity: the activation that the gain is of.
        gain: 2 for ReLU.
        bias: ``"zero"`` or ``"keep"``.
        seed: of the draw.
        num_classes: of the last layer's softmax, where there is one.
        graph: what it was made for: numbers of nodes and edges, and their like.
        measured: of a measured estimate, what the passes showed.
        choice: of ``"auto"``, what was tried, before and after.
        notes: in words, what one should know.
        basis: of ``"spectral"``, the features' directions; see :func:`virgo.draws.scaled_basis`.
    """

    method: str
    rows: tuple[Row, ...]
    biases: tuple[str, ...] = ()
    left_alone: tuple[tuple[str, str], ...] = ()
    variant: str = "theorem"
    estimate: str = "analytic"
    distribution: str = "uniform"
    signal: str = "mean"
    nonlinearity: str = "relu"
    gain: float = 2.0
    bias: str = "zero"
    seed: int = 0
    num_classes: int | None = None
    graph: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Any] | None = None
    choice: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    basis: Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.distribution not in (*DISTRIBUTIONS, *STRUCTURED):
            raise PlanError(
                f"plan: expected a distribution of {', '.join(DISTRIBUTIONS)}, got "
                f"{self.distribution!r}. Choose one."
            )
        if self.basis is not None:
            try:
                read_basis(self.basis)
            except (ValueError, KeyError, TypeError) as error:
                raise PlanError(
                    f"plan: expected a basis of shape and float32, got {error}. Make the plan "
                    f"with virgo.plan(model, data)."
                ) from error

    @property
    def variances(self) -> dict[str, float]:
        """Parameter name -> variance."""
        return {row.weight: row.variance for row in self.rows}

    def to_json(self, indent: int | None = None) -> str:
        """The whole plan as JSON; :meth:`from_json` reads it back exactly.

        Args:
            indent: spaces per level; ``None`` for one line.

        Returns:
            The text.
        """
        from virgo import __version__

        return json.dumps(
            {"format": FORMAT, "virgo": __version__, **asdict(self)}, indent=indent, allow_nan=False
        )

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan that :meth:`to_json` wrote.

        Args:
            text: the JSON.

        Returns:
            The plan, equal to the one that was written.

        Raises:
            PlanError: if the text is no plan of this format.
        """
        try:
            raw = json.loads(text)
            if raw["format"] != FORMAT:
                raise PlanError(
                    f"plan: expected format {FORMAT}, got {raw['format']}. "
                    f"Read it with the version of virgo that wrote it ({raw.get('virgo')})."
                )
            known = {f.name for f in fields(cls)}
            values = {key: value for key, value in raw.items() if key in known}
            for row in raw["rows"]:
                check_types(Row, row)
            rows = tuple(Row(**{**row, "shape": tuple(row["shape"])}) for row in raw["rows"])
            values |= {
                "rows": rows,
                "biases": tuple(raw["biases"]),
                "left_alone": tuple((name, reason) for name, reason in raw["left_alone"]),
                "notes": tuple(raw["notes"]),
            }
            check_types(cls, values)
            plan = cls(**values)
            # what the open-ended parts hold is told by using them
            str(plan), plan.to_json()
            return plan
        except PlanError:
            raise
        except (
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ) as error:
            raise PlanError(
                f"plan: expected the JSON of a Plan, got {type(error).__name__}: {error}. "
                f"Pass what plan.to_json() returned."
            ) from error

    @named_options
    def apply_(
        self,
        model: nn.Module,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> nn.Module:
        """Draw every planned weight in place; the same bits for the same plan and seed.

        Nothing is touched unless all of it fits. Weights are drawn on the CPU and copied once; of
        a parameter sharded by ``fully_shard`` every process fills its own part.

        Args:
            model: a model with the weights that were planned.
            seed: of the draws; the plan's own if None.
            generator: gives the seed instead and is advanced.

        Returns:
            The same model.

        Raises:
            PlanError: the model's parameters are lazy, expanded, or other than the plan's.
        """
        given, model = model, unwrap(model)
        if is_uninitialised(model):
            raise PlanError(
                f"{type(model).__name__}: expected initialised parameters, got lazy ones. "
                f"Run the model once on a batch, or use virgo.init_(model, data)."
            )
        parameters = dict(model.named_parameters(remove_duplicate=False))
        mismatches = self._mismatches(parameters)
        if mismatches:
            raise PlanError(
                f"{type(model).__name__}: the plan does not fit: " + "; ".join(mismatches) + ". "
                "Make a plan for this model with virgo.plan(model, data)."
            )
        for name in [*(row.weight for row in self.rows), *self.biases]:
            if has_shared_memory(parameters[name]):
                raise PlanError(
                    f"{name}: expected a parameter with memory of its own, got an expanded one. "
                    f"Assign torch.nn.Parameter({name}.detach().clone()) in its place first."
                )
        seed = choose_seed(self.seed if seed is None else seed, generator)
        drawn = [self.draw(row, seed, parameters[row.weight]) for row in self.rows]
        with torch.no_grad():
            for row, weight in zip(self.rows, drawn, strict=True):
                fill(parameters[row.weight], weight)
            for name in self.biases:
                parameters[name].zero_()
        return given

    def draw(self, row: Row, seed: int, parameter: torch.Tensor) -> torch.Tensor:
        """The weight of one row, on the CPU, so that it is the same for every device.

        Args:
            row: the weight's.
            seed: of the draw.
            parameter: the weight that is there, for its precision, and for ``"own"`` its values.

        Returns:
            What to copy into the parameter.
        """
        dtype = parameter.dtype
        distribution = row.distribution or self.distribution
        if distribution == "own":
            own = whole(parameter).cpu()  # where its bits are the same for every device
            rms = float(own.double().square().mean().sqrt())
            return own * (row.std / rms) if rms > 0 else own.clone()
        work = torch.float64 if dtype == torch.float64 else torch.float32
        unit = standard(
            row.shape,
            distribution,
            generator_for(seed, row.weight),
            mirror_in=row.mirror_in,
            mirror_out=row.mirror_out,
            in_first=row.in_first,
            basis=self._basis_for(row) if distribution == "spectral" else None,
            dtype=work,
        )
        return unit.mul_(row.std).to(dtype)

    def _basis_for(self, row: Row) -> torch.Tensor:
        basis = None if self.basis is None else read_basis(self.basis)
        if basis is None or basis.size(1) != row.fan_in:
            raise PlanError(
                f"{row.weight}: expected a basis of {row.fan_in} features, got "
                f"{'none' if basis is None else basis.size(1)}. Make the plan with "
                f"virgo.plan(model, data)."
            )
        return basis

    def _mismatches(self, parameters: Mapping[str, nn.Parameter]) -> list[str]:
        found = []
        for row in self.rows:
            parameter = parameters.get(row.weight)
            if parameter is None:
                found.append(f"{row.weight} is missing")
            elif tuple(parameter.shape) != row.shape:
                found.append(
                    f"{row.weight} is {list(parameter.shape)}, planned for {list(row.shape)}"
                )
            elif not parameter.requires_grad:
                found.append(f"{row.weight} is frozen")
        for name in self.biases:
            if name not in parameters:
                found.append(f"{name} is missing")
            elif not parameters[name].requires_grad:
                found.append(f"{name} is frozen")
        return found

    @property
    def coverage(self) -> str:
        """How many weights the plan sets and how, and which it leaves alone, in one line."""
        return plan_views.coverage(self)

    def __str__(self) -> str:
        return plan_views.text(self)

    def __repr__(self) -> str:
        return plan_views.one_line(self)

    def records(self) -> list[dict[str, Any]]:
        """One dictionary per weight: the rows of :meth:`to_frame`."""
        return plan_views.records(self)

    def document(self) -> Document:
        """The plan as :func:`virgo.report.page.page` takes it."""
        return plan_views.document(self)

    def figure(self) -> Figure:
        """The standard deviation of every weight, beside the same method without a graph."""
        return plan_views.figure(self)


def choose_seed(seed: int, generator: torch.Generator | None) -> int:
    """The seed of a draw: ``seed``, or one number taken from the caller's generator."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise OptionError(
            f"generator: expected a torch.Generator, got {shown(generator)}. Pass one, or a seed."
        )
    if generator is None:
        try:
            return operator.index(seed)
        except TypeError:
            raise OptionError(f"seed: expected an integer, got {shown(seed)}. Pass one.") from None
    return int(torch.randint(2**62, (1,), generator=generator, device=generator.device))

"""The methods: how a variance follows from two fans, a gain and two graph ratios."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from virgo import literature, theory
from virgo.errors import OptionError, named_options, shown, suggestion
from virgo.vocabulary import OPTIONS


class Weight(Protocol):
    """What a method may use of one weight; ratios are computed when first asked for."""

    @property
    def fan_in(self) -> int: ...
    @property
    def fan_out(self) -> int: ...
    @property
    def gain(self) -> float: ...
    @property
    def forward_ratio(self) -> float: ...
    @property
    def backward_ratio(self) -> float: ...
    @property
    def softmax_variance(self) -> float | None: ...
    @property
    def independent_ratio(self) -> float: ...
    @property
    def row_sum(self) -> float: ...


Rule = Callable[[Weight], float]
F = TypeVar("F", bound=Rule)


@dataclass(frozen=True)
class Method:
    """A named rule; ``directions`` are what it keeps stable, and what measuring can aim at.

    ``distribution`` is that of a method which comes with its own, such as the padded identity.
    """

    name: str
    summary: str
    rule: Rule
    directions: tuple[str, ...] = ()
    distribution: str | None = None


@dataclass(frozen=True)
class WithoutGraph:
    """The same weight on no graph, against which the graph ratio of a plan is stated."""

    fan_in: int
    fan_out: int
    gain: float
    forward_ratio: float = 1.0
    backward_ratio: float = 1.0
    softmax_variance: float | None = None
    independent_ratio: float = 1.0
    row_sum: float = 1.0


#: The default, which has no rule of its own (:mod:`virgo.auto`).
AUTO = "auto"
_TRIES = "Tries the model as it is and Virgo's methods in real passes, and keeps the best."

_METHODS: dict[str, Method] = {}
_ALIASES = {
    "kaifor": "kaimingforward",
    "kaiback": "kaimingbackward",
    "virgofor": "virgoforward",
    "virgoback": "virgobackward",
    "virgomean": "virgo",
    "glorot": "xavier",
    "idinit": "identity",
    "spoginit": "spog",
}
#: Names that people look for here, of an initialiser that trains and so has no variances.
_TRAINED = ("mlp", "mlpinit")
_TRAINS = "MLPInit trains a network: call virgo.warm_start(model, data)."


def _key(name: str) -> str:
    plain = name.lower().replace("-", "").replace("_", "").replace(" ", "")
    return _ALIASES.get(plain, plain)


@named_options
def register_method(
    name: str, *, directions: tuple[str, ...] = (), distribution: str | None = None
) -> Callable[[F], F]:
    """Teach Virgo a method: a decorator for ``weight -> variance``.

    The first line of the docstring is what :func:`methods` shows.

    Args:
        name: what ``method=`` will accept, in any case and with or without hyphens.
        directions: what the method keeps stable, ``"forward"`` or ``"backward"`` or both;
            ``estimate="measured"`` aims at these.
        distribution: of its weights, where it belongs to the method and is not the user's choice.

    Returns:
        The decorator, which returns the rule as it is.

    Raises:
        OptionError: the name is empty or no string.

    >>> @register_method("unit")
    ... def unit(weight):
    ...     '''Variance one over the fan in, as for a linear network.'''
    ...     return 1 / weight.fan_in
    >>> find("Unit").rule(WithoutGraph(fan_in=4, fan_out=2, gain=2.0))
    0.25
    """
    if not name or not isinstance(name, str):
        raise OptionError(f"register_method: expected a name, got {name!r}. Pass a string.")

    def remember(rule: F) -> F:
        summary = (rule.__doc__ or name).strip().splitlines()[0]
        _METHODS[_key(name)] = Method(name, summary, rule, directions, distribution)
        return rule

    return remember


def methods() -> dict[str, str]:
    """Every method's name and what it does in one line, the default first.

    Returns:
        The summaries by name, registered methods included.

    >>> methods()["xavier"]
    'Harmonic mean of 1/fan_in and 1/fan_out; what GCNConv uses by default.'
    """
    return {AUTO: _TRIES} | {method.name: method.summary for method in _METHODS.values()}


def find(name: str) -> Method:
    """A method by its name, the paper's name or any spelling of either."""
    method = _METHODS.get(_key(name)) if isinstance(name, str) else None
    if method is None:
        trained = isinstance(name, str) and _key(name) in _TRAINED
        raise OptionError(
            f"method: expected one of {', '.join(methods())}, got {shown(name)}."
            f"{suggestion(name, methods())} {_TRAINS if trained else 'See virgo.methods().'}"
        )
    return method


@register_method("lecun")
def _lecun(weight: Weight) -> float:
    """1/(3 fan_in); what torch.nn.Linear uses by default."""
    return theory.lecun(weight.fan_in)


@register_method("xavier")
def _xavier(weight: Weight) -> float:
    """Harmonic mean of 1/fan_in and 1/fan_out; what GCNConv uses by default."""
    return theory.xavier(weight.fan_in, weight.fan_out)


@register_method("kaiming-forward")
def _kaiming_forward(weight: Weight) -> float:
    """gain/fan_in: keeps the signal of a ReLU network without a graph."""
    return theory.virgo_forward(weight.fan_in, gain=weight.gain)


@register_method("kaiming-backward")
def _kaiming_backward(weight: Weight) -> float:
    """gain/fan_out: keeps the gradient of a ReLU network without a graph."""
    return theory.virgo_backward(weight.fan_out, gain=weight.gain)


@register_method("virgo-forward", directions=("forward",))
def _virgo_forward(weight: Weight) -> float:
    """Theorem 3: keeps the signal's variance over layers of this graph."""
    return theory.virgo_forward(weight.fan_in, weight.forward_ratio, weight.gain)


@register_method("virgo-backward", directions=("backward",))
def _virgo_backward(weight: Weight) -> float:
    """Theorem 4: keeps the gradient's variance over layers of this graph."""
    if weight.softmax_variance is not None:
        return weight.softmax_variance
    return theory.virgo_backward(weight.fan_out, weight.backward_ratio, weight.gain)


@register_method("virgo", directions=("forward", "backward"))
def _virgo(weight: Weight) -> float:
    """Harmonic mean of virgo-forward and virgo-backward."""
    return theory.harmonic_mean(_virgo_forward(weight), _virgo_backward(weight))


# --- other papers' (docs/related.md); of those planned by virgo.related the rule is the start ----


@register_method("orthogonal", distribution="orthogonal")
def _orthogonal(weight: Weight) -> float:
    """Semi-orthogonal weights times the activation's gain, sqrt(2) for ReLU (Saxe et al. 2014)."""
    return literature.orthogonal(weight.fan_in, weight.fan_out, weight.gain)


@register_method("lsuv", distribution="orthogonal")
def _lsuv(weight: Weight) -> float:
    """Orthonormal, then every layer's output to unit variance by passes (Mishkin, Matas 2016)."""
    return literature.orthogonal(weight.fan_in, weight.fan_out, gain=1.0)


@register_method("random-walk", distribution="normal")
def _random_walk(weight: Weight) -> float:
    """No drift of the log norm of signal and gradient (Sussillo, Abbott 2014)."""
    return literature.random_walk(weight.fan_in, weight.gain)


@register_method("identity", distribution="identity")
def _identity(weight: Weight) -> float:
    """The padded identity matrix in every layer (IDInit, Pan et al. 2025)."""
    return literature.identity(weight.fan_in, weight.fan_out)


@register_method("isometric")
def _isometric(weight: Weight) -> float:
    """One variance from the row sums of GCN's operator for all layers (Jaiswal et al. 2022)."""
    return literature.isometric(weight.row_sum)


@register_method("g-init")
def _g_init(weight: Weight) -> float:
    """Kaiming's, times the mean degree for layers that average (G-Init, Kelesis et al. 2025)."""
    return literature.g_init(weight.fan_in, weight.independent_ratio, weight.gain)


@register_method("relu-slope")
def _relu_slope(weight: Weight) -> float:
    """Xavier's for a ReLU of slope 2, as weights twice as large (Kelesis et al. 2023)."""
    return literature.relu_slope(weight.fan_in, weight.fan_out)


@register_method("spog")
def _spog(weight: Weight) -> float:
    """Xavier's, with factors searched for signal, gradient and diversity (SPoGInit 2025)."""
    return theory.xavier(weight.fan_in, weight.fan_out)


@register_method("gat-balanced", distribution="balanced")
def _gat_balanced(weight: Weight) -> float:
    """GAT with zero attention and norms that balance at every unit (Mustafa et al. 2023)."""
    return literature.balanced(weight.fan_in, weight.fan_out, weight.fan_out)


def parse_method(text: str) -> tuple[str, dict[str, Any]]:
    """``"virgo-forward+measured"`` -> the method and its options.

    Args:
        text: a method, and options after ``+``.

    Returns:
        The method's name and the keyword options of :func:`virgo.plan`.

    Raises:
        OptionError: a word that is neither.

    >>> parse_method("VirgoBack+mirrored")
    ('virgo-backward', {'distribution': 'mirrored'})
    """
    name, *words = text.split("+") if isinstance(text, str) else [text]  # `find` refuses others
    options: dict[str, Any] = {}
    for word in words:
        if word not in OPTIONS:
            raise OptionError(
                f"methods: expected one of {', '.join(OPTIONS)} after '+', got {word!r} in "
                f"{text!r}.{suggestion(word, OPTIONS)} Choose one."
            )
        options |= OPTIONS[word]
    is_auto = isinstance(name, str) and _key(name) == AUTO
    return AUTO if is_auto else find(name).name, options

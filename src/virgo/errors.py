"""The one family of errors a user of Virgo can meet.

Every message reads ``<where>: <expected>, got <actual>. <what to do>.``
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import TypeVar, cast

F = TypeVar("F", bound=Callable[..., object])


#: Of a URL, up to its last ``@``, for a password may hold what belongs into a URL only escaped; and
#: of keywords, as libpq and DuckDB take them, quoted or not.
_PASSWORDS = re.compile(
    r"(://[^:/?#@\s]*):\S*@|"
    r"((?:password|passwd|pwd|token)\s*=\s*)('(?:[^'\\]|\\.)*'?|\"[^\"]*\"?|[^&\s'\",;]+)",
    re.IGNORECASE,
)


def without_passwords(text: str) -> str:
    """A text in which the passwords of connection strings are stars.

    Args:
        text: such as a message.

    Returns:
        The text without them.

    >>> without_passwords("got postgresql://me:secret@host/db?password=other.")
    'got postgresql://me:***@host/db?password=***'
    >>> without_passwords("host=here password='a b' user=me; see postgresql://me:p/w@host/db")
    'host=here password=*** user=me; see postgresql://me:***@host/db'
    """
    return _PASSWORDS.sub(lambda hit: f"{hit[1]}:***@" if hit[1] else f"{hit[2]}***", text)


class VirgoError(ValueError):
    """Base of all errors raised for bad input; the message is one line, without passwords.

    Args:
        message: what was expected, what was given, what to do.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(without_passwords(re.sub(r"\s*\n\s*", " ", str(message))))


class OptionError(VirgoError):
    """An option has a value that Virgo does not know or cannot combine."""


class GraphError(VirgoError):
    """The graph or its features cannot be planned for."""


class LayerError(VirgoError):
    """A layer of the model cannot be planned for."""


class UnfitError(OptionError, LayerError):
    """An option that does not fit this network: a study goes on with other networks."""


class PlanError(VirgoError):
    """A plan does not fit the model it is applied to."""


class DataError(VirgoError):
    """A dataset is absent or damaged."""


def install(extra: str) -> str:
    """How to install an extra of the package, as every message says it.

    Args:
        extra: its name in pyproject.toml.

    Returns:
        A sentence without its full stop.

    >>> install("data")
    "Run: pip install 'virgo-gnn[data]' (from a checkout: pip install '.[data]')"
    """
    return f"Run: pip install 'virgo-gnn[{extra}]' (from a checkout: pip install '.[{extra}]')"


class MissingExtra(VirgoError, ImportError):
    """A library that an extra installs is not there.

    Args:
        what: is being done.
        library: it requires.
        extra: of this package, that installs it.

    >>> print(str(MissingExtra("Loading cora", "scipy", "data")).partition(" (")[0])
    Loading cora requires scipy. Run: pip install 'virgo-gnn[data]'
    """

    def __init__(self, what: str, library: str, extra: str) -> None:
        super().__init__(f"{what} requires {library}. {install(extra)}")

    def __reduce__(self) -> tuple[object, ...]:
        return VirgoError, (str(self),)  # across processes the message is what matters


def needed(module: str, what: str, extra: str) -> ModuleType:
    """An optional library.

    Args:
        module: what to import.
        what: it is for, as the first words of a sentence.
        extra: of this package, that installs it.

    Returns:
        The module.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(what, module.partition(".")[0], extra) from error


class VirgoWarning(UserWarning):
    """Something worked and is probably not what was wanted."""


def suggestion(word: object, known: Iterable[str]) -> str:
    """``" Did you mean distribution?"`` for a misspelt word, or nothing.

    Args:
        word: what was given.
        known: the words that would have been right.

    Returns:
        A sentence that begins with a space, or the empty string.

    >>> suggestion("distribtion", ["distribution", "signal"])
    ' Did you mean distribution?'
    >>> suggestion("zzz", ["distribution", "signal"])
    ''
    """
    close = difflib.get_close_matches(str(word).lower(), [str(k) for k in known], n=1)
    return f" Did you mean {close[0]}?" if close else ""


def shown(value: object) -> str:
    """A value in a message: one short line, whatever its ``repr`` is.

    Args:
        value: what was given.

    Returns:
        Its ``repr``, shortened, or its type where that has none.

    >>> shown("a\\nb"), len(shown("long" * 100)) < 90
    ("'a\\\\nb'", True)
    """
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:76]} ..."


def said_by(error: BaseException) -> str:
    """An exception in a message: its type and its words on one line, at most 300 characters.

    Args:
        error: what was raised by code that is not ours.

    Returns:
        The text.

    >>> said_by(KeyError("a"))
    "KeyError: 'a'"
    """
    words = " ".join(str(error).split())
    words = words if len(words) <= 300 else f"{words[:296]} ..."
    return f"{type(error).__name__}: {words}"


#: What Python, numpy and PyTorch raise when they meet something that they cannot work with.
_UNFORESEEN = (
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    OSError,
)


def named_options(function: F) -> F:
    """A decorator for what users call: whatever they pass, the error is a :class:`VirgoError`.

    A keyword that ``function`` does not have is named, with the nearest one that it has. What no
    check foresaw keeps its traceback as the cause. The signature stays as it is, so that editors
    and ``help`` show every option.

    Args:
        function: a public function of the package.

    Returns:
        The function, checked.

    Raises:
        OptionError: when called with an unknown keyword; suggests the nearest one.
        VirgoError: when something else than a VirgoError would leave the function.
    """
    parameters = inspect.signature(function).parameters
    name = function.__qualname__.removesuffix(".__init__")
    home = "virgo.experiments" if function.__module__.startswith("virgo.experiments") else "virgo"

    @functools.wraps(function)
    def checked(*args: object, **options: object) -> object:
        for option in options:
            if option not in parameters:
                raise OptionError(
                    f"{name}: expected an option it has, got {option!r}."
                    f"{suggestion(option, parameters)} See help({home}.{name})."
                )
        try:
            return function(*args, **options)
        except VirgoError:
            raise
        except _UNFORESEEN as error:
            reason = " ".join(str(error).split())[:300]
            raise VirgoError(
                f"{name}: expected arguments that it can work with, got {type(error).__name__}: "
                f"{reason}. Check the types and shapes of what is passed; the cause above says "
                f"where."
            ) from error

    return cast(F, checked)

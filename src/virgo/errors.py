"""The one family of errors a user of Virgo can meet.

Every message reads ``<where>: <expected>, got <actual>. <what to do>.``
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import TypeVar, cast

F = TypeVar("F", bound=Callable[..., object])


class VirgoError(ValueError):
    """Base of all errors raised for bad input."""


class OptionError(VirgoError):
    """An option has a value that Virgo does not know or cannot combine."""


class GraphError(VirgoError):
    """The graph or its features cannot be planned for."""


class LayerError(VirgoError):
    """A layer of the model cannot be planned for."""


class PlanError(VirgoError):
    """A plan does not fit the model it is applied to."""


class DataError(VirgoError):
    """A dataset is absent or damaged."""


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


def named_options(function: F) -> F:
    """A decorator: a keyword that ``function`` does not have is an :class:`OptionError`.

    Its signature stays as it is, so that editors and ``help`` show every option.

    Args:
        function: a public function of the package.

    Returns:
        The function, checked.

    Raises:
        OptionError: when called with an unknown keyword; suggests the nearest one.
    """
    parameters = inspect.signature(function).parameters

    @functools.wraps(function)
    def checked(*args: object, **options: object) -> object:
        for name in options:
            if name not in parameters:
                raise OptionError(
                    f"{function.__name__}: expected an option it has, got {name!r}."
                    f"{suggestion(name, parameters)} See help(virgo.{function.__name__})."
                )
        return function(*args, **options)

    return cast(F, checked)

"""Calls of a user's function with the arguments that it names, and functions named as text."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from virgo.errors import OptionError, suggestion


def call(
    where: str,
    function: Callable[..., Any],
    keys: Mapping[str, Any],
    offered: Mapping[str, Any],
    *,
    first: str,
    strict: bool = False,
) -> Any:
    """Call a function with the values that its parameters name.

    Args:
        where: what errors call it.
        function: a function or a class.
        keys: values for parameters of their names.
        offered: further values, passed only where a parameter names them.
        first: the one of ``offered`` that a required first parameter of any other name gets.
        strict: whether all keys are the function's own: ``**options`` of it gets those that it does
            not name, and without such options one that it does not name is an error.

    Returns:
        What the function returns.

    Raises:
        OptionError: a parameter without a value, or a key without a parameter.

    >>> call("f", lambda graph, width: (graph, width), {"width": 8}, {"data": "G"}, first="data")
    ('G', 8)
    """
    parameters = list(_parameters(where, function))
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    values = {**offered, **keys}
    arguments = {p.name: values[p.name] for p in named if p.name in values}
    if named and named[0].default is named[0].empty and named[0].name not in values:
        arguments[named[0].name] = offered[first]
    if strict and any(p.kind is p.VAR_KEYWORD for p in parameters):
        arguments = {**keys, **arguments}
    lacking = [p.name for p in named if p.default is p.empty and p.name not in arguments]
    if lacking:
        raise OptionError(
            f"{where}: expected a value for its parameter {lacking[0]!r}, got none. Add "
            f"{lacking[0]} to the grid, or give the parameter a default."
        )
    unused = [key for key in keys if key not in arguments]
    if unused and strict and "config" not in arguments:  # which has them all
        names = [p.name for p in named]
        raise OptionError(
            f"grid: expected keys of training or of {where} ({', '.join(names) or 'none'}), got "
            f"{unused[0]!r}.{suggestion(unused[0], names)} Correct it, or let {where} take it."
        )
    return function(**arguments)


def _parameters(where: str, function: Callable[..., Any]) -> Any:
    try:
        return inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"{where}: expected a function with a signature, got {function!r}. Wrap it in one."
        ) from error


def imported(spec: str, where: str) -> Any:
    """The function or class that ``module:name`` names; the current folder is searched, too.

    Args:
        spec: ``module:name``.
        where: the option it was given to.

    Returns:
        What it names.

    Raises:
        OptionError: there is no such module or name in it.
    """
    module, _, name = spec.partition(":")
    if not module or not name:
        raise OptionError(f"{where}: expected module:function, got {spec!r}. Name both.")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a console script does not look into the current folder
    try:
        found: Any = importlib.import_module(module)
    except (ImportError, ValueError, TypeError) as error:  # the others: no name, a relative one
        raise OptionError(
            f"{where}: expected a module {module!r} to import, got {error}. Run where "
            f"{module.partition('.')[0]}.py is, or install its package."
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise OptionError(
                f"{where}: expected {name!r} in {module}, got no such name."
                f"{suggestion(part, [n for n in dir(found) if n[:1] != '_'])} Correct it."
            )
        found = getattr(found, part)
    return found

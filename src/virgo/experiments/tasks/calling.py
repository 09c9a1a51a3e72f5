"""Calls of a user's function with the arguments that it names, and functions named as text."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
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
    others: Sequence[str] = (),
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
        others: keys that were for someone else, for the error.

    Returns:
        What the function returns.

    Raises:
        OptionError: a parameter without a value, or a key without a parameter.
        TypeError: any other of the function's own.

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
    names = [p.name for p in named]
    unused = [key for key in keys if key not in arguments]
    if unused and strict and "config" not in arguments:  # which has them all
        raise OptionError(_not_taken(unused[0], where, names, others))
    try:
        return function(**arguments)
    except TypeError as error:  # of a function that passes on what it does not know
        for key in keys:
            if f"unexpected keyword argument {key!r}" in str(error):
                raise OptionError(_not_taken(key, where, names, others)) from error
        raise


def _not_taken(key: str, where: str, names: Sequence[str], others: Sequence[str]) -> str:
    """What is wrong with a grid's key that nobody takes."""
    return (
        f"grid: expected keys of training ({', '.join(others) or 'none'}) or of {where} "
        f"({', '.join(names) or 'none'}), got {key!r}.{suggestion(key, [*names, *others])} "
        f"Correct it, or let {where} take it."
    )


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

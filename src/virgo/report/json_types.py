"""Whether values read from JSON are what a dataclass says its fields are.

Less than pydantic does, which would be one more dependency for four kinds of files: no conversion,
no defaults, one answer.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def is_of(value: object, kind: Any) -> bool:
    """Whether a value is of a type, also inside lists and objects.

    Args:
        value: of ``json.loads``, or a tuple made of such.
        kind: a type as annotations have it; a float may be an integer, but no number is a boolean.

    Returns:
        Whether it is.

    >>> is_of({"a": [1, 2.5]}, dict[str, list[float]]), is_of(True, int), is_of(None, int | None)
    (True, False, True)
    """
    return _tester(kind)(value)


@functools.cache
def _tester(kind: Any) -> Callable[[Any], bool]:
    """The test of one type, made once: tables read tens of thousands of records."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return lambda value: True
    if origin in (typing.Union, types.UnionType):
        tests = [_tester(part) for part in parts]
        return lambda value: any(test(value) for test in tests)
    if origin is typing.Literal:
        return lambda value: isinstance(value, str) and value in parts
    if origin is tuple:
        return _tuple_tester(parts)
    if origin is not None and issubclass(origin, Mapping):
        is_key, is_item = map(_tester, parts)
        return lambda value: (
            isinstance(value, Mapping)
            and all(is_key(key) and is_item(item) for key, item in value.items())
        )
    if origin is not None and issubclass(origin, Sequence):
        is_element = _tester(parts[0])
        return lambda value: isinstance(value, (list, tuple)) and all(map(is_element, value))
    if kind is float:
        return lambda value: isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        return lambda value: isinstance(value, int) and not isinstance(value, bool)
    plain = kind if isinstance(kind, type) else type(kind)
    return lambda value: isinstance(value, plain)


def _tuple_tester(parts: tuple[Any, ...]) -> Callable[[Any], bool]:
    if len(parts) == 2 and parts[1] is Ellipsis:
        is_element = _tester(parts[0])
        return lambda value: isinstance(value, (tuple, list)) and all(map(is_element, value))
    tests = [_tester(part) for part in parts]
    return lambda value: (
        isinstance(value, (tuple, list))
        and len(value) == len(tests)
        and all(test(item) for test, item in zip(tests, value, strict=True))
    )


_hints = functools.cache(typing.get_type_hints)


def check_types(kind: type, values: Mapping[str, object]) -> None:
    """Refuse values that are not of the types of a dataclass's fields.

    Args:
        kind: the dataclass.
        values: its fields by name.

    Raises:
        TypeError: the first that is not.
    """
    wanted = _hints(kind)
    for name, value in values.items():
        if name in wanted and not is_of(value, wanted[name]):
            shown = repr(value)
            shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
            raise TypeError(f"{shown} as {name}")

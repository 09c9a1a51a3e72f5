"""Whether values read from JSON are what a dataclass says its fields are.

Less than pydantic does, which would be one more dependency for four kinds of files: no conversion,
no defaults, one answer.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
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
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(is_of(value, part) for part in parts)
    if origin is typing.Literal:
        return isinstance(value, str) and value in parts
    if origin is tuple:
        return isinstance(value, (tuple, list)) and _is_tuple(value, parts)
    if origin is not None and issubclass(origin, Mapping):
        pairs = value.items() if isinstance(value, Mapping) else ()
        return isinstance(value, Mapping) and all(
            is_of(key, parts[0]) and is_of(item, parts[1]) for key, item in pairs
        )
    if origin is not None and issubclass(origin, Sequence):
        return isinstance(value, (list, tuple)) and all(is_of(item, parts[0]) for item in value)
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind if isinstance(kind, type) else type(kind))


def _is_tuple(value: Sequence[object], parts: tuple[Any, ...]) -> bool:
    if len(parts) == 2 and parts[1] is Ellipsis:
        return all(is_of(item, parts[0]) for item in value)
    return len(value) == len(parts) and all(map(is_of, value, parts))


def check_types(kind: type, values: Mapping[str, object]) -> None:
    """Refuse values that are not of the types of a dataclass's fields.

    Args:
        kind: the dataclass.
        values: its fields by name.

    Raises:
        TypeError: the first that is not.
    """
    wanted = typing.get_type_hints(kind)
    for name, value in values.items():
        if name in wanted and not is_of(value, wanted[name]):
            shown = repr(value)
            shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
            raise TypeError(f"{shown} as {name}")

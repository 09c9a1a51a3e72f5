"""What ``graph.json`` must say before anything it says is used.

The arrays are followed by compiled code, so their types and sizes are not the header's to choose:
they follow from a few counts, and everything else is refused.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from virgo.errors import GraphError

#: The largest number of nodes whose columns are 32-bit, and of any graph.
NARROW_NODES = 2**31 - 1
_MOST_NODES = 2**32
_MOST_EDGES = 2**48
#: Bytes of the longest header: it holds counts, options and a dozen checksums.
_LONGEST = 2**20


def read_regular(file: Path) -> str:
    """The text of a small file that is no symbolic link, pipe or device.

    Args:
        file: the file.

    Returns:
        Its text.

    Raises:
        GraphError: it is something else, or too long.
    """
    size = regular_size(file)
    if size > _LONGEST:
        raise GraphError(
            f"{file}: expected a header of at most {_LONGEST:,} bytes, got {size:,}. Build the "
            f"graph again."
        )
    return file.read_text(encoding="utf-8")


def regular_size(file: Path) -> int:
    """The bytes of a file; a symbolic link could lead anywhere, and a pipe has no end.

    Args:
        file: the file.

    Returns:
        Its size.

    Raises:
        GraphError: it is no regular file.
    """
    found = file.lstat()
    if not stat.S_ISREG(found.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "something else"
        raise GraphError(
            f"{file}: expected a file, got {kind}. Copy what it stands for into the folder, or "
            f"build the graph again."
        )
    return found.st_size


def parse(text: str, where: object) -> dict[str, Any]:
    """JSON whose outermost value is an object.

    Args:
        text: the JSON.
        where: named in errors.

    Returns:
        The object.

    Raises:
        GraphError: it is something else.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GraphError(
            f"{where}: expected the header of a graph, got {str(error)[:200]}. Build the graph "
            f"again."
        ) from error
    if not isinstance(values, dict):
        _refuse(where, "the header of a graph", f"a {type(values).__name__}")
    return values


def _count(most: int, least: int = 0) -> Callable[[object], bool]:
    return lambda value: type(value) is int and least <= value <= most


def _is_bool(value: object) -> bool:
    return type(value) is bool


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_object(value: object) -> bool:
    return type(value) is dict


#: Every field, what it must be, and in words. A graph has at least one node.
_FIELDS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "num_nodes": (_count(_MOST_NODES, 1), f"a number from 1 to {_MOST_NODES:,}"),
    "num_edges": (_count(_MOST_EDGES), f"a number from 0 to {_MOST_EDGES:,}"),
    "self_loops": (_count(_MOST_EDGES), f"a number from 0 to {_MOST_EDGES:,}"),
    "symmetric": (_is_bool, "true or false"),
    "weighted": (_is_bool, "true or false"),
    "index": (lambda value: value in ("int32", "int64"), "int32 or int64"),
    "ids": (lambda value: value in (None, "int64", "string"), "null, int64 or string"),
    "files": (_is_object, "an object"),
    "options": (_is_object, "an object"),
    "source": (_is_object, "an object"),
    "virgo": (_is_text, "a string"),
    "format": (_count(2**31, 1), "a number from 1 on"),
}
_OPTIONAL = frozenset({"options", "source", "virgo"})


def check_fields(values: dict[str, Any], where: object) -> None:
    """Refuse a header whose fields are missing, unknown, or of another type or range.

    Args:
        values: what the header says.
        where: named in errors.

    Raises:
        GraphError: the first of these.
    """
    for name in values:
        if name not in _FIELDS:
            _refuse(where, "the fields of a header", repr(name)[:80])
    for name, (is_good, wanted) in _FIELDS.items():
        if name not in values:
            if name not in _OPTIONAL:
                _refuse(where, f"all fields of a header, also {name}", "none")
        elif not _holds(is_good, values[name]):
            _refuse(where, f"{wanted} as {name}", repr(values[name])[:80])
    if values["self_loops"] > values["num_edges"]:
        _refuse(where, f"at most {values['num_edges']:,} self_loops", values["self_loops"])
    if values["index"] == "int32" and values["num_nodes"] > NARROW_NODES:
        _refuse(where, f"int64 as index of {values['num_nodes']:,} nodes", "int32")
    size = values.get("source", {}).get("bytes", 0)
    if not _holds(_count(2**63), size):
        _refuse(where, "a number of bytes in source", repr(size)[:80])
    _check_files(values, where)


def _holds(is_good: Callable[[object], bool], value: object) -> bool:
    try:
        return is_good(value)
    except TypeError:  # a list is not hashable
        return False


def _check_files(values: dict[str, Any], where: object) -> None:
    """Every array that the counts ask for, of the type and size that they ask for, and no other."""
    expected = _arrays(values)
    given = values["files"]
    if set(given) != set(expected):
        _refuse(where, f"the files {', '.join(expected)}", ", ".join(map(str, given))[:200])
    for name, (dtype, size) in expected.items():
        array = given[name]
        if not _is_object(array) or set(array) != {"dtype", "size", "sha256"}:
            _refuse(where, f"dtype, size and sha256 of {name}", repr(array)[:80])
        if array["dtype"] != dtype:
            _refuse(where, f"{dtype} as dtype of {name}", repr(array["dtype"])[:80])
        if not _holds(_count(2**56), array["size"]) or size not in (None, array["size"]):
            wanted = "a number" if size is None else f"{size:,}"
            _refuse(where, f"{wanted} as size of {name}", repr(array["size"])[:80])
        digest = array["sha256"]
        if not _is_text(digest) or re.fullmatch("[0-9a-f]{64}", digest) is None:
            _refuse(where, f"64 hexadecimal digits as sha256 of {name}", repr(digest)[:80])


def _arrays(values: dict[str, Any]) -> dict[str, tuple[str, int | None]]:
    """The type and the size of each array; only the bytes of all names are not known."""
    column = "<i4" if values["index"] == "int32" else "<i8"
    arrays: dict[str, tuple[str, int | None]] = {}
    for order in ("in",) if values["symmetric"] else ("in", "out"):
        arrays[f"{order}_pointer"] = ("<i8", values["num_nodes"] + 1)
        arrays[f"{order}_columns"] = (column, values["num_edges"])
        if values["weighted"]:
            arrays[f"{order}_weights"] = ("<f8", values["num_edges"])
    if values["ids"] == "int64":
        arrays["ids"] = ("<i8", values["num_nodes"])
    elif values["ids"] == "string":
        arrays["ids"], arrays["ids_pointer"] = ("|u1", None), ("<i8", values["num_nodes"] + 1)
    return arrays


def _refuse(where: object, expected: str, actual: object) -> NoReturn:
    raise GraphError(f"{where}: expected {expected}, got {actual}. Build the graph again.")

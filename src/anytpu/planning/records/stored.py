"""`record_of`: read a record from JSON, and check that it is valid.

Idea: a lock may be edited by hand, and merged by git. A number of another type, or an infinite one, would end a plan
long after it was read. So each field is checked against its type.

Rule: integers are positive, numbers are finite and not negative, text is printable. Unknown fields are ignored: a later
release may have written them.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any

from anytpu.planning.records.quoting import quoted

Kind = typing.TypeVar("Kind")

MAX_NUMBER = 1e12
"""Largest valid number: more seconds, or dollars, than anything takes."""

MAX_TEXT = 1000
"""Maximum valid text length, in characters."""

_IS = {
    int: "a positive integer",
    float: "a number of 0 or more",
    str: "a text of one line",
    dict[str, float]: "names and numbers",
    types.NoneType: "null",
}


def record_of(kind: type[Kind], value: Any) -> Kind:
    """Return a record of a kind.

    Args:
        kind: a dataclass whose fields are `str`, `int`, `float`, `dict[str, float]`, or one of these
            or None.
        value: the parsed JSON.

    Raises:
        ValueError: a field is missing, has another type, or is out of range; a sentence names it.

    Example:
        >>> record_of(Leaf, {"name": "w", "size": 3})
        Leaf(name='w', size=3)
    """
    if not isinstance(value, dict):
        raise ValueError(f"it is {quoted(value)}, not an object of names and values")
    known = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name in value:
            _check(field.name, value[field.name], _types(kind)[field.name])
            known[field.name] = value[field.name]
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{field.name!r} is missing")
    return kind(**known)


@functools.lru_cache(maxsize=16)
def _types(kind: Any) -> dict[str, tuple[Any, ...]]:
    hints = typing.get_type_hints(kind)
    return {
        name: typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,) for name, hint in hints.items()
    }


def _check(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if not any(_fits(value, kind) for kind in allowed):
        wanted = " or ".join(_IS[kind] for kind in allowed)
        raise ValueError(f"{name!r} is {quoted(value)}, not {wanted}")


def _fits(value: Any, kind: Any) -> bool:
    if kind is int:
        return type(value) is int and 0 < value <= MAX_NUMBER
    if kind is float:
        return type(value) in (int, float) and 0 <= value <= MAX_NUMBER  # no NaN either
    if kind is str:
        return isinstance(value, str) and len(value) <= MAX_TEXT and value.isprintable()
    if typing.get_origin(kind) is dict:
        kinds = typing.get_args(kind)
        return isinstance(value, dict) and all(all(map(_fits, pair, kinds)) for pair in value.items())
    return value is None

"""`record_of`: read a record from JSON, and check that it is valid.

Idea: a lock may be edited by hand, and merged by git. A number of another type, or an infinite one, would end a plan
long after it was read. So each field is checked against its type.

Rule: integers are positive, numbers are finite and not negative, text is printable. Unknown fields are ignored: a later
release may have written them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from anytpu.planning.records.quoting import quoted

Kind = TypeVar("Kind")

MAX_NUMBER = 1e12
"""Largest valid number: more seconds, or dollars, than anything takes."""

MAX_TEXT = 1000
"""Maximum valid text length, in characters."""


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= MAX_NUMBER  # no NaN either


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT and value.isprintable()


_CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "int": ("a positive integer", lambda value: type(value) is int and 0 < value <= MAX_NUMBER),
    "float": ("a number of 0 or more", _is_number),
    "str": ("a text of one line", _is_text),
    "dict[str, float]": (
        "names and numbers",
        lambda value: isinstance(value, dict) and all(_is_text(key) and _is_number(value[key]) for key in value),
    ),
    "None": ("null", lambda value: value is None),
}
"""Type of a field, as its class writes it -> the wanted value in words, and its check."""


def record_of(kind: type[Kind], value: Any) -> Kind:
    """Return a record of a kind.

    Args:
        kind: a dataclass whose fields are `str`, `int`, `float`, `dict[str, float]`, or one of these
            or None. Its module has postponed annotations.
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
            checks = [_CHECKS[option] for option in str(field.type).split(" | ")]
            if not any(check(value[field.name]) for _, check in checks):
                wanted = " or ".join(words for words, _ in checks)
                raise ValueError(f"{field.name!r} is {quoted(value[field.name])}, not {wanted}")
            known[field.name] = value[field.name]
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{field.name!r} is missing")
    return kind(**known)

"""Signatures of TensorFlow's functions and classes, read from a record that `scripts/api_difference` makes.

Rule: what an old name takes is asked of this record, and what Keras 3 takes is asked of its source (`known.py`).
Positions, names and defaults that differ follow from the two; none is written by hand.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_RECORD = Path(__file__).with_name("old_api.txt")
_LINE = re.compile(r"([\w.]+)(.*)")


@functools.cache
def _lines() -> dict[str, str]:
    """Map each recorded name to the rest of its line: "(units, activation=None) keras.layers.Layer"."""
    matches = map(_LINE.match, _RECORD.read_text(encoding="utf-8").splitlines())
    return {match[1]: match[2] for match in matches if match is not None}


def names() -> list[str]:
    """Return all recorded names."""
    return list(_lines())


def is_recorded(name: str) -> bool:
    """Return whether TensorFlow had a name.

    Example:
        >>> is_recorded("keras.Model.fit_generator"), is_recorded("keras.ops")
        (True, False)
    """
    return name in _lines()


def is_only_first(name: str) -> bool:
    """Return whether only TensorFlow 1 had a name: version 2 has it as `compat.v1`, or not at all.

    Example:
        >>> is_only_first("placeholder"), is_only_first("contrib.layers.flatten"), is_only_first("argmax")
        (True, True, False)
    """
    is_second = is_recorded(name) or is_recorded(f"keras.{name}")  # `tf.losses` is `tf.keras.losses`.
    return name.startswith("contrib.") or (is_recorded(f"compat.v1.{name}") and not is_second)


@functools.cache
def parameters(name: str) -> ast.arguments | None:
    """Return the parameters of a class, function or method, without `self`; None if it is not recorded.

    Example:
        >>> ast.unparse(parameters("keras.losses.Loss"))
        "reduction='auto', name=None"
    """
    rest = _lines().get(name, "")
    if rest.startswith(" = "):
        return parameters(rest[3:])
    if not rest.startswith("("):
        return None
    function = ast.parse(f"def f{rest[: rest.rindex(')') + 1]}: pass").body[0]
    assert isinstance(function, ast.FunctionDef)
    return function.args


def member(name: str, attribute: str) -> str | None:
    """Return the recorded name of a member of a class, of its own or inherited; None if it has none.

    Example:
        >>> member("keras.models.Sequential", "compile"), member("keras.layers.Dense", "output_shape")
        ('keras.Model.compile', 'keras.layers.Layer.output_shape')
    """
    if is_recorded(f"{name}.{attribute}"):
        return f"{name}.{attribute}"
    found = (member(above, attribute) for above in _above(name))
    return next((full for full in found if full is not None), None)


def _above(name: str) -> Iterator[str]:
    """Yield the class that a name stands for, or the classes that a class is derived from."""
    rest = _lines().get(name, "")
    yield from [rest[3:]] if rest.startswith(" = ") else rest.rpartition(")")[2].split()


@functools.cache
def names_ending(last: str) -> tuple[str, ...]:
    """Return the recorded names that end with a part, the shortest first."""
    return tuple(sorted((name for name in _lines() if name.rpartition(".")[2] == last), key=len))


def public_name(name: str, keywords: Iterable[str] = (), is_first: bool = False) -> str | None:
    """Return the recorded name for one of TensorFlow or Keras 2; None if it is not recorded.

    A function that TensorFlow 1 had with other arguments has two records: the first that names all keywords is meant.

    Args:
        name: a canonical name.
        keywords: the keywords of the call.
        is_first: whether the program is one for TensorFlow 1.

    Example:
        >>> public_name("keras.layers.Dense"), public_name("keras.ops.sum"), public_name("placeholder")
        ('keras.layers.Dense', None, 'compat.v1.placeholder')
        >>> public_name("argmax", is_first=True), public_name("argmax"), public_name("argmax", ["dimension"])
        ('compat.v1.argmax', 'argmax', 'compat.v1.argmax')
    """
    names = [f"compat.v1.{name}", name] if is_first else [name, f"compat.v1.{name}"]
    recorded = [public for public in names if is_recorded(public)]
    return next((public for public in recorded if _names(public) >= set(keywords)), recorded[0] if recorded else None)


def _names(name: str) -> set[str]:
    found = parameters(name)
    return {part.arg for part in (*found.posonlyargs, *found.args, *found.kwonlyargs)} if found is not None else set()

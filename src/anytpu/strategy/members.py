"""Parts of objects that the code of a step may read: the members of a class, and the user's objects in a library's.

Idea: a class of the user has methods that run although no code names them, such as operators and `call` of a layer. An
object of a library, such as a model, holds objects of the user's classes, of which the library calls methods.

Rule: objects and classes of libraries are not followed themselves (`reads.py`).
"""

from __future__ import annotations

import collections.abc
import types
from typing import Any, NamedTuple

import jax
import keras
import numpy as np

from anytpu.program.remembered import Remembered
from anytpu.strategy.reads import is_library

MAX_SEARCHED = 10_000
"""Maximum number of parts of a library's object in which objects of the user's classes are searched."""

SCALARS = frozenset({bool, int, float, complex, str, bytes, type(None)})
"""Types of Python's objects that are compared by value."""

ARRAYS = (jax.Array, np.ndarray, keras.Variable)
"""Types without attributes to follow."""

OTHER_CONTAINERS = (list, set, frozenset, collections.deque, collections.abc.Mapping)
"""Containers, of which subclasses too are compared by their items."""


def parts_of(owner: Any) -> tuple[list[Any], list[tuple[Any, str]]]:
    """Return what an object of a library holds that its code may read.

    Returns:
        The objects of the user's classes and the user's functions. And (owner, name) of each public float, such as the
        rate of a dropout.
    """
    found: list[Any] = []
    settings: list[tuple[Any, str]] = []
    visited: dict[int, Any] = {id(owner): owner}
    level = _attributes(owner, settings)
    while level and len(visited) < MAX_SEARCHED:
        value = level.pop()
        if id(value) in visited or type(value) in SCALARS or isinstance(value, (*ARRAYS, type, types.ModuleType)):
            continue
        visited[id(value)] = value
        if type(value) is types.MethodType:
            level.append(value.__self__)
        elif type(value) is types.FunctionType:
            found += [] if is_library(value.__globals__.get("__name__")) else [value]
        elif isinstance(value, collections.abc.Mapping):
            level += value.values()
        elif isinstance(value, (tuple, *OTHER_CONTAINERS)):
            level += value
        elif members_of(type(value)).followed:
            found.append(value)
        else:
            level += _attributes(value, settings)
    return found, settings


def _attributes(value: Any, settings: list[tuple[Any, str]]) -> list[Any]:
    """Return the values of an object's attributes, and add its public floats to `settings`."""
    attributes = getattr(value, "__dict__", {})
    if type(value).__weakrefoffset__:
        settings += [
            (value, name) for name, part in attributes.items() if type(part) is float and not name.startswith("_")
        ]
    return list(attributes.values())


class ClassMembers(NamedTuple):
    """The parts of a class of which objects are compared.

    Attributes:
        followed: indices of the bases that are not of a library, in the order of `__mro__`.
        slots: names of attributes that are not in the `__dict__` of an object.
        implicit: names of the methods of this class that run without being named. They are operators, and methods that
            replace one of a library's class, such as `call` of a layer.
        is_open: whether objects have attributes of other names than their `__dict__`.
    """

    followed: tuple[int, ...]
    slots: frozenset[str]
    implicit: frozenset[str]
    is_open: bool


_MEMBERS: Remembered[ClassMembers] = Remembered()

_NOT_OPERATORS = frozenset({
    "__init__", "__new__", "__post_init__", "__repr__", "__str__",
    "__eq__", "__hash__", "__setattr__", "__delattr__", "__init_subclass__",
    "__getstate__", "__setstate__", "__reduce__", "__reduce_ex__", "__del__",
    "__dir__", "__copy__", "__deepcopy__", "__replace__",
})  # fmt: skip


def members_of(kind: type) -> ClassMembers:
    """Return the members of a class."""
    known = _MEMBERS.get(kind)
    if known is not None:
        return known
    followed = tuple(index for index, base in enumerate(kind.__mro__) if not is_library(base.__module__))
    libraries = [base for index, base in enumerate(kind.__mro__) if index not in followed and base is not object]
    implicit = [
        name
        for name, value in vars(kind).items()
        if isinstance(value, types.FunctionType)
        and name not in _NOT_OPERATORS
        and (name.startswith("__") or any(name in vars(base) for base in libraries))
    ]
    slots = [
        name
        for index in followed
        for name, value in vars(kind.__mro__[index]).items()
        if isinstance(value, types.MemberDescriptorType)
    ]
    is_open = hasattr(kind, "__getattr__") or any("__getattribute__" in vars(kind.__mro__[index]) for index in followed)
    return _MEMBERS.keep(kind, ClassMembers(followed, frozenset(slots), frozenset(implicit), is_open))

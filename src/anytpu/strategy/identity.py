"""Identity of step functions: decides whether two function objects are the same step.

Idea: a training loop may define its step function inside another function, so each call makes a new function object. A
notebook cell that runs again binds a new model to an old global name. So a step is identified by its code, defaults,
closure contents, and the current values of the globals that its code reads. The function object itself does not count.
Called functions of the same module are compared in the same way, and so are functions defined inside functions.

Rule: Python scalars are compared by value, other objects by identity. Lists, tuples and dictionaries of at most
`MAX_ITEMS` items are compared by their items. The limit is `MAX_WATCHED_ITEMS` if the last item can be weakly
referenced, as in a list of variables. Attributes of objects (`settings.rate`) are not compared: bind them to a name. An
id is unique only while its object lives, so an `Identity` holds its objects. A caller that stores only the key must
drop it when any of these objects is freed.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable
from typing import Any

from anytpu.program.remembered import Remembered

MAX_ITEMS = 64
"""Maximum number of items of a list, tuple or dictionary that is compared by its items."""

MAX_WATCHED_ITEMS = 1024
"""Maximum number of items if they can be weakly referenced. Each call compares each of them."""

_SCALARS = frozenset({bool, int, float, complex, str, bytes, type(None)})
_CONTAINERS = frozenset({list, tuple, dict})
_READS_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})


class Identity:
    """The dependencies of a step function, as a dictionary key that keeps its objects alive.

    Args:
        fn: a function, a bound method, a `functools.partial`, or another callable object.

    Attributes:
        key: ids and scalars; it holds no object.
        objects: the objects whose ids are in the key.
    """

    __slots__ = ("key", "objects")

    def __init__(self, fn: Callable) -> None:
        collector = IdentityParts()
        collector.add(fn, None)
        self.key = tuple(collector.key)
        self.objects = collector.held

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.key == other.key


def is_weakly_referable(value: Any) -> bool:
    """Return whether an object can be weakly referenced; lists, numbers and some objects with slots cannot."""
    return type(value).__weakrefoffset__ != 0


class IdentityParts:
    """Collects the dependencies of a callable.

    Attributes:
        key: ids and scalars, in the order of traversal.
        held: the objects whose ids are in the key. Functions and containers are included through their parts.
    """

    __slots__ = ("_visited", "held", "key")

    def __init__(self) -> None:
        self.key: list[Any] = []
        self.held: list[Any] = []
        self._visited: dict[int, int] = {}

    def add(self, value: Any, owner: types.FunctionType | None) -> None:
        """Add an object that `owner` names, closes over or has as a default; None for the step itself."""
        kind = type(value)
        if kind in _SCALARS:
            # With the type: 1, 1.0 and True are equal. Floats as text: NaN is not equal to itself.
            self.key.append((kind, repr(value) if kind is float or kind is complex else value))
        elif kind is types.FunctionType and _is_compared_by_parts(value, owner):
            self._add_once(value, self._function)
        elif kind is types.MethodType:
            self._add_object(value.__self__)
            self.add(value.__func__, owner)
        elif kind is functools.partial:
            self._items((value.func, *value.args, value.keywords), owner)
        elif kind in _CONTAINERS and len(value) <= MAX_ITEMS:
            self._add_once(value, self._dictionary if kind is dict else self._items, owner)
        elif kind in _CONTAINERS or isinstance(value, tuple):
            self._add_once(value, self._record)
        else:
            self._add_object(value)

    def _record(self, container: Any) -> None:
        """Add a named tuple or a long container: by its items if they can be weakly referenced, else by identity."""
        if len(container) > MAX_WATCHED_ITEMS:
            self._add_object(container)
            return
        items = [*container, *container.values()] if type(container) is dict else container
        if len(items) > MAX_ITEMS and not is_weakly_referable(items[-1]):
            self._add_object(container)
            return
        self.key += [type(container), len(items)]
        for item in items:
            if type(item) is types.FunctionType:
                self._add_object(item)
            else:
                self.add(item, None)

    def _add_object(self, value: Any) -> None:
        self.key.append(id(value))
        self.held.append(value)

    def _add_once(self, value: Any, add: Callable[..., None], *args: Any) -> None:
        """Add the parts of an object that may contain itself; on a repeated visit add the index of the first one."""
        first = self._visited.get(id(value))
        if first is not None:
            self.key.append((add.__name__, first))
            return
        self._visited[id(value)] = len(self._visited)
        self.key.append(add.__name__)
        add(value, *args)

    def _function(self, fn: types.FunctionType) -> None:
        self._add_object(fn.__code__)
        self.add(fn.__defaults__, fn)
        self.add(fn.__kwdefaults__, fn)
        for cell in fn.__closure__ or ():
            self.add(_cell_content(cell), fn)
        for name in _global_names(fn.__code__):
            self.add(fn.__globals__.get(name, _UNBOUND), fn)

    def _items(self, items: Any, owner: types.FunctionType | None) -> None:
        self.key.append(len(items))
        for item in items:
            self.add(item, owner)

    def _dictionary(self, items: dict, owner: types.FunctionType | None) -> None:
        self._items([part for pair in items.items() for part in pair], owner)


class _Unbound:
    """Placeholder for an unbound name: a builtin, or an empty cell."""


_UNBOUND = _Unbound()


def _is_compared_by_parts(fn: types.FunctionType, owner: types.FunctionType | None) -> bool:
    """Return whether a function is compared by its parts: the step, a function of the same module, or a local one."""
    return owner is None or fn.__globals__ is owner.__globals__ or "<locals>" in fn.__qualname__


def _cell_content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _UNBOUND


_NAMES: Remembered[tuple[str, ...]] = Remembered()


def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """Return the global names that a code object and its nested ones read, without attribute names."""
    known = _NAMES.get(code)
    if known is not None:
        return known
    names = [instruction.argval for instruction in dis.get_instructions(code) if instruction.opname in _READS_GLOBAL]
    codes = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    nested = [name for inner in codes for name in _global_names(inner)]
    return _NAMES.keep(code, tuple(dict.fromkeys([*names, *nested])))

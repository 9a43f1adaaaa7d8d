"""When two step functions are the same step.

Idea: a training loop may define its step function inside another one, so that each call makes a new function object;
and a notebook cell that is run again binds a new model to an old global name. So a step is known by its code, its
defaults, what its closure holds and what the globals that its code reads are bound to now: not by the function object.
The functions of the same module that it calls count in the same way, and so do functions made inside functions.

Rule: objects are compared by identity and held, so that no id can be used again; Python scalars by value; lists, tuples
and dictionaries of at most `MOST_ITEMS` items by what they hold. What a step reaches through an object
(`settings.rate`) is not looked at: bind it to a name.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable
from typing import Any

MOST_ITEMS = 64
"""The most items of a list, tuple or dictionary that is compared by what it holds."""

_SCALARS = frozenset({bool, int, float, complex, str, bytes, type(None)})
_CONTAINERS = frozenset({list, tuple, dict})
_READS_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})


class Identity:
    """What a step function depends on, as a dictionary key that holds what it names.

    Args:
        fn: a function, a bound method, a `functools.partial`, or another callable object.
    """

    __slots__ = ("_held", "_key")

    def __init__(self, fn: Callable) -> None:
        parts = _Parts()
        parts.add(fn, None)
        self._key = tuple(parts.key)
        self._held = parts.held

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self._key == other._key


class _Parts:
    """Collects what a callable depends on.

    Attributes:
        key: ids and scalars, in the order in which they were met.
        held: the objects whose ids are in the key.
    """

    __slots__ = ("_met", "held", "key")

    def __init__(self) -> None:
        self.key: list[Any] = []
        self.held: list[Any] = []
        self._met: dict[int, int] = {}

    def add(self, one: Any, owner: types.FunctionType | None) -> None:
        """Add an object that `owner` names, closes over or has as a default; None for the step itself."""
        kind = type(one)
        if kind in _SCALARS:
            # By type too: 1, 1.0 and True are equal. By text, since NaN is not equal to itself.
            self.key.append((kind, repr(one) if kind is float or kind is complex else one))
        elif kind is types.FunctionType and _is_own(one, owner):
            self._once(one, self._function)
        elif kind is types.MethodType:
            self._object(one.__self__)
            self.add(one.__func__, owner)
        elif kind is functools.partial:
            self._items((one.func, *one.args, one.keywords), owner)
        elif kind in _CONTAINERS and len(one) <= MOST_ITEMS:
            self._once(one, self._dictionary if kind is dict else self._items, owner)
        else:
            self._object(one)

    def _object(self, one: Any) -> None:
        self.key.append(id(one))
        self.held.append(one)

    def _once(self, one: Any, add: Callable[..., None], *args: Any) -> None:
        """Add the parts of something that may hold itself; the second time, only where it was met first."""
        first = self._met.get(id(one))
        if first is not None:
            self.key.append((add.__name__, first))
            return
        self._met[id(one)] = len(self._met)
        self.key.append(add.__name__)
        self.held.append(one)
        add(one, *args)

    def _function(self, fn: types.FunctionType) -> None:
        self._object(fn.__code__)
        self.add(fn.__defaults__, fn)
        self.add(fn.__kwdefaults__, fn)
        for cell in fn.__closure__ or ():
            self.add(_content(cell), fn)
        for name in _globals_read(fn.__code__):
            self.add(fn.__globals__.get(name, _UNBOUND), fn)

    def _items(self, items: Any, owner: types.FunctionType | None) -> None:
        self.key.append(len(items))
        for item in items:
            self.add(item, owner)

    def _dictionary(self, items: dict, owner: types.FunctionType | None) -> None:
        self._items([part for pair in items.items() for part in pair], owner)


class _Unbound:
    """Stands for a name that is bound to nothing: a builtin, or a cell that is not filled yet."""


_UNBOUND = _Unbound()


def _is_own(fn: types.FunctionType, owner: types.FunctionType | None) -> bool:
    """Say whether a function counts by its parts: the step, one of the same module, or one made in a function."""
    return owner is None or fn.__globals__ is owner.__globals__ or "<locals>" in fn.__qualname__


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _UNBOUND


@functools.lru_cache(maxsize=1024)
def _globals_read(code: types.CodeType) -> tuple[str, ...]:
    """Return the global names that a code object and those nested in it read; not the names of attributes."""
    names = [one.argval for one in dis.get_instructions(code) if one.opname in _READS_GLOBAL]
    nested = [name for one in code.co_consts if isinstance(one, types.CodeType) for name in _globals_read(one)]
    return tuple(dict.fromkeys([*names, *nested]))

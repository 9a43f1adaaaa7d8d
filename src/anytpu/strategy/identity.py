"""When two step functions are the same step.

Idea: a training loop may define its step function inside another one, so that each call makes a new function object;
and a notebook cell that is run again binds a new model to an old global name. So a step is known by its code, its
defaults, what its closure holds and what the globals that its code reads are bound to now: not by the function object.
The functions of the same module that it calls count in the same way, and so do functions made inside functions.

Rule: objects are compared by identity; Python scalars by value; lists, tuples and dictionaries of at most `MOST_ITEMS`
items by what they hold, and so is one of at most `MOST_WATCHED` items whose last item can be weakly referenced, such as
a list of variables. What a step reaches through an object (`settings.rate`) is not looked at: bind it to a name. An id
says something only while its object lives: an `Identity` holds its objects. A caller that stores only the key must drop
it when any of these objects is freed.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable
from typing import Any

from anytpu.program.remembered import Remembered

MOST_ITEMS = 64
"""The most items of a list, tuple or dictionary that is compared by what it holds."""

MOST_WATCHED = 1024
"""The same for one that holds objects that can be weakly referenced. Each call looks at each of them."""

_SCALARS = frozenset({bool, int, float, complex, str, bytes, type(None)})
_CONTAINERS = frozenset({list, tuple, dict})
_READS_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})


class Identity:
    """What a step function depends on, as a dictionary key that holds what it names.

    Args:
        fn: a function, a bound method, a `functools.partial`, or another callable object.

    Attributes:
        key: ids and scalars. It holds no object.
        objects: the objects whose ids are in the key.
    """

    __slots__ = ("key", "objects")

    def __init__(self, fn: Callable) -> None:
        parts = Parts()
        parts.add(fn, None)
        self.key = tuple(parts.key)
        self.objects = parts.held

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.key == other.key


def is_weakly_referable(one: Any) -> bool:
    """Say whether an object can be weakly referenced; lists, numbers and some objects with slots cannot."""
    return type(one).__weakrefoffset__ != 0


class Parts:
    """Collects what a callable depends on.

    Attributes:
        key: ids and scalars, in the order in which they were met.
        held: the objects whose ids are in the key. Functions and containers are in it by their parts.
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
        elif kind in _CONTAINERS or isinstance(one, tuple):
            self._once(one, self._record)
        else:
            self._object(one)

    def _record(self, one: Any) -> None:
        """Add a named tuple or a long container: by its items where they are objects that can be watched."""
        if len(one) > MOST_WATCHED:
            self._object(one)
            return
        items = [*one, *one.values()] if type(one) is dict else one
        if len(items) > MOST_ITEMS and not is_weakly_referable(items[-1]):
            self._object(one)
            return
        self.key += [type(one), len(items)]
        for item in items:
            if type(item) is types.FunctionType:
                self._object(item)
            else:
                self.add(item, None)

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


_NAMES: Remembered[tuple[str, ...]] = Remembered()


def _globals_read(code: types.CodeType) -> tuple[str, ...]:
    """Return the global names that a code object and those nested in it read; not the names of attributes."""
    known = _NAMES.get(code)
    if known is not None:
        return known
    names = [one.argval for one in dis.get_instructions(code) if one.opname in _READS_GLOBAL]
    nested = [name for one in code.co_consts if isinstance(one, types.CodeType) for name in _globals_read(one)]
    return _NAMES.keep(code, tuple(dict.fromkeys([*names, *nested])))

"""Identity of step functions: decides whether two function objects are the same step.

Idea: a training loop may define its step function inside another function, so each call makes a new function object. A
notebook cell that runs again binds a new model to an old global name. So a step is identified by its code, defaults,
closure contents, and the current values of the globals and attributes that its code reads. The function object itself
does not count. Called functions, methods and functions defined inside functions are compared in the same way.

Rule: Python scalars are compared by value, other objects by identity. Lists, tuples and dictionaries of at most
`MAX_ITEMS` items are compared by their items. The limit is `MAX_WATCHED_ITEMS` if the last item can be weakly
referenced, as in a list of variables. Of an object, a class or a module, the attributes that the code of the step names
are compared too, at any depth. Code of libraries is not followed (`reads.py`). An id is unique only while its object
lives, so an `Identity` holds its objects. A caller that stores only the key must drop it when any of these objects is
freed.
"""

from __future__ import annotations

import collections
import functools
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, NamedTuple

import jax
import keras
import numpy as np

from anytpu.program.remembered import Remembered
from anytpu.strategy.reads import ALL, follow_package, is_library, reads_of

MAX_ITEMS = 64
"""Maximum number of items of a list, tuple or dictionary that is compared by its items."""

MAX_WATCHED_ITEMS = 1024
"""Maximum number of items if they can be weakly referenced. Each call compares each of them."""

MAX_SEARCHED = 10_000
"""Maximum number of parts of a library's object in which objects of the user's classes are searched."""

_SCALARS = frozenset({bool, int, float, complex, str, bytes, type(None)})
_CONTAINERS = frozenset({list, tuple, dict})
_OTHER_CONTAINERS = (list, dict, set, frozenset, collections.deque)
_ARRAYS = (jax.Array, np.ndarray, keras.Variable)


class Identity:
    """The dependencies of a step function, as a dictionary key that keeps its objects alive.

    Args:
        fn: a function, a bound method, a `functools.partial`, or another callable object.
        arguments: objects that the function is called with, and whose attributes it may read.
        learns: search again for the attributes that the code reads, which takes milliseconds. A first run and one that
            compiles does it; other runs compare the attributes that were found.

    Attributes:
        key: ids and scalars; it holds no object.
        objects: the objects that the function names, closes over or has as defaults, and whose ids are in the key.
        reached: the objects that it reads through attributes, and whose ids are in the key.
    """

    __slots__ = ("key", "objects", "reached")

    def __init__(self, fn: Callable, arguments: Iterable[Any] = (), *, learns: bool = False) -> None:
        root = _root_of(fn)
        names = None if learns else _ATTRIBUTES.get(root.__code__ if type(root) is types.FunctionType else root)
        if names is None:
            names = _learn_attributes(root, fn, arguments)
        collector = IdentityParts(names)
        collector.add_step(fn, arguments)
        self.key = tuple(collector.key)
        self.objects, self.reached = collector.held, collector.reached

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.key == other.key


def is_weakly_referable(value: Any) -> bool:
    """Return whether an object can be weakly referenced; lists, numbers and some objects with slots cannot."""
    return type(value).__weakrefoffset__ != 0


_ATTRIBUTES: Remembered[frozenset[str]] = Remembered()


def _root_of(fn: Any) -> Any:
    """Return the function, or the class of the callable object, that a partial or a bound method calls."""
    while type(fn) in (functools.partial, types.MethodType):
        fn = fn.func if type(fn) is functools.partial else fn.__func__
    return fn if type(fn) is types.FunctionType else type(fn)


def _learn_attributes(root: Any, fn: Any, arguments: Iterable[Any]) -> frozenset[str]:
    """Return the names of all attributes that the code of a step reads, and remember them.

    An attribute that is read may be a method, whose code reads others. So search until no name is new.
    """
    follow_package(root.__module__)
    root = getattr(root, "__code__", root)
    names, searched = _ATTRIBUTES.get(root) or frozenset(), {}
    while True:
        collector = IdentityParts(names, searched)
        collector.add_step(fn, arguments)
        more = names.union(*(reads_of(code).attributes for code in collector.codes))
        if more == names:
            return _ATTRIBUTES.keep(root, names)
        names = more


class IdentityParts:
    """Collects the dependencies of a callable.

    Args:
        names: names of the attributes that are compared.
        searched: the library's objects that were searched again; None uses what was found before.

    Attributes:
        key: ids and scalars, in the order of traversal.
        held: the objects whose ids are in the key. Functions and containers are included through their parts.
        reached: the objects whose ids are in the key because of an attribute.
        codes: the code objects in the key.
    """

    __slots__ = ("_names", "_objects", "_searched", "_visited", "codes", "held", "key", "reached")

    def __init__(self, names: frozenset[str] = frozenset(), searched: dict[int, Any] | None = None) -> None:
        self.key: list[Any] = []
        self.held: list[Any] = []
        self.reached: list[Any] = []
        self.codes: list[types.CodeType] = []
        self._names, self._searched = names, searched
        # Index and object: a freed object would give its id to another one.
        self._visited: dict[int, tuple[int, Any]] = {}
        self._objects: dict[int, Any] = {}

    def add_step(self, fn: Any, arguments: Iterable[Any]) -> None:
        """Add a step function, and the objects that it is called with."""
        self.add(fn, None)
        held, self.held = self.held, self.reached
        for value in arguments:
            self.add(value, _NOBODY)
        self.held = held

    def add(self, value: Any, owner: dict | None) -> None:
        """Add an object that code with the globals `owner` names, closes over or has as a default; None: the step."""
        kind = type(value)
        if kind in _SCALARS:
            # With the type: 1, 1.0 and True are equal. Floats as text: NaN is not equal to itself.
            self.key.append((kind, repr(value) if kind is float or kind is complex else value))
        elif kind is types.FunctionType:
            if _is_compared_by_parts(value, owner):
                self._add_once(value, self._function)
            else:
                self._add_object(value)
                if "__wrapped__" in value.__dict__:  # As a function of jax.vmap or jax.grad has it.
                    self.add(value.__dict__["__wrapped__"], _NOBODY)
        elif kind is types.MethodType:
            self.add(value.__self__, owner)
            self.add(value.__func__, owner)
        elif kind is functools.partial:
            self._items((value.func, *value.args, value.keywords), owner)
        elif kind in _CONTAINERS and len(value) <= MAX_ITEMS:
            self._add_once(value, self._dictionary if kind is dict else self._items, owner)
        elif kind in _CONTAINERS or isinstance(value, tuple):
            self._add_once(value, self._record)
        elif isinstance(value, np.generic):
            self.key.append((kind, value.tobytes()))
        else:
            self._add_object(value)
            if kind not in _LEAVES and not (kind is types.ModuleType and value in _LEAVES):
                self._object(value, kind)

    def _record(self, container: Any) -> None:
        """Add a named tuple or a long container: by its items if they can be weakly referenced, else by identity."""
        if len(container) > MAX_WATCHED_ITEMS:
            self._add_object(container)
            return
        items = [*container, *container.values()] if isinstance(container, dict) else [*container]
        if len(items) > MAX_ITEMS and not is_weakly_referable(items[-1]):
            self._add_object(container)
            return
        self.key += [type(container), len(items)]
        for item in items:
            if type(item) is types.FunctionType:
                self._add_object(item)
            else:
                self.add(item, _NOBODY)

    def _add_object(self, value: Any) -> None:
        self.key.append(id(value))
        self.held.append(value)

    def _add_once(self, value: Any, add: Callable[..., None], *args: Any) -> None:
        """Add the parts of an object that may contain itself; on a repeated visit add the index of the first one."""
        first = self._visited.get(id(value))
        if first is not None:
            self.key.append((add.__name__, first[0]))
            return
        self._visited[id(value)] = len(self._visited), value
        self.key.append(add.__name__)
        add(value, *args)

    def _function(self, fn: types.FunctionType) -> None:
        code, names = fn.__code__, fn.__globals__
        self._add_object(code)
        self.codes.append(code)
        if fn.__defaults__:
            self.add(fn.__defaults__, names)
        if fn.__kwdefaults__:
            self.add(fn.__kwdefaults__, names)
        for cell in fn.__closure__ or ():
            self.add(_cell_content(cell), names)
        reads = reads_of(code)
        for name in reads.global_names:
            self.add(names.get(name, _UNBOUND), names)
        if reads.imports:
            for module in reads.imported(names):
                self.add(module, names)

    def _items(self, items: Any, owner: dict | None) -> None:
        self.key.append(len(items))
        for item in items:
            self.add(item, owner)

    def _dictionary(self, items: dict, owner: dict | None) -> None:
        self._items([part for pair in items.items() for part in pair], owner)

    def _object(self, value: Any, kind: type) -> None:
        """Add the attributes of an object, a class or a module that the code of the step names."""
        held, self.held = self.held, self.reached
        if isinstance(value, type):
            self._classes(value)
        elif id(value) not in self._objects:
            self._objects[id(value)] = value
            if isinstance(value, types.ModuleType):
                self._module(value)
            else:
                self._instance(value, kind)
        self.held = held

    def _module(self, module: types.ModuleType) -> None:
        if is_library(module.__name__):
            _LEAVES.add(module)
        else:
            self._named(vars(module), self._names)

    def _classes(self, kind: type) -> _Members:
        """Add the attributes of a class and its bases, of which the functions are methods."""
        members = _members_of(kind)
        for index in members.followed:
            base = kind.__mro__[index]
            if id(base) not in self._objects:
                self._objects[id(base)] = base
                self._named(vars(base), self._names | _members_of(base).implicit)
        return members

    def _instance(self, value: Any, kind: type) -> None:
        members = self._classes(kind)
        if not members.followed and issubclass(kind, _ARRAYS):
            _LEAVES.add(kind)
            return
        if isinstance(value, _OTHER_CONTAINERS):
            self._record(value)
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            is_open = members.is_open or (ALL in self._names and members.followed)
            self._named(attributes, attributes.keys() if is_open else self._names)
        for name in sorted(members.slots if members.is_open else members.slots & self._names):
            self.key.append(name)
            self.add(getattr(value, name, _UNBOUND), _NOBODY)
        if not members.followed:
            for part in self._users_parts(value):
                self.add(part, _NOBODY)

    def _named(self, attributes: Mapping[str, Any], names: Set[str]) -> None:
        for name in sorted(attributes.keys() & names):
            value = attributes[name]
            part = _FUNCTION_OF.get(type(value))
            self.key.append(name)
            self.add(value if part is None else getattr(value, part), _NOBODY)

    def _users_parts(self, value: Any) -> list[Any]:
        """Return the objects of the user's classes in an object of a library, such as custom layers in a model."""
        known = None if self._searched is not None and id(value) not in self._searched else _USERS_PARTS.get(value)
        if known is None:
            parts = _find_users_parts(value)
            if self._searched is not None:
                self._searched[id(value)] = value
            if not is_weakly_referable(value):
                return parts
            known = _USERS_PARTS.keep(value, [weakref.ref(part) for part in parts if is_weakly_referable(part)])
        return [part for part in [reference() for reference in known] if part is not None]


_LEAVES: set[Any] = {types.CodeType, types.BuiltinFunctionType}
"""Classes of libraries whose objects have no attributes to compare, and modules of libraries."""

_NOBODY: dict[str, Any] = {}
"""Stands for the globals of the code that names an attribute."""

_FUNCTION_OF = {property: "fget", staticmethod: "__func__", classmethod: "__func__", functools.cached_property: "func"}

_USERS_PARTS: Remembered[list[weakref.ref[Any]]] = Remembered()


def _find_users_parts(owner: Any) -> list[Any]:
    """Return the objects of the user's classes, and the user's functions, that an object of a library holds."""
    found: list[Any] = []
    visited: dict[int, Any] = {id(owner): owner}
    level = [*getattr(owner, "__dict__", {}).values()]
    while level and len(visited) < MAX_SEARCHED:
        value = level.pop()
        if id(value) in visited or type(value) in _SCALARS or isinstance(value, (*_ARRAYS, type, types.ModuleType)):
            continue
        visited[id(value)] = value
        if type(value) is types.MethodType:
            level.append(value.__self__)
        elif type(value) is types.FunctionType:
            found += [] if is_library(value.__globals__.get("__name__")) else [value]
        elif isinstance(value, dict):
            level += value.values()
        elif isinstance(value, (tuple, *_OTHER_CONTAINERS)):
            level += value
        elif _members_of(type(value)).followed:
            found.append(value)
        else:
            level += getattr(value, "__dict__", {}).values()
    return found


class _Members(NamedTuple):
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


_MEMBERS: Remembered[_Members] = Remembered()

_NOT_OPERATORS = frozenset({
    "__init__", "__new__", "__post_init__", "__repr__", "__str__",
    "__eq__", "__hash__", "__setattr__", "__delattr__", "__init_subclass__",
    "__getstate__", "__setstate__", "__reduce__", "__reduce_ex__", "__del__",
    "__dir__", "__copy__", "__deepcopy__", "__replace__",
})  # fmt: skip


def _members_of(kind: type) -> _Members:
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
    is_open = hasattr(kind, "__getattr__")
    return _MEMBERS.keep(kind, _Members(followed, frozenset(slots), frozenset(implicit), is_open))


class _Unbound:
    """Placeholder for an unbound name: a builtin, or an empty cell."""


_UNBOUND = _Unbound()
_LEAVES.add(_Unbound)


def _is_compared_by_parts(fn: types.FunctionType, owner: dict | None) -> bool:
    """Return whether a function is compared by its parts: the step, a local function, or one of no library."""
    names = fn.__globals__
    return owner is None or names is owner or "<locals>" in fn.__qualname__ or not is_library(names.get("__name__"))


def _cell_content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _UNBOUND

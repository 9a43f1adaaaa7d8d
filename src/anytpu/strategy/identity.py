"""Identity of step functions: decides whether two function objects are the same step.

Idea: a training loop may define its step function inside another function, so each call makes a new function object. A
notebook cell that runs again binds a new model to an old global name. So a step is identified by its code, defaults,
closure contents, and the current values of the globals and attributes that its code reads. The function object itself
does not count. Called functions, methods and functions defined inside functions are compared in the same way.

Rule: Python scalars are compared by value, other objects by identity. Lists, sets and dictionaries of at most
`MAX_WATCHED_ITEMS` items are compared by their items, NumPy arrays of at most `MAX_BYTES` also by value. Of an object,
a class or a module, the attributes that the code of the step names are compared too, at any depth. Code of libraries
is not followed (`reads.py`). An id is unique only while its object lives, so an `Identity` holds its objects. A caller
that stores only the key must drop it when any of these objects is freed.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

import jax.numpy as jnp
import numpy as np

from anytpu.program.remembered import Remembered
from anytpu.strategy.members import ARRAYS, OTHER_CONTAINERS, SCALARS, ClassMembers, members_of, parts_of
from anytpu.strategy.reads import ALL, follow_package, is_library, reads_of

MAX_ITEMS = 64
"""Maximum number of items of a list, tuple or dictionary in which functions are compared by their parts."""

MAX_WATCHED_ITEMS = 1024
"""Maximum number of items that are compared. Each call compares each of them."""

MAX_BYTES = 1 << 16
"""Maximum number of bytes of a NumPy array that is compared by value. Each call compares them."""

_MAX_READERS = 8
"""Maximum number of readers of one function, for different structures of its dependencies."""

_CONTAINERS = frozenset({list, tuple, dict})
_NUMPY_SCALARS = frozenset({*np.sctypeDict.values(), jnp.bfloat16.dtype.type}) - {np.object_, np.void}
_SCALARS = SCALARS | _NUMPY_SCALARS


class Identity:
    """The dependencies of a step function, as a dictionary key that keeps its objects alive.

    It takes milliseconds; `DependencyReader` compares the same dependencies in microseconds.

    Args:
        fn: a function, a bound method, a `functools.partial`, or another callable object.
        arguments: objects that the function is called with, and whose attributes it may read.

    Attributes:
        key: ids and scalars; it holds no object.
        objects: the objects that the function names, closes over or has as defaults, and whose ids are in the key.
        reached: the objects that it reads through attributes, and whose ids are in the key.
        reader: reads the dependencies again.
    """

    __slots__ = ("key", "objects", "reached", "reader")

    def __init__(self, fn: Callable, arguments: Iterable[Any] = ()) -> None:
        root = root_of(fn)
        follow_package(root.__module__)
        root = getattr(root, "__code__", root)
        # An attribute that is read may be a method, whose code reads others. So search until no name is new.
        names, more = frozenset(), _ATTRIBUTES.get(root) or frozenset()
        collector = None
        while collector is None or more != names:
            names, collector = more, IdentityParts(more)
            collector.add_step(fn, arguments)
            more = names.union(*(reads_of(code).attributes for code in collector.codes))
        _ATTRIBUTES.keep(root, names)
        self.key = tuple(collector.key)
        self.objects, self.reached = collector.held, collector.reached
        self.reader = DependencyReader(collector, names)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.key == other.key


class DependencyReader:
    """Reads the dependencies of a step function again, in one call of generated code.

    If two states of the dependencies differ, so do the results, unless an object was freed between them.

    Args:
        parts: the collected dependencies.
        names: names of the attributes that are compared.
    """

    def __init__(self, parts: IdentityParts, names: frozenset[str]) -> None:
        self._source = "\n    ".join(["def read(fn, arguments):", *parts.lines, f"return ({', '.join(parts.reads)},)"])
        self._scope = {
            "UNBOUND": UNBOUND,
            "cell_content": cell_content,
            "modules": sys.modules,
            "names": names,
            "references": parts.references,
        }
        exec(self._source, self._scope)

    def __call__(self, fn: Callable, arguments: Iterable[Any]) -> tuple[Any, ...] | None:
        """Return the dependencies of a function as a key that holds no object; None if they have another structure."""
        try:
            values = self._scope["read"](fn, arguments)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            return None
        # Scalars as in `scalar_key`.
        return self._source, *[
            id(value) if (kind := type(value)) not in _SCALARS else (kind, value or (repr(value),)) for value in values
        ]

    def is_equal(self, other: DependencyReader) -> bool:
        """Return whether another reader reads the same."""
        return self._source == other._source and self._scope["references"] == other._scope["references"]


_ATTRIBUTES: Remembered[frozenset[str]] = Remembered()
_READERS: Remembered[list[DependencyReader]] = Remembered()


def root_of(fn: Any) -> Any:
    """Return the function, or the class of the callable object, that a partial or a bound method calls."""
    while type(fn) in (functools.partial, types.MethodType):
        fn = fn.func if type(fn) is functools.partial else fn.__func__
    return fn if type(fn) is types.FunctionType else type(fn)


def readers_of(fn: Any) -> list[DependencyReader]:
    """Return the readers of a function, the newest first."""
    root = fn if type(fn) is types.FunctionType else root_of(fn)
    return _READERS.get(getattr(root, "__code__", root)) or []


def keep_reader(fn: Any, reader: DependencyReader) -> None:
    """Keep a reader for the next runs of a function."""
    root = root_of(fn)
    readers = [reader, *(other for other in readers_of(fn) if not other.is_equal(reader))]
    _READERS.keep(getattr(root, "__code__", root), readers[:_MAX_READERS])


def is_weakly_referable(value: Any) -> bool:
    """Return whether an object can be weakly referenced; lists, numbers and some objects with slots cannot."""
    return type(value).__weakrefoffset__ != 0


def scalar_key(value: Any, kind: type) -> tuple[type, Any]:
    """Return the key of a scalar: with its type, since 1, 1.0 and True are equal, 0.0 as text, for -0.0."""
    return kind, repr(value) if value != value else value or (repr(value),)


class _Unbound:
    """Placeholder for an unbound name: a builtin, or an empty cell."""


UNBOUND = _Unbound()


def cell_content(cell: Any) -> Any:
    """Return the content of a cell of a closure; `UNBOUND` if it is not filled yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return UNBOUND


_Owner = dict[str, Any] | None


class IdentityParts:
    """Collects the dependencies of a callable, and the expressions that read them again.

    Args:
        names: names of the attributes that are compared.

    Attributes:
        key: ids and scalars, in the order of traversal.
        held: the objects whose ids are in the key. Functions and containers are included through their parts.
        reached: the objects whose ids are in the key because of an attribute.
        codes: the code objects in the key.
        lines: Python assignments of the values that `reads` need.
        reads: expressions of everything that decides the key.
        references: weak references to objects that no expression reaches.
    """

    __slots__ = ("_names", "_objects", "_visited", "codes", "held", "key", "lines", "reached", "reads", "references")

    def __init__(self, names: frozenset[str] = frozenset()) -> None:
        self.key: list[Any] = []
        self.held: list[Any] = []
        self.reached: list[Any] = []
        self.codes: list[types.CodeType] = []
        self.lines: list[str] = []
        self.reads: list[str] = []
        self.references: list[weakref.ref[Any]] = []
        self._names = names
        # Name in `lines`, and the object: a freed object would give its id to another one.
        self._visited: dict[int, tuple[str, Any]] = {}
        self._objects: dict[int, Any] = {}

    def add_step(self, fn: Any, arguments: Iterable[Any]) -> None:
        """Add a step function, and the objects that it is called with."""
        self.add(fn, None, "fn")
        held, self.held = self.held, self.reached
        for index, value in enumerate(arguments):
            self.add(value, _NOBODY, f"arguments[{index}]")
        self.held = held

    def add(self, value: Any, owner: _Owner, path: str) -> None:
        """Add an object.

        Args:
            value: the object.
            owner: the globals of the code that names it, closes over it or has it as a default; None for the step.
            path: an expression of it.
        """
        kind = type(value)
        if kind in _SCALARS:
            self.key.append(scalar_key(value, kind))
            self.reads.append(path)
        elif kind is types.FunctionType:
            if _is_compared_by_parts(value, owner):
                self._add_once(value, path, self._function)
                return
            name = self._add_object(value, path)
            if "__wrapped__" in value.__dict__:  # As a function of jax.vmap or jax.grad has it.
                self.add(value.__dict__["__wrapped__"], _NOBODY, f"{name}.__wrapped__")
        elif kind is types.MethodType:
            name = self._bind(path)
            self.add(value.__self__, owner, f"{name}.__self__")
            self.add(value.__func__, owner, f"{name}.__func__")
        elif kind is functools.partial:
            name = self._bind(path)
            parts = (value.func, *value.args, value.keywords)
            self._items(parts, f"({name}.func, *{name}.args, {name}.keywords)", owner)
        elif kind in _CONTAINERS and len(value) <= MAX_ITEMS:
            self._add_once(value, path, self._dictionary if kind is dict else self._items, owner)
        elif kind in _CONTAINERS or isinstance(value, tuple):
            self._add_once(value, path, self._record)
        else:
            name = self._add_object(value, path)
            if kind not in _LEAVES and not (kind is types.ModuleType and value in _LEAVES):
                self._object(value, kind, name)

    def _bind(self, path: str) -> str:
        """Assign the value of an expression to a name, which is returned."""
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {path}")
        return name

    def _add_object(self, value: Any, path: str) -> str:
        self.key.append(id(value))
        self.held.append(value)
        name = self._bind(path)
        self.reads.append(name)
        return name

    def _add_once(self, value: Any, path: str, add: Callable[..., None], *args: Any) -> None:
        """Add the parts of an object that may contain itself; on a repeated visit add the name of the first one."""
        first = self._visited.get(id(value))
        if first is not None:
            self.key.append((add.__name__, first[0]))
            self.reads.append(f"{path} is {first[0]}")
            return
        name = self._bind(path)
        self._visited[id(value)] = name, value
        self.key.append(add.__name__)
        self.reads.append(f"{name}.__class__")
        add(value, name, *args)

    def _function(self, fn: types.FunctionType, path: str) -> None:
        code, names = fn.__code__, fn.__globals__
        self._add_object(code, f"{path}.__code__")
        self.codes.append(code)
        self.add(fn.__defaults__, names, f"{path}.__defaults__")
        self.add(fn.__kwdefaults__, names, f"{path}.__kwdefaults__")
        for index, cell in enumerate(fn.__closure__ or ()):
            content, cell_path = cell_content(cell), f"{path}.__closure__[{index}]"
            is_filled = content is not UNBOUND
            self.add(content, names, f"{cell_path}.cell_contents" if is_filled else f"cell_content({cell_path})")
        reads = reads_of(code)
        if fn.__dict__:
            self._named(fn.__dict__, self._names, f"{path}.__dict__")
        if reads.global_names:
            dictionary = self._bind(f"{path}.__globals__")
            for name in reads.global_names:
                self.add(names.get(name, UNBOUND), names, f"{dictionary}.get({name!r}, UNBOUND)")
        for name in reads.imported(names):
            self.add(sys.modules[name], names, f"modules[{name!r}]")

    def _items(self, items: Any, path: str, owner: _Owner) -> None:
        self.key.append(len(items))
        listed = self._bind(path)
        self.reads.append(f"len({listed})")
        for index, item in enumerate(items):
            self.add(item, owner, f"{listed}[{index}]")

    def _dictionary(self, items: dict, path: str, owner: _Owner) -> None:
        self._items([*items, *items.values()], f"[*{path}, *{path}.values()]", owner)

    def _record(self, container: Any, path: str) -> None:
        """Add a named tuple, a long container or one of another class: by its items; by identity if it is too long."""
        if len(container) > MAX_WATCHED_ITEMS:
            self._add_object(container, path)
            return
        is_dictionary = isinstance(container, Mapping)
        items = [*container, *container.values()] if is_dictionary else [*container]
        self.key += [type(container), len(items)]
        listed = self._bind(f"[*{path}, *{path}.values()]" if is_dictionary else f"[*{path}]")
        self.reads.append(f"len({listed})")
        for index, item in enumerate(items):
            if type(item) is types.FunctionType:
                self._add_object(item, f"{listed}[{index}]")
            else:
                self.add(item, _NOBODY, f"{listed}[{index}]")

    def _object(self, value: Any, kind: type, path: str) -> None:
        """Add the attributes of an object, a class or a module that the code of the step names."""
        held, self.held = self.held, self.reached
        if isinstance(value, type):
            self._classes(value, path)
            self._classes(kind, f"{path}.__class__")
        elif id(value) not in self._objects:
            self._objects[id(value)] = value
            if isinstance(value, types.ModuleType):
                self._module(value, path)
            elif kind is weakref.ReferenceType:
                self.add(value(), _NOBODY, f"{path}()")
            else:
                self._instance(value, kind, path)
        self.held = held

    def _module(self, module: types.ModuleType, path: str) -> None:
        if is_library(module.__name__):
            _LEAVES.add(module)
        else:
            self._named(vars(module), self._names, f"{path}.__dict__")

    def _classes(self, kind: type, path: str) -> ClassMembers:
        """Add the attributes of a class and its bases, of which the functions are methods."""
        members = members_of(kind)
        for index in members.followed:
            base = kind.__mro__[index]
            if id(base) not in self._objects:
                self._objects[id(base)] = base
                name = self._add_object(base, f"{path}.__mro__[{index}]")
                self._named(vars(base), self._names | members_of(base).implicit, f"{name}.__dict__")
        return members

    def _instance(self, value: Any, kind: type, path: str) -> None:
        members = self._classes(kind, f"{path}.__class__")
        if kind is np.ndarray:
            if value.nbytes <= MAX_BYTES:
                self.key.append(hash(value.tobytes()))
                self.reads.append(f"hash({path}.tobytes())")
            return
        if not members.followed and issubclass(kind, ARRAYS):
            _LEAVES.add(kind)
            return
        if isinstance(value, OTHER_CONTAINERS):
            self._record(value, path)
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            is_open = members.is_open or (ALL in self._names and members.followed)
            self._named(attributes, None if is_open else self._names, f"{path}.__dict__")
        for name in sorted(members.slots if members.is_open else members.slots & self._names):
            self.key.append(name)
            self.add(getattr(value, name, UNBOUND), _NOBODY, f"getattr({path}, {name!r}, UNBOUND)")
        if members.followed:
            return
        parts, settings = parts_of(value)
        for part in filter(is_weakly_referable, parts):
            self.add(part, _NOBODY, self._refer(part))
        for owner, name in settings:
            self.key.append(name)
            self.add(getattr(owner, name), _NOBODY, f"{self._refer(owner)}.{name}")

    def _refer(self, value: Any) -> str:
        """Return an expression of an object that no other expression reaches."""
        self.references.append(weakref.ref(value))
        return f"references[{len(self.references) - 1}]()"

    def _named(self, attributes: Mapping[str, Any], names: Set[str] | None, path: str) -> None:
        """Add the attributes of these names; None: all."""
        dictionary = self._bind(path)
        self.reads.append(f"len({dictionary})" if names is None else f"len(names & {dictionary}.keys())")
        for name in sorted(attributes.keys() if names is None else attributes.keys() & names):
            value = attributes[name]
            part = _FUNCTION_OF.get(type(value))
            self.key.append(name)
            value, suffix = (value, "") if part is None else (getattr(value, part), f".{part}")
            self.add(value, _NOBODY, f"{dictionary}[{name!r}]{suffix}")


_LEAVES: set[Any] = {types.CodeType, types.BuiltinFunctionType, type(UNBOUND)}
"""Classes of libraries whose objects have no attributes to compare, and modules of libraries."""

_NOBODY: dict[str, Any] = {}
"""Stands for the globals of the code that names an attribute."""

_FUNCTION_OF = {property: "fget", staticmethod: "__func__", classmethod: "__func__", functools.cached_property: "func"}


def _is_compared_by_parts(fn: types.FunctionType, owner: _Owner) -> bool:
    """Return whether a function is compared by its parts: the step, a local function, or one of no library."""
    names = fn.__globals__
    return owner is None or names is owner or "<locals>" in fn.__qualname__ or not is_library(names.get("__name__"))

"""Flax NNX modules that a step reads through an object, such as `self.model` in a method.

Idea: JAX turns each array that a traced function captures into a constant of the compiled step. An NNX module is
mutable, so its arrays must not be constants. The attributes of the step's objects are searched for modules, and their
arrays are compared with the constants of the trace.

Rule: a module is rejected only if the step reads one of its arrays: an object may hold modules that the step ignores.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from anytpu.program.jaxprs import inner_jaxprs, level_of

MAX_DEPTH = 4
"""Maximum number of attribute and item accesses between an object of the step and a module."""

MAX_OBJECTS = 10_000
"""Maximum number of objects in the search."""

_LEAVES = (jax.Array, np.ndarray, str, bytes, int, float, complex, type(None), types.CodeType)


def find_reads(nnx: Any, objects: Iterable[Any]) -> Callable[[ClosedJaxpr], list[Any]] | None:
    """Return a function that finds the NNX modules and variables that a trace reads through some objects.

    Args:
        nnx: the module `flax.nnx`.
        objects: the objects that a step names, closes over, has as defaults, or is a method of.

    Returns:
        A function of the trace; None if the attributes of the objects hold no modules.
    """
    # Hold the arrays, so that their ids are unique.
    owners = {id(array): (array, owner) for owner in _find_modules(nnx, objects) for array in _arrays(nnx, owner)}

    def reads(trace: ClosedJaxpr) -> list[Any]:
        return [owners[id(constant)][1] for constant in _constants(trace) if id(constant) in owners]

    return reads if owners else None


def _find_modules(nnx: Any, objects: Iterable[Any]) -> list[Any]:
    """Return the modules and variables reachable from some objects, breadth first."""
    kinds = (nnx.Pytree, nnx.Variable)
    modules: list[Any] = []
    visited: dict[int, Any] = {}
    level = list(objects)
    for _ in range(MAX_DEPTH + 1):
        next_level: list[Any] = []
        for value in level:
            if id(value) in visited or isinstance(value, _LEAVES) or len(visited) >= MAX_OBJECTS:
                continue
            visited[id(value)] = value
            if isinstance(value, kinds):
                modules.append(value)
            elif isinstance(value, types.ModuleType):
                # Do not search other objects of a Python module: it may be all of NumPy.
                next_level += [part for part in list(vars(value).values()) if isinstance(part, kinds)]
            else:
                next_level += _parts(value)
        level = next_level
    return modules


def _parts(value: Any) -> Iterator[Any]:
    """Yield the objects that an object refers to."""
    if isinstance(value, dict):
        yield from list(value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from list(value)
    elif isinstance(value, types.MethodType):
        yield value.__self__
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.FunctionType):
        yield sys.modules.get(value.__module__)
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # An empty cell.
                yield cell.cell_contents
    classes = value.__mro__ if isinstance(value, type) else type(value).__mro__
    for holder in (value, *classes):
        if hasattr(holder, "__dict__") and not _is_builtin(holder):
            yield from list(vars(holder).values())


def _is_builtin(holder: Any) -> bool:
    return isinstance(holder, type) and holder.__module__ == "builtins"


def _constants(jaxpr: ClosedJaxpr | Jaxpr) -> Iterator[Any]:
    """Yield the constants of a jaxpr and of its nested jaxprs."""
    yield from jaxpr.consts if isinstance(jaxpr, ClosedJaxpr) else ()
    for equation in level_of(jaxpr).eqns:
        for inner in inner_jaxprs(equation):
            yield from _constants(inner)


def _arrays(nnx: Any, owner: Any) -> list[Any]:
    return jax.tree.leaves(nnx.state(owner) if isinstance(owner, nnx.Pytree) else owner.get_value())

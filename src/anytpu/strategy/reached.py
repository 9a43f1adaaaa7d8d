"""Flax NNX modules that a step reaches through an object, such as `self.model` in a method.

Idea: JAX makes each array that a traced function reads from outside a constant of the compiled step. An NNX module is
changed in place, so its arrays must not be constants. `ReachedModules` looks for modules in the attributes of the
objects that a step knows, and compares their arrays with the constants of the trace.

Rule: a module is refused only where the step reads one of its arrays: an object may hold others.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, final

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from anytpu.program.jaxprs import inner_jaxprs, level_of

MAX_DEPTH = 4
"""How many attributes and items lie between an object that a step knows and a module that is found."""

MAX_OBJECTS = 10_000
"""The most objects that are looked at."""

_LEAVES = (jax.Array, np.ndarray, str, bytes, int, float, complex, type(None), types.CodeType)


@final
class ReachedModules:
    """The NNX modules and variables in the attributes of some objects.

    Args:
        nnx: the module `flax.nnx`.
        objects: the objects that a step names, closes over, has as defaults, or is a method of.
    """

    def __init__(self, nnx: Any, objects: Iterable[Any]) -> None:
        found = _found(nnx, objects)
        self._owners = {id(array): (array, owner) for owner in found for array in _arrays(nnx, owner)}

    def __bool__(self) -> bool:
        return bool(self._owners)

    def read_by(self, trace: ClosedJaxpr) -> list[Any]:
        """Return those whose arrays are constants of a trace."""
        return [self._owners[id(one)][1] for one in _constants(trace) if id(one) in self._owners]


def _found(nnx: Any, objects: Iterable[Any]) -> list[Any]:
    """Return the modules and variables, breadth first."""
    kinds = (nnx.Pytree, nnx.Variable)
    found: list[Any] = []
    met: dict[int, Any] = {}
    level = list(objects)
    for _ in range(MAX_DEPTH + 1):
        following: list[Any] = []
        for one in level:
            if id(one) in met or isinstance(one, _LEAVES) or len(met) >= MAX_OBJECTS:
                continue
            met[id(one)] = one
            if isinstance(one, kinds):
                found.append(one)
            elif isinstance(one, types.ModuleType):
                # The rest of a Python module is not the step's: it may be all of NumPy.
                following += [part for part in list(vars(one).values()) if isinstance(part, kinds)]
            else:
                following += _parts(one)
        level = following
    return found


def _parts(one: Any) -> Iterator[Any]:
    """Yield what an object holds."""
    if isinstance(one, dict):
        yield from list(one.values())
    elif isinstance(one, list | tuple | set | frozenset):
        yield from list(one)
    elif isinstance(one, types.MethodType):
        yield one.__self__
    elif isinstance(one, functools.partial):
        yield from (one.func, *one.args, *one.keywords.values())
    elif isinstance(one, types.FunctionType):
        yield sys.modules.get(one.__module__)
        for cell in one.__closure__ or ():
            with contextlib.suppress(ValueError):  # An empty cell.
                yield cell.cell_contents
    classes = one.__mro__ if isinstance(one, type) else type(one).__mro__
    for holder in (one, *classes):
        if hasattr(holder, "__dict__") and not _is_builtin(holder):
            yield from list(vars(holder).values())


def _is_builtin(holder: Any) -> bool:
    return isinstance(holder, type) and holder.__module__ == "builtins"


def _constants(jaxpr: ClosedJaxpr | Jaxpr) -> Iterator[Any]:
    """Yield the constants of a jaxpr, and of each one inside it."""
    yield from jaxpr.consts if isinstance(jaxpr, ClosedJaxpr) else ()
    for equation in level_of(jaxpr).eqns:
        for inner in inner_jaxprs(equation):
            yield from _constants(inner)


def _arrays(nnx: Any, owner: Any) -> list[Any]:
    return jax.tree.leaves(nnx.state(owner) if isinstance(owner, nnx.Pytree) else owner.get_value())

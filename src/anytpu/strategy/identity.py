"""When two step functions are the same step.

Idea: a training loop may define its step function inside another one, so that each call makes a new function object; and a
notebook cell that is run again binds a new model to an old global name. So a step is known by its code, its defaults, what
its closure holds and what the globals that its code names are bound to now: not by the function object.

Rule: objects are compared by identity and held, so that no id can be used again; Python scalars by value.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

_BY_VALUE = (bool, int, float, complex, str, bytes, type(None))


class Identity:
    """What a step function depends on, as a dictionary key that holds what it names.

    Args:
        fn: a function, a bound method, a `functools.partial`, or another callable object.
    """

    __slots__ = ("_held", "_key")

    def __init__(self, fn: Callable) -> None:
        self._held = tuple(_parts(fn))
        self._key = tuple(one if isinstance(one, _BY_VALUE) else id(one) for one in self._held)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self._key == other._key


def _parts(fn: Any) -> Iterator[Any]:
    """Yield everything that the behaviour of a callable hangs on."""
    if isinstance(fn, functools.partial):
        yield from (*fn.args, *(part for pair in sorted(fn.keywords.items()) for part in pair))
        yield from _parts(fn.func)
    elif isinstance(fn, types.MethodType):
        yield fn.__self__
        yield from _parts(fn.__func__)
    elif isinstance(fn, types.FunctionType):
        yield fn.__code__
        yield from fn.__defaults__ or ()
        yield from (fn.__kwdefaults__ or {}).values()
        for cell in fn.__closure__ or ():
            yield from _parts_of_cell(cell, fn)
        yield from (fn.__globals__[name] for name in _names(fn.__code__) if name in fn.__globals__)
    else:
        yield fn


def _parts_of_cell(cell: Any, fn: Any) -> Iterator[Any]:
    """Yield what a closure cell holds; a function defined beside this one counts by its own parts."""
    try:
        content = cell.cell_contents
    except ValueError:
        return
    if isinstance(content, types.FunctionType) and content is not fn:
        yield from _parts(content) if content.__closure__ is None else (content,)
    else:
        yield content


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the global names that a code object and the functions nested in it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)

"""`call`: run an operation from its text by XLA, compiled once.

Idea: an operation is written as a module whose main function is that operation. The text can be stored in a file, and
called on arrays.

Rule: a compiled function is kept as long as an operation with its text exists. Functions without an operation, for
constants that are folded while a program is read, are in a small LRU cache.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from anytpu.program.remembered import Remembered
from anytpu.program.stablehlo import parse

_COMPILED: Remembered[Callable[..., Any]] = Remembered()
_BY_TEXT: weakref.WeakValueDictionary[str, Callable[..., Any]] = weakref.WeakValueDictionary()


def call(text: str, operands: Sequence[np.ndarray], owner: Any = None) -> list[np.ndarray]:
    """Return the results of the operation that a module of StableHLO holds.

    Args:
        text: text of the module.
        operands: operands of the shapes and dtypes of its arguments.
        owner: the `Operation` with this text; None: there is none.
    """
    return [np.asarray(result) for result in _function(text, owner)(*operands)]


def _function(text: str, owner: Any) -> Callable[..., Any]:
    if owner is None:
        return _compiled(text)
    return _COMPILED.get(owner) or _COMPILED.keep(owner, _shared(text))


def _shared(text: str) -> Callable[..., Any]:
    """Return the compiled function of a text, shared by all operations with that text."""
    function = _BY_TEXT.get(text)
    if function is None:
        function = _BY_TEXT[text] = _jitted(text)
    return function


@functools.lru_cache(maxsize=16)
def _compiled(text: str) -> Callable[..., Any]:
    return _jitted(text)


def _jitted(text: str) -> Callable[..., Any]:
    return jax.jit(parse(text.encode()).exported.call)

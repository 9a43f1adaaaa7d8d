"""Operations that are run from their text: XLA knows them all, and each is compiled once.

Idea: an operation is written as a module whose main function it is; that can stand in a file, and be called on arrays.

Rule: what was compiled is kept with the operations that have its text, and freed with the last of them. Of what belongs
to no operation, constants that are folded while a program is read, the last few are kept.
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
        text: the module.
        operands: of the shapes and dtypes of its arguments.
        owner: the `Operation` that has this text; None: there is none.
    """
    return [np.asarray(result) for result in _function(text, owner)(*operands)]


def _function(text: str, owner: Any) -> Callable[..., Any]:
    if owner is None:
        return _compiled(text)
    return _COMPILED.get(owner) or _COMPILED.keep(owner, _shared(text))


def _shared(text: str) -> Callable[..., Any]:
    """Return what an operation of this text that still lives was compiled to, or compile it."""
    function = _BY_TEXT.get(text)
    if function is None:
        function = _BY_TEXT[text] = _jitted(text)
    return function


@functools.lru_cache(maxsize=16)
def _compiled(text: str) -> Callable[..., Any]:
    return _jitted(text)


def _jitted(text: str) -> Callable[..., Any]:
    return jax.jit(parse(text.encode()).exported.call)

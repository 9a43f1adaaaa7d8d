"""`call`: run an operation from its text by XLA, compiled once.

Idea: an operation is written as a module whose main function is that operation. The text can be stored in a file, and
called on arrays.

Rule: a compiled function is kept as long as an operation with its text exists. Functions without an operation, for
constants that are folded while a program is read, are in a small LRU cache.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.mlir import ir
from jax.interpreters import mlir

from anytpu.chip.network import parsing
from anytpu.program.remembered import Remembered
from anytpu.program.stablehlo import parse

_COMPILED: Remembered[Callable[..., Any]] = Remembered()
_BY_TEXT: weakref.WeakValueDictionary[str, Callable[..., Any]] = weakref.WeakValueDictionary()

_CONTROL = ("while", "if", "case", "composite")
"""Operations that no host step has: loops and branches are resolved when a model is read."""

_LIBRARY = "lapack_"
"""Start of the names of library functions that a host step may call. Others may run any code, or take a pointer."""

_FREE_NUMBERS = 2**20
"""Numbers that an operation may make in each result, whatever the sizes of its operands and of the one taken."""


@functools.lru_cache(maxsize=1024)
def check(text: str, shape: tuple[int, ...], dtype: np.dtype, number: int) -> None:
    """Check that a text from a file is one operation that ends and calls no code of the machine.

    Args:
        text: text of the module.
        shape, dtype: declared shape and dtype of the result.
        number: index of the result.

    Raises:
        ValueError: the text is not a module with one function of one operation, or the operation is another. It makes
            another result, or one larger than this, each operand and `_FREE_NUMBERS`.
    """
    with mlir.make_ir_context():
        try:
            functions = parsing.parse(ir.Module.parse(text))
        except ir.MLIRError as error:
            raise ValueError("an operation whose text is not StableHLO") from error
    if list(functions) != ["main"] or len(functions["main"].operations) != 1:
        raise ValueError("an operation whose text is not one operation")
    waiting = list(functions["main"].operations)
    most = max(math.prod(shape), *(math.prod(kind.shape) for kind in functions["main"].types), _FREE_NUMBERS)
    made = waiting[0].types[number : number + 1]
    if made != (parsing.TensorType(shape, dtype),):
        raise ValueError(f"an operation whose text does not make {dtype} {list(shape)}")
    for operation in waiting:
        dialect, _, name = operation.name.partition(".")
        target = str(operation.attributes.get("call_target_name")) if name == "custom_call" else _LIBRARY
        if dialect not in ("stablehlo", "chlo") or name in _CONTROL or not target.startswith(_LIBRARY):
            raise ValueError(f"an operation {operation.name!r:.100}, which no step of the host has")
        if max((math.prod(kind.shape) for kind in operation.types), default=0) > most:
            raise ValueError(f"an operation {operation.name!r:.100}, which makes more than {list(shape)}")
        waiting += [inner for block in operation.blocks for inner in block.operations]


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

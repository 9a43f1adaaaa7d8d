"""`GridValues`: the integers and booleans that a Pallas kernel computes from its grid indices, for all steps at once.

Idea: the block of an array and the condition of a branch are functions of the grid's indices and of prefetched arrays.
One of these is the mask of attention. NumPy evaluates them over the whole grid. So it is known how often a block is
moved and in how many steps a branch runs.

Rule: a value of an unknown operation, or of an array that is not a constant, is None, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

MAX_STEPS = 2**22
"""The largest grid that is evaluated: 32 MiB for each value."""

_COMPARISONS = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
"""By the number that MLIR gives to signed predicates: https://mlir.llvm.org/docs/Dialects/ArithOps/#cmpipredicate"""

_OPERATIONS: dict[str, Callable[..., Any]] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.divsi": lambda left, right: _quotient(left, right),
    "arith.remsi": lambda left, right: left - right * _quotient(left, right),
    "arith.select": np.where,
    "arith.extui": lambda value: value.astype(np.int64),
    "arith.extsi": lambda value: -value.astype(np.int64) if value.dtype == bool else value,
    "arith.index_cast": lambda value: value,
}


class GridValues:
    """The values of a function of a kernel's module over its grid."""

    def __init__(self, function: Any, bounds: Sequence[int], arrays: Sequence[np.ndarray | None] = ()) -> None:
        """Take the function, the sizes of the grid, the last of which runs fastest, and the prefetched arrays.

        An array is None if it is not a constant of the program.
        """
        self.steps = math.prod(bounds)
        arguments = list(function.regions[0].blocks[0].arguments)
        indices = np.unravel_index(np.arange(self.steps), tuple(bounds)) if bounds and self.steps <= MAX_STEPS else ()
        self._values: dict[Any, Any] = dict(zip(arguments, indices, strict=False))
        self._arrays = dict(zip(arguments[len(bounds) :], arrays, strict=False))

    def of(self, value: Any) -> np.ndarray | None:
        """Return a value in each step, `(steps,)`, or None if it is not known."""
        found = self._value(value) if self.steps <= MAX_STEPS else None
        return None if found is None else np.broadcast_to(found, self.steps)

    def _value(self, value: Any) -> Any:
        if value not in self._values:
            self._values[value] = self._evaluated(value.owner)
        return self._values[value]

    def _evaluated(self, owner: Any) -> Any:
        name = getattr(owner, "name", "").removeprefix("stable_mosaic.")
        if name == "arith.constant":
            text = str(owner.attributes["value"]).split(":")[0].strip()
            is_integer = text.removeprefix("-").isdecimal()
            return np.asarray(int(text) if is_integer else text == "true") if is_integer or text in _TRUTHS else None
        if name == "memref.load":
            array, indices = self._arrays.get(owner.operands[0]), self._all(list(owner.operands)[1:])
            return None if array is None or indices is None else _loaded(array, indices)
        known = _OPERATIONS.get(name)
        operands = self._all(owner.operands) if known or name == "arith.cmpi" else None
        if operands is None:
            return None
        if known is None:
            predicate = int(str(owner.attributes["predicate"]).split(":")[0])
            known = _COMPARISONS[predicate] if predicate < len(_COMPARISONS) else None
        return known(*operands) if known else None

    def _all(self, values: Sequence[Any]) -> list[Any] | None:
        found = [self._value(value) for value in values]
        return None if any(value is None for value in found) else found


_TRUTHS = ("true", "false")


def _loaded(array: np.ndarray, indices: list[Any]) -> np.ndarray | None:
    try:
        return array[tuple(indices)]
    except IndexError:
        return None


def _quotient(left: Any, right: Any) -> Any:
    """Divide towards zero, as `arith.divsi` does. Division by zero gives 0; no result may depend on it."""
    divisor = np.where(right == 0, 1, right)
    return np.where(right == 0, 0, np.sign(left) * np.sign(divisor) * (np.abs(left) // np.abs(divisor)))

"""`count_fetches`: the number of times that a kernel's grid moves one of its blocks.

Idea: a Pallas kernel's index map gives the block of an array for each step of the grid. A block is moved when its index
differs from the index of the step before. So the map is evaluated over the whole grid at once, with NumPy. `i // 4`
moves a block in every fourth step; `min(i, j)` moves none where the causal mask leaves nothing to do.

Rule: a map with an unknown operation, or one that reads memory, is None, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_MAX_STEPS = 2**20
"""The largest grid that is evaluated: 8 MiB for each value of the map."""

_COMPARISONS = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
"""By the number that MLIR gives to signed predicates: https://mlir.llvm.org/docs/Dialects/ArithOps/#cmpipredicate"""

_OPERATIONS: dict[str, Callable[..., Any]] = {
    "addi": np.add,
    "subi": np.subtract,
    "muli": np.multiply,
    "minsi": np.minimum,
    "maxsi": np.maximum,
    "andi": np.bitwise_and,
    "ori": np.bitwise_or,
    "xori": np.bitwise_xor,
    "divsi": lambda left, right: _quotient(left, right),
    "remsi": lambda left, right: left - right * _quotient(left, right),
    "select": np.where,
    "extui": lambda value: value.astype(np.int64),
    "extsi": lambda value: -value.astype(np.int64) if value.dtype == bool else value,
    "index_cast": lambda value: value,
}


def count_fetches(transform: Any, bounds: Sequence[int]) -> int | None:
    """Return the number of steps of a grid whose block index differs from that of the step before, the first
    included.

    Args:
        transform: the function of the kernel's module that returns the index of a block, as MLIR has it.
        bounds: the sizes of the grid, the last of which runs fastest.

    Returns:
        The count, or None where the map cannot be evaluated.
    """
    steps = math.prod(bounds)
    if not 0 < steps <= _MAX_STEPS:
        return None
    block = transform.regions[0].blocks[0]
    grid = np.unravel_index(np.arange(steps), tuple(bounds)) if bounds else ()
    arguments = list(block.arguments)
    values = dict(zip(arguments, grid, strict=False))
    for wrapper in block.operations:
        operation = wrapper.operation
        if operation.name.endswith("return"):
            if not all(operand in values for operand in operation.operands):
                return None
            indices = [np.broadcast_to(values[operand], steps) for operand in operation.operands]
            changes = [index[1:] != index[:-1] for index in indices]
            return 1 + int(np.count_nonzero(np.logical_or.reduce(changes))) if changes else 1
        result = _evaluated(operation, values)
        if result is None:
            return None
        values[operation.results[0]] = result
    return None


def _evaluated(operation: Any, values: dict[Any, Any]) -> Any:
    """Return the result of an operation over the grid, or None if the operation is unknown."""
    _, _, name = operation.name.removeprefix("stable_mosaic.").partition("arith.")
    if name == "constant":
        text = str(operation.attributes["value"]).split(":")[0].strip()
        return np.asarray(text == "true" if text in ("true", "false") else int(text))
    operands = list(operation.operands)
    if not all(operand in values for operand in operands):
        return None
    operand_values = [values[operand] for operand in operands]
    if name == "cmpi":
        predicate = int(str(operation.attributes["predicate"]).split(":")[0])
        return _COMPARISONS[predicate](*operand_values) if predicate < len(_COMPARISONS) else None
    known = _OPERATIONS.get(name)
    return known(*operand_values) if known else None


def _quotient(left: Any, right: Any) -> Any:
    """Divide towards zero, as `arith.divsi` does. Division by zero gives 0; no result may depend on it."""
    divisor = np.where(right == 0, 1, right)
    return np.where(right == 0, 0, np.sign(left) * np.sign(divisor) * (np.abs(left) // np.abs(divisor)))

"""`blocks_of`: the bytes of the blocks that a Pallas kernel moves between the main memory and the chip.

Idea: a kernel's index map gives the block of an array for each step of the grid. A block is moved when its index
differs from the index of the step before. So the map is evaluated over the whole grid at once, with NumPy. `i // 4`
moves a block in every fourth step; `min(i, j)` moves none where the causal mask leaves nothing to do.

Rule: a map with an unknown operation, or one that reads memory, is not guessed. Its block is assumed to change with
each grid index that it depends on. Without a grid each array is moved once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

_ARRAY = re.compile(r"memref<([\dx]+)x([a-z]+)(\d+).*#tpu\.memory_space<(\w+)>")
_TRANSFORM = re.compile(r"transform_indices = @(\w+)")

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


class MovedBlocks(NamedTuple):
    """The blocks of a kernel, with the fields of `KernelCode`."""

    bytes: float = 0.0
    least_bytes: float = 0.0
    chosen_bytes: float = 0.0


def blocks_of(main: Any, functions: dict[str, Any], bounds: Sequence[int]) -> MovedBlocks:
    """Return the bytes of all blocks over all steps of the grid.

    Args:
        main: the kernel's function, as MLIR has it.
        functions: the functions of its module, by name.
        bounds: the sizes of the grid, the last of which runs fastest.
    """
    arrays = _arrays(main, len(bounds))
    windows = list(main.attributes["window_params"]) if "window_params" in main.attributes else [None] * len(arrays)
    moved = least = chosen = 0.0
    for window, array in zip(windows, arrays, strict=False):
        size, space = array_bytes(array)
        if space != "vmem":
            continue
        named = _TRANSFORM.search(str(window))
        transform = functions.get(named[1]) if named else None
        fetches = None if transform is None else count_fetches(transform, bounds)
        # 1. The map was evaluated over the grid.
        if fetches is not None:
            moved, least = moved + size * fetches, least + size * fetches
            continue
        # 2. Else a block is assumed to change with each grid index that it depends on. Its own indices are certain.
        most = size * math.prod(bounds[: _last_index(transform, len(bounds))])
        moved += most
        chosen += most if transform is not None and _reads_memory(transform) else 0.0
        least += size * math.prod(bounds[: _last_plain_index(transform, len(bounds))])
    return MovedBlocks(moved, least, chosen)


def array_bytes(value: Any) -> tuple[float, str]:
    """Return the bytes of an array and its memory space; nothing for a value that is not an array of known size."""
    match = _ARRAY.match(str(value.type))
    if match is None:
        return 0.0, ""
    return math.prod(int(size) for size in match[1].split("x") if size) * int(match[3]) / 8, match[4]


def _arrays(main: Any, rank: int) -> list[Any]:
    """Return the arguments of a kernel that are arrays in memory, without its scratch."""
    arguments = list(main.regions[0].blocks[0].arguments)
    return arguments[rank + _count(main, "scalar_prefetch") : len(arguments) - _count(main, "scratch_operands")]


def _count(main: Any, name: str) -> int:
    return int(str(main.attributes[name]).split(":")[0]) if name in main.attributes else 0


def _reads_memory(transform: Any) -> bool:
    body = transform.regions[0].blocks[0]
    return any(wrapper.operation.name.endswith("memref.load") for wrapper in body.operations)


def _last_index(transform: Any, rank: int) -> int:
    """Return the number of grid indices, from the first, that determine the next block: all, if that is unclear."""
    if transform is None:
        return rank
    used, waiting = 0, _returned(transform)
    while waiting:
        value = waiting.pop()
        if value.owner == transform.regions[0].blocks[0]:
            # What is read from prefetched memory is taken to depend on the indices that it is read with.
            used = max(used, value.arg_number + 1 if value.arg_number < rank else 0)
        else:
            waiting += list(value.owner.operands)
    return used


def _last_plain_index(transform: Any, rank: int) -> int:
    """Return the number of grid indices, from the first, that are certain to change the block: its own indices."""
    if transform is None:
        return 0
    body = transform.regions[0].blocks[0]
    plain = [value.arg_number for value in _returned(transform) if value.owner == body]
    return max((number for number in plain if number < rank), default=-1) + 1


def _returned(transform: Any) -> list[Any]:
    operations = [wrapper.operation for wrapper in transform.regions[0].blocks[0].operations]
    return [value for operation in operations if operation.name.endswith("return") for value in operation.operands]


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

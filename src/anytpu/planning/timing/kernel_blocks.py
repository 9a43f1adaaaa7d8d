"""`blocks_of`: the bytes of the blocks that a Pallas kernel moves between the main memory and the chip.

Idea: a kernel's index map gives the block of an array for each step of the grid. A block is moved when its index
differs from the index of the step before. So `i // 4` moves a block in every fourth step; `min(i, j)` moves none where
the causal mask leaves nothing to do.

Rule: a map with an unknown operation, or one that reads an array of the step, is not guessed. Its block is assumed to
change with each grid index that it depends on. Without a grid each array is moved once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from anytpu.planning.timing.grid_values import GridValues

_ARRAY = re.compile(r"memref<([\dx]+)x([a-z]+)(\d+).*#tpu\.memory_space<(\w+)>")
_TRANSFORM = re.compile(r"transform_indices = @(\w+)")


class MovedBlocks(NamedTuple):
    """The blocks of a kernel, with the fields of `KernelCode`."""

    bytes: float = 0.0
    least_bytes: float = 0.0


def blocks_of(
    main: Any, functions: dict[str, Any], bounds: Sequence[int], prefetched: Sequence[np.ndarray | None] = ()
) -> MovedBlocks:
    """Return the bytes of all blocks over all steps of the grid.

    Args:
        main: the kernel's function, as MLIR has it.
        functions: the functions of its module, by name.
        bounds: the sizes of the grid, the last of which runs fastest.
        prefetched: the arrays that index maps read; None for one that is not a constant.
    """
    arrays = _arrays(main, len(bounds))
    windows = list(main.attributes["window_params"]) if "window_params" in main.attributes else [None] * len(arrays)
    moved = least = 0.0
    for window, array in zip(windows, arrays, strict=False):
        size, space = array_bytes(array)
        if space != "vmem":
            continue
        named = _TRANSFORM.search(str(window))
        transform = functions.get(named[1]) if named else None
        fetches = None if transform is None else _count_fetches(transform, bounds, prefetched)
        # If the map is not known, a block is assumed to change with each grid index that it depends on. It is certain
        # to change with its own indices.
        moved += size * (fetches or math.prod(bounds[: _last_index(transform, len(bounds))]))
        least += size * (fetches or math.prod(bounds[: _last_plain_index(transform, len(bounds))]))
    return MovedBlocks(moved, least)


def array_bytes(value: Any) -> tuple[float, str]:
    """Return the bytes of an array and its memory space; nothing for a value that is not an array of known size."""
    match = _ARRAY.match(str(value.type))
    if match is None:
        return 0.0, ""
    return math.prod(int(size) for size in match[1].split("x") if size) * int(match[3]) / 8, match[4]


def prefetched_count(main: Any) -> int:
    """Return the number of arrays that a kernel has before its grid starts."""
    return _count(main, "scalar_prefetch")


def _arrays(main: Any, rank: int) -> list[Any]:
    """Return the arguments of a kernel that are arrays in memory, without its scratch."""
    arguments = list(main.regions[0].blocks[0].arguments)
    return arguments[rank + prefetched_count(main) : len(arguments) - _count(main, "scratch_operands")]


def _count(main: Any, name: str) -> int:
    return int(str(main.attributes[name]).split(":")[0]) if name in main.attributes else 0


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


def _count_fetches(transform: Any, bounds: Sequence[int], prefetched: Sequence[np.ndarray | None]) -> int | None:
    """Return the number of steps whose block index differs from that of the step before, the first included.

    It is None where the map cannot be evaluated, and for a grid without steps.
    """
    values = GridValues(transform, bounds, prefetched)
    indices = [values.of(value) for value in _returned(transform)]
    known = [index for index in indices if index is not None]
    if not values.steps or len(known) < len(indices):
        return None
    changes = [index[1:] != index[:-1] for index in known]
    return 1 + int(np.count_nonzero(np.logical_or.reduce(changes))) if changes else 1

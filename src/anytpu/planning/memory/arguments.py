"""`arguments_of`: state and batch of a step on one device, by their shapes alone, with the names that users know.

Idea: a compiled step takes one flat argument for each leaf of the state, then one for each leaf of the batch. The
compiler keeps the position in an argument's name, "leaves[3]"; without one, arguments are in order.

Rule: an array that a mesh or the devices split counts with one device's part; padding is not known and not counted.
"""

from __future__ import annotations

import math
import re
from typing import Any

import jax
from jax.tree_util import keystr, tree_flatten_with_path

from anytpu.planning.records import Buffer
from anytpu.planning.records.target import Target
from anytpu.program.program import Program

_POSITION = re.compile(r"^\w+\[(\d+)\]$")


def arguments_of(program: Program, target: Target) -> tuple[Buffer, ...]:
    """Return each leaf of the state, then of the batch.

    State has the program's own names, the batch its path: "batch/image", "batch/0".

    Example:
        >>> spec = jax.ShapeDtypeStruct
        >>> state, batch = spec((64, 64), "float32"), spec((1024, 64), "float32")
        >>> program = Program("net/train", lambda state, batch: (state, batch), state, batch, ROWS)
        >>> [(buffer.name, buffer.bytes) for buffer in arguments_of(program, target_named("v3-8"))]
        [('state/0', 16384), ('batch', 32768)]
    """
    state, batch = jax.tree.leaves(program.state), tree_flatten_with_path(program.batch)[0]
    names = program.state_names or tuple(f"state/{place}" for place in range(len(state)))
    paths = (f"batch/{keystr(path, simple=True, separator='/')}" if path else "batch" for path, _ in batch)
    leaves = [
        *((name, "state", leaf) for name, leaf in zip(names, state, strict=True)),
        *((name, "batch", leaf) for name, (_, leaf) in zip(paths, batch, strict=True)),
    ]
    return tuple(
        buffer_of(name, use, leaf, part)
        for (name, use, leaf), part in zip(leaves, _parts(program, target), strict=True)
    )


def position_of(op_name: str, number: int) -> int:
    """Return the index of the flat argument of a parameter: the position in its name, else its number."""
    match = _POSITION.match(op_name)
    return int(match[1]) if match else number


def buffer_of(name: str, use: Any, leaf: jax.ShapeDtypeStruct, part: float) -> Buffer:
    """Return the part of an array that one device holds."""
    size_bytes = round(part * leaf.size * dtype_bits(leaf.dtype) / 8)
    return Buffer(name, use, size_bytes, size_bytes, f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]")


def dtype_bits(dtype: Any) -> int:
    """Return the bits of an element in the memory: 4 of int4."""
    return 4 if str(dtype).endswith("int4") or str(dtype).startswith("float4") else 8 * dtype.itemsize


def _parts(program: Program, target: Target) -> list[float]:
    if program.placement is not None:
        sizes = dict(program.placement.axes)
        return [1 / math.prod(sizes[axis] for names in spec for axis in names) for spec in program.placement.specs]
    batch = [1.0 if layout.axis is None else 1 / target.devices for _, layout in program.leaves()]
    return [1.0] * len(jax.tree.leaves(program.state)) + batch

"""`batch_padding_of`: the padding that a step moves because its rows do not fill the tiles of the memory.

Idea: an array is stored in tiles over its two fastest axes, such as 8 x 128. If the examples lie along one of these, a
number of rows that the tile does not divide is rounded up. If they lie along another axis, nothing is lost.

Rule: the layouts are those of the arrays that the compiled operations take and return, weighted by executions. The axis
of the examples is the one as long as the rows of a device. An array with two such axes, or with the shape of a weight,
does not count.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterator

from anytpu.planning.hlo import Computation, HloInstruction, Module, Shape
from anytpu.planning.jobs.job import batch_parts, batch_rows, weights_of
from anytpu.planning.records import BatchPadding
from anytpu.planning.records.target import Target
from anytpu.program.program import Program

_NAMES = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "after-all")


def batch_padding_of(module: Module | None, program: Program, target: Target) -> BatchPadding | None:
    """Return the padding of the axis of the examples; None if there is none, or it is not known.

    Args:
        module: the compiled step, or None.
        program: the program.
        target: the system that it was compiled for.
    """
    rows = batch_rows(program)
    each = -(-rows // batch_parts(program, target.devices)) if rows else 1
    # One row of a device: an axis of length 1 cannot be recognised, and its place in the layout costs nothing.
    return padding_of_rows(module, each, set(weights_of(program).values())) if module and each > 1 else None


def padding_of_rows(module: Module, rows: int, weights: Collection[tuple[int, ...]] = ()) -> BatchPadding | None:
    """Return the padding of the axis of the examples; None if there is none.

    Args:
        module: the compiled step.
        rows: number of rows of a device.
        weights: shapes of the leaves of the state.
    """
    moved, lost = 0.0, collections.Counter[tuple[str, int]]()
    for instruction, count in _walk_executed(module, module.entry, 1):
        for shape in (shape for each in (instruction, *instruction.operands) for shape in each.shapes):
            moved += count * shape.padded_bytes
            unit = _unit(shape, rows)
            if unit and shape.dims not in weights:
                lost[str(shape), unit] += count * round(shape.padded_bytes * (1 - rows / (rows + -rows % unit)))
    if not lost:
        return None
    (largest, unit), _ = lost.most_common(1)[0]
    return BatchPadding(rows, unit, lost.total() / moved, largest)


def _walk_executed(module: Module, home: Computation, count: int) -> Iterator[tuple[HloInstruction, int]]:
    """Yield the operations of a computation and of its loops, each with its number of executions."""
    for instruction in home.instructions.values():
        if instruction.opcode in ("while", "conditional", "call"):
            times = count * (module.trip_count(instruction) or 1) if instruction.opcode == "while" else count
            for body in instruction.bodies:
                yield from _walk_executed(module, body, times)
        elif instruction.opcode not in _NAMES:
            yield instruction, count


def _unit(shape: Shape, rows: int) -> int:
    """Return the multiple that the axis of the examples is rounded up to, or 0 if it is not padded."""
    if shape.dims.count(rows) != 1 or not shape.tiles or len(shape.dims) < 2:
        return 0
    place = shape.minor_to_major.index(shape.dims.index(rows))
    sides = shape.tiles[0][::-1]
    side = sides[place] if place < len(sides) else 1
    return side if rows % side else 0

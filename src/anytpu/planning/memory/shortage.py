"""`shortage_of`: the memory of a program that does not fit.

Idea: the compiler says how much a program would need, and sometimes which buffers are the largest. Where it lists none,
a roofline's estimate from the program itself says what they will be.

Rule: what is estimated is said to be.
"""

from __future__ import annotations

from collections.abc import Sequence

from anytpu.errors import AnyTPUError
from anytpu.planning import roofline
from anytpu.planning.compiler.answer import OutOfMemory
from anytpu.planning.hlo import layer_of
from anytpu.planning.hlo.shapes import shapes_of
from anytpu.planning.memory.buffers import called
from anytpu.planning.memory.names import Leaf, leaves_of, position_of
from anytpu.planning.records.memory import Buffer, Memory
from anytpu.planning.target import Target
from anytpu.program.program import Program

ESTIMATED = "(The compiler lists no buffers. Those shown are estimated from the program.)"


def shortage_of(answer: OutOfMemory, program: Program, target: Target) -> Memory:
    """Return what a program would need, and which buffers are the largest.

    Args:
        answer: what the compiler said.
        program: the program, for the names of its arguments.
        target: for which devices.
    """
    leaves = leaves_of(program)
    buffers = [_listed(size_bytes, shape, op_name, leaves) for size_bytes, shape, op_name in answer.allocations]
    estimated = () if buffers else _estimated(program, target)
    return Memory(
        peak_bytes=answer.needed_bytes,
        limit_bytes=answer.limit_bytes,
        buffers=estimated or tuple(sorted(buffers, key=lambda buffer: -buffer.bytes)),
        padding_waste_bytes=sum(buffer.bytes - buffer.logical_bytes for buffer in buffers),
        said=f"{answer.said}\n{ESTIMATED}" if estimated else answer.said,
    )


def _estimated(program: Program, target: Target) -> tuple[Buffer, ...]:
    try:
        return roofline.roofline_time(program, target)[1].buffers
    except AnyTPUError:
        return ()  # A roofline does not know every program; how much is missing is known all the same.


def _listed(size_bytes: int, shape: str, op_name: str, leaves: Sequence[Leaf]) -> Buffer:
    shapes = shapes_of(shape) if "[" in shape else ()
    logical_bytes = sum(one.bytes for one in shapes) or size_bytes
    place = position_of(op_name, -1)
    if 0 <= place < len(leaves):
        return Buffer(leaves[place].name, leaves[place].use, size_bytes, logical_bytes, shape)
    layer = layer_of(op_name).layer
    return Buffer(called(op_name, op_name or shape), "temporary", size_bytes, logical_bytes, shape, layer)

"""`shortage_of`: the memory of a program that does not fit.

Idea: the compiler gives the need of a program, and sometimes its largest buffers. Without a list, the step's arguments
are shown, whose sizes are known, and the rest of the need as one sum.

Rule: a buffer that the compiler did not list says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from anytpu.planning.compiler.answer import OutOfMemory
from anytpu.planning.hlo import layer_of
from anytpu.planning.hlo.shapes import shapes_of
from anytpu.planning.memory.arguments import arguments_of
from anytpu.planning.memory.buffers import called
from anytpu.planning.memory.names import FlatArgument, leaves_of, position_of
from anytpu.planning.records.memory import Buffer, Memory
from anytpu.planning.target import Target
from anytpu.program.program import Program

ARGUMENTS = "(The compiler lists no buffers. Those shown are the arguments of the step, without padding.)"

REST = "temporaries and padding, together"


def shortage_of(answer: OutOfMemory, program: Program, target: Target) -> Memory:
    """Return the need of a program, and its largest buffers.

    Args:
        answer: the compiler's answer.
        program: the program, for the names of its arguments.
        target: the devices that it was compiled for.
    """
    leaves = leaves_of(program)
    buffers = [_listed(size_bytes, shape, op_name, leaves) for size_bytes, shape, op_name in answer.allocations]
    shown = buffers or _with_rest(arguments_of(program, target), answer.needed_bytes)
    return Memory(
        peak_bytes=answer.needed_bytes,
        limit_bytes=answer.limit_bytes,
        buffers=tuple(sorted(shown, key=lambda buffer: -buffer.bytes)),
        padding_waste_bytes=sum(buffer.bytes - buffer.logical_bytes for buffer in buffers),
        said=answer.said if buffers else f"{answer.said}\n{ARGUMENTS}",
    )


def _with_rest(arguments: Sequence[Buffer], needed_bytes: int) -> list[Buffer]:
    """Return the arguments, and one buffer for the rest of the need: results between its operations, and padding."""
    rest_bytes = needed_bytes - sum(buffer.bytes for buffer in arguments)
    rest = [Buffer(REST, "temporary", rest_bytes, rest_bytes, "")] if rest_bytes > 0 else []
    return [*arguments, *rest]


def _listed(size_bytes: int, shape: str, op_name: str, leaves: Sequence[FlatArgument]) -> Buffer:
    shapes = shapes_of(shape) if "[" in shape else ()
    logical_bytes = sum(part.bytes for part in shapes) or size_bytes
    place = position_of(op_name, -1)
    if 0 <= place < len(leaves):
        return Buffer(leaves[place].name, leaves[place].use, size_bytes, logical_bytes, shape)
    layer = layer_of(op_name).layer
    return Buffer(called(op_name, op_name or shape), "temporary", size_bytes, logical_bytes, shape, layer)

"""`memory_of`: what a compiled program, or one that does not fit, needs of a device's memory.

Idea: the compiler says how much it is; the module's text says what it consists of. Its arguments are the program's
state and batch, the rest are results of instructions, each with the layer and the line that it came from.

Rule: the need is the smaller of two numbers that the compiler gives, both of which can be too high and neither too low:
its peak also counts the memory beside the units, on small programs more than the main memory; the sum of arguments,
results and temporaries counts as apart what takes turns. The code comes on top.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from anytpu.errors import PlanError
from anytpu.planning.compiler.answer import Compiled, OutOfMemory
from anytpu.planning.hlo import Module, layer_of
from anytpu.planning.hlo.aliases import donated_results
from anytpu.planning.hlo.module import Instruction
from anytpu.planning.hlo.shapes import shapes_of
from anytpu.planning.memory.limits import limit_bytes
from anytpu.planning.memory.liveness import Held, Peak, in_main_memory, peak_of
from anytpu.planning.memory.names import Leaf, leaves_of, position_of
from anytpu.planning.records.memory import Buffer, Memory
from anytpu.planning.target import Target
from anytpu.program.program import Program

_SHOWN = 50
_LARGE_BYTES = 64 * 1024
_PASSED_ON = ("copy", "copy-done", "bitcast", "get-tuple-element", "copy-start", "convert", "reshape", "transpose")


def memory_of(answer: Compiled | OutOfMemory, module: Module | None, program: Program, target: Target) -> Memory:
    """Return the memory that a program needs of one device, and what it consists of.

    Args:
        answer: what the compiler said.
        module: the compiled module; None for a program that does not fit.
        program: the program, for the names of its arguments.
        target: for which devices.

    Raises:
        PlanError: the target's limit is not known, or a compiled program comes without its module.
    """
    leaves = leaves_of(program)
    if isinstance(answer, OutOfMemory):
        return _too_much(answer, leaves)
    if module is None:
        raise PlanError(f"the memory of {program.name!r} needs its compiled module: hand over hlo.parse(answer.hlo)")
    peak = peak_of(module)
    buffers = [_buffer(held, module, leaves) for held in peak.held]
    buffers.append(Buffer("program code", "code", answer.code_bytes, answer.code_bytes, ""))
    limit = limit_bytes(target)
    return Memory(
        # The compiler accepted it, so that it fits, by however little.
        peak_bytes=min(need_bytes(answer), limit),
        limit_bytes=limit,
        upper_bound_bytes=_sum_bytes(answer) + answer.code_bytes,
        buffers=tuple(sorted(buffers, key=lambda buffer: -buffer.bytes)[:_SHOWN]),
        padding_waste_bytes=_waste_bytes(peak, module),
    )


def need_bytes(answer: Compiled) -> int:
    """Return what a compiled program needs of a device's memory, code included, bytes."""
    most = _sum_bytes(answer)
    return min(most, answer.peak_bytes if answer.peak_bytes is not None else most) + answer.code_bytes


def _sum_bytes(answer: Compiled) -> int:
    return answer.argument_bytes + answer.output_bytes - answer.alias_bytes + answer.temp_bytes


def _too_much(answer: OutOfMemory, leaves: Sequence[Leaf]) -> Memory:
    buffers = [_listed(size_bytes, shape, op_name, leaves) for size_bytes, shape, op_name in answer.allocations]
    return Memory(
        peak_bytes=answer.needed_bytes,
        limit_bytes=answer.limit_bytes,
        buffers=tuple(sorted(buffers, key=lambda buffer: -buffer.bytes)[:_SHOWN]),
        padding_waste_bytes=sum(buffer.bytes - buffer.logical_bytes for buffer in buffers),
        said=answer.said,
    )


def _listed(size_bytes: int, shape: str, op_name: str, leaves: Sequence[Leaf]) -> Buffer:
    shapes = shapes_of(shape) if "[" in shape else ()
    logical_bytes = sum(one.bytes for one in shapes) or size_bytes
    place = position_of(op_name, -1)
    if 0 <= place < len(leaves):
        return Buffer(leaves[place].name, leaves[place].use, size_bytes, logical_bytes, shape)
    layer = layer_of(op_name).layer
    return Buffer(_called(op_name, op_name or shape), "temporary", size_bytes, logical_bytes, shape, layer)


def _buffer(held: Held, module: Module, leaves: Sequence[Leaf]) -> Buffer:
    shape = held.shape
    buffer = Buffer(held.instruction.name, "temporary", shape.padded_bytes, shape.bytes, str(shape))
    if held.argument is not None:
        place = position_of(held.instruction.op_name, held.argument)
        leaf = leaves[place] if place < len(leaves) else Leaf(f"argument {place}", "state")
        return dataclasses.replace(buffer, name=leaf.name, use=leaf.use)
    maker = _maker(held, module)
    use: Literal["output", "temporary"] = "output" if held.result is not None else "temporary"
    name = _called(maker.op_name, buffer.name)
    states = sum(leaf.use == "state" for leaf in leaves)
    if held.result is not None and held.result < states:
        name = f"{leaves[held.result].name}, updated"
    source = module.source_of(maker)
    layer = layer_of(maker.op_name).layer
    return dataclasses.replace(buffer, name=name, use=use, layer=layer, source=str(source) if source else "")


def _called(op_name: str, otherwise: str) -> str:
    layer, is_backward = layer_of(op_name)
    if not layer:
        return otherwise
    return f"{layer} gradient" if is_backward else f"{layer} output"


def _maker(held: Held, module: Module) -> Instruction:
    """Return the instruction that says where an array came from: past copies, and in a loop what fills it."""
    one = held.writer or held.instruction
    home = module.home_of(one)
    while not one.op_name and one.opcode in _PASSED_ON and one.operands:
        one = home.instructions[one.operands[0]]
    return one if one.op_name else held.instruction


def _waste_bytes(peak: Peak, module: Module) -> int:
    """Return what padding takes, over arguments, results and large temporaries."""
    shapes = [held.shape for held in peak.held if held.argument is not None]
    shapes += [held.shape for held in peak.held if _is_temporary(held) and held.shape.padded_bytes >= _LARGE_BYTES]
    donated = donated_results(module.header)
    results = module.entry.instructions[module.entry.root].shapes
    shapes += [shape for place, shape in enumerate(results) if place not in donated and in_main_memory(shape)]
    return sum(shape.padded_bytes - shape.bytes for shape in shapes)


def _is_temporary(held: Held) -> bool:
    return held.argument is None and held.result is None

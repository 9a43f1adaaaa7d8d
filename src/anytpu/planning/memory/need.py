"""`memory_of`: the memory of a device that a compiled program needs, or one that does not fit; and its parts.

Idea: the compiler gives the amount; the module's text gives the parts. An argument is a weight, an optimizer slot or a
part of the batch. The others are results of instructions, each with its layer and its line. Of a program that does not
fit, the compiler sometimes lists the largest buffers. Without a list, the step's arguments are shown, whose sizes are
known, and the rest of the need as one sum.

Rule: the need is the smaller of two numbers of the compiler, each of which can be too high and neither too low. Its
peak also counts on-chip memory, which on small programs exceeds the main memory. The sum of arguments, results and
temporaries counts arrays as separate that share memory over time. The code comes on top. An array is not named after an
instruction that only moves it, a copy or a loop that carries it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal

from anytpu.errors import PlanError
from anytpu.planning.compiler.answer import CompiledProgram, OutOfMemory
from anytpu.planning.hlo import HloInstruction, Module, layer_of, shapes_of
from anytpu.planning.memory.arguments import arguments_of, position_of
from anytpu.planning.memory.liveness import LiveArray, Peak, in_main_memory, peak_of
from anytpu.planning.memory.parts import parts_of
from anytpu.planning.records import Buffer, MemoryPart, MemoryUse
from anytpu.planning.records.target import Target, limit_bytes
from anytpu.program.program import Program

ARGUMENTS = "(The compiler lists no buffers. Those shown are the arguments of the step, without padding.)"
REST = "temporaries and padding, together"
NEXT_BATCH = "the next batch"

_SHOWN = 50
_LARGE_BYTES = 64 * 1024
_PASSED_ON = ("copy", "copy-done", "bitcast", "get-tuple-element", "copy-start", "convert", "reshape", "transpose")


def memory_of(
    answer: CompiledProgram | OutOfMemory, module: Module | None, program: Program, target: Target
) -> MemoryUse:
    """Return the memory that a program needs of one device, and its parts.

    Args:
        answer: the compiler's answer.
        module: the compiled module; None for a program that does not fit.
        program: the program, for the names of its arguments.
        target: the devices that it was compiled for.

    Raises:
        PlanError: the target's limit is not known, or a compiled program comes without its module.
    """
    arguments = arguments_of(program, target)
    if isinstance(answer, OutOfMemory):
        memory = _shortage(answer, arguments)
        return dataclasses.replace(memory, parts=parts_of(memory.peak_bytes, 0, program, target))
    if module is None:
        raise PlanError(f"the memory of {program.name!r} needs its compiled module: hand over hlo.parse(answer.hlo)")
    # A step that fits: the text has its arrays, the compiler's numbers their sum.
    peak = peak_of(module)
    buffers = [_buffer(held, module, arguments) for held in peak.held]
    buffers.append(Buffer("program code", "code", answer.code_bytes, answer.code_bytes, ""))
    limit = limit_bytes(target)
    # The compiler accepted it, so it fits, however narrowly.
    peak_bytes = min(need_bytes(answer), limit)
    return MemoryUse(
        peak_bytes=peak_bytes,
        limit_bytes=limit,
        upper_bound_bytes=_sum_bytes(answer) + answer.code_bytes,
        buffers=_largest_first(buffers)[:_SHOWN],
        padding_waste_bytes=_waste_bytes(peak, module),
        parts=parts_of(peak_bytes, answer.code_bytes, program, target, peak.held),
    )


def with_next_batch(memory: MemoryUse, program: Program, target: Target) -> MemoryUse:
    """Return the memory of one device with the next batch, which is sent while the devices compute.

    `fit`, and every loop that starts steps without waiting for their results, has two batches in memory. The compiled
    step knows of one. Only leaves that are split over the devices are sent; a leaf that every device holds whole is
    sent once. The stacks in which `fit` sends small batches take 64 MiB over all devices, and are not counted.

    Args:
        memory: memory of the step alone.
        program: the program.
        target: the devices that it was compiled for.
    """
    batch = [buffer for buffer in arguments_of(program, target) if buffer.use == "batch"]
    is_placed = program.placement is not None
    sent = {
        buffer.name: buffer
        for buffer, (_, layout) in zip(batch, program.leaves(), strict=True)
        if is_placed or layout.axis is not None
    }
    # The compiler's buffers are padded; it does not list each.
    sent |= {buffer.name: buffer for buffer in memory.buffers if buffer.use == "batch" and buffer.name in sent}
    size_bytes = sum(buffer.bytes for buffer in sent.values())
    if not size_bytes:
        return memory
    logical_bytes = sum(buffer.logical_bytes for buffer in sent.values())
    following = Buffer(NEXT_BATCH, "batch", size_bytes, logical_bytes, "")
    return dataclasses.replace(
        memory,
        peak_bytes=memory.peak_bytes + size_bytes,
        upper_bound_bytes=memory.upper_bound_bytes and memory.upper_bound_bytes + size_bytes,
        buffers=_largest_first((*memory.buffers, following)),
        parts=tuple(
            MemoryPart(part.kind, part.bytes + (size_bytes if part.kind == "batch" else 0)) for part in memory.parts
        ),
    )


def need_bytes(answer: CompiledProgram) -> int:
    """Return the memory of a device that a compiled program needs, code included, bytes."""
    most = _sum_bytes(answer)
    return min(most, answer.peak_bytes if answer.peak_bytes is not None else most) + answer.code_bytes


def _sum_bytes(answer: CompiledProgram) -> int:
    return answer.argument_bytes + answer.output_bytes - answer.alias_bytes + answer.temp_bytes


def _waste_bytes(peak: Peak, module: Module) -> int:
    """Return the padding of arguments, results and large temporaries, bytes."""
    shapes = [held.shape for held in peak.held if held.argument is not None]
    shapes += [held.shape for held in peak.held if _is_temporary(held) and held.shape.padded_bytes >= _LARGE_BYTES]
    results = module.entry.root.shapes
    shapes += [shape for place, shape in enumerate(results) if place not in module.donated and in_main_memory(shape)]
    return sum(shape.padded_bytes - shape.bytes for shape in shapes)


def _is_temporary(held: LiveArray) -> bool:
    return held.argument is None and held.result is None


def _largest_first(buffers: Iterable[Buffer]) -> tuple[Buffer, ...]:
    return tuple(sorted(buffers, key=lambda buffer: -buffer.bytes))


def _buffer(held: LiveArray, module: Module, arguments: Sequence[Buffer]) -> Buffer:
    shape = held.shape
    buffer = Buffer(held.instruction.name, "temporary", shape.padded_bytes, shape.bytes, str(shape))
    if held.argument is not None:
        place = position_of(held.instruction.op_name, held.argument)
        if place >= len(arguments):
            return dataclasses.replace(buffer, name=f"argument {place}", use="state")
        return dataclasses.replace(buffer, name=arguments[place].name, use=arguments[place].use)
    maker = _maker(held)
    use: Literal["output", "temporary"] = "output" if held.result is not None else "temporary"
    name = _name_of(maker.op_name, buffer.name)
    states = sum(argument.use == "state" for argument in arguments)
    if held.result is not None and held.result < states:
        name = f"{arguments[held.result].name}, updated"
    layer = layer_of(maker.op_name).layer
    return dataclasses.replace(buffer, name=name, use=use, layer=layer, source=module.source_of(maker))


def _name_of(op_name: str, otherwise: str) -> str:
    """Return the name of an array by the operation that made it: "conv1 output", "conv1 gradient"."""
    layer, is_backward = layer_of(op_name)
    if not layer:
        return otherwise
    return f"{layer} gradient" if is_backward else f"{layer} output"


def _maker(held: LiveArray) -> HloInstruction:
    """Return the instruction that an array is named after: past copies, and in a loop the one that fills it."""
    instruction = held.writer or held.instruction
    while not instruction.op_name and instruction.opcode in _PASSED_ON and instruction.operands:
        instruction = instruction.operands[0]
    return instruction if instruction.op_name else held.instruction


def _shortage(answer: OutOfMemory, arguments: Sequence[Buffer]) -> MemoryUse:
    """Return the need of a program that does not fit, and its largest buffers."""
    listed = [
        _listed_buffer(size_bytes, shape, op_name, arguments) for size_bytes, shape, op_name in answer.allocations
    ]
    rest_bytes = answer.needed_bytes - sum(buffer.bytes for buffer in arguments)
    rest = [Buffer(REST, "temporary", rest_bytes, rest_bytes, "")] if rest_bytes > 0 else []
    return MemoryUse(
        peak_bytes=answer.needed_bytes,
        limit_bytes=answer.limit_bytes,
        buffers=_largest_first(listed or (*arguments, *rest)),
        padding_waste_bytes=sum(buffer.bytes - buffer.logical_bytes for buffer in listed),
        said=answer.said if listed else f"{answer.said}\n{ARGUMENTS}",
    )


def _listed_buffer(size_bytes: int, shape: str, op_name: str, arguments: Sequence[Buffer]) -> Buffer:
    shapes = shapes_of(shape) if "[" in shape else ()
    logical_bytes = sum(part.bytes for part in shapes) or size_bytes
    place = position_of(op_name, -1)
    if 0 <= place < len(arguments):
        return Buffer(arguments[place].name, arguments[place].use, size_bytes, logical_bytes, shape)
    layer = layer_of(op_name).layer
    return Buffer(_name_of(op_name, op_name or shape), "temporary", size_bytes, logical_bytes, shape, layer)

"""`memory_of`: the memory of a device that a compiled program needs, or one that does not fit.

Idea: the compiler gives the amount; the module's text gives the parts. The arguments are the program's state and batch,
the rest are results of instructions, each with its layer and its line.

Rule: the need is the smaller of two numbers of the compiler, each of which can be too high and neither too low. Its
peak also counts on-chip memory, which on small programs exceeds the main memory. The sum of arguments, results and
temporaries counts arrays as separate that share memory over time. The code comes on top.
"""

from __future__ import annotations

from anytpu.errors import PlanError
from anytpu.planning.compiler.answer import CompiledProgram, OutOfMemory
from anytpu.planning.hlo import Module
from anytpu.planning.limits import limit_bytes
from anytpu.planning.memory.buffers import buffers_of
from anytpu.planning.memory.liveness import Held, Peak, in_main_memory, peak_of
from anytpu.planning.memory.shortage import shortage_of
from anytpu.planning.records.memory import Buffer, Memory
from anytpu.planning.target import Target
from anytpu.program.program import Program

_SHOWN = 50
_LARGE_BYTES = 64 * 1024


def memory_of(answer: CompiledProgram | OutOfMemory, module: Module | None, program: Program, target: Target) -> Memory:
    """Return the memory that a program needs of one device, and its parts.

    Args:
        answer: the compiler's answer.
        module: the compiled module; None for a program that does not fit.
        program: the program, for the names of its arguments.
        target: the devices that it was compiled for.

    Raises:
        PlanError: the target's limit is not known, or a compiled program comes without its module.
    """
    if isinstance(answer, OutOfMemory):
        return shortage_of(answer, program, target)
    if module is None:
        raise PlanError(f"the memory of {program.name!r} needs its compiled module: hand over hlo.parse(answer.hlo)")
    peak = peak_of(module)
    buffers = buffers_of(peak, module, program)
    buffers.append(Buffer("program code", "code", answer.code_bytes, answer.code_bytes, ""))
    limit = limit_bytes(target)
    return Memory(
        # The compiler accepted it, so it fits, however narrowly.
        peak_bytes=min(need_bytes(answer), limit),
        limit_bytes=limit,
        upper_bound_bytes=_sum_bytes(answer) + answer.code_bytes,
        buffers=tuple(sorted(buffers, key=lambda buffer: -buffer.bytes)[:_SHOWN]),
        padding_waste_bytes=_waste_bytes(peak, module),
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
    results = module.entry.instructions[module.entry.root].shapes
    shapes += [shape for place, shape in enumerate(results) if place not in module.donated and in_main_memory(shape)]
    return sum(shape.padded_bytes - shape.bytes for shape in shapes)


def _is_temporary(held: Held) -> bool:
    return held.argument is None and held.result is None

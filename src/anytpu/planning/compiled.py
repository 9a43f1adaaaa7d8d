"""`by_compiler`: a prediction from the module that the TPU's own compiler made of a program."""

from __future__ import annotations

import collections
import dataclasses

from anytpu.planning import calibration
from anytpu.planning.compiler import CompiledProgram, compile_program
from anytpu.planning.estimate import Estimate
from anytpu.planning.hlo import Computation, Module, parse
from anytpu.planning.memory import batch_padding_of, memory_of, with_next_batch
from anytpu.planning.target import Target
from anytpu.planning.timing import step_time
from anytpu.planning.timing.uncertainty import compiler_note
from anytpu.planning.wish import Wish
from anytpu.program.program import Program


def by_compiler(program: Program, target: Target, wish: Wish) -> Estimate:
    """Compile a program for a system and price the module, with the time corrected by this user's own runs.

    Raises:
        CompilerMissingError: libtpu is not installed.
        NoAnswerError: the compiler took too long or too much memory.
        PlanError: the compiler refused the program or crashed.
    """
    answer = compile_program(program, target, options=wish.options, timeout_s=wish.timeout_s, use_cache=wish.use_cache)
    module = parse(answer.hlo) if isinstance(answer, CompiledProgram) else None
    memory, time = with_next_batch(memory_of(answer, module, program, target), program, target), None
    if module is not None and memory.fits:
        time = step_time(module, target, steps_per_execution=wish.steps_per_execution)
        time = dataclasses.replace(time, evidence=(*time.evidence, *compiler_note(answer.compiler)))
        time = calibration.kept(program, time, target, wish)
    compile_s = None if answer.from_cache else answer.compile_s
    peak = peak_flops_per_s(module, target) if module else target.flops_per_s
    return Estimate(
        time,
        memory,
        f"the TPU compiler ({answer.compiler})",
        peak,
        compile_s,
        left_out_note(answer.left_out),
        batch_padding=batch_padding_of(module, program, target),
    )


def left_out_note(left_out: tuple[str, ...]) -> tuple[str, ...]:
    """Return a note on the calls of a step that a plan leaves out, or ()."""
    if not left_out:
        return ()
    return (f"Not in the plan: {', '.join(left_out)}. No number depends on it; on a TPU each call waits for the host.",)


def peak_flops_per_s(module: Module, target: Target) -> float:
    """Return the peak rate of one device for the type of most of a module's products, FLOP/s."""
    counts = _flops_by_dtype(module, module.entry)
    chip, main = target.chip, max(counts, key=lambda dtype: counts[dtype], default="")
    fast = {"s": chip.int8_ops_per_s, "u": chip.int8_ops_per_s, "f8": chip.fp8_flops_per_s}
    rate = next((rate for start, rate in fast.items() if main.startswith(start)), None)
    return rate / chip.replicas if rate else target.flops_per_s


def _flops_by_dtype(module: Module, home: Computation) -> collections.Counter[str]:
    counts: collections.Counter[str] = collections.Counter()
    for instruction in home.instructions.values():
        if instruction.opcode in ("while", "conditional", "call"):
            for name in instruction.called:
                counts += _flops_by_dtype(module, module.computations[name])
        elif instruction.opcode in ("fusion", "convolution", "dot"):
            counts.update({dtype: int(flops) for dtype, flops in module.flops_by_dtype(instruction).items()})
    return counts

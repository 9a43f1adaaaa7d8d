"""`by_compiler`: a prediction from what the TPU's own compiler made of a program."""

from __future__ import annotations

from anytpu.planning import calibration
from anytpu.planning.compiler import Compiled, compile_program
from anytpu.planning.found import Found
from anytpu.planning.hlo import parse
from anytpu.planning.job import batch_rows
from anytpu.planning.memory import memory_of
from anytpu.planning.target import Target
from anytpu.planning.timing import step_time
from anytpu.planning.wish import Wish
from anytpu.program.program import Program


def by_compiler(program: Program, target: Target, wish: Wish) -> Found:
    """Compile a program for a system, and price what the compiler made; the time as this user's own runs correct it.

    Raises:
        CompilerMissingError: libtpu is not installed.
        PlanError: the compiler refused the program, ended or took too long.
    """
    answer = compile_program(program, target, options=wish.options, timeout_s=wish.timeout_s, use_cache=wish.use_cache)
    module = parse(answer.hlo) if isinstance(answer, Compiled) else None
    memory, time = memory_of(answer, module, program, target), None
    if module is not None and memory.fits:
        time = step_time(
            module,
            target,
            steps_per_execution=wish.steps_per_execution,
            input_examples_per_s=wish.input_examples_per_s,
            batch_size=batch_rows(program),
        )
        time = calibration.kept(program, time, target)
    compile_s = None if answer.from_cache else answer.compile_s
    return Found(time, memory, f"the TPU compiler ({answer.compiler})", target.flops_per_s, compile_s)

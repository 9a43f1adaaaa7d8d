"""`predict_compiled`: a prediction from the module that the TPU's own compiler made of a program."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable

from anytpu.errors import NoAnswerError
from anytpu.planning.compiler import CompiledProgram, compile_program
from anytpu.planning.compiler.export import left_out_note
from anytpu.planning.costs.waits import add_waits
from anytpu.planning.hlo import Module, flops_of, parse
from anytpu.planning.jobs.job import batch_rows
from anytpu.planning.jobs.settings import PlanSettings
from anytpu.planning.memory import batch_padding_of, memory_of, with_next_batch
from anytpu.planning.records import Prediction
from anytpu.planning.records.target import Target
from anytpu.planning.timing import step_time
from anytpu.planning.timing.uncertainty import compiler_note
from anytpu.program.program import Program

_BY = {"code": "TPU compiler", "schedule": "schedule of the TPU compiler"}


def predict_compiled(
    program: Program, target: Target, settings: PlanSettings, begin: Callable[[], None] | None = None
) -> Prediction:
    """Compile a program for a system and price the module; `begin` is called first if the answer is not on the disk.

    A schedule has no cycles, so its products take as much longer than at peak as products of the chip with cycles do.
    Its other operations take the time of their bytes.

    Raises:
        CompilerMissingError: libtpu is not installed.
        NoAnswerError: the compiler took too long or too much memory.
        PlanError: the compiler refused the program or crashed.
    """
    # 1. The compiler's answer.
    answer = compile_program(
        program,
        target,
        options=settings.options,
        timeout_s=settings.timeout_s,
        use_cache=settings.use_cache,
        stage=settings.stage,
        begin=begin,
    )
    module = parse(answer.hlo) if isinstance(answer, CompiledProgram) else None
    # 2. The memory, with the batch that `fit` sends while the devices compute.
    memory, time = with_next_batch(memory_of(answer, module, program, target), program, target), None
    # 3. The time of a step that fits with both batches.
    if module is not None and memory.fits:
        time = step_time(module, target, steps_per_execution=settings.steps_per_execution)
        time = dataclasses.replace(time, evidence=(*time.evidence, *compiler_note(answer.compiler)))
        time = add_waits(time, settings, batch_rows(program))
    return Prediction(
        program=program.name,
        mode=program.mode,
        target=target,
        batch_size=batch_rows(program),
        predicted_by=f"the {_BY[settings.stage]} ({answer.compiler})",
        memory=memory,
        time=time,
        peak_flops_per_s=peak_flops_per_s(module, target) if module else target.flops_per_s,
        steps_per_execution=settings.steps_per_execution,
        notes=left_out_note(answer.left_out),
        compile_s=None if answer.from_cache else answer.compile_s,
        batch_padding=batch_padding_of(module, program, target),
    )


def predict_scheduled(program: Program, target: Target, settings: PlanSettings, why: str) -> Prediction | None:
    """Predict a program from its schedule, with the reason for that; None if the compiler has none in time.

    A schedule takes a tenth of the time of a compilation. It has the memory, and no cycles: the interval is wider.
    """
    settings.progress(f"compiling {program.name} for {target.name} up to its schedule instead")
    try:
        prediction = predict_compiled(program, target, dataclasses.replace(settings, stage="schedule", is_trial=True))
    except NoAnswerError:
        return None
    return dataclasses.replace(prediction, notes=(why, SCHEDULED, *prediction.notes))


SCHEDULED = "The compiler made a schedule and no code: it has the memory, but no cycles, so the interval is wider."
"""The note of a prediction from a schedule."""


def peak_flops_per_s(module: Module, target: Target) -> float:
    """Return the peak rate of one device for the type of most of a module's products, FLOP/s."""
    counts: collections.Counter[str] = collections.Counter()
    for instruction in module.entry.instructions.values():
        counts.update({dtype: int(flops) for dtype, flops in flops_of(instruction).items()})
    chip, main = target.chip, max(counts, key=lambda dtype: counts[dtype], default="")
    fast = {"s": chip.int8_ops_per_s, "u": chip.int8_ops_per_s, "f8": chip.fp8_flops_per_s}
    rate = next((rate for start, rate in fast.items() if main.startswith(start)), None)
    return rate / chip.replicas if rate else target.flops_per_s
